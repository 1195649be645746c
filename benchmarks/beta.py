r"""Test accuracy and gates against beta, for the paper's energy and for ours.

All other settings are those of Table 1. The paper's grid is 0, 0.1, ..., 5.
A part of it is run by default, and smaller values, down to where the gate of
the paper's formula moves: it depends on :math:`\beta s^2`, and the energy
:math:`s` of the features of a whole graph is in the hundreds or thousands.
"""
import json
import math
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks import runner, table
from benchmarks.data import DATASETS, SPLITS, load, splits_of
from benchmarks.history import gaps, verdict
from benchmarks.results import RESULTS, Claim, Table
from benchmarks.table import Task
from torch_agcn.functional import dirichlet_energy

TABLE = Table(RESULTS / 'beta.csv', [*table.COLUMNS, 'beta', 'input_energy'])
LABELS = {'agcn_paper': "the paper's energy", 'agcn': 'relative energy'}
GATES = {'agcn_paper': ['layer 1', 'layer 2'],
         'agcn': ['first hop', 'last hop']}
FULL_GRID = [i / 10 for i in range(51)]
GRID = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0]
BELOW = [1e-10, 1e-9, 1e-8, 3e-8, 1e-7, 3e-7, 1e-6, 3e-6, 1e-5, 3e-5, 1e-4,
         1e-3, 1e-2]
RELATIVE = [0.5, 1.5, 5.0, 15.0, 50.0, 150.0, 500.0, 1500.0, 5000.0]
QUICK = {'agcn_paper': [0.0, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 0.1, 0.4, 5.0],
         'agcn': [5.0, 500.0]}
DATASET, BEST = 'PubMed', 0.4  # the paper's
CAPTIONS = {
    f'beta_{dataset}_{split}'.lower(): 'Mean test accuracy with its standard '
    'error, and gates after training. In the shaded range lies the grid of '
    'the paper; from the dotted line on, its gate is exactly one on the input '
    'features, in single precision.'
    for dataset in DATASETS for split in SPLITS
}


def measure(task: Task, root: str) -> dict[str, Any]:
    r"""A run of Table 1 with a beta of its own."""
    data = load(task.dataset, task.split, task.seed, root)
    energy = float(dirichlet_energy(data.x, data.edge_index))
    return {**table.measure(task, root), 'input_energy': f'{energy:.5g}',
            'beta': json.loads(task.settings)['beta']}


def saturation(energy: float) -> float:
    r"""The beta from which :math:`1 - \exp(-\beta s^2)` rounds to one, whose
    lower neighbor is :math:`1 - 2^{-24}` in single precision.
    """
    return 25 * math.log(2) / energy**2


# What came of the runs #######################################################


def latest(rows: pd.DataFrame) -> pd.DataFrame:
    r"""The rows with the settings that were used last, and their gates."""
    last = rows.groupby(['dataset', 'split', 'method', 'beta']).settings
    rows = rows[rows.settings == last.transform('last')]
    gates = [[float(gate) for gate in str(text).split()]
             for text in rows.gates]
    return rows.assign(first_gate=[gate[0] for gate in gates],
                       last_gate=[gate[-1] for gate in gates])


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    r"""Means over the seeds, with the standard error of the accuracy."""
    groups = latest(rows).groupby(['dataset', 'split', 'method', 'beta'])
    out = groups[['test_accuracy', 'val_accuracy', 'first_gate', 'last_gate',
                  'input_energy']].mean()
    out['error'] = groups.test_accuracy.sem()
    out['seeds'] = groups.size()
    return out.reset_index()


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""A table for each data set, split and energy."""
    out = {}
    for (dataset, split, method), part in summary(rows).groupby(
            ['dataset', 'split', 'method']):
        lines = [[f'{r.beta:g}', r.seeds, f'{r.test_accuracy:.2f}',
                  f'{r.error:.2f}' if r.seeds > 1 else '–',
                  f'{r.val_accuracy:.2f}', f'{r.first_gate:.5g}',
                  f'{r.last_gate:.5g}'] for r in part.itertuples()]
        out[f'{dataset}, {split} split, {LABELS[method]}'] = pd.DataFrame(
            lines, columns=['beta', 'seeds', 'test accuracy (%)',
                            'standard error', 'validation accuracy (%)',
                            *(f'gate, {name}' for name in GATES[method])])
    return out


def draw(rows: pd.DataFrame, folder: Path) -> list[Path]:
    r"""For each data set, accuracies above and gates below."""
    from benchmarks.plots import save
    paths = []
    for (dataset, split), part in summary(rows).groupby(['dataset', 'split']):
        figure = _figure(part, f'{dataset}, {split} split')
        paths += save(figure, folder, f'beta_{dataset}_{split}'.lower())
    return paths


def _figure(part: pd.DataFrame, title: str) -> Any:
    from benchmarks.plots import STYLES, plt
    styles = {'agcn_paper': STYLES['AGCN, paper'],
              'agcn': STYLES['AGCN, recommended']}
    figure, (top, bottom) = plt.subplots(
        2, sharex=True, figsize=(8, 7), height_ratios=[3, 2])
    positive = part.beta[part.beta > 0]
    # Zero has no place on a logarithmic axis but one that it is given:
    first, last = (math.floor(math.log10(b))
                   for b in [positive.min(), positive.max()])
    zero = 10.0**(first - 1)
    for axis in [top, bottom]:
        axis.axvspan(FULL_GRID[1], FULL_GRID[-1], color='black', alpha=0.1,
                     linewidth=0, label="the paper's grid, without 0")
        axis.axvline(saturation(part.input_energy.mean()), color='black',
                     linestyle=':', label="the paper's first gate is one "
                     'from here')
    for method, line in part.groupby('method', sort=False):
        look = dict(styles[method], markersize=5)
        for at, label in [(line.beta > 0, LABELS[method]),
                          (line.beta == 0, '_')]:
            some, x = line[at], line.beta[at].clip(lower=zero)
            top.errorbar(x, some.test_accuracy, some.error.fillna(0),
                         capsize=3, label=label, **look)
            bottom.plot(x, some.first_gate, **look,
                        label=f'{label}, {GATES[method][0]}')
            bottom.plot(x, some.last_gate, **look, alpha=0.6,
                        markerfacecolor='white',
                        label=f'{label}, {GATES[method][1]}')
    powers = range(first, last + 2, 2)
    top.set(xscale='log', ylabel='test accuracy (%)')
    top.set_xticks([zero, *(10.0**n for n in powers)],
                   ['0', *(f'$10^{{{n}}}$' for n in powers)])
    top.minorticks_off()
    bottom.set(xlabel='beta', ylabel='gate after training')
    top.legend(loc='lower center', bbox_to_anchor=(0.5, 1), ncols=2,
               title=title)
    handles, labels = bottom.get_legend_handles_labels()
    bottom.legend(handles[2:], labels[2:], loc='upper center',
                  bbox_to_anchor=(0.5, -0.22), ncols=2)
    return figure


def claims(rows: pd.DataFrame) -> list[Claim]:
    r"""The paper's, of its energy on its grid."""
    rows = latest(rows)
    verdicts, texts = set(), []
    for (dataset, split), part in rows.groupby(['dataset', 'split']):
        found, text = _best(part[(part.method == 'agcn_paper')
                                 & part.beta.isin(FULL_GRID)])
        texts.append(f'{dataset} ({split} split): {text}')
        if dataset == DATASET:
            verdicts.add(found)
        ours = summary(part[part.method == 'agcn'])
        if len(ours) > 1:
            mean = ours.set_index('beta').test_accuracy
            texts[-1] += (
                f' With the relative energy, the mean accuracy is between '
                f'{mean.min():.2f} % (beta = {mean.idxmin():g}) and '
                f'{mean.max():.2f} % (beta = {mean.idxmax():g}).')
    return [Claim(f'beta = {BEST} yields the best accuracy on {DATASET}.',
                  verdicts.pop() if len(verdicts) == 1 else 'not shown',
                  ' '.join(texts))]


