r"""Absurd input to everything public: each argument of each function and class
gets each absurd value, and answers with an error that names what was wrong.

What is accepted on purpose stands in ``ACCEPTED``. A public name, or an
argument, that the table does not know makes the test fail.
"""
import copy
import importlib
import inspect
import math
import pkgutil
import re
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData
from torch_geometric.graphgym.models.layer import LayerConfig
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GCN
from torch_geometric.testing import withPackage
from torch_geometric.typing import WITH_TORCH_SPARSE, SparseTensor

import torch_agcn
from torch_agcn import (
    AGCN,
    AGCN2Conv,
    AGCNConv,
    DeepAGCN,
    DiffusedMLP,
    GatedDiffusion,
    diagnostics,
    functional,
    label_expansion,
    loader,
    transforms,
)
from torch_agcn.datasets import IMDB, ImageGraph, Planetoid
from torch_agcn.transforms.knn_graph import knn_graph

# A good graph ################################################################

N, F, E = 6, 4, 12
RING = torch.arange(N)
EDGES = torch.stack([torch.cat([RING, (RING + 1) % N]),
                     torch.cat([(RING + 1) % N, RING])])
X = torch.randn(N, F, generator=torch.Generator().manual_seed(0))
WEIGHT = torch.linspace(0.5, 1.5, N).repeat(2)
BATCH = torch.zeros(N, dtype=torch.long)
ONES = torch.ones(N)
Y = torch.tensor([0, 1, -1, -1, -1, -1])
MASK = Y >= 0
ADJ = torch.sparse_coo_tensor(EDGES, WEIGHT, (N, N)).coalesce()
HUGE = 10**30
INTS = [torch.int8, torch.int16, torch.int32, torch.uint8]
FLOATS = [torch.half, torch.bfloat16, torch.float8_e4m3fn, torch.double]

# Absurd values ###############################################################

ANYTHING = {
    'None': None, 'True': True, 'False': False, 'zero': 0, 'one': 1,
    'two': 2, 'negative': -1, 'half': 0.5, 'one and a half': 1.5,
    'huge': HUGE, 'nan': float('nan'), 'inf': float('inf'),
    'minus inf': -float('inf'), 'complex': 1j, 'text': 'abc', 'no text': '',
    'bytes': b'abc', 'list': [1, 2], 'empty list': [], 'nested list': [[1.0]],
    'tuple': (1, 2), 'triple': (1, 2, 3), 'empty tuple': (),
    'texts': ['a', 'b'], 'pair of None': (None, None),
    'dict': {'a': 1}, 'empty dict': {}, 'set': {1}, 'object': object(),
    'type': int, 'function': len, 'dtype': torch.float,
    'array': np.ones((N, F), np.float32), 'array of text': np.array(['a']),
    'NumPy integer': np.int64(2), 'NumPy number': np.float64(0.5),
    '0-d tensor': torch.tensor(1.0), '0-d whole tensor': torch.tensor(1),
    'empty tensor': torch.empty(0), 'tensor': torch.ones(3),
    'bool tensor': torch.tensor([True]), 'module': torch.nn.ReLU(),
    'Data': Data(), 'slice': slice(None),
}


def types_of(value, dtypes):
    return {str(dtype)[6:]: value.to(dtype) for dtype in dtypes}


def filled(value, number):
    value = value.clone()
    value.view(-1)[0] = number
    return value


