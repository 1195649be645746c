import ast
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import torch_agcn

ROOT = Path(torch_agcn.__file__).parents[1]
# How files are fetched is tested part by part, and used by benchmarks; so is
# how neighbors are searched.
EXEMPT = ('torch_agcn.datasets.', 'torch_agcn.transforms.knn_graph.')


def test_core_needs_torch_and_pyg_alone():
    # What the extras bring, and nothing else may need at import:
    code = """
import sys
import tarfile
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


PYTHON = """#!/bin/sh
echo "$*" >> "$HOME/calls"
folder="$HOME/.cache/torch_agcn/wheels/torch-1-cp311"
case "$*" in
-c*) echo torch-1-cp311 ;;
*"pip wheel"*) touch "$folder/torch_scatter-2.1.2-x.whl" ;;
*--no-index*) test -e "$folder/torch_scatter-2.1.2-x.whl" ;;
esac
"""


@pytest.mark.skipif(shutil.which('make') is None, reason='no make')
@pytest.mark.parametrize('wheel, builds', [('torch_scatter-2.1.2-x', 0),
                                           ('torch_scatter-9.9.9-x', 1)])
def test_extensions_are_those_of_the_lock(wheel, builds, tmp_path):
    lock = (ROOT / 'requirements.lock').read_text().splitlines()
    for name in ['torch-scatter', 'torch-sparse', 'ninja', 'wheel']:
        assert [line for line in lock if line.startswith(f'{name}==')]

    # Python only writes down what it is asked for:
    python = tmp_path / 'venv' / 'bin' / 'python'
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON)
    python.chmod(0o755)
    (tmp_path / 'venv' / 'ready').touch()
    folder = tmp_path / '.cache' / 'torch_agcn' / 'wheels' / 'torch-1-cp311'
    folder.mkdir(parents=True)
    for name in [wheel, 'foreign-1.0-x']:
        (folder / f'{name}.whl').touch()
    subprocess.run(['make', '-C', ROOT, f'VENV={tmp_path / "venv"}',
                    'test-extensions'], check=True, capture_output=True,
                   env={**os.environ, 'HOME': str(tmp_path)})

    calls = [call for call in (tmp_path / 'calls').read_text().splitlines()
             if ' pip ' in call]
    assert sum('pip wheel' in call for call in calls) == builds
    installs = [call for call in calls if 'torch_scatter' in call]
    assert len(installs) == 1 + 2 * builds
    for call in installs:
        assert '.whl' not in call
        assert '--constraint requirements.lock torch_scatter torch' in call


def test_modules_are_there_without_another_import():
    code = """
import torch_agcn
assert torch_agcn.__doc__
for name in ['datasets', 'transforms', 'functional', 'loader', 'diagnostics']:
    assert name in dir(torch_agcn), name
    assert getattr(torch_agcn, name).__name__ == f'torch_agcn.{name}'
print(torch_agcn.transforms.KNNGraph, torch_agcn.datasets.Planetoid,
      torch_agcn.functional.dirichlet_energy,
      torch_agcn.loader.ImportanceWeights,
      torch_agcn.diagnostics.SmoothnessRecorder)
try:
    torch_agcn.nothing
except AttributeError as error:
    assert 'nothing' in str(error)
"""
    out = subprocess.run([sys.executable, '-W', 'ignore', '-c', code],
                         capture_output=True, text=True, cwd=ROOT,
                         check=False)
    assert out.returncode == 0, out.stderr


@pytest.mark.parametrize('folder', ['torch_agcn', 'benchmarks'])
def test_nothing_hangs_on_an_assert(folder):
    found = [f'{file.relative_to(ROOT)}:{node.lineno}'
             for file in (ROOT / folder).rglob('*.py')
             for node in ast.walk(ast.parse(file.read_text('utf-8')))
             if isinstance(node, ast.Assert)]
    assert not found  # 'python -O' leaves them out


def test_without_asserts_and_docstrings():
    code = """
