r"""What products in bfloat16 cost in accuracy.

Networks are trained under :class:`torch.autocast` and without, with the same
settings and seeds. Small products stay in float32 under autocast, so the
networks on small graphs are wider than these need.
"""
import sys
import time
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch_geometric import seed_everything
from torch_geometric.data import Data

from benchmarks import runner, stats
from benchmarks.data import load
from benchmarks.results import RESULTS, Claim, Table
from benchmarks.training import Run, fit
from torch_agcn import AGCN

QUESTION = 'What do products in bfloat16 cost in accuracy?'
CITATION = ['Cora', 'CiteSeer', 'PubMed']
METHODS: dict[str, dict[str, Any]] = {
    'AGCN (paper)': {}, 'AGCN (relative)': dict(energy='relative')}
# Products of fewer than 2**20 numbers stay in float32:
WIDTH = {'Cora': 512, 'CiteSeer': 512, 'PubMed': 64}
SCHEDULE = dict(epochs=200, patience=20)
EXACT, AUTOCAST = 'float32', 'bfloat16'
PRECISIONS = [EXACT, AUTOCAST]


class Task(NamedTuple):
    r"""One run."""

    method: str
    dataset: str
    precision: str
    seed: int


TABLE = Table(RESULTS / 'bfloat16.csv', [
    *Task._fields, 'epochs', 'val_accuracy', 'test_accuracy', 'seconds'])


def train(data: Data, seed: int, width: int, **layer: Any) -> Run:
    r"""Trains two layers."""
    seed_everything(seed)
    model = AGCN(data.x.size(1), width, 2, int(data.y.max()) + 1, dropout=0.5,
                 cached=True, **layer)
    params = [dict(params=model.parameters(), weight_decay=5e-4)]
    return fit(model, data, params=params, **SCHEDULE)


def measure(task: Task, root: str) -> dict[str, Any]:
    r"""Trains a network and returns its row."""
    data = copy(load(task.dataset, root=root))
    data.x = data.x.to_dense()
    begin = time.perf_counter()
    # Without the cache, in which weights would stay as they were at first:
    with torch.autocast('cpu', torch.bfloat16, cache_enabled=False,
                        enabled=task.precision == AUTOCAST):
        run = train(data, task.seed, WIDTH[task.dataset],
                    **METHODS[task.method])
    right = run.logits.argmax(dim=-1) == data.y
    return {**task._asdict(), 'epochs': run.epochs, **{
        f'{name}_accuracy': round(100 * float(
            right[data[f'{name}_mask']].double().mean()), 3)
        for name in ['val', 'test']},
        'seconds': round(time.perf_counter() - begin, 2)}


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""Accuracies, and differences to float32 over the same seeds."""
    lines = []
    for method in [name for name in METHODS if (rows.method == name).any()]:
        for precision in PRECISIONS:
            line = {'method': method, 'precision': precision}
            for dataset in CITATION:
                part = rows[(rows.method == method)
                            & (rows.dataset == dataset)]
                wide = part.pivot(index='seed', columns='precision',
                                  values='test_accuracy').reindex(
                                      columns=PRECISIONS)
                line[dataset] = stats.mean_error(wide[precision])
                gap = stats.paired(wide[precision], wide[EXACT])
                line[f'{dataset}, difference'] = (
                    '–' if gap is None or precision == EXACT else
                    f'{gap.mean:+.2f} ± {gap.half:.2f}')
            lines.append(line)
    return {'Test accuracy in percent, mean ± standard error (runs), and the '
            'difference to float32 with its 95 % interval':
            pd.DataFrame(lines)}


def draw(rows: pd.DataFrame, folder: Path) -> list[Path]:
    r"""None: nothing is to be seen."""
    return []


def claims(rows: pd.DataFrame) -> list[Claim]:
    r"""None: the paper does not speak of it."""
    return []


def answer(rows: pd.DataFrame) -> str:
    r"""The differences to float32."""
    texts = []
    for method in METHODS:
        for dataset in CITATION:
            gap = stats.pairs(stats.by_seed(
                rows[(rows.method == method) & (rows.dataset == dataset)],
                'precision'), AUTOCAST, EXACT)
            texts += [f'{method} on {dataset} {gap.text(2)}'] if gap else []
    return ('bfloat16 minus float32, with 95 % intervals: '
            + ', '.join(texts) + '.' if texts else '')


def main(argv: list[str]) -> None:
    args = runner.parser('bfloat16', CITATION, of=CITATION,
                         methods=list(METHODS)).parse_args(argv)
    if args.quick:
        args.datasets, args.runs = ['Cora'], 1
    tasks = [Task(method, dataset, precision, seed)
             for seed in range(args.runs) for dataset in args.datasets
             for method in args.methods for precision in PRECISIONS]
    runner.run_and_report(sys.modules[__name__], tasks, args)
