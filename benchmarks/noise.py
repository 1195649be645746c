r"""Wrong edges: what they cost, and what AnisotropicWeights give back.

Edges are changed in four ways; the levels of each are shares of the graph's
own edges, or numbers of neighbors:

* ``random`` adds random edges;
* ``dice`` and ``prbcd`` are attacks by someone who knows the labels, or a
  trained GCN; ``adaptive`` is the latter against a GCN with our weights,
  which it takes into account. Models are then trained on the attacked graph;
  only the ``evaded`` GCN was trained before;
* ``knn`` joins images to too many neighbors;
* ``none`` leaves graphs as they are on which neighbors differ by nature.

Every method runs plain and, where it can, with the weights: as edge weights,
or, for GAT, without the edges below 0.5. The weights have no settings. Those
of the methods are chosen for each method, data set and level on validation,
with seed 0, whose rows have no test score, among four; among twelve for
GCN-Jaccard, GCN-SVD and GNNGuard, which have a constant of their own. All then
run with the seeds 100 to 109. These draw wrong edges and initial weights that
chose nothing; splits of images and of ``none`` overlap with those that did.
All train by one schedule.

The adaptive attack takes the weights anew in each step and follows gradients
through the edges, but not through the weights.
"""
import itertools
import json
import sys
import time
import warnings
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor
from torch_geometric.data import Data

from benchmarks import attacks, plots, runner
from benchmarks.baselines import (
    agcn,
    gat,
    gcn,
    gcn_jaccard,
    gcn_svd,
    gcnii,
    gnnguard,
    mlp,
)
from benchmarks.data import (
    BY_CURVE,
    CITATION,
    HETEROPHILOUS,
    IMAGES,
    load,
    load_heterophilous,
    score,
)
from benchmarks.results import RESULTS, Table
from benchmarks.stats import mean_error, pairs
from benchmarks.training import Run
from torch_agcn.diagnostics import chance_edges
from torch_agcn.functional import anisotropic_weights
from torch_agcn.transforms import AnisotropicWeights, KNNGraph

QUESTION = ('How much accuracy do wrong edges cost, and how much of it do '
            'AnisotropicWeights give back?')
PEERS = ['gcn_jaccard', 'gcn_svd', 'gnnguard']
LABELS = {'mlp': 'MLP', 'gcn': 'GCN', 'gat': 'GAT', 'appnp': 'APPNP',
          'gated': 'DiffusedMLP', 'gcnii': 'GCNII',
          'gcn_jaccard': 'GCN-Jaccard', 'gcn_svd': 'GCN-SVD',
          'gnnguard': 'GNNGuard', 'evaded': 'GCN, trained before'}
SCHEDULE = dict(epochs=200, patience=20)
COMMON = dict(hidden_channels=64, **SCHEDULE)
GRID: dict[str, list[Any]] = dict(p=[0.5, 0.8], weight_decay=[5e-4, 5e-3])
GRIDS: dict[str, tuple[Callable[..., Run], dict[str, list[Any]]]] = {
    'mlp': (partial(mlp.run, **COMMON), GRID),
    'gcn': (partial(gcn.run, **COMMON), GRID),
    'gat': (partial(gat.run, lr=0.01, **SCHEDULE),
            dict(p=[0.4, 0.6], weight_decay=[5e-4, 5e-3])),
    'appnp': (partial(agcn.run, beta=1e30, num_hops=10, **COMMON),
              dict(p=[0.5, 0.8], alpha=[0.1, 0.2])),
    'gated': (partial(agcn.run, beta=500.0, num_hops=10, **COMMON),
              dict(p=[0.5, 0.8], alpha=[0.1, 0.2])),
    'gcnii': (partial(gcnii.run, num_layers=8, **COMMON),
              dict(alpha=[0.1, 0.3], weight_decay=[5e-4, 1e-2])),
    'gcn_jaccard': (partial(gcn_jaccard.run, **COMMON),
                    dict(GRID, threshold=[0.01, 0.03, 0.1])),
    'gcn_svd': (partial(gcn_svd.run, **COMMON),
                dict(GRID, rank=[10, 50, 100])),
    'gnnguard': (partial(gnnguard.run, **COMMON),
                 dict(GRID, threshold=[0.02, 0.1, 0.2])),
    'evaded': (gcn.run, {}),
}


