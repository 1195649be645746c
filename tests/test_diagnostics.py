import copy
import io
import math
import pickle
import sys
import threading
import weakref
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import (
    APPNP,
    GAE,
    GAT,
    GCN,
    GIN,
    GCN2Conv,
    GCNConv,
    GraphSAGE,
    HeteroConv,
    MessagePassing,
    SAGEConv,
)
from torch_geometric.testing import withPackage
from torch_geometric.typing import SparseTensor
from torch_geometric.utils import (
    to_torch_coo_tensor,
    to_torch_csr_tensor,
    to_undirected,
)

from torch_agcn import AGCN, AGCNConv
from torch_agcn.datasets import Planetoid
from torch_agcn.diagnostics import Record, SmoothnessRecorder, chance_edges
from torch_agcn.functional import (
    dirichlet_energy,
    mean_average_distance,
    relative_energy,
)
from torch_agcn.loader import ImportanceWeights

PATH = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
OURS = dict(energy='relative', beta=1.0, residual=True)


class Same(MessagePassing):
    r"""A layer that gives out what it gets."""

    def forward(self, x, edge_index, edge_weight=None):
        return x


def graph(num_nodes=12, num_edges=20):
    edge_index = to_undirected(torch.randint(num_nodes, (2, num_edges)))
    return torch.randn(num_nodes, 8), edge_index


def measures(record):
    return [record.dirichlet_energy, record.relative_energy,
            record.mean_average_distance]


def expected(x, *args):
    return pytest.approx([
        float(f(x.detach(), *args).mean())
        for f in (dirichlet_energy, relative_energy, mean_average_distance)],
        rel=1e-4, abs=1e-6)


def measure(x, *args, layer=None, **kwargs):
    recorder = SmoothnessRecorder(layer or Same())
    recorder.model(x, *args, **kwargs)
    before, after = recorder.records
    assert measures(before) == measures(after)
    return measures(after)


# Values ######################################################################


def test_by_hand():
    x = torch.tensor([[3., 0.], [0., 4.], [0., 0.]])
    energy, _, distance = measure(x, PATH)
    assert energy == pytest.approx(25 + 16)
    # A right angle, and a zero vector, which is at distance one from others:
    assert distance == pytest.approx(1)
    pair = torch.tensor([[0, 1], [1, 0]])
    x = torch.tensor([[1., 1.], [1., 0.]])
    energy, relative, distance = measure(x, pair)
    assert energy == pytest.approx(1)
    # With loops, P is the mean of both nodes: what it does not keep is lost.
    assert relative == pytest.approx(1)
    assert distance == pytest.approx(1 - 0.5**0.5)


@pytest.mark.parametrize('directed', [False, True])
@pytest.mark.parametrize('weighted', [False, True])
def test_functions_give_the_same(directed, weighted):
    for num_edges in [0, 10, 60]:
        edge_index = torch.randint(20, (2, num_edges))
        if not directed:
            edge_index = to_undirected(edge_index, num_nodes=20)
        weight = None
        if weighted:
            weight = torch.rand(edge_index.size(1))
            weight[::5] = 0
        x = torch.randn(20, 7)
        x[::4] = 0
        assert measure(x, edge_index, weight) == expected(x, edge_index,
                                                          weight)


@pytest.mark.parametrize('width', [1, 40, 3000])  # more than a block
def test_any_width_and_type(width):
    _, edge_index = graph(400, 900)
    x = torch.randn(400, width)
    assert measure(x, edge_index) == expected(x, edge_index)
    assert measure(x.double(), edge_index) == expected(x, edge_index)
    x = x.bfloat16()
    assert measure(x, edge_index) == expected(x.float(), edge_index)
    assert measure(x.to_sparse(), edge_index) == expected(x.float(),
                                                          edge_index)


@pytest.mark.parametrize('noise', [1e-2, 1e-3, 1e-4])
def test_nearly_constant_features(noise):
    _, edge_index = graph(50, 200)
    x = 1 + noise * torch.randn(50, 8)
    energy, _, distance = measure(x, edge_index)
    x = x.double()
    assert energy == pytest.approx(float(dirichlet_energy(x, edge_index)),
                                   rel=1e-6)
    assert distance == pytest.approx(
        float(mean_average_distance(x, edge_index)), rel=1e-5)
    # For the relative energy, constant is what P keeps:
    degree = torch.zeros(50).scatter_add_(
        0, edge_index[1], (edge_index[0] != edge_index[1]).float()) + 1
    x = degree.sqrt().view(-1, 1) * x
    assert measure(x.float(), edge_index)[1] == pytest.approx(
        float(relative_energy(x, edge_index)), rel=1e-2)


