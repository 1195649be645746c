r"""Three reasons for the package, shown in two minutes on embedded data.

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
import argparse
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import torch
import torch_geometric.transforms as T
from torch.nn import Module
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv
from torch_geometric.utils import to_undirected
from tqdm import tqdm

from benchmarks.attacks import add_random
from benchmarks.baselines import agcn, gcn
from benchmarks.results import Table, as_key
from benchmarks.runner import positive
from benchmarks.training import Run
from torch_agcn import AGCNConv
from torch_agcn.datasets import ImageGraph, Planetoid
from torch_agcn.transforms import AnisotropicWeights

COLUMNS = ['part', 'dataset', 'method', 'level', 'seed', 'test_accuracy',
           'milliseconds', 'seconds']
KEY = COLUMNS[:5]
EDGES, SPEED, DEPTH, MODELS = 'wrong edges', 'speed', 'depth', 'models'
SHARES = [0.0, 0.25, 0.5, 1.0]
DEPTHS = [2, 4, 8, 16, 32]
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
NEXT = """
What to try next:
  python -m benchmarks                  all experiments, by name
  python -m benchmarks noise --quick    wrong edges, a first look
  python -m benchmarks report           all tables and figures as one page
and in a model of yours: 'data = AnisotropicWeights()(data)', or AGCNConv in
place of GCNConv. 'python' is that of the environment, .venv/bin/python."""


def load(root: str) -> dict[str, Data]:
    r"""Both data sets; features that are mostly zero are kept sparse."""
    cora = Planetoid(root, 'Cora', transform=T.NormalizeFeatures())[0]
    cora.num_nodes, cora.x = cora.x.size(0), cora.x.to_sparse().coalesce()
    return {'Cora': cora, 'Digits': ImageGraph(root, 'Digits')[0]}


def train(part: str, method: str, level: float, seed: int,
          data: Data) -> float:
    r"""Trains a model and returns its test accuracy in percent."""
    run = METHODS[part][method]
    if part == EDGES:
        data = data.clone()
        data.edge_index = add_random(data.edge_index, data.num_nodes, level,
                                     seed)
        if method == WEIGHTED:
            data = AnisotropicWeights()(data)
    elif part == DEPTH:
        name = 'num_layers' if method == 'GCN' else 'num_hops'
        run = partial(run, **{name: int(level)})
    hit = run(data, seed).logits.argmax(dim=-1) == data.y
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


def jobs(args: argparse.Namespace) -> list[tuple[Any, ...]]:
    r"""All that is timed or trained: the beginnings of rows."""
    seeds = range(args.seeds)
    return [
        *((SPEED, 'random', layer, args.size, 0) for layer in LAYERS),
        *((EDGES, 'Cora', method, level, seed) for seed in seeds
          for level in SHARES for method in METHODS[EDGES]),
        *((MODELS, dataset, method, 0.0, seed) for seed in seeds
          for dataset in ['Cora', 'Digits'] for method in METHODS[MODELS]),
        *((DEPTH, 'Cora', method, float(depth), 0) for depth in args.depths
          for method in METHODS[DEPTH])]


def run_missing(table: Table, args: argparse.Namespace) -> None:
    r"""Runs what has no row yet, and writes a row for each."""
    data, done = load(args.root), table.keys(KEY)
    bar = tqdm(jobs(args))
    for job in bar:
        part, dataset, method, level, seed = job
        bar.set_description(f'{part}, {dataset}, {method}')
        if as_key(job) in done:
            continue
        row: dict[str, Any] = dict(zip(KEY, job), test_accuracy='',
                                   milliseconds='')
        start = time.perf_counter()
        if part == SPEED:
            row['milliseconds'] = take_times(level)[method]
        else:
            row['test_accuracy'] = train(part, method, level, seed,
                                         data[dataset])
        table.append(KEY, **row,
                     seconds=round(time.perf_counter() - start, 2))


def show(rows: pd.DataFrame) -> None:
    r"""Prints the three reasons, and the models."""
    score = rows.groupby(['part', 'method', 'level']).test_accuracy.mean()
    ms = rows[rows.part == SPEED].groupby('method').milliseconds.last()
    deepest = rows[rows.part == DEPTH].level.max()
    lines = [
        ['Cora with as many random edges as own ones, test accuracy',
         *[f'{m} {score[EDGES, m, 1.0]:.1f} %'
           for m in ['GCN', WEIGHTED]]],
        ['Forward and backward pass of a layer, processor time',
         f'GCNConv {ms["GCNConv"]:.0f} ms',
         f'AGCNConv {ms["AGCNConv"]:.0f} ms, '
         f'{ms["GCNConv"] / ms["AGCNConv"]:.1f} times as fast'],
        [f'Cora, {deepest:.0f} steps without restart, test accuracy',
         f'gate held open {score[DEPTH, OPEN, deepest]:.1f} %',
         f'{GATED} {score[DEPTH, GATED, deepest]:.1f} %']]
    reasons = pd.DataFrame(lines, columns=['', 'without', 'with'])
    models = rows[rows.part == MODELS].pivot_table(
        'test_accuracy', 'method', 'dataset').loc[list(METHODS[MODELS])]
    models = models.rename_axis('test accuracy (%)').reset_index()
    for frame in [reasons, models]:
        print('\n' + frame.to_string(index=False, float_format='%.1f'))


def draw(rows: pd.DataFrame, folder: Path) -> list[Path]:
    r"""The three plots, from the rows alone."""
    from benchmarks.plots import plt, save, style_of

    paths = []
    for name, part, scale, label in [
            ('edges', EDGES, 100, 'random edges added (% of the own ones)'),
            ('depth', DEPTH, 1, 'layers of GCN, steps of the others')]:
        figure, axis = plt.subplots(figsize=(6.4, 4))
        for method in METHODS[part]:
            found = rows[(rows.part == part) & (rows.method == method)]
            mean = found.groupby('level').test_accuracy.mean()
            axis.plot(scale * mean.index, mean, label=method,
                      **style_of(method))
        axis.set(xlabel=label, ylabel='test accuracy (%)',
                 title=f'Cora: accuracy against {part}')
        if part == DEPTH:
            levels = sorted(rows[rows.part == part].level.astype(int).unique())
            axis.set_xscale('log')
            axis.set_xticks(levels, levels)
            axis.minorticks_off()
        axis.legend()
        paths += save(figure, folder, f'quickstart_{name}')

    times = rows[rows.part == SPEED].drop_duplicates('method', keep='last')
    figure, axis = plt.subplots(figsize=(6.4, 2.4))
    bars = axis.barh(times.method, times.milliseconds, color=[
        '#555555' if name == 'GCNConv' else '#0072b2'
        for name in times.method])
    axis.bar_label(bars, fmt='%.0f', padding=3)
    axis.set(xlabel='milliseconds', title=f'Forward and backward pass, '
             f'{times.level.iloc[0]:,.0f} nodes of 64 features')
    axis.grid(axis='y', visible=False)
    return paths + save(figure, folder, 'quickstart_speed')


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser('python -m benchmarks quickstart')
    parser.add_argument('--root', default='data', help='where data is kept')
    parser.add_argument('--seeds', type=positive, default=3)
    parser.add_argument('--depths', type=positive, nargs='+', default=DEPTHS)
    parser.add_argument('--size', type=positive, default=50_000,
                        help='nodes of the graph that layers are timed on')
    parser.add_argument('--fresh', action='store_true',
                        help='forget the runs there are')
    parser.add_argument('--out', type=Path, default=Path('quickstart'),
                        help='where results and plots go')
    args = parser.parse_args(argv)
    # Graphs of this size gain nothing from a second thread, and on a busy
    # machine threads that wait for each other stall.
    torch.set_num_threads(1)
    table = Table(args.out / 'quickstart.csv', COLUMNS)
    if args.fresh:
        table.path.unlink(missing_ok=True)
    elif table.path.exists():
        print(f'Runs in {table.path} are not made again, but with --fresh.')
    run_missing(table, args)
    rows = table.read()
    show(rows)
    print('\nPlots:', *draw(rows, args.out), sep='\n  ')
    print(NEXT)
