r"""GCN, GAT and AGCN over random splits: how they differ, and how they spread.

The runs are those of Table 1, in ``results/table.csv``: what is missing there
of the paper's setting, ten random splits, is run first. GCN and GAT are as
tuned for Table 1.

Methods share splits and seeds, so differences and standard deviations are
compared within pairs. The paper's tests, ANOVA and Tukey's, take all runs as
independent; they stand beside.
"""
from argparse import Namespace
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks import plots, settings, stats
from benchmarks.data import CITATION
from benchmarks.results import RESULTS, Claim, Table
from benchmarks.settings import COLUMNS, METHODS, Task, latest, settings_of
from benchmarks.stats import LEVEL, Analysis, pairs, sentence

QUESTION = 'Do GCN, GAT and AGCN differ, and which of them spreads least?'
TABLE = Table(RESULTS / 'table.csv', COLUMNS)
BASELINES, OURS = ['gcn', 'gat'], ['agcn_paper', 'agcn']
LABELS = {method: METHODS[method] for method in [*BASELINES, *OURS]}
OPTIONS = dict(datasets=CITATION, of=CITATION, chosen={})
QUICK = dict(datasets=['Cora'], runs=3, chosen=dict(epochs=100))
measure = settings.measure
# The paper's table of ANOVA p-values:
PAPER = {'Cora': 1.0e-3, 'CiteSeer': 2.51e-7, 'PubMed': 1.21e-6}
# The only pair that its Tukey tables do not reject, as its text says:
KEPT = ('Cora', 'AGCN', 'GAT')
CAPTIONS = {
    'boxplot_random': 'Test accuracy on random splits: a point for each run, '
    'quartiles as a box, the median as a thick line. An arrow stands for runs '
    'further to the left, with their accuracies.',
    'significance_random': "Tukey's test on random splits: mean accuracies "
    'with comparison intervals. Two methods differ where theirs do not '
    'overlap; hollow ones are not shown to differ from AGCN (paper), whose '
    'interval is shaded.'}


# Numbers #####################################################################


def own_rows(rows: pd.DataFrame) -> pd.DataFrame:
    r"""The rows of Table 1 that belong here."""
    rows = latest(rows[rows.split == 'random'])
    return rows[rows.method.isin(LABELS) & rows.dataset.isin(CITATION)]


