r"""AGCN beside GCN on data that comes with the packages, in a few minutes.

Trains three models on Cora and on a k-nearest-neighbor graph of scikit-learn's
digits: GCN, AGCN as the paper has it, and AGCN with the stop function that
works at depth. Prints a table and draws accuracy against depth (there, the
last one also with its gate held open, to tell what the gate does from what
the architecture does), the gates of all layers, and the training curves.
"""
import argparse
import time
from pathlib import Path

import pandas as pd
import torch
import torch_geometric.transforms as T
from torch import Tensor
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.nn import GCN
from tqdm import tqdm

from benchmarks.baselines.agcn import gates
from benchmarks.results import FIGURES, RESULTS, Table
from benchmarks.runner import positive
from benchmarks.training import count_classes, dropout, fit
from torch_agcn import AGCN, AGCNConv
from torch_agcn.datasets import ImageGraph, Planetoid

COLUMNS = [
    'dataset', 'method', 'depth', 'seed', 'epochs', 'val_accuracy',
    'test_accuracy', 'gates', 'ms_per_epoch', 'train_losses', 'val_losses']
METHODS = ['GCN', 'AGCN, paper', 'AGCN, relative + residual']
OPEN = 'the same hops, gate held open'
DEPTHS = [2, 4, 8, 16, 32]


class Deep(torch.nn.Module):
    r"""A hidden layer, then many gated steps of propagation in one AGCNConv:
    depth in hops, not in weight matrices.
    """

    def __init__(self, in_channels: int, hidden_channels: int,
                 out_channels: int, num_hops: int, p: float,
                 beta: float) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(in_channels, hidden_channels)
        self.conv = AGCNConv(hidden_channels, out_channels, beta=beta,
                             energy='relative', residual=True,
                             num_hops=num_hops, cached=True)
        self.p = p

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = (x @ self.lin.weight.t() + self.lin.bias).relu()
        return self.conv(dropout(x, self.p, self.training), edge_index)


class Net(torch.nn.Module):
    r"""Dropout before a model, on sparse features as well."""

    def __init__(self, model: torch.nn.Module, p: float) -> None:
        super().__init__()
        self.model = model
        self.p = p

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.model(dropout(x, self.p, self.training), edge_index)


def build(method: str, data: Data, depth: int) -> Net:
    r"""One of the three models."""
    sizes = data.num_features, 16, depth, count_classes(data.y)
    if method == 'GCN':
        return Net(GCN(*sizes, dropout=0.5, cached=True), 0.5)
    if method == 'AGCN, paper':
        return Net(AGCN(*sizes, dropout=0.5, cached=True), 0.5)
    beta = 1e30 if method == OPEN else 50.0
    return Net(Deep(data.num_features, 16, sizes[3], depth, 0.5, beta), 0.5)


def load(root: str) -> dict[str, Data]:
    r"""Both data sets; features that are mostly zero are kept sparse."""
    cora = Planetoid(root, 'Cora', transform=T.NormalizeFeatures())[0]
    cora.num_nodes, cora.x = cora.x.size(0), cora.x.to_sparse().coalesce()
    return {'Cora': cora, 'Digits': ImageGraph(root, 'Digits')[0]}


def run(table: Table, dataset: str, method: str, depth: int, seed: int,
        data: Data) -> None:
    r"""Trains one model and writes its row."""
    seed_everything(seed)
    model = build(method, data, depth)
    start = time.perf_counter()
    result = fit(model, data, epochs=200, patience=20,
                 params=[dict(params=model.parameters(), weight_decay=5e-4)])
    seconds = time.perf_counter() - start
    hit = (result.logits.argmax(-1) == data.y).float()
    table.append(
        ['dataset', 'method', 'depth', 'seed'],
        dataset=dataset, method=method, depth=depth, seed=seed,
        epochs=result.epochs,
        val_accuracy=round(100 * float(hit[data.val_mask].mean()), 2),
        test_accuracy=round(100 * float(hit[data.test_mask].mean()), 2),
        gates=' '.join(f'{g:.4g}' for g in gates(model, data)),
        ms_per_epoch=round(1000 * seconds / result.epochs, 2),
        train_losses=' '.join(f'{a:.4g}' for a, _ in result.losses),
        val_losses=' '.join(f'{b:.4g}' for _, b in result.losses))


def show(rows: pd.DataFrame) -> None:
    r"""Prints the table for two layers, and for the deep one its depth."""
    lines = []
    for dataset in ['Cora', 'Digits']:
        for method in METHODS:
            part = rows[(rows.dataset == dataset) & (rows.method == method)]
            part = part[part.depth == (16 if method == METHODS[2] else 2)]
            if part.empty:
                continue
            values = part.gates.dropna().astype(str)
            gate = '-' if values.empty else _range(values.iloc[0])
            accuracy = part.test_accuracy
            lines.append([dataset, method, part.depth.iloc[0], gate,
                          f'{accuracy.mean():.1f} ± {accuracy.std():.1f}',
                          f'{part.ms_per_epoch.median():.1f}', len(part)])
    print(pd.DataFrame(lines, columns=[
        'data', 'model', 'layers or hops', 'gates', 'test accuracy',
        'ms per epoch', 'seeds']).to_string(index=False))


