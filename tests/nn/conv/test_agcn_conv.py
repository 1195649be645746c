import copy
import inspect
import itertools
import math
import pickle
import subprocess
import sys

import numpy
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, Data
from torch_geometric.explain import (
    CaptumExplainer,
    Explainer,
    GNNExplainer,
)
from torch_geometric.explain.algorithm.utils import clear_masks, set_masks
from torch_geometric.nn import GCNConv, Sequential, summary
from torch_geometric.testing import withPackage
from torch_geometric.typing import SparseTensor
from torch_geometric.utils import to_torch_csc_tensor, to_undirected
from torch_geometric.utils.influence import total_influence

from torch_agcn import AGCNConv
from torch_agcn.datasets import Planetoid

STAR = torch.tensor([[0, 0, 0, 1, 2, 3], [1, 2, 3, 0, 0, 0]])
PATH = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
TRIANGLE = torch.tensor([[0, 1, 1, 2, 2, 0, 3, 0],
                         [1, 0, 2, 1, 0, 2, 0, 3]])
MODES = [
    dict(energy='total', residual=False, beta=1e-4),
    dict(energy='total', residual=True, beta=1e-4),
    dict(energy='relative', residual=False, beta=1.0),
    dict(energy='relative', residual=True, beta=1.0),
]
DEEP = [dict(mode, num_hops=3, alpha=0.2) for mode in MODES]


def random_graph(num_nodes=12, num_edges=20, directed=False, weighted=False):
    edge_index = torch.randint(num_nodes, (2, num_edges))
    edge_index = torch.unique(edge_index, dim=1).contiguous()
    if not directed:
        edge_index = to_undirected(edge_index)
    weight = None
    if weighted:  # The same there and back, unless directed.
        weight = 0.1 + (edge_index.sum(0) % 7) / 3
        if directed:
            weight = torch.rand(edge_index.size(1)) + 0.1
    return edge_index, weight


# Bad values are refused where values are looked at: not on devices.
LOOKING = pytest.mark.parametrize(
    'way', ['messages', 'matrix', 'cached'], indirect=True)


