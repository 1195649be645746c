r"""Faults: whatever ends a command, the next one goes on from whole rows."""
import csv
import errno
import json
import os
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pytest

from benchmarks import __main__, results, runner
from benchmarks.results import Table
from torch_agcn.datasets import FetchError

REPOSITORY = Path(__file__).parents[2]
COLUMNS = ['method', 'dataset', 'seed', 'square', 'seconds']
# An experiment of six runs that take no time, and commands that run it, or a
# real one, in processes that are killed at a certain write, with the last so
# many bytes not on the disk yet. All in one program and by forks, for it takes
# a while to import torch.
PROGRAM = """
import json, multiprocessing, os, resource, signal, sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks import runner, table
from benchmarks.results import Table

class Task(NamedTuple):
    method: str
    dataset: str
    seed: int

def measure(task, root, fatal=None):
    if task.seed == fatal:
        os._exit(9)
    return dict(task._asdict(), square=task.seed**2, seconds=0.1)

def fake(path, fatal=None):
    tasks = [Task(method, 'Cora', seed) for seed in range(3)
             for method in 'ab']
    runner.report(runner.run_missing(
        tasks, Table(Path(path), {columns}), partial(measure, fatal=fatal),
        1, ''))

def real(path):
    table.TABLE.path = Path(path)
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
    os._exit(status)

if __name__ == '__main__':
    by_fork = multiprocessing.get_context('fork')
    multiprocessing.get_context = lambda method=None: by_fork
    for command, path, options in json.loads(sys.argv[1]):
        log, status = run(globals()[command], path, **options)
        text = Path(path).read_bytes()
        print(json.dumps([os.waitstatus_to_exitcode(status),
                          text.count(b'\\n'), text[-1:] == b'\\n', log]))
"""
COMMANDS = [
    # In the header; in the middle of a row; when a row was just written.
    ('fake', 'killed', dict(write=1, lost=120)),
    ('fake', 'killed', dict(write=3, lost=4)),
    ('fake', 'killed', dict(write=2, lost=0)),
    ('fake', 'killed', {}),
    ('real', 'whole', {}),
    ('real', 'torn', dict(write=2, lost=9)),
    ('real', 'torn', {}),
    # Bytes for a header and some rows:
    ('fake', 'full', dict(limit=450)),
    # A worker that the system ends:
    ('fake', 'full', dict(fatal=2)),
]


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
    status, count, whole, log = lines[7]
    assert status == 1 and 1 < count < 5 and whole
    assert "'full' cannot be written (File too large): make room" in log
    assert 'goes on from here' in log and 'Traceback' not in log
    status, count, whole, log = lines[8]
    assert status == 1 and '2 runs failed' in log
    assert 'its process ended with 9' in log
    assert Table(folder / 'full', COLUMNS).read().seed.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize('order', ['\r\n', '\n'])
def test_every_cut_of_a_file(order, tmp_path, monkeypatch):
    monkeypatch.setattr(os, 'fsync', lambda file: None)  # it takes its time
    table = Table(tmp_path / 'a.csv', ['text', 'number'])
    rows = [('a,"b"', 1), ('c', 2), ('{"p": 0.5}', 3)]
    for text, number in rows:
        table.append(text=text, number=number)
    content = table.path.read_bytes().replace(b'\r\n', order.encode())
    lines = content.splitlines(keepends=True)
    for cut in range(0, len(content), 3):
        table.path.write_bytes(content[:cut])
        found = table.read()
        whole = max(content[:cut].count(b'\n') - 1, 0)
        assert list(zip(found.text, found.number)) == rows[:whole]
        table.path.write_bytes(content[:cut])
        table.append(text='new', number=9)
        with table.path.open(newline='') as file:
            first, *others, last = csv.reader(file)
        assert first == table.columns and len(others) == whole
        assert last[:2] == ['new', '9']
    assert len(lines) == 4


@pytest.mark.parametrize('code', [errno.ENOSPC, errno.EROFS])
def test_nothing_half_written_stays(code, tmp_path, monkeypatch):
    table = Table(tmp_path / 'a.csv', ['text'])
    table.append(text='first')
    before = table.path.read_bytes()

    def fsync(file):
        os.truncate(table.path, len(before) + 3)
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, 'fsync', fsync)
        with pytest.raises(SystemExit, match=os.strerror(code)):
            table.append(text='second')
    assert table.path.read_bytes() == before
    table.append(text='second')
    assert table.read().text.tolist() == ['first', 'second']


def test_a_place_that_is_none(tmp_path):
    (tmp_path / 'file').touch()
    with pytest.raises(SystemExit, match='cannot be written'):
        Table(tmp_path / 'file' / 'a.csv', ['text']).append(text='')


