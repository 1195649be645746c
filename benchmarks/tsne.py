r"""t-SNE of the first layer's output of GCN and AGCN, and how separable it is.

What is shown is the hidden layer of each trained network after its ReLU, from
which one weight matrix leads to the class scores. In DiffusedMLP, which
propagates last, it is the hidden layer propagated by the trained gates: the
same holds, as propagation and weight matrix commute. All layers are 16 wide.

Separability, before and after t-SNE and of all nodes, is the silhouette
coefficient of the classes and the purity of neighborhoods: the share of the
ten nearest neighbors that have the same label. All networks have the settings
from before any search and train for 200 epochs, of which the one with the
lowest validation loss counts.
"""
import json
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Data
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import to_torch_csr_tensor

from benchmarks.baselines import agcn
from benchmarks.batches import accuracies
from benchmarks.data import load
from benchmarks.results import RESULTS, Claim, Table
from benchmarks.settings import METHODS, Task, latest, run_of, settings_of
from benchmarks.stats import Gap, by_seed, pairs, sentence, verdict

QUESTION = "Are AGCN's hidden features more separable than GCN's?"
LABELS = {method: METHODS[method] for method in ['gcn', 'agcn_paper', 'agcn']}
MEASURES = {'silhouette': 'silhouette', 'purity': 'purity',
            'silhouette_tsne': 'silhouette after t-SNE',
            'purity_tsne': 'purity after t-SNE'}
TABLE = Table(RESULTS / 'tsne.csv', [
    *Task._fields, 'nodes', 'width', 'test_accuracy', *MEASURES, 'seconds',
    'x', 'y', 'labels'])
NEIGHBORS, WIDTH = 10, 16
ROUNDING = 5e-4  # smaller differences are none
DATASET = 'MNIST'  # the paper's
OPTIONS = dict(datasets=[DATASET], runs=5, of=[DATASET, 'Digits'])
QUICK = dict(datasets=['Digits'], runs=2)
CAPTIONS = {
    f'tsne_{dataset}': 'First-layer outputs after t-SNE (seed 0), a color and '
    'a number for each class. Above: how separable the classes are in the '
    'layer itself; more is better. Methods with equal scores share a panel.'
    for dataset in ['mnist', 'digits']}


def embed(model: Module, data: Data) -> Tensor:
    r"""The hidden layer of a trained network, propagated."""
    model.eval()
    with torch.no_grad():
        if isinstance(model, agcn.Net):
            return model.model.convs[0](data.x, data.edge_index).relu()
        if not isinstance(model, agcn.Hops):
            return model.conv1(data.x, data.edge_index).relu()
        P = to_torch_csr_tensor(*gcn_norm(data.edge_index, None,
                                          data.num_nodes), data.num_nodes)
        h = start = model.lins[0](data.x).relu()
        for gate in agcn.gates(model, data):
            h = torch.lerp(torch.lerp(h, P @ h, gate), start,
                           model.diffusion.alpha)
        return h


def purity(points: Any, labels: Any, k: int = NEIGHBORS) -> float:
    r"""The share of the nearest neighbors that have the same label."""
    from sklearn.neighbors import NearestNeighbors
    search = NearestNeighbors(n_neighbors=k).fit(points)
    neighbors = search.kneighbors(return_distance=False)  # without itself
    return float((labels[neighbors] == labels[:, None]).mean())


def measure(task: Task, root: str) -> dict[str, Any]:
    r"""Trains a network and looks at its first layer."""
    from sklearn.manifold import TSNE
    from sklearn.metrics import silhouette_score
    data = load(task.dataset, task.split, task.seed, root)
    start = time.perf_counter()
    run = run_of(task.method)(data, task.seed, **json.loads(task.settings))
    labels = data.y.numpy()
    before = embed(run.model, data).numpy()
    after = TSNE(random_state=task.seed).fit_transform(before)
    row = {**task._asdict(), 'nodes': len(before), 'width': before.shape[1],
           'test_accuracy': accuracies(run.logits, data)['test_accuracy'],
           'x': '', 'y': '', 'labels': ''}
    for name, points in [('', before), ('_tsne', after)]:
        row[f'silhouette{name}'] = round(
            float(silhouette_score(points, labels)), 4)
        row[f'purity{name}'] = round(purity(points, labels), 4)
    if task.seed == 0:  # for the picture
        row['x'], row['y'] = (' '.join(f'{v:.2f}' for v in column)
                              for column in after.T)
        row['labels'] = ' '.join(str(label) for label in labels)
    row['seconds'] = round(time.perf_counter() - start, 2)
    return row


# What came of the runs #######################################################


