r"""Time and memory of AGCNConv beside PyG's GCNConv, and of KNNGraph.

All sides of a comparison run in one process and take turns; ratios of medians
are what counts, for the machine may be busy with other things.
"""
import argparse
import gc
import multiprocessing
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
import torch_geometric.transforms as T
import torch_geometric.typing
from torch import Tensor
from torch_geometric.nn import GATConv, GCNConv
from torch_geometric.typing import SparseTensor
from torch_geometric.utils import to_torch_csr_tensor
from tqdm import tqdm

from benchmarks.results import (
    RESULTS,
    Table,
    markdown_table,
    provenance,
    write_readme,
)
from benchmarks.runner import QUICK, positive, take_turns
from torch_agcn import AGCNConv
from torch_agcn.datasets import Planetoid
from torch_agcn.functional import dirichlet_energy

TABLE = Table(RESULTS / 'runtime.csv', [
    'case', 'variant', 'nodes', 'edges', 'features', 'repeat', 'milliseconds',
    'megabytes'])
OURS = dict(energy='relative', beta=1.0, residual=True)

# The bounds we set ourselves: case, variant, beside what, at most.
BOUNDS = [
    ('layer', 'AGCN paper', 'GCN edge_index', 0.40),
    ('layer', 'AGCN paper', 'GCN SparseTensor', 1.10),
    ('layer', 'AGCN paper, gate half open', 'GCN edge_index', 0.40),
    ('layer', 'AGCN paper, gate half open', 'GCN SparseTensor', 1.10),
    ('layer', 'AGCN relative + residual', 'GCN edge_index', 0.30),
    ('layer', 'AGCN relative + residual', 'GCN SparseTensor', 0.85),
    ('Cora epoch', 'AGCN', 'GCN', 1.10),
    ('memory', 'AGCN paper, gate half open', 'GCN edge_index', 0.50),
    ('memory', 'AGCN relative + residual', 'GCN edge_index', 0.50),
    ('kNN', 'KNNGraph', 'scikit-learn brute force', 1.00),
]


