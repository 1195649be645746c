r"""Time and memory of one layer against nodes, edges and features.

Forward and backward on random graphs, one thread. The time is that of the
processor, for the machine may be busy with other things; the methods take
turns in one process, whatever ``--jobs`` says. The memory is the largest sum
of all tensors that a pass makes, as torch counts them: the graph and the
features are there before, and what the system gives a process, which never
gets smaller, would hide the small ones behind the large.

Exponents are slopes of straight lines through logarithms, with their standard
errors, for the four largest sizes, where what is constant counts least.
"""
import gc
import sys
import time
from functools import lru_cache
from itertools import accumulate, product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.nn import GATConv, GCNConv

from benchmarks import runner
from benchmarks.results import RESULTS, Claim, Table
from benchmarks.runtime import OURS, random_graph, step
from torch_agcn import AGCNConv
from torch_agcn.functional import dirichlet_energy

METHODS = ['GCN', 'GAT', 'AGCN, gate saturated', 'AGCN, gate half open',
           'AGCN, relative + residual']
GCN, _, SATURATED, HALF_OPEN, RELATIVE = METHODS
LOOKS = {SATURATED: 'AGCN, paper', HALF_OPEN: 'JK-Net',
         RELATIVE: 'AGCN, recommended'}
DATASET = 'random graph'
# What varies, with what is fixed meanwhile. Nodes are few where edges vary,
# and edges where nodes do, so that what varies is what counts.
SIZES: dict[str, dict[str, list[int]]] = {
    'nodes': {'nodes': [20_000 * 2**i for i in range(7)],
              'edges': [200_000], 'features': [64]},
    'edges': {'nodes': [5_000], 'edges': [50_000 * 2**i for i in range(6)],
              'features': [64]},
    'features': {'nodes': [20_000], 'edges': [200_000],
                 'features': [16 * 2**i for i in range(6)]},
}
QUICK_SIZES: dict[str, dict[str, list[int]]] = {
    'nodes': {'nodes': [8_000 * 2**i for i in range(4)], 'edges': [40_000],
              'features': [64]},
    'edges': {'nodes': [1_000], 'edges': [40_000 * 2**i for i in range(4)],
              'features': [64]},
    'features': {'nodes': [4_000], 'edges': [40_000],
                 'features': [32 * 2**i for i in range(4)]},
}
AXES = list(SIZES)
FITTED = 4  # sizes
REPEATS = 3  # passes whose median is a row
# The paper's O(|E| F + N F^2) in time, and O(N F + F^2) in memory, as
# exponents of nodes, edges and features; and by how much a measured one may
# be above.
BOUNDS = {'milliseconds': {'nodes': 1, 'edges': 1, 'features': 2},
          'megabytes': {'nodes': 1, 'edges': 0, 'features': 2}}
TOLERANCE = 0.1
CAPTIONS = {
    'cost_time': 'Processor time of forward and backward of one layer, '
    'medians. In the legends: the exponent for the four largest sizes, with '
    'its standard error.',
    'cost_memory': 'Tensors that forward and backward of one layer make '
    'beyond graph and features, at their peak. In the legends: the exponent '
    'for the four largest sizes, with its standard error.',
}


class Task(NamedTuple):
    r"""One method on one graph, on the way along an axis."""

    method: str
    dataset: str
    axis: str
    nodes: int
    edges: int
    features: int
    repeat: int


TABLE = Table(RESULTS / 'cost.csv', [*Task._fields, 'milliseconds',
                                     'megabytes', 'seconds'])


# Runs ########################################################################


