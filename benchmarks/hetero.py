r"""AGCNConv in HeteroConv on a graph of movies, directors and actors.

IMDB with the split of its release, beside PyG's SAGEConv and GATConv. All
networks are the same but for the convolution: a linear map of the keywords
for each type of nodes, then two layers of one convolution per type of edges,
to whose sum a linear map of the nodes' own features is added, and a linear
map to the genres. Without a graph, that map is all there is. ``agcn_open`` is
``agcn`` with its gates held open.

Each method has four settings, of which the one with the best mean accuracy in
validation counts, and the epoch of the lowest validation loss. AGCN's
sharpness is learnt. The test set is not balanced, which the training set is:
hence the F1 score, the mean of those of the genres.
"""
import json
import time
from argparse import Namespace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.nn import Linear, Module, ModuleDict, ModuleList
from torch_geometric.nn import GATConv, HeteroConv, SAGEConv

from benchmarks import plots, runner
from benchmarks.baselines import agcn
from benchmarks.batches import Task, accuracies
from benchmarks.results import RESULTS, Table
from benchmarks.settings import gates_of
from benchmarks.sparse import CSR
from benchmarks.stats import by_seed, compared, gap_text, mean_error, pairs
from benchmarks.training import count_classes, dropout, fit
from torch_agcn import AGCNConv
from torch_agcn.datasets import IMDB

QUESTION = 'What is AGCNConv worth on a graph of several types?'
METHODS = {
    'none': 'no graph', 'sage': 'GraphSAGE', 'gat': 'GAT',
    'agcn_paper': 'AGCN (paper)', 'agcn_open': 'AGCN (relative), gate open',
    'agcn': 'AGCN (relative)',
}
MINUS = 'AGCN (relative) minus it, 95 % interval'
OURS = dict(energy='relative', residual=True)
AGCN = {'agcn_paper': dict(beta=1.0, learn_beta=True),
        'agcn_open': dict(beta=1e9, **OURS),
        'agcn': dict(beta=1.0, learn_beta=True, **OURS)}
FIXED = dict(hidden_channels=64, num_layers=2, weight_decay=5e-4, epochs=200,
             patience=50)
GRID = [dict(lr=lr, p=p) for lr in (0.01, 0.003) for p in (0.5, 0.8)]
OPTIONS = dict(datasets=['IMDB'], of=['IMDB'], fixed=FIXED, grid=GRID)
QUICK = dict(runs=1, fixed={**FIXED, 'epochs': 30}, grid=GRID[:1])
TABLE = Table(RESULTS / 'hetero.csv', [
    *Task._fields, 'epochs', 'val_loss', 'val_accuracy', 'test_accuracy',
    'test_f1', 'gates', 'seconds'])
CAPTIONS = {'hetero_imdb': 'IMDB: test accuracy, a point for each run and '
            'a bar at their mean.'}


# Networks ####################################################################


