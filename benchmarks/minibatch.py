r"""Mini-batches of one graph: accuracy, and gates beside the whole graph's.

DiffusedMLP (of four hops) and AGCN (paper) are trained on the whole graph, and
with as many steps on parts of it from PyG's ``NeighborLoader``. The gate in
training is from

* ``exact``: the whole graph;
* ``raw``: the batch, as if it were the graph;
* ``weighted``: the batch, by :class:`torch_agcn.loader.ImportanceWeights`;
* ``running``: the same, averaged over batches (``momentum``), in evaluation
  too, where all others have the gate of the whole graph.

After training, the gates of many batches are looked at in each of these ways.
"""
import json
import time
from argparse import Namespace
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.transforms import RemoveSelfLoops

from benchmarks import batches, settings
from benchmarks.baselines import agcn
from benchmarks.data import CITATION, load
from benchmarks.results import RESULTS, Table
from benchmarks.stats import by_seed, compared, gap_text, mean_error, pairs
from torch_agcn import AGCNConv
from torch_agcn.loader import ImportanceWeights

QUESTION = 'What do mini-batches cost in accuracy, and what are their gates?'
Task = namedtuple('Task', 'method dataset sampling estimate seed settings')
TABLE = Table(RESULTS / 'minibatch.csv', [
    *Task._fields, 'nodes', 'best_epoch', 'val_accuracy', 'test_accuracy',
    'gates', 'batch_gates', 'seconds'])
WAY = ['method', 'sampling', 'estimate']
WHOLE = 'full', 'exact'
WAYS = [('agcn', *WHOLE), ('agcn', 'neighbor', 'raw'),
        ('agcn', 'neighbor', 'weighted'), ('agcn', 'neighbor', 'running'),
        ('agcn_paper', *WHOLE), ('agcn_paper', 'neighbor', 'raw'),
        ('agcn_paper', 'neighbor', 'weighted')]
OPTIONS = dict(datasets=['PubMed'], runs=6, of=CITATION, ways=WAYS)
QUICK = dict(datasets=['Cora'], runs=1, ways=[
    way for way in WAYS if way[2] in ['exact', 'running']])
ESTIMATES = {'exact': 'whole graph', 'raw': 'batch as it is',
             'weighted': 'batch, ImportanceWeights',
             'running': 'running mean of batches'}
STYLES: dict[str, dict[str, Any]] = {
    'raw': dict(color='#d55e00', marker='s'),
    'weighted': dict(color='#0072b2', marker='o'),
    'running': dict(color='#009e73', marker='^'),
}
CAPTIONS = {
    'minibatch_gates': 'The gate of each hop in a trained DiffusedMLP (seed '
    '0, trained with the running mean), estimated from batches: medians over '
    'batches, with bars from the 5th to the 95th percentile. The closer to '
    'the whole graph, the better.'}
Weights = Callable[[Data], dict[str, Tensor]]


# Gates #######################################################################


def no_weights(batch: Data) -> dict[str, Tensor]:
    r"""All nodes of a batch stand for themselves."""
    return dict(node_weight=torch.ones(batch.num_nodes))


def layers_of(model: Module) -> list[AGCNConv]:
    r"""The layers with a gate."""
    return [m for m in model.modules() if isinstance(m, AGCNConv)]


@torch.no_grad()
def average_gates(model: Module, parts: list[Data],
                  weights: Weights) -> list[float]:
    r"""The gates of a running estimate over batches, without dropout."""
    model.eval()
    for conv in layers_of(model):
        conv.reset_running_energy()
        conv.train()
        for hop in conv.running_energy:
            hop.momentum = 0.0  # the mean of all
    for batch in parts:
        model(batch.x, batch.edge_index, **weights(batch))
    return agcn.gates(model, parts[0], **weights(parts[0]))


def all_gates(model: Any, data: Data, parts: list[Data],
              weights: Weights) -> dict[str, list[list[float]]]:
    r"""The gates by running energies, on the whole graph and on batches, and
    then without these, by what each batch says. The model's running energies
    are no longer used after this.
    """
    found = {'trained': [agcn.gates(model, data)],
             'running': [average_gates(model, parts, weights)]}
    for conv in layers_of(model):
        conv.momentum = None
    for name, way in [('raw', no_weights), ('weighted', weights)]:
        found[name] = [agcn.gates(model, batch, **way(batch))
                       for batch in parts]
    return found


# Training ####################################################################


