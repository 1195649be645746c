r"""Mini-batches of one graph: accuracy, and gates beside the whole graph's.

The same network is trained on the whole graph, and on parts of it that PyG's
``NeighborLoader`` samples, with as many steps of Adam. It is the recommended
AGCN of Table 1, with its settings but four hops, which a loader has to sample
as well, and the paper's formula in two layers. Where the gate comes from in
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
from torch.nn import Identity, Module
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.transforms import RemoveSelfLoops

from benchmarks import runner, table
from benchmarks.baselines.agcn import Hops, Net
from benchmarks.data import CITATION, load
from benchmarks.results import RESULTS, Claim, Table
from benchmarks.tasks import train_best
from benchmarks.training import count_classes, dropout
from torch_agcn import AGCNConv
from torch_agcn.loader import ImportanceWeights, MixedBatchSampler

TABLE = Table(RESULTS / 'minibatch.csv', [
    'method', 'dataset', 'sampling', 'estimate', 'seed', 'settings', 'nodes',
    'best_epoch', 'val_accuracy', 'test_accuracy', 'gates', 'batch_gates',
    'seconds'])
LABELS = {'agcn': 'AGCN, recommended', 'agcn_paper': 'AGCN, paper'}
SAMPLINGS = {'full': 'whole graph', 'neighbor': 'NeighborLoader'}
ESTIMATES = ['raw', 'weighted', 'running']
BOUND = 1.0  # points from training on the whole graph
STEPS_PER_EPOCH = 3
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
    'as a line; the shaded range is one point around the mean of training on '
    'the whole graph.',
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


def settings_of(method: str, dataset: str, quick: bool = False) -> str:
    r"""Those of Table 1, and what belongs to batches."""
    names = ['head', 'beta', 'alpha', 'energy', 'residual', 'num_hops',
             'hidden_channels', 'p', 'lr', 'weight_decay']
    known = json.loads(table.settings_of(method, dataset))
    settings = {name: known[name] for name in names}
    if method == 'agcn':
        settings['num_hops'] = 4
    return runner.as_json(
        **settings, steps=15 if quick else 300, momentum=0.1, seeds=256,
        num_neighbors=[10, 5, 5, 5] if method == 'agcn' else [10, 10],
        looked_at=9 if quick else 45)


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


class Sampled(Hops):
    r"""The recommended AGCN; that it may have a running estimate is what it
    needs an :class:`~torch_agcn.AGCNConv` for.
    """

    def __init__(self, in_channels: int, hidden_channels: int,
                 out_channels: int, p: float, momentum: float | None = None,
                 **kwargs: Any) -> None:
        super().__init__(in_channels, hidden_channels, out_channels, p,
                         **kwargs)
        self.diffusion = AGCNConv(out_channels, out_channels, cached=True,
                                  bias=False, momentum=momentum, **kwargs)
        self.diffusion.lin = Identity()


class SampledNet(Net):
    r"""The paper's AGCN, on parts of a graph as well."""

    def forward(self, x: Tensor, edge_index: Tensor,
                **weights: Tensor) -> Tensor:
        r"""The logits."""
        return self.model(dropout(x, self.p, self.training), edge_index,
                          **weights)


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


def loss_of(out: Tensor, batch: Data) -> Tensor:
    r"""The mean over the nodes of a batch to train on: those with all their
    neighbors.
    """
    mask = batch.train_mask.clone()
    mask[batch.get('batch_size', mask.numel()):] = False
    loss = F.cross_entropy(out[mask], batch.y[mask], reduction='sum')
    return loss / mask.sum().clamp(min=1)  # there may be none


def make_model(data: Data, *, head: str, hidden_channels: int, p: float,
               **layer: Any) -> Any:
    r"""The network of Table 1."""
    sizes = data.x.size(1), hidden_channels, count_classes(data.y)
    if head == 'hops':
        return Sampled(*sizes, p, **layer)
    return SampledNet(*sizes, p, head=head, **layer)


def make_optimizer(model: Any, lr: float,
                   weight_decay: float) -> torch.optim.Optimizer:
    r"""Adam, with weight decay of the first layer."""
    first = list(model.first().parameters())
    rest = [w for w in model.parameters() if all(w is not v for v in first)]
    return torch.optim.Adam(
        [dict(params=first, weight_decay=weight_decay), dict(params=rest)],
        lr=lr)


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
    settings = json.loads(task.settings)
    steps, momentum, lr, weight_decay, looked_at = (
        settings.pop(key) for key in ['steps', 'momentum', 'lr',
                                      'weight_decay', 'looked_at'])
    sizes = {key: settings.pop(key) for key in ['seeds', 'num_neighbors']}
    data = load(task.dataset, root=root)
    data = RemoveSelfLoops()(data)  # the layer adds its own
    seed_everything(task.seed)
    start = time.perf_counter()
    if task.estimate == 'running':
        settings['momentum'] = momentum
    model = make_model(data, **settings)
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
    rows = table.latest(rows.assign(split=''))
    return rows.drop_duplicates(['method', 'dataset', 'sampling', 'estimate',
                                 'seed'], keep='last')