def test_nothing_is_said():
    # Of sparse matrices in beta state, say, which torch says once.
    code = """import torch, warnings
from torch_agcn import AGCNConv
warnings.simplefilter('error', UserWarning)
edge_index = torch.tensor([[0, 1], [1, 0]])
for cached in [False, True]:
    conv = AGCNConv(2, 2, cached=cached)
    conv(torch.randn(2, 2), edge_index).sum().backward()
"""
    done = subprocess.run([sys.executable, '-c', code], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr


# Against GCNConv #############################################################


def test_agcn_conv_is_a_drop_in():
    x, value = torch.randn(4, 16), torch.rand(6)
    conv = AGCNConv(16, 32)
    assert str(conv) == 'AGCNConv(16, 32)'
    gcn = GCNConv(16, 32)
    assert list(conv.state_dict()) == list(gcn.state_dict())
    gcn.load_state_dict(conv.state_dict())
    conv = AGCNConv(16, 32, beta=1e6)
    conv.load_state_dict(gcn.state_dict())
    for weight in [None, value]:
        expected = gcn(x, STAR, weight)
        assert torch.allclose(conv(x, STAR, weight), expected, atol=1e-6)
        conv.fuse = False  # By messages, to the last digit.
        assert torch.equal(conv(x, STAR, weight), expected)
        conv.fuse = True


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_an_open_gate_is_gcn_conv(data):
    # Loops, edges that stand twice, isolated nodes, one-way edges, weights:
    num_nodes = data.draw(st.integers(1, 9))
    node = st.integers(0, num_nodes - 1)
    edges = data.draw(st.lists(st.tuples(node, node), max_size=24))
    edge_index = torch.tensor(edges, dtype=torch.long).view(-1, 2).t()
    weight = None
    if data.draw(st.booleans()):
        weight = torch.tensor(
            data.draw(st.lists(st.floats(0, 4, width=32),
                               min_size=len(edges), max_size=len(edges))))
    kwargs = dict(flow=data.draw(st.sampled_from(
        ['source_to_target', 'target_to_source'])),
        improved=weight is not None and data.draw(st.booleans()))
    x = torch.randn(num_nodes, 5)
    gcn = GCNConv(5, 3, **kwargs)
    for hops_differ in [dict(), dict(residual=True)]:
        conv = AGCNConv(5, 3, beta=1e6, **hops_differ, **kwargs)
        conv.load_state_dict(gcn.state_dict())
        if conv.gate(x, edge_index, weight) == 1:
            expected = gcn(x, edge_index, weight)
            out = conv(x, edge_index, weight)
            assert torch.allclose(out, expected, atol=1e-5)
            conv.fuse = False
            out = conv(x, edge_index, weight)
            if conv.flow == 'source_to_target':
                assert torch.equal(out, expected)
            else:  # The factors of a weight in another order.
                assert torch.allclose(out, expected, atol=1e-6)
            conv.fuse, conv.cached = True, True
            assert torch.allclose(conv(x, edge_index, weight),
                                  gcn(x, edge_index, weight), atol=1e-5)


@given(st.data())
@settings(max_examples=60, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_graphs_against_dense(dense, data):
    num_nodes = data.draw(st.integers(1, 8))
    node = st.integers(0, num_nodes - 1)
    edges = data.draw(st.lists(st.tuples(node, node), max_size=20))
    edge_index = torch.tensor(edges, dtype=torch.long).view(-1, 2).t()
    weight = data.draw(st.one_of(
        st.none(), st.lists(st.floats(0.125, 4, width=32),
                            min_size=len(edges), max_size=len(edges))))
    weight = None if weight is None else torch.tensor(weight)
    mode = data.draw(st.sampled_from(MODES + DEEP))
    x = torch.randn(num_nodes, 5, dtype=torch.double)
    conv = AGCNConv(5, 3, **mode, cached=data.draw(st.booleans())).double()
    ref = dense(num_nodes, edge_index, weight)
    if conv.energy == 'relative' and len(edges) == 0:
        return  # Nothing to divide: all is smooth.
    expected = ref.layer(x, conv.lin.weight.t(), conv.bias, conv.beta,
                         conv.energy, conv.residual, conv.num_hops, conv.alpha)
    if expected.isnan().any():
        return  # The reference divides zero by zero.
    assert torch.allclose(conv(x, edge_index, weight), expected, atol=1e-7)
    if weight is not None and len(edges) > 0:
        weight[data.draw(st.integers(0, len(edges) - 1))] = -1.0
        with pytest.raises(ValueError, match='-1'):
            conv(x, edge_index, weight)


def test_improved_weighs_loops_twice_in_every_form():
    # GCNConv ignores `improved` for edge indices without weights (2.8).
    x = torch.randn(4, 8)
    conv = AGCNConv(8, 8, beta=1e6, improved=True)
    out = conv(x, STAR)
    assert torch.allclose(conv(x, STAR, torch.ones(6)), out)
    adj = to_torch_csc_tensor(STAR, size=(4, 4)).t()
    assert torch.allclose(conv(x, adj), out, atol=1e-6)


# The interface ###############################################################


def test_arguments_in_the_order_of_gcn_conv():
    ours, theirs = (inspect.signature(layer).parameters.values()
                    for layer in (AGCNConv, GCNConv))
    assert [(p.name, p.default) for p in ours
            if p.kind == p.POSITIONAL_OR_KEYWORD] == [
        (p.name, p.default) for p in theirs
        if p.kind == p.POSITIONAL_OR_KEYWORD]
    assert {p.name for p in ours if p.kind == p.KEYWORD_ONLY} == {
        'energy', 'beta', 'residual', 'num_hops', 'alpha', 'learn_beta',
        'recompute', 'momentum'}
    conv, gcn = (layer(4, 3, True, True, False, True, False)
                 for layer in (AGCNConv, GCNConv))
    for name in ['in_channels', 'out_channels', 'improved', 'cached',
                 'add_self_loops', 'normalize']:
        assert getattr(conv, name) == getattr(gcn, name)
    assert conv.bias is None


def test_defaults_are_those_of_the_energy():
    for kwargs in [{}, dict(beta=None, residual=None)]:
        paper = AGCNConv(4, 3, **kwargs)
        assert (paper.energy, paper.beta, paper.residual) == (
            'total', 1.0, False)
        ours = AGCNConv(4, 3, energy='relative', **kwargs)
        assert (ours.beta, ours.residual) == (500.0, True)
    assert AGCNConv(4, 3, energy='relative', beta=1.0).beta == 1.0
    assert AGCNConv(4, 3, energy='relative', residual=False).residual is False
    assert AGCNConv(4, 3, residual=True).residual is True
    learnt = AGCNConv(4, 3, energy='relative', learn_beta=True)
    assert learnt.beta.item() == pytest.approx(500.0)


@pytest.mark.parametrize('kwargs, text', [
    (dict(), 'AGCNConv(16, 32)'),
    (dict(energy='relative'), "AGCNConv(16, 32, energy='relative')"),
    (dict(beta=2.0, num_hops=3), 'AGCNConv(16, 32, beta=2.0, num_hops=3)'),
    (dict(energy='total', beta=1.0, residual=False), 'AGCNConv(16, 32)'),
    (dict(energy='relative', beta=500.0, residual=True),
     "AGCNConv(16, 32, energy='relative')"),
    (dict(energy='relative', residual=False),
     "AGCNConv(16, 32, energy='relative', residual=False)"),
    (dict(improved=True, bias=False), 'AGCNConv(16, 32, improved=True, '
     'bias=False)'),
    (dict(cached=True, alpha=0.1), 'AGCNConv(16, 32, cached=True, '
     'alpha=0.1)'),
    (dict(add_self_loops=False), 'AGCNConv(16, 32, add_self_loops=False)'),
    (dict(normalize=False), 'AGCNConv(16, 32, normalize=False)'),
    (dict(recompute=True), 'AGCNConv(16, 32, recompute=True)'),
    (dict(momentum=0.1), 'AGCNConv(16, 32, momentum=0.1)'),
])
def test_repr_shows_what_is_not_a_default(kwargs, text):
    assert str(AGCNConv(16, 32, **kwargs)) == text
    assert str(eval(text)) == text


def test_repr_of_what_is_learnt_or_a_pair():
    text = str(AGCNConv(16, 32, beta=2.0, learn_beta=True))
    assert 'learn_beta=True' in text and 'grad' not in text
    assert str(AGCNConv((4, 5), 3)) == 'AGCNConv((4, 5), 3)'


# Values ######################################################################


@pytest.mark.parametrize('energy, residual, num_hops, alpha, weighted', [
    *itertools.product(['total', 'relative'], [False, True], [1, 2, 5],
                       [0.0, 0.3], [False, True])])
@pytest.mark.parametrize('directed', [False, True])
def test_against_dense(dense, way, energy, residual, num_hops, alpha,
                       weighted, directed):
    edge_index, weight = random_graph(directed=directed, weighted=weighted)
    x = torch.randn(12, 4)
    beta = 1e-4 if energy == 'total' else 1.5
    conv = way(AGCNConv, 4, 3, beta=beta, energy=energy, residual=residual,
               num_hops=num_hops, alpha=alpha)
    torch.nn.init.normal_(conv.bias)
    expected = dense(12, edge_index, weight).layer(
        x.double(), conv.lin.weight.t().double(), conv.bias.double(), beta,
        energy, residual, num_hops, alpha)
    out = conv(x, edge_index, weight)
    assert torch.allclose(out.double(), expected, atol=1e-5)
    assert torch.allclose(conv.double()(x.double(), edge_index, weight),
                          expected, atol=1e-12 if weight is None else 1e-6)


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('kwargs, dense_kwargs', [
    (dict(add_self_loops=False), dict(loops=False)),
    (dict(improved=True), dict(fill=2.0)),
])
def test_other_loops_against_dense(dense, way, mode, kwargs, dense_kwargs):
    edge_index, _ = random_graph()
    loops = torch.tensor([[3, 5, 3], [3, 5, 3]])  # Of two, the last counts.
    edge_index = torch.cat([edge_index, loops], dim=1)
    x = torch.randn(13, 4)  # Node 12 is isolated.
    conv = way(AGCNConv, 4, 3, **mode, **kwargs)
    for weight in [None, torch.rand(edge_index.size(1)) + 0.1]:
        expected = dense(13, edge_index, weight, **dense_kwargs).layer(
            x.double(), conv.lin.weight.t().double(), conv.bias.double(),
            conv.beta, conv.energy, conv.residual, 1, 0.0)
        assert torch.allclose(conv(x, edge_index, weight).double(), expected,
                              atol=1e-5)


@pytest.mark.parametrize('mode', MODES)
def test_without_normalization(dense, way, mode):
    # The weights as given, for messages and energy alike:
    edge_index, weight = random_graph(weighted=True)
    x = torch.randn(12, 4)
    conv = way(AGCNConv, 4, 3, normalize=False, **mode)
    ref = dense(12, edge_index, weight, loops=False)
    H = x.double()
    s = ref.total(H) if conv.energy == 'total' else ref.relative(H)
    g = 1 - math.exp(-conv.beta * s**2)
    step = g * ref.A @ H
    step = step + (1 - g) * H if conv.residual else step
    assert torch.allclose(conv(x, edge_index, weight).double(),
                          step @ conv.lin.weight.t().double(), atol=1e-5)


@pytest.mark.parametrize('mode', MODES + DEEP)
def test_all_forms_of_a_graph(mode):
    x = torch.randn(12, 16)
    edge_index, value = random_graph(directed=True, weighted=True)
    conv = AGCNConv(16, 8, **mode)
    for weight in [None, value]:
        out = conv(x, edge_index, weight)
        csr = to_torch_csc_tensor(edge_index, weight, size=(12, 12)).t()
        forms = [csr, csr.to_sparse_coo()]
        index = EdgeIndex(edge_index, sparse_size=(12, 12))
        assert torch.allclose(conv(x, index, weight), out, atol=1e-6)
        ordered, perm = index.sort_by('col')
        assert torch.allclose(
            conv(x, ordered, None if weight is None else weight[perm]), out,
            atol=1e-6)
        for adj in forms:
            assert torch.allclose(conv(x, adj), out, atol=1e-6)
        conv.cached = True
        assert torch.allclose(conv(x, edge_index, weight), out, atol=1e-6)
        for adj in forms:
            assert torch.allclose(conv(x, adj), out, atol=1e-6)
        conv.cached = False
        turned = AGCNConv(16, 8, flow='target_to_source', **mode)
        turned.load_state_dict(conv.state_dict())
        for turned.cached in [False, True]:
            assert torch.allclose(turned(x, edge_index.flip(0), weight), out,
                                  atol=1e-6)


@pytest.mark.extensions
@withPackage('torch_sparse')
@pytest.mark.parametrize('mode', MODES + DEEP)
def test_sparse_tensor(mode):
    x = torch.randn(12, 16)
    edge_index, value = random_graph(directed=True, weighted=True)
    conv = AGCNConv(16, 8, **mode)
    for weight in [None, value]:
        out = conv(x, edge_index, weight)
        adj = SparseTensor.from_edge_index(edge_index, weight, (12, 12)).t()
        for conv.cached in [False, True, True]:
            assert torch.allclose(conv(x, adj), out, atol=1e-6)
        conv.cached = False
    value = value.requires_grad_()
    conv(x, edge_index, value).square().sum().backward()
    expected, value.grad = value.grad, None
    adj = SparseTensor.from_edge_index(edge_index, value, (12, 12)).t()
    conv(x, adj).square().sum().backward()
    assert torch.allclose(value.grad, expected, atol=1e-4)


@pytest.mark.parametrize('mode', MODES + DEEP)
def test_sparse_features(mode):
    x = torch.randn(12, 16)
    x[torch.rand(12, 16) < 0.8] = 0
    edge_index, weight = random_graph(weighted=True)
    for beta in [mode.get('beta', 1.0), 1e6]:
        conv = AGCNConv(16, 8, **{**mode, 'beta': beta})
        out = conv(x, edge_index, weight)
        for sparse in [x.to_sparse(), x.to_sparse_csr()]:
            assert torch.allclose(conv(sparse, edge_index, weight), out,
                                  atol=1e-6)


@pytest.mark.parametrize('mode', MODES + DEEP)
def test_static_graphs(mode, way):
    x, (edge_index, weight) = torch.randn(3, 12, 16), random_graph()
    x[1] *= 0.01
    conv = way(AGCNConv, 16, 8, **mode)
    out = conv(x, edge_index, weight)
    assert out.size() == (3, 12, 8)
    for i in range(3):
        assert torch.allclose(out[i], conv(x[i], edge_index), atol=1e-5)
        assert torch.allclose(conv.gate(x, edge_index)[..., i],
                              conv.gate(x[i], edge_index), atol=1e-5)
    assert out.view(-1).size() == (3 * 12 * 8, )  # as in GCNConv
    assert conv(x[:, :0], edge_index[:, :0]).size() == (3, 0, 8)
    assert conv(x[:0], edge_index).size() == (0, 12, 8)


@pytest.mark.parametrize('mode', MODES + DEEP)
def test_batch_equals_one_by_one(mode, way):
    graphs = []
    for i, (n, m) in enumerate([(5, 9), (12, 30), (1, 0), (7, 3)]):
        edge_index, _ = random_graph(n, m, directed=i == 1)
        graphs.append(Data(x=2.0**i * torch.randn(n, 4), edge_index=edge_index,
                           edge_weight=torch.rand(edge_index.size(1))))
    batch = Batch.from_data_list(graphs)
    conv = way(AGCNConv, 4, 3, **mode)
    one_by_one = [conv(g.x, g.edge_index, g.edge_weight) for g in graphs]
    for kwargs in [dict(), dict(batch_size=4), dict(batch_size=9)]:
        out = conv(batch.x, batch.edge_index, batch.edge_weight, batch.batch,
                   **kwargs)
        assert torch.allclose(out, torch.cat(one_by_one), atol=1e-5)
    gates = conv.gate(batch.x, batch.edge_index, batch.edge_weight,
                      batch.batch)
    assert torch.allclose(gates, torch.stack([
        conv.gate(g.x, g.edge_index, g.edge_weight) for g in graphs], -1),
        atol=1e-6)


@pytest.mark.parametrize('mode', MODES)
def test_gates_do_not_depend_on_batch_mates(mode, way):
    # Smooth ones, rough ones, huge ones: no formula is chosen by them, so
    # that the last digit stays.
    edge_index, _ = random_graph()
    both = torch.cat([edge_index, edge_index + 12], dim=1)
    batch = torch.arange(24) // 12
    x, noise = torch.randn(2, 12, 4)
    conv = way(AGCNConv, 4, 3, **mode)
    mates = [noise, 1 + 1e-3 * noise, torch.ones(12, 4), 1e-20 * noise,
             1e4 * noise]
    gates = [conv.gate(torch.cat([x, mate]), both, batch=batch)[..., 0]
             for mate in mates]
    if conv.energy == 'relative':
        assert all(torch.equal(gate, gates[0]) for gate in gates)
    gates.append(conv.gate(x, edge_index))
    assert all(torch.allclose(gate, gates[0], rtol=0, atol=1e-6)
               for gate in gates)


@pytest.mark.parametrize('mode', MODES + DEEP)
def test_many_features_on_a_batch_of_graphs(mode, way):
    # A gate for each set of features and for each graph.
    edge_index = torch.cat([PATH, PATH + 3], dim=1)
    batch = torch.tensor([0, 0, 0, 1, 1, 1])
    conv = way(AGCNConv, 4, 2, **mode)
    x = torch.randn(3, 6, 4) * torch.tensor([1., 2., 3.]).view(3, 1, 1)
    expected = torch.stack([conv(part, edge_index, batch=batch) for part in x])
    assert torch.allclose(conv(x, edge_index, batch=batch), expected,
                          atol=1e-5)


@pytest.mark.parametrize('mode', MODES + DEEP)
def test_whole_numbers_in_a_matrix(mode):
    x = torch.randn(2, 4)
    adj = torch.tensor([[0, 3], [3, 0]])
    edge_index = torch.tensor([[0, 1], [1, 0]])
    for kwargs in [dict(), dict(add_self_loops=False), dict(normalize=False)]:
        conv = AGCNConv(4, 3, **mode, **kwargs)
        expected = conv(x, edge_index, torch.tensor([3.0, 3.0]))
        assert torch.allclose(conv(x, adj.to_sparse_csr()), expected,
                              atol=1e-6)


@pytest.mark.parametrize('mode', MODES + DEEP)
def test_permutation_equivariance(mode, way):
    x, (edge_index, weight) = torch.randn(12, 4), random_graph(weighted=True)
    conv = way(AGCNConv, 4, 3, **mode)
    perm = torch.randperm(12)
    shuffle = torch.randperm(edge_index.size(1))
    moved = perm.argsort()[edge_index][:, shuffle]
    assert torch.allclose(conv(x[perm], moved, weight[shuffle]),
                          conv(x, edge_index, weight)[perm], atol=1e-5)


def test_gate_by_hand():
    x = torch.tensor([[0.], [1.], [3.]])
    conv = AGCNConv(1, 2, beta=0.01)
    assert conv.gate(x, PATH) == pytest.approx(1 - math.exp(-0.25))
    assert AGCNConv(1, 2, beta=0.0).gate(x, PATH) == 0
    two = AGCNConv(1, 2, beta=0.01, num_hops=2)
    assert two.gate(x, PATH).size() == (2, )
    assert two.gate(x, PATH)[0] == pytest.approx(1 - math.exp(-0.25))
    assert two.gate(x, PATH, batch=torch.tensor([0, 0, 0])).size() == (2, 1)


def test_a_closed_gate():
    # The paper's update erases what it should stop smoothing; ours keeps it.
    x = torch.randn(4, 8)
    paper = AGCNConv(8, 3, beta=0.0)
    torch.nn.init.normal_(paper.bias)
    assert torch.equal(paper(x, STAR), paper.bias.expand(4, 3))
    ours = AGCNConv(8, 3, beta=0.0, energy='relative', residual=True,
                    num_hops=7)
    assert torch.allclose(ours(x, STAR), ours.lin(x))


def test_depth_does_not_flatten():
    x, (edge_index, _) = torch.randn(12, 4), random_graph()
    for num_hops in [1, 64]:
        conv = AGCNConv(4, 4, beta=5.0, energy='relative', residual=True,
                        num_hops=num_hops)
        gates = conv.gate(x, edge_index).flatten()
        assert (gates >= 0).all() and (gates <= 1).all()
        assert (gates.diff() <= 1e-6).all()  # Smoother and smoother.


def test_nodes_in_the_first_dimension():
    x = torch.randn(4, 5)
    conv = AGCNConv(5, 2, node_dim=0)
    other = AGCNConv(5, 2)
    other.load_state_dict(conv.state_dict())
    assert torch.equal(conv(x, TRIANGLE), other(x, TRIANGLE))
    assert other(x.expand(3, 4, 5), TRIANGLE).shape == (3, 4, 2)
    with pytest.raises(ValueError, match='x'):
        conv(x.expand(3, 4, 5), TRIANGLE)


def test_numbers_of_features():
    x = torch.randn(3, 2)
    assert AGCNConv(2, 0)(x, PATH).shape == (3, 0)
    for channels in [-1, 0]:  # to be seen, and then to be kept
        conv = AGCNConv(channels, 2)
        assert torch.equal(conv(x, PATH), conv(x, PATH))
    with pytest.raises(ValueError, match=r'pass \[num_nodes, 1\]'):
        AGCNConv(1, 2)(x, PATH)


# Gradients ###################################################################


@pytest.mark.parametrize('mode', MODES + DEEP)
@pytest.mark.parametrize('directed', [False, True])
def test_gradients(mode, directed, way):
    edge_index, weight = random_graph(6, 8, directed, weighted=True)
    mode = {**mode, 'beta': 0.01 if mode['energy'] == 'total' else 1.0}
    conv = way(AGCNConv, 3, 2, learn_beta=True, **mode).double()
    x = torch.randn(6, 3, dtype=torch.double, requires_grad=True)
    weight = weight.double()
    batch = None

    def run(x, weight, lin_weight, bias, raw_beta):
        parameters = {'lin.weight': lin_weight, 'bias': bias,
                      'raw_beta': raw_beta}
        return torch.func.functional_call(
            conv, parameters, (x, edge_index, weight, batch))

    parameters = [p.detach().clone().requires_grad_() for p in (
        conv.lin.weight, conv.bias, conv.raw_beta)]
    assert torch.autograd.gradcheck(run, (x, weight, *parameters))
    weight.requires_grad_()
    assert torch.autograd.gradcheck(run, (x, weight, *parameters))
    batch = torch.tensor([0, 0, 0, 1, 1, 1])
    inside = batch[edge_index[0]] == batch[edge_index[1]]
    edge_index, weight = edge_index[:, inside], weight.detach()[inside]
    assert torch.autograd.gradcheck(run, (x, weight, *parameters))


@pytest.mark.parametrize('mode', MODES + DEEP)
def test_all_ways_have_the_same_gradient(mode, way):
    edge_index, weight = random_graph(weighted=True)
    conv = way(AGCNConv, 16, 8, learn_beta=True, **mode)
    exact = copy.deepcopy(conv).double()
    exact.cached = exact.fuse = False
    grads = []
    for layer, dtype in [(conv, torch.float), (exact, torch.double)]:
        torch.manual_seed(1)
        x = torch.randn(12, 16).to(dtype).requires_grad_()
        layer(x, edge_index, weight).square().sum().backward()
        grads.append([x.grad, *(p.grad for p in layer.parameters())])
    for a, b in zip(*grads):
        assert torch.allclose(a.double(), b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('cached', [False, True])
@pytest.mark.parametrize('mode', MODES + DEEP)
def test_transforms_of_functions(mode, cached):
    # What torch.func and forward-mode differentiation see is no tensor to
    # look into, nor do they know of our own products.
    edge_index, weight = random_graph(weighted=True)
    x = torch.randn(12, 4, dtype=torch.double)
    conv = AGCNConv(4, 3, cached=cached, **mode).double()

    def run(x):
        return conv(x, edge_index, weight)

    expected = torch.autograd.functional.jacobian(run, x)
    assert torch.allclose(torch.func.jacrev(run)(x), expected)
    assert torch.allclose(torch.func.jacfwd(run)(x), expected)
    assert torch.allclose(torch.autograd.functional.jacobian(
        run, x, vectorize=True), expected)
    many = torch.stack([x, -2 * x + 1])
    assert torch.allclose(torch.func.vmap(run)(many),
                          torch.stack([run(v) for v in many]))
    tangent = torch.randn_like(x)
    out, slope = torch.func.jvp(run, (x, ), (tangent, ))
    assert torch.allclose(out, run(x))
    assert torch.allclose(slope, (expected * tangent).sum((2, 3)))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, tangent)
        slope = torch.autograd.forward_ad.unpack_dual(run(dual)).tangent
    assert torch.allclose(slope, (expected * tangent).sum((2, 3)))


@pytest.mark.parametrize('mode', [MODES[0], DEEP[3]])
def test_influence(mode):
    ring = torch.stack([torch.arange(6), (torch.arange(6) + 1) % 6])
    data = Data(x=torch.randn(6, 4), edge_index=to_undirected(ring))
    conv = AGCNConv(4, 3, **mode)
    (one, range_one), (other, range_other) = (
        total_influence(conv, data, max_hops=2, vectorize=vectorize)
        for vectorize in [True, False])
    assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)
    assert range_one == pytest.approx(range_other, rel=1e-4)


@pytest.mark.parametrize('graph', ['star', 'complete', 'random'])
@pytest.mark.parametrize('beta', [50.0, 500.0, 1e4, 1e6])
@pytest.mark.parametrize('residual', [False, True])
def test_gradients_at_depth(graph, beta, residual):
    # Where all is smooth, no gradient may come from rounding.
    edge_index = {
        'star': torch.stack([torch.arange(1, 20), torch.zeros(19).long()]),
        'complete': torch.combinations(torch.arange(8)).t(),
        'random': random_graph(50, 200)[0],
    }[graph]
    edge_index = to_undirected(edge_index)
    grads = []
    for dtype, cached in [(torch.double, False), (torch.float, False),
                          (torch.float, True)]:
        torch.manual_seed(2)
        x = torch.randn(int(edge_index.max()) + 1, 4).to(dtype)
        x.requires_grad_()
        conv = AGCNConv(4, 3, beta=beta, energy='relative', residual=residual,
                        num_hops=64, cached=cached).to(dtype)
        conv(x, edge_index).square().sum().backward()
        grads.append(x.grad.double())
    for grad in grads[1:]:
        assert torch.isfinite(grad).all()
        # Without residual, all is gone once single precision sees no more
        # than what is kept:
        assert not residual or torch.allclose(
            grad, grads[0], rtol=0.02,
            atol=0.02 * float(grads[0].abs().max()))


@pytest.mark.parametrize('mode', MODES + DEEP)
def test_twice_differentiable(mode, way):
    edge_index, weight = random_graph(6, 8, weighted=True)
    conv = way(AGCNConv, 3, 2, learn_beta=True, **mode).double()
    x = torch.randn(6, 3, dtype=torch.double, requires_grad=True)

    def run(x):
        return conv(x, edge_index, weight.double())

    assert torch.autograd.gradgradcheck(run, (x, ), fast_mode=True)
    check_both_gradients(run(x), x, conv.raw_beta)


def check_both_gradients(out, *inputs):
    # What is differentiated once more is the gradient that is there without.
    weight = torch.linspace(1, 2, out.numel()).view_as(out).to(out.dtype)
    grads = [torch.autograd.grad(out, inputs, weight, retain_graph=True,
                                 create_graph=again)
             for again in [False, True]]
    for one, other in zip(*grads):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize('symmetric', [False, True])
@pytest.mark.parametrize('many', [False, True])
def test_total_energies_are_twice_differentiable(symmetric, many, way):
    # Far from zero, of many features on one graph and of many graphs.
    dense = torch.rand(4, 4, dtype=torch.double)
    dense[:2, 2:] = dense[2:, :2] = 0  # two graphs
    if symmetric:
        dense = dense + dense.t()
    edge_index = dense.nonzero().t().flip(0)
    weight = dense[edge_index[1], edge_index[0]]
    batch = torch.tensor([0, 0, 1, 1]) if many else None
    conv = way(AGCNConv, 1, 1, beta=0.1).double()
    for shape, shift in itertools.product([(4, 1), (2, 4, 1)], [0.0, 100.0]):
        x = torch.randn(shape, dtype=torch.double) + shift
        x.requires_grad_()

        def run(x):
            return conv(x, edge_index, weight, batch)

        assert torch.autograd.gradcheck(run, x, atol=1e-4)
        assert torch.autograd.gradgradcheck(run, x, atol=1e-4)
        check_both_gradients(run(x), x)


@pytest.mark.parametrize('mode', [MODES[0], MODES[3]])
def test_gradients_of_short_numbers(mode, way):
    edge_index = torch.tensor([[0, 1, 1, 2, 2], [1, 0, 2, 1, 0]])
    conv, grads = way(AGCNConv, 4, 3, **mode), []
    values = torch.randn(3, 4)
    for dtype in [torch.float, torch.bfloat16]:
        x = values.detach().to(dtype).requires_grad_()
        conv.to(dtype)(x, edge_index).square().sum().backward()
        grads.append(x.grad.float())
    scale = float(grads[0].abs().max())
    assert torch.allclose(*grads, rtol=0, atol=0.05 * scale)


def test_learnt_beta_always_has_a_gradient():
    edge_index, _ = random_graph(1000, 20_000)
    conv = AGCNConv(64, 4, learn_beta=True)
    conv(torch.randn(1000, 64), edge_index).sum().backward()
    assert conv.raw_beta.grad == 0  # saturated
    conv.beta = 1e-13
    assert conv.beta.item() == pytest.approx(1e-13)
    conv(torch.randn(1000, 64), edge_index).sum().backward()
    assert conv.raw_beta.grad != 0
    with pytest.raises(ValueError, match='beta=-1'):
        conv.beta = -1.0


@pytest.mark.parametrize('beta', [1e-6, 0.3, 1.0, 50.0, 500.0])
def test_a_learnt_beta_begins_where_it_is_told_to(beta):
    conv = AGCNConv(2, 2, beta=beta, learn_beta=True)
    assert conv.beta.item() == pytest.approx(beta, rel=1e-5)
    conv.beta = 2 * beta
    assert conv.beta.item() == pytest.approx(2 * beta, rel=1e-5)


def test_a_refused_beta_is_not_kept():
    conv = AGCNConv(2, 2, beta=3.0)
    with pytest.raises(ValueError, match='beta=-5'):
        conv.beta = -5
    assert conv.beta == 3.0
    conv.beta = 5
    assert conv.beta == 5.0


# Recomputing #################################################################


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('num_hops, alpha', [(1, 0.0), (2, 0.3), (7, 0.0)])
@pytest.mark.parametrize('kind', ['plain', 'weight', 'batch', 'directed'])
def test_recomputing_changes_nothing(mode, num_hops, alpha, kind, way):
    edge_index, weight = random_graph(weighted=True,
                                      directed=kind == 'directed')
    batch = None
    if kind == 'batch':
        batch = torch.arange(12) // 6
        inside = batch[edge_index[0]] == batch[edge_index[1]]
        edge_index, weight = edge_index[:, inside], weight[inside]
    x = torch.randn(12, 4, requires_grad=True)
    weight.requires_grad_(kind == 'weight')
    conv = way(AGCNConv, 4, 3, num_hops=num_hops, alpha=alpha,
               learn_beta=True, **mode)
    wanted = [x, *conv.parameters()] + [weight] * (kind == 'weight')
    args = x, edge_index, weight, batch
    outs, grads = [], []
    for conv.recompute in [False, True]:
        outs.append(conv(*args))
        grads.append(torch.autograd.grad(outs[-1].square().sum(), wanted))
    assert torch.equal(*outs)
    assert not conv.residual or grads[0][0].abs().sum() > 0
    for a, b in zip(*grads):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-6)
    gates = conv.gate(*args)
    conv.recompute = False
    assert torch.equal(conv.gate(*args), gates)


