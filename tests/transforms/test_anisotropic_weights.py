import copy

import numpy as np
import pytest
import torch
import torch_geometric.transforms as T
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.nn import GCNConv

from torch_agcn.datasets import Planetoid
from torch_agcn.functional import anisotropic_weights
from torch_agcn.transforms import AnisotropicWeights, KNNGraph


def graph(num_nodes=20, num_edges=160):
    r"""Two clusters, and some edges between them."""
    y = torch.arange(num_nodes) % 2
    edge_index = torch.randint(num_nodes, (2, num_edges))
    is_inside = torch.arange(num_edges) % 5 > 0
    edge_index[1, is_inside] = (edge_index[1] - edge_index[1] % 2
                                + edge_index[0] % 2)[is_inside] % num_nodes
    return Data(x=torch.randn(num_nodes, 5) + 6 * y[:, None] - 3, y=y,
                edge_index=edge_index)


def test_it_sets_weights():
    data = graph()
    out = AnisotropicWeights(steps=1)(copy.copy(data))
    weight = anisotropic_weights(data.x, data.edge_index, steps=1)
    assert torch.equal(out.edge_weight, weight)
    assert 'edge_weight' not in data  # PyG's transforms copy.
    # Given weights are multiplied:
    data.edge_weight = torch.rand(160)
    out = AnisotropicWeights()(data)
    assert torch.equal(out.edge_weight, anisotropic_weights(
        data.x, data.edge_index, data.edge_weight))
    assert GCNConv(5, 3)(out.x, out.edge_index, out.edge_weight).shape == (
        20, 3)
    assert str(AnisotropicWeights(threshold=0.5)) == (
        'AnisotropicWeights(steps=2, threshold=0.5)')


def test_a_threshold_drops_edges():
    data = graph()
    data.edge_attr, data.edge_weight = torch.randn(160, 3), torch.rand(160)
    data.name, data.edge_id = [str(i) for i in range(160)], np.arange(160)
    data.edge_label = torch.arange(160)
    weight = anisotropic_weights(data.x, data.edge_index, data.edge_weight)
    weight = weight / data.edge_weight
    threshold = float(weight.median()) - 1e-6
    keep = weight >= threshold
    out = AnisotropicWeights(threshold=threshold)(data)
    assert 0 < keep.sum() < 160
    for key in ['edge_attr', 'edge_weight']:
        assert torch.equal(out[key], data[key][keep])
    assert torch.equal(out.edge_index, data.edge_index[:, keep])
    assert torch.equal(out.x, data.x) and torch.equal(out.y, data.y)
    some = keep.nonzero().view(-1).tolist()
    assert out.name == [str(i) for i in some]
    assert out.edge_id.tolist() == some
    assert out.edge_label.numel() == 160  # edges to be found, not to be used


def test_batches_are_graphs_one_by_one():
    graphs = [graph(), graph(16, 99), graph(4, 0)]
    transform = AnisotropicWeights()
    batch = transform(Batch.from_data_list(graphs))
    assert torch.allclose(batch.edge_weight, torch.cat(
        [transform(data).edge_weight for data in graphs]), atol=1e-6)


def test_heterogeneous_graphs():
    data = HeteroData()
    one = graph()
    data['a'].x, data['b'].x = one.x, torch.randn(5, 3)
    data['a', 'to', 'a'].edge_index = one.edge_index
    data['a', 'to', 'b'].edge_index = torch.randint(5, (2, 9))
    out = AnisotropicWeights()(data)
    assert torch.equal(out['a', 'to', 'a'].edge_weight, anisotropic_weights(
        data['a'].x, data['a', 'to', 'a'].edge_index))
    assert 'edge_weight' not in out['a', 'to', 'b']


@pytest.mark.parametrize('layout', [torch.sparse_csr, torch.sparse_coo])
def test_it_composes_with_other_transforms(layout):
    data = graph()
    data.edge_index = torch.unique(data.edge_index, dim=1)
    weighed = T.Compose([T.NormalizeFeatures(), AnisotropicWeights(),
                         T.RandomNodeSplit(num_val=2, num_test=2)])(data)
    to_matrix = T.ToSparseTensor(attr='edge_weight', layout=layout)
    first = to_matrix(copy.copy(weighed)).adj_t
    other = T.Compose([T.NormalizeFeatures(), T.ToSparseTensor(layout=layout),
                       AnisotropicWeights()])(data).adj_t
    assert torch.allclose(first.to_dense(), other.to_dense(), atol=1e-6)
    pos = torch.randn(20, 3)
    points = Data(x=pos, pos=pos)
    assert T.Compose([KNNGraph(k=3), AnisotropicWeights()])(
        points).edge_weight.shape == (60, )


def test_as_pre_transform(tmp_path):
    data = Planetoid(tmp_path, 'Cora', pre_transform=AnisotropicWeights())[0]
    assert data.edge_weight.shape == (data.num_edges, )
    assert 0.9 < data.edge_weight.mean() < 1


def test_bad_input():
    for kwargs in [dict(steps=-1), dict(steps=1.5), dict(steps=True),
                   dict(threshold=2.0), dict(threshold='0')]:
        with pytest.raises(ValueError, match=next(iter(kwargs))):
            AnisotropicWeights(**kwargs)
    with pytest.raises(ValueError, match="type 'int'"):
        AnisotropicWeights().forward(3)
    with pytest.raises(ValueError, match='features and a graph'):
        AnisotropicWeights()(Data(x=torch.randn(3, 2)))
    data = T.ToSparseTensor(layout=torch.sparse_csr)(graph())
    with pytest.raises(ValueError, match='before'):
        AnisotropicWeights(threshold=0.1)(data)
