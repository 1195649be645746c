r"""Faults: whatever ends a command, the next one goes on from whole rows."""
import json
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pytest

import torch_agcn
from benchmarks import __main__, results, runner
from benchmarks.results import Table
from torch_agcn.datasets import FetchError

IS_GLIBC = platform.libc_ver()[0] == 'glibc'
REPOSITORY = Path(__file__).parents[2]
COLUMNS = ['method', 'dataset', 'seed', 'square', 'seconds']
# An experiment of six runs that take no time, and commands that run it, or a
# real one, in processes that are killed at a certain write, with the last so
# many bytes not on the disk yet. All in one program and by forks, for it takes
# a while to import torch.
PROGRAM = """
import json, multiprocessing, os, resource, signal, sys, time
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks import runner, table
from benchmarks.results import Table

class Task(NamedTuple):
    method: str
    dataset: str
    seed: int

def measure(task, root, fatal=None, slow=None):
    if task.seed == fatal:
        os.kill(os.getpid(), signal.SIGKILL)
    if task.seed == slow:
        try:
            time.sleep(600)
        finally:
            sys.stderr.write('cleaned up, ')
            sys.stderr.flush()
    return dict(task._asdict(), square=task.seed**2, seconds=0.1)

def fake(path, jobs=1, table=Table, **options):
    tasks = [Task(method, 'Cora', seed) for seed in range(3)
             for method in 'ab']
    runner.report(runner.run_missing(
        tasks, table(Path(path), {columns}), partial(measure, **options),
        jobs, ''))

def stopped(path, by, ignored=False, **options):
    class Stopping(Table):  # when a row is there, but not yet in the table
        def append(self, *args, **row):
            if not by_now:
                by_now.append(os.kill(os.getpid(), by))
                time.sleep(0.5)  # another one comes
            return super().append(*args, **row)

    by_now = []
    signal.signal(by, signal.SIG_IGN if ignored else signal.SIG_DFL)
    fake(path, 2, Stopping, **options)

def early(path):
    class Dying(by_fork.Process):  # before it takes its task
        def run(self):
            time.sleep(0.2)
            os._exit(9)

    by_fork.Process = Dying
    fake(path)

def twice(path):
    class Slow(Table):
        def append(self, *args, **row):
            time.sleep(0.1)
            return super().append(*args, **row)

    other = os.fork()
    fake(path, 1, Slow)
    if not other:
        os._exit(0)
    os.waitpid(other, 0)

def real(path):
    table.TABLE.path = Path(path)
    runner.show = lambda *_: None  # what is there is not looked at here
    table.main(['--jobs', '1', '--datasets', 'Cora', '--runs', '1',
                '--methods', 'lp', 'ica', '--root', 'data'])

def run(command, path, write=None, lost=0, limit=-1, **options):
    ours, theirs = os.pipe()
    if pid := os.fork():
        os.close(theirs)
        with open(ours) as log:  # till all of its processes have ended
            return log.read(), os.waitpid(pid, 0)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, -1))
    calls = []

    def fsync(file):
        calls.append(file)
        if len(calls) == write:
            os.truncate(path, os.path.getsize(path) - lost)
            os.kill(os.getpid(), signal.SIGKILL)

    os.fsync, status = fsync, 0
    with open(theirs, 'w', closefd=False) as sys.stderr:
        try:
            command(path, **options)
        except SystemExit as error:
            sys.stderr.write(str(error))
            status = 1
        except KeyboardInterrupt as error:
            status = 128 + error.args[0]
    os._exit(status)

if __name__ == '__main__':
    by_fork = multiprocessing.get_context('fork')
    multiprocessing.get_context = lambda method=None: by_fork
    for command, path, options in json.loads(sys.argv[1]):
        log, status = run(globals()[command], path, **options)
        text = Path(path).read_bytes()
        print(json.dumps([os.waitstatus_to_exitcode(status),
                          text.count(b'\\n'), log]))
"""
COMMANDS = [
    # In the header; in the middle of a row; when a row was just written.
    ('fake', 'killed', dict(write=1, lost=20)),
    ('fake', 'killed', dict(write=5, lost=4)),
    ('fake', 'killed', dict(write=3, lost=0)),
    ('fake', 'killed', {}),
    ('real', 'whole', {}),
    ('real', 'torn', dict(write=3, lost=9)),
    ('real', 'torn', {}),
    # Bytes for a header and some rows:
    ('fake', 'full', dict(limit=450)),
    # A worker that the system ends:
    ('fake', 'full', dict(fatal=2)),
    ('early', 'early', {}),
    # Asked to end when two of two workers have finished a run:
    ('stopped', 'int', dict(by=signal.SIGINT, slow=1)),
    ('stopped', 'term', dict(by=signal.SIGTERM, slow=1)),
    ('stopped', 'hup', dict(by=signal.SIGHUP, slow=1)),
    ('stopped', 'nohup', dict(by=signal.SIGINT, ignored=True)),
    ('twice', 'twice', {}),
] if hasattr(os, 'fork') else []


