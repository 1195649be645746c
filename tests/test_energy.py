r"""The energies that layers measure, where numbers are hard: gates of exactly
one, smooth features, large graphs. What is measured by functions is in
``test_functional.py``.
"""
import copy

import pytest
import torch
from torch_geometric.utils import to_undirected

from torch_agcn import AGCNConv
from torch_agcn.functional import anisotropic_gate, dirichlet_energy

PATH = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])


def total_energy(x, edge_index, edge_weight=None):
    r"""Term by term, in double precision."""
    a, b = x.double()[edge_index]
    terms = (a - b).square().sum(-1) / 2
    return (terms if edge_weight is None else edge_weight * terms).sum()


def exactly(conv):
    r"""The same layer by messages in double precision."""
    other = copy.deepcopy(conv).double()
    other.cached = other.fuse = False
    return other


def agree(conv, x, *args, rtol=1e-3):
    r"""Whether values, gates and gradients are the exact ones."""
    results = []
    for layer, values in [(conv, x), (exactly(conv), x.double())]:
        values = values.detach().requires_grad_()
        out = layer(values, *args)
        grads = torch.autograd.grad(out.square().sum(),
                                    [values, *layer.parameters()])
        results.append([layer.gate(values, *args), out, *grads])
    for found, expected in zip(*results):
        atol = rtol * float(expected.detach().abs().max())
        assert torch.allclose(found.double(), expected, rtol=rtol, atol=atol)


# Where the gate is one #######################################################

# Exponents of the gate: open a little, nearly one, one by rounding, and one
# because the exponential vanishes.
EXPONENTS = [0.1, 2.0, 10.0, 80.0, 200.0, 1e6]


@pytest.mark.parametrize('where', ['all', 'first', 'last'])
@pytest.mark.parametrize('weighted', [False, True])
def test_a_few_edges_prove_no_more_than_they_have(where, weighted, way):
    # Some edges may prove a gate of one, for no term of the energy is
    # negative. Those that come first may have all of it, or nothing.
    x = torch.randn(200, 64)
    edge_index = torch.randint(200, (2, 4000))
    if where != 'all':
        x[4:] = 1.0
        edge_index = torch.cat([torch.randint(4, (2, 50)),
                                torch.randint(4, 200, (2, 3950))], dim=1)
    if where == 'last':
        edge_index = edge_index.flip(1)
    weight = torch.rand(4000) / 4 if weighted else None
    energy = total_energy(x, edge_index, weight)
    for exponent in EXPONENTS:
        beta = float(exponent / energy**2)
        conv = way(AGCNConv, 64, 4, beta=beta)
        assert torch.allclose(
            conv.gate(x, edge_index, weight).double(),
            -torch.expm1(torch.tensor(-exponent, dtype=torch.double)),
            rtol=1e-3)
        if exponent > 100:
            assert conv.gate(x, edge_index, weight) == 1


def test_a_gate_of_one_has_no_gradient(way):
    edge_index = to_undirected(torch.randint(100, (2, 4000)))
    values = 0.2 * torch.randn(100, 700)
    conv = way(AGCNConv, 700, 4, beta=1e30)
    grads = []
    for beta in [1e30, 1e4, 1.0, 1e-4]:
        conv.beta = beta
        x = values.detach().requires_grad_()
        assert conv.gate(x, edge_index) == 1
        conv(x, edge_index).square().sum().backward()
        grads.append(x.grad)
    for grad in grads[1:]:
        assert torch.equal(grad, grads[0])
    conv = way(AGCNConv, 700, 4, beta=1.0, learn_beta=True)
    conv(values, edge_index).sum().backward()
    assert conv.raw_beta.grad == 0


def test_edge_by_edge(way):
    # Of wide features one edge is looked at, which nearly proves it.
    x = torch.arange(20.0).view(-1, 1).expand(-1, 2**13)
    edge_index = torch.stack([torch.arange(1, 20), torch.arange(19)])
    beta = 104 / (2**12 / 0.99)**2
    assert way(AGCNConv, 2**13, 2, beta=beta).gate(x, edge_index) == 1


def test_each_set_of_features_needs_a_proof_of_its_own(way):
    x, edge_index = torch.randn(40, 64), torch.randint(40, (2, 2000))
    conv = way(AGCNConv, 64, 2)
    for factors, gates in [([1, 2, 1], [1, 1, 1]), ([1, 0, 1], [1, 0, 1])]:
        many = torch.stack([factor * x for factor in factors])
        assert conv.gate(many, edge_index).tolist() == gates
    # The second graph of a batch is smooth, whatever the first one is:
    more = torch.cat([edge_index, PATH + 40], dim=1)
    smooth = torch.cat([x, torch.ones(3, 64)])
    batch = torch.arange(43) // 40
    assert conv.gate(smooth, more, batch=batch).tolist() == [1, 0]
    # Nothing to prove, and nothing to prove it with:
    assert conv.gate(many[:0], edge_index).shape == (0, )
    assert way(AGCNConv, 64, 2, beta=0.0).gate(1e15 * x, edge_index) == 0


