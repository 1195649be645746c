r"""Hyper-parameters, chosen on validation with the same budget for all.

Each method's file in ``settings`` has a grid of at most eight configurations,
each of which is run once. Where others are within a point of the best, they
and the best are run with two more seeds, and the mean of three decides: the
highest validation accuracy, then the lowest validation loss. ``tune.csv``
does not even hold test accuracies.
"""
import itertools
import json
from typing import Any

import pandas as pd
import yaml

from benchmarks import runner, settings
from benchmarks.data import CITATION, splits_of
from benchmarks.results import RESULTS, Table, write_whole
from benchmarks.settings import COLUMNS, Task, read_settings, settings_of

TABLE = Table(RESULTS / 'tune.csv',
              [c for c in COLUMNS if c != 'test_accuracy'])
CONFIGURATIONS = 8
RUNS, NEAR = 3, 1.0  # of those so near to the best, in points


def grid(method: str) -> list[dict[str, Any]]:
    r"""All configurations of a method, none if it is not searched."""
    values = read_settings(method).get('grid')
    if values is None:
        return []
    out = [dict(zip(values, choice))
           for choice in itertools.product(*values.values())]
    if len(out) > CONFIGURATIONS:
        raise ValueError(f"The grid of '{method}' has {len(out)} "
                         f'configurations; none has more than '
                         f'{CONFIGURATIONS}')
    return out


def scores(rows: pd.DataFrame, method: str, dataset: str,
           configs: list[dict[str, Any]],
           runs: int) -> list[tuple[float, float, dict[str, Any]]]:
    r"""Mean validation accuracy, minus the loss, and configuration; none if
    some of the runs are missing.
    """
    rows = rows[(rows.method == method) & (rows.dataset == dataset)
                & (rows.seed < runs)]
    parts = [rows[rows.settings == settings_of(method, dataset, **config)]
             for config in configs]
    if any(part.seed.nunique() < runs for part in parts):
        return []
    return [(round(part.val_accuracy.mean(), 3), -part.val_loss.mean(), config)
            for part, config in zip(parts, configs)]


def near_best(rows: pd.DataFrame, method: str,
              dataset: str) -> list[dict[str, Any]]:
    r"""The configurations whose first run is within a point of the best, if
    there are others than the best and more seeds can tell.
    """
    found = scores(rows, method, dataset, grid(method), 1)
    best = max((accuracy for accuracy, *_ in found), default=0.0)
    near = [config for accuracy, _, config in found if accuracy >= best - NEAR]
    is_same = read_settings(method).get('deterministic')
    return near if len(near) > 1 and not is_same else []


def choose(rows: pd.DataFrame, method: str,
           dataset: str) -> dict[str, Any] | None:
    r"""The best configuration, or none if runs are missing."""
    near = near_best(rows, method, dataset)
    found = scores(rows, method, dataset, near or grid(method),
                   RUNS if near else 1)
    return max(found, key=lambda score: score[:2])[2] if found else None


def write_chosen(method: str, chosen: dict[str, dict[str, Any]]) -> None:
    r"""Puts choices into a method's file; its comment and other data sets'
    stay.
    """
    path, file = settings.SETTINGS / f'{method}.yaml', read_settings(method)
    comment = itertools.takewhile(lambda line: line.startswith('#'),
                                  path.read_text('utf-8').splitlines(True))
    write_whole(path, ''.join(comment) + yaml.safe_dump(
        {**file, 'chosen': {**file.get('chosen', {}), **chosen}},
        sort_keys=False, default_flow_style=None))


def measure(task: Task, root: str) -> dict[str, Any]:
    r"""A row without what is not to be looked at."""
    row = settings.measure(task, root)
    del row['test_accuracy']
    return row


def main(argv: list[str]) -> None:
    searched = [method for method in settings.METHODS if grid(method)]
    args = runner.parser('tune', CITATION, runs=None, choices=dict(
        methods=searched)).parse_args(argv)
    if args.quick:
        args.datasets, args.methods = args.datasets[:1], args.methods[:3]
    table = runner.table_of(TABLE, args)

    failed = []
    for seeds, configs in [
            (range(1), lambda rows, method, dataset: grid(method)),
            (range(1, RUNS), near_best)]:
        rows = table.read()
        tasks = [Task(method, dataset, splits_of(dataset)[0], seed,
                      settings_of(method, dataset, **config))
                 for seed in seeds for dataset in args.datasets
                 for method in args.methods
                 for config in configs(rows, method, dataset)]
        failed += runner.run_missing(tasks, table, measure, args.jobs,
                                     args.root)
    rows = table.read()
    for method in args.methods:
        found = {dataset: choose(rows, method, dataset)
                 for dataset in args.datasets}
        chosen = {d: config for d, config in found.items() if config}
        if chosen and not args.quick:
            write_chosen(method, chosen)
        print(f'{settings.METHODS[method]}: {json.dumps(chosen)}')
    runner.report(failed)
