r"""Accuracy against depth, and what all layers of the networks do.

Each method has the settings of its file that are not searched (which were
made for two layers), but the depth. Depth means layers with a weight matrix
each, and hops of one layer for ``agcn`` and for ``appnp``, which is the same
with its gate held open: what lies between these two is owed to the gate, and
the rest to having two weight matrices. Two rules are for all:

* Training goes on for 100 epochs without a lower validation loss: after ten,
  as the two-layer networks have it, deep ones stop before they begin.
* A network is trained for its own number of epochs, but at most for 3,200
  divided by its depth, or for 200 where that is more. GCNII, DeepAGCN and the
  networks of hops, which go on learning for longer, keep all of their epochs.
  GAT is left out beyond 16 layers: a row of features per edge takes too long.

Energies and distances are those of the outputs of all convolutions, and after
each hop, once the network is trained and in evaluation mode. A network that
gives the same output for all nodes has no distances, but a relative energy
(0.79 on Cora): what propagation keeps is the root of the degree, no constant.
"""
import json
import sys
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing

from benchmarks import plots, runner, table
from benchmarks.data import DATASETS, splits_of
from benchmarks.plots import plt
from benchmarks.results import RESULTS, Claim, Table
from torch_agcn.functional import (
    dirichlet_energy,
    mean_average_distance,
    relative_energy,
)

METHODS = {
    'gcn': 'GCN', 'gat': 'GAT', 'gcn_pn': 'GCN-PN', 'jknet': 'JK-Net',
    'gcnii': 'GCNII', 'agcn_paper': 'AGCN, paper',
    'agcn_stack': 'AGCN, stack', 'agcn': 'AGCN, hops', 'appnp': 'APPNP',
    'agcn_deep': 'DeepAGCN',
}
STYLES = {**plots.STYLES,
          'APPNP': dict(color='#8c6bb1', marker='<', linestyle=':'),
          'DeepAGCN': dict(color='#7f0000', marker='p', linestyle='-.')}
DEPTHS = [2, 4, 6, 8, 16, 32, 64]
DEEPEST_GAT = 16
PATIENCE = 100
LAYER_EPOCHS, EPOCHS = 3200, 200
OF_HOPS = ['agcn', 'appnp']
OWN_SCHEDULE = ['gcnii', 'agcn_deep', *OF_HOPS]
MEASURES = {'dirichlet_energies': dirichlet_energy,
            'relative_energies': relative_energy,
            'average_distances': mean_average_distance}
TABLE = Table(RESULTS / 'depth.csv', [
    'method', 'dataset', 'split', 'depth', 'seed', 'settings', 'epochs',
    'val_loss', 'val_accuracy', 'test_accuracy', 'seconds', 'peak_mb',
    'gates', *MEASURES])
CAPTIONS = {
    **{f'depth_{name.lower()}': f'{name}: test accuracy with its standard '
       f'error against the number of layers or hops.' for name in DATASETS},
    **{f'depth_layers_{name.lower()}': f'{name}: gates, relative energies and '
       f'mean average distances after each layer or hop of the deepest '
       f'trained networks.' for name in DATASETS}}
SHARP = 5.0  # points of accuracy that make a drop a sharp one


class Task(NamedTuple):
    r"""One run. ``settings`` are all of them, as JSON."""

    method: str
    dataset: str
    split: str
    depth: int
    seed: int
    settings: str


