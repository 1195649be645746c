import enum
import functools
import importlib
import os
import subprocess
import sys
import threading
import types
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torch_geometric.transforms as T
from torch import nn

import torch_agcn
from torch_agcn import transforms
from torch_agcn.datasets._digest import digest

SCALE = 1


def double(x):
    return 2 * x


def scaled(factor):
    return lambda x: factor * x


def uses_a_global(x):
    return SCALE * x


def uses_a_function(x):
    return F.relu(double(x))


def imports(x):
    import helper
    return helper.scale(x)


class Scale(nn.Module):
    factor = 2

    def forward(self, x):
        return self.factor * x


@dataclass
class Settings:
    sizes: list = field(default_factory=list)
    name: str = 'a'


class Color(enum.Enum):
    RED = 1
    BLUE = 2


def make(expression):
    r"""A function of one name, wherever it is made."""
    scope = {'torch': torch, 'np': np}
    exec(f'def function(x, y=0):\n    return {expression}', scope)
    return scope['function']


def with_attributes(**kwargs):
    module = nn.Identity()
    for key, value in kwargs.items():
        setattr(module, key, value)
    return module


OBJECTS = {
    'constants': lambda: [0, 1, True, 0., -0., float('nan'), 1j, None, 'a',
                          b'a', ..., (), [], {}, (0, ), [0], {0: 1}, {1: 0},
                          {0: 1, 1: 0}, {0}, frozenset([0]), range(3)],
    'tensors': lambda: [torch.ones(2, 3), torch.ones(3, 2), torch.zeros(2, 3),
                        torch.ones(2, 3).double(), torch.ones(2, 3).bfloat16(),
                        torch.ones(2, 3).to_sparse(), torch.ones(()),
                        torch.ones(2, 3) * 1j, torch.empty(0),
                        np.ones((2, 3)), torch.float, torch.device('cpu')],
    'modules': lambda: [nn.Flatten(), nn.Flatten(2), nn.Identity(),
                        nn.Sequential(nn.Flatten()), nn.BatchNorm2d(1),
                        nn.BatchNorm2d(1, eps=1e-3), Scale()],
    'attributes': lambda: [with_attributes(a=value) for value in [
        1, [1], [2], {'k': 1}, {'k': 2}, {1}, {2}, double, torch.relu,
        torch.tanh, lambda x: x, lambda x: 2 * x, np.exp, np.sin, np.mean,
        np.median, np.linalg.norm, F.relu, F.max_pool2d, double.__call__,
        Settings(), Settings([1]), Color.RED, Color.BLUE, nn.ReLU,
        functools.partial(torch.mul, 2), functools.partial(torch.mul, 3)]],
    'functions': lambda: [make(code) for code in [
        'x', '2 * x', '3 * x', 'y', 'torch.relu(x)', 'torch.tanh(x)',
        'np.exp(x)', '(lambda z: z)(x)', '(lambda z: z + z)(x)',
        'x in {"a", "b"}', 'x in {"a", "c"}', 'missing(x)']],
    'closures': lambda: [functools.partial(uses_a_global, y=i)
                         for i in range(3)] + [scaled(i) for i in range(3)],
    'transforms': lambda: [T.NormalizeFeatures(), T.AddSelfLoops(),
                           T.NormalizeFeatures(attrs=['y']),
                           transforms.KNNGraph(8), transforms.KNNGraph(9),
                           transforms.AnisotropicWeights(),
                           transforms.ReorderNodes(),
                           T.Compose([T.AddSelfLoops()])],
}


@pytest.mark.parametrize('name', list(OBJECTS))
def test_content(name):
    # Made twice, an object is the same, and none is another.
    first, second = ([digest(value) for value in OBJECTS[name]()]
                     for _ in range(2))
    assert first == second
    assert None not in first and len(set(first)) == len(first)


def test_layout_is_no_content():
    x = torch.arange(6.).view(2, 3)
    assert digest(x.t().contiguous().t()) == digest(x)
    assert digest(nn.Parameter(x)) != digest(x)  # another class
    assert digest({'a', 'b', 'c'}) == digest({'c', 'b', 'a'})


def test_what_code_refers_to(monkeypatch):
    seen = set()
    for value in [1, 2, [1], torch.ones(1)]:
        monkeypatch.setitem(globals(), 'SCALE', value)
        seen.add(digest(uses_a_global))
    for function in [double, lambda x: 3 * x]:
        monkeypatch.setitem(globals(), 'double', function)
        seen.add(digest(uses_a_function))
    for factor in [2, 3]:
        monkeypatch.setattr(Scale, 'factor', factor)
        seen.add(digest(Scale()))
    monkeypatch.setattr(Scale, 'forward', lambda self, x: x)
    seen.add(digest(Scale()))
    assert None not in seen and len(seen) == 9


def test_code_of_other_modules(monkeypatch):
    assert digest(imports) is not None  # There is no such module.
    seen = set()
    for code in ['x', '2 * x', 'other.FACTOR * x']:
        for factor in [1, 2]:
            helper = types.ModuleType('helper')
            helper.other = types.ModuleType('helper.other')
            helper.other.FACTOR = factor
            exec(f'def scale(x):\n    return {code}', vars(helper))
            monkeypatch.setitem(sys.modules, 'helper', helper)
            seen.add(digest(imports))
    assert None not in seen and len(seen) == 4


def test_installed_packages(tmp_path, monkeypatch):
    # They count by their files; what these import counts by its version.
    folder = tmp_path / 'site-packages'
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, 'dont_write_bytecode', True)
    seen = set()
    for code in ['x', '2 * x']:
        (folder / 'installed.py').write_text(
            f'import threading\nlock = threading.Lock()\n'
            f'def function(x):\n    with lock:\n        return {code}\n')
        importlib.invalidate_caches()
        seen.add(digest(importlib.import_module('installed').function))
        monkeypatch.delitem(sys.modules, 'installed')
    assert None not in seen and len(seen) == 2


def test_cycles():
    value: list = [1]
    value.append(value)
    other: list = [2]
    other.append(other)
    assert len({digest(value), digest(other), digest([1, [1]]), None}) == 4


@pytest.mark.parametrize('value', [
    threading.Lock(), (i for i in range(3)), sys.stderr,
    np.frompyfunc(double, 1, 1), lambda: sys.stderr, sys._getframe()])
def test_what_nothing_tells(value):
    if callable(value) and not isinstance(value, np.ufunc):
        lock = threading.Lock()
        value = functools.partial(value, lock)
    assert digest(value) is None
    assert digest([value]) is None
    assert digest(with_attributes(a={'k': value})) is None
    assert digest(lambda x: value) is None


CODE = """
import sys, torch
from torch_agcn.datasets._digest import digest
from torch_agcn.transforms import AnisotropicWeights
class Net(torch.nn.Module):
    skip = {'a', 'b', 'c', 'd'}
    def __init__(self):
        super().__init__()
        self.names = frozenset(['x', 'y', 'z'])
    def forward(self, x):
        return x if x in {'k', 'l', 'm'} else sys.maxsize
found = digest(Net()), digest(AnisotropicWeights())
print(*found)
"""


def test_every_process_tells_the_same(tmp_path):
    scope = {'__name__': '__main__'}
    exec(CODE, scope)
    env = {**os.environ, 'PYTHONHASHSEED': '1', 'TZ': 'Asia/Tokyo',
           'PYTHONPATH': str(Path(torch_agcn.__file__).parents[1])}
    env.pop('HOME', None)
    found = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', CODE], env=env, check=True,
        capture_output=True, text=True, cwd=tmp_path).stdout.split()
    assert found == list(scope['found']) and 'None' not in found