FEATURES = {
    '1-d': X[:, 0], '3-d': X[None], '4-d': X[None, None],
    'a node less': X[1:], 'a node more': torch.cat([X, X[:1]]),
    'a channel less': X[:, 1:], 'a channel more': torch.cat(
        [X, X[:, :1]], dim=1), 'no nodes': X[:0], 'no channels': X[:, :0],
    'transposed': X.t(), **types_of(X, [*INTS, *FLOATS]),
    'long': X.long(), 'bool': X > 0, 'complex64': X.to(torch.cfloat),
    'a NaN': filled(X, torch.nan), 'an inf': filled(X, torch.inf),
    'a huge one': filled(X, 3e38), 'meta': X.to('meta'),
    'coo': X.to_sparse(), 'csr': X.to_sparse_csr(), 'csc': X.to_sparse_csc(),
    'bsr': X.to_sparse_bsr((2, 2)), 'hybrid': X.to_sparse(1),
    'pair': (X, X), 'pair with None': (X, None), 'three': (X, X, X),
    'pair of lists': (X.tolist(), X.tolist()), 'pair of widths': (X, X[:, 1:]),
    'pair of devices': (X, X.to('meta')), 'pair of types': (X, X.double()),
    'lists': X.tolist(), 'nested': torch.nested.nested_tensor([X[0], X[1]]),
}
GRAPHS = {
    '1-d': EDGES[0], '3-d': EDGES[None], 'transposed': EDGES.t(),
    'three rows': EDGES[[0, 1, 1]], 'no edges': EDGES[:, :0],
    **types_of(EDGES, [*INTS, *FLOATS]), 'float32': EDGES.float(),
    'bool': EDGES > 0, 'complex64': EDGES.to(torch.cfloat),
    'a negative one': filled(EDGES, -1), 'one too large': filled(EDGES, N),
    'a huge one': filled(EDGES, 2**62), 'meta': EDGES.to('meta'),
    'dense matrix': ADJ.to_dense(), 'lists': EDGES.tolist(),
    'integer array': EDGES.numpy(), 'pair': (EDGES[0], EDGES[1]),
    'EdgeIndex': EdgeIndex(EDGES, sparse_size=(N, N)),
    'EdgeIndex of another size': EdgeIndex(EDGES, sparse_size=(N + 2, N + 2)),
    'coo': ADJ, 'csr': ADJ.to_sparse_csr(), 'csc': ADJ.to_sparse_csc(),
    'bsr': ADJ.to_sparse_bsr((2, 2)),
    'coo of another size': torch.sparse_coo_tensor(EDGES, WEIGHT, (9, 9)),
    'csr of another size': torch.sparse_coo_tensor(
        EDGES, WEIGHT, (N, 9)).to_sparse_csr(),
    'coo not coalesced': torch.sparse_coo_tensor(
        EDGES.repeat(1, 2), WEIGHT.repeat(2), (N, N)),
    'coo of integers': ADJ.long(), 'coo of bools': ADJ.bool(),
    'csr of complex': ADJ.to_sparse_csr().to(torch.cfloat),
    'coo with a NaN': torch.sparse_coo_tensor(
        EDGES, filled(WEIGHT, torch.nan), (N, N)),
    'csr with a negative': torch.sparse_coo_tensor(
        EDGES, -WEIGHT, (N, N)).to_sparse_csr(),
    'hybrid': torch.sparse_coo_tensor(EDGES, torch.ones(E, 2), (N, N, 2)),
    'sparse vector': ONES.to_sparse(),
    'sparse 3-d': torch.ones(N, N, 2).to_sparse(),
    'csr 3-d': torch.ones(2, N, N).to_sparse_csr(),
    'sparse meta': ADJ.to('meta'),
}
if WITH_TORCH_SPARSE:
    def sparse(value, size=N):
        return SparseTensor(row=EDGES[0], col=EDGES[1], value=value,
                            sparse_sizes=(size, size))

    GRAPHS |= {
        'SparseTensor': sparse(WEIGHT), 'SparseTensor as it is': sparse(None),
        'SparseTensor of another size': sparse(WEIGHT, 9),
        'SparseTensor of integers': sparse(WEIGHT.long()),
        'SparseTensor of matrices': sparse(torch.ones(E, 2)),
        'SparseTensor with a NaN': sparse(filled(WEIGHT, torch.nan)),
    }


def numbers(value):
    r"""A number for each node or edge, and what is none."""
    whole = value.long() if value.dtype == torch.bool else value
    return {
        'one less': value[1:], 'one more': torch.cat([value, value[:1]]),
        'column': value[:, None], 'row': value[None],
        'two columns': value[:, None].expand(-1, 2),
        **types_of(value, [*INTS, *FLOATS]), 'long': value.long(),
        'float32': value.float(), 'bool': value > 0,
        'complex64': value.to(torch.cfloat),
        'a negative one': filled(whole, -1), 'all negative': -whole - 2,
        'meta': value.to('meta'), 'coo': value.to_sparse(),
        'array of them': value.numpy(), 'list of them': value.tolist(),
        'a NaN': filled(value.float(), torch.nan),
        'an inf': filled(value.float(), torch.inf),
        'a huge one': filled(whole, 2**62),
        'a pair': (value, value), 'a pair with None': (value, None),
    }


