r"""What the README shows is there, and does what it says."""
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import torch_agcn

ROOT = Path(torch_agcn.__file__).parents[1]
TEXT = (ROOT / 'README.md').read_text(encoding='utf-8')
EXAMPLES = re.findall('```python\n(.*?)```', TEXT, flags=re.DOTALL)


def run(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope: dict = {}
    exec(EXAMPLES[number], scope)
    return scope


def test_wrong_edges(tmp_path, monkeypatch, capsys):
    scope = run(0, tmp_path, monkeypatch)
    assert float(capsys.readouterr().out) == pytest.approx(0.5, abs=0.08)
    data, out = scope['data'], scope['model'].eval()(
        scope['data'].x, scope['data'].edge_index,
        edge_weight=scope['data'].edge_weight)
    hit = out.argmax(dim=-1) == data.y
    assert hit[data.test_mask].double().mean() > 0.7


def test_drop_in(tmp_path, monkeypatch):
    assert run(1, tmp_path, monkeypatch)['out'].size() == (2708, 7)


def test_over_smoothing(tmp_path, monkeypatch, capsys):
    matplotlib = pytest.importorskip('matplotlib')
    matplotlib.use('Agg')
    threads = torch.get_num_threads()
    recorder = run(2, tmp_path, monkeypatch)['recorder']
    assert torch.get_num_threads() == threads
    assert recorder.records[-1].epoch == 40
    energy = float(capsys.readouterr().out.split()[0])
    assert 0 < energy < 1


def test_it_is_short():
    assert len(EXAMPLES) == 3
    assert max(code.count('\n') for code in EXAMPLES) <= 25
    assert TEXT.count('\n') <= 250


def test_files_and_commands_are_there():
    for path in re.findall(r'\]\((?!http)([^)#]+)\)', TEXT):
        assert (ROOT / path).exists(), path
    makefile = (ROOT / 'Makefile').read_text()
    for target in re.findall(r'make\s+([a-z][a-z-]+)', TEXT):
        if target not in ('their', 'any'):  # which are prose
            assert re.search(rf'^{target}:', makefile, re.MULTILINE), target
    for name in re.findall(r'python -m benchmarks ([a-z]\w+)', TEXT):
        assert find_spec(f'benchmarks.{name}'), name
    setup = (ROOT / 'setup.py').read_text()
    for extra in re.findall(r"'\.\[(\w+)\]'", TEXT):
        assert f"'{extra}': " in setup, extra
