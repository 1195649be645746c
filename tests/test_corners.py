r"""Corners that mutants showed to be out of sight of all other tests (see
``mutants.py``).
"""
import copy
import itertools

import pytest
import torch
from torch_geometric.explain import Explainer, GNNExplainer
from torch_geometric.explain.algorithm.utils import clear_masks, set_masks
from torch_geometric.utils import to_undirected

from torch_agcn import AGCNConv, functional
from torch_agcn.functional import (
    dirichlet_energy,
    mean_average_distance,
    relative_energy,
    symmetric_step,
)
from torch_agcn.nn.conv import agcn_conv

MEASURES = [dirichlet_energy, relative_energy, mean_average_distance]
NO_EDGES = torch.empty(2, 0, dtype=torch.long)
PATH = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])


def gradients_agree(function, x, *others):
    # What is differentiated once more is the gradient that is there without.
    out = function(x)
    weight = torch.linspace(1, 2, out.numel()).view_as(out).to(out.dtype)
    expected, found = (torch.autograd.grad(
        out, [x, *others], weight, retain_graph=True, create_graph=again)
        for again in [False, True])
    for one, other in zip(expected, found):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize('measure', MEASURES)
def test_batches_of_nothing(measure):
    x, batch = torch.empty(0, 4), torch.empty(0, dtype=torch.long)
    assert measure(x, NO_EDGES, batch=batch).shape == (0, )
    assert measure(x, NO_EDGES, batch=batch, batch_size=3).tolist() == [0] * 3
    # More graphs than there are nodes of:
    x, batch = torch.rand(2, 4), torch.tensor([0, 1])
    assert measure(x, NO_EDGES, batch=batch, batch_size=3).tolist() == [0] * 3


@pytest.mark.parametrize('measure', MEASURES)
def test_a_batch_vector_that_is_none(measure):
    with pytest.raises(ValueError, match='the number of its graph'):
        measure(torch.rand(3, 4), NO_EDGES, batch=torch.zeros(3, 1).long())


@pytest.mark.parametrize('measure', MEASURES)
def test_many_features_of_a_batch(measure):
    # Leading dimensions and a batch vector at once.
    x = 10 * torch.randn(3, 6, 4)
    edge_index = torch.tensor([[0, 1, 1, 2, 3, 4], [1, 0, 2, 1, 4, 3]])
    batch = torch.tensor([0, 0, 0, 1, 1, 1])
    out = measure(x, edge_index, batch=batch)
    assert out.shape == (3, 2)
    for values, expected in zip(x, out):
        assert torch.allclose(measure(values, edge_index, batch=batch),
                              expected)
        for graph in range(2):
            nodes = batch == graph
            inside = nodes[edge_index[0]]
            assert torch.allclose(expected[graph], measure(
                values[nodes], edge_index[:, inside] - 3 * graph))


def hub(num_leaves):
    r"""A star, its loops included, and the square roots of its degrees."""
    leaf = torch.arange(1, num_leaves + 1)
    edge_index = to_undirected(torch.stack([torch.zeros_like(leaf), leaf]))
    degree = torch.full((num_leaves + 1, ), 2.0)
    degree[0] = num_leaves + 1
    A = torch.eye(num_leaves + 1)
    A[edge_index[0], edge_index[1]] = 1
    return A / (degree[:, None] * degree[None, :]).sqrt(), degree


@pytest.mark.parametrize('noise, smooth', [(1e-3, False), (1e-6, True)])
def test_what_counts_as_smooth(noise, smooth):
    # Near the direction that propagation keeps, on nodes of very different
    # degrees: more than 256 times the rounding is no rounding.
    P, degree = hub(50)
    x = degree.sqrt()[:, None] + noise * torch.randn(51, 3)
    out, gate = symmetric_step(x, P @ x, degree, beta=1.0, residual=True)
    U = x.double() / degree.double().sqrt()[:, None]
    U = U - (degree[:, None] * U).sum(0) / degree.sum()
    H = degree.double().sqrt()[:, None] * U
    s = (H * (H - P.double() @ H)).sum() / (H * H).sum()
    expected = 0.0 if smooth else float(1 - torch.exp(-s**2))
    assert float(gate) == pytest.approx(expected, rel=0.02)
    assert torch.allclose(out, x + gate * (P @ x - x), atol=1e-6)