def data_with(**change):
    return Data(**{**dict(x=X, edge_index=EDGES, pos=X), **change})


def hetero_with(**change):
    data = HeteroData()
    data['a'].x = X
    data['a', 'to', 'a'].edge_index = EDGES
    for key, value in change.items():
        data['a'][key] = value
    return data


POOLS = {
    'x': FEATURES, 'x_0': FEATURES, 'logits': FEATURES, 'energy': FEATURES,
    'edge_index': GRAPHS,
    'edge_weight': numbers(WEIGHT), 'batch': numbers(BATCH),
    'degree': numbers(ONES), 'node_weight': numbers(ONES),
    'y': numbers(Y), 'train_mask': numbers(MASK), 'strata': numbers(BATCH),
    'exclude': {**numbers(MASK), **numbers(torch.tensor([0, 1]))},
    'num_added': numbers(torch.ones(2).long()),
    'nodes': numbers(torch.tensor([0, 1])),
}
for key in ('first', 'second'):
    POOLS[key] = {
        **{f'mask: {k}': (v, Y) for k, v in {
            **ANYTHING, **POOLS['train_mask']}.items()},
        **{f'y: {k}': (MASK, v) for k, v in {
            **ANYTHING, **POOLS['y']}.items()}}
POOLS['data'] = {
    'no x': Data(edge_index=EDGES), 'no edges at all': Data(x=X),
    'HeteroData': HeteroData(), 'hetero': hetero_with(),
    'hetero with text': hetero_with(x='abc'),
    'adj_t': Data(x=X, adj_t=ADJ.to_sparse_csr()),
    'graphs': [data_with(), data_with()],
    **{f'{name}: {k}': data_with(**{name: v})
       for name in ('x', 'edge_index', 'edge_weight', 'batch')
       for k, v in {**ANYTHING, **POOLS[name]}.items()},
    **{f'pos: {k}': data_with(pos=v)
       for k, v in {**ANYTHING, **FEATURES}.items() if k != 'nested'},
}

# Everything public ###########################################################


def run(conv, x=X, edge_index=EDGES, **kwargs):
    return conv(x, edge_index, **kwargs)


def neighbors(num_neighbors=(-1, ), **kwargs):
    return NeighborLoader(data_with(), list(num_neighbors), batch_size=2,
                          **kwargs)


def sampled():
    r"""A batch of a loader."""
    return Data(x=X[:3], n_id=torch.tensor([0, 1, 5]), batch_size=1,
                edge_index=torch.tensor([[1, 2], [0, 0]]))


def cls(make, use):
    r"""To make it is not enough: errors may come when it is used."""
    def call(**kwargs):
        return use(make(**kwargs))
    call.__signature__ = inspect.signature(make)
    return call


def method(owner, name, signature=None):
    r"""Of an object, or of a new one each time."""
    def call(**kwargs):
        return getattr(owner() if is_made else owner, name)(**kwargs)
    is_made = inspect.isfunction(owner)
    one = owner() if is_made else owner
    call.__signature__ = signature or inspect.signature(getattr(one, name))
    return call


BARE = dict(x=X, edge_index=EDGES)
GRAPH = dict(x=X, edge_index=EDGES, edge_weight=WEIGHT)
BATCHED = dict(**GRAPH, batch=BATCH, batch_size=1)
SAMPLED = dict(**GRAPH, degree=ONES, node_weight=ONES)
LABELS = dict(edge_index=EDGES, y=Y, train_mask=MASK)
PYG = {key: inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY)
       for key in ('aggr', 'flow', 'node_dim', 'decomposed_layers')}
BASIC = {key: inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY)
         for key in ('act', 'act_first', 'act_kwargs', 'norm', 'norm_kwargs',
                     'jk')}


def set_beta(beta):
    conv = AGCNConv(F, 3)
    conv.beta = beta
    return conv(X, EDGES)


