r"""Layers between two types of nodes."""
import copy
import math
import pickle

import pytest
import torch
from torch_geometric import EdgeIndex
from torch_geometric.explain.algorithm.utils import clear_masks, set_masks
from torch_geometric.nn import HeteroConv
from torch_geometric.testing import withPackage
from torch_geometric.typing import SparseTensor
from torch_geometric.utils import to_undirected

from torch_agcn import AGCNConv

MODES = [
    dict(energy='total', residual=False, beta=1e-4),
    dict(energy='total', residual=True, beta=1e-4),
    dict(energy='relative', residual=False, beta=1.0),
    dict(energy='relative', residual=True, beta=1.0),
]
NO_EDGES = torch.empty(2, 0, dtype=torch.long)
# Bad values are refused where values are looked at: not on devices.
LOOKING = pytest.mark.parametrize(
    'way', ['messages', 'matrix', 'cached'], indirect=True)


def random_graph(num_nodes=12, num_edges=20):
    return to_undirected(torch.randint(num_nodes, (2, num_edges)))


def bipartite_graph(num_sources=7, num_targets=5, num_edges=14):
    edge_index = torch.stack([torch.randint(num_sources, (num_edges, )),
                              torch.randint(num_targets, (num_edges, ))])
    return torch.unique(edge_index, dim=1).contiguous()


def dense_bipartite(conv, x, edge_index, weight=None):
    r"""The layer on dense float64 matrices, and its gate."""
    source, target = (v.double() for v in x)
    if weight is None:
        weight = torch.ones(edge_index.size(1))
    A = torch.zeros(len(target), len(source), dtype=torch.double)
    A[edge_index[1], edge_index[0]] = weight.double()
    W = conv.lin.weight.t().double()
    if conv.lin_dst is not None:
        source = source @ W
        target = target @ conv.lin_dst.weight.t().double()
        W = torch.eye(W.size(1), dtype=torch.double)
    if conv.energy == 'total':
        distance = (target[:, None] - source[None, :]).square().sum(-1)
        s = (A * distance).sum()
    else:
        # The mean frequency on the spectrum of the graph of both sides,
        # without isolated nodes:
        N = len(source) + len(target)
        S = torch.zeros(N, N, dtype=torch.double)
        S[len(source):, :len(source)] = A
        S = S + S.t()
        keep = S.sum(1) > 0
        S, Z = S[keep][:, keep], torch.cat([source, target])[keep]
        root = S.sum(1).sqrt()
        v = root / root.norm()
        Z = Z - v[:, None] * (v @ Z)
        rough = Z - S / root[:, None] / root[None, :] @ Z
        s = (Z * rough).sum() / Z.square().sum()
    g = 1 - torch.exp(-conv.beta * s**2)
    degrees = A.sum(1, keepdim=True), A.sum(0, keepdim=True)
    P = A
    if conv.normalize:
        P = torch.nan_to_num(A / (degrees[0] * degrees[1]).sqrt())
    out = g * P @ source
    if conv.residual:
        out = out + (1 - g) * target
    out = (1 - conv.alpha) * out + conv.alpha * target
    return out @ W + conv.bias.double(), g


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('channels', [4, (4, 4), (4, 6)])
def test_against_dense(mode, channels, way):
    sizes = channels if isinstance(channels, tuple) else (4, 4)
    mode = {**mode, 'beta': 1e-4 if mode['energy'] == 'total' else 0.7}
    for alpha, weighted, more, normalize in [
            (0.0, False, 0, True), (0.3, True, 0, True), (0.0, True, 2, True),
            (0.0, True, 2, False)]:
        edge_index = bipartite_graph()
        weight = torch.rand(edge_index.size(1)) + 0.1 if weighted else None
        # With isolated nodes on both sides:
        x = torch.randn(7 + more, sizes[0]), torch.randn(5 + more, sizes[1])
        conv = way(AGCNConv, channels, 3, alpha=alpha, normalize=normalize,
                   **mode)
        torch.nn.init.normal_(conv.bias)
        expected, g = dense_bipartite(conv, x, edge_index, weight)
        assert 0.01 < g < 0.99
        out = conv(x, edge_index, weight)
        assert out.size() == (5 + more, 3)
        assert torch.allclose(out.double(), expected, atol=1e-5)
        assert float(conv.gate(x, edge_index, weight)) == pytest.approx(
            float(g), rel=1e-4)
        conv = conv.double()
        x = x[0].double(), x[1].double()
        assert torch.allclose(conv(x, edge_index, weight), expected,
                              atol=1e-10 if weight is None else 1e-6)