def measure(task: Task, root: str) -> dict[str, Any]:
    r"""Trains a network and looks at its gates."""
    own = json.loads(task.settings)
    steps, momentum, lr, weight_decay, looked_at, seeds, num_neighbors = (
        own.pop(key) for key in ['steps', 'momentum', 'lr', 'weight_decay',
                                 'looked_at', 'seeds', 'num_neighbors'])
    data = load(task.dataset, root=root)
    data = RemoveSelfLoops()(data)  # the layer adds its own
    seed_everything(task.seed)
    start = time.perf_counter()
    model = batches.make_model(
        data, **own, **dict(momentum=momentum) if task.estimate == 'running'
        else {})
    optimizer = batches.make_optimizer(model, lr, weight_decay)
    loader: Any = [data]
    weights: Weights = no_weights
    if task.sampling != 'full':
        loader = batches.make_loader(data, data.train_mask.nonzero().view(-1),
                                     seeds, num_neighbors)
        if task.estimate != 'raw':
            weights = ImportanceWeights(loader)
    nodes: list[int] = []

    def train() -> None:
        for batch in loader:
            optimizer.zero_grad()
            given = {} if batch is data else weights(batch)
            out = model(batch.x, batch.edge_index, **given)
            batches.loss_of(out, batch).backward()
            optimizer.step()
            nodes.append(batch.num_nodes)

    def score() -> float:
        out = model(data.x, data.edge_index)[data.val_mask]
        return float(torch.exp(-F.cross_entropy(out, data.y[data.val_mask])))

    best_epoch, _ = batches.train_best(model, steps // len(loader), train,
                                       score)
    with torch.no_grad():
        row = batches.accuracies(model(data.x, data.edge_index), data)
    seconds = time.perf_counter() - start
    found: dict[str, list[list[float]]] = {}
    if task.estimate == 'running':
        parts = [batch for _ in range(-(-looked_at // len(loader)))
                 for batch in loader][:looked_at]
        found = all_gates(model, data, parts, weights)
    return {
        **task._asdict(), **row,
        'nodes': round(sum(nodes) / len(nodes)),
        'best_epoch': best_epoch,
        'gates': ' '.join(f'{g:.5g}' for g in agcn.gates(model, data)),
        'batch_gates': json.dumps({
            name: [[round(g, 4) for g in line] for line in lines]
            for name, lines in found.items()}),
        'seconds': round(seconds, 2),
    }


# What comes of it ############################################################


def by_way(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""Accuracies on each data set, a column for each way and a line for each
    seed.
    """
    return {dataset: by_seed(part, WAY)
            for dataset, part in settings.latest(
                rows, 'sampling', 'estimate').groupby('dataset')}


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""Accuracies beside the whole graph's."""
    lines = [[dataset, settings.METHODS[way[0]], ESTIMATES[way[2]],
              mean_error(wide[way]), gap_text(wide, way, (way[0], *WHOLE))]
             for dataset, wide in by_way(rows).items()
             for way in WAYS if way in wide]
    return {'Test accuracy (%), mean ± standard error (runs)': pd.DataFrame(
        lines, columns=['data', '', 'gates in training from', 'accuracy',
                        'minus whole graph, 95 % interval'])}


def draw(rows: pd.DataFrame, folder: Path) -> list[Path]:
    r"""Gates of batches, a panel for each data set."""
    from benchmarks import plots
    rows = settings.latest(rows, 'sampling', 'estimate')
    rows = rows[(rows.estimate == 'running') & (rows.method == 'agcn')]
    rows = rows.sort_values(['dataset', 'seed']).drop_duplicates('dataset')
    if rows.empty:
        return []
    figure, axes = plots.panels(len(rows), 4.6, 3.8, 0.6, sharey=True)
    for axis, row in zip(axes, rows.itertuples()):
        exact = np.array(row.gates.split(), float)
        found = json.loads(row.batch_gates)
        hops = np.arange(1, len(exact) + 1)
        axis.plot(hops, exact, color='black', marker='_', markersize=18,
                  label='whole graph')
        for i, (name, style) in enumerate(STYLES.items()):
            low, mid, high = np.percentile(found[name], [5, 50, 95], axis=0)
            axis.errorbar(hops + 0.14 * (i - 1), mid, [mid - low, high - mid],
                          linestyle='none', capsize=3, label=ESTIMATES[name],
                          **style)
        axis.set(title=f'{row.dataset}: gate of each hop', xlabel='hop',
                 xticks=hops, ylim=(0, 1.05))
    axes[0].set_ylabel('gate')
    axes[0].legend(loc='lower left')
    return plots.save(figure, folder, 'minibatch_gates')


def answer(rows: pd.DataFrame) -> str:
    r"""What sampling costs, by where the gate comes from."""
    return compared(
        'Test accuracy of training on mini-batches minus that on the whole '
        'graph, by where gates are from, in points with 95 % intervals: ',
        {f'{settings.METHODS[way[0]]} on {dataset} ({ESTIMATES[way[2]]})':
         pairs(wide, way, (way[0], *WHOLE))
         for dataset, wide in by_way(rows).items()
         for way in WAYS if way[1:] != WHOLE}, 2)


def tasks(args: Namespace) -> list[Task]:
    r"""All ways to take batches, with the settings of Table 1."""
    return [Task(method, dataset, sampling, estimate, seed,
                 batches.settings_of(method, dataset, args.quick))
            for seed in range(args.runs) for dataset in args.datasets
            for method, sampling, estimate in args.ways]