def set_momentum(momentum):
    conv = AGCNConv(F, 3, momentum=0.1)
    conv.momentum = momentum
    return conv(X, EDGES)


def recorded(recorder):
    with recorder:
        recorder.model(X, EDGES)
    return recorder.records


def recorder():
    found = diagnostics.SmoothnessRecorder(GCN(F, 3, 2))
    found.model(X, EDGES)
    return found


def agcn(**kwargs):
    return AGCN(F, 5, 2, 3, **kwargs).eval()


def datasets(root):
    r"""They are there already, so that only reading them is tried."""
    Planetoid(root, 'Cora')
    IMDB.save([hetero_with()], f'{root}/IMDB/processed/data.pt')
    yield 'Planetoid', cls(Planetoid, list), dict(root=root, name='Cora'), {}
    yield 'Planetoid', cls(Planetoid, list), dict(
        root=root, name='Cora', split='random'), {}
    yield 'IMDB', cls(IMDB, list), dict(root=root), {}
    if find_spec('sklearn'):
        ImageGraph(root, 'Digits')
        yield 'ImageGraph', cls(ImageGraph, list), dict(
            root=root, name='Digits'), {}


def graphgym():
    module = importlib.import_module('torch_agcn.graphgym')
    config = LayerConfig(dim_in=F, dim_out=3)
    yield 'set_agcn_config', module.set_agcn_config, dict(
        cfg=module.CN()), {}
    yield 'AGCNConvLayer', cls(module.AGCNConvLayer, lambda layer: layer(
        data_with())), dict(layer_config=config), {}
    yield 'AGCNConvLayer.forward', method(
        module.AGCNConvLayer(config), 'forward'), dict(batch=data_with()), {}


def sampling():
    r"""What takes a loader that needs torch_sparse."""
    yield 'AGCN.inference', method(agcn(), 'inference'), dict(
        loader=neighbors()), {}
    yield 'ImportanceWeights', cls(
        loader.ImportanceWeights, lambda w: w(sampled())), dict(
            loader=neighbors([2])), {}
    yield 'ImportanceWeights.__call__', method(
        loader.ImportanceWeights(neighbors([2])), '__call__'), dict(
            batch=sampled()), {}


