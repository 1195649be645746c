r"""The statements of ``benchmarks/THEORY.md``, by their numbers."""
import math
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from torch.nn import Identity
from torch_geometric.nn import GCNConv
from torch_geometric.utils import coalesce, erdos_renyi_graph

from torch_agcn import AGCNConv
from torch_agcn.diagnostics import chance_edges
from torch_agcn.functional import (
    anisotropic_gate,
    anisotropic_weights,
    dirichlet_energy,
    relative_energy,
)


class Graph:
    r"""A graph with the spectrum of Delta."""

    def __init__(self, dense, num_nodes, edge_index):
        self.edge_index = edge_index
        found = dense(num_nodes, edge_index)
        self.P, self.degree = found.P, found.degree
        self.values, self.vectors = torch.linalg.eigh(
            torch.eye(num_nodes).double() - self.P)
        self.values = self.values.clamp(min=0)
        self.low, self.top = float(self.values[1]), float(self.values[-1])
        self.v = self.degree.sqrt() / self.degree.sum().sqrt()
        laplacian = torch.diag(self.degree) - found.A
        self.ell = float(torch.linalg.matrix_norm(laplacian, 2))

    def centred(self, H):
        return H - self.v[:, None] * (self.v @ H)

    def s(self, H):
        c = self.centred(H)
        return float((c * (c - self.P @ c)).sum() / c.square().sum())

    def filtered(self, H, p):
        return self.vectors @ (p[:, None] * (self.vectors.t() @ H))

    def conv(self, num_hops=1, residual=True, energy='relative', **kwargs):
        r"""The package's layer without weights: propagation alone."""
        conv = AGCNConv(1, 1, num_hops=num_hops, residual=residual,
                        energy=energy, bias=False, **kwargs)
        conv.lin = Identity()
        return lambda H: conv(H, self.edge_index)

    def flow(self, H, steps, beta, alpha=0.0, shape=False):
        r"""All iterates, their relative energies and gates; with the size
        taken away in each step, if the shape alone is asked for.
        """
        start, found = H, []
        for _ in range(steps + 1):
            if shape:
                H = self.centred(H)
                H = H / H.norm()
            s = self.s(H)
            g = gate(s, beta)
            found.append((H, s, g))
            H = (1 - alpha) * (H + g * (self.P @ H - H)) + alpha * start
        return zip(*found)


def gate(s, beta):
    return -math.expm1(-beta * s**2)


def undirected(*pairs):
    index = torch.tensor(pairs).t()
    return torch.cat([index, index.flip(0)], dim=1)


def bipartite(m):
    return undirected(*[(i, m + j) for i in range(m) for j in range(m)])


@pytest.fixture
def make(dense):
    def make(name):
        torch.manual_seed(1)
        if name == 'barbell':  # two complete graphs, joined by an edge
            return Graph(dense, 10, undirected(
                (4, 5), *combinations(range(5), 2),
                *combinations(range(5, 10), 2)))
        if name == 'random':  # and a path, so that it is connected
            return Graph(dense, 12, coalesce(torch.cat([
                erdos_renyi_graph(12, 0.3),
                undirected(*zip(range(11), range(1, 12)))], dim=1)))
        if name == 'star':
            return Graph(dense, 8, undirected(*[(0, i) for i in range(1, 8)]))
        if name == 'two':  # a cycle of four nodes and a triangle
            return Graph(dense, 7, undirected(
                (0, 1), (1, 2), (2, 3), (3, 0), (4, 5), (5, 6), (6, 4)))
        if name == 'complete':
            return Graph(dense, 5, undirected(*combinations(range(5), 2)))
        if name == 'triangle':  # and an edge
            return Graph(dense, 5, undirected((0, 1), (1, 2), (2, 0), (3, 4)))
        if name == 'edge':  # and an isolated node
            return Graph(dense, 3, undirected((0, 1)))
        return Graph(dense, 6, bipartite(3))
    return make


CONNECTED = ['barbell', 'random', 'star', 'bipartite']
GRAPHS = [*CONNECTED, 'two']


def features(graph, columns=3):
    return torch.randn(graph.P.size(0), columns, dtype=torch.double)


def norm(H):
    return float(H.detach().norm())


# The spectrum, and the relative energy #######################################