def test_no_batch_is_of_both_sides():
    conv = AGCNConv((4, 4), 2)
    x = torch.empty(0, 4), torch.empty(0, 4)
    for batch in [torch.empty(0, dtype=torch.long), (None, torch.empty(0)),
                  [torch.empty(0).long()] * 3]:
        with pytest.raises(ValueError, match='both sides'):
            conv(x, NO_EDGES, batch=batch)
    assert conv(x, NO_EDGES, batch=(None, None)).shape == (0, 2)


TRIANGLE = torch.tensor([[0, 1, 1, 2, 2, 0, 3, 0],
                         [1, 0, 2, 1, 0, 2, 0, 3]])


def test_nodes_in_the_first_dimension():
    x = torch.randn(4, 5)
    conv = AGCNConv(5, 2, node_dim=0)
    other = AGCNConv(5, 2)
    other.load_state_dict(conv.state_dict())
    assert torch.equal(conv(x, TRIANGLE), other(x, TRIANGLE))
    assert other(x.expand(3, 4, 5), TRIANGLE).shape == (3, 4, 2)
    with pytest.raises(ValueError, match='x'):
        conv(x.expand(3, 4, 5), TRIANGLE)


@pytest.mark.parametrize('energy', ['total', 'relative'])
def test_many_features_of_a_kept_graph(energy):
    x = 0.3 * torch.randn(3, 4, 5)
    conv = AGCNConv(5, 2, beta=0.1, energy=energy, cached=True)
    for _ in range(2):
        gates = conv.gate(x, TRIANGLE)
        assert gates.shape == (3, ) and gates.max() < 1
        out = conv(x, TRIANGLE)
        for i in range(3):
            assert torch.allclose(conv.gate(x[i], TRIANGLE), gates[i])
            assert torch.allclose(conv(x[i], TRIANGLE), out[i], atol=1e-6)


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


@pytest.mark.parametrize('batch_size', [1.5, '2', [2]])
def test_a_number_of_graphs_is_a_whole_number(batch_size):
    x, batch = torch.randn(3, 2), torch.zeros(3, dtype=torch.long)
    with pytest.raises(ValueError, match='pass a tensor and a whole number'):
        dirichlet_energy(x, PATH, batch=batch, batch_size=batch_size)


@pytest.mark.parametrize('symmetric', [False, True])
@pytest.mark.parametrize('many', [False, True])
def test_energy_by_matrix_is_differentiable_twice(symmetric, many):
    dense = torch.rand(4, 4, dtype=torch.double)
    dense[:2, 2:] = dense[2:, :2] = 0  # two graphs
    if symmetric:
        dense = dense + dense.t()
    row, col = dense.nonzero().t()
    rowptr, col, (value, ) = functional.to_csr(row, col, 4, dense[row, col])
    adj = functional.csr_tensor(rowptr, col, value)
    batch = torch.tensor([0, 0, 1, 1]) if many else None
    mean_degree = (dense.sum(0) + dense.sum(1)) / 2

    def energy(x):
        return functional.matrix_energy(x, adj, adj if symmetric else None,
                                        mean_degree, batch, 2 if many else 1)

    for shape, shift in itertools.product([(4, 1), (2, 4, 1)], [0.0, 100.0]):
        # Far from zero, the mean is taken away.
        shifted = torch.randn(shape, dtype=torch.double) + shift
        shifted.requires_grad_()
        assert torch.autograd.gradcheck(energy, shifted, atol=1e-4)
        assert torch.autograd.gradgradcheck(energy, shifted, atol=1e-4)
        gradients_agree(energy, shifted)