def table():
    r"""Name, what to call, good arguments, and further ones to try."""
    sizes = dict(in_channels=F, hidden_channels=5, num_layers=2,
                 out_channels=3)
    yield 'AGCNConv', cls(AGCNConv, run), dict(
        in_channels=F, out_channels=3), PYG
    yield 'AGCNConv', cls(AGCNConv, run), dict(
        in_channels=F, out_channels=3, energy='relative', momentum=0.1), {}
    yield 'GatedDiffusion', cls(GatedDiffusion, run), {}, PYG
    yield 'AGCN2Conv', cls(AGCN2Conv, lambda c: c(X, X, EDGES)), dict(
        channels=F, alpha=0.1, theta=0.5, layer=1), {
            **PYG, **inspect.signature(GatedDiffusion).parameters}
    yield 'AGCN', cls(AGCN, run), sizes, {
        **BASIC, **PYG, **inspect.signature(AGCNConv).parameters}
    yield 'DeepAGCN', cls(DeepAGCN, run), sizes, inspect.signature(
        AGCN2Conv).parameters
    yield 'DiffusedMLP', cls(DiffusedMLP, run), sizes, inspect.signature(
        GatedDiffusion).parameters
    for settings in [dict(), dict(cached=True), dict(
            energy='relative', num_hops=3, recompute=True)]:
        for conv in (AGCNConv(F, 3, **settings), GatedDiffusion(**settings)):
            for calls in (BATCHED, SAMPLED, BARE):
                yield f'{type(conv).__name__}.forward', method(
                    conv, 'forward'), calls, {}
        conv = AGCN2Conv(F, 0.1, **settings)
        for calls in (BATCHED, BARE):
            yield 'AGCN2Conv.forward', method(conv, 'forward'), dict(
                **calls, x_0=X), {}
    for conv, calls in [(AGCNConv(F, 3), BATCHED), (GatedDiffusion(), SAMPLED),
                        (AGCN2Conv(F, 0.1), dict(**BATCHED, x_0=X))]:
        yield f'{type(conv).__name__}.gate', method(
            conv, 'gate', inspect.signature(conv.forward)), calls, {}
    pair = dict(x=(X, X), edge_index=EDGES, edge_weight=WEIGHT,
                batch=(BATCH, BATCH), batch_size=1)
    yield 'AGCNConv.forward', method(
        AGCNConv((F, F), 3), 'forward'), pair, {}
    yield 'AGCNConv.forward', method(
        AGCNConv(F, 3, add_self_loops=False), 'forward'), pair, {}
    yield 'AGCNConv.forward', method(
        lambda: AGCNConv(-1, 3), 'forward'), BATCHED, {}
    yield 'AGCNConv.forward', method(
        AGCNConv(F, 3, momentum=0.1), 'forward'), GRAPH, {}
    yield 'AGCNConv.beta', set_beta, dict(beta=1.0), {}
    yield 'AGCNConv.momentum', set_momentum, dict(momentum=0.1), {}
    for calls in (BATCHED, SAMPLED, BARE):
        yield 'AGCN.forward', method(agcn(), 'forward'), calls, {}
    yield 'AGCN.forward', method(agcn(), 'forward'), dict(
        x=X, edge_index=torch.tensor([[1, 2, 3, 4], [0, 0, 1, 1]]),
        num_sampled_nodes_per_hop=[1, 2, 3],
        num_sampled_edges_per_hop=[2, 2]), {}
    yield 'AGCN.init_conv', method(agcn(), 'init_conv'), dict(
        in_channels=F, out_channels=3), {}
    for model in (DeepAGCN, DiffusedMLP):
        yield f'{model.__name__}.forward', method(
            model(F, 5, 2, 3), 'forward'), BATCHED, {}
        yield f'{model.__name__}.forward', method(
            model(F, 5, 2, 3), 'forward'), BARE, {}
    for measure in ('dirichlet_energy', 'relative_energy',
                    'mean_average_distance', 'anisotropic_weights'):
        yield measure, getattr(functional, measure), BATCHED, {}
        yield measure, getattr(functional, measure), BARE, {}
    yield 'anisotropic_gate', functional.anisotropic_gate, dict(
        energy=X, beta=1.0), {}
    yield 'chance_edges', diagnostics.chance_edges, GRAPH, {}
    yield 'chance_edges', diagnostics.chance_edges, BARE, {}
    yield 'SmoothnessRecorder', cls(
        diagnostics.SmoothnessRecorder, recorded), dict(
            model=GCN(F, 3, 2)), {}
    yield 'SmoothnessRecorder.plot', method(recorder(), 'plot'), {}, {}
    yield 'AnisotropicWeights', cls(
        transforms.AnisotropicWeights, lambda t: t(data_with())), {}, {}
    for settings in (dict(), dict(threshold=0.5)):
        yield 'AnisotropicWeights.forward', method(
            transforms.AnisotropicWeights(**settings), 'forward'), dict(
                data=data_with()), {}
    yield 'KNNGraph', cls(
        transforms.KNNGraph, lambda t: t(data_with())), {}, {}
    yield 'KNNGraph.forward', method(transforms.KNNGraph(), 'forward'), dict(
        data=data_with()), {}
    yield 'knn_graph', knn_graph, dict(x=X, k=2, batch=BATCH), {}
    yield 'ReorderNodes', cls(
        transforms.ReorderNodes, lambda t: t(data_with())), {}, {}
    yield 'ReorderNodes.forward', method(
        transforms.ReorderNodes(), 'forward'), dict(data=data_with()), {}
    yield 'expansion_size', label_expansion.expansion_size, LABELS, {}
    yield 'partially_absorbing_walk', (
        label_expansion.partially_absorbing_walk), dict(
            **LABELS, edge_weight=WEIGHT), {}
    yield 'partially_absorbing_walk', (
        label_expansion.partially_absorbing_walk), LABELS, {}
    yield 'co_training', label_expansion.co_training, dict(
        **LABELS, num_added=1, edge_weight=WEIGHT), {}
    yield 'self_training', label_expansion.self_training, dict(
        logits=X, y=Y, train_mask=MASK, num_added=1), {}
    for name in ('union', 'intersection'):
        yield name, getattr(label_expansion, name), dict(
            first=(MASK, Y), second=(MASK, Y)), {}
    yield 'MixedBatchSampler', cls(loader.MixedBatchSampler, list), dict(
        nodes=torch.tensor([0, 1]), num_nodes=N, batch_size=1,
        num_random=2), {}


