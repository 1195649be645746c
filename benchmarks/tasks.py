r"""Other tasks: links, whole graphs, and neighbors of other classes.

The paper measures none of these.

* ``links``: edges of Cora that were taken away are told from pairs without an
  edge, by the product of the embeddings of their ends. An edge of the
  validation or the test set never carries a message before its turn.
* ``digits``: each image of scikit-learn's digits is a graph, a node for each
  pixel with ink, joined to its neighbors in the image, with its intensity and
  position as features. Many graphs are one batch, each with gates of its own.
* ``texas`` to ``tolokers``: graphs whose neighbors are mostly of other
  classes, each with its ten splits.

For links and digits, the encoder has two layers: PyG's ``GCN``, or ``AGCN``
with all that is its default, or with ``energy='relative'``. The perceptron is
the former with its gate held shut (``beta=0, residual=True``), which does not
see the graph. Nothing is searched; the weights of the best validation score
are kept.

Neighbors of other classes are what one would not smooth over, and all that
these networks can do is to smooth less. So each method has three values of
one setting, of which validation chooses for each graph and split: ``beta`` for
AGCN and DiffusedMLP, the restart ``alpha`` for APPNP, which is DiffusedMLP
with the gate held open, dropout for the others. Four hops are taken.
"""
import json
import time
from argparse import Namespace
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Linear, Module
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCN, global_mean_pool
from torch_geometric.transforms import RandomLinkSplit
from torch_geometric.utils import grid, negative_sampling, subgraph

from benchmarks import plots, runner, settings
from benchmarks.baselines.layers import sparse_first
from benchmarks.batches import Task, train_best
from benchmarks.data import (
    BY_CURVE,
    HETEROPHILOUS,
    draw_share,
    load,
    load_heterophilous,
    score,
)
from benchmarks.results import RESULTS, Table
from benchmarks.stats import by_seed, compared, gap_text, mean_std, pairs
from benchmarks.training import count_classes
from torch_agcn import AGCN
from torch_agcn.diagnostics import SmoothnessRecorder

DATASETS = ['links', 'digits', *HETEROPHILOUS]
QUESTION = ('What is AGCN worth for links, whole graphs, and neighbors of '
            'other classes?')
LABELS = {'mlp': 'MLP', 'gcn': 'GCN', 'agcn_paper': 'AGCN (paper)',
          'agcn_relative': 'AGCN (relative)', 'appnp': 'APPNP',
          'agcn': 'DiffusedMLP'}
ENCODERS: dict[str, dict[str, Any]] = {
    'mlp': dict(beta=0.0, residual=True), 'gcn': {}, 'agcn_paper': {},
    'agcn_relative': dict(energy='relative')}
# What the validation set chooses from:
GRIDS: dict[str, dict[str, list[float]]] = {
    'mlp': dict(p=[0.2, 0.5, 0.8]), 'gcn': dict(p=[0.2, 0.5, 0.8]),
    'agcn_paper': dict(beta=[0.1, 1.0, 5.0]),
    'appnp': dict(alpha=[0.1, 0.5, 0.9]),
    'agcn': dict(beta=[0.1, 1.0, 50.0])}
TABLE = Table(RESULTS / 'tasks.csv', [
    *Task._fields, 'chosen', 'epochs', 'val_score', 'test_score', 'gates',
    'seconds'])
OPTIONS = dict(datasets=DATASETS, of=DATASETS)
QUICK = dict(datasets=['links', 'digits'], runs=1)
SPARSE = 0.2  # the share of features that are set, below which zeros cost
TITLES = {'links': 'Links of Cora: area under the ROC curve (%)',
          'digits': 'Digits as graphs: test accuracy (%)'}
CAPTIONS = {
    'tasks_heterophilous': 'Graphs whose neighbors are mostly of other '
    'classes: test score minus that of a perceptron, which does not see the '
    'graph, with 95 % intervals.',
}


class Result(NamedTuple):
    r"""What a run found; scores are in percent."""

    epochs: int
    val_score: float
    test_score: float
    gates: list[float]
    chosen: str = '{}'


def settings_of(method: str, dataset: str, quick: bool = False) -> str:
    r"""All settings of a run."""
    if dataset == 'links':
        own = dict(hidden_channels=128, out_channels=64, lr=0.01,
                   epochs=10 if quick else 100, **ENCODERS[method])
    elif dataset == 'digits':
        own = dict(hidden_channels=64, batch_size=64, lr=0.01,
                   epochs=4 if quick else 40, **ENCODERS[method])
    else:
        own = json.loads(settings.settings_of(method, dataset))
        own.update(epochs=50 if quick else 200, patience=30,
                   choices=GRIDS[method])
        if 'num_hops' in own and method != 'agcn_paper':
            own['num_hops'] = 4
    return runner.as_json(**own)


# Training ####################################################################


def make_encoder(method: str, *sizes: int, **layer: Any) -> Module:
    r"""PyG's model or ours; the third size is the number of layers."""
    return sparse_first((GCN if method == 'gcn' else AGCN)(*sizes, **layer))


