import copy

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.transforms as T
from torch_geometric.data import Batch, Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GCN, GCNConv, to_hetero
from torch_geometric.testing import withPackage
from torch_geometric.utils import to_undirected

from torch_agcn import AGCN, AGCNConv
from torch_agcn.datasets import Planetoid

OURS = dict(energy='relative', beta=1.0, residual=True)


def graph(num_nodes=12, num_edges=20):
    edge_index = to_undirected(torch.randint(num_nodes, (2, num_edges)))
    return torch.randn(num_nodes, 8), edge_index


@pytest.mark.parametrize('kwargs', [
    dict(), dict(out_channels=7), dict(dropout=0.5), dict(act=None),
    dict(act='elu', act_first=True, norm='BatchNorm'), dict(norm='PairNorm'),
    dict(norm='GraphNorm', out_channels=7), dict(jk='last'), dict(jk='cat'),
    dict(jk='max', out_channels=7), dict(jk='lstm', norm='LayerNorm')])
@pytest.mark.parametrize('num_layers', [1, 3])
def test_open_gates_are_gcn(kwargs, num_layers):
    x, edge_index = graph()
    weight = torch.rand(edge_index.size(1)) + 0.5
    gcn = GCN(8, 16, num_layers, **kwargs)
    model = AGCN(8, 16, num_layers, beta=1e9, **kwargs)
    model.load_state_dict(gcn.state_dict())
    assert list(model.state_dict()) == list(gcn.state_dict())
    for mode in [True, False]:
        torch.manual_seed(0)
        expected = gcn.train(mode)(x, edge_index, edge_weight=weight)
        torch.manual_seed(0)
        out = model.train(mode)(x, edge_index, edge_weight=weight)
        assert torch.allclose(out, expected, atol=1e-5)


def test_repr_and_arguments():
    model = AGCN(8, 16, num_layers=3, out_channels=7, energy='relative',
                 beta=0.2, residual=True, num_hops=2, cached=True,
                 recompute=True)
    assert str(model) == 'AGCN(8, 7, num_layers=3)'
    assert len(model.convs) == 3
    for conv in model.convs:
        assert isinstance(conv, AGCNConv)
        assert (conv.beta, conv.num_hops, conv.cached) == (0.2, 2, True)
        assert (conv.energy, conv.residual) == ('relative', True)
        assert conv.recompute


def test_linear_head_is_equation_10():
    x, edge_index = graph()
    model = AGCN(8, 16, num_layers=2, out_channels=7, head='linear', beta=1e-4)
    assert str(model) == 'AGCN(8, 7, num_layers=2)'
    assert sorted(model.state_dict()) == [
        'convs.0.bias', 'convs.0.lin.weight', 'lin.bias', 'lin.weight']
    conv, = model.convs
    expected = conv(x, edge_index).relu() @ model.lin.weight.t()
    assert torch.allclose(model(x, edge_index), expected, atol=1e-6)
    # Glorot's bound:
    assert model.lin.weight.abs().max() <= (6 / (16 + 7))**0.5
    assert model.lin.bias.abs().max() == 0


@pytest.mark.parametrize('head', ['conv', 'linear'])
@pytest.mark.parametrize('kwargs', [dict(beta=1e-4), OURS])
def test_batch_reaches_the_layers(head, kwargs):
    graphs = [Data(x=3.0**i * x, edge_index=edge_index)
              for i, (x, edge_index) in enumerate([graph(), graph(5, 6)])]
    batch = Batch.from_data_list(graphs)
    model = AGCN(8, 16, 3, 7, norm='GraphNorm', head=head, **kwargs)
    out = model(batch.x, batch.edge_index, batch=batch.batch)
    one_by_one = torch.cat([model(g.x, g.edge_index) for g in graphs])
    assert torch.allclose(out, one_by_one, atol=1e-5)
    assert not torch.allclose(model(batch.x, batch.edge_index), out, atol=1e-3)


def test_trimming():
    # Three nodes, then four more, then five more, each hop feeding the last:
    x = torch.randn(12, 8)
    edge_index = torch.tensor([[3, 4, 5, 6, 7, 8, 9, 10, 11],
                               [0, 1, 2, 0, 3, 4, 5, 6, 3]])
    gcn = GCN(8, 16, 2, 7)
    model = AGCN(8, 16, 2, 7, beta=1e9)
    model.load_state_dict(gcn.state_dict())
    sampled = dict(num_sampled_nodes_per_hop=[3, 4, 5],
                   num_sampled_edges_per_hop=[4, 5])
    for kwargs in [dict(), dict(batch=torch.zeros(12, dtype=torch.long))]:
        out = model(x, edge_index, **sampled, **kwargs)
        assert out.size(0) < 12
        assert torch.allclose(out, gcn(x, edge_index, **sampled), atol=1e-6)