@pytest.mark.parametrize('cached', [False, True])
@pytest.mark.parametrize('scale', [1e-12, 1e-6, 1.0, 1e6, 1e12])
def test_relative_gates_know_no_scale(scale, cached):
    conv = AGCNConv(2, 2, beta=2.0, energy='relative', residual=True,
                    cached=cached)
    x = torch.tensor([[1., 2.], [3., 1.], [2., 5.]])
    expected = conv.gate(x, PATH)
    assert 0.1 < expected < 0.9
    assert torch.allclose(conv.gate(scale * x, PATH), expected, rtol=1e-4)


def test_relative_gates_are_not_rounded_by_autocast():
    conv = AGCNConv(2, 2, beta=2.0, energy='relative', cached=True)
    x = torch.tensor([[101., 102.], [103., 101.], [102., 105.]])
    expected = conv.gate(x, PATH)
    with torch.autocast('cpu', torch.bfloat16):
        assert torch.allclose(conv.gate(x, PATH), expected, rtol=1e-4)


@pytest.mark.parametrize('beta', [0.0, 1e-40, 1e-30, 1e-4, 1.0, 1e4, 1e30])
def test_a_beta_in_a_tensor_is_the_same_number(beta):
    energy = torch.tensor([0., 1e-10, 0.1, 1., 50., 1e4, 1e15, 1e30, 3e38])
    out = functional.anisotropic_gate(energy, torch.tensor(beta))
    assert torch.allclose(out, functional.anisotropic_gate(energy, beta))
    assert out.min() >= 0 and out.max() <= 1


@pytest.mark.parametrize('kwargs', [
    dict(beta=0.01), dict(energy='relative', residual=True, num_hops=2)])
@pytest.mark.parametrize('cached', [False, True])
def test_many_features_on_a_batch_of_graphs(kwargs, cached):
    # Leading dimensions, and a gate for each of them and for each graph.
    edge_index = torch.cat([PATH, PATH + 3], dim=1)
    batch = torch.tensor([0, 0, 0, 1, 1, 1])
    conv = AGCNConv(4, 2, cached=cached, **kwargs)
    x = torch.randn(3, 6, 4) * torch.tensor([1., 2., 3.]).view(3, 1, 1)
    expected = torch.stack([conv(part, edge_index, batch=batch) for part in x])
    assert torch.allclose(conv(x, edge_index, batch=batch), expected,
                          atol=1e-5)


@pytest.mark.parametrize('energy', ['total', 'relative'])
def test_one_batch_makes_an_estimate(energy):
    conv = AGCNConv(2, 2, beta=0.1, energy=energy, momentum=0.1)
    x = torch.tensor([[1., 2.], [3., 1.], [2., 5.]])
    other = torch.tensor([[1., 0.], [1., 0.5], [1., 1.]])
    conv.eval()
    before = conv.gate(other, PATH)  # its own
    conv.train()
    conv(x, PATH)
    conv.eval()
    assert not torch.allclose(conv.gate(other, PATH), before)
    assert torch.allclose(conv.gate(other, PATH), conv.gate(x, PATH))


def test_sums_that_are_rounding_count_as_smooth():
    # Energy, spread, weight, and two means that the spread is nothing beside.
    sums = torch.tensor([[1e-11, 1e-11, 5., 1., 1.], [1e-5, 1e-5, 5., 1., 1.]])
    assert functional.energy_from_sums(sums).tolist() == [0.0, 1.0]


@pytest.mark.parametrize('residual', [False, True])
@pytest.mark.parametrize('learn_beta', [False, True])
def test_symmetric_steps_are_differentiable_twice(residual, learn_beta):
    conv = AGCNConv(2, 2, beta=2.0, energy='relative', residual=residual,
                    learn_beta=learn_beta, num_hops=2, cached=True).double()
    x = torch.randn(3, 2, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: conv(x, PATH), x)
    gradients_agree(lambda x: conv(x, PATH), x, *(
        [conv.raw_beta] if learn_beta else []))


