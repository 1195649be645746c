r"""Faults: a data set is whole, or is made anew, or its error says what to do.

What single files do is in ``test_fetch.py``; here it is whole data sets.
"""
import errno
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
import torch

from torch_agcn.datasets import ImageGraph, Planetoid, _fetch
from torch_agcn.datasets._fetch import FetchError, replacing

DATASETS = {'Cora': lambda root: Planetoid(root, 'Cora')[0],
            'Digits': lambda root: ImageGraph(root, 'Digits')[0]}


def die_at(step, load, root):
    r"""Loads a data set and dies by SIGKILL at a certain step towards it:
    when the so-manieth file is about to get its name, or has just got it.
    """
    steps, real = [], os.replace

    def replace(*args):
        for action in [lambda: None, lambda: real(*args)]:
            action()
            steps.append(args)
            if len(steps) == step:
                os.kill(os.getpid(), signal.SIGKILL)

    os.replace = replace
    load(root)
    os._exit(7)  # there was no such step


@pytest.mark.skipif('fork' not in multiprocessing.get_all_start_methods(),
                    reason='no fork on this platform')
@pytest.mark.parametrize('name, steps', [('Cora', [1, 6, 15, 16, 17, 18]),
                                         ('Digits', [1, 2])])
def test_killed_at_any_point(name, steps, tmp_path):
    load = DATASETS[name]
    expected = load(str(tmp_path / 'whole'))
    torn = str(tmp_path / 'torn')
    context = multiprocessing.get_context('fork')
    for step in steps:
        root = str(tmp_path / f'{step}')
        # One that is killed at this step, and one that goes on with what it
        # left and is killed as well:
        for place in [root, torn]:
            process = context.Process(target=die_at,
                                      args=(step, load, place))
            process.start()
            process.join()
            ended = [-signal.SIGKILL] if place == root else [-9, 7]
            assert process.exitcode in ended
        data = load(root)
        for key, value in expected:
            assert torch.equal(data[key], value)
    data = load(torn)
    for key, value in expected:
        assert torch.equal(data[key], value)


@pytest.mark.parametrize('name', list(DATASETS))
def test_a_root_that_is_none(name, tmp_path):
    (tmp_path / 'file').touch()
    with pytest.raises(FetchError, match=r'cannot be stored .*Not a dir'):
        DATASETS[name](str(tmp_path / 'file'))
    assert os.listdir(tmp_path) == ['file']


@pytest.mark.parametrize('name', list(DATASETS))
def test_no_room(name, tmp_path):
    resource = pytest.importorskip('resource')
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20000, old[1]))
    try:
        with pytest.raises(FetchError, match=r'stored .*File too large'):
            DATASETS[name](str(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    files = [path for path in tmp_path.rglob('*') if path.is_file()]
    assert all(path.parent.name == 'raw' for path in files)
    assert not list(tmp_path.rglob('.*'))
    assert DATASETS[name](str(tmp_path)).num_nodes > 1000


@pytest.mark.parametrize('name', list(DATASETS))
def test_a_root_that_may_not_be_written(name, tmp_path, monkeypatch):
    def mkdir(path, *args, **kwargs):
        raise OSError(errno.EROFS, 'Read-only file system', str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, 'mkdir', mkdir)
        patch.setattr(Path, 'mkdir', mkdir)  # keeps its own before 3.11
        with pytest.raises(FetchError, match='directory that you may write'):
            DATASETS[name](str(tmp_path / 'root'))
    assert os.listdir(tmp_path) == []
    # What was stored before is read all the same:
    expected = DATASETS[name](str(tmp_path / 'root'))
    monkeypatch.setattr(os, 'mkdir', mkdir)
    monkeypatch.setattr(Path, 'mkdir', mkdir)
    data = DATASETS[name](str(tmp_path / 'root'))
    assert torch.equal(data.edge_index, expected.edge_index)


@pytest.mark.parametrize('name', list(DATASETS))
def test_a_root_that_is_no_text(name, tmp_path):
    root = os.path.join(str(tmp_path), os.fsdecode(b'\xff\xfe'))
    try:
        os.mkdir(root)
    except (OSError, UnicodeError):
        pytest.skip('no such names on this platform')
    expected = DATASETS[name](root)
    times = {path: path.stat().st_mtime_ns
             for path in Path(root).rglob('*.pt')}
    assert times
    assert torch.equal(DATASETS[name](root).x, expected.x)
    # It is read, and not made anew:
    assert times == {path: path.stat().st_mtime_ns for path in times}


@pytest.mark.parametrize('name', list(DATASETS))
def test_no_home(name, tmp_path, monkeypatch):
    for key in ['HOME', 'USERPROFILE', 'XDG_CACHE_HOME', 'TMPDIR']:
        monkeypatch.delenv(key, raising=False)
    assert DATASETS[name](str(tmp_path)).num_nodes > 1000


def load_again_and_again(name, root, barrier):
    barrier.wait(60)
    for kwargs in [{}, {'force_reload': True}, {'pre_transform': Scale(2)},
                   {'pre_transform': Scale(3)}]:
        cls = Planetoid if name == 'Cora' else ImageGraph
        data = cls(root, name, **kwargs)[0]
        scale = getattr(kwargs.get('pre_transform'), 'factor', 1)
        assert data.x.max() == scale


class Scale:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, data):
        data.x = self.factor * data.x
        return data


@pytest.mark.skipif('fork' not in multiprocessing.get_all_start_methods(),
                    reason='no fork on this platform')
@pytest.mark.parametrize('name', list(DATASETS))
def test_processes_on_one_root(name, tmp_path):
    context = multiprocessing.get_context('fork')
    args = (name, str(tmp_path), context.Barrier(2))
    processes = [context.Process(target=load_again_and_again, args=args)
                 for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert not list(tmp_path.rglob('.*'))


def test_what_the_dead_left_is_swept(tmp_path):
    for name in ['.part-old', '.part-new']:
        (tmp_path / name).mkdir()
        (tmp_path / name / 'file').write_bytes(b'half')
    past = time.time() - _fetch.LEFT_BEHIND - 60
    os.utime(tmp_path / '.part-old', (past, past))
    with replacing(tmp_path / 'file') as part:
        part.write_bytes(b'whole')
    # The new one may be at work:
    assert sorted(os.listdir(tmp_path)) == ['.part-new', 'file']
    assert Path(tmp_path, 'file').read_bytes() == b'whole'
