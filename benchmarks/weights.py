r"""What AnisotropicWeights cost: processor time and memory, once.

On PubMed and on random graphs of points in two clusters, on one thread. Extra
memory is the most that tensors take at a time, beside features and edges.
"""
import sys
import time
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch_geometric.data import Data

from benchmarks import runner
from benchmarks.data import load
from benchmarks.results import RESULTS, Claim, Table
from torch_agcn.functional import anisotropic_weights

SIZES = {'PubMed': (19_717, 88_648), 'small': (1_000, 10_000),
         'medium': (100_000, 1_000_000), 'large': (1_000_000, 10_000_000)}
CHANNELS = 64
TABLE = Table(RESULTS / 'weights.csv', [
    'method', 'dataset', 'repeat', 'nodes', 'edges', 'channels', 'seconds',
    'extra_mb'])
CAPTIONS: dict[str, str] = {}


class Task(NamedTuple):
    r"""One run."""

    method: str
    dataset: str
    repeat: int


def graph(dataset: str, root: str) -> Data:
    r"""PubMed, or two clusters with a tenth of the edges across."""
    if dataset == 'PubMed':
        return load(dataset, root=root)
    num_nodes, num_edges = SIZES[dataset]
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(num_nodes) % 2
    x = torch.randn(num_nodes, CHANNELS, generator=generator) + y[:, None]
    row, col = torch.randint(num_nodes, (2, num_edges // 2),
                             generator=generator)
    across = (torch.arange(num_edges // 2) % 10 == 0).long()
    edges = torch.stack([row, col - col % 2 + (row + across) % 2])
    return Data(x=x, edge_index=torch.cat([edges, edges.flip(0)], dim=1))


def measure(task: Task, root: str) -> dict[str, Any]:
    r"""Runs a task and returns its row."""
    data = graph(task.dataset, root)
    anisotropic_weights(torch.randn(2, 3), data.edge_index[:, :0])
    run = partial(anisotropic_weights, data.x, data.edge_index)
    start = time.process_time()
    run()
    seconds = time.process_time() - start
    return {**task._asdict(), 'nodes': data.num_nodes,
            'edges': data.num_edges, 'channels': data.x.size(1),
            'seconds': round(seconds, 3), 'extra_mb': round(max(
                accumulate(runner.allocations(run))) / 2**20)}


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""Medians of the latest commit."""
    rows = rows[rows.commit == rows.commit.iloc[-1]]
    lines = []
    for _, part in rows.groupby('dataset', sort=False):
        first = part.iloc[0]
        lines.append({
            'graph': first.dataset, 'nodes': f'{first.nodes:,}',
            'edges': f'{first.edges:,}', 'features': first.channels,
            'seconds': f'{part.seconds.median():.2f}',
            'extra MB': f'{part.extra_mb.median():.0f}', 'runs': len(part)})
    return {'AnisotropicWeights on one core, medians': pd.DataFrame(lines)}


def draw(rows: pd.DataFrame, folder: Path) -> list[Path]:
    r"""None: a table says it."""
    return []


def claims(rows: pd.DataFrame) -> list[Claim]:
    r"""None: the paper has no weights."""
    return []


def main(argv: list[str]) -> None:
    options = runner.parser('weights', list(SIZES), runs=3, of=list(SIZES))
    args = options.parse_args(argv)
    args.jobs = 1  # Two at a time would wait for each other's memory.
    if args.quick:
        args.datasets, args.runs = ['small'], 1
    tasks = [Task('weights', dataset, repeat) for repeat in range(args.runs)
             for dataset in args.datasets]
    runner.conclude(sys.modules[__name__], tasks, args)
