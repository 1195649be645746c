import functools
import importlib
import os
import subprocess
import sys
import threading
import types
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torch_geometric.transforms as T
from torch import nn

import torch_agcn
from torch_agcn import transforms
from torch_agcn.datasets import _digest

SCALE = 1


def digest(value):
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter('always')
        out = _digest.digest('Owner', 'argument', value)
    assert len(record) == (out is None)
    return out


def double(x):
    return 2 * x


def scaled(factor):
    return lambda x: factor * x


def uses_a_global(x):
    return SCALE * x


def uses_a_function(x):
    return F.relu(double(x))


class Scale(nn.Module):
    factor = 2

    def forward(self, x):
        return self.factor * x


class Settings:
    def __init__(self, *sizes):
        self.sizes = sizes


class WithoutState(Scale):
    # What it hands to `pickle` is not what it does.
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def __getstate__(self):
        return {}

    def __reduce__(self):
        return nn.Identity, ()


def make(expression):
    r"""A function of one name, wherever it is made."""
    scope = {'torch': torch, 'np': np}
    exec(f'def function(x, y=0):\n    return {expression}', scope)
    return scope['function']


def make_class(body):
    scope = {}
    exec(f'class Made:\n    {body}', scope)
    return scope['Made']()


def with_note(note):
    x = torch.ones(2)
    x.note = note
    return x


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
                        torch.ones(()), torch.ones(2, 3) * 1j,
                        torch.ones(2, 3, requires_grad=True), torch.empty(0),
                        with_note(1), with_note(2), np.ones((2, 3)),
                        np.ones((2, 3), dtype='>f8'), np.ones((3, 2)),
                        torch.float, torch.device('cpu')],
    'modules': lambda: [nn.Flatten(), nn.Flatten(2), nn.Identity(),
                        nn.Sequential(nn.Flatten()), nn.BatchNorm2d(1),
                        nn.BatchNorm2d(1, eps=1e-3), Scale(),
                        WithoutState(2), WithoutState(3)],
    'attributes': lambda: [with_attributes(a=value) for value in [
        1, [1], [2], {'k': 1}, {'k': 2}, {1}, {2}, double, torch.relu,
        torch.tanh, lambda x: x, lambda x: 2 * x, np.exp, np.sin, np.mean,
        np.median, np.linalg.norm, F.relu, F.max_pool2d, nn.Flatten().forward,
        nn.Flatten(2).forward, Settings(), Settings([1]), nn.ReLU,
        functools.partial(torch.mul, 2), functools.partial(torch.mul, 3)]],
    'functions': lambda: [make(code) for code in [
        'x', '2 * x', '3 * x', 'y', 'torch.relu(x)', 'torch.tanh(x)',
        'np.exp(x)', '(lambda z: z)(x)', '(lambda z: z + z)(x)',
        'x in {"a", "b"}', 'x in {"a", "c"}', 'missing(x)']],
    'classes': lambda: [make_class(body) for body in [
        'pass', 'a = 1', 'a = 2', '__a__ = 1', '__a__ = 2',
        'def a(self): return 1', 'def a(self): return 2',
        'a = property(lambda self: 1)', 'a = property(lambda self: 2)',
        'a = staticmethod(lambda: 1)', 'a = classmethod(lambda cls: 1)']],
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
    for factor in [2, 3]:
        module = nn.Identity()
        module.register_forward_hook(scaled(factor))
        seen.add(digest(module))
    assert None not in seen and len(seen) == 11


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


class Slots(nn.Module):
    __slots__ = ('factor', )


class Counted(dict):
    pass


def imports(x):
    import json
    return json.dumps(x)


def reads(x):
    with open(x) as file:
        return file.read()


def uses_a_module(x):
    return HELPER.double(x)


HELPER = types.ModuleType('helper')


@pytest.mark.parametrize('value', [
    threading.Lock(), (i for i in range(3)), sys.stderr, sys._getframe(),
    np.frompyfunc(double, 1, 1), np.array([double]), Slots(), Counted(),
    torch.ones(2).to_sparse(), torch.ones(2, device='meta'),
    torch.jit.script(nn.ReLU()), functools.lru_cache(double), HELPER,
    uses_a_module, imports, reads, make('eval("x")'), make('globals()')])
def test_what_nothing_tells(value):
    assert digest(value) is None
    assert digest([value]) is None
    assert digest(with_attributes(a={'k': value})) is None
    assert digest(lambda x: value) is None
    assert digest(functools.partial(double, value)) is None


def test_warning():
    with pytest.warns(UserWarning, match="'Owner' is not stored and is made "
                      "anew each time, as the content of its 'argument' "
                      "cannot be told: it refers to 'helper'"):
        _digest.digest('Owner', 'argument', uses_a_module)


CODE = """
import math, torch
from torch_agcn.datasets._digest import digest
from torch_agcn.transforms import AnisotropicWeights
class Net(torch.nn.Module):
    skip = {'a', 'b', 'c', 'd'}
    def __init__(self):
        super().__init__()
        self.names = frozenset(['x', 'y', 'z'])
    def forward(self, x):
        return x if x in {'k', 'l', 'm'} else math.pi
found = [digest('', '', value) for value in [Net(), AnisotropicWeights()]]
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
    assert found == scope['found'] and 'None' not in found
