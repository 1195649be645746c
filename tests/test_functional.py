import itertools
import math
import warnings
from contextlib import nullcontext

import numpy
import pytest
import torch
import torch_geometric.transforms as T
from scipy.optimize import isotonic_regression
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, Data
from torch_geometric.utils import to_undirected

from torch_agcn import AGCNConv
from torch_agcn.datasets import Planetoid
from torch_agcn.diagnostics import chance_edges
from torch_agcn.functional import (
    anisotropic_gate,
    anisotropic_weights,
    dirichlet_energy,
    mean_average_distance,
    relative_energy,
)

NO_EDGES = torch.empty(2, 0, dtype=torch.long)
PATH = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
MEASURES = [dirichlet_energy, relative_energy, mean_average_distance]


def random_graph(num_nodes=20, num_edges=60, directed=False, loops=True):
    edge_index = torch.randint(num_nodes, (2, num_edges))
    if not loops:
        edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    if not directed:
        edge_index = to_undirected(edge_index)
    return edge_index


@pytest.fixture(params=['cpu', 'device'])
def anywhere(request, on_device):
    # On a device, no value is looked at.
    with on_device() if request.param == 'device' else nullcontext():
        yield


# Values ######################################################################


def test_dirichlet_energy_by_hand():
    x = torch.tensor([[0., 0.], [3., 4.], [3., 3.]])
    assert dirichlet_energy(x, PATH) == 25 + 1
    weight = torch.tensor([2., 2., 0.5, 0.5])
    assert dirichlet_energy(x, PATH, weight) == 2 * 25 + 0.5 * 1
    one_way = PATH[:, [0, 2]]
    assert dirichlet_energy(x, one_way) == (25 + 1) / 2


def test_relative_energy_by_hand():
    # On a path of two nodes, without loops, P swaps them:
    pair = torch.tensor([[0, 1], [1, 0]])
    x = torch.tensor([[1.], [-1.]])
    assert relative_energy(x, pair, add_self_loops=False) == 2
    # With loops, P is the mean of both:
    assert relative_energy(x, pair) == 1
    # A fast oscillation is rougher than a slow one, on a ring of eight:
    ring = torch.arange(8)
    ring = to_undirected(torch.stack([ring, (ring + 1) % 8]))
    for k in range(1, 5):
        wave = torch.cos(2 * math.pi * k * torch.arange(8) / 8).view(-1, 1)
        expected = 1 - (1 + 2 * math.cos(2 * math.pi * k / 8)) / 3
        assert float(relative_energy(wave, ring)) == pytest.approx(
            expected, rel=1e-5)


def test_mean_average_distance_by_hand():
    x = torch.tensor([[1., 0.], [0., 5.], [-2., 0.], [7., 7.]])
    # Node 1 is at right angles to both neighbors; node 3 has none:
    assert mean_average_distance(x, PATH) == pytest.approx(1.0)
    edge_index = torch.tensor([[0, 2, 1], [2, 0, 0]])
    # Node 0: 2 (opposite) and 1, node 2: 2.
    assert mean_average_distance(x, edge_index) == pytest.approx(1.75)
    weight = torch.tensor([1., 1., 3.])
    assert float(mean_average_distance(x, edge_index, weight)) == (
        pytest.approx((5 / 4 + 2) / 2))
    # Only node 1 has a neighbor:
    assert mean_average_distance(x, PATH[:, :1]) == pytest.approx(1.0)
    # A loop does not make a node its own neighbor:
    loop = torch.tensor([[0, 2, 3], [2, 0, 3]])
    assert mean_average_distance(x, loop) == pytest.approx(2.0)
    # Zero vectors are alike, and unlike all others:
    zeros = torch.tensor([[0., 0.], [0., 0.], [1., 0.]])
    assert mean_average_distance(zeros, PATH) == pytest.approx(
        (0 + 0.5 + 1) / 3)


def test_gate_by_hand():
    energy = torch.tensor([0., 0.5, 2., 1e3])
    expected = torch.tensor([0., 1 - math.exp(-0.75), 1 - math.exp(-12.), 1.])
    assert torch.allclose(anisotropic_gate(energy, 3.0), expected, rtol=1e-6)
    assert torch.allclose(anisotropic_gate(energy, torch.tensor(3.0)),
                          expected, rtol=1e-6)
    # Small gates keep their digits:
    small = anisotropic_gate(torch.tensor(1e-6), 1.0)
    assert float(small) == pytest.approx(1e-12, rel=1e-5)


@pytest.mark.parametrize('directed', [False, True])
@pytest.mark.parametrize('weighted', [False, True])
def test_energies_against_dense(dense, anywhere, directed, weighted):
    edge_index = random_graph(directed=directed)
    weight = torch.rand(edge_index.size(1)) if weighted else None
    if weighted and not directed:
        weight = (edge_index[0] + edge_index[1] + 1.0).sqrt()
    x = torch.randn(20, 7)
    bare = dense(20, edge_index, weight, loops=False)
    assert torch.allclose(dirichlet_energy(x, edge_index, weight).double(),
                          bare.total(x.double()), rtol=1e-5)
    assert torch.allclose(
        relative_energy(x, edge_index, weight, add_self_loops=False).double(),
        bare.relative(x.double()), rtol=1e-5)
    looped = dense(20, edge_index, weight)
    energy = relative_energy(x, edge_index, weight)
    assert torch.allclose(energy.double(), looped.relative(x.double()),
                          rtol=1e-5)
    assert 0 <= energy <= 2


