r"""Methods, their settings, and a run of one of them.

A method is a module of :mod:`benchmarks.baselines` with settings. Its file in
the folder ``settings`` may have

* ``module``, if several methods are run by one;
* ``like``, a method whose settings it has where it has none of its own;
* ``weighted``, if its graph is weighted by ``AnisotropicWeights``;
* ``fixed``, what is not searched, for ``all`` data sets and for some;
* ``grid`` and ``chosen``, what :mod:`benchmarks.tune` searches and found;
* ``deterministic``, if it has the same result with every seed.
"""
import importlib
import inspect
import json
import time
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, NamedTuple

import pandas as pd
import torch
import yaml
from torch_geometric.data import Data

from benchmarks.data import load
from benchmarks.results import ROOT
from benchmarks.runner import as_json
from benchmarks.training import Run
from benchmarks.workers import peak_mb, reset_peak
from torch_agcn.transforms import AnisotropicWeights

COLUMNS = ['method', 'dataset', 'split', 'seed', 'settings', 'epochs',
           'val_loss', 'val_accuracy', 'test_accuracy', 'seconds', 'peak_mb',
           'gates']
PUBLISHED = ROOT / 'published.csv'
SETTINGS = ROOT / 'settings'
METHODS = {
    'mlp': 'MLP', 'manireg': 'ManiReg', 'semiemb': 'SemiEmb', 'lp': 'LP',
    'deepwalk': 'DeepWalk', 'ica': 'ICA', 'planetoid': 'Planetoid',
    'chebynet': 'ChebyNet', 'gcn': 'GCN', 'monet': 'MoNet', 'gat': 'GAT',
    'dgi': 'DGI', 'gwnn': 'GWNN', 'lanczosnet': 'LanczosNet', 'gin': 'GIN',
    'sgc': 'SGC', 'jknet': 'JK-Net', 'gcn_pn': 'GCN-PN',
    'gcnii': 'GCNII', 'gcn_long': 'GCN, long schedule',
    'gcn_wide': 'GCN, long schedule, 256 channels', 'appnp': 'APPNP',
    'gcn_equal': 'GCN, settings of AGCN (paper)',
    'agcn_paper': 'AGCN (paper)',
    'agcn_literal': 'AGCN (paper), one propagation',
    'agcn_open': 'DiffusedMLP, gate open', 'agcn': 'DiffusedMLP',
    'agcn_weighted': 'DiffusedMLP with AnisotropicWeights',
    'agcn_linear_open': 'DiffusedMLP, one layer, gate open',
    'agcn_linear': 'DiffusedMLP, one layer',
    'agcn_wide_open': 'DiffusedMLP, 256 channels, gate open',
    'agcn_wide': 'DiffusedMLP, 256 channels',
    'agcn_deep_open': 'DeepAGCN, gate open', 'agcn_deep': 'DeepAGCN',
    'agcn_deep_weighted': 'DeepAGCN with AnisotropicWeights',
}


class Task(NamedTuple):
    r"""One run. ``settings`` are all of them, as JSON."""

    method: str
    dataset: str
    split: str
    seed: int
    settings: str


# Settings ####################################################################


def read_settings(method: str) -> dict[str, Any]:
    r"""What stands in a method's file of settings, if it has one."""
    path = SETTINGS / f'{method}.yaml'
    return _parse(path.read_text('utf-8')) if path.exists() else {}


@cache
def _parse(text: str) -> dict[str, Any]:
    # They are asked for with every task.
    return yaml.safe_load(text) or {}


def module_of(method: str) -> str:
    r"""The name of the module that a method is run by."""
    file = read_settings(method)
    if 'module' in file or 'like' not in file:
        return file.get('module', method)
    return module_of(file['like'])


def run_of(method: str) -> Callable[..., Run]:
    r"""The function that runs a method."""
    run = importlib.import_module(
        f'benchmarks.baselines.{module_of(method)}').run
    return _weighted(run) if read_settings(method).get('weighted') else run