@pytest.mark.parametrize('name', GRAPHS)
def test_largest_eigenvalue(make, name):
    graph = make(name)
    bound = 2 - 2 / float(graph.degree.max())
    assert graph.top <= bound + 1e-12
    if name == 'bipartite':
        assert graph.top == pytest.approx(bound) == 1.5
    elif name in ['random', 'star']:
        assert graph.top < bound - 1e-3


@pytest.mark.parametrize('name', GRAPHS)
def test_1_1_invariance(make, name):
    graph = make(name)

    def s(H, edge_index=graph.edge_index):
        return float(relative_energy(H, edge_index))

    H = features(graph)
    expected = pytest.approx(graph.s(H), abs=1e-10)
    assert s(H) == expected
    Q = torch.linalg.qr(torch.randn(3, 3).double()).Q
    assert s(-2.5 * H @ Q + graph.v[:, None] * torch.randn(3)) == expected
    order = torch.randperm(H.size(0))
    assert s(H[order], order.argsort()[graph.edge_index]) == expected
    assert graph.low <= s(H) <= graph.top
    # It is free of constants just where these are multiples of v, and never
    # of all changes of features:
    regular = bool((graph.degree == graph.degree[0]).all())
    assert (s(H + 5) == expected) == regular
    assert s(H * torch.tensor([3.0, 1.0, 0.1])) != expected


@pytest.mark.parametrize('name', GRAPHS)
def test_1_2_continuity(make, name):
    graph = make(name)

    def gradient(H):
        H = H.clone().requires_grad_()
        return torch.autograd.grad(relative_energy(H, graph.edge_index), H)[0]

    H = features(graph)
    c = graph.centred(H)
    expected = 2 * (c - graph.P @ c - graph.s(H) * c) / c.norm()**2
    assert torch.allclose(gradient(H), expected, atol=1e-12)
    width = graph.top - graph.low
    assert norm(gradient(H)) <= width / norm(c)
    if name in CONNECTED:  # else v is one of many eigenvectors of zero
        # Both ends of the spectrum in equal parts reach the bound:
        ends = graph.vectors[:, [1]] + graph.vectors[:, [-1]]
        assert norm(gradient(ends)) == pytest.approx(width / 2**0.5)
        # No limit at zero, however close:
        for u, value in zip(graph.vectors.t()[1:], graph.values[1:]):
            close = (graph.v + 1e-6 * u)[:, None]
            assert float(relative_energy(close, graph.edge_index)) == (
                pytest.approx(float(value), abs=1e-6))
    assert relative_energy(graph.v[:, None], graph.edge_index) == 0


def test_1_2_constant_on_a_complete_graph(make):
    graph = make('complete')
    assert graph.low == pytest.approx(graph.top) == 1
    for scale in [1.0, 1e-6]:
        H = graph.v[:, None] + scale * features(graph)
        assert float(relative_energy(H, graph.edge_index)) == pytest.approx(1)


# Filters #####################################################################


@pytest.mark.parametrize('name', GRAPHS)
@pytest.mark.parametrize('alpha', [0.0, 0.1])
def test_2_1_polynomial(make, name, alpha):
    graph = make(name)
    H, K = features(graph), 5
    steps, _, gates = graph.flow(H, K, 2.0, alpha)
    p = torch.ones_like(graph.values)
    for g in gates[:K]:
        p = (1 - alpha) * (1 - g * graph.values) * p + alpha
    assert torch.allclose(steps[K], graph.filtered(H, p))
    # The package's layer is that:
    out = graph.conv(K, beta=2.0, alpha=alpha)(H)
    assert torch.allclose(out, graph.filtered(H, p))


@pytest.mark.parametrize('name', GRAPHS)
def test_2_1_polynomial_of_the_paper(make, name):
    graph, beta = make(name), 1e-4
    H = h = features(graph)
    product = 1.0
    for _ in range(3):
        g = gate(float(dirichlet_energy(h, graph.edge_index)), beta)
        product, h = product * g, g * (graph.P @ h)
    expected = graph.filtered(H, product * (1 - graph.values)**3)
    out = graph.conv(3, False, 'total', beta=beta)(H)
    assert 0 < product < 1
    assert torch.allclose(out / product, expected / product)


