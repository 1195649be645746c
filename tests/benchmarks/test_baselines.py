import inspect
import json

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv
from torch_geometric.utils import to_undirected

from benchmarks import settings as harness
from benchmarks import tune
from benchmarks.baselines import agcn
from benchmarks.baselines.chebynet import ChebConv, WeightFirst
from benchmarks.baselines.gat import AttentionConv, neighbors
from benchmarks.baselines.layers import sparse_first
from benchmarks.data import DATASETS, draw_per_class, draw_share
from torch_agcn import DiffusedMLP

# What makes each method quick:
QUICK = dict(epochs=3, patience=3, walks_per_node=2, walk_length=5, sweeps=1,
             label_steps=2, graph_steps=2, num_steps=4, num_hops=3,
             num_layers=2)
METHODS = list(harness.METHODS)
HOPS = ['agcn', 'agcn_open', 'appnp', 'agcn_weighted', 'agcn_linear_open',
        'agcn_linear', 'agcn_wide_open', 'agcn_wide']


def tiny_graph(sparse: bool) -> Data:
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(40) % 3
    x = (torch.rand(40, 12, generator=generator) < 0.2).float()
    x[torch.arange(40), y] = 1
    edge_index = torch.randint(40, (2, 60), generator=generator)
    path = torch.stack([torch.arange(39), torch.arange(1, 40)])
    edge_index = torch.cat([edge_index, path], dim=1)
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    data = Data(x=x / x.sum(dim=1, keepdim=True), y=y, num_nodes=40,
                edge_index=to_undirected(edge_index))
    node = torch.arange(40)
    data.train_mask, data.val_mask = node < 12, (node >= 12) & (node < 24)
    data.test_mask = node >= 24
    if sparse:
        data.x = data.x.to_sparse().coalesce()
    return data


@pytest.mark.parametrize('method', [
    method for method in METHODS if method not in ['deepwalk', 'dgi']])
def test_labels_that_are_no_class_numbers(method):
    # Models are as wide as there are classes: a billion are gigabytes.
    data = tiny_graph(sparse=True)
    data.y[0] = 10**9
    with pytest.raises(ValueError, match='number the classes from 0 on'):
        harness.run_of(method)(data, 5)


@pytest.mark.parametrize('method', METHODS)
def test_baseline(method):
    run = harness.run_of(method)
    fixed = harness.read_settings(method).get('fixed', {}).get('all', {})
    quick = {key: value for key, value in QUICK.items()
             if key in inspect.signature(run).parameters}
    settings = {**fixed, **{k: v for k, v in quick.items()
                            if k != 'num_hops' or method in HOPS}}
    outs = [run(tiny_graph(sparse), 5, **settings)
            for sparse in [False, True, True]]
    for out in outs:
        assert out.logits.shape == (40, 3)
        assert not out.logits.isnan().any()
    assert torch.equal(outs[1].logits, outs[2].logits)
    if method.startswith('agcn') or method in HOPS:
        gates = [v for k, v in outs[0].extra.items() if 'gate_' in k]
        counts = dict(agcn_literal=1, agcn_paper=2, agcn_deep_open=16,
                      agcn_deep=16, agcn_deep_weighted=16)
        assert len(gates) == counts.get(method, 3)
        assert all(0 <= gate <= 1 for gate in gates)


@pytest.mark.parametrize('method', [
    method for method in METHODS
    if harness.read_settings(method).get('deterministic')])
def test_deterministic(method):
    outs = [harness.run_of(method)(tiny_graph(True), seed).logits
            for seed in [0, 1]]
    assert torch.equal(*outs)


@pytest.mark.parametrize('method', METHODS)
def test_grid(method):
    for config in tune.grid(method):
        harness.settings_of(method, 'Cora', **config)
    for dataset in DATASETS:
        harness.settings_of(method, dataset)


@pytest.mark.parametrize('dataset', DATASETS)
@pytest.mark.parametrize('method', [
    method for method, title in harness.METHODS.items()
    if title.endswith(', gate open')])
def test_a_gate_held_open_has_the_settings_of_the_next_row(method, dataset):
    ours = METHODS[METHODS.index(method) + 1]
    found = [json.loads(harness.settings_of(name, dataset))
             for name in [method, ours]]
    assert found[0].pop('beta') == 1e30 and found[1].pop('beta') < 1e30
    assert found[0] == found[1]


