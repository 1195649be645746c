r"""Products in bfloat16, which :class:`torch.autocast` asks for, where there
are features enough for them to be faster.
"""
import pytest
import torch
from torch_geometric.utils import to_undirected

from torch_agcn import AGCNConv, GatedDiffusion

NODES, FEATURES = 2**14, 64
LAYERS = {
    'paper': lambda: AGCNConv(FEATURES, FEATURES),
    'residual': lambda: AGCNConv(FEATURES, FEATURES, residual=True),
    'relative': lambda: AGCNConv(FEATURES, FEATURES, energy='relative'),
    'half open': lambda: AGCNConv(FEATURES, FEATURES, energy='relative',
                                  beta=0.7),
    'from zero': lambda: AGCNConv(FEATURES, FEATURES, energy='relative',
                                  beta=0.7, residual=False),
    'momentum': lambda: AGCNConv(FEATURES, FEATURES, energy='relative',
                                 beta=0.7, momentum=0.1),
    'hops': lambda: GatedDiffusion(4, 0.1, beta=0.7),
    'recomputed': lambda: GatedDiffusion(4, 0.1, beta=0.7, recompute=True),
    'not normalized': lambda: AGCNConv(FEATURES, FEATURES, normalize=False),
    'learnt': lambda: GatedDiffusion(2, beta=0.7, learn_beta=True),
}


def low():
    return torch.autocast('cpu', torch.bfloat16)


def graph(kind='undirected'):
    edge_index = torch.randint(NODES - 5, (2, 3 * NODES))  # some are isolated
    weight = None
    if kind == 'undirected':
        edge_index = to_undirected(edge_index, num_nodes=NODES)
    if kind == 'weighted':
        weight = torch.rand(edge_index.size(1))
    return edge_index, weight


def distance(found, expected):
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize('layer', LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize('kind', ['undirected', 'directed', 'weighted'])
def test_values_and_gradients(layer, kind):
    conv, x = layer(), torch.randn(NODES, FEATURES, requires_grad=True)
    given = torch.randn(NODES, FEATURES)

    def run():
        out = conv(x, *edges)
        return [out, *torch.autograd.grad(
            (out.float() * given).sum(), [x, *conv.parameters()])]

    edges = graph(kind)
    expected = run()
    with low():
        found = run()
    assert found[0].dtype == expected[0].dtype
    assert not torch.equal(found[0], expected[0])
    for a, b in zip(found, expected):
        assert distance(a, b) < 0.01


@pytest.mark.parametrize('kind', ['undirected', 'directed', 'weighted'])
@pytest.mark.parametrize('residual', [True, False])
@pytest.mark.parametrize('batched', [True, False])
def test_gates_look_at_what_differs_from_the_mean(kind, residual, batched):
    # All features are nearly the same multiples of one another, so that
    # their errors are alike, too.
    x = torch.randn(NODES, FEATURES) + 1000
    edge_index, weight = graph(kind)
    batch = None
    if batched:
        batch = torch.arange(NODES) // (NODES // 2)
        edge_index[1] += (batch[edge_index[0]] - batch[edge_index[1]]) * (
            NODES // 2)
        x[batch == 1] -= 3000
    conv = GatedDiffusion(2, beta=0.7, residual=residual)
    expected = conv.gate(x, edge_index, weight, batch=batch)
    with low():
        found = conv.gate(x, edge_index, weight, batch=batch)
    assert 0.01 < float(expected.min()) < float(expected.max()) < 0.99
    assert torch.allclose(found, expected, rtol=2**-9)


def test_a_mean_is_not_rounded():
    # In bfloat16, numbers around 1,000 are multiples of 4. On a graph in
    # which all degrees are the same, the mean is taken away as a whole.
    x = torch.randn(NODES, FEATURES) + 1000
    place = torch.arange(NODES)
    edge_index = torch.cat([torch.stack([place, (place + k) % NODES])
                            for k in [1, -1, 7, -7]], dim=1)
    conv = GatedDiffusion(2, beta=0.7)
    expected = conv.gate(x, edge_index), conv(x, edge_index)
    with low():
        found = conv.gate(x, edge_index), conv(x, edge_index)
    assert torch.allclose(found[0], expected[0], rtol=1e-3)
    assert float((found[1] - expected[1]).abs().max()) < 0.05


def test_second_derivatives():
    conv, x = GatedDiffusion(1, beta=0.7), torch.randn(NODES, FEATURES)
    edge_index, _ = graph()
    x.requires_grad_()
    found = []
    for mode in [low(), torch.autocast('cpu', enabled=False)]:
        with mode:
            out = conv(x, edge_index)
        first, = torch.autograd.grad(out.square().sum(), x,
                                     create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), x)[0])
    assert distance(*found) < 0.01


def test_stacked_features():
    x, (edge_index, _) = torch.randn(2, NODES, FEATURES), graph()
    conv = GatedDiffusion(2, beta=0.7)
    with low():
        out = conv(x, edge_index)
        parts = [conv(part, edge_index) for part in x]
    for found, expected in zip(out, parts):
        assert distance(found, expected) < 1e-3


def test_what_is_not_rounded():
    x, (edge_index, _) = torch.randn(NODES, FEATURES), graph()
    conv = GatedDiffusion(2)
    expected = conv(x, edge_index)
    with torch.autocast('cpu', torch.half):  # which overflows
        assert torch.equal(conv(x, edge_index), expected)
    expected = conv(x.double(), edge_index)
    with low():  # which is for float32
        assert torch.equal(conv(x.double(), edge_index), expected)
    # A few features gain nothing:
    expected = conv(x[:, :8], edge_index)
    with low():
        assert torch.equal(conv(x[:, :8], edge_index), expected)