def test_2_1_isotropic(make):
    # Features far apart or close together: the same weights of neighbors.
    graph = make('star')
    for scale in [1.0, 100.0]:
        H = torch.diag(torch.linspace(1, scale, 8)).double()
        for residual in [False, True]:
            energy = 'relative' if residual else 'total'
            out = graph.conv(1, residual, energy, beta=0.01)(H)
            weight = (out / H.diagonal())[0, 1:]
            assert torch.allclose(weight, weight[0].expand(7))
            assert weight[0] > 0


@pytest.mark.parametrize('alpha', [0.0, 0.2])
def test_2_2_low_pass(alpha):
    x = np.linspace(0, 2, 401)
    gates = np.random.default_rng(0).random((20, 6))
    gates[0], gates[1] = 1, 0
    for some in gates:
        p = np.ones_like(x)
        for g in some:
            p = (1 - alpha) * (1 - g * x) * p + alpha
        assert np.abs(p).max() <= 1 and p[0] == 1
        low = p[:201]
        assert (low >= 0).all() and (np.diff(low) <= 1e-15).all()
        assert (np.diff(low, 2) >= -1e-15).all()
    high = np.abs((1 - x)**3)
    assert high[300] > high[200]  # beyond one it may rise


# Plain diffusion #############################################################


@pytest.mark.parametrize('name', GRAPHS)
def test_3_1_plain_diffusion(make, name):
    graph = make(name)
    H = first = features(graph)
    rates = (1 - graph.values[1:]).abs()
    mu = float(rates.max())
    assert (mu < 1 - 1e-6) == (name in CONNECTED)
    for k in range(1, 30):
        H = graph.P @ H
        size = norm(graph.centred(H))
        assert size <= mu**k * norm(graph.centred(first)) * (1 + 1e-9)
    assert torch.allclose(graph.v @ H, graph.v @ first)
    # It is the largest rate, and the shape that of its eigenvalues:
    for _ in range(500):
        H = graph.P @ graph.centred(H)
        H = H / H.norm()
    assert norm(graph.P @ H) == pytest.approx(mu)
    limit = float(graph.values[1:][rates > mu - 1e-9].mean())
    assert graph.s(H) == pytest.approx(limit, abs=1e-6)
    if graph.low + graph.top < 2:
        assert limit == pytest.approx(graph.low)


def test_3_1_shape_gets_rougher(make):
    graph = make('bipartite')
    assert [round(float(v), 12) for v in graph.values] == [
        0, 0.75, 0.75, 0.75, 0.75, 1.5]
    H = features(graph)
    found = []
    for _ in range(12):
        found.append((graph.s(H), norm(graph.centred(H))))
        H = graph.P @ H
    energies, norms = zip(*found)
    assert list(energies) == sorted(energies)
    assert energies[0] < 1.2 and energies[-1] > 1.4999
    assert norms[-1] / norms[-2] == pytest.approx(0.5, abs=1e-4)
    ratios = [after / before for before, after in pairwise(norms)]
    assert ratios[0] < 0.45 and max(ratios) <= 0.5 + 1e-12


def test_3_1_no_shape_is_left_on_a_complete_graph(make):
    graph = make('complete')
    H = features(graph)
    assert norm(graph.centred(H)) > 1
    assert norm(graph.centred(graph.P @ H)) < 1e-12


# The gate on the relative energy #############################################


@pytest.mark.parametrize('name', GRAPHS)
@pytest.mark.parametrize('beta', [0.1, 1.0, 50.0])
def test_4_1_and_4_2_algebraic_at_most(make, name, beta):
    graph = make(name)
    _, energies, gates = graph.flow(features(graph), 300, beta, shape=True)
    lazy = [g * graph.top < 1 for g in gates]
    if not any(lazy):  # then the gate stays open, and the energy high
        floor = math.log(graph.top / (graph.top - 1)) / beta
        assert beta > 1 and min(energies)**2 > floor
        return
    m = lazy.index(True)
    assert all(lazy[m:])
    x = gates[m] * graph.top
    c = ((1 - x)**-4 - 1) / x
    for k, s in enumerate(energies[m:]):
        bound = (energies[m]**-2 + c * beta * graph.top * k)**-0.5
        assert s >= bound * (1 - 1e-9)
        assert k == 0 or s <= energies[m + k - 1] + 1e-12


