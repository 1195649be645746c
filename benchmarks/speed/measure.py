r"""How a case is measured: processes, turns and memory."""
import ctypes
import gc
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes.util import find_library
from pathlib import Path
from typing import Any, NamedTuple

from torch.profiler import ProfilerActivity, profile
from tqdm import tqdm

from benchmarks import results, workers
from benchmarks.results import RESULTS, Table, as_key
from benchmarks.speed import graphs
from benchmarks.speed.graphs import Size

RUN = ['case', *Size._fields, 'malloc', 'measured', 'variant', 'repeat']
COLUMNS, KEY = [*RUN, 'milliseconds', 'megabytes'], [*RUN, 'commit']
TABLE = Table(RESULTS / 'speed.csv', COLUMNS)
MEMORY_REPEATS, MEMORY_CALLS = 3, 5  # the heap grows in the first calls
# How freed memory is treated: the library that a process is started with.
MALLOC = {'default': '', 'kept': '',
          'tcmalloc': find_library('tcmalloc_minimal')}
Run = Callable[[], Any]


class UnavailableError(Exception):
    r"""A variant that this machine cannot run, and why."""


class Case(NamedTuple):
    r"""What is asked, and how it is measured."""

    question: str
    sizes: list[Size]
    variants: dict[str, Callable[[Any], Run]]  # each made for a graph
    beside: str = ''  # the column that compares a variant to its reference
    reference: Callable[[str], str] = str
    repeats: int = 5  # after a first time
    malloc: tuple[str, ...] = ('kept', )
    memory: tuple[str, ...] = ()  # the variants whose memory is measured
    memory_sizes: list[Size] | None = None  # else on all sizes
    counts: bool = False  # memory is that of tensors, else of the process
    most: dict[str, int] | None = None  # edges that a variant gets

    def quick(self) -> 'Case':
        r"""The same on a few small graphs."""
        by = min(50, max(1, min(s.nodes for s in self.sizes) // 1000))
        sizes = [s._replace(nodes=s.nodes // by, edges=s.edges // by // 2 * 2)
                 for s in self.sizes]
        sizes = [s for s in sizes if s.edges <= 400_000]
        return self._replace(
            sizes=sizes[::2] if len(sizes) > 6 else sizes, repeats=2,
            malloc=self.malloc[:2],
            memory=self.memory if self.counts else self.memory[-2:],
            memory_sizes=None if self.counts else sizes[:1])


class Job(NamedTuple):
    r"""What one process does: times all variants of a case on a size in
    turn, or measures the memory of some.
    """

    case: str
    size: Size
    malloc: str
    measured: str
    variants: tuple[str, ...]
    repeats: tuple[int, ...]
    path: Path

    def missing(self) -> list[dict[str, Any]]:
        r"""What its rows begin with, of those that are not there of this
        commit, which is what a time belongs to.
        """
        wanted = [dict(case=self.case, **self.size._asdict(),
                       malloc=self.malloc, measured=self.measured,
                       variant=name, repeat=repeat,
                       commit=results.provenance()['commit'])
                  for repeat in self.repeats for name in self.variants]
        done = Table(self.path, COLUMNS).keys(KEY)
        return [row for row in wanted if as_key(row.values()) not in done]


def jobs(name: str, case: Case, path: Path) -> Iterator[Job]:
    r"""All jobs of a case."""
    for malloc in case.malloc:
        if MALLOC[malloc] is None:
            print(f"{name}: no '{malloc}'. Install it, e.g. by 'apt-get "
                  f"install libtcmalloc-minimal4'")
            continue
        for size in case.sizes:
            fit = tuple(v for v in case.variants if size.edges <= (
                case.most or {}).get(v, size.edges))
            yield Job(name, size, malloc, 'time', fit,
                      tuple(range(case.repeats)), path)
            own = tuple(v for v in case.memory if v in fit)
            memory = Job(name, size, malloc, 'memory', own, (0, ), path)
            if case.counts:
                yield memory
            elif size in (case.memory_sizes or case.sizes):
                for variant in own:
                    for repeat in range(min(case.repeats, MEMORY_REPEATS)):
                        yield memory._replace(variants=(variant, ),
                                              repeats=(repeat, ))


def run_missing(cases: dict[str, Case],
                table: Table) -> list[tuple[Any, str]]:
    r"""Runs what has rows missing of this commit, and returns what failed."""
    failed = []
    table.begin()
    for job in [job for name, case in cases.items()
                for job in jobs(name, case, table.path) if job.missing()]:
        with preloaded(MALLOC[job.malloc] or ''):
            failed += [(job, error) for _, row, error in workers.execute(
                [job], work, 1, '', keep=job.malloc == 'kept') if row is None]
    return failed


@contextmanager
def preloaded(library: str) -> Iterator[None]:
    r"""Processes that start meanwhile load a library first, or none."""
    before = os.environ.get('LD_PRELOAD', '')
    os.environ['LD_PRELOAD'] = library
    try:
        yield
    finally:
        os.environ['LD_PRELOAD'] = before


def work(job: Job, root: str = '') -> dict[str, Any]:
    r"""What the process of a job does. It writes its rows itself, one by
    one; times are of calls in turn, after a first round.
    """
    from benchmarks.speed.cases import CASES
    case, todo = CASES[job.case], job.missing()
    is_time, calls = job.measured == 'time', calls_of(job.size)
    is_resident = not is_time and not case.counts
    data, sides = graphs.make(job.size), {}
    for name in dict.fromkeys(row['variant'] for row in todo):
        try:
            if is_resident:  # loads what is loaded late
                case.variants[name](graphs.make(tiny(job.size)))()
            sides[name] = case.variants[name](data)
        except (ImportError, UnavailableError) as error:
            print(f"{job.case}: no '{name}'. {error}")
    if is_time:
        gc.freeze()  # to collect what is new between timings takes no time
        for run in sides.values():
            milliseconds(run, calls)
    for row in tqdm([row for row in todo if row['variant'] in sides],
                    desc=f'{job.case} {tuple(job.size)} {job.measured}'):
        run, ms, mb = sides[row['variant']], '', ''
        if is_time:
            ms = float(f'{milliseconds(run, calls):.5g}')
        else:
            mb = round(resident(run) if is_resident else counted(run), 3)
        Table(job.path, COLUMNS).append(KEY, **row, milliseconds=ms,
                                        megabytes=mb)
    return {}


def milliseconds(run: Run, calls: int) -> float:
    r"""Processor time of one of so many calls."""
    gc.collect()
    start = time.process_time()
    for _ in range(calls):
        run()
    return 1000 * (time.process_time() - start) / calls


def calls_of(size: Size) -> int:
    r"""How many calls are timed together: all graphs, or enough of one."""
    if size.graph == 'changing':
        return graphs.number_of_graphs(size)
    return max(1, min(200, 10**7 // (size.features
                                     * (size.nodes + size.edges))))


def tiny(size: Size) -> Size:
    r"""The same kind of problem, which takes no memory."""
    return size._replace(nodes=100, edges=1000)


def resident(run: Run) -> float:
    r"""The peak of resident memory during some calls, the first of which
    makes what is kept, above what was there, in megabytes.
    """
    gc.collect()
    if platform.libc_ver()[0] == 'glibc':
        # What was freed would hide what is made in its place.
        ctypes.CDLL(None).malloc_trim(0)
    workers.reset_peak()
    before = workers.peak_mb()
    for _ in range(MEMORY_CALLS):
        run()
    return workers.peak_mb() - before


def counted(run: Run) -> float:
    r"""The largest sum of the tensors that a call makes, in megabytes."""
    run()  # the first call makes what is kept
    os.environ.setdefault('KINETO_LOG_LEVEL', '6')  # errors, no progress
    with profile(activities=[ProfilerActivity.CPU],
                 profile_memory=True) as watch:
        run()
    events = [(event.start_ns(), event.nbytes())  # less than 0 where freed
              for event in watch.profiler.kineto_results.events()
              if event.name() == '[memory]']
    total = lowest = peak = 0
    for _, size in sorted(events):
        total += size
        lowest = min(lowest, total)  # the gradients of the last call are freed
        peak = max(peak, total - lowest)
    return peak / 2**20
