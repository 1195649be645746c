r"""One-way ANOVA and Tukey's test of GCN, GAT and AGCN.

The runs are those of :mod:`benchmarks.boxplot`. As in the paper, they count as
independent samples, though runs of the same seed share their split; the
differences below Table 1 are taken seed by seed.
"""
import sys
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from benchmarks import runner, table
from benchmarks.boxplot import VARIANTS, own_rows, samples, tasks
from benchmarks.data import CITATION, SPLITS
from benchmarks.results import Claim

__all__ = ['own_rows']  # for the report

TABLE = table.TABLE
measure = table.measure
NAMES = ['AGCN', 'GAT', 'GCN']
LEVEL = 0.05
# The paper's table of ANOVA p-values:
PAPER = {'Cora': 1.0e-3, 'CiteSeer': 2.51e-7, 'PubMed': 1.21e-6}
# The only pair that its Tukey tables do not reject, as its text says:
KEPT = ('Cora', 'AGCN', 'GAT')
CAPTIONS = {
    f'significance_{split}': 'Mean accuracies with comparison intervals: two '
    "methods differ by Tukey's test where theirs do not overlap. The band is "
    f"AGCN's. Runs on the {split} split."
    for split in SPLITS
}


class Analysis(NamedTuple):
    r"""What the tests say of three groups."""

    mean: dict[str, float]
    statistic: float  # ANOVA's F
    pvalue: float
    pairs: dict[tuple[str, str], dict[str, Any]]  # of Tukey's test
    half: dict[str, float]  # widths of the comparison intervals


@cache  # as integrals of the studentized range take their time
def quantile(free: int) -> float:
    r"""What three means may differ by, in standard errors."""
    from scipy.stats import studentized_range
    return float(studentized_range.ppf(1 - LEVEL, 3, free))


@cache
def analyse(*groups: tuple[float, ...]) -> Analysis:
    r"""Both tests of three groups in the order of ``NAMES``; differences are
    the second mean minus the first.
    """
    from scipy.stats import f_oneway, tukey_hsd
    anova, tukey = f_oneway(*groups), tukey_hsd(*groups)
    mean = np.array([np.mean(group) for group in groups])
    size = np.array([len(group) for group in groups])
    free = int(size.sum()) - 3
    inner = sum(len(group) * np.var(group) for group in groups) / free / size
    need = quantile(free) * np.sqrt((inner[:, None] + inner) / 2)
    pairs = {}
    for i, j in combinations(range(3), 2):
        difference, p = mean[j] - mean[i], tukey.pvalue[i, j]
        pairs[NAMES[i], NAMES[j]] = dict(
            meandiff=difference, lower=difference - need[i, j],
            upper=difference + need[i, j], p=p, reject=bool(p < LEVEL))
    # Half-widths that add up to what each pair needs to differ by: of three
    # groups, just these do.
    np.fill_diagonal(need, 0)
    half = need.sum(1) - need.sum() / 4
    return Analysis(dict(zip(NAMES, mean)), anova.statistic, anova.pvalue,
                    pairs, dict(zip(NAMES, half)))


def analyses(rows: pd.DataFrame, split: str,
             ours: str) -> dict[str, Analysis]:
    r"""An analysis for each data set with two runs or more of each."""
    out = {}
    for dataset, part in samples(rows, split).items():
        groups = [tuple(part.get(name, ())) for name in [ours, 'GAT', 'GCN']]
        if min(map(len, groups)) > 1:
            out[dataset] = analyse(*groups)
    return out


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""ANOVA and Tukey's tables for each split and each AGCN."""
    out = {}
    for split in SPLITS[::-1]:  # the paper's first
        anova, tukey = [], {}
        for ours in VARIANTS:
            lines = []
            for dataset, found in analyses(rows, split, ours).items():
                anova.append([dataset, ours, f'{found.statistic:.2f}',
                              f'{found.pvalue:.2e}', f'{PAPER[dataset]:.2e}'])
                lines += [[dataset, *pair, *(f'{t[key]:.2f}' for key in [
                    'meandiff', 'lower', 'upper']), str(t['reject']),
                    f'{t["p"]:.2e}', str((dataset, *pair) != KEPT)]
                    for pair, t in found.pairs.items()]
            if lines:
                tukey[f"Tukey's test, {split} split: {ours}"] = pd.DataFrame(
                    lines, columns=['data', 'group1', 'group2', 'meandiff',
                                    'lower', 'upper', 'reject', 'p',
                                    "the paper's reject"])
        if anova:
            out[f'One-way ANOVA, {split} split'] = pd.DataFrame(
                anova, columns=['data', 'AGCN', 'F', 'p', "the paper's p"])
        out.update(tukey)
    return out


