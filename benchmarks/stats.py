r"""Statistics of runs that share splits and seeds, and what they decide.

Runs of the same seed are pairs, so methods are compared by the differences
within pairs. The paper's tests, which take all runs as independent, are here
too: one-way ANOVA and Tukey's.
"""
from collections.abc import Iterable
from functools import cache
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats
from scipy.stats import t

LEVEL = 0.05


def by_seed(rows: pd.DataFrame, columns: str | list[str] = 'method',
            values: str = 'test_accuracy') -> pd.DataFrame:
    r"""A line for each seed and a column for each method, of rows that have
    both once.
    """
    return rows.pivot(index='seed', columns=columns, values=values)


# Intervals ###################################################################


class Gap(NamedTuple):
    r"""A mean difference and half of its 95 % interval."""

    mean: float
    half: float

    def __str__(self) -> str:
        return self.text()

    def text(self, digits: int = 1) -> str:
        r"""Mean and interval with so many digits."""
        mean = round(self.mean, digits) + 0.0  # no minus before zero
        return f'{mean:+.{digits}f} ± {self.half:.{digits}f}'

    @property
    def is_above(self) -> bool:
        r"""Whether the whole interval is above zero."""
        return self.mean - self.half > 0


def interval(values: pd.Series, beside: float = 0.0) -> Gap | None:
    r"""The mean minus a number, if there are two values."""
    values = values.dropna()
    if len(values) < 2:
        return None
    return Gap(float(values.mean() - beside),
               float(t.ppf(1 - LEVEL / 2, len(values) - 1) * values.sem()))


def paired(ours: pd.Series, other: pd.Series) -> Gap | None:
    r"""The difference over the seeds that both have, if there are two."""
    return interval(ours - other)


def pairs(wide: pd.DataFrame, ours: Any, other: Any) -> Gap | None:
    r"""The difference of two columns, if both are there."""
    if ours not in wide or other not in wide:
        return None
    return paired(wide[ours], wide[other])


def gap_text(wide: pd.DataFrame, ours: Any, other: Any,
             digits: int = 2) -> str:
    r"""The difference of two columns with its interval, or a dash where there
    is none.
    """
    gap = None if ours == other else pairs(wide, ours, other)
    return '–' if gap is None else gap.text(digits)


def sentence(begin: str, found: dict[str, Any], comma: str = ', ') -> str:
    r"""What is known, by name, or nothing if nothing is."""
    texts = [f'{name} {value}' for name, value in found.items()
             if value is not None and value != '–']
    return f'{begin}{comma.join(texts)}.' if texts else ''


def compared(begin: str, found: dict[str, Gap | None],
             digits: int = 1) -> str:
    r"""Differences by name: those whose interval is above zero, below it, and
    around it. Nothing if there are none.
    """
    groups: dict[str, dict[str, Any]] = {
        'better': {}, 'worse': {}, 'no difference shown': {}}
    for name, gap in found.items():
        if gap is not None:
            key = ('better' if gap.mean > gap.half else 'worse'
                   if gap.mean < -gap.half else 'no difference shown')
            groups[key][name] = gap.text(digits)
    return sentence(begin, {f'{key}:': sentence('', group)[:-1]
                            for key, group in groups.items() if group}, '; ')


def mean_error(values: pd.Series, of: str = 'sem') -> str:
    r"""The mean, its standard error, and the number of runs."""
    values = values.dropna()
    if len(values) == 0:
        return '–'
    error = f' ± {values.agg(of):.1f}' if len(values) > 1 else ''
    return f'{values.mean():.1f}{error} ({len(values)})'


def mean_std(values: pd.Series) -> str:
    r"""The mean, the standard deviation, and the number of runs."""
    return mean_error(values, 'std')


def share(hits: pd.Series) -> tuple[float, float]:
    r"""The ends of the 95 % interval of how often something is so."""
    test = stats.binomtest(int(hits.sum()), len(hits))
    return tuple(test.proportion_ci(1 - LEVEL))


class Spread(NamedTuple):
    r"""Two standard deviations, and the 95 % interval of their ratio."""

    ours: float
    other: float
    low: float
    high: float

    def __str__(self) -> str:
        return (f'{self.ours:.2f} beside {self.other:.2f} (ratio '
                f'{self.low:.2f} to {self.high:.2f})')