def test_constant_and_huge_features():
    _, edge_index = graph()
    energy, _, distance = measure(torch.full((12, 3), 0.1), edge_index)
    assert energy == 0
    assert distance == pytest.approx(0, abs=1e-12)
    assert measure(torch.zeros(12, 3), edge_index) == [0, 0, 0]
    x = torch.randn(12, 3)
    energy, relative, distance = measure(1e30 * x, edge_index)
    assert [energy / 1e60, relative, distance] == expected(x, edge_index)


def test_all_forms_of_a_graph():
    x, edge_index = graph()
    edge_index = edge_index[:, torch.randperm(edge_index.size(1))]
    size, weight = (12, 12), torch.rand(edge_index.size(1))
    want = expected(x, edge_index, weight)
    adj = to_torch_csr_tensor(edge_index.flip(0), weight, size=size)
    assert measure(x, edge_index, weight) == want
    assert measure(x, edge_index, edge_weight=weight) == want
    assert measure(x=x, edge_index=edge_index, edge_weight=weight) == want
    assert measure(x, EdgeIndex(edge_index, sparse_size=size), weight) == want
    assert measure(x, adj) == want
    assert measure(x, to_torch_coo_tensor(edge_index.flip(0), weight,
                                          size=size)) == want
    turned = Same(flow='target_to_source')
    assert measure(x, edge_index.flip(0), weight, layer=turned) == want

    class OtherNames(MessagePassing):
        def forward(self, h, adj_t):
            return h

    assert measure(x, adj, layer=OtherNames()) == want

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.act = torch.nn.Identity()

        def forward(self, data):
            return self.act(data.x)

    for data in [Data(x=x, edge_index=edge_index, edge_weight=weight),
                 Data(x=x, adj_t=adj)]:
        recorder = SmoothnessRecorder(Model(), modules=['act'])
        recorder.model(data)
        assert measures(recorder.records[1]) == want


@pytest.mark.extensions
@withPackage('torch_sparse')
def test_sparse_tensor():
    x, edge_index = graph()
    weight = torch.rand(edge_index.size(1))
    adj = SparseTensor.from_edge_index(edge_index, weight, (12, 12)).t()
    assert measure(x, adj) == expected(x, edge_index, weight)
    # All pairs of nodes, three times each:
    node = torch.arange(12)
    edge_index = torch.cartesian_prod(node, node).t().repeat(1, 3)
    adj = SparseTensor.from_edge_index(edge_index, None, (12, 12)).t()
    assert adj.nnz() == 3 * 144
    assert measure(x, adj) == expected(x, edge_index)
    # Values that NumPy changes, on a wide input that is looked up:
    x = torch.randn(12, 40)
    adj = adj.set_value(torch.ones(adj.nnz()), layout='coo')
    recorder = SmoothnessRecorder(Same())
    for _ in range(2):
        recorder.model(x, adj)
        recorder.step()
        row, col, weight = adj.coo()
        assert measures(recorder.records[-2]) == expected(
            x, torch.stack([col, row]), weight)
        weight.numpy()[:100] = 0


@pytest.mark.extensions
@withPackage('torch_sparse')
@pytest.mark.filterwarnings('ignore:Using .NeighborSampler.')
def test_sampled_neighbors():
    x, edge_index = graph(40, 200)
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    data = Data(x=x.repeat(1, 5), edge_index=edge_index.repeat(1, 2))
    loader = NeighborLoader(data, [3, 3], batch_size=8)
    weights = ImportanceWeights(loader)
    model = AGCN(40, 8, 2, momentum=0.1, **OURS)
    recorder = SmoothnessRecorder(model)
    for batch in loader:
        args = batch.x, batch.edge_index
        kwargs = weights(batch)
        model.train()(*args, **kwargs)
        before, first, _ = recorder.records[-3:]
        assert measures(before) == expected(*args, kwargs['edge_weight'])
        conv = model.convs[0]
        assert 0 < first.gate == float(conv.gate(*args, **kwargs)) < 1
        recorder.step()
    assert len(recorder.records) == 3 * len(loader)
    assert recorder.skipped == {}


class Deep(torch.nn.Module):
    r"""Layers whose arguments come in another order, and one called twice."""

    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(8, 16)
        self.conv = GCN2Conv(16, alpha=0.1)
        self.last = APPNP(K=3, alpha=0.1)

    def forward(self, x, edge_index):
        x = x_0 = self.lin(x)
        for _ in range(2):
            x = self.conv(x, x_0, edge_index).relu()
        return self.last(x, edge_index=edge_index)


