r"""Running estimates of energies over mini-batches of a graph
(:obj:`momentum`).
"""
import copy
import math
import subprocess
import sys

import pytest
import torch
from torch_geometric.utils import remove_self_loops, to_undirected

from torch_agcn import AGCNConv
from torch_agcn.functional import (
    anisotropic_gate,
    dirichlet_energy,
    relative_energy,
)

PATH = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
MODES = [
    dict(energy='total', beta=1e-5),
    dict(energy='total', beta=1e-4, residual=True, num_hops=3, alpha=0.2),
    dict(energy='relative', residual=True, beta=1.0),
    dict(energy='relative', num_hops=3, alpha=0.2, residual=True, beta=5.0),
]


def running(conv):
    r"""The sums of a layer's estimate, hop by hop, and the number of batches
    in it.
    """
    state = conv.state_dict()
    sums = [value for key, value in state.items() if key.endswith('.sums')]
    count, = {int(value) for key, value in state.items()
              if key.endswith('.num_batches')}
    return torch.stack(sums), count


def make_graph(num_nodes=12, num_edges=20):
    edge_index = remove_self_loops(torch.randint(num_nodes, (2, num_edges)))[0]
    return torch.randn(num_nodes, 4), to_undirected(edge_index,
                                                    num_nodes=num_nodes)


def pooled_energy(batches, shares):
    r"""The relative energy of batches of a graph as if their edges were one
    graph, the weight of each in proportion to its share. Batches are features
    over the roots of degrees, ends of edges and their weights.
    """
    rough, nodes, weights = 0.0, [], []
    for (u, (source, target), weight), share in zip(batches, shares):
        u, weight = u.double(), share * weight.double()
        rough += (weight * (u[source] - u[target]).square().sum(-1)).sum() / 2
        weights.append(sum(torch.zeros(len(u)).double().index_add(
            0, ends, weight) for ends in (source, target)) / 2)
        nodes.append(u)
    u, weight = torch.cat(nodes), torch.cat(weights)[:, None]
    spread = (weight * (u - (weight * u).sum(0) / weight.sum()).square()).sum()
    return rough / spread


# Values ######################################################################


@pytest.mark.parametrize('mode', MODES)
def test_the_estimate_of_one_graph_is_its_energy(mode, way):
    x, edge_index = make_graph()
    plain = way(AGCNConv, 4, 3, **mode)
    conv = way(AGCNConv, 4, 3, momentum=0.1, recompute=True, **mode)
    assert running(conv)[0].size(0) == conv.num_hops
    assert len(conv.state_dict()) == (len(plain.state_dict())
                                      + 2 * conv.num_hops)
    conv.load_state_dict({**conv.state_dict(), **plain.state_dict()})
    x.requires_grad_()
    expected = plain(x, edge_index)
    expected_grad, = torch.autograd.grad(expected.square().sum(), x)
    # Before any batch in training, evaluation takes what it gets:
    assert torch.allclose(conv.eval()(x, edge_index), expected, atol=1e-6)
    assert running(conv)[1] == 0
    for i in range(1, 4):
        out = conv.train()(x, edge_index)
        grad, = torch.autograd.grad(out.square().sum(), x)
        assert torch.allclose(out, expected, atol=1e-5)
        assert torch.allclose(grad, expected_grad, atol=1e-4)
        conv.gate(x, edge_index)  # only looks
        assert running(conv)[1] == i
    # In evaluation, other features change the gate no more:
    gate = conv.eval().gate(x, edge_index)
    assert torch.allclose(gate, plain.gate(x, edge_index), atol=1e-5)
    assert torch.equal(conv.gate(x.square(), edge_index), gate)
    assert not torch.allclose(plain.gate(x.square(), edge_index), gate)
    # It goes where the state goes:
    other = way(AGCNConv, 4, 3, momentum=0.1, **mode).eval()
    other.load_state_dict(conv.state_dict())
    assert torch.equal(other(x.square(), edge_index),
                       conv(x.square(), edge_index))
    assert torch.equal(copy.deepcopy(conv).gate(x, edge_index), gate)
    conv.reset_parameters()
    sums, count = running(conv)
    assert count == 0 and not sums.any()


