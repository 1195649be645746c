import pytest
import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader, NeighborLoader
from torch_geometric.testing import withPackage
from torch_geometric.utils import remove_self_loops, to_undirected

from torch_agcn import AGCN, AGCNConv
from torch_agcn.functional import anisotropic_gate, dirichlet_energy
from torch_agcn.loader import ImportanceWeights, MixedBatchSampler

pytestmark = pytest.mark.filterwarnings('ignore:Using .NeighborSampler.')
PATH = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
MODES = [
    dict(energy='total', beta=1e-5),
    dict(energy='total', beta=1e-4, residual=True, num_hops=3, alpha=0.2),
    dict(energy='relative', residual=True, beta=1.0),
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
def test_weights_of_a_whole_graph_change_nothing(mode, improved, way):
    x, edge_index = make_graph()
    x.requires_grad_()
    conv = way(AGCNConv, 4, 3, improved=improved, **mode)
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
    expected = (anisotropic_gate(2 * dirichlet_energy(x, edge_index),
                                 conv.beta) if conv.energy == 'total' else
                conv.gate(x, edge_index).view(-1)[0])
    assert torch.allclose(gate, expected, rtol=1e-4)


def test_a_part_by_hand(way):
    # The star of node 0 and two of its four neighbors, seen from node 0 only:
    # edges weigh 2, degrees are 4 and 1 and get a loop, and node 0 stands for
    # three nodes.
    x = torch.tensor([[1.0], [4.0], [2.0]])
    edge_index = torch.tensor([[1, 2], [0, 0]])
    args = dict(edge_weight=torch.tensor([2.0, 2.0]),
                degree=torch.tensor([4.0, 1.0, 1.0]),
                node_weight=torch.tensor([3.0, 0.0, 0.0]))
    conv = way(AGCNConv, 1, 1, beta=1e9, bias=False)
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
    conv = way(AGCNConv, 1, 1, energy='relative', beta=0.5, residual=False)
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
    model = AGCN(4, 8, 2, 3, energy='relative', beta=1.0, residual=True)
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
def test_gradients_of_weighted_energies(mode, way):
    x, edge_index = make_graph(6, 8)
    conv = way(AGCNConv, 4, 2, **{**mode, 'beta': 0.01}).double()
    weight = torch.rand(edge_index.size(1)).double() + 0.5
    args = dict(degree=count(edge_index, 6).double() + 1,
                node_weight=torch.tensor([2.0, 0, 1, 3, 0, 1]).double())
    assert torch.autograd.gradcheck(
        lambda x, w: conv(x, edge_index, w, **args),
        (x.double().requires_grad_(), weight.requires_grad_()))


@pytest.mark.parametrize('energy', ['total', 'relative'])
def test_degrees_and_weights_apart(energy, way):
    x, degree = torch.randn(3, 2), torch.tensor([3., 4., 5.])
    conv = way(AGCNConv, 2, 3, beta=0.1, energy=energy, residual=False)
    plain = conv(x, PATH)
    out = conv(x, PATH, degree=degree)
    assert not torch.allclose(out, plain)
    one = torch.zeros(3, dtype=torch.long)
    assert torch.allclose(conv(x, PATH, batch=one, degree=degree), out,
                          atol=1e-6)
    weight = torch.tensor([1., 0., 2.])
    assert not torch.allclose(conv.gate(x, PATH, node_weight=weight),
                              conv.gate(x, PATH))
    for sides in [(degree, degree), (None, degree), [degree]]:
        with pytest.raises(ValueError, match='one floating-point number'):
            conv(x, PATH, degree=sides)


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
def test_training():
    data = blocks()
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
