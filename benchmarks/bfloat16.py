r"""What products in bfloat16 cost in accuracy.

Networks are trained under :class:`torch.autocast` and without, with the same
settings and seeds. Small products stay in float32 under autocast, so the
networks on small graphs are wider than these need.
"""
import time
from argparse import Namespace
from collections import namedtuple
from copy import copy
from typing import Any

import pandas as pd
import torch
from torch_geometric import seed_everything

from benchmarks.batches import accuracies
from benchmarks.data import CITATION, load
from benchmarks.results import RESULTS, Table
from benchmarks.stats import by_seed, compared, gap_text, mean_error, pairs
from benchmarks.training import fit
from torch_agcn import AGCN

QUESTION = 'What do products in bfloat16 cost in accuracy?'
METHODS: dict[str, dict[str, Any]] = {
    'AGCN (paper)': {}, 'AGCN (relative)': dict(energy='relative')}
# Products of fewer than 2**20 numbers stay in float32:
WIDTH = {'Cora': 512, 'CiteSeer': 512, 'PubMed': 64}
SCHEDULE = dict(epochs=200, patience=20)
EXACT, AUTOCAST = PRECISIONS = 'float32', 'bfloat16'
OPTIONS = dict(datasets=CITATION, of=CITATION)
QUICK = dict(datasets=['Cora'], runs=1)
Task = namedtuple('Task', 'method dataset precision seed')
TABLE = Table(RESULTS / 'bfloat16.csv', [
    *Task._fields, 'epochs', 'val_accuracy', 'test_accuracy', 'seconds'])


def measure(task: Task, root: str) -> dict[str, Any]:
    r"""Trains a network of two layers and returns its row."""
    data = copy(load(task.dataset, root=root))
    data.x = data.x.to_dense()
    begin = time.perf_counter()
    # Without the cache, in which weights would stay as they were at first:
    with torch.autocast('cpu', torch.bfloat16, cache_enabled=False,
                        enabled=task.precision == AUTOCAST):
        seed_everything(task.seed)
        model = AGCN(data.x.size(1), WIDTH[task.dataset], 2,
                     int(data.y.max()) + 1, dropout=0.5, cached=True,
                     **METHODS[task.method])
        params = [dict(params=model.parameters(), weight_decay=5e-4)]
        run = fit(model, data, params=params, **SCHEDULE)
    return {**task._asdict(), 'epochs': run.epochs,
            **accuracies(run.logits, data),
            'seconds': round(time.perf_counter() - begin, 2)}


def by_precision(rows: pd.DataFrame) -> dict[Any, pd.DataFrame]:
    r"""Accuracies of each network and data set, a column for each precision
    and a line for each seed.
    """
    return {key: by_seed(part, 'precision').reindex(columns=PRECISIONS)
            for key, part in rows.groupby(['method', 'dataset'])}


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""Accuracies, and differences to float32 over the same seeds."""
    lines = [[*key, mean_error(wide[EXACT]), mean_error(wide[AUTOCAST]),
              gap_text(wide, AUTOCAST, EXACT)]
             for key, wide in by_precision(rows).items()]
    return {'Test accuracy in percent, mean ± standard error (runs)':
            pd.DataFrame(lines, columns=['', 'data', *PRECISIONS, 'difference'
                                         ', 95 % interval'])}


def answer(rows: pd.DataFrame) -> str:
    r"""The differences to float32."""
    return compared(
        'Test accuracy with bfloat16 minus that with float32, in points with '
        '95 % intervals: ',
        {f'{method} on {dataset}': pairs(wide, AUTOCAST, EXACT)
         for (method, dataset), wide in by_precision(rows).items()}, 2)


def tasks(args: Namespace) -> list[Task]:
    r"""All networks with and without autocast."""
    return [Task(method, dataset, precision, seed)
            for seed in range(args.runs) for dataset in args.datasets
            for method in METHODS for precision in PRECISIONS]