def test_one_tensor_stands_for_both_sides_of_a_batch():
    conv = AGCNConv((2, 2), 3, beta=0.1)
    x, batch = torch.randn(3, 2), torch.tensor([0, 0, 1])
    inside = torch.tensor([[0, 1, 2], [1, 0, 2]])
    assert conv(x, inside, batch=batch).equal(
        conv((x, x), inside, batch=(batch, batch)))


@pytest.mark.parametrize('kwargs', [
    dict(beta=0.05), dict(beta=2.0, energy='relative', residual=True)])
def test_masks_of_explainers_between_two_types(kwargs):
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


# What the layer builds on ####################################################


def test_how_many_graphs(monkeypatch):
    def count(*args, **kwargs):
        return functional.check_batch(*args, 'owner', **kwargs)

    x, batch = torch.rand(3, 2), torch.tensor([0, 1, 1])
    for bound in [False, True]:
        assert count(None, 5, x, bound=bound) is None
        assert count(batch, None, x, bound=bound) == 2
        assert count(batch, 5, x, bound=bound) == 5
        assert count(batch[:0], None, x[:0], bound=bound) == 0
        assert count(batch[:0], 5, x[:0], bound=bound) == 5
    # On devices, of which meta has no numbers at all, a bound has to do:
    there = batch.to('meta')
    assert count(there, None, x, bound=True) == 3
    assert count(there, 2, x, bound=True) == 2
    with pytest.raises(RuntimeError, match='meta'):
        count(there, None, x)
    # What is traced has no numbers either:
    monkeypatch.setattr(functional, 'is_traced', lambda: True)
    assert count(batch, None, x, bound=True) == 3
    assert count(batch, 2, x, bound=True) == 2
    assert count(batch, 2, x) == 2
    with pytest.raises(ValueError, match="pass 'batch_size'"):
        count(batch, None, x)


@pytest.mark.parametrize('dtype', [torch.float, torch.double])
def test_where_exponentials_vanish(dtype):
    last = functional.vanishing(dtype)
    exponents = -torch.tensor([last - 1, last], dtype=dtype)
    assert (exponents.exp() == 0).tolist() == [False, True]


def test_what_is_much():
    one, many = torch.tensor(0.5), torch.tensor([0.5, 0.5])
    whole = torch.tensor([40.0, 50.0])
    for share, expected in [(0.009, True), (0.01, True), (0.011, False)]:
        assert functional._is_much(one, whole[1], share) is expected
        assert functional._is_much(many, whole, share) is expected
    assert not functional._is_much(torch.tensor(torch.nan), whole[0], 0.01)


def test_what_is_of_normal_size():
    for power, expected in [(-90, False), (-70, True), (0, True), (70, True),
                            (90, False)]:
        number = torch.tensor(2.0**power)
        assert functional._is_of_normal_size(number) is expected
        both = torch.stack([torch.ones(()), number])
        assert functional._is_of_normal_size(both) is expected
    assert functional._is_of_normal_size(torch.empty(0))


@pytest.mark.parametrize('weighted', [False, True])
def test_a_few_edges_prove_no_more_than_they_have(weighted):
    # All energy is in the first edges that are looked at.
    x = torch.zeros(200, 64)
    x[:4] = torch.randn(4, 64)
    row, col = torch.randint(4, (2, 50)), torch.randint(4, 200, (2, 950))
    row, col = torch.cat([row, col], dim=1)
    weight = torch.rand(1000) / 4 if weighted else None
    edges = functional.Edges(row, col, weight)
    energy = float(functional.edge_energy(x, edges))
    for share, expected in [(0.4, True), (1.01, False), (1.5, False)]:
        beta = functional.vanishing(x.dtype) / (share * energy)**2
        assert functional.is_saturated(x, edges, beta) is expected