def test_by_hand():
    # One source at 1, targets at 2 and 4: s = 1 + 9, and P = 1 / sqrt(2).
    x = torch.tensor([[1.]]), torch.tensor([[2.], [4.]])
    edge_index = torch.tensor([[0, 0], [0, 1]])
    g = 1 - math.exp(-0.5)
    conv = AGCNConv(1, 1, beta=0.005, bias=False)
    torch.nn.init.ones_(conv.lin.weight)
    assert conv.gate(x, edge_index) == pytest.approx(g)
    assert conv(x, edge_index).flatten().tolist() == pytest.approx(
        [g / 2**0.5] * 2)
    conv.residual = True
    assert conv(x, edge_index).flatten().tolist() == pytest.approx(
        [2 + g * (0.5**0.5 - 2), 4 + g * (0.5**0.5 - 4)])
    # What propagation keeps, the root of the degree, is smooth; with another
    # sign on either side it is as rough as can be.
    conv = AGCNConv(1, 1, beta=0.1, energy='relative', residual=False)
    flat = torch.tensor([[2**0.5]]), torch.ones(2, 1)
    assert conv.gate(flat, edge_index) == pytest.approx(0, abs=1e-6)
    assert conv.gate((-flat[0], flat[1]), edge_index) == pytest.approx(
        1 - math.exp(-0.1 * 4))


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('channels', [3, (3, 4)])
def test_gradients(mode, channels, way):
    mode = {**mode, 'beta': 0.01 if mode['energy'] == 'total' else 1.0}
    conv = way(AGCNConv, channels, 2, learn_beta=True, **mode).double()
    edge_index = bipartite_graph(4, 3, 7)
    x = [torch.randn(n, f, dtype=torch.double, requires_grad=True)
         for n, f in zip((5, 3), (3, 3) if channels == 3 else channels)]
    weight = (torch.rand(edge_index.size(1)) + 0.1).double()
    names = [name for name, _ in conv.named_parameters()]

    def run(source, target, weight, *parameters):
        return torch.func.functional_call(
            conv, dict(zip(names, parameters)),
            ((source, target), edge_index, weight))

    parameters = [p.detach().clone().requires_grad_()
                  for p in conv.parameters()]
    for weight.requires_grad in [False, True]:
        assert torch.autograd.gradcheck(run, (*x, weight, *parameters))


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('channels', [4, (4, 4)])
def test_all_forms_of_a_graph(mode, channels):
    edge_index, x = bipartite_graph(), (torch.randn(7, 4), torch.randn(5, 4))
    weight = torch.rand(edge_index.size(1))
    conv = AGCNConv(channels, 3, **mode)
    out = conv(x, edge_index, weight)
    csr = torch.sparse_coo_tensor(edge_index.flip(0), weight,
                                  (5, 7)).to_sparse_csr()
    index = EdgeIndex(edge_index, sparse_size=(7, 5))
    sparse = tuple(side.to_sparse() for side in x)
    for conv.cached in [False, True]:
        for args in [(x, csr), (x, csr.to_sparse_coo()), (x, index, weight),
                     (list(x), edge_index, weight),
                     (sparse, edge_index, weight)] * 2:
            assert torch.allclose(conv(*args), out, atol=1e-5)
    conv.cached = False
    # The order of nodes and of edges does not matter:
    s, d = torch.randperm(7), torch.randperm(5)
    shuffle = torch.randperm(edge_index.size(1))
    moved = torch.stack([s.argsort()[edge_index[0]], d.argsort()[edge_index[1]]
                         ])[:, shuffle]
    assert torch.allclose(conv((x[0][s], x[1][d]), moved, weight[shuffle]),
                          out[d], atol=1e-5)
    # Many features on one graph:
    stacked = tuple(torch.stack([side, 2 * side]) for side in x)
    both = conv(stacked, edge_index, weight)
    assert torch.allclose(both[0], out, atol=1e-5)
    assert torch.allclose(both[1], conv((2 * x[0], 2 * x[1]), edge_index,
                                        weight), atol=1e-5)
    for low in [torch.bfloat16, torch.half]:
        with torch.autocast('cpu', low):
            assert torch.allclose(conv(x, edge_index, weight).float(), out,
                                  atol=0.1)


