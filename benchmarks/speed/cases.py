r"""The cases: what is asked, on which graphs, with which variants."""
import warnings
from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module
from torch_geometric import EdgeIndex
from torch_geometric.data import Data
from torch_geometric.nn import GCN, GATConv, GCNConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.typing import SparseTensor
from torch_geometric.utils import sort_edge_index, to_torch_csr_tensor

from benchmarks.speed.graphs import Size
from benchmarks.speed.measure import MALLOC, Case, Run, UnavailableError
from torch_agcn import AGCN, AGCNConv, GatedDiffusion
from torch_agcn.functional import dirichlet_energy
from torch_agcn.transforms import ReorderNodes

Build = Callable[[Any], Run]
EDGES, CSR, SPARSE = 'GCN, edge_index', 'GCN, torch CSR', 'GCN, SparseTensor'
GAT = 'GAT, 8 heads'
PAPER, HALF_OPEN = 'AGCN (paper)', 'AGCN (paper), gate half open'
RELATIVE = 'AGCN (relative)'
PRODUCT = 'product, AGCN'
CLASSES = 16
LAYER: dict[str, Callable[..., Module]] = {
    EDGES: GCNConv, PAPER: AGCNConv,
    RELATIVE: partial(AGCNConv, energy='relative')}
NETWORK: dict[str, Callable[..., Module]] = {
    EDGES: GCN, CSR: GCN, SPARSE: GCN, PAPER: AGCN,
    RELATIVE: partial(AGCN, energy='relative')}


# What is timed ###############################################################


def step(conv: Any, x: Tensor, *graph: Any) -> Run:
    r"""Forward and backward of one layer."""
    def run() -> Tensor:
        conv.zero_grad()
        x.grad = None
        out = conv(x, *graph)
        out.backward(torch.ones_like(out))
        return out
    return run


def train(model: Module, loss_of: Callable[[], Tensor]) -> Run:
    r"""A training step."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def run() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss.detach()
    return run


def labels(x: Tensor) -> Tensor:
    r"""Something to learn."""
    return x[:, :CLASSES].argmax(dim=1)


def check_compiled(run: Run) -> Run:
    r"""The same if it can be compiled."""
    try:
        run()
    except RuntimeError as error:
        raise UnavailableError(
            "'torch.compile' needs a C++ compiler: "
            + str(error).strip().splitlines()[0]) from error
    return run


# Layers ######################################################################


def adjacency(form: str, data: Data) -> Any:
    r"""An undirected graph in the form that a variant takes."""
    size = data.num_nodes, data.num_nodes
    if form == CSR:
        with warnings.catch_warnings():
            warnings.filterwarnings('ignore', 'Sparse (CSR|inv)')
            return to_torch_csr_tensor(data.edge_index, size=size)
    if form == SPARSE:
        return SparseTensor.from_edge_index(data.edge_index,
                                            sparse_sizes=size)
    if form == 'GCN, EdgeIndex':
        found = EdgeIndex(data.edge_index, sparse_size=size)
        return found.sort_by('col').values.fill_cache_()
    return data.edge_index


def layer(make: Callable[..., Module], form: str = '',
          **settings: Any) -> Build:
    r"""Forward and backward of a layer as wide as its input."""
    def build(data: Data) -> Run:
        F = data.num_features
        return step(make(F, F, cached=True, **settings), data.x,
                    adjacency(form, data))
    return build


def half_open(data: Data) -> Run:
    r"""The paper's layer with a gate of 1 - exp(-0.7)."""
    energy = float(dirichlet_energy(data.x.detach(), data.edge_index))
    return layer(AGCNConv, beta=0.7 / energy**2)(data)


def normalized(data: Data) -> tuple[Tensor, Tensor]:
    r"""The edges and values of GCN's matrix, sorted by target."""
    edges, weight = gcn_norm(data.edge_index, None, data.num_nodes)
    return sort_edge_index(edges, weight, data.num_nodes, sort_by_row=False)