@pytest.mark.parametrize('energy', ['total', 'relative'])
def test_one_batch_makes_an_estimate(energy):
    conv = AGCNConv(2, 2, beta=0.1, energy=energy, residual=False,
                    momentum=0.1)
    x = torch.tensor([[1., 2.], [3., 1.], [2., 5.]])
    other = torch.tensor([[1., 0.], [1., 0.5], [1., 1.]])
    conv.eval()
    before = conv.gate(other, PATH)  # its own
    conv.train()
    conv(x, PATH)
    conv.eval()
    assert not torch.allclose(conv.gate(other, PATH), before)
    assert torch.allclose(conv.gate(other, PATH), conv.gate(x, PATH))


MOMENTA = [(0.0, [0.2] * 5), (0.4, [0.108, 0.108, 0.144, 0.24, 0.4]),
           (1.0, [0, 0, 0, 0, 1])]


@pytest.mark.parametrize('momentum, shares', MOMENTA)
def test_shares_of_batches(momentum, shares):
    _, edge_index = make_graph()
    xs = [torch.randn(12, 4) * (i + 1) for i in range(5)]
    conv = AGCNConv(4, 3, momentum=momentum, beta=1e-7)
    for x in xs:
        out = conv(x, edge_index)
    energy = sum(share * dirichlet_energy(x, edge_index)
                 for share, x in zip(shares, xs))
    gate = anisotropic_gate(energy, 1e-7)
    assert 0.01 < gate < 0.99
    assert torch.allclose(conv.eval().gate(xs[0], edge_index), gate)
    # The gate of the last batch was that of the average:
    plain = AGCNConv(4, 3, beta=1e9)
    plain.load_state_dict({'bias': conv.bias, 'lin.weight': conv.lin.weight})
    assert torch.allclose(out, gate * plain(xs[-1], edge_index))


@pytest.mark.parametrize('momentum, shares', MOMENTA)
@pytest.mark.parametrize('weight', [1.0, 1e-3])
@pytest.mark.parametrize('shift', [0.0, 100.0])
def test_batches_are_parts_of_one_graph(momentum, shares, weight, shift):
    # Each with a mean of its own; neither large means nor light edges hurt.
    degree = torch.rand(12) + 0.5
    conv = AGCNConv(4, 3, energy='relative', residual=False, beta=1.0,
                    momentum=momentum, add_self_loops=False)
    batches = []
    for i in range(5):
        edge_index = torch.randint(12, (2, 20))
        weights = weight * torch.rand(20)
        u = (1 + i) * torch.randn(12, 4) + i + shift
        conv(degree.sqrt()[:, None] * u, edge_index, weights, degree=degree)
        batches.append((u, edge_index, weights))
    energy = pooled_energy(batches, shares)
    gate = conv.eval().gate(torch.randn(12, 4), edge_index, degree=degree)
    assert float(gate) == pytest.approx(float(1 - torch.exp(-energy**2)),
                                        rel=1e-4 if shift == 0 else 0.02)


@pytest.mark.parametrize('noise, smooth', [(1e-6, True), (1e-3, False)])
def test_sums_that_are_rounding_count_as_smooth(noise, smooth, way):
    ring = torch.arange(20)
    ring = to_undirected(torch.stack([ring, (ring + 1) % 20]))
    x = 1 + noise * torch.randn(20, 4)
    conv = way(AGCNConv, 4, 2, energy='relative', residual=True, beta=1.0,
               momentum=0.5)
    conv(x, ring)
    gate = conv.eval().gate(torch.randn(20, 4), ring)
    expected = anisotropic_gate(relative_energy(x.double(), ring), 1.0)
    assert float(gate) == pytest.approx(0.0 if smooth else float(expected),
                                        rel=0.01)