@pytest.mark.parametrize('model', [
    GCN(8, 16, 3), GIN(8, 16, 3), GraphSAGE(8, 16, 3, jk='cat'),
    GAT(8, 16, 3, heads=4, dropout=0.5), AGCN(8, 16, 3, **OURS), Deep(),
    GCNConv(8, 16)], ids=lambda model: type(model).__name__)
@pytest.mark.parametrize('training', [True, False])
def test_models_of_pyg(model, training):
    x, edge_index = graph()
    seen = []

    def keep(module, args, out):
        seen.extend([args[0]] * (not seen) + [out])

    handles = [m.register_forward_hook(keep) for m in model.modules()
               if isinstance(m, MessagePassing)]
    with SmoothnessRecorder(model.train(training)) as recorder:
        model(x, edge_index)
    for handle in handles:
        handle.remove()
    assert len(seen) == 2 if isinstance(model, GCNConv) else 4
    assert [r.layer for r in recorder.records] == list(range(len(seen)))
    assert {r.mode for r in recorder.records} == {
        'train' if training else 'eval'}
    for record, out in zip(recorder.records, seen):
        assert measures(record) == expected(out, edge_index)
    names = [r.name for r in recorder.records]
    if isinstance(model, Deep):
        assert names == ['input', 'conv', 'conv', 'last']
    elif isinstance(model, GCNConv):
        assert names == ['input', 'GCNConv']
    else:
        assert names == ['input', 'convs.0', 'convs.1', 'convs.2']


def test_weights_are_those_of_the_layer():
    x, edge_index = graph()
    weight = torch.rand(edge_index.size(1), requires_grad=True)
    model = GCN(8, 16, 2)
    recorder = SmoothnessRecorder(model)
    out = model(x, edge_index, edge_weight=weight)
    assert measures(recorder.records[2]) == expected(out, edge_index,
                                                     weight.detach())


def test_attention_weights_and_many_dimensions():
    x, edge_index = graph()

    class Stack(Same):
        def forward(self, x, edge_index):
            return torch.stack([x, 2 * x]), edge_index

    recorder = SmoothnessRecorder(Stack())
    recorder.model(x, edge_index)
    energy, relative, distance = measures(recorder.records[0])
    # The mean of both:
    assert measures(recorder.records[1]) == pytest.approx(
        [2.5 * energy, relative, distance])

    class Heads(Same):  # as in attention, nodes come first
        def __init__(self):
            super().__init__(node_dim=0)

        def forward(self, x, edge_index):
            return x.view(12, 2, 4)

    recorder = SmoothnessRecorder(Heads())
    recorder.model(x, edge_index)
    assert measures(recorder.records[1]) == expected(x, edge_index)


# Gates #######################################################################


def test_gates():
    x, edge_index = graph()
    model = AGCN(8, 16, 2, beta=1e-3)
    recorder = SmoothnessRecorder(model)
    model(x, edge_index)
    before, first, second = recorder.records
    assert before.gate is None and before.gates == ()
    gate = 1 - torch.exp(-1e-3 * dirichlet_energy(x, edge_index)**2)
    assert first.gate == pytest.approx(float(gate))
    h = model.convs[0](x, edge_index).relu()
    assert second.gate == float(model.convs[1].gate(h, edge_index))
    assert second.gates == (second.gate, )


def test_gates_of_many_hops_and_graphs():
    data = Batch.from_data_list([
        Data(x=x, edge_index=edge_index)
        for x, edge_index in [graph(), graph(5, 6)]])
    conv = AGCNConv(8, 4, num_hops=3, **OURS)
    recorder = SmoothnessRecorder(conv)
    out = conv(data.x, data.edge_index, batch=data.batch)
    record = recorder.records[1]
    gates = conv.gate(data.x, data.edge_index, batch=data.batch)
    assert gates.size() == (3, 2)
    assert record.gates == pytest.approx(gates.mean(1).tolist())
    assert record.gate == pytest.approx(float(gates.mean()))
    assert measures(record) == expected(out, data.edge_index, None,
                                        data.batch)


def test_learnt_gate_of_the_same_input():
    x, edge_index = graph()
    conv = AGCNConv(8, 4, beta=1e-4, learn_beta=True)
    recorder = SmoothnessRecorder(conv)
    for _ in range(2):
        conv(x, edge_index)
        recorder.step()
        conv.beta = 1e-3
    gates = [r.gate for r in recorder.records if r.layer == 1]
    assert gates[0] < gates[1] == float(conv.gate(x, edge_index))