def samples(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""For each data set, the accuracies by seed and method."""
    rows = own_rows(rows)
    parts = {d: stats.by_seed(rows[rows.dataset == d]) for d in CITATION}
    return {dataset: wide for dataset, wide in parts.items() if wide.size}


def analyses(rows: pd.DataFrame, ours: str) -> dict[str, Analysis]:
    r"""ANOVA and Tukey's test of each data set with two runs or more of each
    method.
    """
    out = {}
    for dataset, wide in samples(rows).items():
        groups = {name: wide[method].dropna() for name, method in [
            ('AGCN', ours), ('GAT', 'gat'), ('GCN', 'gcn')] if method in wide}
        if len(groups) == 3 and min(map(len, groups.values())) > 1:
            out[dataset] = stats.analyse(groups)
    return out


# Tables ######################################################################


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""Paired differences, and the paper's tests."""
    out = {
        'Differences between runs of the same seed, random splits':
        _paired(samples(rows)),
        'One-way ANOVA of GCN, GAT and AGCN, random splits': _anova(rows),
        f"Tukey's test, random splits: {LABELS[OURS[0]]}": _tukey(rows)}
    return {title: frame for title, frame in out.items() if len(frame)}


def _paired(found: dict[str, pd.DataFrame]) -> pd.DataFrame:
    lines = []
    for dataset, wide in found.items():
        for ours in OURS:
            trio = [ours, *BASELINES]
            ranks = (f'{stats.friedman(wide[trio]):.2g}'
                     if set(trio) <= set(wide) else '–')
            for other in BASELINES:
                gap = pairs(wide, ours, other)
                if gap is not None:
                    both = wide[ours], wide[other]
                    lines.append([
                        dataset, LABELS[ours], LABELS[other], str(gap),
                        f'{stats.wilcoxon(*both):.2g}', ranks,
                        str(stats.paired_spread(*both) or '–')])
    return pd.DataFrame(lines, columns=[
        'data', 'method', 'minus', 'points, 95 % interval', "Wilcoxon's p",
        "Friedman's p of it, GCN and GAT", 'standard deviations'])


def _anova(rows: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        [[dataset, LABELS[ours], f'{found.statistic:.2f}',
          f'{found.pvalue:.2e}', f'{PAPER[dataset]:.2e}'] for ours in OURS
         for dataset, found in analyses(rows, ours).items()],
        columns=['data', 'AGCN', 'F', 'p', "the paper's p"])


def _tukey(rows: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        [[dataset, *pair, *(f'{test[key]:.2f}' for key in [
            'meandiff', 'lower', 'upper']), str(test['reject']),
          f'{test["p"]:.2e}', str((dataset, *pair) != KEPT)]
         for dataset, one in analyses(rows, OURS[0]).items()
         for pair, test in one.pairs.items()],
        columns=['data', 'group1', 'group2', 'group2 minus group1', 'lower',
                 'upper', 'reject', 'p', "the paper's reject"])


# Figures #####################################################################


def draw(rows: pd.DataFrame, folder: Path) -> list[Path]:
    r"""Boxes, and comparison intervals."""
    found = samples(rows)
    tests = analyses(rows, OURS[0])
    return [*(_draw_boxes(found, folder) if found else []),
            *(_draw_intervals(tests, folder) if tests else [])]


def _draw_boxes(found: dict[str, pd.DataFrame], folder: Path) -> list[Path]:
    figure, axes = plots.panels(len(found), 3.2, 2.8, sharey=True)
    for axis, (dataset, wide) in zip(axes, found.items()):
        plots.dots(axis, {LABELS[m]: wide[m].dropna() if m in wide else []
                          for m in LABELS}, boxes=True)
        plots.few_ticks(axis)
        axis.set(title=dataset, xlabel='test accuracy (%)')
    return plots.save(figure, folder, 'boxplot_random')


def _draw_intervals(found: dict[str, Analysis], folder: Path) -> list[Path]:
    figure, axes = plots.panels(len(found), 3.2, 2.4, sharey=True)
    names = [LABELS[OURS[0]], 'GAT', 'GCN']
    for axis, (dataset, one) in zip(axes, found.items()):
        center, half = one.mean['AGCN'], one.half['AGCN']
        axis.axvspan(center - half, center + half, alpha=0.12, linewidth=0,
                     color=plots.style_of(names[0])['color'])
        for y, (name, label) in enumerate(zip(one.mean, names)):
            same = name != 'AGCN' and not one.pairs['AGCN', name]['reject']
            axis.errorbar(one.mean[name], y, xerr=one.half[name], capsize=4,
                          markersize=8, markerfacecolor='white' if same
                          else None, **plots.style_of(label))
        axis.set(title=dataset, xlabel='mean test accuracy (%)')
        axis.set_yticks(range(3), names)
        axis.set_ylim(2.6, -0.6)
        plots.few_ticks(axis)
    return plots.save(figure, folder, 'significance_random')


# Claims ######################################################################


def claims(rows: pd.DataFrame) -> list[Claim]:
    r"""What the paper concludes, on its random splits."""
    parts, found = samples(rows), analyses(rows, OURS[0])
    wide = {d: parts.get(d, pd.DataFrame()) for d in CITATION}
    spreads = {f'{d}, {LABELS[other]}': stats.paired_spread(
        part[OURS[0]], part[other]) if {OURS[0], other} <= set(part) else None
        for d, part in wide.items() for other in BASELINES}
    gaps = {LABELS[other]: pairs(wide['PubMed'], OURS[0], other)
            for other in BASELINES}
    tests = {d: one.pairs['AGCN', 'GCN'] for d, one in found.items()}
    return [
        Claim('AGCN has less variability than GCN and GAT.',
              stats.decide([spread and (-spread.high, -spread.low)
                            for spread in spreads.values()], -1.0),
              _text('Standard deviations of AGCN (paper) over random splits, '
                    'with the 95 % interval of their ratio: ', spreads)),
        Claim(f'GCN, GAT and AGCN differ on all citation networks by ANOVA '
              f'(p < {LEVEL}).',
              _all([one.pvalue < LEVEL for one in found.values()]),
              _text('p-values: ', {d: f'{one.pvalue:.2g} (paper '
                                   f'{PAPER[d]:.2g})'
                                   for d, one in found.items()})),
        Claim("AGCN and GCN differ on all citation networks by Tukey's test.",
              _all([test['reject'] for test in tests.values()]),
              _text('AGCN (paper) minus GCN: ', {
                  d: f'{0 - round(test["meandiff"], 2):+.2f} (p = '
                  f'{test["p"]:.2g})' for d, test in tests.items()})),
        Claim('AGCN is the best of GCN, GAT and AGCN on PubMed.',
              stats.verdict(gaps.values()),
              _text('AGCN (paper) minus others, 95 % interval: ', gaps))]


def _all(rejected: list[bool]) -> str:
    # What a test does not reject may still be so.
    whole = len(rejected) == len(CITATION) and all(rejected)
    return 'yes' if whole else 'not shown'


def _text(begin: str, found: dict[str, Any]) -> str:
    return sentence(begin, found, '; ') or 'Not enough runs yet.'


def answer(rows: pd.DataFrame) -> str:
    r"""The paired differences to GCN."""
    return stats.compared(
        'Test accuracy minus that of a tuned GCN, over random splits, in '
        'points with 95 % intervals: ',
        {f'{LABELS[ours]} on {d}': pairs(wide, ours, 'gcn') for ours in OURS
         for d, wide in samples(rows).items()})


def tasks(args: Namespace) -> list[Task]:
    r"""Those of Table 1 on random splits."""
    return [Task(method, dataset, 'random', seed,
                 settings_of(method, dataset, **args.chosen))
            for seed in range(args.runs) for dataset in args.datasets
            for method in LABELS]