def test_merging_unequal_shares():
    x = torch.randn(6, 3, dtype=torch.double)
    degree = torch.rand(6, dtype=torch.double) + 0.5
    row, col = torch.randint(6, (2, 20))
    # So light that all together weigh less than one:
    weight = torch.rand(20, dtype=torch.double) / 100
    parts = [functional.Edges(row[some], col[some], weight[some])
             for some in [slice(0, 9), slice(9, 20)]]
    a, b = (functional.energy_sums(x, part, degree) for part in parts)
    for share in [0.0, 0.2, torch.tensor(0.7), 1.0]:
        scale = torch.full((20, ), float(share), dtype=torch.double)
        scale[:9] = 1 - float(share)
        whole = functional.energy_sums(x, functional.Edges(
            row, col, weight * scale), degree)
        assert torch.allclose(functional.merge_sums(a, b, share), whole)
    assert functional.merge_sums(a[:1], b[:1], 0.25) == (
        0.75 * a[0] + 0.25 * b[0])


def test_rounding_is_measured_by_all_features():
    # Two means of five nodes each, and spreads on both sides of the bound:
    noise = (256 * torch.finfo(torch.float).eps)**2
    whole = 5 * (3.0**2 + 0.5**2)
    sums = torch.tensor([[share * noise * whole, share * noise * whole, 5.,
                          3., 0.5] for share in [0.98, 1.02]])
    assert functional.energy_from_sums(sums).tolist() == [0.0, 1.0]
    ring = torch.arange(20)
    ring = to_undirected(torch.stack([ring, (ring + 1) % 20]))
    x = torch.randn(20, 2048)
    assert relative_energy(1 + 1e-5 * x, ring) == 0
    assert 0.6 < relative_energy(1 + 1e-4 * x, ring) < 0.8
    # In one step, too:
    degree = torch.full((20, ), 3.0)
    mean = (x + x.roll(1, 0) + x.roll(-1, 0)) / 3
    for noise, is_smooth in [(1e-5, True), (1e-4, False)]:
        _, gate = symmetric_step(1 + noise * x, 1 + noise * mean, degree,
                                 1e9, False)
        assert (gate == 0) == is_smooth
    # However little the edges weigh:
    weight = torch.full((ring.size(1), ), 1e-6)
    assert relative_energy(1 + 1e-5 * x, ring, weight,
                           add_self_loops=False) == 0


@pytest.mark.parametrize('width', [1, 5, 2**19, 2**21])
def test_blocks_are_all_rows(width):
    rows = torch.arange(7)
    found = [rows[some] for some in functional.blocks(7, width)]
    assert torch.cat(found).equal(rows)
    assert len(found) == {2**19: 4, 2**21: 7}.get(width, 1)


@pytest.mark.parametrize('shape', [(), (2, ), (2, 3)])
@pytest.mark.parametrize('many', [False, True])
def test_sums_over_edges_of_a_matrix(shape, many):
    batch = torch.tensor([0, 0, 1, 1]) if many else None
    dense = torch.rand(4, 4)
    if many:
        dense *= batch == batch.view(-1, 1)
    row, col = dense.nonzero().t()
    edges = functional.Edges(row, col, dense[row, col])
    x = torch.randn(*shape, 4, 3)
    found = functional._sum_over_edges(x, dense.to_sparse_csr(), batch, 2)
    expected = functional._energy_of_edges(x, edges, batch, 2)
    assert found.shape == shape + (2, ) * many
    assert torch.allclose(found, expected)


@pytest.mark.parametrize('scale', [1.0, 1e20])
def test_relative_energies_are_never_more_than_two(scale):
    # Where neighbors are opposites it is two, and rounding is cut off.
    seen = set()
    for _ in range(50):
        edge_index = torch.stack([torch.randint(5, (30, )),
                                  torch.randint(5, 10, (30, ))])
        edge_index, weight = to_undirected(edge_index, torch.rand(30))
        x = torch.zeros(10, 1).index_add_(0, edge_index[0],
                                          weight.view(-1, 1)).sqrt()
        x[5:] *= -1
        energy = relative_energy(scale * x, edge_index, weight,
                                 add_self_loops=False)
        assert 1.999 < energy <= 2
        seen.add(float(energy) == 2)
    assert True in seen