@pytest.mark.parametrize('energy', ['total', 'relative'])
def test_gates_of_a_running_estimate(energy):
    x, (_, edge_index) = torch.randn(12, 40), graph()
    beta = dict(total=1e-9, relative=1.0)[energy]
    conv = AGCNConv(40, 4, energy=energy, beta=beta, momentum=0.5)
    recorder = SmoothnessRecorder(conv)
    for scale in range(1, 5):
        noise = torch.randn(12, 40)
        conv.train()(scale * x + noise, edge_index)
        trained = float(conv.gate(x, edge_index))
        conv.eval()(x, edge_index)  # the same each time
        gates = [r.gate for r in recorder.records[-4:] if r.layer == 1]
        assert gates == [trained, float(conv.gate(x, edge_index))]
        recorder.step()
    gates = [r.gate for r in recorder.records if r.layer == 1]
    assert len(set(gates)) == 4 and all(0 < gate < 1 for gate in gates)


# Passes and epochs ###########################################################


def test_epochs_and_modes():
    x, edge_index = graph()
    model = GCN(8, 16, 1)
    recorder = SmoothnessRecorder(model, every=3)
    for epoch in range(7):
        assert recorder.epoch == epoch
        for _ in range(2):  # of two batches, the first one
            model.train()(x, edge_index)
            x = 2 * x
        model.eval()(x, edge_index)
        recorder.step()
    layers = [r for r in recorder.records if r.layer == 0]
    assert [(r.epoch, r.mode) for r in layers] == [
        (e, mode) for e in (0, 3, 6) for mode in ('train', 'eval')]
    energies = [r.dirichlet_energy for r in layers]
    # Two batches come before each evaluation, and four between that and the
    # next epoch that counts.
    assert [b / a for a, b in pairwise(energies)] == pytest.approx(
        [4**2, 4**4, 4**2, 4**4, 4**2])
    assert str(recorder) == 'SmoothnessRecorder(GCN, 1 layers, every=3, ' \
        'epoch=7)'


def test_layers_called_without_the_model():
    x, edge_index = graph()
    model = GAE(GCN(8, 16, 2))
    recorder = SmoothnessRecorder(model)
    for _ in range(2):
        model.train()
        model.encode(x, edge_index)
        model.encode(x, edge_index)
        model.eval()
        out = model.encode(x, edge_index)
        recorder.step()
    assert [r.layer for r in recorder.records] == 4 * [0, 1, 2]
    assert [r.mode for r in recorder.records] == 2 * (3 * ['train'] +
                                                      3 * ['eval'])
    assert measures(recorder.records[-1]) == expected(out, edge_index)


def test_batch_of_the_model_reaches_layers_that_take_none():
    graphs = [Data(x=x, edge_index=edge_index)
              for x, edge_index in [graph(), graph(5, 6), graph(30, 50)]]
    data = Batch.from_data_list(graphs)
    model = GCN(8, 16, 2, norm='GraphNorm')
    recorder = SmoothnessRecorder(model)
    out = model(data.x, data.edge_index, batch=data.batch)
    want = expected(out, data.edge_index, None, data.batch)
    assert measures(recorder.records[2]) == want
    recorder.step()
    alone = []
    for part in graphs:
        model(part.x, part.edge_index)
        alone.append(measures(recorder.records[-3]))
        recorder.step()
    mean = [sum(column) / 3 for column in zip(*alone)]
    assert measures(recorder.records[0]) == pytest.approx(mean)


def test_a_graph_or_features_that_change():
    x, edge_index = graph()
    conv = Same()
    recorder = SmoothnessRecorder(conv)

    def step():
        conv(x, edge_index)
        recorder.step()
        assert measures(recorder.records[-1]) == expected(x, edge_index)

    step()
    x.mul_(2)
    step()
    edge_index[:, 0] = 0
    step()
    for _ in range(10):  # at the same place in memory, most likely
        edge_index = torch.randint(12, (2, 20))
        step()
    for _ in range(10):
        x = torch.randn(12, 8)
        step()


@pytest.mark.parametrize('width', [4, 40])  # measured anew, and looked up
def test_changes_that_no_version_counter_sees(width):
    x, (_, edge_index) = torch.randn(12, width), graph()
    weight, batch = torch.rand(edge_index.size(1)), torch.zeros(12).long()
    model = GCN(width, 8, 2)
    recorder = SmoothnessRecorder(model)

    def step():
        for mode in [True, False, False]:
            with torch.no_grad():
                model.train(mode)(x, edge_index, weight, batch=batch)
        recorder.step()
        train, out = recorder.records[-6], recorder.records[-3]
        assert train.name == out.name == 'input'
        assert measures(train) == measures(out) == expected(
            x.double(), edge_index, weight, batch)

    step()
    step()
    for change in [lambda: x.numpy().__imul__(3),
                   lambda: x.numpy()[3].__setitem__(2, 9.0),
                   lambda: x.numpy()[:, :2].__setitem__(
                       slice(None), x.numpy()[:, 1::-1].copy()),
                   lambda: x.numpy().__setitem__(
                       slice(None), x.numpy()[::-1].copy()),
                   lambda: x.data.mul_(1 + 1e-4),
                   lambda: edge_index.numpy()[:, 0].__setitem__(0, 5),
                   lambda: weight.numpy()[1:2].__imul__(2),
                   lambda: x.numpy().__imul__(1e30),
                   # The sums of features are infinite from here on:
                   lambda: x.numpy().__setitem__(slice(None), 3e37),
                   lambda: x.numpy()[0].__imul__(0.5)]:
        change()
        step()