def test_4_2_is_sharp(make):
    # A part that differs between components, and one of the largest
    # eigenvalue, on the numbers w_j that the flow is made of:
    graph = make('two')
    H = graph.vectors[:, [-1]].clone()
    H[4:] += graph.degree[4:, None].sqrt()
    weights = (graph.vectors.t() @ graph.centred(H)).square().flatten()
    there = weights > 1e-12
    assert sorted({round(float(v), 9) for v in graph.values[there]}) == [
        0, round(graph.top, 9)]
    beta, steps = 0.5, 100
    _, energies, _ = graph.flow(H, steps, beta)
    low, high = float(weights[graph.values < 1e-9].sum()), float(
        weights[graph.values > graph.top - 1e-9].sum())
    for k in range(20001):
        s = graph.top * high / (low + high)
        if k <= steps:
            assert s == pytest.approx(energies[k])
        high *= (1 - graph.top * gate(s, beta))**2
    assert s * k**0.5 == pytest.approx(0.5 / (beta * graph.top)**0.5, rel=0.01)


def test_4_3_one_step_can_end_it(make):
    graph = make('two')
    assert graph.top == pytest.approx(4 / 3)
    H = graph.vectors[:, [-1]].clone()
    H[4:] += graph.degree[4:, None].sqrt()
    s = graph.s(H)
    beta = math.log(4) / s**2  # the gate is 3 / 4
    out = graph.conv(1, beta=beta)(H)
    assert s > 0.1 and graph.s(out) == pytest.approx(0, abs=1e-12)
    assert norm(graph.centred(out)) > 0.1
    # It can raise the energy, too:
    other = make('bipartite')
    start = features(other)
    assert other.s(other.P @ start) > other.s(start) + 0.1
    # Its lazy walk has eigenvalues up to 2/3, and keeps some:
    g = 0.75
    assert graph.s(H + g * (graph.P @ H - H) / 2) > 0.01


@pytest.mark.parametrize('name', ['barbell', 'random', 'star'])
def test_4_4_slower_but_geometric(make, name):
    graph, beta = make(name), 0.5
    H = features(graph)
    while graph.s(H) > 1.01 * graph.low:  # from afar, the limit is far
        H = graph.centred(H + graph.P @ H)
        H = H / H.norm()
    steps, energies, gates = graph.flow(H, 1500, beta, shape=True)
    assert max(gates) * graph.top < 1
    assert graph.low <= energies[-1] < min(energies[:-1]) + 1e-12
    excess = energies[-1] / graph.low - 1
    assert excess < (energies[0] / graph.low - 1) / 5
    # The last step of features of size one:
    rate = norm(steps[-1] + gates[-1] * (graph.P @ steps[-1] - steps[-1]))
    assert rate == pytest.approx(1 - graph.low * gate(graph.low, beta),
                                 rel=1e-3)
    if name == 'barbell':  # where the gap is small
        assert graph.low < 0.1
        assert 1 - rate == pytest.approx(beta * graph.low**3, rel=0.05)
        assert gate(graph.low, beta) < 0.01


def test_4_4_limit_from_afar(make):
    graph = make('star')
    _, energies, gates = graph.flow(features(graph), 400, 0.5, shape=True)
    assert max(gates) * graph.top < 1
    assert energies[0] > 1.1 * graph.low
    assert energies[-1] == pytest.approx(graph.low, abs=1e-6)


def test_4_4_complete_graph(dense):
    graph = Graph(dense, 5, (1 - torch.eye(5)).nonzero().t())
    H, energies, _ = graph.flow(features(graph), 6, 2.0)
    assert energies == pytest.approx([1] * 7)
    for a, b in pairwise(H):
        assert norm(graph.centred(b)) / norm(graph.centred(a)) == (
            pytest.approx(math.exp(-2)))


