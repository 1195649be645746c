r"""Graphs that change: layers without a cache, eager and compiled.

A layer of 64 to 64 features is trained on one set of power-law graphs, all of
different sizes, and run on other ones that it has never seen: ``GCNConv`` and
``AGCNConv`` in three settings, each by itself and under ``torch.compile`` with
dynamic shapes (inductor). What it learns is which of eight features has the
largest sum over a node and its neighbors.

* ``small``: 100 to 500 nodes; ``medium``: 1,000 to 4,000, as in PPI;
  ``large``: 20,000 to 60,000.
* ``batches``: of 64 graphs of 10 to 50 nodes, in which AGCN has a gate for
  each graph.
* ``static``: one graph that stays the same, with ``cached=True``; here graphs
  to train on and to run on are the same. A layer of AGCN that keeps its graph
  is not compiled: what is measured is that this costs nothing.

The time is that of the processor, on one thread, for the machine may be busy
with other things; the methods take turns in one process, whatever ``--jobs``
says. A first round over all graphs does not count: that is when everything is
compiled.
"""
import sys
import time
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pandas as pd
import torch
import torch.nn.functional as F
from torch.nn import Module
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GCNConv
from torch_geometric.utils import scatter

from benchmarks import runner
from benchmarks.results import RESULTS, Table
from benchmarks.scale import AGCNS, LOOKS, SETTINGS, power_law_graph
from torch_agcn import AGCNConv

METHODS = ['GCN', *AGCNS]
MODES = ['eager', 'compiled']
FEATURES, CLASSES = 64, 8


class Graphs(NamedTuple):
    r"""A set of graphs, from fewest to most nodes. There are as many to run
    on as to train on.
    """

    fewest: int
    most: int
    degree: int  # directed edges for each node
    count: int
    in_batch: int = 1
    cached: bool = False


SETS = {
    'small': Graphs(100, 500, 10, 20),
    'medium': Graphs(1_000, 4_000, 28, 20),
    'large': Graphs(20_000, 60_000, 20, 3),
    'batches': Graphs(10, 50, 4, 10, in_batch=64),
    'static': Graphs(50_000, 50_000, 20, 1, cached=True),
}
QUICK_SETS = ['small', 'medium', 'batches']
ROUNDS, QUICK_ROUNDS = 10, 2
# What we set ourselves: a forward pass beside that of GCN where nothing is
# kept, all passes beside those of the same layer that is not compiled, and
# how often a layer is compiled, for both kinds of passes together.
FORWARD_BOUND, COMPILED_BOUND, COMPILATIONS_BOUND = 1.15, 1.0, 4
PASSES = {'forward_ms': 'forward', 'training_ms': 'training step'}
CAPTIONS = {
    'compile': 'Processor time on graphs that change, and on a static one '
    'that may be cached, as multiples of what GCN needs without being '
    'compiled.',
}


class Task(NamedTuple):
    r"""One layer on one set of graphs."""

    method: str
    dataset: str
    mode: str
    rounds: int
    seed: int


TABLE = Table(RESULTS / 'compile.csv', [
    *Task._fields, 'graphs', 'nodes', 'edges', *PASSES, 'first_seconds',
    'compilations', 'test_accuracy', 'seconds'])


# Runs ########################################################################


def graph(num_nodes: int, degree: int, seed: int) -> Data:
    r"""A graph whose labels depend on what neighbors have."""
    num_edges = degree * num_nodes // 2 * 2
    edge_index = power_law_graph(num_nodes, num_edges, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_nodes, FEATURES, generator=generator)
    row, col = edge_index
    own = x[:, :CLASSES]
    total = own + scatter(own[row], col, dim_size=num_nodes, reduce='sum')
    return Data(x=x, edge_index=edge_index, y=total.argmax(dim=1))


@lru_cache(maxsize=1)
def graphs(name: str, seed: int) -> tuple[list[Data], list[Data]]:
    r"""The graphs to train on, and those to run on."""
    of = SETS[name]
    number = of.count * (1 if of.cached else 2)
    sizes = torch.linspace(of.fewest, of.most, number * of.in_batch).long()
    generator = torch.Generator().manual_seed(seed)
    sizes = sizes[torch.randperm(sizes.numel(), generator=generator)]
    found = [graph(int(size), of.degree, seed * sizes.numel() + i)
             for i, size in enumerate(sizes)]
    if of.in_batch > 1:
        found = [Batch.from_data_list(found[i::number])
                 for i in range(number)]
    return found[:of.count], found[-of.count:]


