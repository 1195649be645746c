r"""Does it go on? python tests/kills.py [experiments]

Runs every experiment of the benchmarks as a first look, each in a folder of
its own: once in peace, and once killed (SIGKILL) again and again, then started
till it ends. Both times the same rows have to be there, none twice, and the
same files: in data, in results, in figures. Only times and memory may differ.

It takes about an hour; ``tests/benchmarks/test_runner.py`` is what it looks at
in a minute.
"""
import argparse
import os
import pkgutil
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).parents[1]
sys.path[0] = str(ROOT)  # and not the tests, which have benchmarks as well
from benchmarks.__main__ import PARTS  # noqa: E402

# Experiments without a first look of their own:
OPTIONS = {
    'tune': ['--methods', 'lp', 'sgc', '--datasets', 'Cora'],
}
MEASURED = re.compile('second|milli|_ms|ms_|mega|peak|gb_per|date')
# Shares of the time in peace at which it is killed, each time anew:
KILLS = [0.15, 0.5, 0.3, 0.4]
SECONDS = 1800  # till something is taken for stuck


def make_tree(folder: Path) -> None:
    r"""A tree of its own, which may be written to."""
    for part in ['torch_agcn', 'benchmarks']:
        shutil.copytree(ROOT / part, folder / 'tree' / part)
    shutil.copy(ROOT / 'README.md', folder / 'tree')
    (folder / 'tree' / 'benchmarks' / 'results' / 'tune.csv').unlink()


def start(name: str, folder: Path) -> subprocess.Popen:
    options = OPTIONS.get(name, ['--quick'])
    with (folder / 'log').open('a') as log:
        return subprocess.Popen(
            [sys.executable, '-m', 'benchmarks', name, *options], cwd=folder,
            stdout=log, stderr=log, start_new_session=True,
            env={**os.environ, 'PYTHONPATH': str(folder / 'tree'),
                 'PYTHONDONTWRITEBYTECODE': '1'})


def kill(process: subprocess.Popen, seconds: float, whole: bool) -> bool:
    r"""Kills a command, alone or with all its processes. Whether it ran."""
    try:
        process.wait(seconds)
        return False
    except subprocess.TimeoutExpired:
        send = os.killpg if whole else os.kill
        send(process.pid, signal.SIGKILL)
        process.wait()
        time.sleep(2)  # for the others to notice
        return True


def rows_of(folder: Path) -> dict[str, pd.DataFrame]:
    r"""All tables, in an order that does not depend on what was first."""
    found = {}
    for path in sorted(folder.rglob('*.csv')):
        rows = pd.read_csv(path, dtype=str)
        rows = rows[[name for name in rows if not MEASURED.search(name)]]
        found[path.name] = rows.sort_values(list(rows), ignore_index=True)
    return found


def files_of(folder: Path) -> dict[str, str]:
    r"""All files, and what is in those that people read. What a kill leaves
    beside them does not count.
    """
    return {str(path.relative_to(folder)): path.read_text()
            if path.suffix in ('.yaml', '.md') else ''
            for path in folder.rglob('*') if path.is_file()
            and path.suffix not in ('.torn', '.part')}


def difference(whole: Path, killed: Path) -> str:
    r"""What is not the same after all."""
    different = files_of(whole).items() ^ files_of(killed).items()
    if different:
        return f'files {sorted({name for name, _ in different})}'
    one, other = rows_of(whole), rows_of(killed)
    for name, rows in one.items():
        if other[name].duplicated().any():
            return f'{name} has rows that stand twice'
        if not rows.equals(other[name]):
            return f'{name} has other rows'
    return ''


def check(name: str, folder: Path) -> tuple[float, int, str]:
    r"""Seconds in peace, kills, and what went wrong."""
    for part in ['whole', 'killed']:
        make_tree(folder / part)
    begin = time.monotonic()
    if start(name, folder / 'whole').wait(SECONDS):
        return 0, 0, f'fails in peace, see {folder}/whole/log'
    seconds, kills = time.monotonic() - begin, 0
    for i, share in enumerate(KILLS):
        process = start(name, folder / 'killed')
        kills += kill(process, share * seconds, whole=i % 2 == 1)
    if start(name, folder / 'killed').wait(SECONDS):
        return seconds, kills, f'fails afterwards, see {folder}/killed/log'
    return seconds, kills, difference(folder / 'whole', folder / 'killed')


def main(argv: list[str]) -> int:
    names = sorted(m.name for m in pkgutil.iter_modules(
        [str(ROOT / 'benchmarks')]) if m.name not in PARTS)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('experiments', nargs='*', metavar='experiment',
                        default=names, help=f'of {", ".join(names)}')
    args = parser.parse_args(argv)
    base, failed = Path(tempfile.mkdtemp()), 0
    for name in args.experiments:
        seconds, kills, problem = check(name, base / name)
        failed += bool(problem)
        print(f'{name:12} {seconds:6.0f} s, killed {kills} times: '
              f'{problem or "the same"}', flush=True)
    if not failed:
        shutil.rmtree(base)
    return int(failed > 0)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
