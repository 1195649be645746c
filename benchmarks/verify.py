r"""Runs some committed rows again: do they still come out to the digit?

Of all experiments that train, one after the other, a random row is taken whose
numbers are shown, till there are enough. Times, memory, dates, commits and
versions may differ, and so may what t-SNE makes of features, as it magnifies
their last digits, in which processors differ. Nothing else may.
"""
import argparse
import importlib
import os
import random
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, zip_longest
from types import ModuleType
from typing import Any

import pandas as pd

from benchmarks import runner, workers
from benchmarks.results import as_key
from benchmarks.settings import latest

EXPERIMENTS = ['table', 'tune', 'labels', 'depth', 'beta', 'noise',
               'ablation', 'tasks', 'history', 'hetero', 'tsne', 'bfloat16',
               'minibatch', 'distributed']
SEARCHES = ['tune', 'hetero']  # whose rows of all settings count
MAY_DIFFER = re.compile('second|milli|mega|peak|^date$|^commit$|^versions$|'
                        '_tsne$|^x$|^y$')


def rows_of(name: str, datasets: list[str] | None = None,
            methods: list[str] | None = None) -> pd.DataFrame:
    r"""The rows of an experiment that are shown."""
    module = importlib.import_module(f'benchmarks.{name}')
    rows = module.TABLE.read()
    for column, values in [('dataset', datasets), ('method', methods)]:
        if values is not None:
            rows = rows[rows[column].isin(values)]
    if name not in SEARCHES and 'settings' in module.Task._fields:
        rows = latest(rows, *(key for key in [*module.Task._fields, 'beta']
                              if key not in ['seed', 'settings']))
    return rows


def pick(tables: dict[str, pd.DataFrame], sample: int,
         seed: int) -> list[tuple[str, Any]]:
    r"""Experiments and places of random rows, of each table in turn."""
    chance = random.Random(seed)
    orders = [[(name, i) for i in chance.sample(list(rows.index), len(rows))]
              for name, rows in tables.items()]
    turns = chain.from_iterable(zip_longest(*orders))
    return [place for place in turns if place is not None][:sample]


def cheapest(tables: dict[str, pd.DataFrame],
             count: int) -> list[tuple[str, Any]]:
    r"""Experiments and places of the rows that took the least time."""
    places = sorted((seconds, name, i) for name, rows in tables.items()
                    for i, seconds in rows.seconds.items())
    return [(name, i) for _, name, i in places[:count]]


def task_of(module: ModuleType, row: pd.Series) -> Any:
    r"""The task that made a row."""
    values = [row[key] for key in module.Task._fields]
    return module.Task(*(v.item() if hasattr(v, 'item') else v
                         for v in values))


def differences(before: dict[str, Any],
                after: dict[str, Any]) -> dict[str, tuple[str, str]]:
    r"""What is not the same in two rows, as a table has it."""
    names = [name for name in after if not MAY_DIFFER.search(name)]
    old, new = (as_key(None if row[name] != row[name] else row[name]
                       for name in names) for row in [before, after])
    out = {}
    for name, a, b in zip(names, old, new):
        same = a == b
        # The same number may be from a column of texts or of numbers:
        with suppress(ValueError):
            same = same or float(a) == float(b)
        if not same:
            out[name] = a, b
    return out


def verify(places: list[tuple[str, Any]], tables: dict[str, pd.DataFrame],
           jobs: int, root: str) -> Iterator[tuple[str, Any, str]]:
    r"""Runs rows again and yields for each the experiment, its task, and what
    differs, or nothing.
    """
    for name in dict.fromkeys(name for name, _ in places):
        module = importlib.import_module(f'benchmarks.{name}')
        before = {}
        for row in (tables[name].loc[i] for n, i in places if n == name):
            before[task_of(module, row)] = row
        for task, row, error in workers.execute(before, module.measure, jobs,
                                                root):
            found = error.strip().splitlines()[-1:] if row is None else [
                f'{key} was {excerpt(a, b)}, is {excerpt(b, a)}'
                for key, (a, b) in differences(before[task], row).items()
                if key in module.TABLE.own_columns]
            yield name, task, '; '.join(found)


def excerpt(text: str, other: str, most: int = 40) -> str:
    r"""A text, or a part of it where it begins to differ."""
    if len(text) <= most:
        return text
    same = next((i for i, (a, b) in enumerate(zip(text, other)) if a != b), 0)
    start = max(same - most // 2, 0)
    return f'… {text[start:start + most]} …'


def main(argv: list[str]) -> None:
    options = argparse.ArgumentParser('python -m benchmarks verify')
    options.add_argument('--sample', type=runner.positive, default=20,
                         help='random rows (default: %(default)s)')
    options.add_argument('--cheap', type=runner.positive, metavar='N',
                         help='the N rows that took the least time instead')
    options.add_argument('--seed', type=int, default=0,
                         help='of the sample (default: %(default)s)')
    options.add_argument('--experiments', nargs='+', default=EXPERIMENTS,
                         choices=EXPERIMENTS, metavar='NAME',
                         help=f'of {", ".join(EXPERIMENTS)} (default: all)')
    options.add_argument('--datasets', nargs='+', metavar='NAME',
                         help='only of these (default: all)')
    options.add_argument('--methods', nargs='+', metavar='NAME',
                         help='only of these (default: all)')
    options.add_argument('--jobs', type=runner.positive,
                         default=os.cpu_count() or 1,
                         help='processes at a time (default: %(default)s)')
    options.add_argument('--root', default='data', help='where data is kept')
    args = options.parse_args(argv)
    tables = {name: rows_of(name, args.datasets, args.methods)
              for name in args.experiments}
    places = (cheapest(tables, args.cheap) if args.cheap else
              pick(tables, args.sample, args.seed))
    if not places:
        raise SystemExit('There are no such rows; leave out an option.')
    wrong = 0
    for name, task, text in verify(places, tables, args.jobs, args.root):
        wrong += bool(text)
        where = ', '.join(f'{value}' for key, value in zip(
            task._fields, task) if key != 'settings')
        print(f'{name} ({where}): {text or "same"}', flush=True)
    print(f'{len(places) - wrong} of {len(places)} rows are the same.')
    if wrong:
        raise SystemExit(1)