def test_nodes_that_send_and_receive_nothing(dense, anywhere):
    # Their weight counts, their features do not.
    edge_index = torch.tensor([[0, 0, 1, 2, 3], [1, 2, 2, 1, 1]])
    x = 1 + torch.randn(5, 3)  # Node 4 neither sends nor receives.
    expected = dense(5, edge_index, loops=False).relative(x.double())
    found = relative_energy(x, edge_index, add_self_loops=False)
    assert torch.allclose(found.double(), expected, rtol=1e-5)
    x[[0, 3, 4]] *= 7
    assert torch.allclose(found, relative_energy(x, edge_index,
                                                 add_self_loops=False))


def test_relative_energy_is_the_design_formula(dense):
    edge_index = random_graph()
    ref = dense(20, edge_index)
    H = torch.randn(20, 5, dtype=torch.double)
    v = ref.degree.sqrt() / ref.degree.sqrt().norm()
    H_c = H - v[:, None] * (v @ H)
    expected = (H_c * (H_c - ref.P @ H_c)).sum() / (H_c * H_c).sum()
    assert torch.allclose(relative_energy(H, edge_index), expected)
    # Neither scale nor a shift along v matters:
    moved = -17 * H + 100 * v[:, None]
    assert torch.allclose(relative_energy(moved, edge_index), expected)


@pytest.mark.parametrize('measure', MEASURES)
def test_static_graphs_have_a_measure_each(measure, anywhere):
    x, edge_index = torch.randn(2, 3, 20, 4), random_graph()
    out = measure(x, edge_index)
    assert out.size() == (2, 3)
    for i in range(2):
        for j in range(3):
            assert torch.allclose(out[i, j], measure(x[i, j], edge_index),
                                  rtol=1e-5)


@pytest.mark.parametrize('measure', MEASURES)
def test_batch_equals_one_by_one(measure, anywhere):
    graphs = [
        Data(x=10**i * torch.randn(n, 4) + i, edge_index=random_graph(n, m))
        for i, (n, m) in enumerate([(5, 9), (12, 40), (1, 1), (7, 3)])
    ]
    batch = Batch.from_data_list(graphs)
    out = measure(batch.x, batch.edge_index, batch=batch.batch)
    one_by_one = torch.stack([measure(g.x, g.edge_index) for g in graphs])
    assert torch.allclose(out, one_by_one, rtol=1e-4, atol=1e-6)
    # Graphs at the end may be empty:
    more = measure(batch.x, batch.edge_index, batch=batch.batch, batch_size=6)
    assert torch.allclose(more[:4], out)
    assert more[4:].tolist() == [0, 0]


@pytest.mark.parametrize('measure', MEASURES)
def test_many_features_of_a_batch(measure, anywhere):
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


@pytest.mark.parametrize('measure', MEASURES)
def test_batches_of_nothing(measure):
    x, batch = torch.empty(0, 4), torch.empty(0, dtype=torch.long)
    assert measure(x, NO_EDGES, batch=batch).shape == (0, )
    assert measure(x, NO_EDGES, batch=batch, batch_size=3).tolist() == [0] * 3
    # More graphs than there are nodes of:
    x, batch = torch.rand(2, 4), torch.tensor([0, 1])
    assert measure(x, NO_EDGES, batch=batch, batch_size=3).tolist() == [0] * 3


@pytest.mark.parametrize('measure', MEASURES)
def test_all_forms_of_a_graph(measure):
    x, edge_index = torch.randn(20, 4), random_graph(directed=True)
    edge_index = torch.unique(edge_index, dim=1).contiguous()
    weight = torch.rand(edge_index.size(1))
    expected = measure(x, edge_index, weight)
    coo = torch.sparse_coo_tensor(edge_index.flip(0), weight, (20, 20))
    for adj in [coo, coo.to_sparse_csr()]:
        assert torch.allclose(measure(x, adj), expected, rtol=1e-5)
    assert torch.allclose(
        measure(x, EdgeIndex(edge_index, sparse_size=(20, 20)), weight),
        expected)
    for sparse_x in [x.to_sparse(), x.to_sparse_csr()]:
        assert torch.allclose(measure(sparse_x, edge_index, weight), expected)


# Gradients ###################################################################


@pytest.mark.parametrize('measure', MEASURES)
@pytest.mark.parametrize('directed', [False, True])
def test_gradients(measure, directed, anywhere):
    edge_index = random_graph(6, 10, directed, loops=False)
    batch = torch.tensor([0, 0, 0, 1, 1, 1])
    inside = batch[edge_index[0]] == batch[edge_index[1]]
    for graph, vector in [(edge_index, None), (edge_index[:, inside], batch)]:
        x = torch.randn(6, 3, dtype=torch.double, requires_grad=True)
        weight = torch.rand(graph.size(1), dtype=torch.double) + 0.1
        assert torch.autograd.gradcheck(
            lambda x: measure(x, graph, weight, vector), (x, ))  # noqa: B023
        weight.requires_grad_()
        assert torch.autograd.gradcheck(
            lambda x, w: measure(x, graph, w, vector),  # noqa: B023
            (x, weight))


