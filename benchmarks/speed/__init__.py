r"""Speed: time and memory beside PyG, torch and DGL, case by case.

A case is a question (``--help`` names them all). Every case and size runs in a
fresh process on one thread; its sides take turns there, after a first round
that does not count. Times are those of the processor, and medians. Memory is
measured in processes of its own, one for each side: the peak of resident
memory above graph and features, in five calls. For ``complexity`` and
``recompute`` it is the sum of all tensors at its peak.

``malloc`` says how freed memory is treated: ``default`` is the C library as it
is, which hands large tensors back to the system; ``kept`` is after
:meth:`torch_agcn.keep_memory`; ``huge pages`` is with
``THP_MEM_ALLOC_ENABLE=1``, and ``tcmalloc`` with this library preloaded.

``product, AGCN`` is one hop of ``GatedDiffusion`` with an open gate.
"""
import argparse
import sys

from benchmarks import runner
from benchmarks.results import FIGURES, Table
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


def _case(name: str) -> str:
    if name not in CASES:
        raise argparse.ArgumentTypeError(
            f"there is no case '{name}'; there are {', '.join(CASES)}")
    return name


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(
        'python -m benchmarks speed',
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog='\n'.join(f'  {name:12} {case.question}'
                         for name, case in CASES.items()))
    parser.add_argument('cases', nargs='*', type=_case, metavar='CASE',
                        default=list(CASES), help='(default: all)')
    parser.add_argument('--root', default='data', help='where data is kept')
    parser.add_argument('--quick', action='store_true',
                        help=f"small graphs, in '{runner.QUICK}'")
    parser.add_argument('--show', action='store_true',
                        help='only print and draw what is there')
    args = parser.parse_args(argv)
    table, folder, failed = TABLE, FIGURES, []
    cases = {name: CASES[name] for name in args.cases}
    if args.quick:
        table = Table(runner.QUICK / TABLE.path.name, TABLE.own_columns)
        folder = runner.QUICK
        cases = {name: case.quick() for name, case in cases.items()}
    if not args.show:
        failed = run_missing(cases, table, args.root)
    runner.show(sys.modules[__name__], table.read(), folder)
    runner.report(failed)