@pytest.mark.parametrize('mode', MODES)
def test_recomputing_with_the_parameters_of_the_call(mode):
    # In the backward pass, the parameters of the call have left the layer.
    mode = {**mode, 'beta': 0.01 if mode['energy'] == 'total' else 1.0}
    edge_index, _ = random_graph(6, 8)
    conv = AGCNConv(3, 2, num_hops=5, learn_beta=True, recompute=True,
                    **mode).double()
    x = torch.randn(6, 3, dtype=torch.double, requires_grad=True)
    raw_beta = (conv.raw_beta.detach() - 0.5).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x, raw_beta: torch.func.functional_call(
            conv, {'raw_beta': raw_beta}, (x, edge_index)), (x, raw_beta))


@pytest.mark.parametrize('mode', MODES)
def test_recomputing_is_twice_differentiable(mode, way):
    edge_index, weight = random_graph(6, 8, weighted=True)
    conv = way(AGCNConv, 3, 2, num_hops=3, recompute=True, **mode).double()
    x = torch.randn(6, 3, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradgradcheck(
        lambda x: conv(x, edge_index, weight.double()), (x, ))


@pytest.mark.parametrize('mode', MODES)
def test_recomputing_elsewhere(mode):
    x, (edge_index, _) = torch.randn(12, 4), random_graph()
    conv = AGCNConv(4, 3, num_hops=5, recompute=True, **mode)
    stacked = torch.stack([x, 2 * x]).requires_grad_()
    conv(stacked, edge_index).sum().backward()
    grads = []
    for conv.recompute in [False, True]:
        x.grad = None
        with torch.autocast('cpu', torch.bfloat16):
            out = conv(x.requires_grad_(), edge_index)
        out.float().square().sum().backward()
        grads.append(x.grad)
    assert torch.allclose(*grads, rtol=1e-2, atol=1e-6)
    torch._dynamo.reset()
    compiled = torch.compile(conv, fullgraph=True, backend='aot_eager')
    assert torch.allclose(compiled(x, edge_index), conv(x, edge_index),
                          atol=1e-5)


@pytest.mark.parametrize('mode', MODES)
def test_recomputing_takes_the_memory_of_a_root(mode, memory):
    edge_index, _ = random_graph(500, 1000)
    x = torch.randn(500, 32, requires_grad=True)
    unit = 4 * x.numel()

    def peak(num_hops, recompute):
        conv = AGCNConv(32, 2, num_hops=num_hops, recompute=recompute,
                        cached=True, **mode)
        conv(x, edge_index).sum().backward()  # fills the cache
        with memory() as found:
            conv(x, edge_index).sum().backward()
        return found.peak / unit

    assert peak(64, False) >= 2 * 64
    assert peak(64, True) <= 5 * 8
    assert peak(64, True) <= 2.1 * peak(16, True)


@pytest.mark.parametrize('kwargs', [
    {}, dict(recompute=True), dict(recompute=True, momentum=0.5),
    dict(recompute=True, explain=True), dict(recompute=True, grad=False)])
def test_what_is_taken_twice(kwargs):
    kwargs = dict(kwargs)
    explain, grad = kwargs.pop('explain', False), kwargs.pop('grad', True)
    conv = AGCNConv(2, 2, num_hops=5, residual=True, beta=0.01, **kwargs)
    if explain:
        set_masks(conv, torch.ones(4), PATH, apply_sigmoid=False)
    steps = []
    conv.register_propagate_forward_pre_hook(
        lambda *args: steps.append(torch.is_grad_enabled()))
    x = torch.randn(3, 2, requires_grad=True)
    with torch.set_grad_enabled(grad):
        out = conv(x, PATH)
    assert len(steps) == 5
    if grad:
        out.sum().backward()
    again = kwargs == dict(recompute=True) and not explain and grad
    assert len(steps) == (10 if again else 5)


# What PyG and torch do with a layer ##########################################


@pytest.mark.parametrize('mode', MODES + DEEP)
def test_decomposed_layers(mode):
    x, (edge_index, _) = torch.randn(12, 16), random_graph()
    conv = AGCNConv(16, 32, **mode)
    decomposed = copy.deepcopy(conv)
    decomposed.decomposed_layers = 2
    assert torch.allclose(conv(x, edge_index), decomposed(x, edge_index),
                          atol=1e-6)


def test_copy_pickle_and_state_dict(way):
    x, (edge_index, _) = torch.randn(12, 4), random_graph()
    for mode in MODES:
        conv = way(AGCNConv, 4, 3, learn_beta=True, **mode)
        assert sorted(conv.state_dict()) == ['bias', 'lin.weight', 'raw_beta']
        out = conv(x, edge_index)
        for other in [copy.deepcopy(conv), pickle.loads(pickle.dumps(conv))]:
            assert torch.allclose(other(x, edge_index), out)
        fresh = AGCNConv(4, 3, learn_beta=True, **mode)
        fresh.load_state_dict(conv.state_dict())
        assert torch.allclose(fresh(x, edge_index), out, atol=1e-6)
    assert sorted(AGCNConv(4, 3).state_dict()) == ['bias', 'lin.weight']
    assert sorted(AGCNConv(4, 3, bias=False).state_dict()) == ['lin.weight']


def test_lazy_initialization():
    x, (edge_index, _) = torch.randn(12, 4), random_graph()
    for mode in MODES:
        conv = AGCNConv(-1, 3, **mode)
        out = conv(x, edge_index)
        assert conv.lin.weight.size() == (3, 4)
        assert torch.allclose(conv(x, edge_index), out)


def test_hooks(way):
    x, (edge_index, _) = torch.randn(12, 4), random_graph()
    conv = way(AGCNConv, 4, 3, num_hops=2)
    expected, calls = conv(x, edge_index), []
    for name in ['propagate', 'message', 'aggregate']:
        for when in ['pre_', '']:
            register = getattr(conv, f'register_{name}_forward_{when}hook')
            register(lambda *args, n=name, w=when: calls.append(w + n))
    conv.register_forward_hook(lambda *args: calls.append('forward'))
    assert torch.allclose(conv(x, edge_index), expected, atol=1e-6)
    once = ['pre_propagate', 'pre_message', 'message', 'pre_aggregate',
            'aggregate', 'propagate']
    assert calls == [*once, *once, 'forward']


def test_summary():
    x, (edge_index, _) = torch.randn(12, 4), random_graph()
    table = summary(AGCNConv(4, 3), x, edge_index, leaf_module=None)
    assert 'AGCNConv' in table and '[12, 3]' in table


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('algorithm', [
    GNNExplainer(epochs=5), CaptumExplainer('Saliency'),
    CaptumExplainer('IntegratedGradients')], ids=lambda a: str(a)[:9])
def test_explainer(mode, algorithm):
    if isinstance(algorithm, CaptumExplainer):
        pytest.importorskip('captum')
    edge_index, _ = random_graph()
    edge_index = torch.cat([edge_index, torch.tensor([[3], [3]])], dim=1)
    model = Sequential('x, edge_index', [
        (AGCNConv(8, 16, **mode), 'x, edge_index -> x'),
        torch.nn.ReLU(inplace=True),
        (AGCNConv(16, 7, **mode), 'x, edge_index -> x'),
    ])
    x = torch.randn(12, 8)
    before = model(x, edge_index)
    explainer = Explainer(
        model, algorithm=algorithm, explanation_type='model',
        node_mask_type='attributes', edge_mask_type='object',
        model_config=dict(mode='multiclass_classification',
                          task_level='node', return_type='raw'))
    explanation = explainer(x, edge_index, index=torch.tensor([2, 5]))
    assert explanation.edge_mask.size() == (edge_index.size(1), )
    assert explanation.node_mask.size() == x.size()
    assert explanation.edge_mask.abs().sum() > 0
    assert torch.equal(model(x, edge_index), before)


@pytest.mark.parametrize('energy', ['total', 'relative'])
def test_the_edge_mask_reaches_the_energy(energy, dense):
    # The mask weighs messages behind the normalization, as in PyG, and the
    # edges of the energy.
    edge_index, _ = random_graph(num_nodes=12)
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    x = torch.randn(12, 4)
    conv = AGCNConv(4, 3, beta=1e-3 if energy == 'total' else 1.0,
                    energy=energy, residual=False)
    mask = torch.rand(edge_index.size(1), requires_grad=True)
    conv.explain = True
    conv._edge_mask, conv._apply_sigmoid = mask, False
    conv._loop_mask = edge_index[0] != edge_index[1]
    ref = dense(12, edge_index, mask.detach())
    s = getattr(ref, energy)(x.double())
    gate = conv.gate(x, edge_index)
    assert float(gate) == pytest.approx(
        float(1 - torch.exp(-conv.beta * s**2)), rel=1e-4)
    full = dense(12, edge_index)
    PH = (full.P * (torch.eye(12) + (1 - torch.eye(12)) *
                    dense(12, edge_index, mask.detach(), loops=False).A)
          ) @ x.double()
    out = conv(x, edge_index)
    assert torch.allclose(out.double(), float(gate) * PH @
                          conv.lin.weight.t().double(), atol=1e-5)
    out.sum().backward()
    assert (mask.grad != 0).all()


@pytest.mark.parametrize('energy', ['total', 'relative'])
def test_explained_whatever_saves_time_or_memory(energy):
    # The cache and recomputing change no explanation.
    settings = dict(beta=0.1, energy=energy, residual=True, num_hops=4,
                    alpha=0.1)
    x, masks = torch.randn(4, 5), []
    for more in [{}, dict(cached=True), dict(recompute=True)]:
        torch.manual_seed(0)
        conv = AGCNConv(5, 3, **settings, **more)
        expected = conv(x, TRIANGLE)
        explainer = Explainer(
            conv, GNNExplainer(epochs=20, lr=0.1), explanation_type='model',
            edge_mask_type='object', node_mask_type='attributes',
            model_config=dict(mode='multiclass_classification',
                              task_level='node', return_type='raw'))
        torch.manual_seed(1)
        masks.append(explainer(x, TRIANGLE, index=0).edge_mask)
        assert torch.equal(conv(x, TRIANGLE), expected)
    assert masks[0].std() > 0.01
    for mask in masks[1:]:
        assert torch.allclose(mask, masks[0], atol=1e-4)


def test_the_gate_without_a_mask():
    # A layer that is being explained, by other means than an edge mask.
    x, conv = torch.randn(4, 5), AGCNConv(5, 3, beta=0.01)
    expected = conv.gate(x, TRIANGLE)
    conv.explain = True
    assert torch.equal(conv.gate(x, TRIANGLE), expected)
    # What is left of a mask does not count when nothing is explained:
    conv.explain, conv._edge_mask = False, torch.zeros(8)
    conv._apply_sigmoid = False
    assert torch.equal(conv.gate(x, TRIANGLE), expected)


@pytest.mark.parametrize('mode', [
    dict(beta=0.05), dict(beta=2.0, energy='relative', residual=True)])
@pytest.mark.parametrize('cached', [False, True])
def test_masks_on_weighted_edges(mode, cached):
    x, weight = torch.randn(3, 2), torch.tensor([2., 2., 0.5, 0.5])
    mask = torch.tensor([0.3, 0.3, 0.8, 0.8])
    conv = AGCNConv(2, 3, cached=cached, normalize=False, **mode)
    expected = conv.gate(x, PATH, mask * weight)
    conv.gate(x, PATH, weight)  # is kept
    set_masks(conv, mask, PATH, apply_sigmoid=False)
    assert torch.allclose(conv.gate(x, PATH, weight), expected, atol=1e-6)
    clear_masks(conv)
    # Of a sample, some edges of which do not count:
    sample = dict(degree=torch.tensor([3., 4., 5.]),
                  node_weight=torch.tensor([0., 2., 1.]))
    expected = conv.gate(x, PATH, weight, **sample)
    set_masks(conv, torch.ones(4), PATH, apply_sigmoid=False)
    assert torch.allclose(conv.gate(x, PATH, weight, **sample), expected,
                          atol=1e-6)
    clear_masks(conv)


@pytest.mark.parametrize('mode', [
    MODES[0], MODES[3], dict(MODES[0], learn_beta=True),
    dict(MODES[3], learn_beta=True), dict(MODES[1], normalize=False),
    dict(MODES[1], num_hops=2, alpha=0.2, learn_beta=True)])
@pytest.mark.parametrize('dynamic', [False, True])
def test_compile_without_graph_break(mode, dynamic):
    torch._dynamo.reset()
    conv = AGCNConv(4, 3, **mode)
    compiled = torch.compile(conv, fullgraph=True, dynamic=dynamic,
                             backend='aot_eager')
    for num_nodes in [12, 17] if dynamic else [12]:
        edge_index, weight = random_graph(num_nodes, weighted=True)
        batch = torch.arange(num_nodes) // 6
        for args in [(edge_index, ), (edge_index, weight),
                     (edge_index, weight, batch),
                     (edge_index, None, batch, 3)]:
            inside = batch[edge_index[0]] == batch[edge_index[1]]
            if len(args) > 2:
                args = (edge_index[:, inside],
                        None if args[1] is None else weight[inside],
                        *args[2:])
            x = torch.randn(num_nodes, 4, requires_grad=True)
            expected = conv(x, *args)
            expected_grad, = torch.autograd.grad(expected.square().sum(), x)
            out = compiled(x, *args)
            grad, = torch.autograd.grad(out.square().sum(), x)
            assert torch.allclose(out, expected, atol=1e-5)
            assert torch.allclose(grad, expected_grad, atol=1e-4)


@pytest.mark.parametrize('mode', [MODES[0], MODES[3]])
def test_compile_of_nothing(mode):
    torch._dynamo.reset()
    conv = AGCNConv(2, 0, **mode)
    compiled = torch.compile(conv, fullgraph=True, backend='aot_eager')
    assert compiled(torch.randn(3, 2), PATH).shape == (3, 0)
    conv = AGCNConv(2, 4, **mode)
    compiled = torch.compile(conv, fullgraph=True, backend='aot_eager')
    x = torch.randn(3, 2)
    assert torch.allclose(compiled(x, PATH[:, :0]), conv(x, PATH[:, :0]))


@pytest.mark.parametrize('mode', [MODES[0], MODES[3]])
@pytest.mark.parametrize('has_grad', [False, True])
def test_compile_of_stacked_features(mode, has_grad):
    torch._dynamo.reset()
    conv = AGCNConv(4, 3, **mode)
    compiled = torch.compile(conv, fullgraph=True, backend='aot_eager')
    edge_index, weight = random_graph(12, weighted=True)
    x = torch.randn(2, 12, 4, requires_grad=has_grad)
    with torch.set_grad_enabled(has_grad):
        out, expected = (f(x, edge_index, weight) for f in (compiled, conv))
        assert torch.allclose(out, expected, atol=1e-5)
        if has_grad:
            grads = [torch.autograd.grad(v.square().sum(), x)[0]
                     for v in (out, expected)]
            assert torch.allclose(*grads, atol=1e-4)


def test_compile_with_inductor():
    torch._dynamo.reset()
    conv = AGCNConv(4, 3, **MODES[3])
    compiled = torch.compile(conv, fullgraph=True, dynamic=True)
    for num_nodes in [12, 17]:
        edge_index, _ = random_graph(num_nodes)
        x = torch.randn(num_nodes, 4)
        assert torch.allclose(compiled(x, edge_index), conv(x, edge_index),
                              atol=1e-5)


@pytest.mark.parametrize('mode', MODES + DEEP[-1:])
@pytest.mark.parametrize('cached', [False, True])
def test_export(mode, cached):
    conv = AGCNConv(4, 3, cached=cached, **mode)
    x, (edge_index, weight) = torch.randn(12, 4), random_graph(weighted=True)
    nodes, edges = torch.export.Dim('nodes'), torch.export.Dim('edges')
    program = torch.export.export(
        conv, (x, edge_index, weight),
        dynamic_shapes=({0: nodes}, {1: edges}, {0: edges}))
    x, (edge_index, weight) = torch.randn(30, 4), random_graph(
        30, 50, weighted=True)
    assert torch.allclose(program.module()(x, edge_index, weight),
                          conv(x, edge_index, weight), atol=1e-5)


@pytest.mark.parametrize('mode', MODES + DEEP)
def test_traced_layers_take_any_graph(mode):
    # Nothing of the graph that is traced stays: neither its size, nor that it
    # has no loops, nor that a few of its edges prove a gate of one.
    conv = AGCNConv(4, 3, **mode)
    edge_index = random_graph(20, 400)[0]
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    x, weight = 100 * torch.randn(20, 4), torch.rand(edge_index.size(1))
    other = torch.randn(30, 4), *random_graph(30, 50, weighted=True)
    for first in [(x, edge_index), (x, edge_index, weight)]:
        traced = torch.jit.trace(conv, first)
        for args in [first, other[:len(first)]]:
            expected = conv(*args)
            size = float(expected.detach().abs().max())
            assert torch.allclose(traced(*args), expected, rtol=1e-4,
                                  atol=1e-5 * size)


def test_graphs_for_tensorboard(tmp_path):
    pytest.importorskip('tensorboard')
    from torch.utils.tensorboard import SummaryWriter
    net = Sequential('x, edge_index', [
        (AGCNConv(4, 4), 'x, edge_index -> x'), torch.nn.ReLU(),
        (AGCNConv(4, 3, energy='relative'), 'x, edge_index -> x')])
    with SummaryWriter(tmp_path) as writer:
        writer.add_graph(net, (torch.randn(3, 4), PATH))
    assert list(tmp_path.iterdir())


def test_scripts_are_refused_with_a_remedy():
    with pytest.raises(ValueError, match='AGCNConv') as error:
        torch.jit.script(AGCNConv(4, 3))
    assert 'torch.compile' in str(error.value) or (
        'torch.export' in str(error.value))


@pytest.mark.parametrize('mode', MODES + DEEP)
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.half])
def test_low_precision(mode, dtype, way):
    x, (edge_index, weight) = torch.randn(12, 4), random_graph(weighted=True)
    conv = way(AGCNConv, 4, 3, **mode)
    expected = conv(x, edge_index, weight)
    with torch.autocast('cpu', dtype):
        out = conv(x.requires_grad_(), edge_index, weight)
        assert torch.allclose(conv.gate(x, edge_index, weight),
                              conv.float().gate(x, edge_index, weight))
    out.float().square().sum().backward()
    assert torch.allclose(out.float(), expected, atol=0.1)
    assert torch.isfinite(x.grad).all()
    out = conv.to(dtype)(x.to(dtype), edge_index, weight.to(dtype))
    assert out.dtype == dtype
    assert torch.allclose(out.float(), expected, atol=0.1)