def test_the_gradient_is_the_batch_s_at_the_gate_of_the_average():
    x, edge_index = make_graph()
    conv = AGCNConv(4, 3, momentum=0.25, beta=1e-4, bias=False)
    conv(2 * x, edge_index)
    x.requires_grad_()
    out = conv(x, edge_index)
    grad, = torch.autograd.grad(out.sum(), x)
    # g' of the average times the gradient of this energy, and g times the
    # rest:
    energy = dirichlet_energy(x, edge_index)
    average = (4 + 1) / 2 * energy.detach()  # of both batches
    gate = anisotropic_gate(average.requires_grad_(), 1e-4)
    slope, = torch.autograd.grad(gate, average)
    plain = AGCNConv(4, 3, beta=1e9, bias=False)
    plain.load_state_dict({'lin.weight': conv.lin.weight})
    open_out = plain(x, edge_index)
    expected = gate.detach() * torch.autograd.grad(
        open_out.sum(), x, retain_graph=True)[0]
    expected = expected + open_out.sum().detach() * slope * (
        torch.autograd.grad(energy, x)[0])
    assert torch.allclose(grad, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('cached', [False, True])
def test_energies_are_measured_where_the_gate_is_one(cached):
    # A few edges would prove that it is.
    x, edge_index = torch.randn(40, 64), torch.randint(40, (2, 2000))
    conv = AGCNConv(64, 2, cached=cached, momentum=0.5)
    conv(x, edge_index)
    energy = dirichlet_energy(x, edge_index)
    conv.beta = 1 / float(energy)**2
    assert float(conv.eval().gate(0 * x, edge_index)) == pytest.approx(
        1 - math.exp(-1), rel=1e-4)


def test_batches_are_counted_while_training():
    conv = AGCNConv(2, 2, momentum=0.5)
    x = torch.randn(3, 2)
    for training, expected in [(True, 1), (False, 1), (True, 2)]:
        conv.train(training)
        conv(x, PATH)
        assert running(conv)[1] == expected


# Bad batches #################################################################


@pytest.mark.parametrize('energy', ['total', 'relative'])
@pytest.mark.parametrize('dtype, size', [
    (torch.half, 2e3), (torch.float, 1e20), (torch.bfloat16, 1e20)])
def test_an_estimate_survives_what_overflows(energy, dtype, size):
    x, edge_index = make_graph()
    conv = AGCNConv(4, 3, energy=energy, residual=False, beta=1e-3,
                    momentum=0.1).to(dtype)
    for features in [x, size * x, x, x]:
        out = conv(features.to(dtype), edge_index)
        assert not out.isnan().any()
        assert running(conv)[0].isfinite().all()
    assert out.isfinite().all()
    gate = conv.eval().gate(x.to(dtype), edge_index)
    assert 0 <= gate <= 1
    assert conv(x.to(dtype), edge_index).isfinite().all()


def test_rounding_is_no_energy():
    edge_index = make_graph()[1]
    root = (torch.bincount(edge_index[1], minlength=12) + 1.0).sqrt()
    conv = AGCNConv(1, 3, energy='relative', beta=1.0, momentum=0.1)
    conv(1e3 * root[:, None], edge_index)
    assert conv.eval().gate(torch.randn(12, 1), edge_index) == 0


@pytest.mark.parametrize('kwargs, message', [
    (dict(momentum=-0.1), 'momentum=-0.1'), (dict(momentum=2), 'momentum=2'),
    (dict(momentum=0.1, in_channels=-1, energy='relative'), 'in_channels=-1'),
    (dict(momentum=0.1, in_channels=0, energy='relative'),
     'has a mean of each'),
    (dict(momentum=0.1, in_channels=(4, 4)), 'in_channels=(4, 4)'),
    (dict(momentum=0.1, in_channels=(4, 4)), 'between two types of nodes'),
])
def test_bad_momentum(kwargs, message):
    with pytest.raises(ValueError, match='AGCNConv') as error:
        AGCNConv(**{'in_channels': 4, 'out_channels': 3, **kwargs})
    assert message in str(error.value)


def test_numbers_of_features():
    x = torch.randn(3, 2)
    assert AGCNConv(-1, 2, momentum=0.5)(x, PATH).shape == (3, 2)
    conv = AGCNConv(1, 2, momentum=0.5, energy='relative', beta=1.0)
    assert conv(x[:, :1], PATH).shape == (3, 2)


def test_estimates_are_of_one_graph():
    x, edge_index = make_graph()
    conv = AGCNConv(4, 3, momentum=0.1)
    for args in [(x, edge_index, None, torch.zeros(12, dtype=torch.long)),
                 (torch.stack([x, x]), edge_index)]:
        with pytest.raises(ValueError, match='leave it at None'):
            conv(*args)
    conv = AGCNConv(4, 3, momentum=0.1, add_self_loops=False)
    with pytest.raises(ValueError, match='leave it at None'):
        conv((x, x), edge_index)


# Compiled, and on many processes #############################################


@pytest.mark.parametrize('mode', MODES)
def test_compile(mode):
    x, edge_index = make_graph()
    degree = torch.bincount(edge_index[1], minlength=12).float()
    args = dict(degree=degree, node_weight=torch.rand(12))
    conv = AGCNConv(4, 3, momentum=0.1, **mode)
    other = copy.deepcopy(conv)
    torch._dynamo.reset()
    compiled = torch.compile(other, fullgraph=True, backend='aot_eager')
    for h in [x, x.square()]:
        assert torch.allclose(compiled(h, edge_index, **args),
                              conv(h, edge_index, **args), atol=1e-5)
    assert torch.allclose(running(other)[0], running(conv)[0], rtol=1e-4)
    assert running(other)[1] == 2


RANK = """
import sys, torch
import torch.distributed as dist
from torch_agcn import AGCNConv
rank, file = int(sys.argv[1]), sys.argv[2]
dist.init_process_group('gloo', f'file://{file}', rank=rank, world_size=3)
edge_index, xs, layers = torch.load(file + '.given')
found = []
for kwargs, state in layers:
    conv = AGCNConv(4, 3, **kwargs)
    conv.load_state_dict(state)
    outs = [conv(x[rank], edge_index).detach() for x in xs]
    if rank == 0:
        conv.eval()(xs[0][0], edge_index)  # waits for no one
    found.append((conv.eval().gate(xs[0][0], edge_index), outs[1]))
torch.save(found, f'{file}.{rank}')
dist.destroy_process_group()
"""


def test_energies_are_one_over_all_processes(tmp_path):
    ring = torch.stack([torch.arange(12), (torch.arange(12) + 1) % 12])
    edge_index = to_undirected(torch.cat([ring, make_graph()[1]], dim=1))
    scale = torch.tensor([1.0, 3.0, 2.0]).view(3, 1, 1)
    xs = [scale * torch.randn(3, 12, 4) + 1 for _ in range(2)]
    settings = [
        dict(energy='total', beta=1e-6, momentum=0.25, add_self_loops=False),
        dict(energy='relative', residual=True, num_hops=2, beta=1.0,
             momentum=0.25, add_self_loops=False)]
    convs = [AGCNConv(4, 3, **kwargs) for kwargs in settings]
    file = str(tmp_path / 'ranks')
    torch.save((edge_index, xs, [(kwargs, conv.state_dict()) for kwargs, conv
                                 in zip(settings, convs)]), file + '.given')
    ranks = [subprocess.Popen([sys.executable, '-W', 'ignore', '-c', RANK,
                               str(rank), file]) for rank in range(3)]
    assert [rank.wait(300) for rank in ranks] == [0, 0, 0]
    found = [torch.load(f'{file}.{rank}') for rank in range(3)]
    for i, conv in enumerate(convs):
        gates = [gate.view(-1) for gate, _ in (f[i] for f in found)]
        assert all(torch.equal(gate, gates[0]) for gate in gates)
        # The first hop sees what it is given: the mean over ranks in each
        # step, and a half of each step.
        if conv.energy == 'total':
            energy = torch.stack([dirichlet_energy(x, edge_index)
                                  for x in xs]).mean()
        else:
            root = torch.bincount(edge_index[1]).sqrt()[:, None]
            ones = torch.ones(edge_index.size(1))
            energy = pooled_energy([(h / root, edge_index, ones)
                                    for x in xs for h in x], [1 / 6] * 6)
        expected = anisotropic_gate(energy, conv.beta)
        assert 0.01 < expected < 0.99
        assert float(gates[0][0]) == pytest.approx(float(expected), rel=1e-4)
    # And the gate that was applied is that of this average:
    for rank in range(3):
        gate, out = found[rank][0]
        plain = AGCNConv(4, 3, beta=1e9, add_self_loops=False)
        plain.load_state_dict(convs[0].state_dict(), strict=False)
        assert torch.allclose(out, gate * plain(xs[1][rank], edge_index),
                              atol=1e-6)


def test_modes_and_memory_of_estimates():
    x, edge_index = make_graph()
    conv = AGCNConv(4, 3, momentum=0.1)
    conv.running_energy.eval()
    conv.gate(x, edge_index)
    assert conv.training and not conv.running_energy[0].training
    conv.running_energy.train()
    conv.momentum = 1.0  # which counts from now on
    for h in (x, 3 * x):
        conv(h, edge_index)
    assert torch.allclose(running(conv)[0][0, 0],
                          dirichlet_energy(3 * x, edge_index))
    with torch.device('meta'):
        conv = AGCNConv(4, 3, momentum=0.1)
    conv.to_empty(device='cpu').reset_parameters()
    assert conv(x, edge_index).shape == (12, 3)
