import math

import pytest
import torch
from torch_geometric.nn import GCN2Conv

from torch_agcn import AGCN2Conv

EDGES = torch.tensor([[0, 1, 1, 2, 2, 3, 3, 0, 4, 1],
                      [1, 0, 2, 1, 3, 2, 0, 3, 1, 4]])


@pytest.mark.parametrize('energy', ['total', 'relative'])
@pytest.mark.parametrize('residual', [False, True])
@pytest.mark.parametrize('theta', [None, 0.5])
def test_layer_is_the_formula(dense, way, energy, residual, theta):
    conv = way(AGCN2Conv, 4, alpha=0.1, theta=theta,
               layer=3 if theta else None, beta=0.2, energy=energy,
               residual=residual).double()
    x, x_0 = torch.randn(2, 6, 4, dtype=torch.double)
    H = dense(6, EDGES).layer(x, torch.eye(4).double(), 0, 0.2, energy,
                              residual, 1, 0)
    H = 0.9 * H + 0.1 * x_0
    strength = math.log(0.5 / 3 + 1) if theta else 1
    expected = (1 - strength) * H + strength * H @ conv.lin.weight.t()
    for _ in range(2):
        assert torch.allclose(conv(x, x_0, EDGES), expected)


@pytest.mark.parametrize('layer', [1, 64])
def test_an_open_gate_is_gcn2conv(layer):
    conv = AGCN2Conv(8, alpha=0.2, theta=0.5, layer=layer, beta=1e30)
    pyg = GCN2Conv(8, alpha=0.2, theta=0.5, layer=layer)
    with torch.no_grad():
        pyg.weight1.copy_(conv.lin.weight.t())
    x, x_0 = torch.randn(2, 6, 8)
    weight = torch.rand(10)
    assert torch.allclose(conv(x, x_0, EDGES), pyg(x, x_0, EDGES), atol=1e-6)
    assert torch.allclose(conv(x, x_0, EDGES, weight),
                          pyg(x, x_0, EDGES, weight), atol=1e-6)


def test_a_closed_gate_keeps_features():
    # No edge ends at another value: nothing is rough, nothing moves.
    conv = AGCN2Conv(8, alpha=0.0, theta=0.5, layer=2, energy='total',
                     beta=500.0, residual=True)
    x = torch.ones(6, 8)
    x_0 = torch.zeros(6, 8)
    assert conv.gate(x, x_0, EDGES) == 0
    out = conv(x, x_0, EDGES)
    strength = math.log(1.25)
    assert torch.allclose(out, torch.lerp(x, conv.lin(x), strength))


@pytest.mark.parametrize('energy', ['total', 'relative'])
@pytest.mark.parametrize('residual', [False, True])
def test_gates_are_those_that_forward_applies(dense, way, energy, residual):
    # The restart of each hop is from the initial features.
    conv = way(AGCN2Conv, 4, alpha=0.5, beta=1.0 if energy == 'relative' else
               0.01, num_hops=3, energy=energy, residual=residual)
    x, x_0 = torch.randn(2, 6, 4)
    ref, h, expected = dense(6, EDGES), x.double(), []
    for _ in range(3):
        s = getattr(ref, energy)(h)
        g = 1 - torch.exp(-conv.beta * s**2)
        h = h + g * (ref.P @ h - h) if residual else g * ref.P @ h
        h = 0.5 * h + 0.5 * x_0
        expected.append(float(g))
    assert conv.gate(x, x_0, EDGES).tolist() == pytest.approx(expected,
                                                              rel=1e-4)
    assert torch.allclose(conv(x, x_0, EDGES), conv.lin(h.float()), atol=1e-5)
    # Both depend on them, and on nothing else:
    batch = torch.zeros(6, dtype=torch.long)
    assert conv.gate(x, x_0, EDGES, batch=batch)[:, 0].tolist() == (
        pytest.approx(expected, rel=1e-4))
    assert not torch.allclose(conv.gate(x, x, EDGES),
                              conv.gate(x, x_0, EDGES))


def test_graphs_of_a_batch_have_their_own_gates():
    conv = AGCN2Conv(8, alpha=0.1, theta=0.5, layer=1, beta=0.5)
    x, x_0 = torch.randn(2, 12, 8)
    x[6:] *= torch.linspace(1, 2, 6)[:, None]
    edge_index = torch.cat([EDGES, EDGES + 6], dim=1)
    batch = torch.arange(12) // 6
    out = conv(x, x_0, edge_index, batch=batch)
    for part in [slice(0, 6), slice(6, 12)]:
        assert torch.allclose(out[part], conv(x[part], x_0[part], EDGES),
                              atol=1e-6)


def test_gradients(way):
    conv = way(AGCN2Conv, 3, alpha=0.1, theta=0.5, layer=1, beta=0.3,
               learn_beta=True).double()
    x, x_0 = torch.randn(2, 6, 3, dtype=torch.double).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda *args: conv(*args, EDGES), (x, x_0))


def test_bad_arguments():
    for theta, layer in [(0.5, None), (0.5, 0), (-1.0, 1), (math.nan, 1),
                         (math.inf, 1)]:
        with pytest.raises(ValueError, match='the number of the layer'):
            AGCN2Conv(4, alpha=0.1, theta=theta, layer=layer)
    for channels in [-1, 8.0]:
        with pytest.raises(ValueError, match=f'channels={channels}'):
            AGCN2Conv(channels, alpha=0.1)
    with pytest.raises(TypeError, match='momentum'):
        AGCN2Conv(4, alpha=0.1, momentum=0.1)
    conv = AGCN2Conv(4, alpha=0.1)
    with pytest.raises(ValueError, match='same nodes and channels'):
        conv(torch.randn(6, 4), torch.randn(5, 4), EDGES)
    x = torch.randn(6, 4)
    for x_0 in [x.to(torch.complex64), x.long(), x.double(), x.tolist(),
                None]:
        with pytest.raises(ValueError, match=r"AGCN2Conv.*'x_0'"):
            conv(x, x_0, EDGES)
    assert str(AGCN2Conv(4, alpha=0.1, theta=0.5, layer=1)).startswith(
        'AGCN2Conv(4, alpha=0.1, ')


@pytest.mark.parametrize('cached', [False, True])
def test_compile(cached, calls):
    torch._dynamo.reset()
    conv = AGCN2Conv(4, alpha=0.1, theta=0.5, layer=2, cached=cached)
    x, x_0 = torch.randn(2, 6, 4)
    compiled = torch.compile(conv, fullgraph=not cached, backend='eager')
    assert torch.allclose(compiled(x, x_0, EDGES), conv(x, x_0, EDGES),
                          atol=1e-6)
    assert calls.builds(compiled, x, x_0, EDGES) != cached
