r"""t-SNE of the first layer's output of GCN and AGCN, and how separable it is.

What is shown is the hidden layer of each trained network after its ReLU: that
from which one weight matrix leads to the class scores. In DiffusedMLP, where
propagation comes last, it is the perceptron's hidden layer propagated with the
gates of the trained network, from which the same holds, for propagation and
weight matrix commute. All layers have the same width, and all nodes count.

Separability is measured, before t-SNE and after it, by the silhouette
coefficient of the classes and by the purity of neighborhoods, which is the
share of the ten nearest neighbors that have the same label. All networks have
the settings from before any search and train for the same number of epochs,
of which the one with the lowest validation loss counts.
"""
import json
import sys
import time
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

from benchmarks import runner
from benchmarks.baselines import agcn
from benchmarks.data import DATASETS, load, splits_of
from benchmarks.results import RESULTS, Claim, Table
from benchmarks.settings import METHODS, Task, latest, run_of, settings_of
from benchmarks.stats import Gap, by_seed, pairs, verdict

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
CAPTIONS = {
    f'tsne_{dataset.lower()}': 'First-layer outputs after t-SNE (seed 0), '
    'coloured by class; a number stands at the central point of each class. '
    'Methods that are as separable to three digits share a panel.'
    for dataset in DATASETS
}


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
    hit = run.logits.argmax(dim=-1) == data.y
    row = {**task._asdict(), 'nodes': len(before), 'width': before.shape[1],
           'test_accuracy': round(
               100 * float(hit[data.test_mask].double().mean()), 3),
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


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    r"""All measures, means over the seeds."""
    lines = []
    groups = dict(iter(latest(rows).groupby(['dataset', 'method'])))
    for dataset in rows.dataset.unique():
        for method in [m for m in LABELS if (dataset, m) in groups]:
            part = groups[dataset, method]
            lines.append([
                dataset, LABELS[method], len(part), part.width.iloc[0], *(
                    f'{part[name].mean():.3f} ± {part[name].std(ddof=0):.3f}'
                    for name in MEASURES),
                f'{part.test_accuracy.mean():.1f}'])
    return {'Separability of the first layer, mean ± standard deviation over '
            'the seeds': pd.DataFrame(lines, columns=[
                'data', 'method', 'seeds', 'width', *MEASURES.values(),
                'test accuracy (%)'])}


def draw(rows: pd.DataFrame, folder: Path) -> list[Path]:
    r"""A row of panels for each data set, a panel for each picture."""
    from benchmarks import plots
    rows = latest(rows)
    rows = rows[rows.seed == 0]
    paths = []
    for dataset, part in rows.groupby('dataset', sort=False):
        pictures: dict[tuple[float, ...], list[str]] = {}
        by_method = part.set_index('method')
        for method in [m for m in LABELS if m in by_method.index]:
            row = by_method.loc[method]
            pictures.setdefault((round(row.purity, 3), round(
                row.silhouette, 3)), []).append(method)
        figure, axes = plots.panels(len(pictures), 3.9, 4.6, 0.0, dpi=144)
        for axis, methods in zip(axes, pictures.values()):
            row = by_method.loc[methods[0]]
            points = np.array([row.x.split(), row.y.split()], dtype=float)
            _scatter(axis, points.T, np.array(row['labels'].split(), int))
            names = ' and '.join(LABELS[method] for method in methods)
            axis.set(title=f'{dataset}: {names}', xticks=[],
                     yticks=[], xlabel=f'purity {row.purity_tsne:.3f}, '
                     f'silhouette {row.silhouette_tsne:.3f}\n(before t-SNE '
                     f'{row.purity:.3f} and {row.silhouette:.3f})')
        paths += plots.save(figure, folder, f'tsne_{str(dataset).lower()}')
    return paths


def _scatter(axis: Any, points: Any, labels: Any) -> None:
    from matplotlib.patheffects import withStroke

    from benchmarks.plots import plt
    low, high = points.min(0), points.max(0)
    half = 0.53 * (high - low).max()
    for center, limit in zip((low + high) / 2, [axis.set_xlim,
                                                axis.set_ylim]):
        limit(center - half, center + half)
    axis.set_box_aspect(1)
    for label in np.unique(labels):
        some = points[labels == label]
        axis.scatter(*some.T, s=4, color=plt.get_cmap('tab10')(label % 10),
                     linewidths=0, rasterized=True)
        # Ten colours are too many for some eyes and for grey print:
        center = np.linalg.norm(some - np.median(some, 0), axis=-1).argmin()
        axis.annotate(str(label), some[center], ha='center',
                      va='center', fontsize=13, fontweight='bold',
                      path_effects=[withStroke(linewidth=3,
                                               foreground='white')])


def gaps(rows: pd.DataFrame, method: str) -> dict[str, Gap | None]:
    r"""A method minus GCN on the paper's data set, for each measure."""
    rows = latest(rows)
    rows = rows[rows.dataset == DATASET]
    return {label: pairs(by_seed(rows, values=name), method, 'gcn')
            for name, label in MEASURES.items()}


def _text(found: dict[str, Gap | None]) -> str:
    return ', '.join(f'{label} {gap.text(3)}' for label, gap in found.items()
                     if gap)


def claims(rows: pd.DataFrame) -> list[Claim]:
    r"""The paper's."""
    found = gaps(rows, 'agcn_paper')
    return [Claim(
        f'First-layer embeddings of AGCN are more separable than those of GCN '
        f'on {DATASET}.', verdict(found.values(), ROUNDING),
        f'AGCN (paper) minus GCN, 95 % interval: {_text(found)}.'
        if any(found.values()) else 'Not two seeds of both yet.')]


def answer(rows: pd.DataFrame) -> str:
    r"""The differences to GCN."""
    texts = {LABELS[m]: _text(gaps(rows, m)) for m in list(LABELS)[1:]}
    return (f'{DATASET}, minus GCN, with 95 % intervals: ' + '; '.join(
        f'{name}: {text}' for name, text in texts.items() if text) + '.'
        if any(texts.values()) else '')


def main(argv: list[str]) -> None:
    options = runner.parser('tsne', [DATASET], runs=5)
    options.add_argument('--epochs', type=runner.positive, default=200)
    args = options.parse_args(argv)
    if args.quick:
        args.runs = min(args.runs, 2)
        if args.datasets == [DATASET]:
            args.datasets = ['Digits']
    tasks = [
        Task(method, dataset, splits_of(dataset)[0], seed, settings_of(
            method, dataset, epochs=args.epochs, patience=args.epochs,
            hidden_channels=WIDTH))
        for seed in range(args.runs) for dataset in args.datasets
        for method in LABELS]
    runner.run_and_report(sys.modules[__name__], tasks, args)
