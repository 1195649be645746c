r"""python -m benchmarks <experiment> [options]"""
import importlib
import pkgutil
import signal
import sys
from typing import Any

import benchmarks
from torch_agcn.datasets import FetchError

# What is no experiment but serves them:
PARTS = {'__main__', 'attacks', 'baselines', 'batches', 'data', 'plots',
         'results', 'runner', 'settings', 'sparse', 'stats', 'training',
         'workers'}


def usage(names: list[str]) -> int:
    print('usage: python -m benchmarks <experiment> [options]\n')
    for name in names:
        doc = importlib.import_module(f'benchmarks.{name}').__doc__ or name
        print(f'  {name:12} {doc.strip().splitlines()[0]}')
    print('\n--help after an experiment shows its options.')
    return 0


def stop(number: int, frame: Any) -> None:
    raise KeyboardInterrupt(number)


def main() -> int:
    # A file or a terminal that cannot hold a letter is no reason to end:
    sys.stdout.reconfigure(errors='backslashreplace')
    names = sorted(m.name for m in pkgutil.iter_modules(benchmarks.__path__)
                   if m.name not in PARTS)
    try:
        if sys.argv[1:] in ([], ['-h'], ['--help']):
            return usage(names)
        if sys.argv[1] not in names:
            print(f"There is no experiment '{sys.argv[1]}'; there are "
                  f'{", ".join(names)}.', file=sys.stderr)
            return 2
        from benchmarks.results import keep_memory
        module = importlib.import_module(f'benchmarks.{sys.argv[1]}')
        keep_memory()
        from benchmarks import runner, workers
        with workers.stop_by(stop):
            if hasattr(module, 'main'):
                module.main(sys.argv[2:])
            else:
                runner.main(module, sys.argv[2:])
    except KeyboardInterrupt as error:
        print('\nStopped. Finished runs are kept: the same command goes on '
              'from here.')
        return 128 + (error.args or [signal.SIGINT])[0]
    except (FetchError, ImportError) as error:  # which say what to do
        name = getattr(error, 'name', None)
        if name is not None and not isinstance(error, ModuleNotFoundError):
            raise  # a fault of ours
        print(error if name is None else
              f"There is no '{name}' here: 'make quickstart' installs all "
              f"that experiments need, and so does 'pip install "
              f".[benchmarks]' in a clone.", file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