def conv_of(method: str, channels: int) -> Module:
    r"""A convolution between two types of nodes, without what a node knows of
    itself (but for the residual of AGCN, which shares it with the gate).
    """
    sizes = channels, channels
    if method == 'sage':
        return SAGEConv(sizes, channels, root_weight=False)
    if method == 'gat':
        return GATConv(sizes, channels // 8, heads=8, add_self_loops=False)
    return AGCNConv(sizes, channels, cached=True, **AGCN[method])


class Net(Module):
    r"""The network of the module's docstring."""

    def __init__(self, method: str, graph: Any, out_channels: int,
                 hidden_channels: int, num_layers: int, p: float) -> None:
        super().__init__()
        self.encoders = ModuleDict({
            kind: Linear(x.size(1), hidden_channels)
            for kind, x in graph.x.items()})
        self.own = ModuleList(
            ModuleDict({kind: Linear(hidden_channels, hidden_channels)
                        for kind in graph.x}) for _ in range(num_layers))
        self.convs = ModuleList(
            HeteroConv({key: conv_of(method, hidden_channels)
                        for key in graph.edge_index})
            for _ in range(num_layers) if method != 'none')
        self.lin = Linear(hidden_channels, out_channels)
        self.p = p

    def forward(self, x: dict[str, CSR],
                edge_index: dict[Any, Tensor]) -> Tensor:
        h = {}
        for kind, encoder in self.encoders.items():
            dropped = dropout(x[kind], self.p, self.training)
            h[kind] = (dropped @ encoder.weight.t() + encoder.bias).relu()
        for i, own in enumerate(self.own):
            h = {kind: dropout(v, self.p, self.training)
                 for kind, v in h.items()}
            new = {kind: own[kind](v) for kind, v in h.items()}
            if self.convs:
                for kind, v in self.convs[i](h, edge_index).items():
                    new[kind] = new[kind] + v
            h = {kind: v.relu() for kind, v in new.items()}
        return self.lin(h['movie'])


# Runs ########################################################################


@cache
def load(root: str) -> Any:
    r"""The graph as the training loop takes it."""
    data = IMDB(root)[0]
    movie = data['movie']
    return SimpleNamespace(
        x={kind: CSR.from_tensor(x) for kind, x in data.x_dict.items()},
        edge_index=data.edge_index_dict, y=movie.y,
        train_mask=movie.train_mask, val_mask=movie.val_mask,
        test_mask=movie.test_mask)


def measure(task: Task, root: str) -> dict[str, Any]:
    r"""Trains one network."""
    graph = load(root)
    settings = json.loads(task.settings)
    options = {key: settings.pop(key)
               for key in ['lr', 'weight_decay', 'epochs', 'patience']}
    start = time.perf_counter()
    torch.manual_seed(task.seed)
    model = Net(task.method, graph, count_classes(graph.y), **settings)
    run = fit(model, graph, **options)
    seconds = time.perf_counter() - start
    f1 = f1_score(run.logits.argmax(-1)[graph.test_mask],
                  graph.y[graph.test_mask])
    return dict(
        **task._asdict(), epochs=run.epochs,
        val_loss=round(run.extra['val_loss'], 5),
        **accuracies(run.logits, graph), test_f1=round(100 * f1, 3),
        gates=' '.join(f'{gate:.4g}' for gate in agcn.gates(model, graph)),
        seconds=round(seconds, 2))


def f1_score(predicted: Tensor, true: Tensor) -> float:
    r"""The mean over the classes of 2 TP / (2 TP + FP + FN)."""
    classes = true.unique()[:, None]
    a, b = predicted == classes, true == classes
    return float((2 * (a & b).sum(1) / (a.sum(1) + b.sum(1))).double().mean())


# What comes of it ############################################################


def chosen(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""The rows of each method with its settings that validation prefers."""
    out = {}
    for method in [m for m in METHODS if (rows.method == m).any()]:
        part = rows[rows.method == method]
        best = part.groupby('settings').val_accuracy.mean().idxmax()
        out[method] = part[part.settings == best]
    return out


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""Accuracies with the chosen settings."""
    lines, found = [], chosen(rows)
    wide = by_seed(pd.concat(found.values()))
    for method, part in found.items():
        gates = gates_of(part).explode().astype(float)
        lines.append([
            METHODS[method], mean_error(part.test_accuracy),
            mean_error(part.test_f1), gap_text(wide, 'agcn', method, 1),
            f'{gates.min():.3g} … {gates.max():.3g}' if len(gates) else '–'])
    frame = pd.DataFrame(lines, columns=['', 'test accuracy', 'test F1', MINUS,
                                         'gates'])
    return {'IMDB: test scores in percent, mean ± standard error (runs)':
            frame}


def draw(rows: pd.DataFrame, folder: Path) -> list[Path]:
    r"""The test accuracies of all runs with the chosen settings."""
    figure, (axis,) = plots.panels(1, 6.0, 3.2)
    plots.dots(axis, {METHODS[method]: part.test_accuracy
                      for method, part in chosen(rows).items()})
    axis.set(xlabel='test accuracy (%)', title='IMDB: genres of movies')
    return plots.save(figure, folder, 'hetero_imdb')


def answer(rows: pd.DataFrame) -> str:
    r"""Ours beside the others."""
    wide = by_seed(pd.concat(chosen(rows).values()))
    return compared(
        'Test accuracy on IMDB, in points with 95 % intervals: ',
        {f'{METHODS["agcn"]} minus {METHODS[method]}': pairs(
            wide, 'agcn', method) for method in METHODS if method != 'agcn'})


def tasks(args: Namespace) -> list[Task]:
    r"""All methods with all of their settings."""
    IMDB(args.root)  # is fetched once, and not in each process
    return [Task(method, dataset, seed, runner.as_json(**args.fixed, **one))
            for seed in range(args.runs) for dataset in args.datasets
            for one in args.grid for method in METHODS]
