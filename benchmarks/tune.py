r"""Hyper-parameters, chosen on validation with the same budget for all.

Each method's file in ``settings`` has a grid of as many configurations as
every other's, or fewer, each of which is run as often. The highest mean
validation accuracy wins, then the lowest validation loss; ``tune.csv`` does
not even hold test accuracies.
"""
import itertools
import json
from typing import Any

import pandas as pd
import yaml

from benchmarks import runner
from benchmarks.data import splits_of
from benchmarks.results import RESULTS, Table, write_whole
from benchmarks.table import (
    COLUMNS,
    METHODS,
    SETTINGS,
    Task,
    adopt,
    parser,
    read_settings,
    settings_of,
)
from benchmarks.table import measure as measure_all

TABLE = Table(RESULTS / 'tune.csv',
              [c for c in COLUMNS if c != 'test_accuracy'])
CONFIGURATIONS = 8
HEADER = """\
# fixed: what is not searched, for all data sets and for some.
# grid: all combinations are tried by `python -m benchmarks tune`, which
# writes `chosen`, which `python -m benchmarks table` reads.
"""


def grid(method: str) -> list[dict[str, Any]]:
    r"""All configurations of a method."""
    values = read_settings(method)['grid']
    out = [dict(zip(values, choice))
           for choice in itertools.product(*values.values())]
    if len(out) > CONFIGURATIONS:
        raise ValueError(f"The grid of '{method}' has {len(out)} "
                         f'configurations; none has more than '
                         f'{CONFIGURATIONS}')
    return out


def choose(rows: pd.DataFrame, method: str, dataset: str,
           runs: int) -> dict[str, Any] | None:
    r"""The best configuration, or none if some have not been run."""
    best, choice = None, None
    for config in grid(method):
        settings = settings_of(method, dataset, **config)
        part = rows[(rows.method == method) & (rows.dataset == dataset)
                    & (rows.settings == settings) & (rows.seed < runs)]
        if len(part) < runs:
            return None
        score = round(part.val_accuracy.mean(), 3), -part.val_loss.mean()
        if best is None or score > best:
            best, choice = score, config
    return choice


def write_chosen(method: str, chosen: dict[str, dict[str, Any]]) -> None:
    r"""Puts choices into a method's file; other data sets' stay."""
    file = dict(read_settings(method))
    file['chosen'] = {**file.get('chosen', {}), **chosen}
    text = yaml.safe_dump(file, sort_keys=False, default_flow_style=None)
    write_whole(SETTINGS / f'{method}.yaml', HEADER + text)


def measure(task: Task, root: str) -> dict[str, Any]:
    r"""A row without what is not to be looked at."""
    row = measure_all(task, root)
    del row['test_accuracy']
    return row


def main(argv: list[str]) -> None:
    args = parser('tune', runs=1).parse_args(argv)
    table = TABLE
    if args.quick:
        table = Table(runner.QUICK / TABLE.path.name, TABLE.own_columns)
        args.datasets, args.methods = args.datasets[:1], args.methods[:3]
    tasks = [Task(method, dataset, splits_of(dataset)[0], seed,
                  settings_of(method, dataset, **config))
             for seed in range(args.runs) for dataset in args.datasets
             for method in args.methods for config in grid(method)]
    adopt(tasks, table)
    failed = runner.run_missing(tasks, table, measure, args.jobs, args.root)
    rows = table.read()
    for method in args.methods:
        chosen = {}
        for dataset in args.datasets:
            config = choose(rows, method, dataset, args.runs)
            if config is not None:
                chosen[dataset] = config
        if chosen and not args.quick:
            write_chosen(method, chosen)
        print(f'{METHODS[method]}: {json.dumps(chosen)}')
    runner.report(failed)
