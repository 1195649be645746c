r"""The cases: what is asked, on which graphs, with which sides."""
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
from torch_geometric.data import Batch, Data
from torch_geometric.nn import APPNP, GCN, GATConv, GCNConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.typing import SparseTensor
from torch_geometric.utils import sort_edge_index, to_torch_csr_tensor

from benchmarks.speed.graphs import Size, number_of_graphs
from benchmarks.speed.measure import MALLOC, Case, Run, UnavailableError
from torch_agcn import AGCN, AGCNConv, GatedDiffusion
from torch_agcn.diagnostics import SmoothnessRecorder
from torch_agcn.functional import anisotropic_weights, dirichlet_energy
from torch_agcn.transforms import ReorderNodes

Build = Callable[[Any], Run]
EDGES, CSR, SPARSE = 'GCN, edge_index', 'GCN, torch CSR', 'GCN, SparseTensor'
GAT = 'GAT, 8 heads'
PAPER, HALF_OPEN = 'AGCN, paper', 'AGCN, paper, gate half open'
RELATIVE = 'AGCN, relative'
PRODUCT = 'product, AGCN'
CLASSES = 16
LAYER: dict[str, Callable[..., Module]] = {
    EDGES: GCNConv, PAPER: AGCNConv,
    RELATIVE: partial(AGCNConv, energy='relative')}
NETWORK: dict[str, Callable[..., Module]] = {
    EDGES: GCN, CSR: GCN, SPARSE: GCN, PAPER: AGCN,
    RELATIVE: partial(AGCN, energy='relative')}


# What is timed ###############################################################


def step(conv: Any, x: Tensor, *graph: Any, call: Any = None) -> Run:
    r"""Forward and backward of one layer."""
    def run() -> Tensor:
        conv.zero_grad()
        x.grad = None
        out = (call or conv)(x, *graph)
        out.backward(torch.ones_like(out))
        return out
    return run


def forward(call: Callable[[], Any]) -> Run:
    r"""A call without gradients."""
    def run() -> Any:
        with torch.no_grad():
            return call()
    return run


def under_bfloat16(run: Run) -> Run:
    r"""The same under autocast."""
    def run_cast() -> Any:
        with torch.autocast('cpu', torch.bfloat16):
            return run()
    return run_cast


def adam(model: Module) -> torch.optim.Optimizer:
    r"""The optimizer of all networks."""
    return torch.optim.Adam(model.parameters(), lr=0.01)


def train(optimizer: torch.optim.Optimizer, call: Callable[[], Tensor],
          y: Tensor) -> Run:
    r"""A training step."""
    def run() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(call(), y)
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


def diffusion(make: Callable[..., Module], *args: Any, form: str = '',
              **settings: Any) -> Build:
    r"""Forward and backward of hops, which have no width."""
    return layer(lambda *_, **more: make(*args, **more), form, **settings)


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


def dgl_layer(data: Data) -> Run:
    r"""DGL's layer, with self-loops as GCN has them."""
    import dgl
    F = data.num_features
    graph = dgl.add_self_loop(dgl.graph(tuple(data.edge_index),
                                        num_nodes=data.num_nodes))
    conv = dgl.nn.GraphConv(F, F)
    return step(conv, data.x, call=lambda x: conv(graph, x))


def product(data: Data, dtype: torch.dtype = torch.float32) -> Run:
    r"""One hop with an open gate, which is a product with GCN's matrix."""
    hop = GatedDiffusion(1, 0.0, energy='total', cached=True)
    x = data.x.detach().to(dtype)
    return forward(lambda: hop(x, data.edge_index))


def torch_sparse_product(data: Data) -> Run:
    r"""The same product by torch_sparse."""
    edges, weight = normalized(data)
    size = data.num_nodes, data.num_nodes
    adj = SparseTensor.from_edge_index(edges.flip(0), weight, size)
    x = data.x.detach()
    return forward(lambda: adj.matmul(x))


def edge_index_product(data: Data) -> Run:
    r"""The same product by PyG's EdgeIndex."""
    edges, weight = normalized(data)
    size = data.num_nodes, data.num_nodes
    adj = EdgeIndex(edges, sparse_size=size, sort_order='col').fill_cache_()
    x = data.x.detach()
    return forward(lambda: adj.matmul(x, weight, transpose=True))