def draw(rows: pd.DataFrame, folder: Path) -> list[Path]:
    r"""Comparison intervals: a row for each data set, a column for each
    AGCN.
    """
    from benchmarks.plots import plt, save
    paths = []
    for split in SPLITS[::-1]:
        found = {ours: analyses(rows, split, ours) for ours in VARIANTS}
        datasets = [d for d in CITATION if any(d in f for f in found.values())]
        if not datasets:
            continue
        figure, axes = plt.subplot_mosaic(
            [[f'{d}: {ours}' for ours in VARIANTS] for d in datasets]
            + [['legend', 'legend']], figsize=(6.4, 0.9 + 1.6 * len(datasets)),
            height_ratios=[1] * len(datasets) + [0.2])
        for dataset in datasets:
            left, right = [axes[f'{dataset}: {ours}'] for ours in VARIANTS]
            right.sharex(left)
            for axis, ours in [(left, VARIANTS[0]), (right, VARIANTS[1])]:
                if dataset in found[ours]:
                    _intervals(axis, found[ours][dataset])
                axis.set_title(f'{dataset}: {ours}', fontsize=10)
                axis.set_ylim(-0.6, 2.6)
                if dataset == datasets[-1]:
                    axis.set_xlabel('mean test accuracy (%)')
        for kind, label in [((True, False), 'AGCN'),
                            ((False, True), 'differs from AGCN'),
                            ((False, False), 'does not differ')]:
            axes['legend'].errorbar([], [], xerr=[], **_look(*kind),
                                    label=label)
        axes['legend'].axis('off')
        axes['legend'].legend(loc='center', ncols=3)
        paths += save(figure, folder, f'significance_{split}')
    return paths


def _look(is_agcn: bool, differs: bool) -> dict[str, Any]:
    color = '#0072b2' if is_agcn else '#d55e00' if differs else '#555555'
    return dict(color=color, capsize=4, linewidth=2, markersize=7,
                marker='D' if is_agcn else 's' if differs else 'o',
                markerfacecolor=color if is_agcn or differs else 'white',
                linestyle='none')


def _intervals(axis: Any, found: Analysis) -> None:
    center, half = found.mean['AGCN'], found.half['AGCN']
    axis.axvspan(center - half, center + half, color='#0072b2', alpha=0.12,
                 linewidth=0)
    for y, name in enumerate(NAMES[::-1]):
        differs = name != 'AGCN' and found.pairs['AGCN', name]['reject']
        axis.errorbar(found.mean[name], y, xerr=found.half[name],
                      **_look(name == 'AGCN', differs))
    axis.set_yticks(range(3), NAMES[::-1])


def claims(rows: pd.DataFrame) -> list[Claim]:
    r"""What the paper concludes, on its random splits."""
    out = []
    for ours in VARIANTS:
        found = analyses(rows, 'random', ours)
        missing = [d for d in CITATION if d not in found]
        note = (f' Not enough runs yet on {", ".join(missing)}.'
                if missing else '')
        out += [_anova(found, ours, note), _differ(found, ours, note),
                _best(found.get('PubMed'), ours)]
    return out


def _verdict(found: dict[str, Analysis], hits: list[bool]) -> str:
    if len(found) < len(CITATION):
        return 'not shown'
    return 'yes' if all(hits) else 'no'


def _anova(found: dict[str, Analysis], ours: str, note: str) -> Claim:
    text = ', '.join(f'{d} p = {a.pvalue:.2g} (paper: {PAPER[d]:.3g})'
                     for d, a in found.items())
    return Claim(
        f'The mean accuracies of GCN, GAT and AGCN differ on all three '
        f'citation networks by ANOVA (p < {LEVEL}). ({ours})',
        _verdict(found, [a.pvalue < LEVEL for a in found.values()]),
        (f'{text}.{note}' if text else note).strip())


def _differ(found: dict[str, Analysis], ours: str, note: str) -> Claim:
    pairs = {d: a.pairs['AGCN', 'GCN'] for d, a in found.items()}
    text = ', '.join(  # 0 - 0.0 is no negative zero
        f'{d} {0 - round(t["meandiff"], 2):+.2f} (p = {t["p"]:.2g})'
        for d, t in pairs.items())
    return Claim(
        f"AGCN and GCN differ on all three citation networks by Tukey's "
        f'test. ({ours})',
        _verdict(found, [t['reject'] for t in pairs.values()]),
        (f'AGCN minus GCN: {text}.{note}' if text else note).strip())


def _best(found: Analysis | None, ours: str) -> Claim:
    claim = f'AGCN is the best performing method on PubMed. ({ours})'
    if found is None:
        return Claim(claim, 'not shown', 'Not enough runs yet on PubMed.')
    tests = {name: found.pairs['AGCN', name] for name in NAMES[1:]}
    if any(t['meandiff'] >= 0 for t in tests.values()):
        holds = 'no'
    else:
        sure = all(t['reject'] for t in tests.values())
        holds = 'yes' if sure else 'not shown'
    text = ', '.join(f'{name} {mean:.2f}' for name, mean in found.mean.items())
    p = ' and '.join(f'{t["p"]:.2g} beside {name}'
                     for name, t in tests.items())
    return Claim(claim, holds, f"Means: {text}; Tukey's p = {p}.")


def main(argv: list[str]) -> None:
    runner.conclude(sys.modules[__name__], *tasks('significance', argv))
