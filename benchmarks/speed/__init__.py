r"""Speed: time and memory beside PyG and torch, case by case.

A case is a question (``--help`` names them all). Every case and size runs in a
fresh process on one thread; its variants take turns there, after a first round
that does not count. Times are those of the processor, and medians. Memory is
measured in processes of its own, one for each variant: the peak of resident
memory above graph and features, in five calls. For ``complexity`` and
``recompute`` it is the sum of all tensors at its peak.

``malloc`` says how freed memory is treated: ``default`` is the C library as it
is, which hands large tensors back to the system; ``kept`` is after
:meth:`torch_agcn.keep_memory`; ``tcmalloc`` is with this library preloaded.
"""
import argparse
import sys

from benchmarks import runner
from benchmarks.results import FIGURES
from benchmarks.speed.cases import CASES
from benchmarks.speed.measure import TABLE, run_missing
from benchmarks.speed.show import (
    CAPTIONS,
    QUESTION,
    answer,
    claims,
    draw,
    main_tables,
    tables,
)

__all__ = ['CAPTIONS', 'QUESTION', 'TABLE', 'answer', 'claims', 'draw',
           'main', 'main_tables', 'tables']


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(
        'python -m benchmarks speed',
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog='\n'.join(f'  {name:12} {case.question}'
                         for name, case in CASES.items()))
    parser.add_argument('cases', nargs='*', metavar='CASE',
                        help='(default: all)')
    parser.add_argument('--quick', action='store_true',
                        help=f"small graphs, in '{runner.QUICK}'")
    parser.add_argument('--show', action='store_true',
                        help='only print and draw what is there')
    args = parser.parse_args(argv)
    for name in args.cases:
        if name not in CASES:
            parser.error(f"there is no case '{name}'; there are "
                         f'{", ".join(CASES)}')
    table = runner.table_of(TABLE, args)
    cases = {name: case.quick() if args.quick else case
             for name, case in CASES.items()
             if name in (args.cases or CASES)}
    failed = [] if args.show else run_missing(cases, table)
    runner.show(sys.modules[__name__], table.read(),
                runner.QUICK if args.quick else FIGURES)
    runner.report(failed)