def test_types_under_autocast():
    conv, x = AGCNConv(2, 3), torch.randn(3, 2).bfloat16()
    with pytest.raises(ValueError, match=r'x.to\(torch.float32\)'):
        conv(x, PATH)
    with torch.autocast('cpu', torch.bfloat16):
        out = conv(x, PATH)
    assert torch.allclose(out.float(), conv(x.float(), PATH), atol=0.05)


# Hooks, vmap and memory ######################################################


@pytest.mark.parametrize('mode', MODES)
def test_hooks_on_the_weights(mode):
    x, (edge_index, _) = torch.randn(12, 4), random_graph()
    conv, kept, calls = AGCNConv(4, 3, **mode), [], []
    torch.nn.init.normal_(conv.bias)
    expected = conv(x, edge_index)
    conv.lin.register_forward_hook(
        lambda *args: kept.append((args[2], args[2].clone())))
    conv.lin.register_full_backward_hook(lambda *args: calls.append(1))
    x.requires_grad_()
    out = conv(x, edge_index)
    out.sum().backward()
    assert torch.allclose(out, expected, atol=1e-6) and calls == [1]
    assert all(torch.equal(*pair) for pair in kept)  # What they hold stays.
    conv.gate(x, edge_index)
    assert len(kept) == 1  # Gates need no weights.