def test_gate_gradients():
    energy = torch.tensor([0.1, 1.0, 3.0], dtype=torch.double,
                          requires_grad=True)
    beta = torch.tensor(0.7, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(anisotropic_gate, (energy, beta))


# Many numbers ################################################################


def plain_measure(measure, x, edge_index):
    r"""A measure of an undirected graph without loops, edge by edge."""
    num_nodes, (source, target) = x.size(0), edge_index
    if measure is mean_average_distance:
        distance = 1 - torch.cosine_similarity(x[source], x[target], dim=-1)
        degree = torch.bincount(target, minlength=num_nodes)
        mean = torch.zeros(num_nodes, dtype=x.dtype).index_add(
            0, target, distance / degree[target])
        return mean[degree > 0].mean()
    if measure is relative_energy:
        degree = torch.bincount(target, minlength=num_nodes) + 1.0
        x = x / degree.sqrt()[:, None]
        mean = (degree[:, None] * x).sum(0) / degree.sum()
        spread = (degree[:, None] * (x - mean).square()).sum()
        return plain_measure(dirichlet_energy, x, edge_index) / spread
    return (x[source] - x[target]).square().sum() / 2


@pytest.mark.parametrize('measure', MEASURES)
@pytest.mark.parametrize('num_nodes, width', [
    (3000, 100), (2**16 + 100, 20)])  # and more nodes than 16 bits count
def test_many_numbers(measure, num_nodes, width, anywhere):
    # More than are gathered edge by edge, or worked on at once.
    edge_index = random_graph(num_nodes, 30_000, loops=False)
    if num_nodes > 2**16:
        edge_index = random_graph(num_nodes, 120_000, loops=False)
    x = torch.randn(num_nodes, width)
    x[: num_nodes // 3] *= 3
    results = []
    for values, run in [(x, measure), (x.double(), lambda *args: (
            plain_measure(measure, *args)))]:
        values.requires_grad_()
        out = run(values, edge_index)
        results.append([out, *torch.autograd.grad(out, values)])
    for found, expected in zip(*results):
        size = float(expected.detach().abs().max())
        assert torch.allclose(found.double(), expected, rtol=1e-4,
                              atol=1e-4 * size)


@pytest.mark.parametrize('measure', MEASURES)
def test_many_numbers_of_a_batch(measure, anywhere):
    edge_index = random_graph(1000, 10_000, loops=False)
    x = torch.randn(2, 3000, 100) * torch.tensor([1., 5.])[:, None, None]
    many = torch.cat([edge_index, edge_index + 1000, edge_index + 2000], dim=1)
    batch = torch.arange(3000) // 1000
    out = measure(x, many, batch=batch)
    assert out.shape == (2, 3)
    for i, j in itertools.product(range(2), range(3)):
        part = x[i, 1000 * j:1000 * (j + 1)].double()
        assert float(out[i, j]) == pytest.approx(
            float(plain_measure(measure, part, edge_index)), rel=1e-4)
    assert torch.allclose(measure(x[0], many, batch=batch), out[0], rtol=1e-4)


@pytest.mark.parametrize('measure', MEASURES)
def test_measures_do_not_depend_on_batch_mates(measure, anywhere):
    # Smooth ones, rough ones, huge ones: the last digit stays.
    edge_index = random_graph()
    both = torch.cat([edge_index, edge_index + 20], dim=1)
    batch = torch.arange(40) // 20
    x, noise = torch.randn(2, 20, 4)
    found = [measure(torch.cat([x, mate]), both, batch=batch)[0]
             for mate in [noise, 1 + 1e-3 * noise, torch.ones(20, 4),
                          1e-20 * noise, 1e4 * noise]]
    for value in found[1:]:
        assert torch.equal(value, found[0])
    assert torch.allclose(measure(x, edge_index), found[0], rtol=1e-6)


# Numerics ####################################################################

# On 80,000 edges: few numbers, and more than are gathered edge by edge.
WIDTHS = [16, 64]


@pytest.mark.parametrize('constant', [1.0, 50.0])
@pytest.mark.parametrize('width', WIDTHS)
def test_nearly_constant_features(anywhere, constant, width):
    num_nodes = 10_000
    edge_index = random_graph(num_nodes, 40_000)
    x = constant + 1e-3 * torch.randn(num_nodes, width)
    for measure in [dirichlet_energy, relative_energy]:
        exact = measure(x.double(), edge_index)
        assert torch.allclose(measure(x, edge_index).double(), exact,
                              rtol=1e-3 if constant == 1 else 5e-3)


@pytest.mark.parametrize('width', WIDTHS)
def test_features_along_the_kept_direction(anywhere, width):
    # The shift that the relative energy does not see, and some noise:
    num_nodes = 10_000
    edge_index = random_graph(num_nodes, 40_000)
    degree = torch.bincount(edge_index[0], minlength=num_nodes) + 1.0
    degree -= torch.bincount(edge_index[0][edge_index[0] == edge_index[1]],
                             minlength=num_nodes)
    x = degree.sqrt().view(-1, 1) + 1e-3 * torch.randn(num_nodes, width)
    exact = relative_energy(x.double(), edge_index)
    assert torch.allclose(relative_energy(x, edge_index).double(), exact,
                          rtol=1e-3)


def star(num_nodes):
    leaves = torch.arange(1, num_nodes)
    return to_undirected(torch.stack([leaves, torch.zeros_like(leaves)]))


def test_what_is_smooth_has_no_relative_energy(anywhere):
    # All along the kept direction, what else there is being rounding:
    edge_index = star(10_000)
    degree = torch.bincount(edge_index[0]) + 1.0
    for _ in range(5):
        x = degree.sqrt().view(-1, 1) * torch.randn(1, 8)
        assert relative_energy(x, edge_index) == 0
    ring = torch.arange(20)
    ring = to_undirected(torch.stack([ring, (ring + 1) % 20]))
    assert relative_energy(torch.full((20, 4), 0.7), ring) == 0


@pytest.mark.parametrize('width', WIDTHS)
def test_components_that_are_smooth_apart(width):
    half = 5000
    edge_index = random_graph(half, 20_000)
    edge_index = torch.cat([edge_index, edge_index + half], dim=1)
    for constant in [50.0, 1000.0]:
        x = 1e-3 * torch.randn(2 * half, width)
        x[:half] += constant
        x[half:] -= constant
        exact = dirichlet_energy(x.double(), edge_index)
        assert torch.allclose(dirichlet_energy(x, edge_index).double(), exact,
                              rtol=1e-3)


@pytest.mark.parametrize('measure', [relative_energy, mean_average_distance])
def test_scale_does_not_matter(measure, anywhere):
    x, edge_index = torch.randn(20, 4), random_graph()
    expected = measure(x, edge_index)
    for scale in [1e-30, 1e-21, 1e-13, 1e20, 1e30]:
        scaled = (scale * x).requires_grad_()
        energy = measure(scaled, edge_index)
        assert torch.allclose(energy, expected, rtol=1e-4)
        energy.backward()
        assert torch.isfinite(scaled.grad).all()


@pytest.mark.parametrize('scale', [1.0, 1e-25, 1e25])
def test_scales_of_many_features_on_a_batch(scale, anywhere):
    edge_index = torch.cat([PATH, PATH + 3], dim=1)
    batch = torch.tensor([0, 0, 0, 1, 1, 1])
    x = scale * torch.randn(2, 6, 4) * torch.tensor([1., 1e4]).view(2, 1, 1)
    for graphs in [batch, None]:
        expected = torch.stack([
            relative_energy(v / scale, edge_index, None, graphs) for v in x])
        assert torch.allclose(relative_energy(x, edge_index, None, graphs),
                              expected, rtol=1e-4)


@pytest.mark.parametrize('scale', [1e-25, 1e-12, 1.0, 1e25])
@pytest.mark.parametrize('batch', [None, torch.zeros(3, dtype=torch.long)])
def test_scales_of_features_with_a_row_of_zeros(scale, batch, anywhere):
    x = scale * torch.tensor([[1.], [-1.], [0.]])
    expected = relative_energy(x / scale, PATH)
    assert float(relative_energy(x, PATH, None, batch)) == pytest.approx(
        float(expected), rel=1e-4)


@pytest.mark.parametrize('scale', [1.0, 1e20])
def test_relative_energies_are_never_more_than_two(scale, anywhere):
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


def test_rounding_is_measured_by_all_features(anywhere):
    ring = torch.arange(20)
    ring = to_undirected(torch.stack([ring, (ring + 1) % 20]))
    x = torch.randn(20, 2048)
    assert relative_energy(1 + 1e-5 * x, ring) == 0
    assert 0.6 < relative_energy(1 + 1e-4 * x, ring) < 0.8
    # However little the edges weigh:
    weight = torch.full((ring.size(1), ), 1e-6)
    assert relative_energy(1 + 1e-5 * x, ring, weight,
                           add_self_loops=False) == 0


def test_distance_of_smooth_graphs_in_a_batch():
    edge_index = random_graph(200, 800)
    x = 1 + 1e-4 * torch.randn(200, 8)
    expected = mean_average_distance(x.double(), edge_index)
    both = mean_average_distance(
        torch.cat([x, -x]), torch.cat([edge_index, edge_index + 200], dim=1),
        batch=torch.arange(400) // 200)
    assert torch.allclose(both.double(), expected.expand(2), rtol=0.01,
                          atol=0)


@pytest.mark.parametrize('measure', MEASURES)
def test_nan_is_not_smooth(measure):
    x = torch.randn(20, 4)
    x[3, 2] = math.nan
    assert torch.isnan(measure(x, random_graph()))


def test_twice_differentiable(anywhere):
    edge_index = random_graph(6, 10, loops=False)
    for directed in [edge_index, edge_index[:, :-2]]:
        x = torch.randn(6, 3, dtype=torch.double, requires_grad=True)
        for measure in [dirichlet_energy, relative_energy]:
            assert torch.autograd.gradgradcheck(
                lambda x: measure(x, directed), (x, ))  # noqa: B023
            # It is the gradient that is there without:
            out = measure(x, directed)
            grads = [torch.autograd.grad(out, x, 3 * torch.ones_like(out),
                                         retain_graph=True,
                                         create_graph=again)[0]
                     for again in [False, True]]
            assert torch.allclose(*grads)


def test_compiled_measures_want_to_know_the_number_of_graphs():
    x, edge_index = torch.randn(20, 4), torch.arange(20).view(2, 10) // 2
    batch = torch.zeros(20, dtype=torch.long)
    compiled = torch.compile(dirichlet_energy, backend='eager',
                             fullgraph=False)
    expected = dirichlet_energy(x, edge_index, batch=batch)
    assert torch.allclose(
        compiled(x, edge_index, batch=batch, batch_size=1), expected)
    with pytest.raises(ValueError, match='batch_size'):
        compiled(x, edge_index, batch=batch)


CASES = {
    'constant': (torch.ones(6, 3), PATH),
    'zero': (torch.zeros(6, 3), PATH),
    'huge': (1e8 * torch.eye(6), PATH),
    'tiny': (1e-30 * torch.eye(6), PATH),
    'no edges': (torch.randn(6, 3), PATH[:, :0]),
    'no nodes': (torch.randn(0, 3), PATH[:, :0]),
    'one node': (torch.randn(1, 3), PATH[:, :0]),
    'only a loop': (torch.randn(1, 3), torch.zeros(2, 1, dtype=torch.long)),
    'no features': (torch.randn(6, 0), PATH),
}


@pytest.mark.parametrize('case', CASES)
@pytest.mark.parametrize('measure', MEASURES)
@pytest.mark.parametrize('dtype', [torch.float, torch.half, torch.bfloat16])
@pytest.mark.parametrize('beta', [0.0, 1.0, 1e6])
def test_never_nan(case, measure, dtype, beta, anywhere):
    x, edge_index = CASES[case]
    x = x.to(dtype).nan_to_num(posinf=6e4).requires_grad_()
    energy = measure(x, edge_index)
    assert energy.dtype == torch.float
    beta = torch.tensor(beta, requires_grad=True)
    gate = anisotropic_gate(energy, beta)
    gate.backward()
    assert torch.isfinite(energy)
    assert torch.isfinite(gate)
    assert torch.isfinite(beta.grad)
    assert torch.isfinite(x.grad).all()
    if case in ('zero', 'no nodes', 'one node', 'only a loop'):
        assert energy == 0
    if (case in ('constant', 'no edges')  # PATH is not regular.
            and measure is not relative_energy):
        assert energy == 0


def test_gate_beyond_all_bounds():
    for dtype in [torch.float, torch.double]:
        energy = torch.tensor([torch.finfo(dtype).max, math.inf],
                              dtype=dtype, requires_grad=True)
        for beta in [0.0, 1e-45, 1e-3, 1.0, 1e6]:
            gate = anisotropic_gate(energy, beta)
            gate.sum().backward()
            assert torch.isfinite(gate).all()
            assert torch.isfinite(energy.grad).all()
        assert gate.tolist() == [1, 1]
        assert energy.grad.tolist() == [0, 0]


@pytest.mark.parametrize('beta', [0.0, 1e-40, 1e-30, 1e-4, 1.0, 1e4, 1e30])
def test_a_beta_in_a_tensor_is_the_same_number(beta):
    energy = torch.tensor([0., 1e-10, 0.1, 1., 50., 1e4, 1e15, 1e30, 3e38])
    out = anisotropic_gate(energy, torch.tensor(beta))
    assert torch.allclose(out, anisotropic_gate(energy, beta))
    assert out.min() >= 0 and out.max() <= 1


@pytest.mark.parametrize('dtype', [torch.float, torch.double])
def test_gates_up_to_where_the_exponential_vanishes(dtype):
    exponent = torch.tensor([1e-3, 1., 10., 30., 90., 103., 105., 700., 747.],
                            dtype=dtype)
    for beta in [1e-30, 1.0, 1e30]:
        energy = (exponent / beta).sqrt().requires_grad_()
        gate = anisotropic_gate(energy, beta)
        grad, = torch.autograd.grad(gate.sum(), energy)
        assert torch.allclose(gate, -torch.expm1(-exponent), rtol=1e-5)
        slope = 2 * beta * energy.detach() * torch.exp(-exponent)
        assert torch.allclose(grad, slope, rtol=1e-4,
                              atol=1e-6 * float(slope.max()))
        assert gate[-1] == 1 and grad[-1] == 0


@pytest.mark.parametrize('name, energy', [
    ('Cora', 649.6),
    pytest.param('CiteSeer', 236.7, marks=pytest.mark.data),
    pytest.param('PubMed', 2586, marks=pytest.mark.data),
])
def test_the_gate_of_the_paper_is_open_on_its_data(tmp_path, name, energy):
    data = Planetoid(tmp_path, name, transform=T.NormalizeFeatures())[0]
    assert float(dirichlet_energy(data.x, data.edge_index)) == pytest.approx(
        energy, rel=1e-3)
    for tenth in range(1, 51):  # the paper's grid
        conv = AGCNConv(data.num_features, 16, beta=tenth / 10)
        assert conv.gate(data.x, data.edge_index) == 1


# Weights #####################################################################


def dense_weights(x, edge_index, weight=None, steps=2):
    r"""The definition, node by node, in float64."""
    N = x.size(0)
    A = torch.zeros(N, N, dtype=torch.double)
    weight = torch.ones(edge_index.size(1)) if weight is None else weight
    A.index_put_((edge_index[1], edge_index[0]), weight.double(),
                 accumulate=True)
    A = A + A.t()
    A.fill_diagonal_(0)
    A = A * A.sum() / A.square().sum()
    length = x.double().norm(dim=1, keepdim=True)
    u = torch.where(length > 0, x / length, 0.0)
    u = torch.where(length > 0, u - u.sum(0) / (length > 0).sum(), 0.0)
    pairs = list(itertools.combinations(range(N), 2))
    C, shares = torch.zeros(N, N, dtype=torch.double), []
    for step in range(steps + 1):
        W = C * A if step > 0 else 0 * A
        h = u + W @ u
        of_random = [cosine(h[i], h[j]) for i, j in pairs]
        of_edges = [cosine(h[i] - W[i, j] * u[j], h[j] - W[i, j] * u[i])
                    for i, j in pairs]
        share, posterior = local_fdr(of_random, of_edges, [
            float(A[i, j]) for i, j in pairs])
        for (i, j), value in zip(pairs, posterior):
            C[i, j] = C[j, i] = value
        shares.append(share)
    C.fill_diagonal_(1)
    return C[edge_index[1], edge_index[0]] * weight, shares


def cosine(a, b):
    size = float(a.norm() * b.norm())
    value = float(a @ b) / size if size > 1e-9 else 0.0
    return round((value + 1) * 4096) / 4096 - 1


def local_fdr(of_random, of_edges, weight):
    level = sorted({*of_random, *of_edges})
    f0 = numpy.bincount([level.index(s) for s in of_random],
                        minlength=len(level)) / len(of_random)
    f = numpy.bincount([level.index(s) for s in of_edges], weight,
                       len(level)) / sum(weight)
    middle = numpy.flatnonzero(f0.cumsum() >= 0.5 - 1e-12)[0]
    share = min(1, f[:middle + 1].sum() / f0[:middle + 1].sum())
    there = f0 + f > 0
    fit = isotonic_regression((f0 / (f0 + f))[there],
                              weights=(f0 + f)[there], increasing=False).x
    odds = fit / numpy.maximum(1 - fit, 1e-300)
    posterior = dict(zip(numpy.array(level)[there],
                         numpy.clip(1 - share * odds, 0, 1)))
    return share, [posterior.get(s, 0.0) for s in of_edges]


def clusters(size=15, inside=60, across=12, dtype=torch.double):
    r"""Two clusters with edges inside, and some across at the end."""
    sign = torch.tensor([1.0, -1.0], dtype=dtype).repeat_interleave(size)
    x = torch.randn(2 * size, 6, dtype=dtype) + 1.5 * sign[:, None]
    edge_index = torch.cat([
        torch.randint(size, (2, inside)), size + torch.randint(
            size, (2, inside)), torch.stack([
                torch.randint(size, (across, )),
                size + torch.randint(size, (across, ))])], dim=1)
    return x, edge_index


@pytest.mark.parametrize('steps', [0, 1, 2])
@pytest.mark.parametrize('weighted', [False, True])
def test_anisotropic_weights_against_dense(steps, weighted):
    # Directed, with loops and edges twice:
    x, edge_index = clusters()
    x[3] = 0
    weight = torch.rand(edge_index.size(1)) if weighted else None
    expected, shares = dense_weights(x, edge_index, weight, steps)
    assert shares[0] < 0.9
    out = anisotropic_weights(x, edge_index, weight, steps)
    assert torch.allclose(out, expected.double(), atol=1e-6)
    assert out.min() + 1e-9 > 0 and len(out.unique()) > 3
    found = chance_edges(x, edge_index, weight, steps)
    assert found.shares == pytest.approx(shares)


def test_anisotropic_weights_of_all_forms():
    x, edge_index = clusters(dtype=torch.float)
    edge_index = torch.unique(edge_index, dim=1).contiguous()
    out = anisotropic_weights(x, edge_index)
    assert torch.equal(out, anisotropic_weights(x, edge_index))
    for features in [x.to_sparse(), x.to_sparse_csr(), 1e-25 * x, 1e25 * x,
                     x.double(), x * torch.rand(30, 1)]:
        other = anisotropic_weights(features, edge_index)
        assert (out - other).abs().median() < 1e-3
        assert other.dtype == features.dtype
    assert anisotropic_weights(x.half(), edge_index).dtype == torch.float
    adj = torch.sparse_coo_tensor(edge_index.flip(0), torch.ones(
        edge_index.size(1)), (30, 30)).coalesce()
    order = (edge_index[1] * 30 + edge_index[0]).argsort()
    for form in [adj, adj.to_sparse_csr()]:
        assert torch.equal(anisotropic_weights(x, form), out[order])
    assert torch.equal(out, anisotropic_weights(
        x, EdgeIndex(edge_index, sparse_size=(30, 30))))


def test_anisotropic_weights_do_not_depend_on_order():
    x, edge_index = clusters()
    out = anisotropic_weights(x, edge_index)
    assert torch.equal(out, anisotropic_weights(x, edge_index.flip(0)))
    order = torch.randperm(edge_index.size(1))
    assert torch.allclose(anisotropic_weights(x, edge_index[:, order]),
                          out[order])
    perm = torch.randperm(30)
    there = torch.empty_like(perm)
    there[perm] = torch.arange(30)
    assert torch.allclose(anisotropic_weights(x[perm], there[edge_index]),
                          out)
    # Both ways of an edge have the same weight to the last digit:
    both = anisotropic_weights(x.float(), torch.cat(
        [edge_index, edge_index.flip(0)], dim=1))
    assert torch.equal(*both.chunk(2))


def test_anisotropic_weights_of_many_nodes():
    # There are more pairs of nodes than are compared.
    x, edge_index = clusters(500, 2000, 800, torch.float)
    state = torch.get_rng_state()
    out = anisotropic_weights(x, edge_index)
    assert torch.equal(out, anisotropic_weights(x, edge_index))
    assert torch.equal(state, torch.get_rng_state())
    # A third is there by chance, of which a half is inside:
    assert out[:4000].mean() == pytest.approx(0.8, abs=0.05)
    assert out[4000:].mean() < 0.1
    assert chance_edges(x, edge_index).share == pytest.approx(1 / 3, abs=0.05)


def test_edges_of_weight_zero_are_no_edges():
    x, edge_index = clusters()
    out = anisotropic_weights(x, edge_index)
    more = torch.randint(30, (2, 50))
    zeros = torch.cat([torch.ones(132), torch.zeros(50)])
    assert torch.allclose(anisotropic_weights(
        x, torch.cat([edge_index, more], dim=1), zeros), torch.cat(
            [out, torch.zeros(50)]))


def test_graphs_of_a_batch_have_weights_of_their_own():
    graphs = [clusters(), clusters(4, 20, 2), clusters(3, 0, 0)]
    expected = torch.cat([anisotropic_weights(*graph) for graph in graphs])
    sizes = torch.tensor([0, 30, 38])
    x = torch.cat([x for x, _ in graphs])
    edge_index = torch.cat([edges + size for (_, edges), size in zip(
        graphs, sizes)], dim=1)
    batch = torch.arange(3).repeat_interleave(torch.tensor([30, 8, 6]))
    assert torch.equal(*(anisotropic_weights(x, edge_index, batch=b)
                         for b in (batch, batch.int())))
    assert torch.allclose(anisotropic_weights(x, edge_index, batch=batch),
                          expected)
    perm = torch.randperm(44)  # nodes of a graph need not stand together
    there = torch.empty_like(perm)
    there[perm] = torch.arange(44)
    assert torch.allclose(anisotropic_weights(
        x[perm], there[edge_index], batch=batch[perm], batch_size=4), expected)


def test_anisotropic_weights_of_strange_graphs():
    assert anisotropic_weights(torch.randn(0, 3), NO_EDGES).shape == (0, )
    assert anisotropic_weights(torch.randn(1, 3), NO_EDGES).shape == (0, )
    # A loop is not there by chance, and adds nothing to its node:
    x, edge_index = clusters()
    loops = torch.tensor([[0, 0, 7], [0, 0, 7]])
    out = anisotropic_weights(x, torch.cat([loops, edge_index], dim=1))
    assert out[:3].tolist() == [1] * 3
    assert torch.equal(out[3:], anisotropic_weights(x, edge_index))
    for value in [math.nan, math.inf]:
        x[1, 0] = value
        out = anisotropic_weights(x, edge_index)
        assert out.isfinite().all() and 0 <= out.min() <= out.max() <= 1


@pytest.mark.parametrize('x', [
    torch.ones(30, 6), torch.zeros(30, 6), torch.empty(30, 0), torch.eye(30),
    0.1 + torch.zeros(30, 1433)])
def test_weights_stay_where_features_say_nothing(x):
    _, edge_index = clusters()
    weight = torch.rand(132)
    with pytest.warns(UserWarning, match=r'1 graph.*100%.*random pairs'):
        assert torch.equal(anisotropic_weights(x, edge_index, weight), weight)
    assert chance_edges(x, edge_index).shares == (1, 1, 1)
    # A pair of nodes has nothing to be compared with:
    with pytest.warns(UserWarning, match='random pairs'):
        anisotropic_weights(torch.randn(2, 3), PATH[:, :2])


def test_weights_stay_where_edges_are_few():
    # By luck, a few edges look like more than random pairs.
    acts = 0
    for seed in range(100):
        torch.manual_seed(seed)
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            out = anisotropic_weights(torch.randn(20, 8),
                                      torch.randint(20, (2, 30)))
        acts += int((out < 1).any())
    assert acts <= 5


def test_only_ratios_of_weights_matter():
    x, edge_index = clusters(dtype=torch.float)
    weight = torch.rand(132)
    out = anisotropic_weights(x, edge_index, weight)
    assert 0.1 < (out / weight).mean() < 0.9
    for scale in [1e-30, 1e-3, 1e10, 1e36]:
        other = anisotropic_weights(x, edge_index, scale * weight)
        assert (other / scale - out).abs().median() < 1e-4
    # One-way edges are no weaker than others:
    assert torch.equal(anisotropic_weights(x, edge_index),
                       anisotropic_weights(x, torch.cat(
                           [edge_index, edge_index.flip(0)], dim=1))[:132])


def test_the_median_is_exact():
    # Half of 28 pairs, at which a running sum of floats is not a half.
    angle = torch.tensor([0.0, 0.5, 1.1, 1.8, 2.6, 3.5, 4.5, 5.6]).double()
    x = torch.stack([angle.cos(), angle.sin()], dim=1)
    pairs = torch.combinations(torch.arange(8)).t()
    u = x - x.mean(0)
    u = u / u.norm(dim=1, keepdim=True)
    order = (u[pairs[0]] * u[pairs[1]]).sum(1).argsort()
    edge_index = pairs[:, order[[0, 1, 2, 14, 20, 21, 22, 23]]]
    assert chance_edges(x, edge_index, steps=0).share == pytest.approx(0.75)


def test_anisotropic_weights_run_eagerly_in_compiled_code():
    x, edge_index = clusters()
    compiled = torch.compile(anisotropic_weights, backend='eager')
    assert torch.equal(compiled(x, edge_index),
                       anisotropic_weights(x, edge_index))


def test_no_more_edges_no_less_weight():
    # Where no edge is there by chance, it is GCN.
    x, edge_index = clusters(across=0)
    x[:, 0] *= 100
    assert anisotropic_weights(x, edge_index, steps=0).tolist() == [1] * 120


# Bad input ###################################################################


@pytest.mark.parametrize('measure', [*MEASURES, anisotropic_weights])
@pytest.mark.parametrize('kwargs, message', [
    (dict(x=torch.ones(3, 2, dtype=torch.long)), 'x.float()'),
    (dict(x=torch.ones(3)), 'shape'),
    (dict(x=None), 'NoneType'),
    (dict(edge_index=torch.tensor([[0, 3], [1, 1]])), 'node 3'),
    (dict(edge_index=torch.tensor([[0, -1], [1, 1]])), 'node -1'),
    (dict(edge_index=torch.rand(2, 3)), 'torch.long'),
    (dict(edge_index=torch.zeros(3, 2, dtype=torch.long)), 'shape'),
    (dict(edge_index='graph'), 'str'),
    (dict(edge_weight=torch.rand(3)), '4 edges'),
    (dict(edge_weight=[1.0] * 4), 'list'),
    (dict(edge_weight=numpy.ones(4)), 'ndarray'),
    (dict(edge_weight=torch.tensor([1., -1., 1., 1.])), '-1'),
    (dict(edge_weight=torch.tensor([1., math.nan, 1., 1.])), 'nan'),
    (dict(edge_weight=torch.tensor([1., math.inf, 1., 1.])), 'inf'),
    (dict(batch=torch.zeros(2, dtype=torch.long)), '3 nodes'),
    (dict(batch=torch.tensor([0, 0, -1])), '-1'),
    (dict(batch=torch.tensor([-1, -1, -1])), 'numbers from -1 to -1'),
    (dict(batch=[0, 0, 0]), 'list'),
    (dict(batch=torch.tensor([0, 0, 1])),
     'from node 1 of graph 0 to node 2 of graph 1'),
    (dict(batch=torch.zeros(3)), '(torch.long)'),
    (dict(batch=torch.zeros(3, dtype=torch.long), batch_size=1.0),
     'batch_size=1.0'),
    (dict(batch=torch.tensor([0, 1, 2]), batch_size=2), 'batch_size=2'),
    (dict(batch=torch.tensor([0, 0, 10**9])), "or pass 'batch_size'"),
    (dict(edge_index=torch.eye(4).to_sparse()), '3 nodes'),
    (dict(edge_index=torch.eye(3).to_sparse_csc()), 'CSR'),
    (dict(edge_index=torch.eye(3).to_sparse(),
          edge_weight=torch.ones(3)), 'values'),
])
def test_bad_input(measure, kwargs, message):
    good = dict(x=torch.rand(3, 2), edge_index=PATH)
    with pytest.raises(ValueError, match=measure.__name__) as error:
        measure(**{**good, **kwargs})
    assert message in str(error.value)


@pytest.mark.parametrize('measure', MEASURES)
def test_a_batch_vector_that_is_none(measure):
    with pytest.raises(ValueError, match='the number of its graph'):
        measure(torch.rand(3, 4), NO_EDGES, batch=torch.zeros(3, 1).long())


@pytest.mark.parametrize('batch_size', [1.5, '2', [2]])
def test_a_number_of_graphs_is_a_whole_number(batch_size):
    x, batch = torch.randn(3, 2), torch.zeros(3, dtype=torch.long)
    with pytest.raises(ValueError, match=r'batch_size.*number >= 0'):
        dirichlet_energy(x, PATH, batch=batch, batch_size=batch_size)


@pytest.mark.parametrize('steps', [-1, 1.5, True, None, '2'])
def test_bad_steps(steps):
    with pytest.raises(ValueError, match=f'anisotropic_weights.*={steps!r}'):
        anisotropic_weights(torch.randn(3, 2), PATH, steps=steps)
    with pytest.raises(ValueError, match=r"anisotropic_weights.*'x'"):
        anisotropic_weights(torch.randn(2, 3, 4), PATH)


@pytest.mark.parametrize('beta', [-1.0, math.nan, math.inf,
                                  torch.tensor([0., 1., -1e-3])])
def test_bad_beta(beta):
    with pytest.raises(ValueError, match='anisotropic_gate'):
        anisotropic_gate(torch.ones(3), beta)
    with pytest.raises(ValueError, match="'energy' of type 'float'; "):
        anisotropic_gate(1.5, 1.0)
    with pytest.raises(ValueError, match='pass a floating-point tensor'):
        anisotropic_gate(torch.tensor(1), 1.0)