def test_recommended_agcn_is_the_model_of_the_package():
    ours = agcn.Hops(12, 8, 3, p=0.5, num_hops=3)
    model = DiffusedMLP(12, 8, 2, 3, dropout=0.5, num_hops=3)
    model.load_state_dict(ours.state_dict())
    dense, sparse = tiny_graph(False), tiny_graph(True)
    expected = model.eval()(dense.x, dense.edge_index)
    for x in [dense.x, sparse.x]:
        out = ours.eval()(x, dense.edge_index)
        assert torch.allclose(out, expected, atol=1e-6)
    # Dropout keeps the mean, of features and of hidden ones:
    ours.diffusion.beta, ours.lins[0].bias = 0.0, None  # no nonlinearity
    torch.nn.init.ones_(ours.lins[0].weight)
    expected = ours(sparse.x, sparse.edge_index)
    mean = sum(ours.train()(sparse.x, sparse.edge_index)
               for _ in range(2000)) / 2000
    assert torch.allclose(mean, expected, atol=0.15)
    assert not torch.allclose(ours(sparse.x, sparse.edge_index), expected,
                              atol=0.15)


def test_sparse_linear():
    dense, sparse = tiny_graph(False), tiny_graph(True)
    conv = GCNConv(12, 4)
    expected = conv(dense.x, dense.edge_index)
    grad, = torch.autograd.grad(expected.square().sum(), conv.lin.weight)
    sparse_first(conv)
    for x in [dense.x, sparse.x, 1 * sparse.x]:
        out = conv(x, dense.edge_index)
        assert torch.allclose(out, expected, atol=1e-6)
        out, = torch.autograd.grad(out.square().sum(), conv.lin.weight)
        assert torch.allclose(out, grad, atol=1e-5)
    # Other positions of as many entries:
    flipped = sparse.x.to_dense().flip(1)
    out = conv(flipped.to_sparse(), dense.edge_index)
    assert torch.allclose(out, conv(flipped, dense.edge_index), atol=1e-6)


@pytest.mark.parametrize('concat', [True, False])
@pytest.mark.parametrize('scale', [9, 9000])  # exponentials vanish, or all do
def test_gat_is_pygs(concat, scale):
    data = tiny_graph(False)
    ours = AttentionConv(12, 4, heads=3, concat=concat).double()
    pyg = GATConv(12, 4, heads=3, concat=concat).double()
    pyg.load_state_dict(ours.state_dict())
    edge_index = torch.cat([data.edge_index, torch.full((2, 1), 7)], dim=1)
    weights, outs, grads = torch.rand(40, 1).double(), [], []
    for conv, graph in [(ours, neighbors(edge_index, 40)),
                        (pyg, edge_index)]:
        x = (scale * data.x).double().requires_grad_()
        outs.append(conv(x, graph))
        loss = (weights * outs[-1].square()).sum()
        grads.append(torch.autograd.grad(loss, [x, *conv.parameters()]))
    assert torch.allclose(*outs, atol=1e-10)
    for a, b in zip(*grads):
        assert torch.allclose(a, b, atol=1e-10 * scale**2)


def test_gat_drops_attention():
    data = tiny_graph(False)
    conv = AttentionConv(12, 4, heads=2, dropout=0.5)
    graph = neighbors(data.edge_index, 40)
    with torch.no_grad():
        mean = sum(conv(data.x, graph) for _ in range(4000)) / 4000
        assert torch.allclose(mean, conv.eval()(data.x, graph), atol=0.05)


def test_chebynet_weights_first():
    data = tiny_graph(True)
    ours, pyg = WeightFirst(12, 4, K=3), ChebConv(12, 4, K=3)
    pyg.load_state_dict(ours.state_dict())
    expected = pyg(data.x.to_dense(), data.edge_index, lambda_max=2.0)
    assert torch.allclose(ours(data.x, data.edge_index), expected, atol=1e-6)


def test_splits():
    y = torch.arange(3000) % 4
    order = torch.randperm(3000)
    train, val, test = draw_per_class(y, order)
    assert y[train].bincount().tolist() == [20] * 4
    assert (len(val), len(test)) == (500, 1000)
    assert len(torch.cat([train, val, test]).unique()) == 1580
    parts = draw_share(y, order)
    assert [y[part].bincount().tolist() for part in parts] == [
        [225] * 4, [75] * 4, [450] * 4]
    assert len(torch.cat(parts).unique()) == 3000