def shown(rows: pd.DataFrame) -> pd.DataFrame:
    r"""The latest rows of equal widths and of as many nodes as any has."""
    most = rows.groupby('dataset').nodes.transform('max')
    rows = latest(rows[(rows.width == WIDTH) & (rows.nodes == most)])
    return rows.sort_values('method', kind='stable', key=lambda column: (
        column.map(list(LABELS).index)))


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""All measures, means over the seeds."""
    groups = shown(rows).groupby(['dataset', 'method'], sort=False)
    lines = [[dataset, LABELS[method], len(part), part.nodes.iloc[0], *(
        f'{part[name].mean():.3f} ± {part[name].std(ddof=0):.3f}'
        for name in MEASURES)] for (dataset, method), part in groups]
    frame = pd.DataFrame(lines, columns=['data', '', 'seeds', 'nodes',
                                         *MEASURES.values()])
    return {'Separability of classes in the first layer, mean ± standard '
            'deviation over the seeds (purity: the share of the ten nearest '
            'neighbors that have the same class)': frame}


def draw(rows: pd.DataFrame, folder: Path) -> list[Path]:
    r"""A row of panels for each data set, a panel for each picture."""
    from benchmarks import plots
    rows, paths = shown(rows), []
    for dataset, part in rows[rows.seed == 0].groupby('dataset', sort=False):
        pictures = part.groupby(['silhouette', 'purity'], sort=False)
        figure, axes = plots.panels(pictures.ngroups, 3.9, 4.6, 0.0, dpi=144)
        for axis, ((silhouette, purity), same) in zip(axes, pictures):
            x, y, labels = same[['x', 'y', 'labels']].iloc[0].str.split()
            _scatter(axis, np.array([x, y], float).T, np.array(labels, int))
            names = ' and '.join(LABELS[method] for method in same.method)
            axis.set(title=f'{dataset}: {names}\nsilhouette '
                     f'{silhouette:.3f}, purity {purity:.3f}', xticks=[],
                     yticks=[])
        paths += plots.save(figure, folder, f'tsne_{str(dataset).lower()}')
    return paths


def _scatter(axis: Any, points: Any, labels: Any) -> None:
    from matplotlib.patheffects import withStroke
    low, high = points.min(0), points.max(0)
    half = 0.53 * (high - low).max()
    (x, y) = (low + high) / 2
    axis.set(xlim=(x - half, x + half), ylim=(y - half, y + half),
             box_aspect=1)
    for label in np.unique(labels):
        some = points[labels == label]
        axis.scatter(*some.T, s=4, color=f'C{label % 10}',
                     linewidths=0, rasterized=True)
        # Ten colours are too many for some eyes and for grey print:
        center = np.linalg.norm(some - np.median(some, 0), axis=-1).argmin()
        axis.annotate(str(label), some[center], ha='center',
                      va='center', fontsize=13, fontweight='bold',
                      path_effects=[withStroke(linewidth=3,
                                               foreground='white')])


def gaps(rows: pd.DataFrame, method: str) -> dict[str, Gap]:
    r"""Each measure on the paper's data set, a method's minus GCN's."""
    rows = shown(rows)
    rows = rows[rows.dataset == DATASET]
    return {label: gap for name, label in MEASURES.items() if (
        gap := pairs(by_seed(rows, values=name), method, 'gcn'))}


def _text(begin: str, found: dict[str, Gap]) -> str:
    return sentence(begin, {name: gap.text(3) for name, gap in found.items()})


def claims(rows: pd.DataFrame) -> list[Claim]:
    r"""The paper's."""
    found = gaps(rows, 'agcn_paper')
    text = _text('AGCN (paper) minus GCN, 95 % interval: ', found)
    return [Claim(f'First-layer embeddings of AGCN are more separable than '
                  f'those of GCN on {DATASET}.',
                  verdict(found.values(), ROUNDING),
                  text or 'Not two seeds of both yet.')]


def answer(rows: pd.DataFrame) -> str:
    r"""The differences to GCN."""
    found = {f'{LABELS[m]}:': _text('', gaps(rows, m))[:-1] or None
             for m in ['agcn_paper', 'agcn']}
    return sentence(f'Scores on {DATASET} minus those of GCN, with 95 % '
                    f'intervals: ', found, '; ')


def tasks(args: Namespace) -> list[Task]:
    r"""All networks with one width, and settings from before any search."""
    return [Task(method, dataset, 'random', seed, settings_of(
        method, dataset, epochs=200, patience=200, hidden_channels=WIDTH))
        for seed in range(args.runs) for dataset in args.datasets
        for method in LABELS]