def test_means_of_few_nodes():
    x = torch.tensor([[2., 4.]])
    assert functional.mean_over_nodes(x, None, None, None).equal(x)
    assert functional.mean_over_nodes(x[:0], None, None, None).equal(0 * x)
    both = torch.tensor([[2., 4.], [4., 4.]])
    for weight, expected in [(None, 3.0), (torch.tensor([3., 1.]), 2.5)]:
        assert functional.mean_over_nodes(both, weight, None, None).tolist(
            ) == [[expected, 4.0]]


@pytest.mark.parametrize('scale', [1.0, 1e-25, 1e25])
def test_scales_of_many_features_on_a_batch(scale):
    edge_index = torch.cat([PATH, PATH + 3], dim=1)
    batch = torch.tensor([0, 0, 0, 1, 1, 1])
    x = scale * torch.randn(2, 6, 4) * torch.tensor([1., 1e4]).view(2, 1, 1)
    for graphs in [batch, None]:
        expected = torch.stack([
            relative_energy(v / scale, edge_index, None, graphs) for v in x])
        assert torch.allclose(relative_energy(x, edge_index, None, graphs),
                              expected, rtol=1e-4)


def test_a_refused_beta_is_not_kept():
    conv = AGCNConv(2, 2, beta=3.0)
    with pytest.raises(ValueError, match='beta=-5'):
        conv.beta = -5
    assert conv.beta == 3.0
    conv.beta = 5
    assert conv.beta == 5.0


# The layer ###################################################################


def rough_graph():
    # So many edges that the first of them prove a gate of one.
    edge_index = torch.randint(40, (2, 2000))
    return torch.randn(40, 64), edge_index


@pytest.mark.parametrize('cached', [False, True])
def test_a_proof_is_for_one_graph_without_learning(cached):
    x, edge_index = rough_graph()
    conv = AGCNConv(64, 2, cached=cached)
    graph = conv._prepare(x, edge_index, None, None, None)[1]
    assert conv._total_gate(x, graph, 1.0, None, None) is None
    assert conv.gate(x, edge_index) == 1
    both = conv.gate(torch.stack([x, 2 * x, x]), edge_index)
    assert both.tolist() == [1, 1, 1]
    # The second graph is smooth, whatever the first one is:
    batch = torch.arange(43) // 40
    more = torch.cat([edge_index, PATH + 40], dim=1)
    smooth = torch.cat([x, torch.ones(3, 64)])
    assert conv.gate(smooth, more, batch=batch).tolist() == [1, 0]
    # A running estimate has to see energies, and a learnt beta gates:
    conv = AGCNConv(64, 2, cached=cached, momentum=0.5)
    conv(x, edge_index)
    assert float(conv.running_energy) == pytest.approx(
        float(dirichlet_energy(x, edge_index)), rel=1e-4)
    conv = AGCNConv(64, 2, cached=cached, learn_beta=True)
    conv(x, edge_index).sum().backward()
    assert conv.raw_beta.grad == 0


def test_an_estimate_is_counted_while_training():
    conv = AGCNConv(2, 2, momentum=0.5)
    x = torch.randn(3, 2)
    for training, expected in [(True, 1), (False, 1), (True, 2)]:
        conv.train(training)
        conv(x, PATH)
        assert conv.num_batches_tracked == expected
    assert AGCNConv(-1, 2, momentum=0.5)(x, PATH).shape == (3, 2)
    conv = AGCNConv(1, 2, momentum=0.5, energy='relative')
    assert conv(x[:, :1], PATH).shape == (3, 2)
    for channels in [-1, 0]:
        with pytest.raises(ValueError, match='has a mean of each'):
            AGCNConv(channels, 2, momentum=0.5, energy='relative')
    with pytest.raises(ValueError, match='between two types of nodes'):
        AGCNConv((2, 2), 2, momentum=0.5)