def compiled(data: Data) -> Run:
    r"""GCN as fast as torch makes it: compiled, with edges that are
    normalized once and sorted by target.
    """
    F = data.num_features
    conv = torch.compile(GCNConv(F, F, normalize=False))
    return check_compiled(step(conv, data.x, *normalized(data)))


def gat(data: Data) -> Run:
    r"""Heads that are together as wide as the input."""
    F = data.num_features
    return step(GATConv(F, F // 8, heads=8), data.x, data.edge_index)


def product(data: Data) -> Run:
    r"""One hop with an open gate, which is a product with GCN's matrix."""
    hop = GatedDiffusion(1, 0.0, energy='total', cached=True)
    return torch.no_grad()(lambda: hop(data.x.detach(), data.edge_index))


def torch_sparse_product(data: Data) -> Run:
    r"""The same product by torch_sparse."""
    edges, weight = normalized(data)
    size = data.num_nodes, data.num_nodes
    adj = SparseTensor.from_edge_index(edges.flip(0), weight, size)
    return torch.no_grad()(lambda: adj.matmul(data.x.detach()))


def edge_index_product(data: Data) -> Run:
    r"""The same product by PyG's EdgeIndex."""
    edges, weight = normalized(data)
    size = data.num_nodes, data.num_nodes
    adj = EdgeIndex(edges, sparse_size=size, sort_order='col').fill_cache_()
    return torch.no_grad()(lambda: adj.matmul(data.x.detach(), weight,
                                              transpose=True))


LAYERS: dict[str, Build] = {
    **{form: layer(GCNConv, form)
       for form in [EDGES, 'GCN, EdgeIndex', CSR, SPARSE]},
    'GCN, compiled': compiled,
    GAT: gat,
    PAPER: layer(AGCNConv),
    HALF_OPEN: half_open,
    RELATIVE: layer(AGCNConv, energy='relative'),
    'AGCN (relative), gate half open': layer(AGCNConv, energy='relative',
                                             beta=0.7),
    'AGCN (relative), bfloat16': lambda data: torch.autocast(
        'cpu', torch.bfloat16)(LAYERS[RELATIVE](data)),
    'product, EdgeIndex': edge_index_product,
    'product, torch_sparse': torch_sparse_product,
    PRODUCT: product,
}


def hops(K: int, recompute: bool) -> Build:
    r"""Forward and backward of K hops with gates half open."""
    return layer(lambda *_, **settings: GatedDiffusion(
        K, beta=0.7, recompute=recompute, **settings))


RECOMPUTE = {f'{K} hop{"s" * (K > 1)}{", recomputed" * recompute}': hops(
    K, recompute) for recompute in [False, True] for K in [1, 4, 16, 64]}


def reordered(build: Build) -> Build:
    r"""The same after ReorderNodes."""
    def build_reordered(data: Data) -> Run:
        other = ReorderNodes()(Data(x=data.x.detach(),
                                    edge_index=data.edge_index))
        other.x.requires_grad_()
        return build(other)
    return build_reordered


ORDER: dict[str, Build] = {
    'ReorderNodes': lambda data: torch.no_grad()(
        lambda: ReorderNodes()(data))}
for name in [PRODUCT, RELATIVE, EDGES]:
    ORDER[name] = LAYERS[name]
    ORDER[f'{name}, reordered'] = reordered(LAYERS[name])


# Networks ####################################################################


def network(name: str) -> Build:
    r"""A training step of two layers."""
    def build(data: Data) -> Run:
        x, adj, y = data.x.detach(), adjacency(name, data), labels(data.x)
        model = NETWORK[name](x.size(1), x.size(1), 2, CLASSES, cached=True)
        return train(model, lambda: F.cross_entropy(model(x, adj), y))
    return build


def passes(name: str) -> Build:
    r"""A forward pass of one layer."""
    def build(data: Data) -> Run:
        conv = LAYER[name](data.num_features, CLASSES, cached=True)
        return torch.no_grad()(lambda: conv(data.x, data.edge_index))
    return build


def changing(name: str, is_compiled: bool) -> Build:
    r"""Training steps of a layer without a cache on one graph after the
    other.
    """
    def build(graphs: list[Data]) -> Run:
        conv = LAYER[name](graphs[0].num_features, CLASSES)
        call: Any = conv
        if is_compiled:
            torch._dynamo.config.recompile_limit = 64
            call = torch.compile(conv, dynamic=True)
        following = cycle([(data.x, data.edge_index, labels(data.x))
                           for data in graphs])

        def loss_of() -> Tensor:
            x, edge_index, y = next(following)
            return F.cross_entropy(call(x, edge_index), y)
        run = train(conv, loss_of)
        return check_compiled(run) if is_compiled else run
    return build


CHANGING = {
    f'{name}{", compiled" * is_compiled}: training step': changing(
        name, is_compiled) for name in LAYER for is_compiled in [False, True]}


# All of them #################################################################

# Where features of 4 bytes leave a cache of 32 MB, with 20 edges a node:
LEAVES_CACHE = 2_500_000
BIG = Size('random', 200_000, 2_000_000, 64)
GROWING = {edges: Size('power law', edges // 20, edges, 64) for edges in [
    20_000, 80_000, 320_000, 1_280_000,
    *(LEAVES_CACHE * 2**i for i in range(5))]}
COMPLEXITY = (EDGES, PAPER, HALF_OPEN, RELATIVE)
CASES = {
    'layer': Case(
        'What does a forward and backward pass of one layer take, and a '
        'sparse product alone?', [BIG], LAYERS, 'times GCN on edge_index',
        lambda name: EDGES, malloc=tuple(MALLOC),
        memory=(EDGES, CSR, SPARSE, GAT, PAPER, RELATIVE)),
    'recompute': Case(
        'What do many hops of GatedDiffusion with gates half open take, '
        'with and without recomputing?',
        [Size('random', 50_000, 500_000, 64)], RECOMPUTE, 'times one hop',
        lambda name: '1 hop', memory=tuple(RECOMPUTE), counts=True),
    'order': Case(
        'What does ReorderNodes save, and what does it take?',
        [BIG._replace(graph=kind) for kind in ['points', 'random',
                                               'power law']],
        ORDER, 'times the former order',
        lambda name: name.removesuffix(', reordered')),
    'scaling': Case(
        'What does a training step of two layers take on a big graph?',
        list(GROWING.values()), {name: network(name) for name in NETWORK},
        repeats=3, memory=tuple(NETWORK),
        memory_sizes=[GROWING[LEAVES_CACHE * 4**i] for i in range(3)],
        most={EDGES: 10_000_000}),
    'complexity': Case(
        'How do time and memory of one layer grow with nodes, edges and '
        'features?', list(dict.fromkeys([
            *(Size('random', 20_000 * 2**i, 200_000, 64) for i in range(7)),
            *(Size('random', 5_000, 50_000 * 2**i, 64) for i in range(6)),
            *(Size('random', 20_000, 200_000, 16 * 2**i) for i in range(6))])),
        {name: LAYERS[name] for name in COMPLEXITY}, memory=COMPLEXITY,
        counts=True),
    'small': Case(
        'What does a forward pass take on small graphs?',
        [Size('random', 100, 1_000, 64), Size('random', 2_708, 10_556, 16),
         Size('random', 2_708, 10_556, 1_433)],
        {name: passes(name) for name in LAYER}, 'times GCN on edge_index',
        lambda name: EDGES, repeats=15),
    'changing': Case(
        'What does a layer without a cache take on graphs that change, eager '
        'and compiled?',
        [Size('changing', 300, 3_000, 64), Size('changing', 2_500, 70_000, 64),
         Size('changing', 40_000, 800_000, 64)], CHANGING,
        'times GCN, eager', lambda name: next(iter(CHANGING))),
}
