r"""Statistics of runs that share splits and seeds."""
from typing import NamedTuple

import pandas as pd
from scipy.stats import t


class Gap(NamedTuple):
    r"""A mean difference and half of its 95 % interval."""

    mean: float
    half: float

    def __str__(self) -> str:
        return f'{self.mean:+.1f} ± {self.half:.1f}'

    @property
    def is_above(self) -> bool:
        r"""Whether the whole interval is above zero."""
        return self.mean - self.half > 0


def paired(ours: pd.Series, other: pd.Series) -> Gap | None:
    r"""The difference over the seeds that both have, if there are two."""
    gap = (ours - other).dropna()
    if len(gap) < 2:
        return None
    return Gap(gap.mean(), t.ppf(0.975, len(gap) - 1) * gap.sem())


def mean_error(values: pd.Series) -> str:
    r"""The mean, its standard error, and the number of runs."""
    values = values.dropna()
    if len(values) == 0:
        return '–'
    error = f' ± {values.sem():.1f}' if len(values) > 1 else ''
    return f'{values.mean():.1f}{error} ({len(values)})'
