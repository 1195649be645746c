from math import log

import pytest
import torch

from torch_agcn import DeepAGCN
from torch_agcn.diagnostics import SmoothnessRecorder

EDGES = torch.tensor([[0, 1, 1, 2, 2, 3, 3, 0, 4, 1],
                      [1, 0, 2, 1, 3, 2, 0, 3, 1, 4]])


@pytest.mark.parametrize('num_hops', [1, 2, None])
def test_model_is_the_formula(dense, num_hops):
    model = DeepAGCN(7, 4, num_layers=5, out_channels=3, dropout=0.5,
                     beta=0.4, alpha=0.2, theta=0.6,
                     num_hops=num_hops).double().eval()
    x = torch.rand(6, 7, dtype=torch.double)
    graph = dense(6, EDGES)
    h = first = (x @ model.lin_in.weight.t() + model.lin_in.bias).relu()
    for layer, conv in enumerate(model.convs, start=1):
        for _ in range(num_hops or 4):  # 16 steps, or the next above
            h = graph.layer(h, torch.eye(4).double(), 0, 0.4, 'relative',
                            True, 1, 0)
            h = 0.8 * h + 0.2 * first
        strength = log(0.6 / layer + 1)
        h = ((1 - strength) * h + strength * h @ conv.lin.weight.t()).relu()
    expected = h @ model.lin_out.weight.t() + model.lin_out.bias
    assert torch.allclose(model(x, EDGES), expected)


def test_depth_does_not_erase_features():
    # Where a GCN of as many layers gives all nodes the same output.
    model = DeepAGCN(7, 16, num_layers=64, out_channels=3).eval()
    out = model(torch.rand(6, 7), EDGES)
    assert out.isfinite().all() and out.std(dim=0).min() > 1e-3


def test_dropout_reset_and_arguments():
    model = DeepAGCN(-1, 8, num_layers=2, out_channels=3, dropout=0.5)
    assert str(model) == 'DeepAGCN(-1, 3, num_layers=2)'
    x = torch.rand(6, 7)
    assert not torch.equal(model(x, EDGES), model(x, EDGES))
    before = model.eval()(x, EDGES)
    model.reset_parameters()
    assert not torch.allclose(model(x, EDGES), before)
    with pytest.raises(ValueError, match='whole number >= 1'):
        DeepAGCN(7, 8, num_layers=0, out_channels=3)
    for num_layers, hops in [(1, 16), (2, 8), (8, 2), (16, 2), (64, 2)]:
        model = DeepAGCN(7, 8, num_layers, 3)
        assert {conv.num_hops for conv in model.convs} == {hops}


@pytest.mark.parametrize('num_hops', [1, 3])
def test_recorder_sees_all_gates(dense, num_hops):
    model = DeepAGCN(7, 4, num_layers=3, out_channels=3, beta=0.4,
                     num_hops=num_hops).eval()
    x = torch.rand(6, 7)
    with SmoothnessRecorder(model) as recorder:
        model(x, EDGES)
    gates = [gate for record in recorder.records for gate in record.gates]
    h = first = model.lin_in(x).relu().detach()
    graph, expected = dense(6, EDGES), []
    for conv in model.convs:
        step = h.double()
        for _ in range(num_hops):
            g = 1 - torch.exp(-0.4 * graph.relative(step)**2)
            expected.append(float(g))
            step = step + g * (graph.P @ step - step)
            step = 0.9 * step + 0.1 * first
        h = conv(h, first, EDGES).relu().detach()
    assert gates == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize('x, message', [
    (torch.rand(6, 5), '7'), (torch.rand(6, 7).double(), 'float32'),
    (torch.ones(6, 7).long(), 'float'), (torch.rand(7), 'shape'),
    (torch.rand(6, 7).to(torch.complex64), 'float')])
def test_features_of_another_width_or_type(x, message):
    model = DeepAGCN(7, 8, num_layers=2, out_channels=3)
    with pytest.raises(ValueError, match='DeepAGCN') as error:
        model(x, EDGES)
    assert message in str(error.value)


@pytest.mark.parametrize('layout', [torch.sparse_coo, torch.sparse_csr])
def test_sparse_features(layout):
    model = DeepAGCN(7, 8, num_layers=2, out_channels=3, dropout=0.5)
    x = torch.rand(6, 7) * (torch.rand(6, 7) < 0.5)
    sparse = x.to_sparse(layout=layout)
    seen = []
    model.lin_in.register_forward_pre_hook(
        lambda _, args: seen.append(args[0].to_dense()))
    model(sparse, EDGES).sum().backward()
    dropped, = seen
    kept = dropped != 0
    assert torch.allclose(dropped[kept], 2 * x[kept])
    assert 0 < kept.sum() < (x != 0).sum()
    assert model.lin_in.weight.grad.any()
    model.eval()
    assert torch.allclose(model(sparse, EDGES), model(x, EDGES), atol=1e-6)