# What is accepted on purpose #################################################

FLAG = {'True', 'False'}
COUNT = {'one', 'two', 'NumPy integer'}
COUNT_0 = {'zero', *COUNT}
SHARE = {'zero', 'half', 'NumPy number'}
NUMBER = {*COUNT, 'half', 'one and a half', 'huge', 'NumPy number'}
FLOAT = {'float16', 'bfloat16', 'float32', 'float64'}
# Sparse features, many features on one graph, and nodes without edges:
FORMS = {'coo', 'csr', 'csc', 'bsr', '3-d', '4-d', 'a node more'}
# Features that are not finite stay where they are, as in PyG:
NOT_FINITE = {'a NaN', 'an inf', 'a huge one'}
WIDTHS = {'a channel less', 'a channel more', 'no channels'}
# `to_hetero` makes pairs of what belongs to nodes, also of nothing:
PAIR_OF_NOTHING = {'None', 'pair of None'}

each = dict.fromkeys

#: By argument, or by name and argument.
ACCEPTED = {
    **each(
        ['improved', 'cached', 'normalize', 'bias', 'learn_beta', 'recompute',
         'act_first', 'loop', 'cosine', 'force_undirected', 'force_reload',
         'trust_raw', 'progress_bar', 'cache',
         'relative_energy.add_self_loops'], FLAG),
    **each(['add_self_loops', 'residual'], {'None', *FLAG}),
    **each(
        ['num_hops', 'num_layers', 'layer', 'decomposed_layers', 'every', 'k',
         'num_workers', 'num_random', 'MixedBatchSampler.batch_size'], COUNT),
    'DeepAGCN.num_hops': {'None', *COUNT},
    **each(
        ['hidden_channels', 'out_channels', 'steps', 'factor', 'seed',
         'num_train_per_class', 'num_val', 'num_test',
         'expansion_size.num_layers'], COUNT_0),
    'AGCN.out_channels': {'None', *COUNT_0},
    'num_classes': {'None', *COUNT},
    # -1, and 0 as in PyG's `Linear`, are found by the first input:
    'in_channels': {'zero', 'negative'},
    'AGCN.init_conv.in_channels': {'negative', *COUNT_0, 'list', 'tuple'},
    'node_dim': {'zero'},  # PyG's layers on one graph: the same as -2
    'alpha': SHARE,
    **each(['partially_absorbing_walk.alpha', 'co_training.alpha'], NUMBER),
    'dropout': {'one', *SHARE},
    **each(['momentum', 'threshold'], {'None', 'one', *SHARE}),
    'beta': {'None', 'zero', *NUMBER},
    # Before a property sees it, torch takes a module for a submodule:
    'AGCNConv.beta.beta': {'zero', 'module', *NUMBER},
    'anisotropic_gate.beta': {'zero', *NUMBER, '0-d tensor',
                              '0-d whole tensor'},
    'theta': {'None', *NUMBER},
    **each(['act', 'norm'], {'None', 'module'}),
    'act_kwargs': {'None', 'empty dict'},
    'norm_kwargs': {'None', 'dict', 'empty dict'},  # no norm, no arguments
    **each(['jk', 'device', 'embedding_device', 'mode', 'generator',
            'transform', 'pre_transform'], {'None'}),
    'modules': {'None', 'no text'},  # '' is the model itself
    'root': {'text'}, 'descriptor': {'None', 'module'},
    'edge_attr': set(ANYTHING),  # PyG passes it, and nobody looks at it
    'x': FORMS | NOT_FINITE | WIDTHS | FLOAT | {'pair'},
    'x_0': NOT_FINITE,
    # Rows of points may have any shape:
    'knn_graph.x': WIDTHS | FLOAT | {'1-d', 'a huge one'},
    'pos': WIDTHS | FLOAT | {
        '1-d', '3-d', '4-d', 'tensor', 'empty tensor', 'no nodes',
        'transposed', 'a node less', 'a node more', 'a huge one'},
    'logits': WIDTHS | FLOAT | {'a huge one'},
    # Energies may have any shape, and count as infinite if they are NaN:
    'anisotropic_gate.energy': FLOAT | WIDTHS | NOT_FINITE | {
        '0-d tensor', 'empty tensor', 'tensor', '1-d', '3-d', '4-d', 'meta',
        'a node less', 'a node more', 'no nodes', 'transposed'},
    'edge_index': {
        'int32', 'no edges', 'EdgeIndex', 'EdgeIndex of another size', 'coo',
        'csr', 'coo not coalesced', 'coo of integers', 'coo of bools',
        'SparseTensor', 'SparseTensor as it is', 'SparseTensor of integers'},
    'edge_weight': {'None', 'column', 'a huge one', *FLOAT},
    'degree': {*PAIR_OF_NOTHING, 'a huge one', *FLOAT},
    'node_weight': {*PAIR_OF_NOTHING, 'a huge one', *FLOAT},
    'batch': {*PAIR_OF_NOTHING, 'int32', 'long', 'a pair'},
    'batch_size': {'None', *COUNT_0, 'pair of None', 'list', 'tuple'},
    'num_sampled_nodes_per_hop': {'None', 'list', 'dict', 'empty dict'},
    'num_sampled_edges_per_hop': {'None', 'list', 'dict', 'empty dict'},
    'y': {'long'}, 'train_mask': {'bool'},
    'exclude': {'None', 'bool', 'long', 'int32', 'one less', 'one more'},
    'strata': {'None', 'int32', 'long'},
    # Any numbers tell strata apart:
    'ImportanceWeights.strata': {'None', 'int32', 'long', 'a negative one',
                                 'all negative', 'a huge one'},
    'nodes': {'one less', 'one more', 'int32', 'long'},
    'num_added': {*COUNT_0, 'list', 'tuple', 'triple', '0-d whole tensor',
                  'one more', 'int8', 'int16', 'int32', 'uint8', 'long',
                  'array of them', 'list of them'},
    # Labels are only compared:
    **each(['first', 'second'], {'mask: bool', 'y: long', 'y: a huge one'}),
}
ACCEPTED |= {
    'AnisotropicWeights.forward.data': {'HeteroData', 'hetero', 'adj_t'},
    'ReorderNodes.forward.data': {'no x', 'adj_t'}}