@lru_cache(maxsize=1)
def problem(nodes: int, edges: int, features: int) -> tuple[Tensor, Tensor]:
    r"""A random graph and features."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(nodes, features, generator=generator)
    return x.requires_grad_(), random_graph(nodes, edges)


def layer(method: str, x: Tensor, edge_index: Tensor) -> Module:
    r"""The layer of a method, as wide as its input."""
    size = x.size(1), x.size(1)
    if method == 'GCN':
        return GCNConv(*size, cached=True)
    if method == 'GAT':
        return GATConv(x.size(1), x.size(1) // 8, heads=8)
    if method == RELATIVE:
        return AGCNConv(*size, cached=True, **OURS)
    if method == SATURATED:
        return AGCNConv(*size, cached=True)
    energy = float(dirichlet_energy(x.detach(), edge_index))
    return AGCNConv(*size, beta=0.7 / energy**2, cached=True)


def peak(run: Any) -> float:
    r"""The largest sum of all tensors that were there at a time during a
    call and not before, in megabytes.
    """
    return max(accumulate(runner.allocations(run)), default=0) / 2**20


def measure(task: Task, root: str) -> dict[str, Any]:
    r"""Times a method, then looks at its memory."""
    begin = time.perf_counter()
    x, edge_index = problem(task.nodes, task.edges, task.features)
    conv = layer(task.method, x, edge_index)
    run = step(conv, x, edge_index)
    run()  # the first pass makes the graph that is kept
    gc.collect()
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        run()
        times.append(1000 * (time.process_time() - start))
    x.grad = None
    conv.zero_grad()
    megabytes = peak(run)
    x.grad = None
    return {**task._asdict(), 'milliseconds': round(median(times), 3),
            'megabytes': round(megabytes, 3),
            'seconds': round(time.perf_counter() - begin, 2)}


# What came of them ###########################################################


def medians(rows: pd.DataFrame, value: str) -> dict[tuple[str, str], Any]:
    r"""Medians by size for each axis and method."""
    out = {}
    for (axis, method), part in rows.groupby(['axis', 'method']):
        out[str(axis), str(method)] = part.groupby(axis)[value].median()
    return {key: out[key] for axis in AXES for method in METHODS
            if (key := (axis, method)) in out}


def exponent(series: Any) -> tuple[float, float]:
    r"""The slope of the logarithms of the largest sizes, and its error; NaN
    if there are too few.
    """
    import numpy as np
    from scipy.stats import linregress
    series = series[series > 0].sort_index().iloc[-FITTED:]
    if len(series) < 3:
        return float('nan'), float('nan')
    if series.nunique() == 1:
        return 0.0, 0.0
    fit = linregress(np.log(series.index.to_numpy(float)),
                     np.log(series.to_numpy(float)))
    return float(fit.slope), float(fit.stderr)


def exponents(rows: pd.DataFrame,
              value: str) -> dict[tuple[str, str], tuple[float, float]]:
    r"""The exponents that can be told, for each axis and method."""
    found = {key: exponent(series)
             for key, series in medians(rows, value).items()}
    return {key: fit for key, fit in found.items() if fit[0] == fit[0]}


def trace(rows: pd.DataFrame) -> dict[str, Any]:
    r"""What the paper's energy costs: the time with a gate half open beyond
    that with a saturated one, which needs a few edges only.
    """
    found = medians(rows, 'milliseconds')
    return {axis: found[axis, HALF_OPEN] - found[axis, SATURATED]
            for axis in AXES if (axis, HALF_OPEN) in found
            and (axis, SATURATED) in found}


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""Exponents, and what was measured at the largest sizes."""
    out = {}
    for value, name, unit in [('milliseconds', 'Time', 'ms'),
                              ('megabytes', 'Memory', 'MB')]:
        found, fits = medians(rows, value), exponents(rows, value)
        lines = []
        for method in METHODS:
            line = [method]
            for axis in AXES:
                series = found.get((axis, method))
                line += ['–' if (axis, method) not in fits else
                         '{:.2f} ± {:.2f}'.format(*fits[axis, method]),
                         '–' if series is None else f'{series.iloc[-1]:.4g}']
            lines.append(line)
        out[f'{name} of one layer: exponents, and {unit} at the largest '
            f'size'] = pd.DataFrame(lines, columns=['method', *(
                text for axis in AXES
                for text in [axis, f'{unit}, most {axis}'])])
    return out