def test_4_5_components(make):
    graph, beta = make('two'), 0.3
    H = features(graph)
    kernel = graph.vectors[:, graph.values < 1e-9]
    assert kernel.size(1) == 2
    steps, energies, gates = graph.flow(H, 2000, beta)
    kappas = [norm(kernel.t() @ graph.centred(h))**2 for h in steps]
    assert kappas == pytest.approx([kappas[0]] * 2001) and kappas[0] > 0.1
    within = [norm(h - kernel @ (kernel.t() @ h)) for h in steps]
    for size, s in zip(within, energies):
        assert size**2 >= kappas[0] * s / graph.top
    assert max(gates) * graph.top < 1
    # A straight line in logarithms, flatter than -1/2, and no exponential:
    slope = math.log(within[2000] / within[1000]) / math.log(2)
    assert -0.5 < slope < 0
    plain = H
    for _ in range(200):
        plain = graph.P @ plain
    assert norm(plain - kernel @ (kernel.t() @ plain)) < 1e-12 < within[-1]


def test_4_5_components_of_cora(tmp_path):
    from scipy.sparse.csgraph import connected_components
    from torch_geometric.utils import to_scipy_sparse_matrix

    from torch_agcn.datasets import Planetoid
    data = Planetoid(str(tmp_path), 'Cora')[0]
    A = to_scipy_sparse_matrix(data.edge_index, num_nodes=data.num_nodes)
    assert connected_components(A)[0] == 78


# With a restart ##############################################################


def fixed_point(graph, H, beta, alpha):
    r"""The only one, by bisection for its gate."""
    def at(g):
        return graph.filtered(
            H, alpha / (alpha + (1 - alpha) * g * graph.values))

    def excess(g):
        return gate(graph.s(at(g)), beta) - g

    grid = [excess(g) for g in np.linspace(0, 1, 30)]
    assert all(a > b for a, b in pairwise(grid))
    assert grid[0] >= 0 > grid[-1]
    low, high = 0.0, 1.0
    for _ in range(60):
        g = (low + high) / 2
        low, high = (g, high) if excess(g) > 0 else (low, g)
    return at(g), g


@pytest.mark.parametrize('name', GRAPHS)
@pytest.mark.parametrize('beta', [0.5, 20.0])
def test_5_1_fixed_point(make, name, beta):
    graph, alpha = make(name), 0.1
    H = features(graph)
    point, g = fixed_point(graph, H, beta, alpha)
    assert g == pytest.approx(gate(graph.s(point), beta))
    step = (1 - alpha) * (point + g * (graph.P @ point - point))
    assert torch.allclose(step + alpha * H, point)
    # APPNP with a larger restart, by a linear system of its own:
    larger = alpha / (alpha + (1 - alpha) * g)
    eye = torch.eye(len(H)).double()
    appnp = larger * torch.linalg.solve(eye - (1 - larger) * graph.P, H)
    assert larger > alpha and torch.allclose(appnp, point)
    # The layer comes there:
    out = graph.conv(300, beta=beta, alpha=alpha)(H)
    assert torch.allclose(out, point, atol=1e-6)


@pytest.mark.parametrize('name', GRAPHS)
@pytest.mark.parametrize('beta', [0.3, 50.0])
def test_5_2_nothing_is_lost(make, name, beta):
    graph, alpha = make(name), 0.1
    H = features(graph)
    steps, energies, gates = graph.flow(H, 60, beta, alpha)
    size = norm(graph.centred(H))
    lazy = max(gates) * graph.top <= 1
    least = alpha / (alpha + (1 - alpha) * max(gates) * graph.top)
    for h, s in zip(steps, energies):
        assert norm(h - H) <= (1 if lazy else 2) * (1 - alpha) * size
        if lazy:
            assert norm(graph.centred(h)) >= least * size >= alpha * size
            assert s >= alpha**2 * energies[0]
    assert lazy == (beta == 0.3) or name in ['barbell', 'star']


def test_5_2_a_step_can_lose_it(make):
    graph, alpha = make('two'), 0.1
    H = graph.vectors[:, [-1]] + graph.v[:, None]
    # A gate of 5/6 on features of eigenvalue 4/3:
    conv = graph.conv(1, beta=math.log(6) / graph.top**2, alpha=alpha)
    assert norm(graph.centred(conv(H))) < 1e-12
    assert norm(graph.centred(H)) == pytest.approx(1)