def _weighted(run: Callable[..., Run]) -> Callable[..., Run]:
    @wraps(run)  # and with its settings
    def out(data: Data, seed: int, **settings: Any) -> Run:
        return run(AnisotropicWeights()(data), seed, **settings)
    return out


def settings_of(method: str, dataset: str, **chosen: Any) -> str:
    r"""All settings of a method: the defaults of its function, then those of
    the method that it is like, then what its file fixes for all and for this
    data set, then what was chosen.
    """
    file = read_settings(method)
    parameters = inspect.signature(run_of(method)).parameters
    settings = {key: p.default for key, p in parameters.items()
                if p.kind == p.KEYWORD_ONLY}
    if 'like' in file:
        like = json.loads(settings_of(file['like'], dataset))
        settings.update({k: v for k, v in like.items() if k in settings})
    fixed = file.get('fixed', {})
    chosen = chosen or file.get('chosen', {}).get(dataset, {})
    for update in [fixed.get('all', {}), fixed.get(dataset, {}), chosen]:
        unknown = set(update) - set(settings)
        if unknown:
            raise ValueError(f"'{method}' has no settings {sorted(unknown)}; "
                             f'it has {sorted(settings)}')
        settings.update(update)
    return as_json(**settings)


def is_repeated(method: str, split: str, seed: int) -> bool:
    r"""Whether a run has the result of seed 0, as those of a deterministic
    method on the public split.
    """
    return (seed > 0 and split == 'public'
            and bool(read_settings(method).get('deterministic')))


def published() -> dict[tuple[str, str], float]:
    r"""What the paper's Table 1 prints for a method and a data set."""
    frame = pd.read_csv(PUBLISHED)
    return {(m, d): a for m, d, a in frame.itertuples(index=False)}


# Runs ########################################################################


def measure(task: Any, root: str) -> dict[str, Any]:
    r"""Runs a task and returns its row."""
    return run(task, root)[0]


def run(task: Any, root: str) -> tuple[dict[str, Any], Data, Run]:
    r"""Runs a :class:`Task`, or one with more fields, and returns its row, its
    data and all that came of it.
    """
    data = load(task.dataset, task.split, task.seed, root)
    reset_peak()
    start = time.perf_counter()
    out = run_of(task.method)(data, task.seed, **json.loads(task.settings))
    seconds = time.perf_counter() - start
    if bool(out.logits.isnan().any()):
        raise ValueError(f"'{task.method}' returned NaN")
    val = data.val_mask
    hit = 100 * (out.logits.argmax(dim=-1) == data.y).double()
    loss = torch.nn.functional.cross_entropy(out.logits[val], data.y[val])
    gates = [value for key, value in out.extra.items()
             if key.startswith('gate_')]
    row = {
        **task._asdict(),
        'epochs': out.epochs,
        'val_loss': round(float(loss), 5),
        'val_accuracy': round(float(hit[val].mean()), 3),
        'test_accuracy': round(float(hit[data.test_mask].mean()), 3),
        'seconds': round(seconds, 2),
        'peak_mb': peak_mb(),
        'gates': ' '.join(f'{gate:.5g}' for gate in gates),
    }
    return row, data, out


# Rows ########################################################################


def latest(rows: pd.DataFrame, *more: str) -> pd.DataFrame:
    r"""The rows with the settings that were used last for a method, a data
    set, a split and what else is named; one for each seed.
    """
    keys = [key for key in ['method', 'dataset', 'split', *more]
            if key in rows]
    last = rows.groupby(keys, sort=False).settings.transform('last')
    return rows[rows.settings == last].drop_duplicates([*keys, 'seed'],
                                                       keep='last')


def gates_of(rows: pd.DataFrame) -> pd.Series:
    r"""The gates of each run that has any, as lists of numbers."""
    return rows.gates.dropna().astype(str).map(
        lambda text: [float(gate) for gate in text.split()])
