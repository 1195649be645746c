r"""Time and memory of many hops in one layer, with and without recomputing.

Forward and backward of one ``AGCNConv`` with relative energy and residual on
one thread. All numbers of hops run in one process and take turns, so that
ratios of medians count, for the machine may be busy with other things. Memory
is that of a fresh process each, beyond graph and features.
"""
import argparse
import gc
import multiprocessing
import os
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from benchmarks.results import RESULTS, Table, provenance
from benchmarks.runner import (
    QUICK,
    peak_mb,
    positive,
    reset_peak,
    take_turns,
)
from benchmarks.runtime import OURS, random_graph, step
from torch_agcn import AGCNConv

TABLE = Table(RESULTS / 'hops.csv', [
    'case', 'recompute', 'hops', 'nodes', 'edges', 'features', 'repeat',
    'milliseconds', 'megabytes'])
HOPS = [2**i for i in range(7)]
SIZES = dict(nodes=50_000, edges=500_000, features=64)
TIME_BOUND = 1.15  # times K times one hop
# Of memory in the number of hops, from where they outweigh what one needs:
EXPONENT_BOUND = 0.5
FITTED_FROM = 8


def layer(recompute: bool, nodes: int, edges: int,
          features: int) -> Callable[[int], None]:
    r"""Forward and backward of a layer, to be called with a number of hops;
    its graph is cached already.
    """
    torch.manual_seed(0)
    x = torch.randn(nodes, features, requires_grad=True)
    conv = AGCNConv(features, features, recompute=recompute, cached=True,
                    **OURS)
    once = step(conv, x, random_graph(nodes, edges))

    def run(hops: int) -> None:
        conv.num_hops = hops
        once()

    run(1)
    return run


def times(table: Table, hops: list[int], repeats: int,
          sizes: dict[str, int]) -> None:
    r"""Times all numbers of hops in turn."""
    layers = {recompute: layer(recompute, **sizes)
              for recompute in [False, True]}
    take_turns(table, [(dict(recompute=recompute, hops=K), partial(run, K))
                       for K in hops for recompute, run in layers.items()],
               repeats, case='time', **sizes)


def _peak(recompute: bool, hops: int, sizes: dict[str, int],
          out: Any) -> None:
    torch.set_num_threads(1)
    run = layer(recompute, **sizes)
    gc.collect()
    reset_peak()
    before = peak_mb()
    run(hops)
    out.put(peak_mb() - before)


def memory(table: Table, hops: list[int], sizes: dict[str, int]) -> None:
    r"""Memory of a forward and backward pass."""
    context = multiprocessing.get_context('spawn')
    # Tensors that are dropped go back to the system at once, so that they are
    # not counted, nor hide others:
    with patch.dict(os.environ, MALLOC_MMAP_THRESHOLD_=str(2**16)):
        for row in tqdm(table.missing([
                dict(case='memory', recompute=recompute, hops=K, repeat=0,
                     **sizes) for recompute in [False, True] for K in hops]),
                desc='memory'):
            queue = context.Queue()
            process = context.Process(target=_peak, args=(
                row['recompute'], row['hops'], sizes, queue))
            process.start()
            table.append(**row, milliseconds='', megabytes=queue.get())
            process.join()


def exponent(megabytes: pd.Series) -> float:
    r"""The slope of memory against hops, both as logarithms."""
    many = megabytes[megabytes.index >= FITTED_FROM]
    return float(np.polyfit(np.log(many.index), np.log(many), 1)[0])


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""Time and memory by hops, and the bounds, from the rows of the latest
    commit that has any of a case.
    """
    found = {}
    for case, value in [('time', 'milliseconds'), ('memory', 'megabytes')]:
        part = rows[rows.case == case]
        part = part[part.commit == part.commit.iloc[-1]] if len(part) else part
        for recompute in [False, True]:
            side = part[part.recompute == recompute]
            found[case, recompute] = side.groupby('hops')[value].median()
    lines, bounds = [], []
    for K in sorted(rows.hops.unique()):
        line = [str(K)]
        for case, unit in [('time', 'ms'), ('memory', 'MB')]:
            for recompute in [False, True]:
                values = found[case, recompute]
                line.append(f'{values[K]:.4g} {unit}' if K in values else '–')
                if case == 'time':
                    line.append(f'{values[K] / (K * values[1]):.2f}'
                                if {1, K} <= set(values.index) else '–')
        lines.append(line)
    for recompute in [False, True]:
        name = ', recomputed' if recompute else ''
        ms, mb = found['time', recompute], found['memory', recompute]
        if 1 in ms:
            ratio = (ms / (ms.index * ms[1])).max()
            bounds.append([f'time over hops x one hop{name}',
                           f'{ratio:.2f} at most', *_verdict(
                               ratio, None if recompute else TIME_BOUND)])
        if sum(mb.index >= FITTED_FROM) > 1:
            slope = exponent(mb)
            bounds.append([f'memory as hops to the power of{name}',
                           f'{slope:.2f}', *_verdict(
                               slope, EXPONENT_BOUND if recompute else None)])
    return {
        'Time and memory by hops': pd.DataFrame(lines, columns=[
            'hops', 'time', 'ratio', 'recomputed', 'ratio ', 'memory',
            'recomputed ']),
        'Bounds': pd.DataFrame(bounds, columns=['', 'measured', 'bound',
                                                'holds']),
    }


def _verdict(value: float, bound: float | None) -> list[str]:
    if bound is None:
        return ['–', '–']
    return [f'{bound:.2f}', 'yes' if value <= bound else 'no']


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser('python -m benchmarks hops')
    cases = ['time', 'memory']
    parser.add_argument('--cases', nargs='+', choices=cases, default=cases)
    parser.add_argument('--repeats', type=positive, default=9)
    parser.add_argument('--quick', action='store_true',
                        help=f"a tenth of the size, in '{QUICK}'")
    parser.add_argument('--show', action='store_true',
                        help='only print the tables')
    args = parser.parse_args(argv)
    table, hops, sizes = TABLE, HOPS, SIZES
    if args.quick:
        table = Table(QUICK / TABLE.path.name, TABLE.own_columns)
        sizes = dict(nodes=5_000, edges=50_000, features=64)
        args.repeats = 3
    if not args.show:
        torch.set_num_threads(1)
        print(provenance()['versions'], 'threads =', torch.get_num_threads())
        if 'time' in args.cases:
            times(table, hops, args.repeats, sizes)
        if 'memory' in args.cases:
            memory(table, hops, sizes)
    rows = table.read()
    if len(rows):
        for title, frame in tables(rows).items():
            print(f'\n{title}\n{frame.to_string(index=False)}')