def test_5_3_a_cycle(make):
    graph, alpha, beta = make('edge'), 0.02, 1000.0
    assert graph.top == pytest.approx(1)
    H = torch.tensor([[10**-0.5 + 5], [10**-0.5 - 5], [-2 * 5**-0.5]])
    H = H.double()
    weights = (graph.vectors.t() @ graph.centred(H)).square().flatten()
    assert weights[:2].sum() == pytest.approx(1, abs=1e-5)
    assert weights[2] == pytest.approx(50, abs=1e-4)
    _, _, gates = graph.flow(H, 400, beta, alpha)
    assert sorted(gates[-2:]) == pytest.approx([0.526, 0.878], abs=1e-3)
    assert gates[-4:-2] == pytest.approx(gates[-2:])
    point, g = fixed_point(graph, H, beta, alpha)
    s = graph.s(point)
    u = beta * s**2
    slope = (1 - alpha) * math.exp(-u) * (1 - 4 * u * (1 - s))
    assert slope < -1 and gates[-1] != pytest.approx(g, abs=0.05)
    # The slope, measured beside the fixed point: R multiplies (1, -1, 0).
    bent = point + 1e-5 * torch.tensor([[1.0], [-1.0], [0.0]])
    (_, after), _, _ = graph.flow(bent, 1, beta)
    measured = (1 - alpha) * after + alpha * H - point
    assert float(measured[0]) / 1e-5 == pytest.approx(slope, rel=1e-3)


# The paper's gate ############################################################


@pytest.mark.parametrize('name', GRAPHS)
def test_6_1_doubly_exponential(make, name):
    graph, beta = make(name), 0.7
    assert graph.ell <= 2 * (float(graph.degree.max()) - 1) + 1e-9
    conv = AGCNConv(3, 3, beta=beta, bias=False).double()
    weight = float(
        torch.linalg.matrix_norm(conv.lin.weight.detach(), 2))
    rho = (beta * graph.ell**2 * weight)**-0.25
    H = features(graph)
    H = 0.9 * rho * H / H.norm()
    for k in range(1, 4):
        before = norm(H)
        H = conv(H, graph.edge_index).relu()
        assert norm(H) <= beta * graph.ell**2 * weight * before**5 * (1 + 1e-9)
        assert norm(H) <= rho * 0.9**(5**k) * (1 + 1e-9)
    # The order is five, and not six:
    H = features(graph)
    sizes = [norm(graph.conv(1, False, 'total', beta=beta)(scale * H))
             for scale in [1e-3, 2e-3]]
    assert math.log2(sizes[1] / sizes[0]) == pytest.approx(5, abs=1e-2)


def test_6_1_every_start(make):
    graph, beta = make('random'), 0.01
    H = features(graph)
    first = norm(H)
    g = gate(graph.ell * first**2, beta)
    for k in range(1, 40):
        H = graph.conv(1, False, 'total', beta=beta)(H)
        assert norm(H) <= g**k * first
    assert norm(H) == 0  # by underflow


@pytest.mark.parametrize('name', GRAPHS)
def test_6_2_bias(make, name):
    graph = make(name)
    n = graph.P.size(0)
    conv = AGCNConv(3, 3).double()
    torch.nn.init.uniform_(conv.bias, 0.5, 1.0)
    constant = conv.bias.detach().expand(n, 3)
    assert torch.equal(conv(constant, graph.edge_index), constant)
    weight = float(
        torch.linalg.matrix_norm(conv.lin.weight.detach(), 2))
    noise = features(graph)
    errors = []
    for scale in [1e-2, 2e-2]:
        H = constant + scale * noise
        error = norm(conv(H, graph.edge_index).relu() - constant)
        bound = graph.ell**2 * weight * norm(H) * norm(H - constant)**4
        assert 0 < error <= bound
        errors.append(error)
    assert math.log2(errors[1] / errors[0]) == pytest.approx(4, abs=0.1)


def test_6_3_not_what_is_smoothed(make):
    graph = make('star')
    smooth, constant = graph.v[:, None], torch.ones(8, 1).double()
    assert torch.allclose(graph.P @ smooth, smooth)
    energy = dirichlet_energy(smooth, graph.edge_index)
    assert float(energy) == pytest.approx(7 / 11)
    conv = AGCNConv(1, 1).double()
    assert conv.gate(10 * smooth, graph.edge_index) == 1
    assert conv.gate(10 * constant, graph.edge_index) == 0
    assert norm(graph.P @ constant - constant) > 0.5
    assert relative_energy(smooth, graph.edge_index) == 0
    assert relative_energy(constant, graph.edge_index) > 0.1
    apart = make('triangle')
    assert apart.degree.unique().numel() == 2
    assert float(dirichlet_energy(apart.v[:, None],
                                  apart.edge_index)) == pytest.approx(0)