def layer(method: str, cached: bool) -> Module:
    r"""The layer of a method."""
    if method == 'GCN':
        return GCNConv(FEATURES, FEATURES, cached=cached)
    return AGCNConv(FEATURES, FEATURES, cached=cached, **SETTINGS[method])


def arguments(method: str, data: Data) -> dict[str, Any]:
    r"""What the layer is called with."""
    out = dict(x=data.x, edge_index=data.edge_index)
    if method != 'GCN' and isinstance(data, Batch):
        out.update(batch=data.batch, batch_size=data.num_graphs)
    return out


def measure(task: Task, root: str) -> dict[str, Any]:
    r"""Trains a layer on graphs and runs it on others, in turn."""
    from torch._dynamo.testing import CompileCounterWithBackend
    train, test = graphs(task.dataset, task.seed)
    begin = time.perf_counter()
    torch.manual_seed(task.seed)
    conv = layer(task.method, SETS[task.dataset].cached)
    counter = CompileCounterWithBackend('inductor')
    run: Any = conv
    if task.mode == 'compiled':
        torch._dynamo.reset()
        run = torch.compile(conv, backend=counter, dynamic=True)
    optimizer = torch.optim.Adam(conv.parameters(), lr=0.01)
    times: dict[str, list[float]] = {name: [] for name in PASSES}
    first = correct = 0.0
    for number in range(task.rounds + 1):
        conv.train()
        start = time.process_time()
        for data in train:
            optimizer.zero_grad()
            out = run(**arguments(task.method, data))
            F.cross_entropy(out, data.y).backward()
            optimizer.step()
        middle = time.process_time()
        conv.eval()
        with torch.no_grad():
            outs = [run(**arguments(task.method, data)) for data in test]
        end = time.process_time()
        if number == 0:
            first = time.perf_counter() - begin
            continue
        times['training_ms'].append(1000 * (middle - start) / len(train))
        times['forward_ms'].append(1000 * (end - middle) / len(test))
        correct = sum(float((out.argmax(1) == data.y).sum())
                      for out, data in zip(outs, test))
    nodes = sum(data.num_nodes for data in test)
    return {
        **task._asdict(), 'graphs': len(test), 'nodes': nodes,
        'edges': sum(data.num_edges for data in test),
        **{name: round(median(values), 4)
           for name, values in times.items()},
        'first_seconds': round(first, 2), 'compilations': counter.frame_count,
        'test_accuracy': round(100 * correct / nodes, 2),
        'seconds': round(time.perf_counter() - begin, 2)}


# What came of them ###########################################################


def medians(rows: pd.DataFrame, value: str) -> dict[tuple[str, ...], float]:
    r"""Medians by data set, method and mode."""
    return rows.groupby(['dataset', 'method', 'mode'])[value].median(
        ).to_dict()


def ratios(rows: pd.DataFrame, value: str, over: tuple[str, str],
           under: tuple[str, str]) -> dict[str, float]:
    r"""What one method and mode takes over what another does, by data set:
    the median over seeds, for both were measured one after the other.
    """
    table = rows.pivot_table(value, ['dataset', 'seed'], ['method', 'mode'])
    if not {over, under} <= set(table):
        return {}
    found = (table[over] / table[under]).dropna().groupby('dataset').median()
    return {name: found[name] for name in SETS if name in found}