def test_many_features_and_sparse_ones():
    edge_index = torch.tensor([[0, 1, 4], [0, 2, 1]])
    source, target = torch.randn(2, 5, 4), torch.randn(2, 3, 4)
    conv = AGCNConv(4, 3, beta=0.01)
    out = conv((source, target), edge_index)
    for i in range(2):
        expected = conv((source[i], target[i]), edge_index)
        assert torch.allclose(out[i], expected, atol=1e-6)
        for layout in [torch.sparse_coo, torch.sparse_csr]:
            sparse = [side[i].to_sparse(layout=layout)
                      for side in (source, target)]
            assert torch.allclose(conv((sparse[0], target[i]), edge_index),
                                  expected, atol=1e-6)
            assert torch.allclose(conv(tuple(sparse), edge_index), expected,
                                  atol=1e-6)


@pytest.mark.extensions
@withPackage('torch_sparse')
@pytest.mark.parametrize('mode', MODES)
def test_sparse_tensor(mode):
    edge_index, x = bipartite_graph(), (torch.randn(7, 4), torch.randn(5, 4))
    conv = AGCNConv((4, 4), 3, **mode)
    out = conv(x, edge_index)
    adj = SparseTensor.from_edge_index(edge_index, sparse_sizes=(7, 5)).t()
    for conv.cached in [False, True, True]:
        assert torch.allclose(conv(x, adj), out, atol=1e-6)


@pytest.mark.parametrize('mode', MODES)
def test_batch_equals_one_by_one(mode, way):
    conv = way(AGCNConv, (4, 6), 3, **mode)
    xs, indices, outs, gates = [], [], [], []
    for i, (n, m, e) in enumerate([(7, 5, 14), (2, 3, 4), (3, 1, 0)]):
        edge_index = bipartite_graph(n, m, e)
        x = 2.0**i * torch.randn(n, 4), torch.randn(m, 6)
        outs.append(conv(x, edge_index))
        gates.append(conv.gate(x, edge_index))
        start = torch.tensor([[sum(len(v[k]) for v in xs)] for k in (0, 1)])
        indices.append(edge_index + start)
        xs.append(x)
    x = tuple(torch.cat(side) for side in zip(*xs))
    batch = tuple(torch.repeat_interleave(torch.tensor(
        [len(v[k]) for v in xs])) for k in (0, 1))
    args = x, torch.cat(indices, dim=1), None, batch
    assert torch.allclose(conv(*args), torch.cat(outs), atol=1e-5)
    assert torch.allclose(conv(*args, batch_size=(3, 3)), torch.cat(outs),
                          atol=1e-5)
    assert torch.equal(conv(*args[:3], (None, None)), conv(*args[:3]))
    assert torch.allclose(conv.gate(*args), torch.stack(gates), atol=1e-5)
    with pytest.raises(ValueError, match='batch'):
        conv(*args[:3], batch[0])