def paired_spread(ours: pd.Series, other: pd.Series) -> Spread | None:
    r"""The standard deviations over the seeds that both have, if there are
    three, with the interval of Pitman's and Morgan's test for pairs.
    """
    a, b = ours.align(other, join='inner')
    keep = a.notna() & b.notna()
    a, b, n = a[keep], b[keep], int(keep.sum())
    if n < 3:
        return None
    s = float(a.std()), float(b.std())
    if min(s) == 0:
        ratio = 1.0 if s[0] == s[1] else 0.0 if s[0] == 0 else np.inf
        return Spread(*s, ratio, ratio)
    r = round(float(np.corrcoef(a, b)[0, 1])**2, 12)  # 1 for the same runs
    k = 1 + 2 * (1 - r) * t.ppf(1 - LEVEL / 2, n - 2)**2 / (n - 2)
    root = np.sqrt(max(0.0, k * k - 1))
    return Spread(*s, *(float(s[0] / s[1] * np.sqrt(k + sign * root))
                        for sign in [-1, 1]))


# Tests #######################################################################


def wilcoxon(ours: pd.Series, other: pd.Series) -> float:
    r"""The p-value of the signed-rank test of paired runs."""
    gap = (ours - other).dropna()
    if len(gap) == 0 or (gap == 0).all():
        return 1.0
    return float(stats.wilcoxon(gap).pvalue)


def friedman(wide: pd.DataFrame) -> float:
    r"""The p-value of the test that ranks three columns or more within each
    line.
    """
    wide = wide.dropna()
    if len(wide) < 2 or (wide.nunique(axis=1) == 1).all():
        return 1.0
    return float(stats.friedmanchisquare(*wide.to_numpy().T).pvalue)


class Analysis(NamedTuple):
    r"""What ANOVA and Tukey's test say of three groups."""

    mean: dict[str, float]
    statistic: float  # ANOVA's F
    pvalue: float
    pairs: dict[tuple[str, str], dict[str, Any]]  # of Tukey's test
    half: dict[str, float]  # widths of the comparison intervals


def analyse(groups: dict[str, Iterable[float]]) -> Analysis:
    r"""Both tests of three groups; differences are the second mean minus the
    first.
    """
    return _analyse(tuple(groups), *(tuple(v) for v in groups.values()))


@cache  # as integrals of the studentized range take their time
def _analyse(names: tuple[str, ...],
             *groups: tuple[float, ...]) -> Analysis:
    anova, tukey = stats.f_oneway(*groups), stats.tukey_hsd(*groups)
    ends = tukey.confidence_interval(1 - LEVEL)  # of first minus second
    found = {}
    for i, j in combinations(range(3), 2):
        found[names[i], names[j]] = dict(
            meandiff=-tukey.statistic[i, j], lower=-ends.high[i, j],
            upper=-ends.low[i, j], p=tukey.pvalue[i, j],
            reject=bool(tukey.pvalue[i, j] < LEVEL))
    # Half-widths that add up to what each pair needs to differ by: of three
    # groups, just these do.
    need = (ends.high - ends.low) / 2
    np.fill_diagonal(need, 0)
    half = need.sum(1) - need.sum() / 4
    return Analysis(dict(zip(names, map(np.mean, groups))), anova.statistic,
                    anova.pvalue, found, dict(zip(names, half)))


# Verdicts ####################################################################


def decide(intervals: Iterable[tuple[float, float] | None],
           least: float = 0.0) -> str:
    r"""Whether all of some 95 % intervals are above a bound: 'yes' if they
    are, 'no' if one of them excludes it, and 'not shown' else, as where one
    is not known.
    """
    found = list(intervals)
    known = [ends for ends in found if ends is not None]
    if any(high <= least for _, high in known):
        return 'no'
    sure = known and all(low > least for low, _ in known)
    return 'yes' if sure and len(known) == len(found) else 'not shown'


def verdict(gaps: Iterable[Gap | None], least: float = 0.0) -> str:
    r"""Whether all of some differences are above a bound."""
    return decide([gap and (gap.mean - gap.half, gap.mean + gap.half)
                   for gap in gaps], least)


def most(gaps: Iterable[Gap | None]) -> str:
    r"""Whether most of some differences are above zero."""
    found = [gap for gap in gaps if gap is not None]
    above = sum(gap.is_above for gap in found)
    below = sum(gap.mean + gap.half <= 0 for gap in found)
    if 2 * above > len(found):
        return 'yes'
    return 'no' if found and 2 * below >= len(found) else 'not shown'