@pytest.mark.parametrize('dtype', [torch.float, torch.double])
@pytest.mark.parametrize('offset', [1e8, 1e20, 1e30, math.inf, math.nan])
def test_changes_beside_a_large_column(dtype, offset):
    # On a ring, a constant column has no energy.
    edge_index = torch.stack([torch.arange(12), torch.arange(12).roll(1)])
    x = torch.randn(12, 40, dtype=dtype)
    x[:, 0] = offset
    conv = Same()
    recorder = SmoothnessRecorder(conv)
    for _ in range(3):
        conv(x, edge_index)
        recorder.step()
        before, after = recorder.records[-2:]
        assert measures(before) == pytest.approx(measures(after), nan_ok=True)
        x.numpy()[:, 5] *= 3


def test_an_input_of_another_kind():
    x, (_, edge_index) = torch.randn(12, 40), graph()
    adj = to_torch_csr_tensor(edge_index.flip(0), size=(12, 12))
    conv = Same()
    recorder = SmoothnessRecorder(conv)
    forms = [edge_index, edge_index.int(), adj, adj.to_sparse_coo(),
             EdgeIndex(edge_index, sparse_size=(12, 12))]
    for form in [*forms, *forms]:
        for features in [x, x.double(), x.to_sparse(), x.to_sparse_csr(),
                         x.to_sparse_csc(), x.bfloat16()]:
            conv(features, form)
            recorder.step()
            before, after = recorder.records[-2:]
            assert measures(before) == measures(after)
            assert measures(after) == expected(
                features.to_dense().float(), edge_index)
    assert recorder.skipped == {}


@pytest.mark.parametrize('form', ['edge_index', 'coo', 'csr'])
def test_more_edges_than_pairs_of_nodes(form):
    # All pairs with self-loops, three times each:
    node = torch.arange(5)
    edge_index = torch.cartesian_prod(node, node).t().repeat(1, 3)
    edge_index = edge_index[:, edge_index[1].argsort(stable=True)]
    ones = torch.ones(edge_index.size(1))
    given = dict(
        edge_index=edge_index,
        coo=torch.sparse_coo_tensor(edge_index.flip(0), ones, (5, 5)),
        csr=torch.sparse_csr_tensor(15 * torch.arange(6), edge_index[0], ones,
                                    (5, 5)))[form]
    x = torch.randn(5, 4)
    for model in [AGCN(4, 8, 2, cached=True), AGCN(4, 8, 2, **OURS),
                  GraphSAGE(4, 8, 2)]:
        recorder = SmoothnessRecorder(model)
        model(x, given)
        assert len(recorder.records) == 3 and recorder.skipped == {}
        found = recorder.records[0]
        # Ten pairs, in both directions, three times:
        pairs = torch.cdist(x, x).square().sum() * 3 / 2
        assert found.dirichlet_energy == pytest.approx(float(pairs), rel=1e-4)
        assert measures(found) == expected(x, given)


# Nothing else changes ########################################################


def train(model, every=None, epochs=4):
    torch.manual_seed(1)
    x, edge_index = graph()
    y = torch.arange(12) % 4
    recorder = every and SmoothnessRecorder(model, every)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(epochs):
        model.train()
        optimizer.zero_grad()
        F.cross_entropy(model(x, edge_index), y).backward()
        optimizer.step()
        with torch.inference_mode():
            out = model.eval()(x, edge_index)
        if recorder:
            recorder.step()
    return recorder, [out, torch.get_rng_state(), *model.parameters(),
                      *model.buffers(),
                      *(p.grad for p in model.parameters())]


@pytest.mark.parametrize('make', [
    lambda: GCN(8, 16, 2, 4, dropout=0.5),
    lambda: GAT(8, 16, 2, 4, dropout=0.5),
    lambda: AGCN(8, 16, 2, 4, dropout=0.5, cached=True, num_hops=2, **OURS),
    lambda: AGCN(8, 16, 2, 4, dropout=0.5, learn_beta=True, norm='BatchNorm'),
    lambda: AGCN(8, 16, 2, 4, dropout=0.5, momentum=0.1),
])
def test_training_is_the_same(make):
    model = make()
    watched = copy.deepcopy(model)
    _, plain = train(model)
    recorder, results = train(watched, every=1)
    assert len(recorder.records) == 4 * 2 * 3
    assert all(map(torch.equal, plain, results))
    assert list(watched.state_dict()) == list(model.state_dict())
    recorder.detach()
    assert not any(m._forward_hooks or m._forward_pre_hooks
                   for m in watched.modules())


