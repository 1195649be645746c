r"""Time and memory of AGCNConv beside PyG's GCNConv, and of KNNGraph.

All sides of a comparison run in one process on one thread and take turns.
Times are those of the processor, and ratios of medians are what counts, for
the machine may be busy with other things.
"""
import argparse
import gc
import multiprocessing
import resource
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
import torch.nn.functional as F
import torch_geometric.transforms as T
import torch_geometric.typing
from torch import Tensor
from torch.nn import Module
from torch_geometric.nn import APPNP, GATConv, GCNConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.typing import SparseTensor
from torch_geometric.utils import sort_edge_index, to_torch_csr_tensor
from tqdm import tqdm

from benchmarks.results import (
    RESULTS,
    Table,
    markdown_table,
    provenance,
    write_readme,
)
from benchmarks.runner import QUICK, allocations, positive, take_turns
from torch_agcn import AGCNConv, GatedDiffusion
from torch_agcn.datasets import Planetoid
from torch_agcn.functional import dirichlet_energy

TABLE = Table(RESULTS / 'runtime.csv', [
    'case', 'variant', 'nodes', 'edges', 'features', 'repeat', 'milliseconds',
    'megabytes', 'tensors'])
Sides = dict[str, Callable[[], Any]]
OURS: dict[str, Any] = dict(energy='relative')

GCN, GCN_CSR, GCN_COMPILED = (
    'GCN edge_index', 'GCN torch CSR',
    'GCN compiled, sorted normalized edges')
PAPER, HALF_OPEN, RELATIVE, RELATIVE_HALF_OPEN = (
    'AGCN paper', 'AGCN paper, gate half open', 'AGCN relative + residual',
    'AGCN relative, gate half open')
# What is measured where it is not time, and its unit:
VALUES = {'memory': ('megabytes', ' MB'), 'tensors': ('tensors', '')}


class Bound(NamedTuple):
    r"""What we set ourselves: at most so much beside another variant, or in
    itself.
    """

    case: str
    variant: str
    beside: str | None
    most: float | None


BOUNDS = [
    Bound('layer', PAPER, GCN, 0.17),
    Bound('layer', PAPER, GCN_COMPILED, 0.72),
    Bound('layer', PAPER, GCN_CSR, 0.42),
    Bound('layer', PAPER, 'GCN SparseTensor', 1.10),
    Bound('layer', HALF_OPEN, GCN, 0.40),
    Bound('layer', HALF_OPEN, 'GCN SparseTensor', 1.10),
    Bound('layer', RELATIVE, GCN, 0.22),
    Bound('layer', RELATIVE, GCN_COMPILED, 0.90),
    Bound('layer', RELATIVE, GCN_CSR, 0.52),
    Bound('layer', RELATIVE, 'GCN SparseTensor', 0.85),
    Bound('layer', RELATIVE_HALF_OPEN, GCN, 0.22),
    Bound('layer', RELATIVE_HALF_OPEN, GCN_COMPILED, 0.90),
    Bound('layer', RELATIVE_HALF_OPEN, GCN_CSR, 0.52),
    Bound('small', PAPER, GCN, 1.70),
    Bound('small', RELATIVE, GCN, 2.50),
    Bound('Cora size', PAPER, GCN, 0.85),
    Bound('Cora size', RELATIVE, GCN, 1.20),
    Bound('Cora hidden', PAPER, GCN, 0.85),
    Bound('Cora hidden', RELATIVE, GCN, 1.20),
    Bound('hops', 'GatedDiffusion', 'APPNP', None),
    Bound('tensors', f'{RELATIVE}, cached, forward', None, 3),
    Bound('tensors', f'{RELATIVE}, cached, backward', None, 2),
    Bound('tensors', f'{RELATIVE}, forward', None, 6),
    Bound('tensors', f'{RELATIVE}, backward', None, 6),
    Bound('tensors', f'{PAPER}, cached, forward', None, None),
    Bound('tensors', f'{PAPER}, cached, backward', None, None),
    Bound('tensors', f'{PAPER}, forward', None, None),
    Bound('tensors', f'{PAPER}, backward', None, None),
    Bound('Cora epoch', 'AGCN', 'GCN', 1.10),
    Bound('memory', HALF_OPEN, GCN, 0.50),
    Bound('memory', RELATIVE, GCN, 0.50),
    Bound('kNN', 'KNNGraph', 'scikit-learn brute force', 1.00),
]