@pytest.mark.parametrize('mode', MODES)
def test_vmap_over_gradients(mode, way):
    x, (edge_index, _) = torch.randn(6, 3), random_graph(6, 8)
    conv = way(AGCNConv, 3, 2, **mode)
    expected = torch.autograd.functional.jacobian(
        lambda x: conv(x, edge_index).flatten(), x)
    x.requires_grad_()
    out = conv(x, edge_index).flatten()
    found = torch.vmap(lambda v: torch.autograd.grad(
        out, x, v, retain_graph=True)[0])(torch.eye(12))
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize('mode', MODES)
def test_compiled_doubles_are_doubles(mode):
    torch._dynamo.reset()
    x, (edge_index, _) = torch.randn(12, 4).double(), random_graph()
    conv = AGCNConv(4, 3, **mode).double()
    compiled = torch.compile(conv, fullgraph=True, backend='aot_eager')
    assert torch.allclose(compiled(x, edge_index), conv(x, edge_index),
                          rtol=0, atol=1e-12)


def test_features_that_shrink_to_nothing(way):
    # Below the smallest normal number, gates close and gradients stay finite.
    x, (edge_index, _) = torch.randn(6, 4), random_graph(6, 8)
    conv = way(AGCNConv, 4, 2, energy='relative', residual=False, beta=1e-3,
               num_hops=20)
    assert conv.gate(x, edge_index)[8:].max() < 1e-3
    x.requires_grad_()
    conv(x, edge_index).sum().backward()
    assert x.grad.isfinite().all()
    conv = way(AGCNConv, 4, 2, energy='relative', beta=1.0)
    assert torch.allclose(conv.gate(1e-39 * x, edge_index),
                          conv.gate(x, edge_index), rtol=1e-3)


