r"""Accuracy distributions of AGCN, GAT and GCN on the citation networks.

The runs are those of Table 1, in ``results/table.csv``: what is missing there
is run first. The paper's setting is ten random splits; on the public split,
only the initial weights differ.
"""
import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks import runner, table
from benchmarks.data import CITATION, SPLITS
from benchmarks.results import Claim

TABLE = table.TABLE
measure = table.measure
LABELS = {'gcn': 'GCN', 'gat': 'GAT', 'agcn_paper': 'AGCN, paper',
          'agcn': 'AGCN, recommended'}
BASELINES = ['GCN', 'GAT']
VARIANTS = ['AGCN, paper', 'AGCN, recommended']
CAPTIONS = {
    'boxplot_random': 'Test accuracy over random splits: quartiles as boxes, '
    'the median as a line, a point for each run.',
    'boxplot_public': 'The same on the public split, where the runs differ '
    'in their initial weights alone.',
}


def own_rows(rows: pd.DataFrame) -> pd.DataFrame:
    r"""The rows of Table 1 that belong here."""
    rows = table.latest(rows)
    rows = rows[rows.method.isin(LABELS) & rows.dataset.isin(CITATION)]
    return rows.drop_duplicates(['method', 'dataset', 'split', 'seed'],
                                keep='last')


def samples(rows: pd.DataFrame, split: str) -> dict[str, dict[str, Any]]:
    r"""The accuracies of each method on each data set that has any."""
    rows = own_rows(rows)
    groups = {key: part.to_numpy(float) for key, part in rows[
        rows.split == split].groupby(['dataset', 'method']).test_accuracy}
    found = {dataset: {label: groups[dataset, method]
                       for method, label in LABELS.items()
                       if (dataset, method) in groups}
             for dataset in CITATION}
    return {dataset: part for dataset, part in found.items() if part}


def spread(rows: pd.DataFrame, split: str) -> pd.DataFrame:
    r"""Standard deviations of AGCN and of each baseline, with the p-values of
    Levene's test and of Brown and Forsythe's, which takes the distances from
    the median and not from the mean.
    """
    from scipy.stats import levene
    lines = []
    for dataset, part in samples(rows, split).items():
        for ours in VARIANTS:
            for other in BASELINES:
                a, b = part.get(ours, []), part.get(other, [])
                if len(a) < 3 or len(b) < 3:  # two are as far from their
                    continue                  # mean: nothing to test
                with np.errstate(all='ignore'):  # runs that are all equal
                    p = [levene(a, b, center=center).pvalue
                         for center in ['mean', 'median']]
                lines.append([dataset, ours, other, np.std(a, ddof=1),
                              np.std(b, ddof=1), *p])
    return pd.DataFrame(lines, columns=[
        'data', 'AGCN', 'beside', 'std of AGCN', 'std beside', "Levene's p",
        "Brown-Forsythe's p"])


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""The distributions in numbers, and the tests of their spread."""
    out = {}
    for split in SPLITS[::-1]:  # the paper's first
        lines = [[dataset, label, len(values), f'{values.mean():.2f}',
                  f'{np.median(values):.2f}',
                  f'{np.std(values, ddof=1):.2f}' if len(values) > 1 else '–',
                  f'{np.subtract(*np.percentile(values, [75, 25])):.2f}',
                  f'{values.min():.1f} to {values.max():.1f}']
                 for dataset, part in samples(rows, split).items()
                 for label, values in part.items()]
        if lines:
            out[f'Test accuracy (%), {split} split'] = pd.DataFrame(
                lines, columns=['data', 'method', 'runs', 'mean', 'median',
                                'std', 'interquartile range', 'range'])
        tests = spread(rows, split)
        if len(tests):
            for name in tests.columns[3:]:
                form = '{:.2g}' if name.endswith(' p') else '{:.2f}'
                tests[name] = tests[name].map(form.format)
            out[f"Does AGCN's spread differ? ({split} split)"] = tests
    return out


def draw(rows: pd.DataFrame, folder: Path) -> list[Path]:
    r"""A figure for each split, a panel for each data set."""
    from benchmarks.plots import STYLES, plt, save
    paths = []
    for split in SPLITS[::-1]:
        found = samples(rows, split)
        if not found:
            continue
        figure, axes = plt.subplots(
            len(found), sharex=True, squeeze=False,
            figsize=(6.4, 0.8 + 2.1 * len(found)))
        for axis, (dataset, part) in zip(axes.flat, found.items()):
            for x, label in enumerate(LABELS.values()):
                if label not in part:
                    continue
                values, color = part[label], STYLES[label]['color']
                axis.boxplot([values], positions=[x], widths=0.6,
                             showfliers=False, patch_artist=True,
                             boxprops=dict(facecolor='#eeeeee'),
                             medianprops=dict(color='black', linewidth=2))
                # Side by side, so that equal ones do not hide each other:
                place = x + np.linspace(-0.2, 0.2, len(values) + 2)[1:-1]
                axis.scatter(place, values, s=22, color=color, zorder=3,
                             marker=STYLES[label]['marker'], linewidths=0.5,
                             edgecolors='white')
            axis.set(ylabel='test accuracy (%)', title=dataset,
                     xlim=(-0.6, len(LABELS) - 0.4))
            axis.set_xticks(range(len(LABELS)), list(LABELS.values()))
            axis.grid(visible=False, axis='x')
        paths += save(figure, folder, f'boxplot_{split}')
    return paths


def claims(rows: pd.DataFrame) -> list[Claim]:
    r"""Less variability, on the paper's random splits."""
    tests = spread(rows, 'random')
    return [_claim(tests[tests['AGCN'] == ours], ours) for ours in VARIANTS]