@torch.no_grad()
def gates_of(model: Module, *args: Any) -> list[float]:
    r"""The gates of all layers, the means of a batch."""
    with SmoothnessRecorder(model) as recorder:
        model.eval()(*args)
    return [gate for record in recorder.records for gate in record.gates]


# Links #######################################################################


def split_links(data: Data) -> tuple[Data, Data, Data]:
    r"""Graphs to train, validate and test on: 5 and 10 % of the edges are to
    be found in the latter two.
    """
    return RandomLinkSplit(num_val=0.05, num_test=0.1, is_undirected=True,
                           add_negative_train_samples=False)(data)


def decode(z: Tensor, pairs: Tensor) -> Tensor:
    r"""How sure it is that pairs of nodes have an edge."""
    return (z[pairs[0]] * z[pairs[1]]).sum(-1)


def auc(z: Tensor, data: Data) -> float:
    r"""The area under the ROC curve, in percent."""
    from sklearn.metrics import roc_auc_score
    return 100 * float(roc_auc_score(data.edge_label,
                                     decode(z, data.edge_label_index)))


def run_links(task: Task, root: str, *, hidden_channels: int,
              out_channels: int, lr: float, epochs: int,
              **layer: Any) -> Result:
    r"""Link prediction on Cora."""
    data = load('Cora', root=root)
    seed_everything(task.seed)
    train_data, val_data, test_data = split_links(data)
    if task.method != 'gcn':  # which would not notice the graph of the test
        layer['cached'] = True
    model = make_encoder(task.method, data.x.size(1), hidden_channels, 2,
                         out_channels, **layer)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    there = train_data.edge_label_index

    def train() -> None:
        optimizer.zero_grad()
        z = model(train_data.x, train_data.edge_index)
        not_there = negative_sampling(
            train_data.edge_index, num_nodes=data.num_nodes,
            num_neg_samples=there.size(1))
        out = decode(z, torch.cat([there, not_there], dim=1))
        label = torch.zeros_like(out)
        label[:there.size(1)] = 1
        F.binary_cross_entropy_with_logits(out, label).backward()
        optimizer.step()

    def area(data: Data) -> float:
        return auc(model(data.x, data.edge_index), data)

    best = train_best(model, epochs, train, lambda: area(val_data))
    with torch.no_grad():
        test_score = area(test_data)
    return Result(*best, test_score,
                  gates_of(model, test_data.x, test_data.edge_index))


# Whole graphs ################################################################


@cache
def digit_graphs() -> list[Data]:
    r"""Each digit as the graph of its pixels with ink."""
    from sklearn.datasets import load_digits
    digits = load_digits()
    edge_index, position = grid(8, 8)
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    graphs = []
    for image, y in zip(digits.images, digits.target):
        ink = torch.from_numpy(image).float().view(-1, 1) / 16
        seen = ink[:, 0] > 0
        x = torch.cat([ink, position / 3.5 - 1], dim=1)[seen]
        graphs.append(Data(x=x, y=int(y), edge_index=subgraph(
            seen, edge_index, relabel_nodes=True)[0]))
    return graphs


class Classifier(Module):
    r"""An encoder of nodes, and a linear map of their mean."""

    def __init__(self, encoder: Module, channels: int, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.lin = Linear(channels, classes)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        r"""The logits of all graphs of a batch."""
        x = self.encoder(x, edge_index, batch=batch).relu()
        return self.lin(global_mean_pool(x, batch))


def run_digits(task: Task, root: str, *, hidden_channels: int,
               batch_size: int, lr: float, epochs: int,
               **layer: Any) -> Result:
    r"""Graph classification: 60, 20 and 20 % of the images of a class."""
    graphs = digit_graphs()
    seed_everything(task.seed)
    y = torch.tensor([graph.y for graph in graphs])
    parts = [[graphs[i] for i in part.tolist()] for part in draw_share(
        y, torch.randperm(len(graphs)), train=0.6, val=0.2)]
    loader = DataLoader(parts[0], batch_size, shuffle=True)
    val, test = (next(iter(DataLoader(part, len(part)))) for part in parts[1:])
    model = Classifier(
        make_encoder(task.method, graphs[0].x.size(1), hidden_channels, 2,
                     **layer), hidden_channels, count_classes(y))
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def train() -> None:
        for batch in loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index, batch.batch)
            F.cross_entropy(out, batch.y).backward()
            optimizer.step()

    def accuracy(batch: Data) -> float:
        out = model(batch.x, batch.edge_index, batch.batch)
        return score(task.dataset, out, batch.y)

    best = train_best(model, epochs, train, lambda: accuracy(val))
    with torch.no_grad():
        test_score = accuracy(test)
    return Result(*best, test_score, gates_of(
        model, test.x, test.edge_index, test.batch))


# Neighbors of other classes ##################################################