class Family(NamedTuple):
    r"""A way to make edges wrong."""

    title: str
    datasets: list[str]
    levels: list[float]
    plain: list[str]  # methods that run without the weights
    weighted: list[str]  # methods that run with them


BOTH = ['gcn', 'gat', 'appnp', 'gcnii', 'gated']
FAMILIES = {
    'random': Family('random edges added, in percent of the edges there are',
                     CITATION, [0.0, 0.1, 0.25, 0.5, 1.0],
                     [*BOTH, *PEERS, 'mlp'], BOTH),
    'dice': Family('share of edges that DICE changes, which knows the labels',
                   CITATION, [0.05, 0.1, 0.25], ['gcn', *PEERS], ['gcn']),
    'prbcd': Family('share of edges that PRBCD changes against a GCN',
                    CITATION, [0.05, 0.1, 0.25],
                    ['gcn', *PEERS, 'evaded'], ['gcn', 'evaded']),
    'adaptive': Family('share of edges that PRBCD changes against a GCN with '
                       'AnisotropicWeights', CITATION, [0.05, 0.1, 0.25], [],
                       ['gcn', 'evaded']),
    'knn': Family('number of neighbors in a kNN graph', IMAGES,
                  [8.0, 16.0, 32.0, 64.0], ['gcn'], ['gcn']),
    'none': Family(f'no edge changed, but neighbors that differ by nature '
                   f'(ROC AUC of {" and ".join(BY_CURVE)}; APPNP takes ten '
                   f'hops with a restart of 0.1 or 0.2)', HETEROPHILOUS,
                   [0.0], ['mlp', 'gcn', 'appnp'], ['gcn', 'appnp']),
}
EVERY = [*CITATION, *IMAGES, *HETEROPHILOUS]
# Of lines and columns:
ORDER = {name: i for i, name in enumerate(
    [*FAMILIES, *EVERY, *LABELS])}
OPTIONS = dict(datasets=EVERY, of=EVERY, choices=dict(
    attacks=list(FAMILIES), methods=list(GRIDS)), most=None)
QUICK = dict(datasets=['Cora'], runs=1, attacks=['random'], methods=['gcn'],
             most=2)  # configurations
SEARCH_SEED, FIRST_SEED = 0, 100
KEYS = ['method', 'dataset', 'attack', 'level', 'weighted']
COLUMNS = [*KEYS, 'seed', 'settings', 'epochs', 'val_score', 'test_score',
           'seconds']
TABLE = Table(RESULTS / 'noise.csv', COLUMNS)
SEARCH = Table(RESULTS / 'noise_search.csv',
               [c for c in COLUMNS if c != 'test_score'])
ESTIMATES = Table(RESULTS / 'noise_estimates.csv', [
    'method', 'dataset', 'attack', 'level', 'seed', 'true_share', 'share',
    'auc', 'own_weight', 'added_weight', 'seconds'])
CAPTIONS = {
    'noise': 'Mean test accuracy with its standard error against the random '
    'edges added, in percent of the edges there are: at 100, every second '
    'edge is wrong.',
}


class Task(NamedTuple):
    r"""One run. ``settings`` are those that were searched, as JSON."""

    method: str
    dataset: str
    attack: str
    level: float
    weighted: int
    seed: int
    settings: str


class Estimate(NamedTuple):
    r"""One estimate of the share of chance edges."""

    method: str
    dataset: str
    attack: str
    level: float
    seed: int


# Graphs ######################################################################