@pytest.mark.parametrize('dtype, bits', [
    (torch.float, 25), (torch.double, 54)])
def test_6_4_saturation(dtype, bits):
    # One bit less will do where functions are not rounded perfectly:
    u = math.log(2) * torch.tensor([0.99 * (bits - 1), 1.01 * bits])
    s = u.double().sqrt().to(dtype).requires_grad_()
    below, above = anisotropic_gate(s, 1.0)
    assert below < 1 and above == 1
    slope = torch.autograd.grad(below + above, s)[0]
    assert slope[0] > 0 and slope[1] == 0


@pytest.mark.parametrize('name', GRAPHS)
def test_6_4_bit_for_bit(make, name):
    graph = make(name)
    x = features(graph).float().requires_grad_()
    energy = float(dirichlet_energy(x.detach(), graph.edge_index))
    gcn = GCNConv(3, 4)

    def results(conv):
        out = conv(x, graph.edge_index)
        return [out, *torch.autograd.grad(
            out.square().sum(), [x, conv.lin.weight, conv.bias])]

    for u, same in [(17.5, True), (5.0, False)]:
        agcn = AGCNConv(3, 4, beta=u / energy**2)
        agcn.load_state_dict(gcn.state_dict())
        agcn.fuse = False  # Messages, as PyG's sends them.
        equal = [torch.equal(a, b)
                 for a, b in zip(results(agcn), results(gcn))]
        assert equal == [same] * 4


# Cost ########################################################################


class Counted:
    r"""A number that counts the products it takes part in."""

    products = 0

    def __init__(self, value):
        self.value = value

    def __sub__(self, other):
        return Counted(self.value - other.value)

    def __add__(self, other):
        return Counted(self.value + getattr(other, 'value', other))

    __radd__ = __add__

    def __mul__(self, other):
        Counted.products += 1
        return Counted(self.value * other.value)


def test_7_1_cost(make):
    graph = make('random')
    for width in [2, 4]:
        H = features(graph, width)
        exact = float(dirichlet_energy(H, graph.edge_index))
        h = [[Counted(float(v)) for v in line] for line in H]
        edges = [(i, j) for i, j in graph.edge_index.t().tolist() if i < j]
        N, E = len(h), len(edges)

        Counted.products = 0
        one = Counted(1.0)
        total = sum(one * sum((a - b) * (a - b) for a, b in zip(h[i], h[j]))
                    for i, j in edges)
        assert total.value == pytest.approx(exact)
        assert Counted.products == E * (width + 1)

        # All of H^T (L H), and its trace alone:
        root = graph.degree.sqrt()[:, None]
        laplacian = graph.degree[:, None] * H - root * (graph.P @ (root * H))
        lh = [[Counted(float(v)) for v in line] for line in laplacian]
        Counted.products = 0
        gram = [[sum(h[i][a] * lh[i][b] for i in range(N))
                 for b in range(width)] for a in range(width)]
        assert Counted.products == N * width**2
        assert sum(gram[a][a].value for a in range(width)) == (
            pytest.approx(exact))
        Counted.products = 0
        trace = sum(h[i][a] * lh[i][a] for i in range(N)
                    for a in range(width))
        assert trace.value == pytest.approx(exact)
        assert Counted.products == N * width


# Anisotropic weights #########################################################