# Strange and bad input #######################################################


@pytest.mark.parametrize('mode', MODES + DEEP)
@pytest.mark.parametrize('num_nodes', [12, 3000])
@pytest.mark.parametrize('value', [math.nan, math.inf])
def test_what_is_not_finite_spreads_along_edges_alone(mode, num_nodes, value,
                                                      way):
    # One rule at every size: the gate is open, as that of GCNConv always is.
    ring = torch.arange(num_nodes)
    ring = to_undirected(torch.stack([ring, (ring + 1) % num_nodes]))
    x = torch.randn(num_nodes, 4)
    x[5, 1] = value
    conv = way(AGCNConv, 4, 3, **mode)
    assert (conv.gate(x, ring) == 1).all()
    reached = (torch.arange(num_nodes) - 5).abs() <= conv.num_hops
    out = conv(x, ring)
    assert out.isfinite().all(-1).equal(~reached)
    if conv.num_hops == 1:
        gcn = GCNConv(4, 3)
        gcn.load_state_dict(conv.state_dict())
        assert torch.allclose(out[~reached], gcn(x, ring)[~reached],
                              atol=1e-5)


@pytest.mark.parametrize('mode', MODES + DEEP)
@pytest.mark.parametrize('num_nodes, num_edges', [(0, 0), (1, 0), (5, 0),
                                                  (5, 1)])