@pytest.mark.parametrize('layout', [torch.sparse_coo, torch.sparse_csr])
@pytest.mark.parametrize('shift', [0.0, 300.0])
def test_sparse_features_have_the_gates_of_dense_ones(layout, shift):
    # Also where large numbers do not differ, and rows have no entries.
    edge_index, weight = torch.randint(200, (2, 8000)), torch.rand(8000)
    x = torch.rand(200, 50) * (torch.rand(200, 50) < 0.2)
    x[:, 0] = shift
    if shift == 0:
        x[7] = 0.0
    energy = total_energy(x, edge_index, weight)
    sparse = x.to_sparse(layout=layout)
    for exponent in EXPONENTS:
        conv = AGCNConv(50, 3, beta=float(exponent / energy**2))
        expected = conv.gate(x, edge_index, weight)
        found = conv.gate(sparse, edge_index, weight)
        assert torch.allclose(found, expected, rtol=1e-3)
        assert (found == 1) == (expected == 1)
        assert float(found) == pytest.approx(
            float(-torch.expm1(torch.tensor(-exponent))), rel=1e-3)


def test_one_entry_in_a_row():
    # The entries of two edges are not a pair to be subtracted.
    x = torch.tensor([[2.], [0.]])
    edge_index = torch.tensor([[1, 0, 0], [0, 1, 0]]).repeat(1, 2000)
    energy = total_energy(x, edge_index)
    assert energy == 2000 * 4
    for exponent in EXPONENTS:
        conv = AGCNConv(1, 3, beta=float(exponent / energy**2))
        gates = [conv.gate(features, edge_index) for features in (
            x, x.to_sparse(), x.to_sparse_csr())]
        for gate in gates:
            assert float(gate) == pytest.approx(
                float(-torch.expm1(torch.tensor(-exponent))), rel=1e-5)


def test_half_precision_proves_nothing_that_it_cannot_hold(way):
    # The squares of these differences are beyond 65504.
    edge_index = torch.randint(1000, (2, 40_000))
    x = torch.full((1000, 64), 6e4, dtype=torch.half)
    x[::2] *= -1
    energy = total_energy(x, edge_index)
    for exponent in [1.0, 200.0]:
        conv = way(AGCNConv, 64, 2, beta=float(exponent / energy**2)).half()
        assert float(conv.gate(x, edge_index)) == pytest.approx(
            float(-torch.expm1(torch.tensor(-exponent))), rel=1e-3)


@pytest.mark.parametrize('exponent', [0.5, 200.0])
@pytest.mark.parametrize('shift', [0.0, 1e3])
def test_gates_of_compiled_layers(exponent, shift):
    torch._dynamo.reset()
    x = torch.randn(9, 4) + shift
    edge_index, weight = torch.randint(9, (2, 60)), torch.rand(60)
    beta = float(exponent / total_energy(x, edge_index, weight)**2)
    conv = AGCNConv(4, 3, beta=beta)
    compiled = torch.compile(conv, fullgraph=True, backend='aot_eager')
    probe, results = torch.randn(9, 3), []
    for layer, values in [(compiled, x), (exactly(conv), x.double())]:
        values.requires_grad_()
        out = layer(values, edge_index, weight)
        results.append([out, *torch.autograd.grad((probe * out).sum(),
                                                  values)])
    for found, expected in zip(*results):
        size = float(expected.detach().abs().max())
        assert torch.allclose(found.double(), expected, rtol=1e-3,
                              atol=1e-3 * size)


# What is smooth ##############################################################


def hub(num_leaves):
    r"""A star and the degrees of its nodes, with loops."""
    leaf = torch.arange(1, num_leaves + 1)
    degree = torch.full((num_leaves + 1, ), 2.0)
    degree[0] = num_leaves + 1
    return to_undirected(torch.stack([torch.zeros_like(leaf), leaf])), degree


@pytest.mark.parametrize('noise, smooth', [(1e-3, False), (1e-6, True)])
def test_what_counts_as_smooth(noise, smooth, dense, way):
    # Near the direction that propagation keeps, on nodes of very different
    # degrees: more than 256 times the rounding is no rounding.
    edge_index, degree = hub(50)
    x = degree.sqrt()[:, None] + noise * torch.randn(51, 3)
    conv = way(AGCNConv, 3, 3, beta=1.0, energy='relative', residual=True)
    gate = conv.gate(x, edge_index)
    ref = dense(51, edge_index)
    expected = 1 - torch.exp(-ref.relative(x.double())**2)
    assert float(gate) == pytest.approx(0.0 if smooth else float(expected),
                                        rel=0.02)
    P = ref.P.float()
    assert torch.allclose(conv(x, edge_index),
                          conv.lin(x + gate * (P @ x - x)), atol=1e-5)


@pytest.mark.parametrize('noise, smooth', [(1e-5, True), (1e-4, False)])
def test_rounding_is_measured_by_all_features(noise, smooth, way):
    ring = torch.arange(20)
    ring = to_undirected(torch.stack([ring, (ring + 1) % 20]))
    conv = way(AGCNConv, 2048, 2, beta=1e9, energy='relative', residual=False)
    gate = conv.gate(1 + noise * torch.randn(20, 2048), ring)
    assert (gate == 0) == smooth