def test_numbers_of_features():
    x = torch.randn(3, 2)
    assert AGCNConv(2, 0)(x, PATH).shape == (3, 0)
    for channels in [-1, 0]:  # to be seen, and then to be kept
        conv = AGCNConv(channels, 2)
        assert torch.equal(conv(x, PATH), conv(x, PATH))
    with pytest.raises(ValueError, match=r'pass \[num_nodes, 1\]'):
        AGCNConv(1, 2)(x, PATH)


@pytest.mark.parametrize('kwargs', [
    {}, dict(recompute=True), dict(recompute=True, momentum=0.5),
    dict(recompute=True, explain=True), dict(recompute=True, grad=False)])
def test_what_is_taken_twice(kwargs, monkeypatch):
    kwargs = dict(kwargs)
    explain, grad = kwargs.pop('explain', False), kwargs.pop('grad', True)
    conv = AGCNConv(2, 2, num_hops=5, residual=True, beta=0.01, **kwargs)
    if explain:
        set_masks(conv, torch.ones(4), PATH, apply_sigmoid=False)
    steps, sum_neighbors = [], conv._sum_neighbors

    def counted(*args):
        steps.append(torch.is_grad_enabled())
        return sum_neighbors(*args)

    monkeypatch.setattr(conv, '_sum_neighbors', counted)
    x = torch.randn(3, 2, requires_grad=True)
    with torch.set_grad_enabled(grad):
        out = conv(x, PATH)
    assert len(steps) == 5
    if grad:
        out.sum().backward()
    again = kwargs == dict(recompute=True) and not explain and grad
    assert len(steps) == (10 if again else 5)


def test_mean_over_ranks(monkeypatch):
    others = [torch.tensor([4.0]), torch.tensor([9.0])]

    class Ranks:
        is_available = is_initialized = staticmethod(lambda: True)
        get_world_size = staticmethod(lambda: 3)

        @staticmethod
        def all_gather(found, own):
            for place, value in zip(found, [own, *others]):
                place.copy_(value)

    own = torch.tensor([2.0])
    assert agcn_conv._mean_over_ranks(own) is own
    monkeypatch.setattr(agcn_conv, 'distributed', Ranks)
    assert float(agcn_conv._mean_over_ranks(own)) == pytest.approx(5.0)
    for missing in ['is_available', 'is_initialized']:
        with monkeypatch.context() as patch:
            patch.setattr(Ranks, missing, staticmethod(lambda: False))
            assert agcn_conv._mean_over_ranks(own) is own


def test_equal_matrices():
    def matrix(rowptr, col, value):
        return functional.csr_tensor(torch.tensor(rowptr), torch.tensor(col),
                                     torch.tensor(value))

    one = [0, 1, 2, 2], [0, 1], [1., 2.]
    assert agcn_conv._equal(matrix(*one), matrix(*one))
    for i, other in enumerate([[0, 2, 2, 2], [0, 2], [1., 3.]]):
        changed = [*one[:i], other, *one[i + 1:]]
        assert not agcn_conv._equal(matrix(*one), matrix(*changed))


def test_caches_of_other_graphs_of_the_same_size():
    x = torch.randn(3, 2)
    dense = torch.tensor([[0., 1., 0.], [1., 0., 1.], [0., 1., 0.]])
    more = dense.clone()
    more[0, 2] = more[2, 0] = 1.0
    conv = AGCNConv(2, 2, cached=True)
    for layout in [torch.sparse_coo, torch.sparse_csr]:
        for adj in [dense, more, 0 * dense, 2 * more, dense]:
            graph = adj.to_sparse(layout=layout)
            fresh = copy.deepcopy(conv)
            fresh.cached = False
            assert torch.allclose(conv(x, graph), fresh(x, graph), atol=1e-6)
    assert conv._cache is not None and fresh._cache is None
    # And of one whose weights are changed in place:
    weight = torch.ones(4)
    for factor in [1.0, 3.0]:
        weight[:2] *= factor
        assert torch.allclose(conv(x, PATH, weight), fresh(x, PATH, weight),
                              atol=1e-6)