def test_to_hetero_where_gcn_works():
    x, edge_index = graph()
    one = {('a', 'to', 'a'): edge_index}
    two = {**one, ('a', 'from', 'a'): graph()[1]}
    for build in [lambda: AGCN(8, 16, 2, 7, **OURS), Net]:
        base = build()
        model = to_hetero(base, (['a'], list(one)), debug=False)
        for ours, theirs in zip(model.parameters(), base.parameters()):
            ours.data.copy_(theirs)
        assert torch.allclose(model({'a': x}, one)['a'], base(x, edge_index),
                              atol=1e-6)
        # Two types of edges are two layers, whose outputs are summed:
        model = to_hetero(base, (['a'], list(two)), debug=False)
        out = model({'a': x}, two)['a']
        swapped = {key: two[other] for key, other in zip(two, reversed(two))}
        assert not torch.allclose(model({'a': x}, swapped)['a'], out,
                                  atol=1e-3)


@pytest.mark.parametrize('kwargs', [dict(beta=1e-3), OURS])
def test_to_hetero_between_types(kwargs):
    x_dict = {'a': torch.randn(12, 8), 'b': torch.randn(5, 3)}
    edge_index_dict = {
        ('a', 'to', 'a'): graph()[1],
        ('a', 'to', 'b'): torch.stack([torch.randint(12, (20, )),
                                       torch.randint(5, (20, ))]),
        ('b', 'to', 'a'): torch.stack([torch.randint(5, (20, )),
                                       torch.randint(12, (20, ))]),
    }
    metadata = list(x_dict), list(edge_index_dict)

    def layer(conv, x_dict, kind):
        outs = [conv['__'.join(key)]((x_dict[key[0]], x_dict[kind]),
                                     edge_index)
                for key, edge_index in edge_index_dict.items()
                if key[-1] == kind]
        return sum(outs)

    for base in [AGCN((-1, -1), 16, 2, 7, **kwargs),
                 Net(lambda i, o: AGCNConv(i, o, **kwargs), (-1, -1), 7,
                     (16, 16))]:
        model = to_hetero(base, metadata, debug=False)
        with torch.no_grad():
            model(x_dict, edge_index_dict)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        out = model(x_dict, edge_index_dict)
        loss = sum(value.square().mean() for value in out.values())
        loss.backward()
        assert all(p.grad is not None for p in model.parameters())
        optimizer.step()
        out = model(x_dict, edge_index_dict)
        assert sum(value.square().mean() for value in out.values()) < loss
        if isinstance(base, AGCN):
            conv1, conv2 = model.convs
        else:
            conv1, conv2 = model.conv1, model.conv2
        hidden = {kind: layer(conv1, x_dict, kind).relu() for kind in x_dict}
        for kind in x_dict:
            assert torch.allclose(out[kind], layer(conv2, hidden, kind),
                                  atol=1e-5)


class Net(torch.nn.Module):
    def __init__(self, conv=AGCNConv, in_channels=8, out_channels=7,
                 hidden_channels=16):
        super().__init__()
        self.conv1 = conv(in_channels, 16)
        self.conv2 = conv(hidden_channels, out_channels)

    def forward(self, x, edge_index):
        x = self.conv1(x, edge_index).relu()
        return self.conv2(x, edge_index)


def test_copy_and_compile():
    x, edge_index = graph()
    model = AGCN(8, 16, 3, 7, jk='cat', **OURS).eval()
    out = model(x, edge_index)
    assert torch.allclose(copy.deepcopy(model)(x, edge_index), out)
    compiled = torch.compile(model, fullgraph=True, backend='aot_eager')
    assert torch.allclose(compiled(x, edge_index), out, atol=1e-5)