def run_heterophilous(task: Task, root: str, *, choices: dict[str, list[Any]],
                      **own: Any) -> Result:
    r"""Node classification, with one setting chosen by validation."""
    data = load_heterophilous(task.dataset, task.seed, root)
    if float((data.x != 0).float().mean()) < SPARSE:
        data.x = data.x.to_sparse().coalesce()
    (key, values), = choices.items()
    found = []
    for value in values:
        out = settings.run_of(task.method)(data, task.seed,
                                           **{**own, key: value})
        val, test = (score(task.dataset, out.logits[mask], data.y[mask])
                     for mask in [data.val_mask, data.test_mask])
        gates = [gate for name, gate in out.extra.items()
                 if name.startswith('gate_')]
        found.append((val, -out.extra['val_loss'], Result(
            out.epochs, val, test, gates, runner.as_json(**{key: value}))))
    return max(found, key=lambda one: one[:2])[2]


def measure(task: Task, root: str) -> dict[str, Any]:
    r"""Runs a task and returns its row."""
    run: Callable[..., Result] = dict(links=run_links, digits=run_digits).get(
        task.dataset, run_heterophilous)
    start = time.perf_counter()
    result = run(task, root, **json.loads(task.settings))
    return {
        **task._asdict(), **result._asdict(),
        'val_score': round(result.val_score, 3),
        'test_score': round(result.test_score, 3),
        'gates': ' '.join(f'{gate:.5g}' for gate in result.gates),
        'seconds': round(time.perf_counter() - start, 2),
    }


# What comes of it ############################################################


def scores(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""For each data set, the test scores by seed and method."""
    rows = settings.latest(rows[rows.dataset.isin(DATASETS)])
    return {dataset: by_seed(rows[rows.dataset == dataset],
                             values='test_score').reindex(columns=LABELS)
            for dataset in DATASETS if (rows.dataset == dataset).any()}


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""Scores, and differences from GCN and from a perceptron."""
    found, out = scores(rows), {}
    for dataset, title in TITLES.items():
        if dataset in found:
            wide = found.pop(dataset)
            out[title] = pd.DataFrame(
                [[LABELS[m], mean_std(wide[m]), gap_text(wide, m, 'gcn', 1)]
                 for m in ENCODERS if wide[m].count()],
                columns=['', 'mean ± std (runs)', 'minus GCN, 95 % interval'])
    if found:  # what is left has neighbors of other classes
        out['Neighbors of other classes, where APPNP and DiffusedMLP take '
            'four hops, with a restart or a beta that validation chooses: '
            'test accuracy (%), area under the ROC curve of '
            f'{" and ".join(BY_CURVE)}, mean ± std (runs)'] = (
            pd.DataFrame([[LABELS[m], *(mean_std(wide[m])
                                        for wide in found.values())]
                          for m in GRIDS], columns=['', *found]))
        out['Neighbors of other classes: test score minus that of MLP, in '
            'points with 95 % intervals'] = pd.DataFrame(
            [[LABELS[m], *(gap_text(wide, m, 'mlp', 1)
                           for wide in found.values())]
             for m in GRIDS if m != 'mlp'], columns=['', *found])
    return out


def draw(rows: pd.DataFrame, folder: Path) -> list[Path]:
    r"""Differences where neighbors are of other classes."""
    found = {dataset: wide for dataset, wide in scores(rows).items()
             if dataset in HETEROPHILOUS}
    if not found:
        return []
    figure, (axis,) = plots.panels(1, 6.4, 3.8)
    for i, method in enumerate(m for m in GRIDS if m != 'mlp'):
        own = {x + 0.15 * (i - 1.5): gap for x, wide in enumerate(
            found.values()) if (gap := pairs(wide, method, 'mlp'))}
        axis.errorbar(list(own), [gap.mean for gap in own.values()],
                      [gap.half for gap in own.values()],
                      label=LABELS[method], capsize=3,
                      **{**plots.style_of(LABELS[method]),
                         'linestyle': 'none'})
    axis.axhline(0, color='#555555', linewidth=1, zorder=0)
    axis.set_xticks(range(len(found)), found)
    axis.set(ylabel="test score minus MLP's (points)")
    axis.grid(visible=False, axis='x')
    plots.legend_below(figure)
    return plots.save(figure, folder, 'tasks_heterophilous')


def answer(rows: pd.DataFrame) -> str:
    r"""Ours beside GCN, and beside a perceptron where neighbors differ."""
    parts = {}
    for dataset, wide in scores(rows).items():
        ours, others = (('agcn_relative', ['gcn']) if dataset in TITLES else
                        ('agcn', ['mlp', 'gcn']))
        for other in others:
            parts[f'{LABELS[ours]} minus {LABELS[other]} on {dataset}'] = (
                pairs(wide, ours, other))
    return compared('Test scores, in points with 95 % intervals: ', parts)


def tasks(args: Namespace) -> list[Task]:
    r"""All methods of each of the three tasks."""
    return [Task(method, dataset, seed,
                 settings_of(method, dataset, args.quick))
            for seed in range(args.runs) for dataset in args.datasets
            for method in (ENCODERS if dataset in TITLES else GRIDS)]
