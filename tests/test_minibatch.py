import copy
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.loader import (
    DataLoader,
    GraphSAINTRandomWalkSampler,
    NeighborLoader,
)
from torch_geometric.testing import withPackage
from torch_geometric.utils import remove_self_loops, to_undirected

from torch_agcn import AGCN, AGCNConv
from torch_agcn.functional import (
    anisotropic_gate,
    dirichlet_energy,
    energy_from_sums,
    energy_sums,
    merge_sums,
    relative_energy,
)
from torch_agcn.loader import ImportanceWeights, MixedBatchSampler
from torch_agcn.nn.conv import agcn_conv

pytestmark = pytest.mark.filterwarnings('ignore:Using .NeighborSampler.')
MODES = [
    dict(energy='total', beta=1e-5),
    dict(energy='total', beta=1e-4, residual=True, num_hops=3, alpha=0.2),
    dict(energy='relative', residual=True),
    dict(energy='relative', num_hops=3, alpha=0.2, residual=True, beta=5.0),
]


def make_graph(num_nodes=12, num_edges=20):
    edge_index = remove_self_loops(torch.randint(num_nodes, (2, num_edges)))[0]
    return torch.randn(num_nodes, 4), to_undirected(edge_index,
                                                    num_nodes=num_nodes)


def count(edge_index, num_nodes=12):
    return torch.bincount(edge_index[1], minlength=num_nodes).float()


# Weights #####################################################################


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('improved', [False, True])
@pytest.mark.parametrize('matrix', [False, True])
def test_weights_of_a_whole_graph_change_nothing(mode, improved, matrix,
                                                 monkeypatch):
    if not matrix:
        monkeypatch.setattr(AGCNConv, '_is_fused', lambda *args: False)
    x, edge_index = make_graph()
    x.requires_grad_()
    conv = AGCNConv(4, 3, improved=improved, cached=matrix, **mode)
    args = dict(degree=count(edge_index), node_weight=torch.ones(12))
    expected = conv(x, edge_index)
    expected_grad, = torch.autograd.grad(expected.square().sum(), x)
    for some in [args, dict(degree=args['degree']),
                 dict(node_weight=args['node_weight'])]:
        out = conv(x, edge_index, **some)
        assert torch.allclose(out, expected, atol=1e-5)
        grad, = torch.autograd.grad(out.square().sum(), x)
        assert torch.allclose(grad, expected_grad, atol=1e-4)
        assert torch.allclose(conv.gate(x, edge_index, **some),
                              conv.gate(x, edge_index), atol=1e-5)
    # Twice the weight is twice the energy, and the same relative one:
    some = dict(args, node_weight=torch.full((12, ), 2.0))
    gate = conv.gate(x, edge_index, **some).view(-1)[0]
    energy = (dirichlet_energy(x, edge_index) * 2
              if conv.energy == 'total' else
              agcn_conv.energy_sums(*measured(conv, x, edge_index))[:2])
    if conv.energy == 'relative':
        energy = energy[0] / energy[1]
    assert torch.allclose(gate, anisotropic_gate(energy, conv.beta))


def measured(conv, x, edge_index):
    graph = conv._make_graph(x, edge_index, None, is_sample=True)
    return x, graph.edges, graph.degree


def test_a_part_by_hand():
    # The star of node 0 and two of its four neighbors, seen from node 0 only:
    # edges weigh 2, degrees are 4 and 1 and get a loop, and node 0 stands for
    # three nodes.
    x = torch.tensor([[1.0], [4.0], [2.0]])
    edge_index = torch.tensor([[1, 2], [0, 0]])
    args = dict(edge_weight=torch.tensor([2.0, 2.0]),
                degree=torch.tensor([4.0, 1.0, 1.0]),
                node_weight=torch.tensor([3.0, 0.0, 0.0]))
    conv = AGCNConv(1, 1, beta=1e9, bias=False)
    conv.lin.weight.data.fill_(1.0)
    received = 1 / 5 + 2 * (4 + 2) / 10**0.5
    assert torch.allclose(conv(x, edge_index, **args)[0],
                          torch.tensor([received]))
    # Half of 3 * 2 * (3^2 + 1^2):
    conv.beta = 1e-4
    assert torch.allclose(conv.gate(x, edge_index, **args),
                          1 - torch.exp(torch.tensor(-1e-4 * 30**2)))
    # u = 1/sqrt(5), 4/sqrt(2), 2/sqrt(2); edges of 6, and a loop of 3 at 0,
    # so that the weights of the nodes are 9, 3 and 3:
    u = torch.tensor([5**-0.5, 4 * 2**-0.5, 2 * 2**-0.5])
    weight = torch.tensor([9.0, 3.0, 3.0])
    mean = (weight * u).sum() / 15
    rough = 3 * (u[1:] - u[0]).square().sum()
    spread = (weight * (u - mean).square()).sum()
    conv = AGCNConv(1, 1, energy='relative', beta=0.5)
    expected = 1 - torch.exp(-0.5 * (rough / spread)**2)
    assert torch.allclose(conv.gate(x, edge_index, **args), expected)
    # With as many features of each:
    assert torch.allclose(
        conv(torch.stack([x, 3 * x]), edge_index, **args)[1],
        3 * conv(x, edge_index, **args))


