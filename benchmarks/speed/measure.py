r"""How a case is measured: processes, turns and memory."""
import ctypes
import gc
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes.util import find_library
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import runner
from benchmarks.data import CITATION
from benchmarks.results import RESULTS, Table
from benchmarks.speed import graphs
from benchmarks.speed.graphs import Size

COLUMNS = ['case', *Size._fields, 'malloc', 'measured', 'variant', 'repeat',
           'milliseconds', 'megabytes']
TABLE = Table(RESULTS / 'speed.csv', COLUMNS)
MEMORY_REPEATS, MEMORY_CALLS = 3, 5  # the heap grows in the first calls
# How freed memory is treated: the variables that a process starts with.
MALLOC: dict[str, dict[str, Any]] = {
    'default': {}, 'kept': {},
    'huge pages': {'THP_MEM_ALLOC_ENABLE': '1'},
    'tcmalloc': {'LD_PRELOAD': find_library('tcmalloc_minimal')}}
Run = Callable[[], Any]


class UnavailableError(Exception):
    r"""A variant that this machine cannot run, and why."""


def enough_calls(size: Size) -> int:
    r"""How many calls are timed together, so that none is too short."""
    work = size.features * (size.nodes + size.edges)
    return max(1, min(200, 10**7 // work))


class Case(NamedTuple):
    r"""What is asked, and how it is measured.

    Args:
        question: What the case answers, in one sentence.
        sizes: What it is measured on.
        variants: Builds what is timed out of what a size makes, by name.
        beside: The name of the last column: what a variant is compared to.
        reference: The variant that another is compared to.
        repeats: How often each variant is timed, after a first time.
        malloc: How freed memory is treated.
        memory: The variants whose memory is measured.
        memory_sizes: Where that is; by default, on all sizes.
        counts: Whether memory is counted as tensors, in the same process.
        most: The most edges that a variant gets.
        split: The number of edges from which on an exponent is fitted.
        calls: How many calls are timed together.
    """

    question: str
    sizes: list[Size]
    variants: dict[str, Callable[[Any], Run]]
    beside: str
    reference: Callable[[str], str]
    repeats: int = 5
    malloc: tuple[str, ...] = ('kept', )
    memory: tuple[str, ...] = ()
    memory_sizes: list[Size] | None = None
    counts: bool = False
    most: dict[str, int] | None = None
    split: int | None = None
    calls: Callable[[Size], int] = enough_calls

    def quick(self) -> 'Case':
        r"""The same on a few small graphs."""
        made = [s for s in self.sizes if s.graph not in CITATION]
        by = min((s.nodes for s in made), default=1000) // 1000
        by = min(50, max(1, by))
        sizes = [s if s not in made else s._replace(
            nodes=s.nodes // by, edges=s.edges // by // 2 * 2)
            for s in self.sizes]
        sizes = [s for s in sizes if s.edges <= 400_000]
        return self._replace(
            sizes=sizes[::2] if len(sizes) > 6 else sizes, repeats=2,
            malloc=self.malloc[:2],
            memory=self.memory if self.counts else self.memory[-2:],
            memory_sizes=None if self.counts else sizes[:1])


class Job(NamedTuple):
    r"""What one process does: times all variants of a case on a size in
    turn, or measures the memory of one.
    """

    case: str
    size: Size
    malloc: str
    measured: str
    variants: tuple[str, ...]
    repeats: tuple[int, ...]
    path: str

    @property
    def fixed(self) -> dict[str, Any]:
        r"""What all of its rows have."""
        return dict(case=self.case, **self.size._asdict(), malloc=self.malloc,
                    measured=self.measured)

    @property
    def rows(self) -> list[dict[str, Any]]:
        r"""How its rows begin."""
        return [dict(**self.fixed, variant=name, repeat=repeat)
                for repeat in self.repeats for name in self.variants]


def jobs(name: str, case: Case, path: Path) -> Iterator[list[Job]]:
    r"""All jobs of a case, and which of them share a process."""
    for malloc in case.malloc:
        if None in MALLOC[malloc].values():
            print(f"{name}: no '{malloc}'. Install it, e.g. by 'apt-get "
                  f"install libtcmalloc-minimal4'")
            continue
        for size in case.sizes:
            fit = tuple(v for v in case.variants if size.edges <= (
                case.most or {}).get(v, size.edges))
            time = Job(name, size, malloc, 'time', fit,
                       tuple(range(case.repeats)), str(path))
            memory = time._replace(
                measured='memory', repeats=(0, ),
                variants=tuple(v for v in case.memory if v in fit))
            if case.counts:
                yield [time, memory]
                continue
            yield [time]
            if size in (case.memory_sizes or case.sizes):
                for variant in memory.variants:
                    for repeat in time.repeats[:MEMORY_REPEATS]:
                        yield [memory._replace(variants=(variant, ),
                                               repeats=(repeat, ))]


@contextmanager
def variables(malloc: str) -> Iterator[None]:
    r"""Processes that start meanwhile treat freed memory so."""
    names = [name for found in MALLOC.values() for name in found]
    before = {name: os.environ.pop(name, None) for name in names}
    os.environ.update(MALLOC[malloc])
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def run_missing(cases: dict[str, Case], table: Table,
                root: str) -> list[tuple[Any, str]]:
    r"""Runs what has rows missing of this commit, and returns what failed."""
    failed = []
    for name, case in cases.items():
        for group in jobs(name, case, table.path):
            todo = [job for job in group if table.missing(job.rows)]
            with variables(group[0].malloc):
                failed += [(job, error) for job, row, error in runner.execute(
                    todo, work, 1, root, keep=group[0].malloc == 'kept')
                    if row is None]
    return failed


def work(job: Job, root: str) -> dict[str, Any]:
    r"""What the process of a job does. It writes its rows itself, one by
    one.
    """
    from benchmarks.speed.cases import CASES
    case, table = CASES[job.case], Table(Path(job.path), COLUMNS)
    wanted = {row['variant'] for row in table.missing(job.rows)}
    is_resident = job.measured == 'memory' and not case.counts
    data, sides = graphs.make(job.size, root), {}
    for name in [name for name in job.variants if name in wanted]:
        try:
            if is_resident:  # loads what is loaded late
                case.variants[name](graphs.make(tiny(job.size), root))()
            sides[name] = case.variants[name](data)
        except (ImportError, UnavailableError) as error:
            print(f"{job.case}: no '{name}'. {error}")
    if job.measured == 'time':
        calls = case.calls(job.size)
        gc.freeze()  # to collect what is new between timings takes no time
        runner.take_turns(table, [(dict(variant=name), repeated(run, calls))
                                  for name, run in sides.items()],
                          len(job.repeats), calls, **job.fixed)
    else:
        for name, run in sides.items():
            megabytes = resident(run) if is_resident else counted(run)
            row = dict(**job.fixed, variant=name, repeat=job.repeats[0])
            table.append([*row, 'commit'], **row, milliseconds='',
                         megabytes=round(megabytes, 3))
    return {}


def repeated(run: Run, calls: int) -> Run:
    r"""So many calls as one."""
    def run_all() -> None:
        for _ in range(calls):
            run()
    return run_all


def tiny(size: Size) -> Size:
    r"""The same kind of problem, which takes no memory."""
    kind = 'random' if size.graph in CITATION else size.graph
    return Size(kind, 100, 1000, size.features)


def resident(run: Run) -> float:
    r"""The peak of resident memory during some calls, the first of which
    makes what is kept, above what was there, in megabytes.
    """
    gc.collect()
    if platform.libc_ver()[0] == 'glibc':
        # What was freed would hide what is made in its place.
        ctypes.CDLL(None).malloc_trim(0)
    runner.reset_peak()
    before = runner.peak_mb()
    repeated(run, MEMORY_CALLS)()
    return runner.peak_mb() - before


def counted(run: Run) -> float:
    r"""The largest sum of the tensors that a call makes, in megabytes."""
    run()  # the first call makes what is kept
    total = lowest = peak = 0
    for size in runner.allocations(run):
        total += size
        lowest = min(lowest, total)  # the gradients of the last call are freed
        peak = max(peak, total - lowest)
    return peak / 2**20