def draw(rows: pd.DataFrame, folder: Path) -> list[Path]:
    r"""A figure of three panels for time, and one for memory."""
    from matplotlib.ticker import EngFormatter

    from benchmarks.plots import STYLES, plt, save
    paths = []
    for value, name, label in [
            ('milliseconds', 'time', 'processor time (ms)'),
            ('megabytes', 'memory', 'peak of tensors (MB)')]:
        found, fits = medians(rows, value), exponents(rows, value)
        figure, axes = plt.subplots(1, len(AXES), sharey=True,
                                    figsize=(11, 5))
        for panel, axis in zip(axes, AXES):
            for method in METHODS:
                if (axis, method) not in found:
                    continue
                text = method
                if (axis, method) in fits:
                    text += ': {:.2f} ± {:.2f}'.format(*fits[axis, method])
                panel.plot(found[axis, method], label=text, markersize=5,
                           **STYLES[LOOKS.get(method, method)])
            part = rows[rows['axis'] == axis]
            panel.set(xscale='log', yscale='log', xlabel=axis,
                      title=', '.join(
                          f'{part[other].iloc[0]:,} {other}'
                          for other in AXES if other != axis and len(part)))
            panel.set_xticks(sorted(part[axis].unique())[::2])
            panel.xaxis.set_major_formatter(EngFormatter(sep=''))
            panel.tick_params(axis='x', which='minor', bottom=False,
                              labelbottom=False)
            panel.legend(loc='upper center', bbox_to_anchor=(0.5, -0.16),
                         handlelength=3, title='exponent')
        axes[0].set_ylabel(label)
        paths += save(figure, folder, f'cost_{name}')
    return paths


def claims(rows: pd.DataFrame) -> list[Claim]:
    r"""Those of the paper's paragraph on complexity."""
    return [_bound(rows, 'milliseconds', 'time', 'O(|E| F + N F^2)'),
            _bound(rows, 'megabytes', 'memory', 'O(N F + F^2)'),
            _trace(rows)]


def _bound(rows: pd.DataFrame, value: str, name: str, formula: str) -> Claim:
    found, fits = medians(rows, value), exponents(rows, value)
    bounds, variants = BOUNDS[value], METHODS[2:]
    missing = [key for axis in AXES for method in variants
               if (key := (axis, method)) not in fits]
    above = [(axis, method) for axis, method in fits if method in variants
             and fits[axis, method][0] > bounds[axis] + TOLERANCE]
    texts = []
    for axis in AXES:
        ours = [fits[axis, m][0] for m in variants if (axis, m) in fits]
        ratios = [found[axis, m].iloc[-1] / found[axis, GCN].iloc[-1]
                  for m in variants
                  if (axis, m) in found and (axis, GCN) in found]
        if ours and (axis, GCN) in fits:
            texts.append(
                f'{axis} {min(ours):.2f} to {max(ours):.2f} (paper: '
                f'{bounds[axis]}; GCN: {fits[axis, GCN][0]:.2f}; '
                f'{min(ratios):.2f} to {max(ratios):.2f} times the {name} of '
                f'GCN at the largest)')
    holds = 'not shown' if missing else 'no' if above else 'yes'
    return Claim(
        f'AGCN needs {formula} in {name}, the same as GCN.', holds,
        f'Exponents of AGCN in three settings: {"; ".join(texts)}.'
        if texts else 'Not enough sizes yet.')


def _trace(rows: pd.DataFrame) -> Claim:
    fits = {axis: exponent(series) for axis, series in trace(rows).items()}
    fits = {axis: fit for axis, fit in fits.items() if fit[0] == fit[0]}
    holds = 'not shown'
    if set(fits) == set(AXES):
        # Of the edges, it would be independent, and not proportional to
        # them; what is in between may be noise.
        slope, error = fits['edges']
        if slope > TOLERANCE + 2 * error:
            holds = 'no'
        elif slope < 1 - TOLERANCE - 2 * error:
            holds = 'yes'
    text = ', '.join(f'{axis} {slope:.2f} ± {error:.2f}'
                     for axis, (slope, error) in fits.items())
    return Claim(
        'The trace, and with it the nonlinearity of AGCN, costs O(N F^2).',
        holds, f'Exponents of the time that a gate which is half open takes '
        f'beyond a saturated one: {text}; O(N F^2) would be 1, 0 and 2, and '
        f'a sum over all edges and loops, O((|E| + N) F), at most 1, 1 and '
        f'1.' if fits else 'Not enough sizes yet.')


def main(argv: list[str]) -> None:
    options = runner.parser('cost', [DATASET], runs=5, of=[DATASET])
    args = options.parse_args(argv)
    args.jobs = 1  # the methods take turns
    sizes = SIZES
    if args.quick:
        args.runs, sizes = 1, QUICK_SIZES
    tasks = [Task(method, DATASET, axis, *size, repeat)
             for repeat in range(args.runs) for axis in AXES
             for size in product(*sizes[axis].values()) for method in METHODS]
    runner.conclude(sys.modules[__name__], tasks, args)