@pytest.fixture(scope='module')
def outcomes(tmp_path_factory):
    if not hasattr(os, 'fork'):
        pytest.skip('no fork')
    folder = tmp_path_factory.mktemp('faults')
    (folder / 'program.py').write_text(
        PROGRAM.replace('{columns}', str(COLUMNS)))
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', 'program.py', json.dumps(COMMANDS)],
        cwd=folder, env={**os.environ, 'PYTHONPATH': str(REPOSITORY),
                         'OMP_NUM_THREADS': '1'},
        capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == len(COMMANDS)
    return folder, lines


def test_killed_at_any_point(outcomes):
    folder, lines = outcomes
    assert [line[:2] for line in lines[:4]] == [
        [-9, 0], [-9, 3], [-9, 5], [0, 7]]  # how it ended, lines in the file
    rows = Table(folder / 'killed', COLUMNS).read()
    assert list(zip(rows.method, rows.seed, rows.square)) == [
        ('a', 0, 0), ('b', 0, 0), ('a', 1, 1), ('b', 1, 1), ('a', 2, 4),
        ('b', 2, 4)]
    header, row = (folder / 'killed.torn').read_text().splitlines()
    assert header.startswith('method,dataset') and row.startswith('a,Cora,1')
    # Workers kept their memory, where they can:
    assert rows.versions.str.endswith(results.KEPT).all() == IS_GLIBC


def test_kept_memory_is_recorded_once(monkeypatch):
    found = {'versions': 'torch=2'}
    monkeypatch.setattr(results, 'provenance', lambda: found)
    for done, expected in [(False, 'torch=2'), (True, 'torch=2 malloc=kept'),
                           (True, 'torch=2 malloc=kept')]:
        monkeypatch.setattr(torch_agcn, 'keep_memory', lambda done=done: done)
        results.keep_memory()
        assert found['versions'] == expected


def test_a_real_command_killed(outcomes):
    folder, lines = outcomes
    assert [line[0] for line in lines[4:7]] == [0, -9, 0]
    frames = [pd.read_csv(folder / name).drop(
        columns=['seconds', 'peak_mb', 'date']) for name in ['whole', 'torn']]
    assert list(frames[0].method) == ['lp', 'ica']
    pd.testing.assert_frame_equal(*frames)
    assert not list((folder / 'data').rglob('.*'))


def test_no_room_and_a_dead_worker(outcomes):
    folder, lines = outcomes
    status, count, log = lines[7]
    assert status == 1 and 1 < count < 5
    assert "'full' cannot be written (File too large): make room" in log
    assert 'goes on from here' in log and 'Traceback' not in log
    status, count, log = lines[8]
    assert status == 1 and '2 runs failed' in log
    assert 'its process ended before' in log and 'fewer --jobs' in log
    assert Table(folder / 'full', COLUMNS).read().seed.tolist() == [0, 0, 1, 1]
    status, count, log = lines[9]
    assert status == 1 and count == 1 and '6 runs failed' in log
    assert 'its process ended before' in log and 'Traceback' not in log


