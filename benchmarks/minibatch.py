r"""Mini-batches of one graph: accuracy, and gates beside the whole graph's.

The same network is trained on the whole graph, and on parts of it that PyG's
``NeighborLoader`` samples, with as many steps of Adam. It is the DiffusedMLP
of Table 1, with its settings but four hops, which a loader has to sample as
well, and AGCN (paper). Where the gate comes from in
training:

* ``exact``: the whole graph;
* ``raw``: the batch, as if it were the graph;
* ``weighted``: the batch, with the weights of
  :class:`torch_agcn.loader.ImportanceWeights`;
* ``running``: the same, averaged over batches (``momentum``), and this average
  in evaluation as well. All others are evaluated with the gate of the whole
  graph.

After training and without dropout, the gates of many batches are looked at, in
each of these ways.
"""
import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.transforms import RemoveSelfLoops

from benchmarks import runner, settings
from benchmarks.batches import (
    STEPS_PER_EPOCH,
    loss_of,
    make_model,
    make_optimizer,
    settings_of,
    train_best,
)
from benchmarks.data import CITATION, load
from benchmarks.results import RESULTS, Claim, Table
from benchmarks.stats import Gap, paired
from torch_agcn import AGCNConv
from torch_agcn.loader import ImportanceWeights, MixedBatchSampler

QUESTION = 'What do mini-batches cost in accuracy, and what are their gates?'
TABLE = Table(RESULTS / 'minibatch.csv', [
    'method', 'dataset', 'sampling', 'estimate', 'seed', 'settings', 'nodes',
    'best_epoch', 'val_accuracy', 'test_accuracy', 'gates', 'batch_gates',
    'seconds'])
LABELS = {m: settings.METHODS[m] for m in ['agcn', 'agcn_paper']}
SAMPLINGS = {'full': 'whole graph', 'neighbor': 'NeighborLoader'}
ESTIMATES = ['raw', 'weighted', 'running']
BOUND = 1.0  # points from training on the whole graph
STYLES: dict[str, dict[str, Any]] = {
    'raw': dict(color='#d55e00', marker='s'),
    'weighted': dict(color='#0072b2', marker='o'),
    'running': dict(color='#009e73', marker='^'),
}
CAPTIONS = {
    'minibatch_gates': 'The gate of each hop in a trained network (the first '
    'seed, trained with the running estimate): points are medians over '
    'batches, bars reach from the 5th to the 95th percentile; the running '
    'estimate is one number, the average of all these batches.',
    'minibatch_accuracy': 'Test accuracy, a point for each seed, and the mean '
    'as a line.',
}
Weights = Callable[[Data], dict[str, Tensor]]


class Task(NamedTuple):
    r"""One run. ``settings`` are all of them, as JSON."""

    method: str
    dataset: str
    sampling: str
    estimate: str
    seed: int
    settings: str


# Batches #####################################################################