import numpy as np, scipy.sparse as sp, torch, torch_agcn
from benchmarks import __main__
from benchmarks.baselines.lp import harmonic
from torch_agcn.label_expansion import co_training
edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
x = torch.rand(3, 4)
for form in [edge_index, torch.cat([edge_index, edge_index[:1]], 0)]:
    try:
        print(torch_agcn.AGCNConv(4, 2, energy='relative')(x, form).shape)
    except ValueError as error:
        print(error)
try:
    harmonic(sp.csr_matrix(np.array([[0, np.nan], [np.nan, 0]])), np.eye(2),
             np.array([True, False]))
except ValueError as error:
    print(error)
y = torch.tensor([0, -1, 1])
print(co_training(edge_index, y, y >= 0, 1).train_mask.tolist())
__main__.usage(['ablation'])
"""
    out = subprocess.run([sys.executable, '-OO', '-W', 'ignore', '-c', code],
                         capture_output=True, text=True, cwd=ROOT,
                         check=False)
    for line in ['torch.Size([3, 2])', "'edge_index' of shape [3, 4]",
                 'do not converge', '[True, True, True]', 'ablation']:
        assert line in out.stdout, out.stderr


def test_public_names():
    assert set(torch_agcn.__all__) >= {
        'AGCNConv', 'AGCN2Conv', 'GatedDiffusion', 'AGCN', 'DeepAGCN',
        'DiffusedMLP', '__version__'}
    assert all(hasattr(torch_agcn, name) for name in torch_agcn.__all__)


def is_private(name):
    return not name.startswith(EXEMPT) and any(
        part.startswith('_') and not part.startswith('__')
        and part not in ('_fields', '_replace', '_asdict')  # Python's own
        for part in name.split('.'))


def private_uses(source):
    r"""The private names of the package that a program imports, or reads from
    what it imports.
    """
    tree, known = ast.parse(source), {}
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        start = f'{node.module}.' if isinstance(node, ast.ImportFrom) else ''
        for alias in node.names:
            name = start + alias.name
            if name.split('.')[0] == 'torch_agcn':
                known[alias.asname or alias.name] = name
                if is_private(name):
                    yield name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            first, *rest = ast.unparse(node).split('.')
            name = '.'.join([known.get(first, ''), *rest])
            if first in known and is_private(name):
                yield name


@pytest.mark.parametrize('source, found', [
    ('import torch_agcn._sparse', ['torch_agcn._sparse']),
    ('from torch_agcn._sparse import spmm', ['torch_agcn._sparse.spmm']),
    ('from torch_agcn.functional import _x', ['torch_agcn.functional._x']),
    ('from torch_agcn import functional\nfunctional._x(1)',
     ['torch_agcn.functional._x']),
    ('from torch_agcn import AGCNConv as A\nA._is_fused',
     ['torch_agcn.AGCNConv._is_fused']),
    ('import torch_agcn\ntorch_agcn.functional._x',
     ['torch_agcn.functional._x']),
    ('from torch_agcn import AGCN, __version__\nAGCN.__doc__', []),
    ('import torch._dynamo\nfrom torch_agcn.nn.conv import AGCNConv', []),
])
def test_what_is_a_private_use(source, found):
    assert list(private_uses(source)) == found


@pytest.mark.parametrize('folder', ['tests', 'benchmarks'])
def test_public_names_are_enough(folder):
    files = sorted((ROOT / folder).rglob('*.py'))
    assert files
    found = {str(file.relative_to(ROOT)): uses for file in files
             if (uses := list(private_uses(file.read_text('utf-8'))))}
    assert not found


def test_source_archive_has_all_that_tests_need(tmp_path):
    pytest.importorskip('setuptools')
    files = subprocess.run(['git', 'ls-files'], cwd=ROOT, text=True,
                           capture_output=True, check=False).stdout.split()
    if not files:
        pytest.skip('no repository to compare it with')
    subprocess.run([
        sys.executable, '-c', 'import sys; from setuptools import build_meta; '
        'build_meta.build_sdist(sys.argv[1])', tmp_path], cwd=ROOT, check=True,
        capture_output=True)
    archive, = tmp_path.glob('*.tar.gz')
    with tarfile.open(archive) as content:
        names = {name.partition('/')[2] for name in content.getnames()}
    assert {f for f in files if (ROOT / f).exists()} - names == {'.gitignore'}
