import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import torch_agcn

ROOT = Path(torch_agcn.__file__).parents[1]

def test_core_needs_torch_and_pyg_alone():
    # What the extras bring, and nothing else may need at import:
    code = """
import sys
for name in ['scipy', 'sklearn', 'matplotlib', 'pandas', 'yaml', 'PIL',
             'torch_scatter', 'torch_sparse', 'captum', 'yacs']:
    sys.modules[name] = None
import torch_agcn, torch_agcn.datasets, torch_agcn.functional
import torch_agcn.diagnostics, torch_agcn.label_expansion
import torch_agcn.transforms, torch
conv = torch_agcn.AGCNConv(4, 2, cached=True)
print(conv(torch.rand(3, 4), torch.tensor([[0, 1], [1, 2]])).shape)
"""
    out = subprocess.run([sys.executable, '-W', 'ignore', '-c', code],
                         capture_output=True, text=True, cwd=ROOT,
                         check=False)
    assert 'torch.Size([3, 2])' in out.stdout, out.stderr


def test_the_use_in_the_readme(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / 'README.md').read_text(encoding='utf-8')
    code, = re.findall('```python\n(.*?)```', text, flags=re.DOTALL)
    assert code.count('\n') <= 20
    scope: dict = {}
    exec(code, scope)
    out = scope['Net']()(scope['data'].x, scope['data'].edge_index)
    assert out.size() == (2708, 7)
    # What the comment in its last line says:
    last = code.strip().splitlines()[-1]
    assert str(eval(last.split('#')[0], scope)) in last


def test_wheel_has_the_package_and_nothing_else(tmp_path):
    pytest.importorskip('setuptools')
    subprocess.run([
        sys.executable, '-m', 'pip', 'wheel', '--quiet', '--no-deps',
        '--no-build-isolation', '--wheel-dir', tmp_path, ROOT], check=True,
        capture_output=True)
    wheel, = tmp_path.glob('*.whl')
    assert wheel.name.startswith(f'torch_agcn-{torch_agcn.__version__}-')
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {n.split('/')[0] for n in names} == {
        'torch_agcn', f'torch_agcn-{torch_agcn.__version__}.dist-info'}
    package = {str(p.relative_to(ROOT))
               for p in (ROOT / 'torch_agcn').rglob('*')
               if p.suffix in {'.py', '.npz', '.typed'}}
    # What builds Cora is for maintainers:
    package -= {n for n in package if '/data/' in n and 'cora.npz' not in n}
    assert {n for n in names if n.startswith('torch_agcn/')} == package
