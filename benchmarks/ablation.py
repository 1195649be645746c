r"""What each part of DeepAGCN is worth, switched off one at a time.

All runs share settings, seeds and schedule, those of the experiment ``depth``.
"""
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from benchmarks import depth, plots, runner, stats, table
from benchmarks.data import DATASETS, splits_of
from benchmarks.results import RESULTS, Claim, Table

METHOD, ALL = 'agcn_deep', 'all parts'
TABLE = Table(RESULTS / 'ablation.csv', [*table.COLUMNS, 'depth', 'part'])
PARTS: dict[str, dict[str, Any]] = {
    ALL: {},
    'gate held open': {'beta': 1e30},
    'gate leads from zero': {'residual': False},
    'beta learnt': {'learn_beta': True},
    'no initial residual': {'alpha': 0.0},
    'no identity mapping': {'theta': None},
    'one step per layer': {'num_hops': 1},
}
DEPTHS = [2, 16, 64]
CAPTIONS = {f'ablation_{name.lower()}': f'{name}: mean test accuracy with its '
            f'standard error, with all parts and with one switched.'
            for name in DATASETS}


class Task(NamedTuple):
    r"""One run. ``settings`` are all of them, as JSON."""

    method: str
    dataset: str
    split: str
    depth: int
    part: str
    seed: int
    settings: str


def settings_of(dataset: str, layers: int, part: str,
                quick: bool = False) -> str:
    r"""The settings of the whole network, but for a part."""
    settings = json.loads(depth.settings_of(METHOD, dataset, layers, quick))
    return runner.as_json(**{**settings, **PARTS[part]})


def measure(task: Task, root: str) -> dict[str, Any]:
    r"""Runs a task as for Table 1."""
    row = table.measure(table.Task(task.method, task.dataset, task.split,
                                   task.seed, task.settings), root)
    return {**row, 'depth': task.depth, 'part': task.part}


def latest(rows: pd.DataFrame) -> pd.DataFrame:
    r"""The rows with the settings that were used last."""
    last = rows.groupby(['dataset', 'depth', 'part']).settings
    return rows[rows.settings == last.transform('last')]


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""Accuracies, and differences to all parts over the same seeds."""
    out = {}
    for dataset, found in latest(rows).groupby('dataset', sort=False):
        lines = {part: {'': part} for part in PARTS
                 if (found.part == part).any()}
        for layers, runs in found.groupby('depth'):
            wide = runs.pivot(index='seed', columns='part',
                              values='test_accuracy')
            for part, line in lines.items():
                line[f'{layers} layers'] = (stats.mean_error(wide[part])
                                           if part in wide else '–')
                line[f'{layers} layers, difference'] = _gap(wide, part)
        out[f'{dataset}: test accuracy in percent, mean ± standard error '
            f'(runs), and the difference to all parts with its 95 % '
            f'interval'] = pd.DataFrame(list(lines.values()))
    return out


def _gap(wide: pd.DataFrame, part: str) -> str:
    if part == ALL or part not in wide or ALL not in wide:
        return '–'
    return str(stats.paired(wide[part], wide[ALL]) or '–')


def draw(rows: pd.DataFrame, folder: Path) -> list[Path]:
    r"""A panel for each depth, a bar for each part."""
    paths = []
    for dataset, found in latest(rows).groupby('dataset', sort=False):
        parts = [p for p in PARTS if (found.part == p).any()][::-1]
        depths = sorted(found.depth.unique())
        figure, axes = plots.plt.subplots(
            1, len(depths), sharey=True, squeeze=False,
            figsize=(2.2 + 2.6 * len(depths), 1.2 + 0.36 * len(parts)))
        for axis, layers in zip(axes[0], depths):
            stats = found[found.depth == layers].groupby(
                'part').test_accuracy.agg(['mean', 'sem'])
            for y, part in enumerate(parts):
                if part in stats.index:
                    mean, error = stats.loc[part].fillna(0)
                    axis.barh(y, mean, xerr=error, capsize=3,
                              color='#2166ac' if part == ALL else '#bbbbbb',
                              edgecolor='black', linewidth=0.6)
                    axis.annotate(f'{mean:.1f}', (3, y), va='center',
                                  color='white' if part == ALL else 'black')
            axis.set(xlim=(0, 100), title=f'{layers} layers',
                     xlabel='test accuracy (%)')
        axes[0, 0].set_yticks(range(len(parts)), parts)
        figure.suptitle(f'{dataset}: DeepAGCN, a part switched at a time')
        paths += plots.save(figure, folder, f'ablation_{dataset.lower()}')
    return paths


def claims(rows: pd.DataFrame) -> list[Claim]:
    r"""None: this network is not the paper's."""
    return []


def main(argv: list[str]) -> None:
    options = runner.parser('ablation', ['Cora'], runs=5)
    options.add_argument('--depths', nargs='+', type=runner.positive,
                         default=DEPTHS,
                         metavar='DEPTH', help=f'numbers of layers (default: '
                         f'{" ".join(map(str, DEPTHS))})')
    args = options.parse_args(argv)
    if args.quick:
        args.datasets, args.runs, args.depths = args.datasets[:1], 1, [2]
    tasks = [Task(METHOD, dataset, splits_of(dataset)[0], layers, part, seed,
                  settings_of(dataset, layers, part, args.quick))
             for seed in range(args.runs) for dataset in args.datasets
             for layers in args.depths for part in PARTS]
    runner.conclude(sys.modules[__name__], tasks, args)