def random_graph(num_nodes: int, num_edges: int) -> Tensor:
    r"""An undirected graph with :obj:`num_edges` directed edges."""
    generator = torch.Generator().manual_seed(0)
    half = torch.randint(num_nodes, (2, num_edges // 2), generator=generator)
    return torch.cat([half, half.flip(0)], dim=1)


def compare(table: Table, case: str, sides: dict[str, Callable[[], Any]],
            repeats: int, **sizes: int) -> None:
    r"""Times variants of a case."""
    take_turns(table, [(dict(variant=name), run)
                       for name, run in sides.items()], repeats, case=case,
               **sizes)


def step(conv: torch.nn.Module, x: Tensor, adj: Any) -> Callable[[], None]:
    r"""Forward and backward of one layer."""
    def run() -> None:
        conv.zero_grad()
        x.grad = None
        out = conv(x, adj)
        out.backward(torch.ones_like(out))
    return run


def layers(num_nodes: int, num_edges: int,
           num_features: int) -> dict[str, Callable[[], None]]:
    r"""The sides of the comparison of single layers, on one graph."""
    torch.manual_seed(0)
    edge_index = random_graph(num_nodes, num_edges)
    x = torch.randn(num_nodes, num_features, requires_grad=True)
    size = num_features, num_features
    energy = float(dirichlet_energy(x.detach(), edge_index))
    half_open = 0.7 / energy**2  # g = 1 - exp(-0.7)
    csr = to_torch_csr_tensor(edge_index, size=(num_nodes, num_nodes))
    sides = {
        'GCN edge_index': step(GCNConv(*size, cached=True), x, edge_index),
        'GCN torch CSR': step(GCNConv(*size, cached=True), x, csr),
        'GAT 8 x 8 heads': step(
            GATConv(num_features, num_features // 8, heads=8), x, edge_index),
        'AGCN paper': step(AGCNConv(*size, cached=True), x, edge_index),
        'AGCN paper, gate half open': step(
            AGCNConv(*size, beta=half_open, cached=True), x, edge_index),
        'AGCN relative + residual': step(
            AGCNConv(*size, cached=True, **OURS), x, edge_index),
    }
    if torch_geometric.typing.WITH_TORCH_SPARSE:
        adj = SparseTensor.from_edge_index(
            edge_index, sparse_sizes=(num_nodes, num_nodes)).t()
        sides['GCN SparseTensor'] = step(GCNConv(*size, cached=True), x, adj)
    else:
        print("No GCN on SparseTensor without 'torch_sparse': "
              "'make test-extensions' builds it")
    return sides


def cora_epoch(conv: Any, root: str) -> Callable[[], None]:
    r"""One epoch of PyG's stock loop for citation networks: a training step
    and an evaluation, features dense, nothing cached.
    """
    data = Planetoid(root, 'Cora', transform=T.NormalizeFeatures())[0]
    conv1, conv2 = conv(data.num_features, 16), conv(16, 7)
    model = torch.nn.ModuleList([conv1, conv2])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def forward() -> Tensor:
        x = F.dropout(data.x, training=model.training)
        x = conv1(x, data.edge_index).relu()
        x = F.dropout(x, training=model.training)
        return conv2(x, data.edge_index)

    def run() -> None:
        model.train()
        optimizer.zero_grad()
        F.cross_entropy(forward()[data.train_mask],
                        data.y[data.train_mask]).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            forward()
    return run


def _peak(variant: str, sizes: tuple[int, int, int], out: Any) -> None:
    run = layers(*sizes)[variant]
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # The highest mark so far may lie above what is in use now:
    pages = int(Path('/proc/self/statm').read_text().split()[1])
    in_use = pages * resource.getpagesize() // 1024
    filler = torch.ones(max(0, before - in_use) * 256)
    for _ in range(3):
        run()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    del filler
    out.put((after - before) / 1024)


def memory(table: Table, nodes: int, edges: int, features: int) -> None:
    r"""Memory that forward and backward need beyond graph and features, each
    side in a process of its own.
    """
    context = multiprocessing.get_context('spawn')
    names = [b[1] for b in BOUNDS if b[0] == 'memory'] + ['GCN edge_index']
    sizes = nodes, edges, features
    for row in tqdm(table.missing([
            dict(case='memory', variant=name, nodes=nodes, edges=edges,
                 features=features, repeat=0) for name in names]),
            desc='memory'):
        queue = context.Queue()
        process = context.Process(target=_peak,
                                  args=(row['variant'], sizes, queue))
        process.start()
        megabytes = queue.get()
        process.join()
        table.append(**row, milliseconds='', megabytes=round(megabytes, 1))


def scaling(table: Table, repeats: int, most: int) -> None:
    r"""Time against the number of edges, ten for each node."""
    for num_edges in [most // 2**i for i in reversed(range(6))]:
        sides = layers(num_edges // 10, num_edges, 64)
        keep = ('AGCN paper, gate half open', 'AGCN relative + residual')
        compare(table, 'scaling', {k: sides[k] for k in keep}, repeats,
                nodes=num_edges // 10, edges=num_edges, features=64)


def knn(table: Table, repeats: int, num_nodes: int) -> None:
    r"""Our exact search beside scikit-learn's."""
    from sklearn.neighbors import NearestNeighbors
    from torch_geometric.data import Data

    from torch_agcn.transforms import KNNGraph

    num_features = 784
    x = torch.rand(num_nodes, num_features,
                   generator=torch.Generator().manual_seed(0))
    transform, points = KNNGraph(k=8), x.numpy()
    compare(table, 'kNN', {
        'KNNGraph': lambda: transform(Data(pos=x)),
        'scikit-learn brute force': lambda: NearestNeighbors(
            n_neighbors=9, algorithm='brute').fit(points).kneighbors(points),
    }, repeats, nodes=num_nodes, edges=8 * num_nodes, features=num_features)


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    r"""The bounds and what was measured, from the rows of the latest commit
    that has any of a case.
    """
    lines = []
    for case, variant, base, bound in BOUNDS:
        part = rows[rows.case == case]
        part = part[part.commit == part.commit.iloc[-1]] if len(part) else part
        value = 'megabytes' if case == 'memory' else 'milliseconds'
        medians = part.groupby('variant')[value].median()
        if variant in medians and base in medians:
            ratio = medians[variant] / medians[base]
            unit = 'MB' if case == 'memory' else 'ms'
            lines.append([case, variant, f'{medians[variant]:.4g} {unit}',
                          base, f'{medians[base]:.4g} {unit}', f'{ratio:.2f}',
                          f'{bound:.2f}', 'yes' if ratio <= bound else 'no'])
    part = rows[rows.case == 'scaling']
    part = part[part.commit == part.commit.iloc[-1]] if len(part) else part
    for variant, group in part.groupby('variant'):
        medians = group.groupby('edges').milliseconds.median().sort_index()
        growth = (medians / medians.shift()).max()
        lines.append(['doubling the edges', variant,
                      f'{medians.iloc[-1]:.4g} ms at {medians.index[-1]:,}',
                      'half the edges', f'{medians.iloc[-2]:.4g} ms',
                      f'{growth:.2f} at most', '2.30',
                      'yes' if growth <= 2.3 else 'no'])
    return pd.DataFrame(lines, columns=[
        'case', 'AGCN or ours', 'median', 'beside', 'median ', 'ratio',
        'bound', 'holds'])


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser('python -m benchmarks runtime')
    cases = ['layer', 'epoch', 'memory', 'scaling', 'knn']
    parser.add_argument('--cases', nargs='+', choices=cases, default=cases)
    parser.add_argument('--repeats', type=positive, default=9)
    parser.add_argument('--root', default='data', help='where data is kept')
    parser.add_argument('--quick', action='store_true',
                        help=f"a tenth of the size, in '{QUICK}'")
    parser.add_argument('--show', action='store_true',
                        help='only print the table and put it in the README')
    args = parser.parse_args(argv)
    table, scale = TABLE, 1
    if args.quick:
        table, scale = Table(QUICK / TABLE.path.name, TABLE.own_columns), 10
        args.repeats = 3
    sizes = dict(nodes=200_000 // scale, edges=2_000_000 // scale,
                 features=64)
    if not args.show:
        print(provenance()['versions'], 'threads =', torch.get_num_threads())
        if 'layer' in args.cases:
            compare(table, 'layer', layers(*sizes.values()), args.repeats,
                    **sizes)
        if 'epoch' in args.cases:
            torch.manual_seed(0)
            compare(table, 'Cora epoch', {
                'GCN': cora_epoch(GCNConv, args.root),
                'AGCN': cora_epoch(AGCNConv, args.root),
            }, 10 * args.repeats, nodes=2708, edges=10556, features=1433)
        if 'memory' in args.cases:
            memory(table, **sizes)
        if 'scaling' in args.cases:
            scaling(table, max(3, args.repeats // 3), 8_000_000 // scale)
        if 'knn' in args.cases:
            knn(table, max(3, args.repeats // 3), 10_000 // scale)
    frame = summary(table.read())
    print(frame.to_string(index=False))
    if not args.quick:
        write_readme('runtime', markdown_table(frame))