def clusters(size, m, n, mu=1.0, width=1):
    r"""Two noisy clusters; nodes have about m edges inside, n by chance."""
    y = torch.tensor([1.0, -1.0]).double().repeat_interleave(size)
    x = mu * y[:, None] + torch.randn(2 * size, width).double()
    inside = torch.randint(size, (2, size * m // 2))
    return x, y, torch.cat([
        inside, size + torch.randint(size, inside.shape),
        torch.randint(2 * size, (2, size * n))], dim=1)


def test_8_1_without_chance_edges_it_is_gcn(make):
    torch.manual_seed(1)
    x, _, edge_index = clusters(40, 6, 0, mu=20.0, width=2)
    assert chance_edges(x, edge_index).share == 0
    weight = anisotropic_weights(x, edge_index)
    conv = GCNConv(2, 3).double()
    assert torch.equal(conv(x, edge_index, weight), conv(x, edge_index))


@pytest.mark.parametrize('m, n', [(4, 1), (9, 3), (8, 4)])
def test_8_2_the_spectrum_stays(dense, m, n):
    torch.manual_seed(1)
    x, _, edge_index = clusters(20, m, n, mu=2.0)
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    both = coalesce(torch.cat([edge_index, edge_index.flip(0)], dim=1))
    weight = anisotropic_weights(x, both)
    values = torch.linalg.eigvalsh(dense(40, both, weight).P)
    assert values.min() > -1 and values.max() <= 1 + 1e-12


@pytest.mark.parametrize('below', [0.0, 0.25])
@pytest.mark.parametrize('share', [0.0, 0.3, 0.8])
def test_8_3_the_share_is_never_too_small(share, below):
    # Distributions on ten levels; the first five are half of all pairs.
    f0 = np.full(10, 0.1)
    f1 = np.concatenate([np.full(5, below / 5), np.full(5, (1 - below) / 5)])
    f = share * f0 + (1 - share) * f1
    found = min(1.0, f[:5].sum() / f0[:5].sum())
    assert found >= share - 1e-12
    if below == 0:
        assert found == pytest.approx(share)
        there = f > 0
        assert (1 - found * f0[there] / f[there]) == pytest.approx(
            (1 - share) * f1[there] / f[there])


def ratio(m, n, a, b):
    k = m + n / 2
    return (1 + k * a - n / 2 * b)**2 / (1 + k * a**2 + n / 2 * b**2)


def test_8_4_signal_over_noise():
    for m, n in [(4, 4), (2, 8), (10, 1)]:
        grid = np.linspace(0, 1, 21)
        for a in grid[1:]:
            values = [ratio(m, n, a, b) for b in grid
                      if 1 + (m + n / 2) * a > n / 2 * b]
            assert all(p > q for p, q in pairwise(values))
        values = [ratio(m, n, a, 0) for a in grid]
        assert all(p < q for p, q in pairwise(values))
        assert ratio(m, n, 1, 0) / ratio(m, n, 1, 1) == pytest.approx(
            (1 + m + n / 2) * (1 + m + n) / (1 + m)**2)
    assert ratio(1e6, 1e6, 1, 0) / ratio(1e6, 1e6, 1, 1) == pytest.approx(
        3, rel=1e-4)


@pytest.mark.parametrize('a, b', [(1.0, 1.0), (0.8, 0.2), (1.0, 0.0)])
def test_8_4_on_a_graph(a, b):
    # Exactly m edges inside, n / 2 more inside by chance, and n / 2 across.
    torch.manual_seed(1)
    size, m, n, mu = 20_000, 4, 4, 1.0
    node = torch.arange(2 * size)
    y = torch.where(node < size, 1.0, -1.0).double()
    x = mu * y + torch.randn(2 * size).double()
    total, sum_of_weights = x.clone(), 1.0
    for weight, count, turn in [(a, m + n // 2, 0), (b, n // 2, size)]:
        for _ in range(count):
            step = torch.randint(1, size, (1, ))
            other = (node + step) % size + node // size * size
            total += weight * x[(other + turn) % (2 * size)]
            sum_of_weights += weight
    out = y * total / sum_of_weights
    assert float(out.mean()**2 / out.var()) == pytest.approx(
        ratio(m, n, a, b), rel=0.05)


def test_8_4_with_the_weights_of_the_package():
    torch.manual_seed(1)
    x, y, edge_index = clusters(400, 6, 6, mu=0.7, width=8)
    both = torch.cat([edge_index, edge_index.flip(0)], dim=1)
    found = []
    for weight in [torch.ones(both.size(1)).double(),
                   anisotropic_weights(x, both)]:
        mean = (x.index_add(0, both[1], weight[:, None] * x[both[0]])
                / torch.ones(800).double().index_add(0, both[1],
                                                     weight)[:, None])
        out = y[:, None] * mean
        found.append(float((out.mean(0)**2 / out.var(0)).mean()))
    assert found[1] > 1.5 * found[0]