# Transforms take what functions take, and leave alone what they do not use:
IN_DATA = {
    'AnisotropicWeights': ['pos'], 'KNNGraph': ['x', 'edge_index',
                                                'edge_weight'],
    'ReorderNodes': ['x', 'pos', 'edge_weight'],
    'AGCNConvLayer': ['pos', 'edge_weight']}
IS_CALLED = {'act', 'transform', 'pre_transform'}
FETCHES = {('IMDB', 'root'), ('IMDB', 'force_reload')}
# Plain tuples of results, an error, and PyG's own hooks:
NOT_FOR_INPUT = {
    'ChanceEdges', 'Record', 'Expansion', 'FetchError',
    *(f'{name}.{hook}' for name in ('AGCNConv', 'AGCN2Conv', 'GatedDiffusion')
      for hook in ('collect', 'propagate', 'message',
                   'message_and_aggregate'))}


def is_accepted(name, argument, label):
    attribute, _, rest = label.partition(': ')
    if argument in ('data', 'batch') and rest:
        return (attribute in IN_DATA[name.split('.')[0]]
                or rest in ACCEPTED.get(attribute, ()))
    key = f'{name}.{argument}'
    return label in ACCEPTED.get(key, ACCEPTED.get(argument, ()))


# The test ####################################################################