def gaps(rows: pd.DataFrame) -> pd.DataFrame:
    r"""Accuracies with their distance from training on the whole graph, seed
    by seed, and half of its 95 % interval.
    """
    from scipy.stats import t
    lines = []
    keys = ['dataset', 'method', 'sampling', 'estimate']
    groups = {key: part.set_index('seed') for key, part in latest(
        rows).groupby(keys, sort=False)}
    for key, part in groups.items():
        whole = groups.get((*key[:2], 'full', 'exact'))
        gap = pd.Series(dtype=float)
        if whole is not None and key[2] != 'full':
            gap = (part.test_accuracy - whole.test_accuracy).dropna()
        n = len(gap)
        lines.append([*key, part.test_accuracy.mean(),
                      part.test_accuracy.std(), len(part),
                      gap.mean() if n else np.nan,
                      t.ppf(0.975, n - 1) * gap.sem() if n > 1 else np.nan,
                      part.nodes.mean(), part.seconds.median()])
    return pd.DataFrame(lines, columns=[
        *keys, 'mean', 'std', 'runs', 'gap', 'half', 'nodes', 'seconds'])


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


def _verdict(gap: float, half: float) -> str:
    if np.isnan(gap):
        return '–'
    if abs(gap) > BOUND:
        return 'no'
    return 'yes' if abs(gap) + half <= BOUND else 'not sure'


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""Accuracies beside the whole graph's, and gates."""
    lines = []
    for r in gaps(rows).itertuples():
        std = f' ± {r.std:.1f}' if r.runs > 1 else ''
        half = f' ± {r.half:.2f}' if r.half == r.half else ''
        lines.append([r.dataset, LABELS[r.method], SAMPLINGS[r.sampling],
                      r.estimate, f'{r.mean:.1f}{std} ({r.runs})',
                      '–' if r.gap != r.gap else f'{r.gap:+.2f}{half}',
                      _verdict(r.gap, r.half), f'{r.nodes:.0f}',
                      f'{r.seconds:.1f}'])
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
    from benchmarks.plots import plt, save
    rows = rows[(rows.estimate == 'running') & (rows.method == 'agcn')]
    rows = rows.sort_values(['dataset', 'seed']).drop_duplicates('dataset')
    if rows.empty:
        return []
    figure, axes = plt.subplots(1, len(rows), squeeze=False, sharey=True,
                                figsize=(2.2 + 3.6 * len(rows), 3.8))
    for axis, row in zip(axes[0], rows.itertuples()):
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
    axes[0, 0].set_ylabel('gate')
    axes[0, -1].legend(loc='upper left', bbox_to_anchor=(1.01, 1.0))
    return save(figure, folder, 'minibatch_gates')


def _draw_accuracy(rows: pd.DataFrame, folder: Path) -> list[Path]:
    from benchmarks.plots import plt, save
    keys = ['method', 'sampling', 'estimate']
    datasets = list(dict.fromkeys(rows.dataset))
    order = sorted(rows.groupby(keys).groups, key=lambda key: (
        key[0], list(SAMPLINGS).index(key[1]), (*ESTIMATES, 'exact').index(
            key[2])), reverse=True)
    figure, axes = plt.subplots(
        1, len(datasets), squeeze=False, sharey=True,
        figsize=(3.4 + 3.4 * len(datasets), 1.2 + 0.32 * len(order)))
    for axis, dataset in zip(axes[0], datasets):
        groups = rows[rows.dataset == dataset].groupby(keys)
        for y, key in enumerate(order):
            if key not in groups.groups:
                continue
            values = groups.get_group(key).test_accuracy
            axis.plot([values.mean()] * 2, [y - 0.35, y + 0.35],
                      color='black', linewidth=2)
            style = STYLES.get(key[2], dict(color='black', marker='D'))
            axis.scatter(values, y + np.linspace(
                0.25, -0.25, len(values) + 2)[1:-1], s=24, zorder=3, **style)
            if key[1] == 'full':
                # Up to the whole graph's line from those of its batches:
                count = sum(other[0] == key[0] for other in order)
                axis.fill_betweenx(
                    [y - count + 0.5, y + 0.5], values.mean() - BOUND,
                    values.mean() + BOUND, color='black', alpha=0.1,
                    linewidth=0)
        axis.set(title=dataset, xlabel='test accuracy (%)')
    axes[0, 0].set_yticks(range(len(order)), [
        f'{LABELS[m]}: {SAMPLINGS[s]}' + f', {e}' * (s != 'full')
        for m, s, e in order])
    axes[0, 0].set_ylim(-0.6, len(order) - 0.4)
    return save(figure, folder, 'minibatch_accuracy')


def claims(rows: pd.DataFrame) -> list[Claim]:
    r"""The paper claims nothing here."""
    return []


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
    runner.conclude(sys.modules[__name__], tasks, args)