@pytest.mark.parametrize('kwargs', [
    dict(beta=0.05), dict(beta=2.0, energy='relative', residual=True)])
@pytest.mark.parametrize('cached', [False, True])
def test_masks_of_explainers_on_weighted_edges(kwargs, cached):
    x, weight = torch.randn(3, 2), torch.tensor([2., 2., 0.5, 0.5])
    mask = torch.tensor([0.3, 0.3, 0.8, 0.8])
    conv = AGCNConv(2, 3, cached=cached, normalize=False, **kwargs)
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


def test_degrees_and_weights_apart():
    x, degree = torch.randn(3, 2), torch.tensor([3., 4., 5.])
    for energy in ['total', 'relative']:
        conv = AGCNConv(2, 3, beta=0.1, energy=energy)
        plain = conv(x, PATH)
        assert not torch.allclose(conv(x, PATH, degree=degree), plain)
        weight = torch.tensor([1., 0., 2.])
        assert not torch.allclose(conv.gate(x, PATH, node_weight=weight),
                                  conv.gate(x, PATH))
    for sides in [(degree, degree), (None, degree), [degree]]:
        with pytest.raises(ValueError, match='one floating-point number'):
            conv(x, PATH, degree=sides)


def test_both_sides_of_many_shapes():
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
    with pytest.raises(ValueError, match='both sides of a bipartite'):
        conv((source[0], target[0]), edge_index, batch=torch.zeros(2).long())


def test_types_under_autocast():
    conv, x = AGCNConv(2, 3), torch.randn(3, 2).bfloat16()
    with pytest.raises(ValueError, match=r'x.to\(torch.float32\)'):
        conv(x, PATH)
    with torch.autocast('cpu', torch.bfloat16):
        out = conv(x, PATH)
    assert torch.allclose(out.float(), conv(x.float(), PATH), atol=0.05)


@pytest.mark.parametrize('kwargs', [
    dict(beta=0.01), dict(beta=2.0, energy='relative', residual=True)])
@pytest.mark.parametrize('cached', [False, True])
def test_gradients_of_short_numbers(kwargs, cached):
    edge_index = torch.tensor([[0, 1, 1, 2, 2], [1, 0, 2, 1, 0]])
    grads = []
    conv = AGCNConv(4, 3, cached=cached, **kwargs)
    values = torch.randn(3, 4)
    for dtype in [torch.float, torch.bfloat16]:
        x = values.detach().to(dtype).requires_grad_()
        conv.to(dtype)(x, edge_index).square().sum().backward()
        grads.append(x.grad.float())
    scale = float(grads[0].abs().max())
    assert torch.allclose(*grads, rtol=0, atol=0.05 * scale)


@pytest.mark.parametrize('beta', [1e-6, 0.3, 1.0, 50.0, 500.0])
def test_a_learnt_beta_begins_where_it_is_told_to(beta):
    conv = AGCNConv(2, 2, beta=beta, learn_beta=True)
    assert float(conv.beta) == pytest.approx(beta, rel=1e-5)
    conv.beta = 2 * beta
    assert float(conv.beta) == pytest.approx(2 * beta, rel=1e-5)


def test_degrees_in_a_batch():
    x, degree = torch.randn(3, 2), torch.tensor([3., 4., 5.])
    conv, one = AGCNConv(2, 3, beta=0.1), torch.zeros(3, dtype=torch.long)
    assert torch.allclose(conv(x, PATH, batch=one, degree=degree),
                          conv(x, PATH, degree=degree), atol=1e-6)
