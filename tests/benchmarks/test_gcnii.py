import json
from math import log

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCN2Conv, GCNConv

from benchmarks import settings as harness
from benchmarks.baselines import agcn_deep, gcnii
from benchmarks.baselines.layers import by_matrix, sparse_first
from benchmarks.training import Run

EDGES = torch.tensor([[0, 1, 1, 2, 2, 3, 3, 0, 4, 1],
                      [1, 0, 2, 1, 3, 2, 0, 3, 1, 4]])


def same(out, expected, weights):
    assert torch.allclose(out, expected, atol=1e-6)
    weight = torch.randn_like(out)
    for a, b in zip(torch.autograd.grad((out * weight).sum(), weights),
                    torch.autograd.grad((expected * weight).sum(), weights)):
        assert torch.allclose(a, b, atol=1e-6)


@pytest.mark.parametrize('edge_index', [EDGES, EDGES[:, :7]])
def test_product_is_pygs_propagation(edge_index):
    x, first = torch.randn(2, 6, 8).requires_grad_()
    conv = GCN2Conv(8, 0.1, 0.5, layer=3, cached=True)
    expected = conv(x, first, edge_index)
    by_matrix(conv)
    same(conv(x, first, edge_index), expected, [x, first, conv.weight1])


def test_product_of_other_graphs_and_weights():
    # GCN-PN hands over weights that are not symmetric.
    x = torch.randn(6, 8, requires_grad=True)
    conv, pyg = GCNConv(8, 4, normalize=False), GCNConv(8, 4, normalize=False)
    pyg.load_state_dict(conv.state_dict())
    by_matrix(torch.nn.Sequential(conv))
    for edge_index in [EDGES, EDGES.flip(0)[:, :5]]:
        weight = torch.rand(edge_index.size(1))
        same(conv(x, edge_index, weight), pyg(x, edge_index, weight), [x])


def test_net_is_the_papers_formula(dense):
    model = by_matrix(gcnii.Net(7, 4, 3, 3, 0.1, 0.5, 0.6)).eval()
    model.double()
    x = torch.rand(6, 7, dtype=torch.double)
    P = dense(6, EDGES).P
    h = first = (x @ model.lin_in.weight.t() + model.lin_in.bias).relu()
    for layer, conv in enumerate(model.convs, start=1):
        beta = log(0.5 / layer + 1)
        mixed = 0.9 * P @ h + 0.1 * first
        h = ((1 - beta) * mixed + beta * mixed @ conv.weight1).relu()
    expected = h @ model.lin_out.weight.t() + model.lin_out.bias
    for features in [x, x.to_sparse().coalesce()]:
        assert torch.allclose(model(features, EDGES), expected, atol=1e-6)


def test_weight_decay(monkeypatch):
    seen = []

    def fit(model, data, *, params, **options):
        seen.append((model, params, options))

    monkeypatch.setattr(gcnii, 'fit', fit)
    data = Data(x=torch.rand(5, 7), y=torch.arange(5) % 3, edge_index=EDGES)
    gcnii.run(data, 0, num_layers=2)
    (model, params, options), = seen
    decay = {id(w): group['weight_decay'] for group in params
             for w in group['params']}
    assert {name: decay.pop(id(w)) for name, w in model.named_parameters()
            } == {'lin_in.weight': 5e-4, 'lin_in.bias': 5e-4,
                  'convs.0.weight1': 0.01, 'convs.1.weight1': 0.01,
                  'lin_out.weight': 5e-4, 'lin_out.bias': 5e-4}
    assert not decay
    assert options == dict(lr=0.01, epochs=1500, patience=100)


def test_settings():
    keys = ['hidden_channels', 'theta', 'p', 'weight_decay',
            'weight_decay_linear', 'alpha']
    found = {name: json.loads(harness.settings_of('gcnii', name))
             for name in ['Cora', 'CiteSeer', 'PubMed']}
    assert {name: [settings[key] for key in keys]
            for name, settings in found.items()} == {
                'Cora': [64, 0.5, 0.6, 0.01, 5e-4, 0.1],
                'CiteSeer': [256, 0.6, 0.7, 0.01, 5e-4, 0.1],
                'PubMed': [256, 0.4, 0.5, 5e-4, 5e-4, 0.1]}


@pytest.mark.parametrize('sparse', [False, True])
def test_deep_agcn_with_open_gates_is_gcnii(sparse):
    ours = agcn_deep.Net(7, 4, 6, 3, dropout=0.6, num_hops=1, beta=1e30)
    pyg = gcnii.Net(7, 4, 3, 6, 0.1, 0.5, 0.6)
    with torch.no_grad():
        for a, b in [(ours.lin_in, pyg.lin_in), (ours.lin_out, pyg.lin_out)]:
            b.weight.copy_(a.weight)
            b.bias.copy_(a.bias)
        for a, b in zip(ours.convs, pyg.convs):
            b.weight1.copy_(a.lin.weight.t())
    x = torch.rand(6, 7)
    if sparse:
        sparse_first(ours.lin_in)
        x = x.to_sparse()
    outs = []
    for model in [ours, pyg]:  # the same coins are tossed, too
        torch.manual_seed(3)
        outs.append(model(x, EDGES))
    assert torch.allclose(*outs, atol=1e-5)


def test_deep_agcn_trains_gates_without_weight_decay(monkeypatch):
    seen = []

    def fit(model, data, *, params, **options):
        seen.append((model, params))
        return Run(torch.zeros(5, 3), model=model)

    monkeypatch.setattr(agcn_deep, 'fit', fit)
    data = Data(x=torch.rand(5, 7), y=torch.arange(5) % 3, edge_index=EDGES)
    run = agcn_deep.run(data, 0, num_layers=2, num_hops=1,
                        learn_beta=True)
    (model, params), = seen
    decay = {id(w): group.get('weight_decay', 0) for group in params
             for w in group['params']}
    assert {name: decay.pop(id(w)) for name, w in model.named_parameters()
            } == {'lin_in.weight': 5e-4, 'lin_in.bias': 5e-4,
                  'convs.0.lin.weight': 0.01, 'convs.0.raw_beta': 0,
                  'convs.1.lin.weight': 0.01, 'convs.1.raw_beta': 0,
                  'lin_out.weight': 5e-4, 'lin_out.bias': 5e-4}
    assert not decay and set(run.extra) == {'gate_0', 'gate_1'}