def test_model_hands_weights_to_its_layers():
    x, edge_index = make_graph()
    args = dict(edge_weight=torch.rand(edge_index.size(1)) + 1,
                degree=count(edge_index) + 2, node_weight=torch.rand(12))
    model = AGCN(4, 8, 2, 3, energy='relative', residual=True)
    h = model.convs[0](x, edge_index, **args).relu()
    assert torch.allclose(model(x, edge_index, **args),
                          model.convs[1](h, edge_index, **args))
    # Trimmed to what is needed: three nodes, then four and five more.
    x = torch.randn(12, 4)
    edge_index = torch.tensor([[3, 4, 5, 6, 7, 8, 9, 10, 11],
                               [0, 1, 2, 0, 3, 4, 5, 6, 3]])
    args = dict(degree=torch.rand(12) + 1, node_weight=torch.cat(
        [torch.full((3, ), 4.0), torch.zeros(9)]))
    out = model(x, edge_index, **args)
    trimmed = model(x, edge_index, **args,
                    num_sampled_nodes_per_hop=[3, 4, 5],
                    num_sampled_edges_per_hop=[4, 5])
    assert torch.allclose(trimmed[:3], out[:3], atol=1e-6)


@pytest.mark.parametrize('mode', MODES)
def test_gradients_of_weighted_energies(mode):
    x, edge_index = make_graph(6, 8)
    conv = AGCNConv(4, 2, **{**mode, 'beta': 0.01}).double()
    weight = torch.rand(edge_index.size(1)).double() + 0.5
    args = dict(degree=count(edge_index, 6).double() + 1,
                node_weight=torch.tensor([2.0, 0, 1, 3, 0, 1]).double())
    assert torch.autograd.gradcheck(
        lambda x, w: conv(x, edge_index, w, **args),
        (x.double().requires_grad_(), weight.requires_grad_()))