@lru_cache(maxsize=2)
def graph(dataset: str, attack: str, level: float, seed: int,
          root: str) -> Data:
    r"""A graph with wrong edges, the same for all methods."""
    if attack == 'none':
        return load_heterophilous(dataset, seed, root)
    if attack == 'knn':
        data = load(dataset, 'random', seed, root)
        knn = KNNGraph(int(level), force_undirected=True, attr='x')
        data.edge_index = knn(data).edge_index
        return data
    data = load(dataset, root=root)
    edges = data.edge_index
    if attack == 'random':
        edges = attacks.add_random(edges, data.num_nodes, level, seed)
    elif attack == 'dice':
        edges = attacks.dice(edges, data.y, level, seed)
    else:
        edges = attacks.prbcd(_target(data, attack == 'adaptive', seed), data,
                              level, seed)
    data.edge_index = edges
    return data


def _target(data: Data, is_weighted: bool, seed: int) -> Any:
    r"""The GCN that is attacked, trained on the graph as it was."""
    if not is_weighted:
        return attacks.surrogate(data, seed)
    x = data.x.to_dense()

    def weigh(_: Any, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        there = edge_weight.clamp(min=1e-12)
        return anisotropic_weights(x, edge_index, there) / there

    return attacks.Weighted(
        attacks.surrogate(AnisotropicWeights()(data), seed), weigh)


@lru_cache(maxsize=2)
def weighted(*key: Any, threshold: float | None) -> Data:
    r"""The same with the weights, or without the edges below a threshold."""
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', '.*random pairs of nodes')
        return AnisotropicWeights(threshold=threshold)(graph(*key))


# Runs ########################################################################


def configurations(method: str) -> list[str]:
    r"""What is searched."""
    grid = GRIDS[method][1]
    return [runner.as_json(**dict(zip(grid, choice)))
            for choice in itertools.product(*grid.values())]


def measure(task: Task, root: str) -> dict[str, Any]:
    r"""Runs a task and returns its row."""
    key = task.dataset, task.attack, task.level, task.seed, root
    data = graph(*key)
    if task.weighted:
        data = weighted(*key, threshold=0.5 if task.method == 'gat' else None)
    start = time.perf_counter()
    if task.method == 'evaded':
        epochs, out = 0, _evade(task, data, root)
    else:
        run = GRIDS[task.method][0](data, task.seed,
                                    **json.loads(task.settings))
        epochs, out = run.epochs, run.logits
    return {**task._asdict(), 'epochs': epochs,
            **{f'{part}_score': score(task.dataset, out[mask], data.y[mask])
               for part, mask in [('val', data.val_mask),
                                  ('test', data.test_mask)]},
            'seconds': round(time.perf_counter() - start, 2)}


@torch.no_grad()
def _evade(task: Task, data: Data, root: str) -> Tensor:
    r"""The outputs on the attacked graph of a GCN trained on the other."""
    clean = load(task.dataset, root=root)
    if task.weighted:
        clean = AnisotropicWeights()(clean)
    with torch.enable_grad():
        model = attacks.surrogate(clean, task.seed).eval()
    return model(data.x, data.edge_index, data.get('edge_weight'))


def search(task: Task, root: str) -> dict[str, Any]:
    r"""A row without what is not to be looked at."""
    row = measure(task, root)
    del row['test_score']
    return row


def estimate(task: Estimate, root: str) -> dict[str, Any]:
    r"""How well chance edges are told from the graph's own."""
    from sklearn.metrics import roc_auc_score
    own = load(task.dataset, root=root).edge_index
    data = graph(task.dataset, task.attack, task.level, task.seed, root)
    start = time.process_time()
    weight = anisotropic_weights(data.x, data.edge_index)
    seconds = time.process_time() - start
    size = data.num_nodes
    is_own = torch.isin(data.edge_index[0] * size + data.edge_index[1],
                        own[0] * size + own[1])
    found = chance_edges(data.x, data.edge_index)
    has_both = not bool(is_own.all())
    return {**task._asdict(), 'true_share': round(
                float((~is_own).double().mean()), 4),
            'share': round(found.share, 4), 'auc': round(100 * roc_auc_score(
                is_own, weight), 2) if has_both else '',
            'own_weight': round(float(weight[is_own].mean()), 4),
            'added_weight': round(float(weight[~is_own].mean()), 4)
            if has_both else '', 'seconds': round(seconds, 3)}


def cells(names: list[str], datasets: list[str],
          methods: list[str]) -> list[tuple[Any, ...]]:
    r"""All of method, data set, attack, level and weighted or not."""
    return [(method, dataset, name, level, weighted) for name in names
            for dataset in FAMILIES[name].datasets if dataset in datasets
            for level in FAMILIES[name].levels
            for weighted, own in enumerate(FAMILIES[name][-2:])
            # A perceptron does not see the edges:
            for method in own if method in methods and (
                method != 'mlp' or level == 0)]


def chosen(rows: pd.DataFrame) -> dict[tuple[Any, ...], str]:
    r"""The configuration of each cell with the best validation score."""
    rows = rows[[settings in configurations(method) for method, settings
                 in zip(rows.method, rows.settings)]]
    best = rows.sort_values('val_score', ascending=False, kind='stable')
    best = best.drop_duplicates(KEYS)
    return dict(zip(best[KEYS].itertuples(index=False, name=None),
                    best.settings))


# Tables and the figure #######################################################


def label(method: str, weighted: int) -> str:
    r"""The name of a row."""
    return LABELS[method] + weighted * ' with AnisotropicWeights'


def shown(rows: pd.DataFrame) -> pd.DataFrame:
    r"""The runs with the settings that were chosen last, with the names of
    lines and columns, in the order in which these are shown.
    """
    rows = rows[rows.settings == rows.groupby(KEYS).settings.transform('last')]
    rows = rows.drop_duplicates([*KEYS, 'seed'])
    return rows.assign(
        name=[label(*key) for key in zip(rows.method, rows.weighted)],
        at=[f'{dataset} {_level(level)}' * (attack != 'none') or dataset
            for dataset, level, attack in zip(rows.dataset, rows.level,
                                              rows.attack)]).sort_values(
            ['attack', 'dataset', 'method', 'weighted', 'level', 'seed'],
            key=lambda column: column.map(ORDER).fillna(column))


def wide(rows: pd.DataFrame, **where: Any) -> pd.DataFrame:
    r"""Test scores of the settings that were chosen last: a line per seed, a
    column per method, weighted or not, and level.
    """
    for key, value in where.items():
        rows = rows[rows[key] == value]
    return shown(rows).pivot(index='seed', values='test_score', columns=[
        'method', 'weighted', 'level'])


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""Scores and what weights are worth, for each attack; then how well wrong
    edges are told from others.
    """
    out = {}
    for name, family in FAMILIES.items():
        out['Test score in percent, mean ± standard error (runs): '
            f'{family.title}'] = scores(shown(rows[rows.attack == name]))
        out['Gain by AnisotropicWeights, in points with 95 % intervals: '
            f'{family.title}'] = gains(rows, name)
    out['The share of chance edges, estimated without labels, and how well '
        'the weights tell added edges from own ones'] = estimates(
        ESTIMATES.read())
    return {title: frame for title, frame in out.items() if len(frame)}


def scores(rows: pd.DataFrame) -> pd.DataFrame:
    r"""Test scores by method, data set and level, in the order of the rows."""
    if rows.empty:
        return rows
    out = rows.groupby(['name', 'at']).test_score.agg(mean_error).unstack()
    out = out.reindex(rows['name'].unique())[rows['at'].unique()]
    return out.fillna('–').rename_axis(index='', columns=None).reset_index()


def gains(rows: pd.DataFrame, attack: str) -> pd.DataFrame:
    r"""With the weights against without, and GCN with them against peers."""
    lines = []
    for dataset in FAMILIES[attack].datasets:
        part = wide(rows, attack=attack, dataset=dataset)
        levels = sorted({level for _, _, level in part})
        for method in LABELS:
            ours = ('gcn', 1) if method in PEERS else (method, 1)
            gaps = {_level(level): pairs(part, (*ours, level),
                                         (method, 0, level))
                    for level in levels}
            if any(gaps.values()):
                lines.append({'data set': dataset, 'method': label(*ours),
                              'minus': label(method, 0),
                              **{k: str(v or '–') for k, v in gaps.items()}})
    return pd.DataFrame(lines).fillna('–')


def estimates(rows: pd.DataFrame) -> pd.DataFrame:
    r"""How well the share of chance edges is estimated, and how edges are
    told apart: means over the runs.
    """
    if rows.empty:
        return rows
    titles = {'true_share': 'their share of all edges',
              'share': 'estimated share', 'auc': 'ROC AUC of the weights (%)',
              'own_weight': 'mean weight of own edges',
              'added_weight': 'of added edges'}
    mean = rows.groupby(['dataset', 'level'])[list(titles)].mean()
    out = mean.map('{:.2f}'.format).assign(
        auc=mean.auc.map('{:.1f}'.format)).replace('nan', '–').reset_index()
    out = out.assign(level=out.level.map(_level)).sort_values(
        'dataset', key=lambda names: names.map(ORDER), kind='stable')
    return out.rename(columns={'dataset': 'data set',
                               'level': 'random edges added', **titles})


def _level(level: float) -> str:
    return f'{level:.0f}' if level > 1 else f'{level:.0%}'


LINES = [('gcn', 0), ('gcnii', 0), ('gcn_jaccard', 0), ('gnnguard', 0),
         ('gcn', 1)]  # of the figure


def draw(rows: pd.DataFrame, folder: Path) -> list[Path]:
    r"""A panel for each citation network."""
    rows = rows[rows.attack == 'random']
    datasets = [d for d in CITATION if (rows.dataset == d).any()]
    if not datasets:
        return []
    figure, axes = plots.panels(len(datasets), 3.5, 4.0)
    for axis, dataset in zip(axes, datasets):
        part = wide(rows, dataset=dataset)
        for line in LINES:
            keys = sorted(key for key in part if key[:2] == line)
            if keys:
                plots.error_line(axis, [100 * key[2] for key in keys],
                                 [part[key] for key in keys], label(*line))
        axis.set(title=dataset, xlabel='random edges added (%)')
    axes[0].set_ylabel('test accuracy (%)')
    plots.legend_below(figure)
    return plots.save(figure, folder, 'noise')


def answer(rows: pd.DataFrame) -> str:
    r"""What the weights are worth to a GCN with as many random edges again."""
    texts = []
    for dataset in CITATION:
        part = wide(rows, attack='random', dataset=dataset)
        gap = pairs(part, ('gcn', 1, 1.0), ('gcn', 0, 1.0))
        texts += [f'{gap} on {dataset}'] if gap else []
    return ('With as many random edges added as there are, AnisotropicWeights '
            'change the test accuracy of a GCN, in points with 95 % '
            'intervals, by ' + ', '.join(texts) + '.' if texts else '')


def main(argv: list[str]) -> None:
    module = sys.modules[__name__]
    args = runner.parse(module, argv)
    found = cells(args.attacks, args.datasets, args.methods)
    seeds = range(FIRST_SEED, FIRST_SEED + args.runs)

    def run(tasks: list[Any], table: Table, measure: Any) -> Table:
        table = runner.table_of(table, args)
        runner.report(runner.run_missing(tasks, table, measure, args.jobs,
                                         args.root))
        return table

    searched = run([Task(*cell, SEARCH_SEED, settings) for cell in found
                    for settings in configurations(cell[0])[:args.most]],
                   SEARCH, search)
    run([Estimate('weights', dataset, 'random', level, seed)
         for seed in seeds for dataset in CITATION
         if dataset in args.datasets and 'random' in args.attacks
         for level in FAMILIES['random'].levels], ESTIMATES, estimate)
    settings = chosen(searched.read())
    tasks = [Task(*cell, seed, settings[cell])
             for seed in seeds for cell in found]
    tasks.sort(key=lambda task: (task.seed, *task[1:4]))
    runner.run_and_report(module, tasks, args)