def _range(values: str) -> str:
    numbers = [float(v) for v in values.split()]
    low, high = min(numbers), max(numbers)
    return f'{low:.3g}' if low == high else f'{low:.3g} to {high:.3g}'


def draw(rows: pd.DataFrame, folder: Path) -> list[Path]:
    r"""The three plots, from the rows alone."""
    from benchmarks.plots import STYLES, plt, save

    styles = dict(zip(METHODS, [STYLES['GCN'], STYLES['AGCN, paper'],
                                STYLES['AGCN, recommended']]))
    styles[OPEN] = dict(color='#7fb3d5', marker='v', linestyle=':')
    cora, paths = rows[rows.dataset == 'Cora'], []

    figure, axis = plt.subplots(figsize=(6.4, 4))
    for method in [*METHODS, OPEN]:
        mean = cora[cora.method == method].groupby('depth').test_accuracy
        axis.plot(mean.mean(), label=method, **styles[method])
    axis.set(xscale='log', xlabel='layers or hops', xticks=DEPTHS,
             xticklabels=DEPTHS, ylabel='test accuracy (%)', ylim=(0, 100),
             title='Cora: accuracy against depth')
    axis.minorticks_off()
    axis.legend(loc='center right', bbox_to_anchor=(1, 0.56))
    paths += save(figure, folder, 'quickstart_depth')

    figure, axis = plt.subplots(figsize=(6.4, 4))
    for method in METHODS[1:]:
        for depth, width in [(2, 1.0), (32, 2.0)]:
            part = cora[(cora.method == method) & (cora.depth == depth)]
            if len(part):
                values = [float(g) for g in part.gates.iloc[0].split()]
                axis.plot(range(1, len(values) + 1), values,
                          label=f'{method}, {depth}', linewidth=width,
                          markersize=4, **styles[method])
    axis.set(xlabel='layer or hop', ylabel='gate', ylim=(-0.03, 1.03),
             xscale='log', title='Cora: what the gates do after training')
    axis.set_xticks([1, *DEPTHS], [1, *DEPTHS])
    axis.minorticks_off()
    axis.legend()
    paths += save(figure, folder, 'quickstart_gates')

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True)
    for axis, column, title in zip(axes, ['train_losses', 'val_losses'],
                                   ['training', 'validation']):
        for method in METHODS:
            part = cora[(cora.method == method) & (cora.depth == 2)]
            values = [float(v) for v in part[column].iloc[0].split()]
            style = {**styles[method], 'marker': None}
            axis.plot(range(1, len(values) + 1), values, label=method, **style)
        axis.set(xlabel='epoch', title=f'Cora: {title} loss, depth 2')
    axes[0].set_ylabel('cross-entropy (nats)')
    axes[1].legend()
    paths += save(figure, folder, 'quickstart_losses')
    return paths


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser('python -m benchmarks quickstart')
    parser.add_argument('--root', default='data', help='where data is kept')
    parser.add_argument('--seeds', type=positive, default=3)
    parser.add_argument('--depths', type=positive, nargs='+', default=DEPTHS)
    parser.add_argument('--fresh', action='store_true',
                        help='forget the runs there are')
    parser.add_argument('--out', type=Path, default=Path('quickstart'),
                        help='where results and plots go')
    parser.add_argument('--readme', action='store_true',
                        help='put them where the README shows them from')
    args = parser.parse_args(argv)
    # Graphs of this size gain nothing from a second thread, and on a busy
    # machine threads that wait for each other stall.
    torch.set_num_threads(1)
    results, figures = args.out, args.out
    if args.readme:
        results, figures = RESULTS, FIGURES
    table = Table(results / 'quickstart.csv', COLUMNS)
    data = load(args.root)
    if args.fresh:
        table.path.unlink(missing_ok=True)
    jobs = [(dataset, method, 16 if method == METHODS[2] else 2, seed)
            for dataset in data for method in METHODS
            for seed in range(args.seeds)]
    jobs += [('Cora', method, depth, 0)
             for method in [*METHODS, OPEN] for depth in args.depths]
    rows = table.read()
    done = set(zip(rows.dataset, rows.method, rows.depth, rows.seed))
    jobs = [job for job in dict.fromkeys(jobs) if job not in done]
    if done:
        print(f'{len(done)} runs are in {table.path} already; '
              f'--fresh runs them anew.')
    bar = tqdm(jobs)
    for dataset, method, depth, seed in bar:
        bar.set_description(f'{dataset}, {method}, depth {depth}')
        run(table, dataset, method, depth, seed, data[dataset])
    rows = table.read()
    show(rows)
    print('Plots:', *draw(rows, figures), sep='\n  ')
