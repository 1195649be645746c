r"""Three reasons for the package, shown in a few minutes on embedded data.

* Wrong edges: a GCN on Cora with random edges added, with and without
  ``AnisotropicWeights``.
* Speed: forward and backward pass of ``GCNConv`` and of ``AGCNConv``, taking
  turns on one thread.
* Depth: a perceptron on Cora followed by many steps of diffusion without
  restart, with the gate at work (DiffusedMLP) and held open (APPNP), beside a
  GCN of as many layers.

Then the models of the package beside GCN on Cora and on scikit-learn's digits,
joined to their nearest neighbors. No setting is searched.
"""
import time
from argparse import Namespace
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch.nn import Module
from torch_geometric.nn import GCNConv
from torch_geometric.utils import to_undirected

from benchmarks import plots
from benchmarks.attacks import add_random
from benchmarks.baselines import agcn, gcn
from benchmarks.data import load, splits_of
from benchmarks.results import Table
from benchmarks.training import Run
from torch_agcn import AGCNConv
from torch_agcn.transforms import AnisotropicWeights

QUESTION = 'What to try next?'
NEXT = """python -m benchmarks                  all experiments, by name
  python -m benchmarks noise --quick    wrong edges, a first look
  python -m benchmarks report           all tables and figures as one page
and in a model of yours: 'data = AnisotropicWeights()(data)', or AGCNConv in
place of GCNConv. 'python' is that of the environment, .venv/bin/python."""
EDGES, SPEED, DEPTH, MODELS = 'wrong edges', 'speed', 'depth', 'models'
SHARES = [0.0, 0.25, 0.5, 1.0]
SHORT = dict(epochs=200, patience=20)
WEIGHTED = 'GCN with AnisotropicWeights'
GATED, OPEN = 'DiffusedMLP, no restart', 'APPNP, no restart'
steps = partial(agcn.run, alpha=0.0, weight_decay=5e-4, **SHORT)
METHODS: dict[str, dict[str, Callable[..., Run]]] = {
    EDGES: {WEIGHTED: partial(gcn.run, hidden_channels=64, **SHORT),
            'GCN': partial(gcn.run, hidden_channels=64, **SHORT)},
    DEPTH: {GATED: partial(steps, beta=500.0), OPEN: partial(steps, beta=1e30),
            'GCN': partial(gcn.run, **SHORT)},
    MODELS: {'GCN': partial(gcn.run, **SHORT),
             'AGCN (paper)': partial(
                 agcn.run, head='conv', energy='total', residual=False,
                 beta=1.0, num_hops=1, alpha=0.0, hidden_channels=16,
                 weight_decay=5e-4, **SHORT),
             'DiffusedMLP': partial(agcn.run, num_hops=10, alpha=0.05,
                                    epochs=200, patience=50)},
}
LAYERS: dict[str, Callable[[], Module]] = {
    'AGCNConv': lambda: AGCNConv(64, 64, energy='relative', cached=True),
    'AGCNConv (paper)': lambda: AGCNConv(64, 64, cached=True),
    'GCNConv': lambda: GCNConv(64, 64, cached=True)}
DATASETS = ['Cora', 'Digits']
# One job, as what is timed has the processor to itself:
OPTIONS = dict(datasets=DATASETS, of=DATASETS, runs=3, jobs=1,
               depths=[2, 4, 8, 16, 32], size=50_000)
QUICK = dict(runs=1, depths=[2, 4], size=5_000)


class Task(NamedTuple):
    r"""One run. ``level`` is the share of edges added, the number of steps,
    or that of nodes.
    """

    part: str
    dataset: str
    method: str
    level: float
    seed: int


TABLE = Table(Path('quickstart') / 'quickstart.csv', [
    *Task._fields, 'test_accuracy', 'milliseconds', 'seconds'])


def tasks(args: Namespace) -> list[Task]:
    r"""All that is timed or trained."""
    seeds = range(args.runs)
    return [
        *(Task(SPEED, 'random', layer, args.size, 0) for layer in LAYERS),
        *(Task(EDGES, 'Cora', method, level, seed) for seed in seeds
          for level in SHARES for method in METHODS[EDGES]),
        *(Task(MODELS, dataset, method, 0.0, seed) for seed in seeds
          for dataset in args.datasets for method in METHODS[MODELS]),
        *(Task(DEPTH, 'Cora', method, depth, 0) for depth in args.depths
          for method in METHODS[DEPTH])]


