r"""Processes that run tasks, the signals that end them, and their memory."""
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    Future,
    ProcessPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.results import keep_memory, provenance
from torch_agcn.datasets import FetchError

Measure = Callable[[Any, str], dict[str, Any]]
GRACE = 5  # seconds that a run has to clean up
KILLED = ('its process ended before it did, as the system does when memory is '
          'short; fewer --jobs need less')


def _prepare(keep: bool) -> None:
    r"""Makes a process ready for tasks."""
    if keep:  # large tensors are made and dropped all the time
        keep_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's business
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # runs clean up
    warnings.filterwarnings('ignore', 'Sparse (CSR|inv)')
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    # A parent that was killed cannot end its processes.
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)
        os._exit(1)


def _run(measure: Measure, task: Any,
         root: str) -> tuple[dict[str, Any] | None, str]:
    r"""The row of a task, or none and what went wrong."""
    try:
        return {'versions': provenance()['versions'],
                **measure(task, root)}, ''
    except FetchError as error:
        return None, str(error)
    except Exception:
        return None, traceback.format_exc()


@contextmanager
def stop_by(handler: Callable[[int, Any], None]) -> Iterator[None]:
    r"""Has a function handle the signals that ask to end, but those that are
    ignored, as by nohup.
    """
    names = ['SIGINT', 'SIGTERM', 'SIGHUP']
    numbers = [getattr(signal, name) for name in names
               if hasattr(signal, name)]
    before = {number: signal.signal(number, handler) for number in numbers
              if signal.getsignal(number) != signal.SIG_IGN}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def execute(
    tasks: Iterable[Any], measure: Measure, jobs: int, root: str,
    keep: bool = True,
) -> Iterator[tuple[Any, dict[str, Any] | None, str]]:
    r"""Runs tasks in processes of one thread each, and yields each with its
    row, or with an error and no row, as they finish. A signal that asks to
    end is raised as :obj:`KeyboardInterrupt` when those are yielded that have
    finished. Processes keep the memory of large tensors, or have the allocator
    as the system has it.
    """
    for name in ['OMP', 'MKL', 'OPENBLAS']:  # for processes to inherit
        os.environ[f'{name}_NUM_THREADS'] = '1'
    for name in list(os.environ):
        if name.startswith('MALLOC_') or name == 'GLIBC_TUNABLES':
            del os.environ[name]
    # Neither torch's nor the C library's threads survive a fork.
    context = multiprocessing.get_context('spawn')
    queue, stopped = list(tasks)[::-1], []
    pools: list[ProcessPoolExecutor] = []
    busy: dict[Future, tuple[Any, ProcessPoolExecutor]] = {}

    def start() -> ProcessPoolExecutor:
        # One process each, as a pool ends with the first that is killed.
        pools.append(ProcessPoolExecutor(1, context, _prepare, (keep,)))
        return pools[-1]

    def hand_out(pool: ProcessPoolExecutor) -> None:
        if queue and not stopped:
            task = queue.pop()
            try:
                future = pool.submit(_run, measure, task, root)
            except BrokenProcessPool:  # killed after its last run
                pool = start()
                future = pool.submit(_run, measure, task, root)
            busy[future] = task, pool

    def stop(number: int, frame: Any) -> None:
        if stopped:  # who asks twice does not want to wait
            raise KeyboardInterrupt(number)
        stopped.append(number)

    with stop_by(stop):
        try:
            for _ in range(min(jobs, len(queue))):
                hand_out(start())
            while busy:
                done, _ = wait(busy, 0.1, FIRST_COMPLETED)
                if stopped and not done:
                    break
                for future in done:
                    task, pool = busy.pop(future)
                    try:
                        row, error = future.result()
                    except BrokenProcessPool:
                        row, error, pool = None, KILLED, start()
                    hand_out(pool)
                    yield task, row, error
        finally:
            if busy:  # else all end by themselves, and leave nothing behind
                for process in multiprocessing.active_children():
                    process.terminate()
                wait(busy, GRACE)
                for process in multiprocessing.active_children():
                    process.kill()
            for pool in pools:
                pool.shutdown()
    if stopped:
        raise KeyboardInterrupt(stopped[0])


# Memory ######################################################################


def reset_peak() -> None:
    r"""Forgets the peak, where the system can (Linux)."""
    if Path('/proc/self/clear_refs').exists():
        Path('/proc/self/clear_refs').write_text('5')


def peak_mb() -> int:
    r"""The largest memory of this process since, or else of all its life."""
    status = Path('/proc/self/status')
    if status.exists():
        return int(status.read_text().split('VmHWM:')[1].split()[0]) // 1024
    import resource  # which Windows has not
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