def test_no_features_are_kept():
    x, edge_index = graph()
    model = GCN(8, 16, 2)
    recorder = SmoothnessRecorder(model)
    out = []
    model.convs[0].register_forward_hook(
        lambda *args: out.append(weakref.ref(args[2])))
    model(x, edge_index)
    assert len(recorder.records) == 3 and out[0]() is None


def test_attach_and_detach():
    x, edge_index = graph()
    model = GCN(8, 16, 1)
    with SmoothnessRecorder(model) as recorder:
        model(x, edge_index)
    model(x, edge_index)
    recorder.step()
    model(x, edge_index)
    assert len(recorder.records) == 2
    assert recorder.attach() is recorder.attach()
    model(x, edge_index)
    assert len(recorder.records) == 4


def test_a_pass_that_fails():
    x, edge_index = graph()
    model = GCN(8, 16, 1)
    recorder = SmoothnessRecorder(model)
    with pytest.raises(RuntimeError):
        model(x[:, :3], edge_index)
    model(x, edge_index)
    assert [r.layer for r in recorder.records] == [0, 1]


def test_copies_are_other_models():
    x, edge_index = graph()
    model = GCN(8, 16, 1)
    recorder = SmoothnessRecorder(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in [copy.deepcopy(model), pickle.loads(pickle.dumps(model)),
                  torch.load(file, weights_only=False)]:
        assert torch.equal(other(x, edge_index), model(x, edge_index))
    assert len(recorder.records) == 2


def test_replicas_in_threads():
    x, edge_index = graph()
    model = GCN(8, 16, 3)
    recorder = SmoothnessRecorder(torch.nn.DataParallel(model))
    meet = threading.Barrier(2)

    def wait(*_):
        meet.wait()

    model.convs[1].register_forward_pre_hook(wait)
    # As replicas do, with the hooks of the original:
    threads = [threading.Thread(target=model, args=(x * scale, edge_index))
               for scale in (1, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [r.layer for r in recorder.records] == [0, 1, 2, 3]


def test_compiled_models():
    torch._dynamo.reset()
    x, edge_index = graph()
    model = GCN(8, 16, 2)
    recorder = SmoothnessRecorder(model)
    compiled = torch.compile(model, fullgraph=True, backend='eager')
    torch._dynamo.utils.counters.clear()
    for _ in range(3):
        out = compiled(x, edge_index)
        recorder.step()
    assert recorder.records == []
    assert torch._dynamo.utils.counters['stats']['unique_graphs'] == 1
    with pytest.raises(ValueError, match=r'torch\.compile'):
        recorder.plot()
    assert torch.allclose(model(x, edge_index), out, atol=1e-6)
    assert measures(recorder.records[2]) == expected(out, edge_index)
    recorder = SmoothnessRecorder(compiled)
    assert recorder.model is model


# What cannot be measured #####################################################


def test_bipartite_layers_are_left_out():
    x, edge_index = graph()
    model = HeteroConv({
        ('a', 'to', 'a'): SAGEConv(8, 4), ('a', 'to', 'b'): SAGEConv(8, 4)})
    recorder = SmoothnessRecorder(model)
    with pytest.warns(UserWarning, match='nodes of two types') as warned:
        for _ in range(2):
            out = model({'a': x, 'b': x[:5]}, {
                ('a', 'to', 'a'): edge_index,
                ('a', 'to', 'b'): edge_index[:, edge_index[1] < 5]})
            recorder.step()
    assert len(warned) == 1
    (name, ) = recorder.skipped
    assert "'" + name + "'" in str(warned[0].message)
    assert [r.layer for r in recorder.records] == [0, 1, 0, 1]
    assert measures(recorder.records[1]) == expected(out['a'], edge_index)


@pytest.mark.parametrize('kwargs,match', [
    (dict(edge_weight=-torch.ones(4)), 'abs'),
    (dict(edge_index=None), "not called with an 'edge_index'")])
def test_layers_without_a_graph_to_measure_on(kwargs, match):
    conv = Same()
    recorder = SmoothnessRecorder(conv)
    x = torch.randn(3, 2)
    with pytest.warns(UserWarning, match=match):
        out = conv(x, **{'edge_index': PATH, **kwargs})
    assert out is x and recorder.records == []


def test_other_outputs_are_left_out():
    class Pool(Same):
        def forward(self, x, edge_index):
            return x[:2]

    class Count(Same):
        def forward(self, x, edge_index):
            return x.long()

    for layer, match, layers in [(Pool(), '3 nodes to 2', []),
                                 (Count(), 'floating-point', [0])]:
        recorder = SmoothnessRecorder(layer)
        with pytest.warns(UserWarning, match=match):
            layer(torch.randn(3, 2), PATH)
        assert [r.layer for r in recorder.records] == layers


def test_nothing_ends_a_forward_pass(monkeypatch):
    x, edge_index = graph()
    conv = AGCNConv(8, 4)
    recorder = SmoothnessRecorder(conv)

    def gate(*args, **kwargs):
        raise RuntimeError('out of memory')

    monkeypatch.setattr(conv, 'gate', gate)
    with pytest.warns(UserWarning, match="'AGCNConv': out of memory"):
        out = conv(x, edge_index)
    assert out.size() == (12, 4) and 'AGCNConv' in recorder.skipped
    assert [r.name for r in recorder.records] == ['input']


# Arguments ###################################################################


class Normed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(8, 16)
        self.conv = GCNConv(16, 16)
        self.norm = torch.nn.LayerNorm(16)

    def forward(self, x, edge_index):
        return self.norm(self.conv(self.lin(x), edge_index))


def test_other_modules():
    x, edge_index = graph()
    model = Normed()
    recorder = SmoothnessRecorder(model, modules=['norm', 'lin'])
    out = model(x, edge_index)
    before, lin, norm = recorder.records
    assert [before.name, lin.name, norm.name] == ['input', 'lin', 'norm']
    assert measures(before) == expected(x, edge_index)
    assert measures(lin) == expected(model.lin(x), edge_index)
    assert measures(norm) == expected(out, edge_index)


def test_refuses():
    model = Normed()
    for every in [0, -1, 2.5, None]:
        with pytest.raises(ValueError, match='whole number >= 1'):
            SmoothnessRecorder(model, every)
    for modules in [['conv', 'conv2'], 'conv2', []]:
        with pytest.raises(ValueError, match=r"one of \['lin', 'conv'"):
            SmoothnessRecorder(model, modules=modules)
    with pytest.raises(ValueError, match=r"e\.g\. modules=\['0', '1'\]"):
        SmoothnessRecorder(torch.nn.Sequential(torch.nn.Linear(2, 2),
                                               torch.nn.ReLU()))
    recorder = SmoothnessRecorder(model)
    with pytest.raises(ValueError, match='call the model in that mode'):
        recorder.plot()
    model.eval()(*graph())
    with pytest.raises(ValueError, match=r"'train' \(but of \['eval'\]\)"):
        recorder.plot(mode='train')


# Results #####################################################################


def test_dataframe():
    pandas = pytest.importorskip('pandas')
    recorder, _ = train(AGCN(8, 16, 2, 4, num_hops=2, **OURS), every=2)
    frame = recorder.to_dataframe()
    assert list(frame.columns) == list(Record._fields)
    assert len(frame) == 2 * 2 * 3
    for record, row in zip(recorder.records, frame.itertuples(index=False)):
        assert measures(row) == measures(record)
        assert row.gates == record.gates
    assert frame.gate.dtype == float
    assert frame.gate.isna().tolist() == 4 * [True, False, False]
    table = frame[frame['mode'] == 'eval'].pivot(
        index='epoch', columns='layer', values='relative_energy')
    assert table.index.tolist() == [0, 2]
    assert isinstance(table, pandas.DataFrame)
    # No gates, and no records:
    recorder = SmoothnessRecorder(GCN(8, 16, 2))
    assert len(recorder.to_dataframe()) == 0
    recorder.model(*graph())
    assert recorder.to_dataframe().gate.isna().all()


def test_plot():
    matplotlib = pytest.importorskip('matplotlib')
    matplotlib.use('Agg')
    from matplotlib import pyplot as plt
    recorder, _ = train(GCN(8, 16, 7, 4), every=1, epochs=9)
    figure = recorder.plot()
    axes = figure.axes
    assert [ax.get_ylabel() for ax in axes[::2]] == [
        'Dirichlet energy', 'relative energy', 'mean average distance']
    layers, epochs = axes[2], axes[3]
    assert [line.get_label() for line in layers.lines] == [
        'epoch 0', 'epoch 3', 'epoch 5', 'epoch 8']
    assert [line.get_label() for line in epochs.lines] == [
        '0: input', '2: convs.1', '4: convs.3', '5: convs.4', '7: convs.6']
    shown = [r for r in recorder.records if r.mode == 'eval']
    assert layers.lines[1].get_xydata().tolist() == [
        [r.layer, r.relative_energy] for r in shown if r.epoch == 3]
    assert epochs.lines[2].get_xydata().tolist() == [
        [r.epoch, r.relative_energy] for r in shown if r.layer == 4]
    figure = recorder.plot(mode='train')
    assert figure.axes[0].lines[0].get_ydata().tolist() == [
        r.dirichlet_energy for r in recorder.records
        if r.mode == 'train' and r.epoch == 0]
    plt.close('all')


def test_plot_of_gates():
    matplotlib = pytest.importorskip('matplotlib')
    matplotlib.use('Agg')
    from matplotlib import pyplot as plt
    recorder, _ = train(AGCN(8, 16, 2, 4, num_hops=2, **OURS), every=3)
    axes = recorder.plot().axes[-2:]
    assert axes[0].get_ylabel() == 'gate'
    _, first, second = (r for r in recorder.records
                        if r.mode == 'eval' and r.epoch == 3)
    assert axes[0].lines[1].get_xydata().tolist() == [
        [x, y] for x, y in zip([0.5, 1, 1.5, 2], first.gates + second.gates)]
    assert axes[1].lines[1].get_ydata()[-1] == second.gate
    plt.close('all')


@pytest.mark.parametrize('package,call', [('pandas', 'to_dataframe'),
                                          ('matplotlib', 'plot')])
def test_names_what_is_missing(package, call, monkeypatch):
    recorder = SmoothnessRecorder(GCN(8, 16, 1))
    recorder.model(*graph())
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=f'pip install {package}'):
        getattr(recorder, call)()


# Chance edges ################################################################


def two_cliques():
    x = torch.eye(2).repeat_interleave(3, dim=0)
    edge_index = torch.tensor([[0, 0, 1, 2, 3, 3, 4], [1, 2, 2, 3, 4, 5, 5]])
    return x, edge_index


def test_chance_edges_by_hand():
    # One of seven edges joins the cliques, and nine of fifteen pairs do:
    found = chance_edges(*two_cliques())
    assert found.share == pytest.approx((1 / 7) / (9 / 15))
    assert found.similarity.tolist() == pytest.approx([1, 1, 1, -1, 1, 1, 1])
    assert sorted(found.of_random.tolist()) == pytest.approx([-1] * 9
                                                             + [1] * 6)
    # Edges count by their weight:
    weight = torch.tensor([1., 1, 1, 3, 1, 1, 1])
    assert chance_edges(*two_cliques(), weight).share == pytest.approx(
        (3 / 9) / (9 / 15))
    assert len(chance_edges(*two_cliques(), steps=0).shares) == 1
    assert chance_edges(torch.randn(4, 2), torch.empty(
        2, 0, dtype=torch.long)).share == 0


@pytest.mark.parametrize('share', [0.0, 0.25, 0.5])
def test_chance_edges_of_cora(share, tmp_path):
    data = Planetoid(tmp_path, 'Cora')[0]
    own = data.edge_index
    count = round(own.size(1) * share / (1 - share))
    more = torch.randint(data.num_nodes, (2, count))
    found = chance_edges(data.x, torch.cat([own, more], dim=1))
    # Some of the edges that it has join unrelated papers, too:
    assert share - 0.02 < found.share < share + 0.08
    assert all(a >= b - 0.01 for a, b in pairwise(found.shares))


def test_plot_of_chance_edges():
    plt = pytest.importorskip('matplotlib.pyplot')
    figure = chance_edges(*two_cliques()).plot()
    labels = [text.get_text() for text in figure.axes[0].get_legend().texts]
    assert labels == ['by chance: 24% of the edges', 'all edges']
    heights = [patch.get_height() for patch in figure.axes[0].patches
               if hasattr(patch, 'get_height')]
    assert sum(heights) == pytest.approx(0.238, abs=1e-3)
    plt.close(figure)
    for empty in [torch.empty(2, 0).long(), torch.zeros(2, 1).long()]:
        with pytest.raises(ValueError, match='no edges'):
            chance_edges(torch.randn(1, 2), empty).plot()


@pytest.mark.parametrize('kwargs, message', [
    (dict(x=None), 'NoneType'), (dict(x=torch.ones(6)), 'shape'),
    (dict(edge_index=[[0], [1]]), 'list'), (dict(steps=-1), 'steps=-1'),
    (dict(edge_weight=torch.ones(3)), '7 edges')])
def test_chance_edges_refuses(kwargs, message):
    x, edge_index = two_cliques()
    with pytest.raises(ValueError, match='chance_edges') as error:
        chance_edges(**{**dict(x=x, edge_index=edge_index), **kwargs})
    assert message in str(error.value)