@pytest.mark.parametrize('kind', ['random', 'constant', 'zero', 'huge'])
def test_strange_graphs(mode, num_nodes, num_edges, kind, way):
    edge_index = torch.zeros(2, num_edges, dtype=torch.long)
    edge_index[1] = 1
    x = {'random': torch.randn, 'constant': torch.ones, 'zero': torch.zeros,
         'huge': torch.randn}[kind](num_nodes, 4)
    x = (1e8 * x if kind == 'huge' else x).requires_grad_()
    for beta in [0.0, 1.0, 1e6]:
        conv = way(AGCNConv, 4, 3, **{**mode, 'beta': beta})
        out = conv(x, edge_index)
        assert out.size() == (num_nodes, 3)
        out.sum().backward()
        assert torch.isfinite(out).all()
        assert torch.isfinite(x.grad).all()
        assert all(torch.isfinite(p.grad).all() for p in conv.parameters())


@pytest.mark.parametrize('way', ['matrix', 'cached', 'device'], indirect=True)
@pytest.mark.parametrize('mode', MODES + DEEP[-1:])
def test_huge_features_of_a_real_graph(tmp_path, mode, way):
    data = Planetoid(tmp_path, 'Cora')[0]
    for beta in [0.0, 1.0, 1e6]:
        x = (1e8 * data.x).requires_grad_()
        conv = way(AGCNConv, 1433, 7, **{**mode, 'beta': beta})
        out = conv(x, data.edge_index)
        out.sum().backward()
        assert torch.isfinite(out).all()
        assert torch.isfinite(x.grad).all()
        assert torch.isfinite(conv.lin.weight.grad).all()


