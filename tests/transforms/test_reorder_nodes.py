import pytest
import torch
import torch_geometric.transforms as T
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.nn import GCNConv
from torch_geometric.utils import grid, to_undirected

from torch_agcn.transforms import AnisotropicWeights, ReorderNodes

pytest.importorskip('scipy')


def shuffled_grid(height=8, width=8):
    r"""A grid whose nodes have random numbers."""
    edge_index, pos = grid(height, width)
    perm = torch.randperm(height * width)
    place = perm.argsort()
    data = Data(x=torch.randn(height * width, 3), pos=pos[perm],
                edge_index=place[edge_index], y=torch.arange(height * width))
    data.edge_attr = torch.randn(data.num_edges, 2)
    data.edge_weight = torch.rand(data.num_edges)
    data.train_mask = torch.rand(height * width) < 0.5
    data.edge_label_index = torch.randint(height * width, (2, 5))
    data.name = 'grid'
    return data


def bandwidth(edge_index):
    return int((edge_index[0] - edge_index[1]).abs().max())


def test_neighbors_are_close():
    data = shuffled_grid()
    out = ReorderNodes()(data)
    assert bandwidth(out.edge_index) < 30 < bandwidth(data.edge_index)
    assert torch.equal(out.n_id.sort().values, torch.arange(64))
    assert torch.equal(out.y, out.n_id) and 'n_id' not in data
    assert str(ReorderNodes()) == 'ReorderNodes()'


def test_directions_do_not_matter():
    data = shuffled_grid()
    source, target = data.edge_index
    one_way = Data(edge_index=data.edge_index[:, source < target],
                   num_nodes=64)
    assert bandwidth(ReorderNodes()(one_way).edge_index) < 30


def test_everything_moves_along():
    data = shuffled_grid()
    out = ReorderNodes()(data)
    for key in ['x', 'pos', 'train_mask']:
        assert torch.equal(out[key], data[key][out.n_id])
    there = {(int(s), int(t)): (a, w) for s, t, a, w in zip(
        *data.edge_index, data.edge_attr, data.edge_weight)}
    for s, t, a, w in zip(*out.n_id[out.edge_index], out.edge_attr,
                          out.edge_weight):
        assert torch.equal(a, there[int(s), int(t)][0])
        assert w == there[int(s), int(t)][1]
    assert torch.equal(out.n_id[out.edge_label_index], data.edge_label_index)
    assert out.name == 'grid'
    assert bool((out.edge_index[1].diff() >= 0).all())


def test_outputs_are_the_same_in_the_former_order():
    data, conv = shuffled_grid(), GCNConv(3, 4)
    expected = conv(data.x, data.edge_index, data.edge_weight)
    out = ReorderNodes()(data)
    found = conv(out.x, out.edge_index, out.edge_weight)
    assert torch.allclose(found[out.n_id.argsort()], expected, atol=1e-6)
    # Once more, and the way back leads to the first order:
    again = ReorderNodes()(out)
    found = conv(again.x, again.edge_index, again.edge_weight)
    assert torch.allclose(found[again.n_id.argsort()], expected, atol=1e-6)


@pytest.mark.parametrize('layout', [torch.sparse_coo, torch.sparse_csr])
def test_matrices(layout):
    data = shuffled_grid()
    matrix = T.ToSparseTensor(attr='edge_weight', layout=layout,
                              remove_edge_index=True)(data)
    dense = matrix.adj_t.to_dense()
    out = ReorderNodes()(matrix)
    assert out.adj_t.layout == layout
    assert torch.equal(out.adj_t.to_dense(), dense[out.n_id][:, out.n_id])
    assert torch.equal(out.x, data.x[out.n_id])


@pytest.mark.extensions
def test_sparse_tensors():
    matrix = T.ToSparseTensor(attr='edge_weight')(shuffled_grid())
    dense = matrix.adj_t.to_dense()
    out = ReorderNodes()(matrix)
    assert torch.equal(out.adj_t.to_dense(), dense[out.n_id][:, out.n_id])


def test_graphs_of_a_batch_stay_where_they_are():
    graphs = [shuffled_grid(3, 3), shuffled_grid(5, 2), shuffled_grid(2, 2)]
    batch = Batch.from_data_list(graphs)
    out = ReorderNodes()(batch)
    assert torch.equal(out.batch, batch.batch)
    assert torch.equal(out.ptr, batch.ptr)
    for one, first in zip(out.to_data_list(), graphs):
        assert torch.equal(one.x.sort(0).values, first.x.sort(0).values)
        assert one.num_edges == first.num_edges
        assert int(one.edge_index.max()) < one.num_nodes


def test_strange_graphs():
    # Directed, with loops, edges twice, and a node without:
    edge_index = torch.tensor([[0, 0, 3, 3, 3], [0, 3, 1, 1, 3]])
    data = Data(x=torch.arange(5.0).view(-1, 1), edge_index=edge_index,
                edge_attr=torch.arange(5))
    out = ReorderNodes()(data)
    assert torch.equal(out.x.view(-1).long(), out.n_id)
    assert torch.equal(out.edge_attr.sort().values, data.edge_attr)
    assert torch.equal(out.n_id[out.edge_index],
                       edge_index[:, out.edge_attr])
    empty = Data(num_nodes=0, edge_index=edge_index[:, :0])
    assert ReorderNodes()(empty).n_id.numel() == 0
    alone = Data(num_nodes=3, edge_index=edge_index[:, :0])
    assert sorted(ReorderNodes()(alone).n_id.tolist()) == [0, 1, 2]


def test_it_composes():
    data = shuffled_grid()
    del data.edge_weight
    data.x = data.pos
    both = T.Compose([ReorderNodes(), AnisotropicWeights()])(data)
    other = T.Compose([AnisotropicWeights(), ReorderNodes()])(data)
    assert torch.equal(both.edge_index, other.edge_index)
    assert torch.allclose(both.edge_weight, other.edge_weight)
    assert to_undirected(both.edge_index).shape == both.edge_index.shape


def test_bad_input():
    for data in [HeteroData(), None, Data(x=torch.ones(2, 1)), [Data()]]:
        with pytest.raises(ValueError, match=r'ReorderNodes.*pass a'):
            ReorderNodes().forward(data)