@pytest.mark.parametrize('mode', MODES)
def test_what_torch_does_with_a_layer(mode):
    edge_index, x = bipartite_graph(), (torch.randn(7, 4), torch.randn(5, 6))
    conv = AGCNConv((-1, -1), 3, **mode)
    assert str(conv).startswith('AGCNConv((-1, -1), 3')
    out = conv(x, edge_index)
    assert conv.lin.weight.size() == (3, 4)
    assert conv.lin_dst.weight.size() == (3, 6)
    assert sorted(conv.state_dict()) == ['bias', 'lin.weight',
                                         'lin_dst.weight']
    for other in [copy.deepcopy(conv), pickle.loads(pickle.dumps(conv))]:
        assert torch.equal(other(x, edge_index), out)
    before = conv.lin_dst.weight.clone()
    conv.reset_parameters()
    assert not torch.equal(conv.lin_dst.weight, before)
    torch._dynamo.reset()
    compiled = torch.compile(conv, fullgraph=True, backend='aot_eager')
    assert torch.allclose(compiled(x, edge_index), conv(x, edge_index),
                          atol=1e-5)
    # One tensor stands for both sides:
    conv, x = AGCNConv((4, 4), 3, **mode), torch.randn(7, 4)
    for batch in [None, torch.arange(7) // 4]:
        edge_index = random_graph(7, 10)
        if batch is not None:
            edge_index = edge_index[:, batch[edge_index[0]]
                                    == batch[edge_index[1]]]
        assert torch.equal(
            conv(x, edge_index, batch=batch),
            conv((x, x), edge_index,
                 batch=None if batch is None else (batch, batch)))
    conv = AGCNConv(-1, 3, **mode)  # One map for both.
    conv((torch.randn(7, 4), torch.randn(5, 4)), bipartite_graph())
    assert conv.lin.weight.size() == (3, 4)


def test_the_cache_sees_both_sides():
    conv = AGCNConv(4, 3, cached=True)
    conv.beta = 1e-3
    edge_index = bipartite_graph(4, 4, 6)
    x = torch.randn(10, 4)
    for num_sources in [4, 5, 6, 5]:
        sides = x[:num_sources], x[num_sources:]
        expected, _ = dense_bipartite(conv, sides, edge_index)
        for _ in range(2):
            assert torch.allclose(conv(sides, edge_index).double(), expected,
                                  atol=1e-5)
    assert not torch.allclose(conv(x, edge_index)[5:].double(), expected)


@pytest.mark.parametrize('mode', MODES)
def test_an_edge_mask_between_two_types(mode):
    edge_index, x = bipartite_graph(), (torch.randn(7, 4), torch.randn(5, 4))
    conv = AGCNConv(4, 3, **mode)
    conv.beta = 1e-3 if conv.energy == 'total' else 1.0
    expected = conv(x, edge_index)
    conv.explain = True
    conv._apply_sigmoid = False
    conv._loop_mask = edge_index[0] != edge_index[1]
    conv._edge_mask = torch.ones(edge_index.size(1))
    assert torch.allclose(conv(x, edge_index), expected, atol=1e-5)
    mask = torch.rand(edge_index.size(1), requires_grad=True)
    conv._edge_mask = mask
    gate = conv.gate(x, edge_index)
    _, g = dense_bipartite(conv, x, edge_index, mask.detach())
    assert float(gate) == pytest.approx(float(g), rel=1e-4)
    conv(x, edge_index).square().sum().backward()
    assert (mask.grad != 0).all()


@pytest.mark.parametrize('kwargs', [
    dict(beta=0.05), dict(beta=2.0, energy='relative', residual=True)])
def test_masks_leave_edges_out(kwargs):
    edge_index = torch.tensor([[0, 1, 2, 0], [0, 1, 1, 1]])
    x = torch.randn(3, 2), torch.randn(2, 2)
    conv = AGCNConv((2, 2), 3, **kwargs)
    expected = conv(x, edge_index), conv.gate(x, edge_index)
    set_masks(conv, torch.ones(4), edge_index, apply_sigmoid=False)
    for found, value in zip([conv(x, edge_index), conv.gate(x, edge_index)],
                            expected):
        assert torch.allclose(found, value, atol=1e-6)
    # Without its last edge:
    mask = torch.tensor([1., 1., 1., 0.])
    set_masks(conv, mask, edge_index, apply_sigmoid=False)
    masked = conv.gate(x, edge_index)
    clear_masks(conv)
    assert torch.allclose(masked, conv.gate(x, edge_index[:, :3]), atol=1e-6)


@pytest.mark.parametrize('mode', MODES)
def test_hetero_conv(mode):
    x_dict = {'a': torch.randn(12, 4), 'b': torch.randn(5, 6)}
    edge_index_dict = {
        ('a', 'to', 'a'): random_graph(),
        ('b', 'to', 'b'): random_graph(5, 6),
        ('a', 'to', 'b'): bipartite_graph(12, 5),
        ('b', 'to', 'a'): bipartite_graph(5, 12),
    }
    conv = HeteroConv({
        key: AGCNConv(-1 if key[0] == key[-1] else (-1, -1), 3, **mode)
        for key in edge_index_dict
    })
    conv(x_dict, edge_index_dict)
    optimizer = torch.optim.SGD(conv.parameters(), lr=0.1)
    out = conv(x_dict, edge_index_dict)
    loss = sum(value.square().mean() for value in out.values())
    loss.backward()
    assert all(p.grad is not None for p in conv.parameters())
    optimizer.step()
    after = conv(x_dict, edge_index_dict)
    assert sum(value.square().mean() for value in after.values()) < loss
    for kind, other in [('a', 'b'), ('b', 'a')]:
        same, across = (conv.convs[(key, 'to', kind)] for key in (kind, other))
        expected, _ = dense_bipartite(
            across, (x_dict[other], x_dict[kind]),
            edge_index_dict[other, 'to', kind])
        expected = expected + same(x_dict[kind],
                                   edge_index_dict[kind, 'to', kind])
        assert torch.allclose(after[kind].double(), expected, atol=1e-5)


@pytest.mark.parametrize('make, x, message', [
    (dict(num_hops=2), (4, 4), 'stack layers'),
    (dict(in_channels=(4, 4), num_hops=2), None, 'stack layers'),
    (dict(in_channels=(4, 4), flow='target_to_source'), None, 'flip(0)'),
    (dict(in_channels=(4, 4), add_self_loops=True), None, 'both sides'),
    (dict(in_channels=(4, 4, 4)), None, 'source and target'),
    (dict(), (4, 6), 'in_channels=(4, 6)'),
    (dict(), (4, None), 'both sides'),
    (dict(), (4, 4, 4), 'both sides'),
])
def test_bad_input(make, x, message):
    with pytest.raises(ValueError, match='AGCNConv') as error:
        conv = AGCNConv(**{'in_channels': 4, 'out_channels': 3, **make})
        conv(tuple(f and torch.randn(5, f) for f in x),
             bipartite_graph(5, 5))
    assert message in str(error.value)


@LOOKING
@pytest.mark.parametrize('edge_index, message', [
    (torch.tensor([[5], [6]]), 'node 6'),
    (torch.tensor([[7], [0]]), 'node 7'),
    (torch.eye(7)[:, :5].to_sparse_csr(), '7 sending and 5 receiving'),
])
def test_bad_edges(edge_index, message, way):
    with pytest.raises(ValueError, match='AGCNConv') as error:
        way(AGCNConv, 4, 3)((torch.randn(7, 4), torch.randn(5, 4)),
                            edge_index)
    assert message in str(error.value)


def test_a_batch_is_of_both_sides():
    conv = AGCNConv((4, 4), 2)
    x = torch.empty(0, 4), torch.empty(0, 4)
    for batch in [torch.empty(0, dtype=torch.long), (None, torch.empty(0)),
                  [torch.empty(0).long()] * 3]:
        with pytest.raises(ValueError, match='both sides'):
            conv(x, NO_EDGES, batch=batch)
    assert conv(x, NO_EDGES, batch=(None, None)).shape == (0, 2)
    x = torch.randn(5, 4), torch.randn(3, 4)
    for batch in [torch.zeros(3).long(), torch.zeros(2, 4).long()]:
        with pytest.raises(ValueError, match='both sides of a bipartite'):
            conv(x, NO_EDGES, batch=batch)
