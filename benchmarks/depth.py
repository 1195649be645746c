r"""Accuracy against depth, and what all layers of the networks do.

Depth means layers with a weight matrix each, and hops for DiffusedMLP and
APPNP, which have two weight matrices before them. APPNP is DiffusedMLP with
its gate held open and all other settings equal: what lies between the two is
owed to the gate. GCN has the settings of AGCN (paper); all others have those
of Table 1 or, GCNII and DeepAGCN, those of GCNII's authors with 64 channels.
AGCN (paper) runs with the beta that was chosen for two layers, and with the
largest of the paper's grid. Two rules are for all:

* Training goes on for 100 epochs without a lower validation loss: after ten,
  as the two-layer networks have it, deep ones stop before they begin.
* A network is trained for its own number of epochs, but at most for 3,200
  divided by its depth, or for 200 where that is more. GCNII, DeepAGCN and the
  networks of hops, which go on learning for longer, keep all of their epochs.

Energies and distances are those of the outputs of all convolutions, and after
each hop, once the network is trained and in evaluation mode. A network that
gives the same output for all nodes has no distances, but a relative energy
(0.79 on Cora): what propagation keeps is the root of the degree, no constant.
"""
import json
from argparse import Namespace
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

from benchmarks import plots, runner, settings
from benchmarks.data import DATASETS, splits_of
from benchmarks.results import RESULTS, Claim, Table
from benchmarks.stats import (
    Gap,
    by_seed,
    interval,
    mean_error,
    paired,
    pairs,
    verdict,
)
from torch_agcn.functional import (
    dirichlet_energy,
    mean_average_distance,
    relative_energy,
)

QUESTION = 'What does depth do to accuracy, and to the layers?'
METHODS = {
    'gcn': 'GCN', 'gcn_pn': 'GCN-PN', 'jknet': 'JK-Net', 'gcnii': 'GCNII',
    'agcn_paper': 'AGCN (paper)', 'agcn_five': 'AGCN (paper), beta = 5',
    'agcn_deep': 'DeepAGCN',
    'agcn': 'DiffusedMLP', 'appnp': 'APPNP',
    'agcn_bare': 'DiffusedMLP, no restart',
    'appnp_bare': 'APPNP, no restart'}
OF_HOPS = ['agcn', 'appnp', 'agcn_bare', 'appnp_bare']
# Whose settings they have:
BASES = {'gcn': 'gcn_equal', 'appnp': 'agcn_open', 'gcnii': 'gcnii_narrow'}
DEPTHS = [2, 4, 6, 8, 16, 32, 64]
OPTIONS = dict(datasets=['Cora'], runs=3, choices=dict(
    methods=list(METHODS), depths=DEPTHS))
QUICK = dict(runs=1, depths=[2, 4, 6, 16])
PATIENCE = 100
LAYER_EPOCHS, EPOCHS = 3200, 200
OWN_SCHEDULE = ['gcnii', 'agcn_deep', *OF_HOPS]
MEASURES = {'dirichlet_energies': dirichlet_energy,
            'relative_energies': relative_energy,
            'average_distances': mean_average_distance}
TABLE = Table(RESULTS / 'depth.csv', [
    'method', 'dataset', 'split', 'depth', 'seed', 'settings', 'epochs',
    'val_loss', 'val_accuracy', 'test_accuracy', 'seconds', 'peak_mb',
    'gates', *MEASURES])
PANELS = {  # of the first figure
    'layers': ['gcn', 'gcn_pn', 'jknet', 'agcn_paper', 'agcn_five'],
    'layers, input added to each': ['gcnii', 'agcn_deep'],
    'hops': ['agcn_bare', 'appnp_bare'],
    'hops, input added to each': ['agcn', 'appnp']}