@pytest.mark.parametrize('kwargs, message', [
    (dict(head='round'), "head='round'"),
    (dict(head='linear', num_layers=1), 'a whole number >= 2'),
    (dict(num_layers=0), 'a whole number >= 1'),
    (dict(in_channels=(8, 8), num_hops=2), 'bipartite'),
])
def test_bad_arguments(kwargs, message):
    good = dict(in_channels=8, hidden_channels=16, num_layers=2)
    with pytest.raises(ValueError, match='AGCN') as error:
        AGCN(**{**good, **kwargs})
    assert message in str(error.value)
    with pytest.raises(ValueError, match='one number'):
        AGCN((8, 8), 16, 2).eval().inference(None)


@pytest.mark.extensions
@withPackage('torch_sparse')
@pytest.mark.parametrize('kwargs', [
    dict(beta=1e-6), dict(beta=1e-6, num_hops=3, alpha=0.1), OURS,
    dict(num_hops=3, **OURS), dict(normalize=False, **OURS),
    dict(jk='last', norm='BatchNorm', learn_beta=True, **OURS),
    dict(head='linear', beta=1e-6)])
def test_inference(kwargs):
    x, edge_index = graph(50, 120)
    edge_index = torch.cat([edge_index, torch.tensor([[3], [3]])], dim=1)
    data = Data(x=x, edge_index=edge_index)
    loader = NeighborLoader(data, num_neighbors=[-1], batch_size=16)
    model = AGCN(8, 16, 3, 7, **kwargs).eval()
    expected = model(x, edge_index)
    for cache in [False, True]:
        assert torch.allclose(model.inference(loader, cache=cache), expected,
                              atol=1e-4)
    # Weights are those of the data, and nodes may come in any order:
    data.edge_weight = torch.rand(edge_index.size(1)) + 0.5
    loader = NeighborLoader(data, num_neighbors=[-1], batch_size=16,
                            shuffle=True)
    expected = model(x, edge_index, data.edge_weight)
    assert torch.allclose(model.inference(loader), expected, atol=1e-4)
    assert model.bfloat16().inference(loader).dtype == torch.bfloat16
    model.float().train()
    with pytest.raises(ValueError, match=r'model\.eval\(\)'):
        model.inference(loader)
    with pytest.raises(ValueError, match='NeighborLoader'):
        model.eval().inference([data])
    for bad in [dict(subgraph_type='induced'),
                dict(input_nodes=torch.zeros(50, dtype=torch.long))]:
        with pytest.raises(ValueError, match=r'AGCN\.inference'):
            model.inference(NeighborLoader(data, num_neighbors=[-1],
                                           batch_size=16, **bad))


def train_as_in_pyg_examples(conv, data, seed):
    # The stock loop for citation networks: two layers of 16, dropout, Adam.
    class Citation(Net):
        def forward(self, x, edge_index):
            x = F.dropout(x, p=0.5, training=self.training)
            x = self.conv1(x, edge_index).relu()
            x = F.dropout(x, p=0.5, training=self.training)
            return self.conv2(x, edge_index)

    torch.manual_seed(seed)
    model = Citation(conv, data.num_features, int(data.y.max()) + 1)
    optimizer = torch.optim.Adam([
        dict(params=model.conv1.parameters(), weight_decay=5e-4),
        dict(params=model.conv2.parameters(), weight_decay=0)], lr=0.01)
    best = test = 0.0
    for _ in range(60):
        model.train()
        optimizer.zero_grad()
        out = model(data.x, data.edge_index)
        F.cross_entropy(out[data.train_mask],
                        data.y[data.train_mask]).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            hit = model(data.x, data.edge_index).argmax(-1) == data.y
        val = float(hit[data.val_mask].float().mean())
        if val > best:
            best, test = val, float(hit[data.test_mask].float().mean())
    return test


def test_stock_training_loop(tmp_path):
    data = Planetoid(tmp_path, 'Cora', transform=T.NormalizeFeatures())[0]
    gcn, agcn = (train_as_in_pyg_examples(conv, data, seed=0)
                 for conv in [GCNConv, AGCNConv])
    assert gcn > 0.75
    assert abs(agcn - gcn) < 0.02


def test_arguments_in_the_order_of_pyg():
    args = 4, 8, 3, 2, 0.5, 'elu', True, None, 'LayerNorm', None, 'cat'
    model, other = AGCN(*args), GCN(*args)
    assert [*map(str, model.norms)] == [*map(str, other.norms)]
    assert type(model.act) is type(other.act) is torch.nn.ELU
    assert model.act_first and model.jk_mode == 'cat'
    assert model.lin.in_features == other.lin.in_features == 24
    assert AGCN(4, 8, 2, 3, 0.5, 'elu', head='linear').head == 'linear'