def test_a_table_of_another_version(tmp_path):
    path = tmp_path / 'a.csv'
    Table(path, ['old', 'kept']).append(old=1, kept=2)
    before = path.read_bytes()
    with pytest.raises(ValueError, match='is of another version'):
        Table(path, ['kept', 'new']).append(kept=1, new=2)
    assert path.read_bytes() == before
    # Columns that only changed places are found by their names:
    Table(path, ['kept', 'old']).append(kept=4, old=3)
    assert pd.read_csv(path)[['old', 'kept']].values.tolist() == [
        [1, 2], [3, 4]]


def test_the_readme_is_whole_at_any_time(tmp_path, monkeypatch):
    readme = tmp_path / 'README.md'
    readme.write_text('<!-- a -->\nold\n<!-- /a -->\n')
    monkeypatch.setattr(results, 'README', readme)

    def replace(*args):
        raise OSError(errno.ENOSPC, 'No space left on device')

    with monkeypatch.context() as patch:
        patch.setattr(os, 'replace', replace)
        with pytest.raises(SystemExit, match='No space left'):
            results.write_readme('a', 'new')
    assert 'old' in readme.read_text()
    results.write_readme('a', 'new')
    assert readme.read_text() == '<!-- a -->\nnew\n<!-- /a -->\n'
    assert os.listdir(tmp_path) == ['README.md']
    with pytest.raises(ValueError, match="no section 'b'"):
        results.write_readme('b', '')


def test_without_git(tmp_path, monkeypatch):
    provenance = results.provenance.__wrapped__
    with monkeypatch.context() as patch:  # an unpacked archive
        patch.setattr(results, 'ROOT', tmp_path)
        assert provenance()['commit'] == 'unknown'
    monkeypatch.setenv('PATH', str(tmp_path))
    assert provenance()['commit'] == 'unknown'
    assert 'torch_agcn=' in provenance()['versions']


def test_time_left():
    rows = pd.DataFrame({'method': ['a', 'a', 'b'], 'dataset': ['d'] * 3,
                         'seconds': [100.0, 140.0, 3600.0]})

    class Run:
        dataset = 'd'

        def __init__(self, method):
            self.method = method

    todo = [Run('a'), Run('b'), Run('c')]
    left = runner.TimeLeft(rows, todo, jobs=2)
    # 120 and 3600 seconds, and for what is not known their mean:
    assert left.text() == 'about 0:46 h left'
    left.finished(todo[1], {'seconds': 3600.0})
    assert left.text() == 'about 0:16 h left'
    assert runner.TimeLeft(rows[:0], todo, 1).text() == 'time left unknown'


def test_times_of_one_commit(tmp_path, monkeypatch):
    table = Table(tmp_path / 'times.csv', ['case', 'side', 'repeat',
                                           'milliseconds', 'megabytes'])
    calls = []

    def turns(repeats, part=1):
        calls.clear()
        runner.take_turns(table, [
            (dict(side=side), lambda side=side: calls.append(side))
            for side in 'ab'], repeats, part, case='c')
        rows = table.read()
        return list(zip(rows.side, rows.repeat))

    expected = [('a', 0), ('b', 0), ('a', 1), ('b', 1)]
    assert turns(2) == expected
    assert calls == list('ababab')  # a first round does not count
    assert turns(2) == expected and calls == []
    # Killed after a row, and in the middle of another:
    lines = table.path.read_text().splitlines(keepends=True)
    table.path.write_text(''.join(lines[:-1])[:-3])
    assert turns(2) == expected
    assert calls == list('abab')
    assert table.read().megabytes.isna().all()
    monkeypatch.setattr(runner.time, 'process_time', count().__next__)
    turns(3, part=4)
    assert table.read().milliseconds.tolist()[-2:] == [250, 250]
    monkeypatch.setattr(results, 'provenance', lambda: dict(
        date='', commit='0123456', versions=''))  # not a number
    assert len(turns(1)) == len(expected) + 2 + 2
    assert turns(1) and calls == []


@pytest.mark.parametrize('fault, message', [
    ("sys.modules['pyarrow'] = None", "'pip install torch_agcn[hetero]'"),
    ("sys.modules['pandas'] = None", "'pip install torch_agcn[benchmarks]'"),
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


@pytest.mark.parametrize('argv, message', [
    (['table', '--runs', '0'], "'0' is no whole number >= 1"),
    (['tune', '--runs', '-1'], "'-1' is no whole number >= 1"),
    (['table', '--jobs', 'two'], "'two' is no whole number >= 1"),
    (['table', '--datasets', 'Coral'], "invalid choice: 'Coral'"),
    (['table', '--checks', '--quick'], 'leave the other out'),
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