@pytest.mark.parametrize('scale', [1e-30, 1e-12, 1e-6, 1e6, 1e12, 1e30])
def test_relative_gates_know_no_scale(scale, way):
    conv = way(AGCNConv, 2, 2, beta=2.0, energy='relative', residual=True)
    x = torch.tensor([[1., 2.], [3., 1.], [2., 5.]])
    expected = conv.gate(x, PATH)
    assert 0.1 < expected < 0.9
    assert torch.allclose(conv.gate(scale * x, PATH), expected, rtol=1e-4)


@pytest.mark.parametrize('noise', [1e-1, 1e-3])
@pytest.mark.parametrize('energy', ['total', 'relative'])
def test_components_that_are_smooth_apart(noise, energy, way):
    # Far from each other, and nearly constant by themselves: of many features
    # on one graph, in a batch, and both at once.
    edge_index = to_undirected(torch.randint(100, (2, 400)))
    edge_index = torch.cat([edge_index, edge_index + 100], dim=1)
    x = noise * torch.randn(2, 200, 8)
    x[:, :100] += 1
    x[:, 100:] -= 1
    batch = torch.arange(200) // 100
    for shape, graphs in [(x[0], None), (x, None), (x[0], batch), (x, batch)]:
        conv = way(AGCNConv, 8, 2, beta=1.0, energy=energy, residual=True)
        exact = exactly(conv)
        # An energy of about one, so that the gate shows it:
        if energy == 'total':
            size = float(dirichlet_energy(x[0].double(), edge_index))
            conv.beta = exact.beta = 1 / size**2
        assert torch.allclose(
            conv.gate(shape, edge_index, batch=graphs).double(),
            exact.gate(shape.double(), edge_index, batch=graphs), rtol=5e-3,
            atol=1e-9)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.half])
def test_gates_are_not_rounded_by_autocast(dtype, way):
    conv = way(AGCNConv, 2, 2, beta=2.0, energy='relative', residual=False)
    x = torch.tensor([[101., 102.], [103., 101.], [102., 105.]])
    expected = conv.gate(x, PATH)
    with torch.autocast('cpu', dtype):
        assert torch.allclose(conv.gate(x, PATH), expected, rtol=1e-4)


# Large and odd graphs ########################################################


@pytest.mark.parametrize('mode', [
    dict(energy='total', residual=False),
    dict(energy='relative', residual=True, beta=1.0)])
@pytest.mark.parametrize('directed', [False, True])
def test_more_nodes_than_16_bits_count(mode, directed, way):
    # And more numbers than are worked on at once.
    num_nodes = 2**16 + 5000
    edge_index = torch.randint(num_nodes, (2, 80_000))
    edge_index[0, 0] = num_nodes - 1
    if not directed:
        edge_index = to_undirected(edge_index)
    x = torch.randn(num_nodes, 20)
    if mode['energy'] == 'total':
        mode = dict(mode, beta=float(1 / total_energy(x, edge_index)**2))
    agree(way(AGCNConv, 20, 4, bias=False, **mode), x, edge_index)


@pytest.mark.parametrize('mode', [
    dict(energy='total', residual=False, beta=1e-3),
    dict(energy='relative', residual=True, beta=1.0)])
@pytest.mark.parametrize('change', ['edge', 'weight', 'loop', 'isolated',
                                    'ring'])
def test_graphs_that_are_nearly_symmetric(mode, change, way):
    # Some edge leads elsewhere, or weighs something else on its way back.
    edge_index = to_undirected(torch.randint(12, (2, 20)), num_nodes=13)
    weight = torch.ones(edge_index.size(1))
    if change == 'edge':
        edge_index[0, 0] = (edge_index[0, 0] + 1) % 12
    elif change == 'weight':
        weight[0] = 3.0
    elif change == 'loop':
        loop = torch.tensor([[5, 5], [5, 5]])
        edge_index = torch.cat([edge_index, loop], dim=1)
        weight = torch.cat([weight, torch.tensor([7.0, 2.0])])
    elif change == 'ring':  # As many edges there as back, of equal weight.
        edge_index = torch.stack([torch.arange(12),
                                  (torch.arange(12) + 1) % 12])
        weight = torch.ones(12)
    x = torch.randn(12 + (change == 'isolated'), 4)
    for kwargs in [{}, dict(add_self_loops=False)]:
        agree(way(AGCNConv, 4, 3, num_hops=2, **mode, **kwargs), x,
              edge_index, weight)


def test_beta_in_the_gate_is_the_one_given():
    x = torch.randn(3, 2)
    energy = dirichlet_energy(x, PATH)
    for beta in [1e-6, 0.3, 1.0]:
        assert torch.allclose(AGCNConv(2, 2, beta=beta).gate(x, PATH),
                              anisotropic_gate(energy, beta), rtol=1e-5)