def public_names():
    r"""All functions and classes that users find, and their methods."""
    names = {f'torch_agcn.{info.name}' for info in pkgutil.iter_modules(
        torch_agcn.__path__) if not info.name.startswith('_')}
    if not find_spec('yacs'):
        names.discard('torch_agcn.graphgym')
    for module in map(importlib.import_module, ['torch_agcn', *names]):
        for name in getattr(module, '__all__', vars(module)):
            value = getattr(module, name)
            if name.startswith('_') or not callable(value) or (
                    name in NOT_FOR_INPUT
                    or not value.__module__.startswith('torch_agcn')):
                continue
            yield name, inspect.signature(value)
            for key, method in vars(value).items() if isinstance(
                    value, type) else ():
                if inspect.isfunction(method) and (
                        not key.startswith('_') or key == '__call__'):
                    signature = inspect.signature(method)
                    if len(signature.parameters) > 1:
                        yield f'{name}.{key}', signature


def valid(value):
    r"""Whether all numbers of a result are finite."""
    if isinstance(value, Tensor):
        if value.is_floating_point() and not value.is_meta:
            value = value.values() if value.layout != torch.strided else value
            return bool(value.isfinite().all())
        return True
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(valid, value.values()))
    return not isinstance(value, (list, tuple)) or all(map(valid, value))


def fresh(arguments):
    r"""Transforms change the graphs that they get."""
    return {key: copy.copy(value) if isinstance(value, (Data, HeteroData))
            else value for key, value in arguments.items()}


def failure(name, call, good, argument, label, value):
    r"""Why an absurd value is not answered as it should be."""
    try:
        result = call(**fresh({**good, argument: value}))
    except (TypeError, ValueError) as error:
        names = '|'.join([rf"'{argument}'", rf'\b{argument}=', *(
            rf"'{name}[.']" for name in KNOWN)])
        if not re.search(names, str(error)):
            return f'{type(error).__name__}: {error}'
    except Exception as error:
        return f'{type(error).__name__}: {error}'
    else:
        if not is_accepted(name, argument, label):
            return 'accepted'
        if not valid(result) and not NOT_FINITE & {label, label[3:]}:
            return f'accepted, and gives {result}'
    return None


def failures(name, call, good, extra, of=''):
    r"""The values that are not answered as they should be, of those whose
    label has ``of`` in it.
    """
    found = []
    call(**fresh(good))
    for argument in {**inspect.signature(call).parameters, **extra}:
        if argument in ('args', 'kwargs'):
            continue
        for label, value in {**ANYTHING, **POOLS.get(argument, {})}.items():
            if of not in label or (name, argument) in FETCHES or (
                    argument in IS_CALLED and callable(value)):
                continue
            reason = failure(name, call, good, argument, label, value)
            if reason is not None:
                found.append(f'{name}({argument}={label}): {reason[:200]}')
    return found


KNOWN = {name.split('.')[0] for name, _ in public_names()} | {'knn_graph'}
TABLE = list(table())
SAMPLING = {'AGCN.inference', 'ImportanceWeights',
            'ImportanceWeights.__call__'}


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('name', dict.fromkeys(row[0] for row in TABLE))
def test_absurd_input_is_refused_by_name(name):
    found = [text for row in TABLE if row[0] == name
             for text in failures(*row)]
    assert not found, '\n'.join(found)


@pytest.mark.filterwarnings('ignore')
def test_graphgym():
    pytest.importorskip('yacs')
    found = [text for row in graphgym() for text in failures(*row)]
    assert not found, '\n'.join(found)


@pytest.mark.extensions
@withPackage('torch_sparse')
@pytest.mark.filterwarnings('ignore')
def test_sampling():
    found = [text for row in sampling() for text in failures(*row)]
    assert {row[0] for row in sampling()} == SAMPLING
    assert not found, '\n'.join(found)


@pytest.mark.extensions
@withPackage('torch_sparse')
@pytest.mark.filterwarnings('ignore')
def test_sparse_tensors():
    found = [text for row in TABLE for text in failures(*row, 'SparseTensor')]
    assert not found, '\n'.join(found)


@pytest.mark.filterwarnings('ignore')
def test_datasets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = [text for row in datasets('data') for text in failures(*row)]
    assert not found, '\n'.join(found)


def test_all_public_names_are_in_the_table(tmp_path):
    known = {row[0] for row in [*TABLE, *datasets(tmp_path), *(
        graphgym() if find_spec('yacs') else ())]}
    missing = {name for name, signature in public_names()
               if signature.parameters} - known - NOT_FOR_INPUT - SAMPLING
    assert not missing