def settings_of(method: str, dataset: str, depth: int,
                quick: bool = False) -> str:
    r"""The settings of a method at a depth."""
    key = 'num_hops' if method in OF_HOPS else 'num_layers'
    settings = json.loads(table.settings_of(method, dataset, **{key: depth}))
    settings['patience'] = max(settings['patience'], PATIENCE)
    if method not in OWN_SCHEDULE:
        settings['epochs'] = min(settings['epochs'],
                                 max(LAYER_EPOCHS // depth, EPOCHS))
    if quick:
        settings['epochs'] = 30
    return runner.as_json(**settings)


# Runs ########################################################################


def measure(task: Task, root: str) -> dict[str, Any]:
    r"""Runs a task as for Table 1, then looks into the trained network."""
    row, data, run = table.run(table.Task(
        task.method, task.dataset, task.split, task.seed, task.settings), root)
    if run.model is None:
        raise ValueError(f"'{task.method}' returned no model to look into")
    outs = outputs(run.model, data)
    for column, function in MEASURES.items():
        row[column] = ' '.join(f'{float(function(out, data.edge_index)):.5g}'
                               for out in outs)
    return {**row, 'depth': task.depth}


@torch.no_grad()
def outputs(model: Module, data: Data) -> list[Tensor]:
    r"""What comes out of each convolution, or of each hop."""
    found: list[Tensor] = []

    def look(conv: MessagePassing, inputs: Any, out: Tensor) -> None:
        for hops in range(1, getattr(conv, 'num_hops', 1)):
            part = copy(conv)
            part.num_hops = hops
            found.append(part.forward(*inputs))
        found.append(out)

    hooks = [m.register_forward_hook(look) for m in model.modules()
             if isinstance(m, MessagePassing)]
    model.eval()(data.x, data.edge_index)
    for hook in hooks:
        hook.remove()
    return found


# What comes of it ############################################################


def latest(rows: pd.DataFrame) -> pd.DataFrame:
    r"""The rows with the settings that were used last at their depth."""
    return pd.concat([table.latest(part)
                      for _, part in rows.groupby('depth')])


def per_layer(rows: pd.DataFrame, column: str) -> np.ndarray:
    r"""The means over runs of a column with a number for each layer; none if
    it is empty.
    """
    texts = rows[column].dropna().astype(str)
    return np.array([text.split() for text in texts],
                    dtype=float).mean(axis=0) if len(texts) else np.empty(0)


def by_method(rows: pd.DataFrame) -> list[tuple[str, str, pd.DataFrame]]:
    r"""Key, label and rows of the methods there are."""
    return [(method, label, rows[rows.method == method])
            for method, label in METHODS.items()
            if (rows.method == method).any()]


def deepest(rows: pd.DataFrame) -> pd.DataFrame:
    r"""The rows of the greatest depth."""
    return rows[rows.depth == rows.depth.max()]


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""Accuracies, and the last layers of the deepest networks."""
    out = {}
    for dataset, part in latest(rows).groupby('dataset', sort=False):
        lines, last = [], []
        depths = sorted(part.depth.unique())
        for _, label, runs in by_method(part):
            accuracy = _accuracy(runs)
            lines.append([label, *(accuracy.get(d, '–') for d in depths)])
            deep = deepest(runs)
            gates = per_layer(deep, 'gates')
            ends = [per_layer(deep, column) for column in MEASURES]
            last.append([
                label, deep.depth.iloc[0],
                f'{gates[0]:.3g} … {gates[-1]:.3g}' if len(gates) else '–',
                *(f'{v[0]:.3g} … {v[-1]:.3g}' for v in ends),
                f'{deep.epochs.median():.0f}', f'{deep.seconds.median():.0f}'])
        out[f'{dataset}: test accuracy in percent, mean ± standard error '
            f'(runs), by layers or hops'] = pd.DataFrame(
                lines, columns=['', *map(str, depths)])
        out[f'{dataset}: first … last layer of the deepest networks'] = (
            pd.DataFrame(last, columns=[
                '', 'depth', 'gate', 'Dirichlet energy', 'relative energy',
                'mean average distance', 'epochs', 'seconds']))
    return out


def _accuracy(runs: pd.DataFrame) -> dict[int, str]:
    r"""Accuracies as text, by depth."""
    found = runs.groupby('depth').test_accuracy.agg(['mean', 'sem', 'count'])
    return {depth: f'{mean:.1f} ({n:.0f})' if n == 1 else
            f'{mean:.1f} ± {sem:.1f} ({n:.0f})'
            for depth, mean, sem, n in found.itertuples()}


def draw(rows: pd.DataFrame, folder: Path) -> list[Path]:
    r"""Accuracy against depth, and all layers of the deepest networks."""
    paths = []
    for dataset, part in latest(rows).groupby('dataset', sort=False):
        paths += _draw_accuracy(part, dataset, folder)
        paths += _draw_layers(part, dataset, folder)
    return paths


def _draw_accuracy(rows: pd.DataFrame, dataset: str,
                   folder: Path) -> list[Path]:
    figure, axis = plt.subplots(figsize=(7.6, 4.2))
    for _, label, part in by_method(rows):
        found = part.groupby('depth').test_accuracy.agg(['mean', 'sem'])
        axis.errorbar(found.index, found['mean'], found['sem'].fillna(0),
                      label=label, capsize=3, **STYLES[label])
    axis.set(ylabel='test accuracy (%), with standard error', ylim=(0, 100),
             title=f'{dataset}: accuracy against depth')
    _depth_axis(axis, rows, 'layers, or hops')
    axis.legend(loc='upper left', bbox_to_anchor=(1.01, 1.0))
    return plots.save(figure, folder, f'depth_{dataset.lower()}')


def _draw_layers(rows: pd.DataFrame, dataset: str,
                 folder: Path) -> list[Path]:
    panels = {'gates': 'gate',
              'relative_energies': 'relative energy',
              'dirichlet_energies': 'Dirichlet energy',
              'average_distances': 'mean average distance'}
    figure, axes = plt.subplots(2, 2, figsize=(10, 6.6), sharex=True)
    for axis in axes[1]:
        # Orders of magnitude apart, and zero where all nodes are the same:
        axis.set_yscale('symlog', linthresh=1e-6)
    for axis, (column, title) in zip(axes.flat, panels.items()):
        for _, label, part in by_method(rows):
            deep = deepest(part)
            values = per_layer(deep, column)
            axis.plot(range(1, len(values) + 1), values, markersize=5,
                      markevery=[d - 1 for d in [1, *DEPTHS]
                                 if d <= len(values)],
                      label=f'{label} ({deep.depth.iloc[0]})',
                      **STYLES[label])
        axis.set(ylabel=title)
    axes[0, 0].set_ylim(-0.03, 1.03)
    for axis in axes[1]:
        axis.set_ylim(bottom=-5e-7)
        _depth_axis(axis, rows, 'layer, or hop', first=[1])
    axes[0, 1].legend(loc='upper left', bbox_to_anchor=(1.02, 1.0),
                      title='(layers, or hops)')
    figure.suptitle(f'{dataset}: all layers of the deepest networks, trained')
    return plots.save(figure, folder, f'depth_layers_{dataset.lower()}')


def _depth_axis(axis: Any, rows: pd.DataFrame, label: str,
                first: list[int] | None = None) -> None:
    ticks = [*(first or []), *sorted(rows.depth.unique())]
    axis.set_xscale('log')
    axis.set_xticks(ticks, ticks)
    axis.minorticks_off()
    axis.set_xlabel(label)


def claims(rows: pd.DataFrame) -> list[Claim]:
    r"""What the paper says of its figure of depth, on Cora."""
    rows = rows[rows.dataset == 'Cora']
    runs = {method: part for method, _, part in by_method(latest(rows))
            } if len(rows) else {}
    mean = {method: part.groupby('depth').test_accuracy.mean()
            for method, part in runs.items()}
    ours = [method for method in ['agcn_paper', 'agcn_stack', *OF_HOPS]
            if method in runs]

    def say(method: str) -> str:
        texts = _accuracy(runs[method])
        return f'{METHODS[method]}: ' + ', '.join(
            f'{text} at {depth}' for depth, text in texts.items())

    def verdict(method: str, depths: set[int], test: Any) -> str:
        if not depths <= set(mean.get(method, pd.Series()).index):
            return 'not shown'
        return 'yes' if test(mean[method]) else 'no'

    def loss(found: pd.Series) -> float:
        return float(found[2] - found.min())

    return [
        Claim("there is a sharp drop in GCN's accuracy when the number of "
              'layers is larger than 4',
              verdict('gcn', {4, 6}, lambda m: m[4] - m[6] >= SHARP),
              f'{say("gcn")} layers; sharp is a loss of {SHARP:.0f} points '
              f'from 4 to 6' if 'gcn' in runs else 'GCN was not run'),
        Claim("AGCN's performance does not significantly degrade as the "
              'number of layers increases',
              verdict('agcn_paper', {2, 6}, lambda m: loss(m) < SHARP),
              '; '.join(f'{say(method)}, at most {loss(mean[method]):.1f} '
                        f'points below depth 2'
                        for method in ours if 2 in mean[method])
              or 'AGCN was not run'),
        Claim('a 6-layer AGCN yields an accuracy of 80 %',
              verdict('agcn_paper', {6}, lambda m: m[6] >= 79.5),
              '; '.join(f'{METHODS[method]}: {_accuracy(runs[method])[6]}'
                        for method in ours if 6 in mean[method])
              or 'AGCN was not run with 6 layers'),
    ]


def main(argv: list[str]) -> None:
    options = runner.parser('depth', ['Cora'], runs=3)
    options.add_argument('--methods', nargs='+', default=list(METHODS),
                         choices=list(METHODS), metavar='METHOD',
                         help=f'of {", ".join(METHODS)} (default: all)')
    options.add_argument('--depths', nargs='+', type=runner.positive,
                         default=DEPTHS,
                         choices=DEPTHS, metavar='DEPTH',
                         help=f'of {", ".join(map(str, DEPTHS))} (default: '
                         f'all)')
    args = options.parse_args(argv)
    if args.quick:
        args.datasets, args.runs = args.datasets[:1], 1
        args.depths = [2, 4, 6, 16]
    tasks = [Task(method, dataset, splits_of(dataset)[0], depth, seed,
                  settings_of(method, dataset, depth, args.quick))
             for seed in range(args.runs) for dataset in args.datasets
             for depth in args.depths for method in args.methods
             if method != 'gat' or depth <= DEEPEST_GAT]
    runner.conclude(sys.modules[__name__], tasks, args)