def _best(rows: pd.DataFrame) -> tuple[str, str]:
    r"""The best of the grid, if there is one."""
    grid = rows[rows.beta > 0]
    mean = grid.groupby('beta').test_accuracy.mean()
    if BEST not in mean or len(mean) < 2:
        return 'not shown', f'beta = {BEST} and another are not run yet.'
    zero = rows[rows.beta == 0].test_accuracy
    end = f'; beta = 0 gives {zero.mean():.2f} %.' if len(zero) else '.'
    by_seed = grid.groupby('seed')
    different = by_seed.test_accuracy.nunique().max()
    if different == 1:
        spread = by_seed.val_loss.agg(lambda part: part.max() - part.min())
        bound = saturation(grid.input_energy.mean())
        second = f'at least {grid.last_gate.min():.5g}'
        if grid.last_gate.min() == 1:  # as it is kept
            second = 'one to five digits'
        return 'no', (
            f'in each seed (of {len(by_seed)}), all {len(mean)} non-zero '
            f'values of the grid give the same accuracy, {mean[BEST]:.2f} % '
            f'in the mean, and validation losses that differ by '
            f'{spread.max():.1g} at most: the first gate is exactly one from '
            f'beta = {bound:.1g} on, and the second is {second} after '
            f'training{end}')
    others = mean.drop(BEST)
    text = (f'{mean[BEST]:.2f} % at beta = {BEST}, and {others.max():.2f} % '
            f'at the best of {len(others)} other non-zero values of the '
            f'grid, {others.idxmax():g}; up to {different} different '
            f'accuracies in one of {len(by_seed)} seeds{end}')
    found = gaps(grid, 'test_accuracy', BEST, others.idxmax(), by='beta')
    return verdict(list(found.values()), 1), text


def main(argv: list[str]) -> None:
    options = runner.parser('beta', [DATASET])
    options.add_argument('--split', default='public', choices=SPLITS,
                         help='(default: public)')
    options.add_argument('--full-grid', action='store_true',
                         help="all 51 values of the paper's grid")
    args = options.parse_args(argv)
    betas = {'agcn_paper': (FULL_GRID if args.full_grid else GRID) + BELOW,
             'agcn': RELATIVE}
    if args.quick:
        args.runs, betas = 1, QUICK
        if args.datasets == [DATASET]:
            args.datasets = ['Cora']  # a tenth of the time
    tasks = []
    for seed in range(args.runs):
        for dataset in args.datasets:
            split = args.split
            if split not in splits_of(dataset):
                split = splits_of(dataset)[0]
            for method, values in betas.items():
                settings = json.loads(table.settings_of(method, dataset))
                tasks += [Task(method, dataset, split, seed, runner.as_json(
                    **settings | {'beta': beta})) for beta in values]
    runner.conclude(sys.modules[__name__], tasks, args)