def measure(task: Task, root: str) -> dict[str, Any]:
    r"""Times a layer or trains a model."""
    start = time.perf_counter()
    row = dict(task._asdict(), test_accuracy='', milliseconds='')
    if task.part == SPEED:
        row['milliseconds'] = take_times(int(task.level))[task.method]
    else:
        row['test_accuracy'] = train(task, root)
    return {**row, 'seconds': round(time.perf_counter() - start, 2)}


def train(task: Task, root: str) -> float:
    r"""Trains a model and returns its test accuracy in percent."""
    data = load(task.dataset, splits_of(task.dataset)[0], task.seed, root)
    run = METHODS[task.part][task.method]
    if task.part == EDGES:
        data.edge_index = add_random(data.edge_index, data.num_nodes,
                                     task.level, task.seed)
        if task.method == WEIGHTED:
            data = AnisotropicWeights()(data)
    elif task.part == DEPTH:
        name = 'num_layers' if task.method == 'GCN' else 'num_hops'
        run = partial(run, **{name: int(task.level)})
    hit = run(data, task.seed).logits.argmax(dim=-1) == data.y
    return round(100 * float(hit[data.test_mask].double().mean()), 2)


@cache
def take_times(size: int, repeats: int = 5) -> dict[str, float]:
    r"""Processor time of a forward and backward pass, in milliseconds: the
    median of calls that take turns, without the first.
    """
    edge_index = to_undirected(torch.randint(size, (2, 5 * size)))
    x = torch.randn(size, 64).requires_grad_()
    layers = {name: make() for name, make in LAYERS.items()}
    found: dict[str, list[float]] = {name: [] for name in layers}
    for _ in range(repeats + 1):
        for name, layer in layers.items():
            start = time.process_time()
            layer(x, edge_index).sum().backward()
            found[name].append(time.process_time() - start)
    return {name: round(1000 * median(times[1:]), 2)
            for name, times in found.items()}


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""The three reasons, and the models."""
    score = rows.groupby(['part', 'method', 'level']).test_accuracy.mean()
    ms = rows[rows.part == SPEED].groupby('method').milliseconds.last()
    deepest = rows[rows.part == DEPTH].level.max()
    reasons = [[f'{what}, test accuracy', *(
        f'{method} {score.get((part, method, level), float("nan")):.1f} %'
        for method in methods)] for what, part, level, methods in [
            ('Cora with as many random edges as own ones', EDGES, 1.0,
             ['GCN', WEIGHTED]),
            (f'Cora, {deepest:.0f} steps without restart', DEPTH, deepest,
             [OPEN, GATED])]]
    reasons.append(['Forward and backward pass of a layer, processor time', *(
        f'{layer} {ms.get(layer, float("nan")):.0f} ms'
        for layer in ['GCNConv', 'AGCNConv'])])
    models = rows[rows.part == MODELS].pivot_table(
        'test_accuracy', 'method', 'dataset').round(1)
    return {'Three reasons': pd.DataFrame(
                reasons, columns=['', 'without', 'with']),
            'Test accuracy (%)': models.rename_axis('').reset_index()}


def draw(rows: pd.DataFrame, folder: Path) -> list[Path]:
    r"""The three reasons, a panel each."""
    figure, axes = plots.panels(3, 5, 4.2)
    for axis, part, label in [(axes[0], EDGES, 'random edges per own one'),
                              (axes[1], DEPTH, 'layers or steps')]:
        for method in METHODS[part]:
            found = rows[(rows.part == part) & (rows.method == method)]
            mean = found.groupby('level').test_accuracy.mean()
            axis.plot(mean.index, mean, label=method, **plots.style_of(method))
        axis.set(title=f'Cora: {part}', xlabel=label,
                 ylabel='test accuracy (%)')
        axis.legend()
    depths = sorted({int(n) for n in rows[rows.part == DEPTH].level})
    axes[1].set_xscale('log')
    axes[1].set_xticks(depths, depths)
    axes[1].minorticks_off()
    times = rows[rows.part == SPEED].drop_duplicates('method', keep='last')
    bars = axes[2].barh(times.method, times.milliseconds)
    axes[2].bar_label(bars, fmt='%.0f', padding=3)
    axes[2].set(title='Forward and backward pass', xlabel='milliseconds')
    return plots.save(figure, folder, 'quickstart')


def answer(rows: pd.DataFrame) -> str:
    r"""Where to go on."""
    return NEXT