def _claim(tests: pd.DataFrame, ours: str) -> Claim:
    less = tests['std of AGCN'] < tests['std beside']
    sure = tests["Brown-Forsythe's p"] < 0.05
    if len(tests) < len(BASELINES) * len(CITATION):
        holds = 'not shown'
    elif not less.all():
        holds = 'no'
    else:
        holds = 'yes' if sure.all() else 'not shown'
    parts = []
    for dataset, part in tests.groupby('data', sort=False):
        beside = ' and '.join(
            f'{line[2]} {line[4]:.2f} (p = {line[6]:.2g})'
            for line in part.itertuples(index=False, name=None))
        parts.append(f'{dataset} {part["std of AGCN"].iloc[0]:.2f} beside '
                     f'{beside}')
    missing = [d for d in CITATION if (tests.data == d).sum() < len(BASELINES)]
    text = (f'Standard deviations over random splits, with the p-values of '
            f'Brown and Forsythe: {"; ".join(parts)}.' if parts else '')
    if missing:
        text += f' Not enough runs yet on {", ".join(missing)}.'
    return Claim(f'AGCN has less variability than GCN and GAT. ({ours})',
                 holds, text.strip())


def tasks(name: str, argv: list[str]) -> tuple[
        list[table.Task], argparse.Namespace]:
    r"""The runs of Table 1 that are needed, and the options."""
    options = runner.parser(name, CITATION, of=CITATION)
    options.add_argument('--split', default='random', choices=SPLITS,
                         help='to run, if missing (default: %(default)s)')
    args = options.parse_args(argv)
    chosen = {}
    if args.quick:
        args.datasets, args.runs = args.datasets[:1], min(args.runs, 3)
        chosen = dict(epochs=100)
    return [table.Task(method, dataset, args.split, seed,
                       table.settings_of(method, dataset, **chosen))
            for seed in range(args.runs) for dataset in args.datasets
            for method in LABELS], args


def main(argv: list[str]) -> None:
    runner.conclude(sys.modules[__name__], *tasks('boxplot', argv))