LAYERS = ['gcn', 'gcnii', 'agcn_paper', 'agcn_deep', 'agcn']  # of the second
CAPTIONS = {
    **{f'depth_{name.lower()}': f'{name}: mean test accuracy with its '
       f'standard error against depth. Above: layers with a weight matrix '
       f'each. Below: hops, with no weights. On the right, a share of the '
       f'input is added to each, which stops over-smoothing without a gate; '
       f'note the narrow scales. GCNII has 64 channels.' for name in DATASETS},
    **{f'depth_layers_{name.lower()}': f'{name}: gate, and distance between '
       f'neighbors (mean average distance), after some layers or hops of the '
       f'deepest trained networks, the last one among them; means over the '
       f'runs. At 0, all nodes have the same output.'
       for name in DATASETS}}
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
    out = json.loads(settings.settings_of(BASES.get(method, method), dataset))
    out['num_hops' if method in OF_HOPS else 'num_layers'] = depth
    out['patience'] = max(out['patience'], PATIENCE)
    if method not in OWN_SCHEDULE:
        out['epochs'] = min(out['epochs'], max(LAYER_EPOCHS // depth, EPOCHS))
    if quick:
        out['epochs'] = 30
    return runner.as_json(**out)


# Runs ########################################################################


def measure(task: Task, root: str) -> dict[str, Any]:
    r"""Runs a task as for Table 1, then looks into the trained network."""
    row, data, run = settings.run(task, root)
    if run.model is None:
        raise ValueError(f"'{task.method}' returned no model to look into")
    outs = outputs(run.model, data)
    for column, function in MEASURES.items():
        row[column] = ' '.join(f'{float(function(out, data.edge_index)):.5g}'
                               for out in outs)
    return row


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
    rows = settings.latest(rows, 'depth')
    return rows[rows.method.isin(METHODS)]


def shown(rows: pd.DataFrame) -> pd.DataFrame:
    r"""Those of data sets with three methods at least at three depths."""
    rows = latest(rows)
    counts = rows.groupby(['dataset', 'method']).depth.nunique() > 2
    whole = counts.groupby('dataset').sum() > 2
    return rows[rows.dataset.isin(whole[whole].index)]


def by_depth(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""Accuracies by seed and depth, for each method there is."""
    return {method: by_seed(rows[rows.method == method], 'depth')
            for method in METHODS if (rows.method == method).any()}


def per_layer(rows: pd.DataFrame, column: str) -> np.ndarray:
    r"""The means over runs of a column with numbers for each layer; none if
    it is empty. A layer with two steps has their mean.
    """
    texts = rows[column].dropna().astype(str)
    if texts.empty:
        return np.empty(0)
    values = np.array([text.split() for text in texts], dtype=float).mean(0)
    depth = int(rows.depth.iloc[0])
    return values.reshape(depth, -1).mean(1) if len(values) > depth and (
        len(values) % depth == 0) else values


def deepest(rows: pd.DataFrame) -> pd.DataFrame:
    r"""The rows of the greatest depth."""
    return rows[rows.depth == rows.depth.max()]


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""Accuracies, and the last layers of the deepest networks."""
    out = {}
    for dataset, part in shown(rows).groupby('dataset', sort=False):
        depths, last = sorted(part.depth.unique()), []
        found = by_depth(part)
        for method in found:
            deep = deepest(part[part.method == method])
            ends = [per_layer(deep, column) for column in ['gates', *MEASURES]]
            last.append([
                METHODS[method], deep.depth.iloc[0],
                *(f'{v[0]:.3g} … {v[-1]:.3g}' if len(v) else '–'
                  for v in ends),
                f'{deep.epochs.median():.0f}', f'{deep.seconds.median():.0f}'])
        out[f'{dataset}: test accuracy in percent, mean ± standard error '
            f'(runs), by layers or hops'] = pd.DataFrame(
                [[METHODS[method], *(mean_error(wide[d]) if d in wide else '–'
                                     for d in depths)]
                 for method, wide in found.items()],
                columns=['', *map(str, depths)])
        out[f'{dataset}: the deepest networks, at their first … last layer '
            f'or hop'] = (
            pd.DataFrame(last, columns=[
                '', 'depth', 'gate', 'Dirichlet energy', 'relative energy',
                'mean average distance', 'epochs', 'seconds']))
    return out


def draw(rows: pd.DataFrame, folder: Path) -> list[Path]:
    r"""Accuracy against depth, and all layers of the deepest networks."""
    paths = []
    for dataset, part in shown(rows).groupby('dataset', sort=False):
        paths += _draw_accuracy(part, str(dataset), folder)
        paths += _draw_layers(part, str(dataset), folder)
    return paths


def _draw_accuracy(rows: pd.DataFrame, dataset: str,
                   folder: Path) -> list[Path]:
    figure, axes = plots.plt.subplots(2, 2, figsize=(9, 8))
    found = by_depth(rows)
    for axis, (kind, methods) in zip(axes.flat, PANELS.items()):
        there = {m: found[m] for m in methods if m in found}
        for method, wide in there.items():
            name = METHODS[method].removesuffix(', no restart')
            plots.error_line(axis, wide, [wide[d] for d in wide], name)
        axis.set_title(f'{dataset}: {kind}')
        depths = {d for wide in there.values() for d in wide}
        _depth_axis(axis, sorted(depths), kind.split(',')[0])
        axis.set_visible(bool(there))
        if there:
            axis.legend(loc='upper center', bbox_to_anchor=(0.5, -0.18),
                        ncols=2)
    for axis in axes[:, 0]:
        axis.set_ylabel('test accuracy (%)')
    return plots.save(figure, folder, f'depth_{dataset.lower()}')


def _draw_layers(rows: pd.DataFrame, dataset: str,
                 folder: Path) -> list[Path]:
    titles = {'gates': 'gate', 'average_distances': 'distance of neighbors'}
    figure, axes = plots.panels(2, 4.0, 3.8)
    for axis, (column, title) in zip(axes, titles.items()):
        for method in LAYERS:
            deep = deepest(rows[rows.method == method])
            values = per_layer(deep, column)
            if len(values):
                some = [d for d in [1, *DEPTHS] if d <= len(values)]
                axis.plot(some, values[np.array(some) - 1],
                          label=METHODS[method],
                          **plots.style_of(METHODS[method]))
        axis.set(title=f'{dataset}: {title}')
        _depth_axis(axis, [1, 2, 4, 8, 16, 32, 64], 'layer, or hop')
    axes[0].set_ylim(-0.03, 1.03)
    # Orders of magnitude apart, and zero where all nodes are the same:
    axes[1].set_yscale('symlog', linthresh=1e-4)
    axes[1].set_yticks([0, 1e-4, 1e-2, 1], ['0', '0.0001', '0.01', '1'])
    axes[1].minorticks_off()
    axes[1].set_ylim(bottom=-3e-5)
    plots.legend_below(figure)
    return plots.save(figure, folder, f'depth_layers_{dataset.lower()}')


def _depth_axis(axis: Any, ticks: list[int], label: str) -> None:
    axis.set_xscale('log')
    axis.set_xticks(ticks, ticks)
    axis.minorticks_off()
    axis.set_xlabel(label)


# Claims ######################################################################


def claims(rows: pd.DataFrame) -> list[Claim]:
    r"""What the paper says of its figure of depth, on Cora."""
    rows = latest(rows[rows.dataset == 'Cora'])
    gcn = by_depth(rows).get('gcn', pd.DataFrame())
    ours = with_best_beta(rows)
    drop = pairs(gcn, 4, 6)
    deeper = {d: pairs(ours, d, 2) for d in ours if d > 2}
    worst = min((d for d, gap in deeper.items() if gap),
                key=lambda d: deeper[d].mean, default=None)
    six = ours[6] if 6 in ours else pd.Series(dtype=float)
    name = 'AGCN (paper), with a beta that validation chooses at each depth,'
    return [
        Claim("There is a sharp drop in GCN's accuracy beyond 4 layers.",
              verdict([drop], SHARP),
              f'With 4 layers minus with 6: {drop} points; sharp is '
              f'{SHARP:.0f}.' if drop else 'Not two seeds of both yet.'),
        Claim("AGCN's performance does not significantly degrade with depth.",
              verdict(deeper.values(), -SHARP),
              f'{name} with {worst} layers, its worst depth, minus with 2: '
              f'{deeper[worst]} points.' if worst else
              'Not two seeds of both yet.'),
        Claim('A 6-layer AGCN yields an accuracy of 80 %.',
              verdict([interval(six, 79.5)]),
              f'{name} has {mean_error(six)}.' if len(six) else
              'Not run yet.')]


def with_best_beta(rows: pd.DataFrame) -> pd.DataFrame:
    r"""Accuracies of AGCN (paper) by seed and depth, each with the beta that
    validation prefers.
    """
    rows = rows[rows.method.isin(['agcn_paper', 'agcn_five'])]
    mean = rows.groupby(['depth', 'method']).val_accuracy.mean().unstack()
    if mean.empty:
        return mean
    return by_seed(rows[rows.method == rows.depth.map(mean.idxmax(axis=1))],
                   'depth')


def answer(rows: pd.DataFrame) -> str:
    r"""What the deepest networks of Cora lose, and what the gate is worth."""
    found = by_depth(latest(rows[rows.dataset == 'Cora']))
    texts = [f'{METHODS[method]} {wide[max(wide)].mean():.1f} % ({max(wide)})'
             for method, wide in found.items()]
    gates = {name: _last_gap(found, a, b) for name, a, b in [
        ('without restart', 'agcn_bare', 'appnp_bare'),
        ('with restart', 'agcn', 'appnp')]}
    worth = ', '.join(f'{gap} {name}' for name, gap in gates.items() if gap)
    return ('Test accuracy on Cora with the most layers or hops (their '
            'number): ' + ', '.join(texts) + (
                f'; the gate of DiffusedMLP is worth, in points: {worth}'
                if worth else '') + '.' if texts else '')


def _last_gap(found: dict[str, pd.DataFrame], ours: str,
              other: str) -> Gap | None:
    both = [found.get(method, pd.DataFrame()) for method in [ours, other]]
    depths = set(both[0]) & set(both[1])
    return paired(*(wide[max(depths)] for wide in both)) if depths else None


def tasks(args: Namespace) -> list[Task]:
    r"""All methods at all depths."""
    return [Task(method, dataset, splits_of(dataset)[0], depth, seed,
                 settings_of(method, dataset, depth, args.quick))
            for seed in range(args.runs) for dataset in args.datasets
            for depth in args.depths for method in args.methods]