def test_a_signal_loses_no_finished_run(outcomes):
    folder, lines = outcomes
    for name, line in zip(['int', 'term', 'hup'], lines[10:13]):
        assert line[0] == 128 + getattr(signal, f'SIG{name.upper()}')
        rows = Table(folder / name, COLUMNS).read()
        assert sorted(zip(rows.method, rows.seed)) == [('a', 0), ('b', 0)]
        assert line[2].count('cleaned up') == 1
    assert lines[13][:2] == [0, 7]  # what is ignored ends nothing


def test_two_commands_at_once(outcomes):
    folder, lines = outcomes
    assert lines[14][:2] == [0, 7]
    rows = Table(folder / 'twice', COLUMNS).read()
    assert not rows.duplicated(['method', 'seed']).any()


@pytest.mark.parametrize('fault, message', [
    ("sys.modules['pyarrow'] = None", "'pip install pyarrow'"),
    ("sys.modules['pandas'] = None", "'pip install .[benchmarks]' in a clone"),
])
def test_what_is_missing_is_said_in_a_sentence(tmp_path, fault, message):
    program = (f'import runpy, sys; {fault}; '
               f'runpy.run_module("benchmarks", run_name="__main__")')
    done = subprocess.run(
        [sys.executable, '-c', program, 'hetero', '--quick'], cwd=tmp_path,
        env={**os.environ, 'PYTHONPATH': str(REPOSITORY)},
        capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert message in done.stderr and 'Traceback' not in done.stderr


class Task(NamedTuple):
    method: str
    dataset: str


def unreachable(task, root):
    raise FetchError('no network: put it there by hand')


def test_data_that_cannot_be_had_is_said_once(tmp_path, capsys):
    failed = runner.run_missing(
        [Task(method, 'Nowhere') for method in 'abc'],
        Table(tmp_path / 'a.csv', ['method', 'dataset', 'seconds']),
        unreachable, 1, '')
    with pytest.raises(SystemExit, match='3 runs failed'):
        runner.report(failed)
    err = capsys.readouterr().err
    assert err.count('put it there by hand') == 1 and 'and 2 more' in err
    assert 'Traceback' not in err


def test_no_run_is_made_in_vain(tmp_path):
    (tmp_path / 'results').touch()  # no folder
    with pytest.raises(SystemExit, match='cannot be written'):
        runner.run_missing([Task('a', 'Nowhere')], Table(
            tmp_path / 'results' / 'a.csv', ['method', 'dataset', 'seconds']),
            None, 1, '')


def test_an_output_without_all_letters(tmp_path):
    # Nor with a home, a folder of its own or a locale:
    program = ('import runpy, sys; sys.modules["benchmarks.report"] = m = '
               'type(sys)("report"); m.main = lambda argv: print("\\xb1"); '
               'runpy.run_module("benchmarks", run_name="__main__")')
    env = {**os.environ, 'PYTHONPATH': str(REPOSITORY), 'LC_ALL': 'C',
           'PYTHONUTF8': '0', 'PYTHONCOERCECLOCALE': '0'}
    env.pop('HOME', None)
    env.pop('PYTHONIOENCODING', None)
    done = subprocess.run(
        [sys.executable, '-c', program, 'report'], cwd=tmp_path, env=env,
        capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in ('\\xb1', '±')


@pytest.mark.parametrize('argv, message', [
    (['table', '--runs', '0'], "'0' is no whole number >= 1"),
    (['depth', '--runs', '-1'], "'-1' is no whole number >= 1"),
    (['table', '--jobs', 'two'], "'two' is no whole number >= 1"),
    (['table', '--datasets', 'Coral'], "invalid choice: 'Coral'"),
    (['table', '--checks', '--quick'], 'leave --checks out'),
    (['tabel'], "no experiment 'tabel'; there are ablation, "),
])
def test_bad_options(monkeypatch, capsys, argv, message):
    monkeypatch.setattr(sys, 'argv', ['', *argv])
    try:
        status = __main__.main()
    except SystemExit as error:
        status = error.code
    assert status == 2
    assert message in capsys.readouterr().err