def gat(data: Data) -> Run:
    r"""Heads that are together as wide as the input."""
    F = data.num_features
    return step(GATConv(F, F // 8, heads=8), data.x, data.edge_index)


LAYERS: dict[str, Build] = {
    **{form: layer(GCNConv, form)
       for form in [EDGES, 'GCN, EdgeIndex', CSR, SPARSE]},
    'GCN, compiled': compiled,
    'GCN, DGL': dgl_layer,
    GAT: gat,
    PAPER: layer(AGCNConv),
    HALF_OPEN: half_open,
    RELATIVE: layer(AGCNConv, energy='relative'),
    'AGCN, relative, gate half open': layer(AGCNConv, energy='relative',
                                            beta=0.7),
    'AGCN, relative, bfloat16': lambda data: under_bfloat16(
        LAYERS[RELATIVE](data)),
    'product, EdgeIndex': edge_index_product,
    'product, torch_sparse': torch_sparse_product,
    PRODUCT: product,
}
HOPS = {
    'APPNP, edge_index': diffusion(APPNP, 10, 0.1),
    'APPNP, SparseTensor': diffusion(APPNP, 10, 0.1, form=SPARSE),
    'GatedDiffusion': diffusion(GatedDiffusion, 10, 0.1),
    'GatedDiffusion, gates half open': diffusion(GatedDiffusion, 10, 0.1,
                                                 beta=0.7),
}
RECOMPUTE = {
    f'{K} hop{"s" * (K > 1)}{", recomputed" * recompute}': diffusion(
        GatedDiffusion, K, beta=0.7, recompute=recompute)
    for recompute in [False, True] for K in [1, 4, 16, 64]}


# Order of nodes, and the limits of the machine ###############################


def reordered(build: Build) -> Build:
    r"""The same after ReorderNodes."""
    def build_reordered(data: Data) -> Run:
        other = ReorderNodes()(Data(x=data.x.detach(),
                                    edge_index=data.edge_index))
        other.x.requires_grad_()
        return build(other)
    return build_reordered


ORDER: dict[str, Build] = {
    'ReorderNodes': lambda data: forward(partial(ReorderNodes(), data)),
    **{f'{name}{text}': change(LAYERS[name])
       for name in [PRODUCT, RELATIVE, EDGES]
       for text, change in [('', lambda build: build),
                            (', reordered', reordered)]}}


def gather(data: Data, dtype: torch.dtype) -> Run:
    r"""The rows that a product adds up, one after the other."""
    x, col = data.x.detach().to(dtype), data.edge_index[0]
    return forward(lambda: x.index_select(0, col))


def copy(data: Data, dtype: torch.dtype) -> Run:
    r"""As much memory as the rows take, copied."""
    x = torch.zeros(data.num_edges, data.num_features, dtype=dtype)
    return forward(x.clone)


PRODUCTS: dict[str, Build] = {
    f'{name}, {str(dtype).removeprefix("torch.")}': partial(call, dtype=dtype)
    for name, call in [('copy', copy), ('gather', gather),
                       ('product', product)]
    for dtype in [torch.float32, torch.bfloat16]}
PRODUCTS['product, float32 under autocast'] = lambda data: under_bfloat16(
    product(data))


# Networks ####################################################################


def network(name: str) -> Build:
    r"""A training step of two layers."""
    def build(data: Data) -> Run:
        x, adj = data.x.detach(), adjacency(name, data)
        model = NETWORK[name](x.size(1), x.size(1), 2, CLASSES, cached=True)
        return train(adam(model), lambda: model(x, adj), labels(x))
    return build


def passes(name: str) -> Build:
    r"""A forward pass of one layer."""
    def build(data: Data) -> Run:
        conv = LAYER[name](data.num_features, CLASSES, cached=True)
        return forward(lambda: conv(data.x, data.edge_index))
    return build


def epoch(name: str, every: int | None) -> Build:
    r"""An epoch of PyG's stock loop for citation networks: a training step
    and an evaluation.
    """
    def build(data: Data) -> Run:
        x, mask = data.x.to_dense(), data.train_mask
        model = NETWORK[name](x.size(1), 16, 2, 7, dropout=0.5, cached=True)
        recorder = every and SmoothnessRecorder(model, every)
        step = train(
            adam(model), lambda: model(F.dropout(x), data.edge_index)[mask],
            data.y[mask])

        def run() -> Tensor:
            model.train()
            loss = step()
            model.eval()
            with torch.no_grad():
                model(x, data.edge_index)
            if recorder:
                recorder.step()
            return loss
        return run
    return build


EPOCH = {f'{name}{", recorder" * bool(every)}': epoch(name, every)
         for name in LAYER for every in [None, 10]}


def changing(name: str, is_compiled: bool, is_training: bool) -> Build:
    r"""A layer without a cache on one graph after the other."""
    def build(graphs: list[Data]) -> Run:
        conv = LAYER[name](graphs[0].num_features, CLASSES)
        call: Any = conv
        if is_compiled:
            torch._dynamo.config.recompile_limit = 64
            call = torch.compile(conv, dynamic=True)
        optimizer, runs = adam(conv), []
        for data in graphs:
            more = (dict(batch=data.batch, batch_size=data.num_graphs)
                    if name != EDGES and isinstance(data, Batch) else {})
            once = partial(call, data.x, data.edge_index, **more)
            runs.append(train(optimizer, once, labels(data.x))
                        if is_training else forward(once))
        following = cycle(runs)
        if is_compiled:
            check_compiled(runs[0])
        return lambda: next(following)()
    return build


CHANGING = {
    f'{name}{", compiled" * is_compiled}: {what}': changing(
        name, is_compiled, what == 'training step')
    for what in ['forward', 'training step']
    for name in LAYER for is_compiled in [False, True]}


# Transforms ##################################################################


WEIGHTS: dict[str, Build] = {'anisotropic_weights': lambda data: forward(
    lambda: anisotropic_weights(data.x.detach(), data.edge_index))}


# All of them #################################################################

# Where features of 4 bytes leave a cache of 32 MB, with 20 edges a node:
LEAVES_CACHE = 2_500_000
COMPLEXITY = dict.fromkeys([
    *(Size('random', 20_000 * 2**i, 200_000, 64) for i in range(7)),
    *(Size('random', 5_000, 50_000 * 2**i, 64) for i in range(6)),
    *(Size('random', 20_000, 200_000, 16 * 2**i) for i in range(6))])
BIG = Size('random', 200_000, 2_000_000, 64)
CASES = {
    'layer': Case(
        'What do forward and backward of one layer take, and a product '
        'alone?', [BIG], LAYERS, 'times GCN on edge_index',
        lambda name: EDGES, malloc=tuple(MALLOC),
        memory=(EDGES, CSR, SPARSE, GAT, PAPER, RELATIVE)),
    'hops': Case(
        'What do forward and backward of ten hops take?', [BIG], HOPS,
        'times APPNP on edge_index', lambda name: 'APPNP, edge_index',
        repeats=3, malloc=('default', 'kept')),
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
    'product': Case(
        'How far is the product from what the machine can do?',
        [BIG._replace(features=F) for F in [16, 64, 256]], PRODUCTS,
        'times a copy of the rows in float32', lambda name: 'copy, float32'),
    'scaling': Case(
        'What does a training step of two layers take on a big graph?',
        [Size('power law', edges // 20, edges, 64) for edges in [
            20_000, 80_000, 320_000, 1_280_000,
            *(LEAVES_CACHE * 2**i for i in range(5))]],
        {name: network(name) for name in NETWORK}, 'times GCN on torch CSR',
        lambda name: CSR, repeats=3, memory=tuple(NETWORK), memory_sizes=[
            Size('power law', edges // 20, edges, 64)
            for edges in [LEAVES_CACHE * 4**i for i in range(3)]],
        most={EDGES: 10_000_000}, split=LEAVES_CACHE),
    'complexity': Case(
        'How do time and memory of one layer grow with nodes, edges and '
        'features?', list(COMPLEXITY),
        {name: LAYERS[name] for name in [EDGES, PAPER, HALF_OPEN, RELATIVE]},
        'times GCN', lambda name: EDGES,
        memory=(EDGES, PAPER, HALF_OPEN, RELATIVE), counts=True),
    'small': Case(
        'What does a forward pass take on small graphs?',
        [Size('random', 100, 1_000, 64), Size('random', 2_708, 10_556, 16),
         Size('random', 2_708, 10_556, 1_433)],
        {name: passes(name) for name in LAYER}, 'times GCN on edge_index',
        lambda name: EDGES, repeats=15),
    'epoch': Case(
        'What does an epoch on Cora take, and what a SmoothnessRecorder that '
        'looks every ten epochs?', [Size('Cora', 2_708, 10_556, 1_433)],
        EPOCH, 'times the same without a recorder',
        lambda name: name.removesuffix(', recorder'),
        calls=lambda size: 10),
    'changing': Case(
        'What does a layer without a cache take on graphs that change, eager '
        'and compiled?',
        [Size('changing', 300, 3_000, 64), Size('batches', 1_920, 7_680, 64),
         Size('changing', 2_500, 70_000, 64),
         Size('changing', 40_000, 800_000, 64)], CHANGING,
        'times GCN, eager', lambda name: f'{EDGES}: {name.split(": ")[1]}',
        calls=number_of_graphs),
    'weights': Case(
        'What do the weights of AnisotropicWeights take, once?',
        [Size('PubMed', 19_717, 88_648, 500),
         Size('clusters', 1_000_000, 10_000_000, 64)], WEIGHTS, '',
        lambda name: name, repeats=3, memory=tuple(WEIGHTS)),
}