def beside_gcn(rows: pd.DataFrame, method: str) -> dict[str, float]:
    r"""A forward pass over that of GCN, both eager, where graphs change."""
    changing = [name for name, of in SETS.items() if not of.cached]
    return ratios(rows[rows.dataset.isin(changing)], 'forward_ms',
                  (method, 'eager'), ('GCN', 'eager'))


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""Time by set of graphs, the bounds, and what else was measured."""
    names = [name for name in SETS if name in set(rows.dataset)]
    out = {}
    for value, title in PASSES.items():
        found = medians(rows, value)
        out[f'Processor time of a {title} (ms)'] = pd.DataFrame(
            [[method, mode, *(
                f'{found[key]:.3g}' if (key := (name, method, mode)) in found
                else '–' for name in names)]
             for method in METHODS for mode in MODES],
            columns=['method', 'mode', *names])
    out['Bounds'] = pd.DataFrame(_bounds(rows), columns=[
        '', 'method', 'measured', 'worst', 'bound', 'holds'])
    accuracy = medians(rows, 'test_accuracy')
    count = medians(rows, 'compilations')
    first = medians(rows, 'first_seconds')
    out['Compiled: how often, how long the first round takes, and the '
        'accuracy on unseen graphs beside that without'] = pd.DataFrame(
        [[name, method, f'{count[key]:.0f}', f'{first[key]:.1f} s',
          f'{accuracy[key]:.1f} %', '–' if eager not in accuracy else
          f'{accuracy[eager]:.1f} %']
         for name in names for method in METHODS
         if (key := (name, method, 'compiled')) in count
         and (eager := (name, method, 'eager'))],
        columns=['graphs', 'method', 'compilations', 'first round',
                 'accuracy', 'without'])
    return out


def _bounds(rows: pd.DataFrame) -> list[list[str]]:
    lines = []

    def add(title: str, method: str, found: dict[str, float], bound: float,
            form: str = '.2f') -> None:
        if found:
            worst = max(found, key=lambda name: found[name])
            lines.append([title, method, f'{min(found.values()):{form}} to '
                          f'{found[worst]:{form}}', worst, f'{bound:{form}}',
                          'yes' if found[worst] <= bound else 'no'])

    for method in AGCNS:
        add('forward over GCN', method, beside_gcn(rows, method),
            FORWARD_BOUND)
    for method in AGCNS:
        for value, title in PASSES.items():
            add(f'{title}, compiled over eager', method,
                ratios(rows, value, (method, 'compiled'),
                       (method, 'eager')), COMPILED_BOUND)
        count = medians(rows, 'compilations')
        add('compilations', method, {
            name: count[key] for name in SETS
            if (key := (name, method, 'compiled')) in count},
            COMPILATIONS_BOUND, '.0f')
    return lines


def draw(rows: pd.DataFrame, folder: Path) -> list[Path]:
    r"""Time as multiples of GCN's, eager, for both kinds of passes."""
    from matplotlib.patches import Patch

    from benchmarks.plots import STYLES, plt, save
    names = [name for name in SETS if name in set(rows.dataset)]
    figure, axes = plt.subplots(2, 1, figsize=(9, 6.4), sharex=True)
    width = 0.9 / (len(METHODS) * len(MODES))
    for panel, (value, title) in zip(axes, PASSES.items()):
        found = medians(rows, value)
        for i, (method, mode) in enumerate(
                (method, mode) for method in METHODS for mode in MODES):
            color = STYLES[LOOKS.get(method, method)]['color']
            panel.bar(
                [j + (i - 3.5) * width for j in range(len(names))],
                [found.get((name, method, mode), float('nan'))
                 / found.get((name, 'GCN', 'eager'), float('nan'))
                 for name in names],
                width, color=color if mode == 'eager' else 'white',
                edgecolor=color, hatch='' if mode == 'eager' else '////')
        panel.axhline(1, color='black', linewidth=0.8)
        panel.set_ylabel(f'{title},\ntimes GCN, eager')
        panel.grid(axis='x', visible=False)
    axes[1].set_xticks(range(len(names)), names)
    axes[1].set_xlabel('graphs')
    colors = [Patch(color=STYLES[LOOKS.get(m, m)]['color'], label=m)
              for m in METHODS]
    axes[0].legend(handles=[*colors, Patch(
        facecolor='white', edgecolor='black', hatch='////',
        label='compiled')], ncols=3, loc='lower center',
        bbox_to_anchor=(0.5, 1))
    return save(figure, folder, 'compile')


def claims(rows: pd.DataFrame) -> list[Any]:
    r"""The paper claims nothing here."""
    return []


def main(argv: list[str]) -> None:
    args = runner.parser('compile', list(SETS), runs=3,
                         of=list(SETS)).parse_args(argv)
    args.jobs = 1  # the methods take turns
    rounds = ROUNDS
    if args.quick:
        args.runs, args.datasets, rounds = 1, QUICK_SETS, QUICK_ROUNDS
    tasks = [Task(method, name, mode, rounds, seed)
             for seed in range(args.runs) for name in args.datasets
             for method in METHODS for mode in MODES]
    runner.conclude(sys.modules[__name__], tasks, args)