def random_graph(num_nodes: int, num_edges: int) -> Tensor:
    r"""An undirected graph with :obj:`num_edges` directed edges."""
    generator = torch.Generator().manual_seed(0)
    half = torch.randint(num_nodes, (2, num_edges // 2), generator=generator)
    return torch.cat([half, half.flip(0)], dim=1)


def problem(nodes: int, edges: int, features: int) -> tuple[Tensor, Tensor]:
    r"""Random features and a random graph."""
    torch.manual_seed(0)
    return (torch.randn(nodes, features, requires_grad=True),
            random_graph(nodes, edges))


def compare(table: Table, case: str, sides: Sides, repeats: int,
            part: int = 1, **sizes: int) -> None:
    r"""Times variants of a case."""
    take_turns(table, [(dict(variant=name), run)
                       for name, run in sides.items()], repeats, part,
               case=case, **sizes)


def step(conv: Module, x: Tensor, *graph: Any) -> Callable[[], None]:
    r"""Forward and backward of one layer."""
    def run() -> None:
        conv.zero_grad()
        x.grad = None
        out = conv(x, *graph)
        out.backward(torch.ones_like(out))
    return run


def passes(conv: Module, x: Tensor, edge_index: Tensor,
           number: int) -> Callable[[], None]:
    r"""Many forward passes of one layer."""
    @torch.no_grad()
    def run() -> None:
        for _ in range(number):
            conv(x, edge_index)
    return run


def layers(x: Tensor, edge_index: Tensor) -> Sides:
    r"""The sides of the comparison of single layers, on one graph."""
    num_nodes, num_features = x.shape
    size = num_features, num_features
    energy = float(dirichlet_energy(x.detach(), edge_index))
    half_open = 0.7 / energy**2  # g = 1 - exp(-0.7)
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', 'Sparse (CSR|inv)')
        csr = to_torch_csr_tensor(edge_index, size=(num_nodes, num_nodes))
    sides: Sides = {
        GCN: step(GCNConv(*size, cached=True), x, edge_index),
        GCN_CSR: step(GCNConv(*size, cached=True), x, csr),
        'GAT 8 x 8 heads': step(
            GATConv(num_features, num_features // 8, heads=8), x, edge_index),
        PAPER: step(AGCNConv(*size, cached=True), x, edge_index),
        HALF_OPEN: step(AGCNConv(*size, beta=half_open, cached=True), x,
                        edge_index),
        RELATIVE: step(AGCNConv(*size, cached=True, **OURS), x, edge_index),
        RELATIVE_HALF_OPEN: step(
            AGCNConv(*size, cached=True, beta=0.7, **OURS), x, edge_index),
    }
    if torch_geometric.typing.WITH_TORCH_SPARSE:
        adj = SparseTensor.from_edge_index(
            edge_index, sparse_sizes=(num_nodes, num_nodes)).t()
        sides['GCN SparseTensor'] = step(GCNConv(*size, cached=True), x, adj)
    else:
        print("No GCN on SparseTensor without 'torch_sparse': "
              "'make test-extensions' builds it")
    return sides


def compiled(x: Tensor, edge_index: Tensor) -> Sides:
    r"""GCN as fast as torch and PyG make it: compiled, with edges that are
    normalized once and sorted by target; nothing if there is no compiler.
    """
    edges, weight = gcn_norm(edge_index, None, x.size(0))
    edges, weight = sort_edge_index(edges, weight, x.size(0),
                                    sort_by_row=False)
    conv = torch.compile(GCNConv(x.size(1), x.size(1), normalize=False))
    run = step(conv, x, edges, weight)
    try:
        run()
    except RuntimeError as error:
        print("No compiled GCN, for 'torch.compile' needs a C++ compiler:",
              str(error).strip().splitlines()[0])
        return {}
    return {GCN_COMPILED: run}


def layer(table: Table, repeats: int, **sizes: int) -> None:
    r"""Forward and backward of single layers."""
    graph = problem(**sizes)
    compare(table, 'layer', {**layers(*graph), **compiled(*graph)}, repeats,
            **sizes)


def forward(table: Table, case: str, repeats: int, number: int,
            out_channels: int, **sizes: int) -> None:
    r"""Forward passes of single layers, so many at a time."""
    x, edge_index = problem(**sizes)
    size = x.size(1), out_channels
    convs = {GCN: GCNConv(*size, cached=True),
             PAPER: AGCNConv(*size, cached=True),
             RELATIVE: AGCNConv(*size, cached=True, **OURS)}
    compare(table, case, {name: passes(conv, x, edge_index, number)
                          for name, conv in convs.items()},
            repeats, number, **sizes)


def hops(table: Table, repeats: int, **sizes: int) -> None:
    r"""Forward and backward of ten hops without weights."""
    graph = problem(**sizes)
    compare(table, 'hops', {
        'APPNP': step(APPNP(10, 0.1, cached=True), *graph),
        'GatedDiffusion': step(GatedDiffusion(10, 0.1, cached=True), *graph),
    }, repeats, **sizes)


def count_tensors(conv: Module, x: Tensor,
                  edge_index: Tensor) -> dict[str, int]:
    r"""How many tensors of the size of the features a forward and a backward
    pass make; the first pass, in which a graph may be kept, does not count.
    """
    least = x.numel() * x.element_size()
    grad = torch.ones_like(conv(x, edge_index))
    outs: list[Tensor] = []
    made = {
        'forward': allocations(lambda: outs.append(conv(x, edge_index))),
        'backward': allocations(lambda: outs[0].backward(grad))}
    x.grad = None
    return {name: sum(size >= least for size in sizes)
            for name, sizes in made.items()}


def tensors(table: Table, **sizes: int) -> None:
    r"""The number of tensors that a layer makes, cached and not."""
    x, edge_index = problem(**sizes)
    size = x.size(1), x.size(1)
    settings = {PAPER: {}, RELATIVE: OURS}
    for name, cached in [(n, c) for n in settings for c in [True, False]]:
        todo = table.missing([
            dict(case='tensors', variant=f'{name}, {way}', **sizes, repeat=0)
            for way in (['cached, forward', 'cached, backward'] if cached
                        else ['forward', 'backward'])])
        if todo:
            found = count_tensors(AGCNConv(*size, cached=cached,
                                           **settings[name]), x, edge_index)
            for row in todo:
                way = row['variant'].split(', ')[-1]
                table.append(**row, milliseconds='', megabytes='',
                             tensors=found[way])


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


def epoch(table: Table, repeats: int, root: str, **sizes: int) -> None:
    r"""Epochs of both layers."""
    torch.manual_seed(0)
    compare(table, 'Cora epoch', {'GCN': cora_epoch(GCNConv, root),
                                  'AGCN': cora_epoch(AGCNConv, root)},
            repeats, **sizes)


def _peak(variant: str, sizes: tuple[int, int, int], out: Any) -> None:
    torch.set_num_threads(1)
    run = layers(*problem(*sizes))[variant]
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
    names = [b.variant for b in BOUNDS if b.case == 'memory'] + [GCN]
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
        table.append(**row, milliseconds='', megabytes=round(megabytes, 1),
                     tensors='')


def scaling(table: Table, repeats: int, most: int) -> None:
    r"""Time against the number of edges, ten for each node."""
    for num_edges in [most // 2**i for i in reversed(range(6))]:
        sizes = dict(nodes=num_edges // 10, edges=num_edges, features=64)
        sides = layers(*problem(**sizes))
        compare(table, 'scaling', {k: sides[k] for k in (HALF_OPEN, RELATIVE)},
                repeats, **sizes)


def knn(table: Table, repeats: int, num_nodes: int) -> None:
    r"""Our exact search beside scikit-learn's."""
    from sklearn.neighbors import NearestNeighbors
    from threadpoolctl import threadpool_limits
    from torch_geometric.data import Data

    from torch_agcn.transforms import KNNGraph

    num_features = 784
    x = torch.rand(num_nodes, num_features,
                   generator=torch.Generator().manual_seed(0))
    transform, points = KNNGraph(k=8), x.numpy()
    with threadpool_limits(1):
        compare(table, 'kNN', {
            'KNNGraph': lambda: transform(Data(pos=x)),
            'scikit-learn brute force': lambda: NearestNeighbors(
                n_neighbors=9,
                algorithm='brute').fit(points).kneighbors(points),
        }, repeats, nodes=num_nodes, edges=8 * num_nodes,
            features=num_features)


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    r"""The bounds and what was measured, from the rows of the latest commit
    that has any of a case.
    """
    lines = []
    for bound in BOUNDS:
        part = rows[rows.case == bound.case]
        part = part[part.commit == part.commit.iloc[-1]] if len(part) else part
        value, unit = VALUES.get(bound.case, ('milliseconds', ' ms'))
        found = part.groupby('variant')[value].median()
        if not {bound.variant, bound.beside} <= {None, *found.index}:
            continue
        own = ratio = found[bound.variant]
        other, form = '–', '.0f'
        if bound.beside is not None:
            ratio, form = own / found[bound.beside], '.2f'
            other = f'{found[bound.beside]:.4g}{unit}'
        lines.append([
            bound.case, bound.variant, f'{own:.4g}{unit}',
            bound.beside or '–', other, f'{ratio:{form}}',
            *(['–', '–'] if bound.most is None else [
                f'{bound.most:{form}}',
                'yes' if ratio <= bound.most else 'no'])])
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


def jobs(table: Table, repeats: int, scale: int,
         root: str) -> dict[str, Callable[[], None]]:
    r"""What runs each case, on graphs that are so many times smaller."""
    large = dict(nodes=200_000 // scale, edges=2_000_000 // scale)
    small = dict(nodes=100, edges=1000, features=64)
    cora = dict(nodes=2708, edges=10556, features=1433)
    few, many = max(3, repeats // 3), 3 * repeats
    return {
        'layer': lambda: layer(table, repeats, **large, features=64),
        'small': lambda: forward(table, 'small', many, 200, 64, **small),
        'cora': lambda: forward(table, 'Cora size', many, 5, 16, **cora),
        'hidden': lambda: forward(table, 'Cora hidden', many, 50, 16,
                                  **{**cora, 'features': 16}),
        'hops': lambda: hops(table, repeats, **large, features=16),
        'tensors': lambda: tensors(table, **large, features=64),
        'epoch': lambda: epoch(table, 10 * repeats, root, **cora),
        'memory': lambda: memory(table, **large, features=64),
        'scaling': lambda: scaling(table, few, 8_000_000 // scale),
        'knn': lambda: knn(table, few, 10_000 // scale),
    }


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser('python -m benchmarks runtime')
    cases = list(jobs(TABLE, 1, 1, ''))
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
    if not args.show:
        torch.set_num_threads(1)
        print(provenance()['versions'], 'threads =', torch.get_num_threads())
        todo = jobs(table, args.repeats, scale, args.root)
        for case in args.cases:
            todo[case]()
    frame = summary(table.read())
    print(frame.to_string(index=False))
    if not args.quick:
        write_readme('runtime', markdown_table(frame))