def make_loader(data: Data, seeds: int, num_neighbors: list[int]) -> Any:
    r"""A loader with as many batches in an epoch as steps."""
    from torch_geometric.loader import NeighborLoader
    train = -(-int(data.train_mask.sum()) // STEPS_PER_EPOCH)
    return NeighborLoader(data, num_neighbors, batch_sampler=MixedBatchSampler(
        data.train_mask, data.num_nodes, train, seeds - train))


def no_weights(batch: Data) -> dict[str, Tensor]:
    r"""All nodes of a batch stand for themselves."""
    return dict(node_weight=torch.ones(batch.num_nodes))


# Training ####################################################################


def layers_of(model: Module) -> list[AGCNConv]:
    r"""The layers with a gate."""
    return [m for m in model.modules() if isinstance(m, AGCNConv)]


@torch.no_grad()
def gates_of(model: Module, data: Data, weights: Weights) -> list[float]:
    r"""The gates of all layers and hops, without dropout."""
    found: list[float] = []

    def look(conv: AGCNConv, args: Any, kwargs: Any, _: Tensor) -> None:
        found.extend(conv.gate(*args, **kwargs).flatten().tolist())

    hooks = [conv.register_forward_hook(look, with_kwargs=True)
             for conv in layers_of(model)]
    model.eval()(data.x, data.edge_index, **weights(data))
    for hook in hooks:
        hook.remove()
    return found


@torch.no_grad()
def average_gates(model: Module, batches: Iterable[Data],
                  weights: Weights) -> list[float]:
    r"""The gates of a running estimate over batches, without dropout."""
    layers = layers_of(model)
    hops = [hop for conv in layers for hop in conv.running_energy]
    before = [hop.momentum for hop in hops]
    batches = list(batches)
    model.eval()
    for conv in layers:
        conv.reset_running_energy()
        conv.train()
    for hop in hops:
        hop.momentum = 0.0
    for batch in batches:
        model(batch.x, batch.edge_index, **weights(batch))
    found = gates_of(model, batches[0], weights)
    for hop, momentum in zip(hops, before):
        hop.momentum = momentum
    return found


def all_gates(model: Any, data: Data, batches: list[Data],
              weights: Weights) -> dict[str, list[list[float]]]:
    r"""The gates by running energies, on the whole graph and on batches, and
    then without these, by what each batch says. The model's running energies
    are no longer used after this.
    """
    found = {'trained': [gates_of(model, data, lambda _: {})],
             'running': [average_gates(model, batches, weights)]}
    for conv in layers_of(model):
        conv.momentum = None
    for name, way in [('raw', no_weights), ('weighted', weights)]:
        found[name] = [gates_of(model, batch, way) for batch in batches]
    return found


def batches_of(task: Task, data: Data,
               sizes: dict[str, Any]) -> tuple[Any, Weights]:
    r"""What training goes through in an epoch, and the weights of a batch."""
    if task.sampling == 'full':
        return [data], lambda batch: {}
    part = data.clone()
    part.x = data.x.to_dense()
    loader = make_loader(part, **sizes)
    return loader, (no_weights if task.estimate == 'raw'
                    else ImportanceWeights(loader))


def measure(task: Task, root: str) -> dict[str, Any]:
    r"""Trains a network and looks at its gates."""
    own = json.loads(task.settings)
    steps, momentum, lr, weight_decay, looked_at = (
        own.pop(key) for key in ['steps', 'momentum', 'lr',
                                      'weight_decay', 'looked_at'])
    sizes = {key: own.pop(key) for key in ['seeds', 'num_neighbors']}
    data = load(task.dataset, root=root)
    data = RemoveSelfLoops()(data)  # the layer adds its own
    seed_everything(task.seed)
    start = time.perf_counter()
    if task.estimate == 'running':
        own['momentum'] = momentum
    model = make_model(data, **own)
    optimizer = make_optimizer(model, lr, weight_decay)
    loader, weights = batches_of(task, data, sizes)
    nodes: list[int] = []

    def train() -> None:
        for batch in loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index, **weights(batch))
            loss_of(out, batch).backward()
            optimizer.step()
            nodes.append(batch.num_nodes)

    def score() -> float:
        out = model(data.x, data.edge_index)[data.val_mask]
        return float(torch.exp(-F.cross_entropy(out, data.y[data.val_mask])))

    best_epoch, _ = train_best(model, steps // len(loader), train, score)
    with torch.no_grad():
        hit = 100 * (model(data.x, data.edge_index).argmax(-1)
                     == data.y).double()
    seconds = time.perf_counter() - start
    found: dict[str, list[list[float]]] = {}
    if task.estimate == 'running':
        batches = [batch for _ in range(-(-looked_at // len(loader)))
                   for batch in loader][:looked_at]
        found = all_gates(model, data, batches, weights)
    return {
        **task._asdict(),
        'nodes': round(sum(nodes) / len(nodes)),
        'best_epoch': best_epoch,
        'val_accuracy': round(float(hit[data.val_mask].mean()), 3),
        'test_accuracy': round(float(hit[data.test_mask].mean()), 3),
        'gates': ' '.join(f'{g:.5g}' for g in gates_of(
            model, data, lambda _: {})),
        'batch_gates': json.dumps({
            name: [[round(g, 4) for g in line] for line in lines]
            for name, lines in found.items()}),
        'seconds': round(seconds, 2),
    }


# What comes of it ############################################################


def latest(rows: pd.DataFrame) -> pd.DataFrame:
    r"""The rows with the settings that were used last."""
    return settings.latest(rows, 'sampling', 'estimate')


def by_way(rows: pd.DataFrame) -> dict[tuple[str, ...], pd.DataFrame]:
    r"""The rows of each data set, method, sampling and estimate, by seed."""
    keys = ['dataset', 'method', 'sampling', 'estimate']
    return {key: part.set_index('seed') for key, part in latest(
        rows).groupby(keys, sort=False)}


def gaps(rows: pd.DataFrame) -> dict[tuple[str, ...], Gap | None]:
    r"""Accuracies minus those of training on the whole graph."""
    groups = by_way(rows)
    whole = {key: groups.get((*key[:2], 'full', 'exact')) for key in groups}
    return {key: None if key[2] == 'full' or whole[key] is None else
            paired(part.test_accuracy, whole[key].test_accuracy)
            for key, part in groups.items()}


def distances(rows: pd.DataFrame) -> pd.DataFrame:
    r"""How far gates of batches are from the whole graph's: the mean and the
    mean size of the difference, for each hop.
    """
    lines = []
    for row in latest(rows).itertuples():
        exact = np.array(str(row.gates).split(), dtype=float)
        for estimate, gates in json.loads(row.batch_gates).items():
            difference = np.array(gates) - exact
            for hop, column in enumerate(difference.T):
                lines.append([row.dataset, row.method, row.sampling, estimate,
                              hop + 1, exact[hop], column.mean(),
                              np.abs(column).mean()])
    frame = pd.DataFrame(lines, columns=[
        'dataset', 'method', 'sampling', 'estimate', 'hop', 'exact', 'mean',
        'size'])
    return frame.groupby(['dataset', 'method', 'sampling', 'estimate', 'hop'],
                         sort=False).mean().reset_index()


def _within(gap: Gap | None) -> str:
    if gap is None:
        return '–'
    if abs(gap.mean) - gap.half > BOUND:
        return 'no'
    return 'yes' if abs(gap.mean) + gap.half <= BOUND else 'not shown'


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""Accuracies beside the whole graph's, and gates."""
    lines, found = [], gaps(rows)
    for key, part in by_way(rows).items():
        values, gap = part.test_accuracy, found[key]
        std = f' ± {values.std():.1f}' if len(values) > 1 else ''
        lines.append([
            key[0], LABELS[key[1]], SAMPLINGS[key[2]], key[3],
            f'{values.mean():.1f}{std} ({len(values)})',
            '–' if gap is None else gap.text(2), _within(gap),
            f'{part.nodes.mean():.0f}', f'{part.seconds.median():.1f}'])
    out = {f'Test accuracy (%), and whether it is within {BOUND:g} point of '
           f'training on the whole graph': pd.DataFrame(lines, columns=[
               'data', '', 'batches', 'gate in training', 'mean ± std (runs)',
               'minus whole graph, 95 % interval', 'within', 'nodes per step',
               'seconds'])}
    lines = [[r.dataset, LABELS[r.method], SAMPLINGS[r.sampling], r.estimate,
              r.hop, f'{r.exact:.4f}', f'{r.mean:+.4f}', f'{r.size:.4f}']
             for r in distances(rows).itertuples()]
    if lines:
        out["Gates of batches minus the whole graph's, in trained networks "
            '(trained: the running estimate from training)'] = pd.DataFrame(
            lines, columns=['data', '', 'batches', 'gate', 'hop or layer',
                            'whole graph', 'mean difference',
                            'mean distance'])
    return out


def draw(rows: pd.DataFrame, folder: Path) -> list[Path]:
    r"""Gates of batches, and accuracies."""
    rows = latest(rows)
    return [*_draw_gates(rows, folder), *_draw_accuracy(rows, folder)]


def _draw_gates(rows: pd.DataFrame, folder: Path) -> list[Path]:
    from benchmarks import plots
    rows = rows[(rows.estimate == 'running') & (rows.method == 'agcn')]
    rows = rows.sort_values(['dataset', 'seed']).drop_duplicates('dataset')
    if rows.empty:
        return []
    figure, axes = plots.panels(len(rows), 3.6, 3.8, 2.2, sharey=True)
    for axis, row in zip(axes, rows.itertuples()):
        exact = np.array(str(row.gates).split(), dtype=float)
        hops = np.arange(1, len(exact) + 1)
        axis.plot(hops, exact, color='black', marker='_', markersize=14,
                  label='whole graph')
        found = json.loads(row.batch_gates)
        for i, name in enumerate(ESTIMATES):
            low, mid, high = np.percentile(found[name], [5, 50, 95], axis=0)
            axis.errorbar(hops + 0.14 * (i - 1), mid, [mid - low, high - mid],
                          linestyle='none', capsize=3, label=name,
                          markersize=5, **STYLES[name])
        axis.set(title=f'{row.dataset}, {SAMPLINGS[row.sampling]}',
                 xlabel='hop', xticks=hops, ylim=(0, 1.05))
    axes[0].set_ylabel('gate')
    plots.legend_right(axes[-1])
    return plots.save(figure, folder, 'minibatch_gates')


def _draw_accuracy(rows: pd.DataFrame, folder: Path) -> list[Path]:
    from benchmarks import plots
    groups = by_way(rows)
    datasets = list(dict.fromkeys(key[0] for key in groups))
    ways = list(dict.fromkeys(key[1:] for key in groups))
    figure, axes = plots.panels(len(datasets), 3.4, 1.2 + 0.34 * len(ways),
                                3.4, sharey=True)
    for axis, dataset in zip(axes, datasets):
        names = {way: f'{LABELS[way[0]]}: {SAMPLINGS[way[1]]}'
                 + f', {way[2]}' * (way[1] != 'full') for way in ways}
        found = {way: groups.get((dataset, *way)) for way in ways}
        plots.dots(axis, {names[way]: [] if part is None else
                          part.test_accuracy for way, part in found.items()},
                   {names[way]: STYLES[way[2]] for way in ways
                    if way[2] in STYLES})
        axis.set(title=dataset, xlabel='test accuracy (%)')
    return plots.save(figure, folder, 'minibatch_accuracy')


def claims(rows: pd.DataFrame) -> list[Claim]:
    r"""The paper claims nothing here."""
    return []


def answer(rows: pd.DataFrame) -> str:
    r"""What sampling costs, by where the gate comes from."""
    texts = [f'{LABELS[key[1]]} on {key[0]}, {key[3]} {gap.text(2)}'
             for key, gap in gaps(rows).items() if gap]
    return ('NeighborLoader minus the whole graph, with 95 % intervals: '
            + '; '.join(texts) + '.' if texts else '')


def main(argv: list[str]) -> None:
    options = runner.parser('minibatch', ['PubMed'], runs=6, of=CITATION)
    args = options.parse_args(argv)
    ways = [('agcn', 'full', 'exact'),
            *[('agcn', 'neighbor', estimate) for estimate in ESTIMATES],
            ('agcn_paper', 'full', 'exact'),
            ('agcn_paper', 'neighbor', 'raw'),
            ('agcn_paper', 'neighbor', 'weighted')]
    if args.quick:
        args.runs = 1
        if args.datasets == ['PubMed']:
            args.datasets = ['Cora']  # comes with the package
        ways = [way for way in ways if way[2] in ['exact', 'running']]
    tasks = [Task(method, dataset, sampling, estimate, seed,
                  settings_of(method, dataset, args.quick))
             for seed in range(args.runs) for dataset in args.datasets
             for method, sampling, estimate in ways]
    runner.run_and_report(sys.modules[__name__], tasks, args)
