r"""How experiments run: options, tasks, a row for each, tables, figures.

An experiment is a module with

* ``TABLE``, the :class:`~benchmarks.results.Table` its rows go to;
* a ``NamedTuple`` that says what a run is, with a ``method`` and a
  ``dataset`` among its fields, which are columns of the table;
* ``measure(task, root)``, which runs one and returns its row;
* ``OPTIONS``, what :meth:`parser` is called with, ``QUICK``, what of it is
  smaller in a first look, and ``tasks(args)``, which makes all tasks;
* ``QUESTION``, and ``answer(rows)``, which answers it in one sentence;
* ``tables(rows)`` and, if there are any, ``draw(rows, folder)`` and
  ``claims(rows)``, which make the tables, the figures and the verdicts on the
  paper's claims from the rows alone (all for :mod:`benchmarks.report`).

What is run in another order has a ``main(argv)`` of its own.
"""
import argparse
import json
import os
import sys
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
from tqdm import tqdm

from benchmarks.data import DATASETS
from benchmarks.results import FIGURES, RESULTS, Claim, Table, as_key
from benchmarks.workers import Measure, execute

QUICK = Path('quick')  # where first looks go


# Runs ########################################################################


def run_missing(tasks: list[Any], table: Table, measure: Measure, jobs: int,
                root: str) -> list[tuple[Any, str]]:
    r"""Runs what has no row in a table yet, and returns what failed."""
    if not tasks:
        return []
    done = table.keys(tasks[0]._fields)
    todo = [task for task in dict.fromkeys(tasks) if as_key(task) not in done]
    if todo:
        table.begin()
    failed = []
    bar = tqdm(total=len(set(tasks)), initial=len(set(tasks)) - len(todo),
               unit='run')
    with bar, closing(execute(todo, measure, jobs, root)) as finished:
        for task, row, error in finished:
            if row is None:
                failed.append((task, error))
            else:
                table.append(task._fields, **row)
            bar.set_postfix_str(f'last {task.method} on {task.dataset}')
            bar.update()
    return failed


def report(failed: list[tuple[Any, str]]) -> None:
    r"""Says what failed, and ends with an error if anything did."""
    reasons: dict[str, list[Any]] = defaultdict(list)
    for task, error in failed:
        reasons[error].append(task)
    for error, tasks in reasons.items():
        more = f' and {len(tasks) - 1} more' if len(tasks) > 1 else ''
        print(f'\n{tasks[0]}{more} failed: {error}', file=sys.stderr)
    if failed:
        raise SystemExit(f'{len(failed)} runs failed and have no row; the '
                         f'same command tries them again.')


# Experiments #################################################################


def positive(text: str) -> int:
    r"""A number from the command line."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number >= 1")
    return int(text)


def parser(name: str, datasets: list[str], runs: int | None = 10,
           of: list[str] = DATASETS, jobs: int = os.cpu_count() or 1,
           choices: dict[str, list[Any]] | None = None,
           **others: Any) -> argparse.ArgumentParser:
    r"""The options that all experiments share.

    Args:
        name: The experiment.
        datasets: The data sets that are run by default.
        runs: The number of seeds by default, or none for no such option.
        of: All data sets that can be run.
        jobs: The number of processes by default.
        choices: More options, each a list that a part can be chosen of.
        **others: What else tasks depend on, without an option.
    """
    out = argparse.ArgumentParser(f'python -m benchmarks {name}')
    out.add_argument('--datasets', nargs='+', default=datasets, choices=of,
                     metavar='NAME', help=f'of {", ".join(of)} (default: '
                     f'{" ".join(datasets)})')
    for option, values in (choices or {}).items():
        out.add_argument(f'--{option}', nargs='+', default=values,
                         choices=values, type=type(values[0]), metavar='NAME',
                         help=f'of {", ".join(map(str, values))} (default: '
                         f'all)')
    if runs is not None:
        out.add_argument('--runs', type=positive, default=runs,
                         help='with seeds one after the other (default: '
                         '%(default)s)')
    out.add_argument('--jobs', type=positive, default=jobs,
                     help='processes at a time (default: %(default)s)')
    out.add_argument('--quick', action='store_true',
                     help=f"a first look in about a minute, in '{QUICK}'")
    out.add_argument('--root', default='data', help='where data is kept')
    out.set_defaults(**others)
    return out


def parse(module: ModuleType, argv: list[str]) -> argparse.Namespace:
    r"""What the command line says to an experiment."""
    options = parser(module.__name__.split('.')[-1], **module.OPTIONS)
    args = options.parse_args(argv)
    if args.quick:
        options.set_defaults(**module.QUICK)
        args = options.parse_args(argv)
    return args


def main(module: ModuleType, argv: list[str]) -> None:
    r"""Runs an experiment, or goes on with it."""
    args = parse(module, argv)
    run_and_report(module, module.tasks(args), args)


def table_of(table: Table, args: argparse.Namespace) -> Table:
    r"""The table, or that of first looks."""
    if not args.quick:
        return table
    return Table(QUICK / table.path.name, table.own_columns)


def run_and_report(module: ModuleType, tasks: list[Any],
                   args: argparse.Namespace) -> None:
    r"""Runs what is missing, then shows and draws all that is there."""
    table = table_of(module.TABLE, args)
    failed = run_missing(tasks, table, module.measure, args.jobs, args.root)
    folder = table.path.parent
    show(module, table.read(), FIGURES if folder == RESULTS else folder)
    report(failed)


def show(module: ModuleType, rows: pd.DataFrame, folder: Path) -> None:
    r"""Prints the tables and claims of rows, and draws their figures."""
    if rows.empty:
        return
    for title, frame in module.tables(rows).items():
        print(f'\n{title}\n{frame.to_string(index=False)}')
    for claim in claims_of(module, rows):
        print(f'\nThe paper: {claim.paper}\n  {claim.holds}: '
              f'{claim.measured}')
    print(f'\n{module.QUESTION}\n  {module.answer(rows)}')
    print('\nFigures:', *figures_of(module, rows, folder), sep='\n  ')


def claims_of(module: ModuleType, rows: pd.DataFrame) -> list[Claim]:
    r"""The verdicts of an experiment on what the paper claims."""
    return module.claims(rows) if hasattr(module, 'claims') else []


def figures_of(module: ModuleType, rows: pd.DataFrame,
               folder: Path) -> list[Path]:
    r"""Draws what an experiment has to show."""
    return module.draw(rows, folder) if hasattr(module, 'draw') else []


def as_json(**settings: Any) -> str:
    r"""Settings as a cell of a table: the same ones are the same text."""
    return json.dumps(settings, sort_keys=True)