@pytest.mark.parametrize('args, message', [
    (dict(degree=torch.ones(3)), '12 nodes'),
    (dict(node_weight=torch.ones(12, 1)), 'ImportanceWeights'),
    (dict(node_weight=torch.ones(12, dtype=torch.long)), 'floating-point'),
    (dict(node_weight=torch.ones(12), batch=torch.arange(12) // 6),
     'one graph'),
])
def test_bad_weights(args, message):
    x, edge_index = make_graph()
    with pytest.raises(ValueError, match='AGCNConv') as error:
        AGCNConv(4, 3)(x, edge_index, **args)
    assert message in str(error.value)


def test_no_weights_between_types():
    x, edge_index = make_graph()
    conv = AGCNConv((4, 4), 3)
    with pytest.raises(ValueError, match='one type of nodes'):
        conv((x, x), edge_index, degree=torch.ones(24))
    out = conv((x, x), edge_index, degree=(None, None))
    assert torch.equal(out, conv((x, x), edge_index))


# Running estimates ###########################################################


def test_sums_and_their_merging():
    x, edge_index = make_graph()
    conv = AGCNConv(4, 3, energy='relative')
    whole = energy_sums(*measured(conv, x, edge_index))
    assert torch.allclose(energy_from_sums(whole),
                          relative_energy(x, edge_index))
    assert energy_from_sums(torch.tensor([7.0])) == 7
    # Parts of the edges, each with a mean of its own, make up the whole;
    # large means do not hurt.
    x, edges, degree = measured(conv, x + 1e3, edge_index)
    keep = torch.rand(edges.row.numel()) < 0.4
    a, b = (energy_sums(x, agcn_conv.Edges(*(v[part] for v in edges)), degree)
            for part in [keep, ~keep])
    merged = merge_sums(a, b, 0.5)
    merged[:3] *= 2
    whole = energy_sums(x.double(), agcn_conv.Edges(
        edges.row, edges.col, edges.weight.double()), degree.double())
    assert torch.allclose(merged.double(), whole, rtol=1e-4)
    assert torch.equal(merge_sums(torch.zeros_like(a), a, 1.0), a)
    empty = torch.zeros_like(a)
    assert torch.equal(merge_sums(empty, empty, 0.5), empty)


@pytest.mark.parametrize('mode', MODES)
def test_running_estimate_of_one_graph_is_its_energy(mode):
    x, edge_index = make_graph()
    plain = AGCNConv(4, 3, **mode)
    conv = AGCNConv(4, 3, momentum=0.1, recompute=True, **mode)
    width = 1 if conv.energy == 'total' else 3 + 4
    assert list(conv.state_dict()) == [
        'bias', 'running_energy', 'num_batches_tracked', 'lin.weight']
    assert conv.running_energy.shape == (conv.num_hops, width)
    conv.load_state_dict({**conv.state_dict(), **plain.state_dict()})
    x.requires_grad_()
    expected = plain(x, edge_index)
    expected_grad, = torch.autograd.grad(expected.square().sum(), x)
    # Before any batch in training, evaluation takes what it gets:
    assert torch.allclose(conv.eval()(x, edge_index), expected, atol=1e-6)
    assert conv.num_batches_tracked == 0
    for i in range(1, 4):
        out = conv.train()(x, edge_index)
        grad, = torch.autograd.grad(out.square().sum(), x)
        assert torch.allclose(out, expected, atol=1e-5)
        assert torch.allclose(grad, expected_grad, atol=1e-4)
        conv.gate(x, edge_index)  # only looks
        assert conv.num_batches_tracked == i
    # In evaluation, other features change the gate no more:
    gate = conv.eval().gate(x, edge_index)
    assert torch.allclose(gate, plain.gate(x, edge_index), atol=1e-5)
    assert torch.equal(conv.gate(x.square(), edge_index), gate)
    assert not torch.allclose(plain.gate(x.square(), edge_index), gate)
    # It goes where the state goes:
    other = AGCNConv(4, 3, momentum=0.1, **mode).eval()
    other.load_state_dict(conv.state_dict())
    assert torch.equal(other(x.square(), edge_index),
                       conv(x.square(), edge_index))
    assert torch.equal(copy.deepcopy(conv).gate(x, edge_index), gate)
    conv.reset_parameters()
    assert conv.num_batches_tracked == 0 and not conv.running_energy.any()


def test_shares_of_batches():
    _, edge_index = make_graph()
    xs = [torch.randn(12, 4) * (i + 1) for i in range(5)]
    energies = [float(dirichlet_energy(x, edge_index)) for x in xs]
    for momentum, shares in [
            (0.0, [0.2] * 5), (0.4, [0.108, 0.108, 0.144, 0.24, 0.4]),
            (1.0, [0, 0, 0, 0, 1])]:
        conv = AGCNConv(4, 3, momentum=momentum, beta=1e-7)
        for x in xs:
            out = conv(x, edge_index)
        expected = sum(s * e for s, e in zip(shares, energies))
        assert float(conv.running_energy) == pytest.approx(expected)
        # The gate of the last batch was that of the average:
        gate = anisotropic_gate(torch.tensor(expected), 1e-7)
        plain = AGCNConv(4, 3, beta=1e9)
        plain.load_state_dict({'bias': conv.bias,
                               'lin.weight': conv.lin.weight})
        assert torch.allclose(out, gate * plain(xs[-1], edge_index))


def test_gradient_is_the_batch_s_at_the_gate_of_the_average():
    x, edge_index = make_graph()
    conv = AGCNConv(4, 3, momentum=0.25, beta=1e-4, bias=False)
    conv(2 * x, edge_index)
    x.requires_grad_()
    out = conv(x, edge_index)
    grad, = torch.autograd.grad(out.sum(), x)
    # g' of the average times the gradient of this energy, and g times the
    # rest:
    energy = dirichlet_energy(x, edge_index)
    s = conv.running_energy[0, 0].clone().requires_grad_()
    gate = anisotropic_gate(s, 1e-4)
    slope, = torch.autograd.grad(gate, s)
    plain = AGCNConv(4, 3, beta=1e9, bias=False)
    plain.load_state_dict({'lin.weight': conv.lin.weight})
    open_out = plain(x, edge_index)
    expected = gate.detach() * torch.autograd.grad(
        open_out.sum(), x, retain_graph=True)[0]
    expected = expected + open_out.sum().detach() * slope * (
        torch.autograd.grad(energy, x)[0])
    assert torch.allclose(grad, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('mode', MODES)
def test_running_estimate_compiles(mode):
    x, edge_index = make_graph()
    args = dict(degree=count(edge_index), node_weight=torch.rand(12))
    conv = AGCNConv(4, 3, momentum=0.1, **mode)
    other = copy.deepcopy(conv)
    torch._dynamo.reset()
    compiled = torch.compile(other, fullgraph=True, backend='aot_eager')
    for h in [x, x.square()]:
        assert torch.allclose(compiled(h, edge_index, **args),
                              conv(h, edge_index, **args), atol=1e-5)
    assert torch.allclose(other.running_energy, conv.running_energy, rtol=1e-4)
    assert other.num_batches_tracked == 2


@pytest.mark.parametrize('kwargs, message', [
    (dict(momentum=-0.1), 'momentum=-0.1'), (dict(momentum=2), 'momentum=2'),
    (dict(momentum=0.1, in_channels=-1, energy='relative'), 'in_channels=-1'),
    (dict(momentum=0.1, in_channels=(4, 4)), 'in_channels=(4, 4)'),
])
def test_bad_momentum(kwargs, message):
    with pytest.raises(ValueError, match='AGCNConv') as error:
        AGCNConv(**{'in_channels': 4, 'out_channels': 3, **kwargs})
    assert message in str(error.value)


def test_running_estimates_are_of_one_graph():
    x, edge_index = make_graph()
    conv = AGCNConv(4, 3, momentum=0.1)
    for args in [(x, edge_index, None, torch.zeros(12, dtype=torch.long)),
                 (torch.stack([x, x]), edge_index), ((x, x), edge_index)]:
        with pytest.raises(ValueError, match='leave it at None'):
            conv.add_self_loops = not isinstance(args[0], tuple)
            conv(*args)


RANK = """
import sys, torch
import torch.distributed as dist
from torch_agcn import AGCNConv
rank, file = int(sys.argv[1]), sys.argv[2]
dist.init_process_group('gloo', f'file://{file}', rank=rank, world_size=2)
edge_index, xs, layers = torch.load(file + '.given')
found = []
for mode, state in layers:
    conv = AGCNConv(4, 3, **mode, momentum=0.25)
    conv.load_state_dict(state)
    outs = [conv(x[rank], edge_index).detach() for x in xs]
    if rank == 0:
        conv.eval()(xs[0][0], edge_index)  # waits for no one
    found.append((conv.running_energy, outs[1]))
torch.save(found, f'{file}.{rank}')
dist.destroy_process_group()
"""


def test_energies_are_one_over_all_processes(tmp_path):
    _, edge_index = make_graph()
    xs = [torch.randn(2, 12, 4) * torch.tensor([1.0, 3.0]).view(2, 1, 1)
          for _ in range(2)]
    modes = [dict(energy='total', beta=1e-5),
             dict(energy='relative', residual=True, num_hops=2, beta=1.0)]
    convs = [AGCNConv(4, 3, momentum=0.25, **mode) for mode in modes]
    file = str(tmp_path / 'ranks')
    torch.save((edge_index, xs, [(mode, conv.state_dict()) for mode, conv
                                 in zip(modes, convs)]), file + '.given')
    ranks = [subprocess.Popen([sys.executable, '-W', 'ignore', '-c', RANK,
                               str(rank), file]) for rank in range(2)]
    assert [rank.wait(300) for rank in ranks] == [0, 0]
    found = zip(*(torch.load(f'{file}.{rank}') for rank in range(2)))
    for conv, ((one, out), (two, _)) in zip(convs, found):
        assert torch.equal(one, two)
        # The first hop sees what it is given: the mean of both in each step,
        # and a half of the second.
        sums = [[sums_of(conv, x, edge_index) for x in pair] for pair in xs]
        expected = merge_sums(*(merge_sums(a, b, 0.5) for a, b in sums), 0.5)
        assert torch.allclose(one[0], expected, rtol=1e-4, atol=1e-5)
        # And the gate that was applied is that of this average:
        if conv.energy == 'total':
            gate = anisotropic_gate(expected[0], conv.beta)
            conv.momentum, conv.beta = None, 1e9
            assert torch.allclose(out - conv.bias,
                                  gate * conv(xs[1][0], edge_index))


def sums_of(conv, x, edge_index):
    if conv.energy == 'total':
        return dirichlet_energy(x, edge_index).view(1)
    return energy_sums(*measured(conv, x, edge_index))


# Training ####################################################################


def blocks(num_nodes=600, classes=4):
    r"""A graph of classes that keep to themselves, with weak features."""
    y = torch.arange(num_nodes) % classes
    pairs = torch.randint(num_nodes, (2, 12 * num_nodes))
    chance = torch.where(y[pairs[0]] == y[pairs[1]], 0.5, 0.05)
    edge_index = to_undirected(remove_self_loops(
        pairs[:, torch.rand(pairs.size(1)) < chance])[0])
    x = torch.randn(num_nodes, 16)
    x[torch.arange(num_nodes), y] += 2
    data = Data(x=x, y=y, edge_index=edge_index)
    data.train_mask = torch.arange(num_nodes) < 80
    data.generate_ids()
    return data


def train(model, loader, weights, steps=60):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    while steps > 0:
        for batch in loader:
            steps -= 1
            optimizer.zero_grad()
            mask = batch.train_mask.clone()
            mask[batch.get('batch_size', mask.numel()):] = False
            out = model(batch.x, batch.edge_index, **weights(batch))
            F.cross_entropy(out[mask], batch.y[mask]).backward()
            optimizer.step()


@pytest.mark.extensions
@withPackage('torch_sparse')
@pytest.mark.parametrize('name', ['neighbor', 'saint'])
def test_training(name):
    data = blocks()
    loader = GraphSAINTRandomWalkSampler(
        data, 60, 2, num_steps=4, sample_coverage=30, log=False)
    if name == 'neighbor':
        loader = NeighborLoader(data, [8, 8], batch_sampler=MixedBatchSampler(
            data.train_mask, 600, batch_size=20, num_random=60))
    hits, gates = [], []
    for batches, weights in [([data], lambda batch: {}),
                             (loader, ImportanceWeights(loader))]:
        torch.manual_seed(0)
        model = AGCN(16, 16, 2, 4, energy='relative', residual=True, beta=3.0,
                     momentum=0.1)
        train(model, batches, weights)
        model.eval()
        running = model(data.x, data.edge_index).argmax(-1)
        hits.append(float((running == data.y)[80:].float().mean()))
        gates += [conv.gate(data.x.new_zeros(600, conv.in_channels),
                            data.edge_index) for conv in model.convs]
        for conv in model.convs:
            conv.momentum = None
        exact = model(data.x, data.edge_index).argmax(-1)
        assert (exact == running).float().mean() > 0.95
    assert min(hits) > 0.85 and abs(hits[1] - hits[0]) < 0.05
    # The gate in front of the first layer is that of the features, which
    # training does not change:
    assert 0.2 < float(gates[0]) < 0.9
    assert float(gates[2]) == pytest.approx(float(gates[0]), abs=0.05)


def test_many_graphs_need_no_weights():
    # In PyG's DataLoader graphs are whole, and have gates of their own.
    graphs = [Data(x=(i + 1) * x, edge_index=edge_index) for i, (
        x, edge_index) in enumerate(make_graph(8 + i, 14) for i in range(6))]
    model = AGCN(4, 8, 2, 3, beta=1e-4)
    expected = [model(graph.x, graph.edge_index) for graph in graphs]
    for batch_size in [1, 4]:
        outs = [model(batch.x, batch.edge_index, batch=batch.batch)
                for batch in DataLoader(graphs, batch_size)]
        assert torch.allclose(torch.cat(outs), torch.cat(expected), atol=1e-5)


@pytest.mark.extensions
@withPackage('torch_sparse')
@pytest.mark.parametrize('mode', MODES)
def test_inference_takes_the_gate_of_the_whole_graph(mode):
    x, edge_index = make_graph(60, 150)
    loader = NeighborLoader(Data(x=x, edge_index=edge_index), [-1],
                            batch_size=16)
    plain = AGCN(4, 8, 2, 3, **mode).eval()
    model = AGCN(4, 8, 2, 3, momentum=0.1, **mode)
    model(x.square(), edge_index)  # a running estimate of something else
    model.eval().load_state_dict(plain.state_dict(), strict=False)
    expected = plain(x, edge_index)
    assert torch.allclose(plain.inference(loader), expected, atol=1e-4)
    assert torch.allclose(model.inference(loader), expected, atol=1e-4)
    assert not torch.allclose(model(x, edge_index), expected, atol=1e-4)