@pytest.mark.parametrize('kwargs, message', [
    (dict(beta=-1.0), 'beta=-1.0'),
    (dict(beta=math.nan), 'beta=nan'),
    (dict(beta=math.inf), 'beta=inf'),
    (dict(beta=0.0, learn_beta=True), 'positive'),
    (dict(energy='kinetic'), 'relative'),
    (dict(alpha=1.0), r'[0, 1)'),
    (dict(alpha=-0.1), 'alpha=-0.1'),
    (dict(alpha=math.nan), 'alpha=nan'),
    (dict(num_hops=0), 'num_hops=0'),
    (dict(num_hops=1.5), 'num_hops=1.5'),
    (dict(alpha='a'), "alpha='a'"),
    (dict(beta=True), 'beta=True'),
    (dict(beta='1'), "beta='1'"),
    (dict(out_channels=-1), 'out_channels=-1'),
    (dict(out_channels=1.5), 'out_channels=1.5'),
    (dict(momentum=True), 'momentum=True'),
    (dict(normalize=False, add_self_loops=True), 'GCNNorm'),
    (dict(aggr='max'), 'max'),
    (dict(node_dim=1), 'node_dim=1'),
    (dict(improved=0.5), 'by name'),
])
def test_bad_arguments(kwargs, message):
    with pytest.raises(ValueError, match='AGCNConv') as error:
        AGCNConv(4, **{'out_channels': 3, **kwargs})
    assert message in str(error.value)


@LOOKING
@pytest.mark.parametrize('kwargs, message', [
    (dict(x=(torch.rand(4, 4), None)), 'both sides'),
    (dict(x=torch.ones(4, 4, dtype=torch.long)), 'x.float()'),
    (dict(x=torch.ones(4)), 'shape'),
    (dict(x=torch.ones(3, 4)), 'node 3'),
    (dict(edge_index=torch.eye(5).to_sparse()), '4 nodes'),
    (dict(edge_index=torch.eye(4).to_sparse_csc()), 'CSR'),
    (dict(edge_weight=-torch.ones(6)), '-1'),
    (dict(edge_weight=torch.full((6, ), math.nan)), 'nan'),
    (dict(edge_weight=torch.ones(5)), '6 edges'),
    (dict(edge_weight=[1.0] * 6), 'list'),
    (dict(edge_weight=numpy.ones(6)), 'ndarray'),
    (dict(batch=torch.zeros(3, dtype=torch.long)), '4 nodes'),
    (dict(batch=torch.arange(4)), 'where no edge leaves its graph'),
])
def test_bad_input(kwargs, message, way):
    good = dict(x=torch.rand(4, 4), edge_index=STAR)
    with pytest.raises(ValueError, match='AGCNConv') as error:
        way(AGCNConv, 4, 3)(**{**good, **kwargs})
    assert message in str(error.value)
    conv = AGCNConv(4, 3, flow='target_to_source')
    with pytest.raises(ValueError, match='transpose'):
        conv(torch.rand(4, 4), torch.eye(4).to_sparse_csr())


@pytest.mark.parametrize('in_channels', [-1, (-1, -1)])
def test_a_width_that_was_found_is_kept(in_channels):
    conv = AGCNConv(in_channels, 3)
    edge_index = torch.tensor([[0, 1], [1, 2]])
    conv(torch.randn(3, 4), edge_index)
    with pytest.raises(ValueError, match=r"'x' of shape \[3, 5\]"):
        conv(torch.randn(3, 5), edge_index)
    with pytest.raises(ValueError, match=r"pass 'x\.to"):
        AGCNConv(in_channels, 3)(torch.randn(3, 4).double(), edge_index)


@pytest.mark.parametrize('value', [-1.0, math.nan, math.inf])
@pytest.mark.parametrize('name', ['degree', 'node_weight'])
def test_samples_stand_for_a_finite_number(name, value):
    edge_index = torch.tensor([[0, 1], [1, 2]])
    with pytest.raises(ValueError, match=f"'{name}'.*finite and >= 0"):
        AGCNConv(4, 3)(torch.randn(3, 4), edge_index,
                       **{name: torch.tensor([1.0, value, 1.0])})
