r"""All public names have an example, and all examples are true."""
import doctest
import importlib
import inspect
import pkgutil

import pytest
import torch

import torch_agcn

# The examples of some need a package:
OPTIONAL = {'torch_agcn.graphgym': 'yacs',
            'torch_agcn.datasets.image_graph': 'sklearn'}
MODULES = ['torch_agcn', *sorted(
    m.name for m in pkgutil.walk_packages(torch_agcn.__path__, 'torch_agcn.')
    if '.data.' not in m.name)]
NEEDS_NETWORK = {'IMDB'}


def module_of(name):
    if name in OPTIONAL:
        pytest.importorskip(OPTIONAL[name])
    return importlib.import_module(name)


def public(module):
    r"""What a module says is public. One that says nothing defines what its
    package exports, or else, having no other package than torch_agcn, is all
    public.
    """
    if hasattr(module, '__all__'):
        return {name: getattr(module, name) for name in module.__all__
                if not name.startswith('__')}
    if module.__name__.count('.') > 1 or '._' in module.__name__:
        return {}
    return {name: value for name, value in vars(module).items()
            if not name.startswith('_')
            and inspect.getmodule(value) is module
            and (inspect.isclass(value) or inspect.isfunction(value))}


@pytest.mark.parametrize('name', MODULES)
def test_examples_are_true(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # for data
    torch.manual_seed(0)
    result = doctest.testmod(module_of(name), extraglobs={'torch': torch},
                             optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0


@pytest.mark.parametrize('name', MODULES)
def test_every_public_name_has_an_example(name):
    for key, value in public(module_of(name)).items():
        tests = doctest.DocTestParser().get_examples(
            inspect.getdoc(value) or '')
        assert any(key in test.source for test in tests), (
            f"'{key}' has no example with it in its docstring")
        skipped = [doctest.SKIP in test.options for test in tests]
        assert not any(skipped) or key in NEEDS_NETWORK


def test_public_names():
    # What the test above looks at is what users find.
    names = {key for name in MODULES for key in public(module_of(name))}
    assert {'AGCN', 'AGCNConv', 'AGCN2Conv', 'DeepAGCN', 'DiffusedMLP',
            'GatedDiffusion', 'Planetoid', 'IMDB', 'ImageGraph', 'KNNGraph',
            'dirichlet_energy', 'co_training', 'SmoothnessRecorder',
            'ImportanceWeights', 'AGCNConvLayer'} <= names
    assert not any(key.startswith('_') for key in names)
