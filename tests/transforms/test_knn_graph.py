import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch_geometric
import torch_geometric.transforms as T
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch_geometric.data import Batch, Data
from torch_geometric.testing import withPackage
from torch_geometric.utils import is_undirected, to_undirected

from torch_agcn.transforms import KNNGraph
from torch_agcn.transforms import knn_graph as module
from torch_agcn.transforms.knn_graph import knn_graph


@pytest.fixture(autouse=True, scope='module')
def one_thread():
    # On tensors this small, threads wait for each other most of the time.
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def reference(x, k, batch=None, loop=False):
    # All pairs in double precision, sorted by distance and then by index.
    x = x.double()
    dist = torch.stack([(x - y).square().sum(1) for y in x])
    dist.fill_diagonal_(-1.)
    if batch is not None:
        dist[batch.unsqueeze(1) != batch.unsqueeze(0)] = math.inf
    dist, index = dist.sort(dim=1, stable=True)
    index[dist.isinf()] = -1
    index = index[:, :k] if loop else index[:, 1:k + 1]
    row, rank = (index >= 0).nonzero(as_tuple=True)
    return torch.stack([index[row, rank], row])


def pyg_knn(x, y, ptr_x, ptr_y, k, cosine, num_workers):
    # What pyg-lib computes, so that PyG's own functions can run without it.
    assert x is y and ptr_x is ptr_y and not cosine
    batch = None
    if ptr_x is not None:
        batch = torch.repeat_interleave(ptr_x.diff())
    return reference(x, k, batch, loop=True).flip([0])


@pytest.fixture
def pyg_lib(monkeypatch):
    monkeypatch.setattr(torch_geometric.typing, 'WITH_KNN', True)
    monkeypatch.setattr(torch.ops, 'pyg', SimpleNamespace(knn=pyg_knn),
                        raising=False)


def test_knn_graph_values():
    pos = torch.tensor([[0., 0.], [1., 0.], [3., 0.], [0., 1.]])
    data = Data(pos=pos, edge_attr=torch.ones(3))

    out = KNNGraph(k=2)(data)
    assert out.edge_index.tolist() == [[1, 3, 0, 3, 1, 0, 0, 1],
                                       [0, 0, 1, 1, 2, 2, 3, 3]]
    assert out.edge_attr is None

    out = KNNGraph(k=2, loop=True, flow='target_to_source')(data)
    assert out.edge_index.tolist() == [[0, 0, 1, 1, 2, 2, 3, 3],
                                       [0, 1, 1, 0, 2, 1, 3, 0]]

    out = KNNGraph(k=1, force_undirected=True)(data)
    assert out.edge_index.tolist() == [[0, 0, 1, 1, 2, 3],
                                       [1, 3, 0, 2, 1, 0]]

    data = Data(x=pos, pos=torch.zeros(4, 3))
    out = KNNGraph(k=2, attr='x')(data)
    assert out.edge_index.equal(knn_graph(pos, k=2))

    assert str(KNNGraph(k=8)) == 'KNNGraph(k=8)'


@pytest.mark.parametrize('dtype', [torch.float, torch.double])
def test_knn_graph_equals_scikit_learn(dtype):
    neighbors = pytest.importorskip('sklearn.neighbors')
    datasets = pytest.importorskip('sklearn.datasets')
    x = torch.from_numpy(datasets.load_digits().data).to(dtype)
    k, num_nodes = 8, x.size(0)

    edge_index = knn_graph(x, k)
    # The values are integers, so ties are exact and the order is defined:
    dist = x.double().square().sum(1)
    dist = dist.unsqueeze(1) + dist - 2 * x.double() @ x.double().t()
    dist.fill_diagonal_(-1)
    expected, index = dist.sort(dim=1, stable=True)
    assert edge_index[0].view(-1, k).equal(index[:, 1:k + 1])
    assert edge_index[1].equal(torch.arange(num_nodes).repeat_interleave(k))

    search = neighbors.NearestNeighbors(n_neighbors=k + 1, algorithm='brute')
    value, index = search.fit(x.numpy()).kneighbors(x.numpy())
    value = torch.from_numpy(value).to(torch.double)
    torch.testing.assert_close(value.square(), expected[:, :k + 1].clamp(0),
                               rtol=1e-6, atol=0.)
    # It breaks ties in another way, so compare where the set is defined:
    is_set = expected[:, k] < expected[:, k + 1]
    ours = edge_index[0].view(-1, k)[is_set].sort().values
    theirs = torch.from_numpy(index)[is_set]
    theirs = theirs[theirs != is_set.nonzero()].view(-1, k).sort().values
    assert int(is_set.sum()) > 1700
    assert ours.equal(theirs)


@pytest.mark.parametrize('loop', [False, True])
@pytest.mark.parametrize('flow', ['source_to_target', 'target_to_source'])
@pytest.mark.parametrize('force_undirected', [False, True])
@pytest.mark.parametrize('k', [1, 3, 50])
def test_knn_graph_equals_pyg(pyg_lib, monkeypatch, loop, flow,
                              force_undirected, k):
    args = (k, loop, force_undirected, flow)
    x = torch.rand(30, 3, generator=torch.Generator().manual_seed(1))
    for batch in [None, torch.arange(30) // 11]:
        data = Data(pos=x, batch=batch, edge_attr=torch.ones(2))
        expected = T.KNNGraph(*args)(data.clone())
        with monkeypatch.context() as m:
            m.setattr(torch_geometric.typing, 'WITH_KNN', False)
            out = KNNGraph(*args)(data.clone())
        assert out.edge_index.equal(expected.edge_index)
        assert out.to_dict().keys() == expected.to_dict().keys()
        # And with pyg-lib:
        assert KNNGraph(*args)(data).edge_index.equal(expected.edge_index)


def test_knn_graph_uses_pyg_lib(pyg_lib, monkeypatch):
    num_calls = 0

    def counting(*args):
        nonlocal num_calls
        num_calls += 1
        return pyg_knn(*args)

    monkeypatch.setattr(torch.ops.pyg, 'knn', counting)
    knn_graph(torch.rand(10, 3), k=2)
    assert num_calls == 1
    # Where a tree on the CPU has no advantage, or no implementation:
    knn_graph(torch.rand(10, 784), k=2)
    knn_graph(torch.rand(10, 3), k=2, cosine=True)
    assert num_calls == 1

    # A node may be missing among its duplicates:
    def first(x, y, ptr_x, ptr_y, k, cosine, num_workers):
        row = torch.arange(5).repeat_interleave(k)
        return torch.stack([row, torch.arange(k).repeat(5)])

    monkeypatch.setattr(torch.ops.pyg, 'knn', first)
    edge_index = knn_graph(torch.zeros(5, 2), k=2)
    assert edge_index.tolist() == [[1, 2, 0, 2, 0, 1, 0, 1, 0, 1],
                                   [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]]


def grid(num_nodes, num_channels, num_values):
    generator = torch.Generator().manual_seed(12345)
    size = (num_nodes, num_channels)
    return torch.randint(num_values, size, generator=generator).float()


def normal(num_nodes, num_channels):
    generator = torch.Generator().manual_seed(12345)
    return torch.randn(num_nodes, num_channels, generator=generator)


hard_cases = {
    'ties': grid(200, 4, 3),
    'all equal': torch.ones(100, 3),
    'duplicates': normal(10, 8).repeat(15, 1),
    'duplicates of one': torch.cat([torch.zeros(60, 5), normal(60, 5)]),
    'far from the origin': 100 + 1e-3 * normal(150, 6),
    'far clusters': torch.cat([1e-3 * normal(75, 3) + 1e3,
                               1e-3 * normal(75, 3).flip(0) - 1e3]),
    'far clusters, double': torch.cat(
        [1e-6 * normal(75, 3).double() + 1e6,
         1e-6 * normal(75, 3).double().flip(0) - 1e6]),
    'nearly equal': 1 + 1e-15 * grid(150, 3, 9).double(),
    # More near-duplicates than are looked at before, ahead of the duplicates:
    'nearly equal before equal': torch.cat(
        [1 + 2.**-52 * torch.ones(90, 2).double(),
         torch.ones(60, 2).double(), -torch.ones(30, 2).double()]),
    'outlier': torch.cat([normal(100, 4), torch.full((1, 4), 1e25)]),
    'half': normal(100, 4).half(),
    'bfloat16': normal(100, 4).bfloat16(),
    'line': torch.arange(100.).flip(0).unsqueeze(1),
    'many channels': normal(50, 1000),
    'very many channels': normal(8, 100000),
    'no channels': torch.ones(20, 0),
    'one node': torch.ones(1, 3),
    'not contiguous': normal(6, 150).t(),
}


@pytest.mark.parametrize('name', hard_cases)
@pytest.mark.parametrize('k', [1, 6, 40])
@pytest.mark.parametrize('loop', [False, True])
def test_knn_graph_is_exact(name, k, loop):
    x = hard_cases[name]
    edge_index = knn_graph(x, k, loop=loop)
    assert edge_index.equal(reference(x, k, loop=loop))

    generator = torch.Generator().manual_seed(1)
    unsorted = torch.randint(4, (x.size(0), ), generator=generator)
    for batch in [unsorted, unsorted.sort().values]:
        edge_index = knn_graph(x, k, batch, loop=loop)
        assert edge_index.equal(reference(x, k, batch, loop))


@pytest.mark.parametrize('scale', [
    1e-44, 1e-30, 1e30, 1e38, (torch.double, 1e-310), (torch.double, 1e307)])
def test_knn_graph_at_any_scale(scale):
    dtype, scale = scale if isinstance(scale, tuple) else (torch.float, scale)
    x = grid(100, 3, 10).sub(5)
    expected = reference(x, 5)
    # The number times the scale is exact only for the least of them:
    x = x.to(dtype) * scale if scale < 1e-40 else x.to(dtype) * (
        2.**math.floor(math.log2(scale) - 3))
    assert bool(x.isfinite().all()) and bool((x != 0).any())
    assert knn_graph(x, 5).equal(expected)


def test_knn_graph_excludes_only_itself():
    x = torch.zeros(50, 3)
    row, col = knn_graph(x, k=4)
    assert row.view(50, 4)[10].tolist() == [0, 1, 2, 3]
    assert row.view(50, 4)[1].tolist() == [0, 2, 3, 4]
    assert (row != col).all() and col.bincount().tolist() == [4] * 50

    row, col = knn_graph(x, k=4, loop=True)
    assert row.view(50, 4)[10].tolist() == [10, 0, 1, 2]
    assert int((row == col).sum()) == 50


def test_knn_graph_batch():
    xs = [normal(size, 5) for size in (1, 40, 3, 7, 200, 2)]
    batch = Batch.from_data_list([Data(pos=x) for x in xs])
    for loop in [False, True]:
        transform = KNNGraph(k=6, loop=loop)
        out = transform(batch.clone())
        expected = [transform(Data(pos=x)).edge_index for x in xs]
        expected = [e + int(p) for e, p in zip(expected, batch.ptr)]
        assert out.edge_index.equal(torch.cat(expected, dim=1))

    # Nodes of a batch in any order:
    perm = torch.randperm(batch.num_nodes,
                          generator=torch.Generator().manual_seed(1))
    edge_index = knn_graph(batch.pos[perm], 6, batch.batch[perm])
    expected = knn_graph(batch.pos, 6, batch.batch)
    assert to_undirected(perm[edge_index]).equal(to_undirected(expected))
    for flow in ['source_to_target', 'target_to_source']:
        edge_index = knn_graph(batch.pos[perm], 6, batch.batch[perm],
                               flow=flow)
        node = edge_index[1 if flow == 'source_to_target' else 0]
        assert (node.diff() >= 0).all()

    # Numbers of graphs that are missing do no harm:
    assert knn_graph(batch.pos, 6, 3 * batch.batch + 1).equal(expected)


def test_knn_graph_few_nodes():
    pos = torch.tensor([[0.], [1.], [3.]])
    assert knn_graph(pos, k=10).tolist() == [[1, 2, 0, 2, 1, 0],
                                             [0, 0, 1, 1, 2, 2]]
    assert knn_graph(pos[:1], k=2).size() == (2, 0)
    assert knn_graph(pos[:1], k=2, loop=True).tolist() == [[0], [0]]
    for x in [torch.empty(0, 3), torch.empty(0), torch.empty(0, 0)]:
        edge_index = knn_graph(x, k=2)
        assert edge_index.size() == (2, 0) and edge_index.dtype == torch.long
    # A vector has one channel, and a node may have more dimensions:
    assert knn_graph(pos.view(-1), k=1).tolist() == [[1, 0, 1], [0, 1, 2]]
    x = normal(40, 12)
    assert knn_graph(x, k=np.int64(3)).equal(knn_graph(x, k=3))
    assert knn_graph(x.view(40, 3, 4), k=3).equal(knn_graph(x, k=3))


def test_knn_graph_cosine():
    x = normal(200, 6) * torch.logspace(-20, 15, 200).unsqueeze(1)
    expected = reference(x.double() / x.double().norm(dim=1, keepdim=True), 5)
    assert knn_graph(x, 5, cosine=True).equal(expected)

    # Directions, and a zero vector that has distance 1 to all of them:
    x = torch.tensor([[1., 0.], [5., 1.], [0., 0.], [-1., 1.], [0., 0.]])
    index = knn_graph(x, 4, cosine=True)[0].view(5, 4)
    assert index.tolist() == [[1, 2, 4, 3], [0, 2, 4, 3], [4, 0, 1, 3],
                              [2, 4, 1, 0], [2, 0, 1, 3]]

    # Multiples of a vector are ties, for themselves and for others:
    x = torch.nn.functional.normalize(normal(3, 5)).repeat(20, 1)
    expected = reference(x, 30)
    x = x * torch.arange(1., 61.).unsqueeze(1).double()
    assert knn_graph(x, 30, cosine=True).equal(expected)


@pytest.mark.parametrize('name', hard_cases)
def test_knn_graph_blocks(monkeypatch, name):
    x = hard_cases[name]
    batch = torch.arange(x.size(0)) // 60
    expected = knn_graph(x, 6), knn_graph(x, 6, batch)
    monkeypatch.setattr(module, 'BLOCK_SIZE', 1000)
    monkeypatch.setattr(module, 'PART_SIZE', 50)
    assert knn_graph(x, 6).equal(expected[0])
    assert knn_graph(x, 6, batch).equal(expected[1])
    monkeypatch.setattr(module, 'BLOCK_SIZE', 1)
    monkeypatch.setattr(module, 'NUM_SPARE', 1)
    assert knn_graph(x, 6).equal(expected[0])


class LargestTensor(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, tuple | list) else [out]:
            if isinstance(value, Tensor):
                self.numel = max(self.numel, value.numel())
        return out


@pytest.mark.parametrize('name', ['normal', 'ties', 'equal'])
def test_knn_graph_memory(monkeypatch, name):
    x = {'normal': normal(400, 8), 'ties': grid(400, 8, 2),
         'equal': torch.ones(400, 8)}[name]
    monkeypatch.setattr(module, 'BLOCK_SIZE', 2**14)
    monkeypatch.setattr(module, 'PART_SIZE', 2**14)
    with LargestTensor() as largest:
        knn_graph(x, 6)
    assert largest.numel < 2**15 < 400 * 400


def test_knn_graph_matmul_precision():
    # Whatever is allowed to be fast elsewhere, this stays exact.
    x = 100 + normal(300, 64)
    expected = knn_graph(x, 6)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        assert knn_graph(x, 6).equal(expected)
    torch.set_float32_matmul_precision('medium')
    try:
        assert module._matmul_dtype() == torch.double
        assert knn_graph(x, 6).equal(expected)
    finally:
        torch.set_float32_matmul_precision('highest')
    assert module._matmul_dtype() == torch.float
    x.requires_grad_()
    assert knn_graph(x, 6).equal(expected)


def test_knn_graph_errors():
    pos = torch.rand(5, 2)
    for k in [0, -1, 2.5, None]:
        with pytest.raises(ValueError, match=f"'KNNGraph'.*got k={k}"):
            KNNGraph(k=k)
        with pytest.raises(ValueError, match=f"'knn_graph'.*got k={k}"):
            knn_graph(pos, k=k)
    with pytest.raises(ValueError, match="'KNNGraph' got flow='sideways'"):
        KNNGraph(flow='sideways')
    with pytest.raises(ValueError, match="attr='y'; pass 'pos' or 'x'"):
        KNNGraph(attr='y')
    with pytest.raises(ValueError, match=r"needs 'data.pos', which is"):
        KNNGraph()(Data(x=pos))
    with pytest.raises(ValueError, match=r"needs 'data.x', which is"):
        KNNGraph(attr='x')(Data(pos=pos))
    with pytest.raises(ValueError, match=r"torch.int64.*'x.float\(\)'"):
        knn_graph(torch.ones(5, 2, dtype=torch.long), k=1)
    with pytest.raises(ValueError, match=r"sparse.*'x.to_dense\(\)'"):
        knn_graph(pos.to_sparse(), k=1)
    with pytest.raises(ValueError, match=r"'x' of shape \[\] "):
        knn_graph(torch.tensor(1.), k=1)
    with pytest.raises(ValueError, match=r"'batch' of shape \[3\].* for 5"):
        knn_graph(pos, k=1, batch=torch.zeros(3, dtype=torch.long))
    for value in [math.nan, math.inf, -math.inf]:
        x = pos.clone()
        x[2, 1] = value
        with pytest.raises(ValueError, match='got 1 NaN or infinite'):
            knn_graph(x, k=1)


def test_knn_graph_composes():
    data = Data(x=normal(60, 5).abs(), y=grid(60, 1, 3).view(-1).long())
    transform = T.Compose([
        T.NormalizeFeatures(),
        KNNGraph(k=4, attr='x', force_undirected=True),
        T.RandomNodeSplit(num_val=10, num_test=20),
        T.AddSelfLoops(),
    ])
    out = transform(data.clone())
    expected = to_undirected(knn_graph(data.x / data.x.sum(1, True), 4))
    loops = torch.arange(60).repeat(2, 1)
    assert out.edge_index.equal(torch.cat([expected, loops], dim=1))
    assert is_undirected(out.edge_index)
    assert int(out.val_mask.sum()) == 10 and int(out.test_mask.sum()) == 20
    assert out.validate()

    # The other way around, it replaces the edges and nothing else:
    transform = T.Compose([
        T.RandomNodeSplit(num_val=10, num_test=20),
        KNNGraph(k=4, attr='x'),
        T.AddSelfLoops(),
        KNNGraph(k=3, attr='x'),
        T.NormalizeFeatures(),
    ])
    out = transform(data.clone())
    assert out.edge_index.equal(knn_graph(data.x, 3))
    assert int(out.train_mask.sum()) == 30


def test_knn_graph_to_sparse_tensor():
    data = Data(x=normal(60, 5))
    expected = knn_graph(data.x, 4)
    transform = T.Compose([
        KNNGraph(k=4, attr='x'),
        T.ToSparseTensor(layout=torch.sparse_csr),
    ])
    adj = transform(data.clone()).adj_t.to_dense()
    assert adj.nonzero().t().equal(
        expected.flip([0])[:, (expected[1] * 60 + expected[0]).argsort()])
    assert 'edge_index' not in transform(data.clone())
    # And before it: the neighbors do not depend on the edges there were.
    out = transform(data.clone())
    assert KNNGraph(k=4, attr='x')(out).edge_index.equal(expected)


@withPackage('torch_sparse')
def test_knn_graph_to_torch_sparse():
    data = Data(x=normal(60, 5))
    edge_index = knn_graph(data.x, 4)
    data = T.Compose([KNNGraph(k=4, attr='x'), T.ToSparseTensor()])(data)
    row, col, _ = data.adj_t.coo()
    perm = (edge_index[1] * 60 + edge_index[0]).argsort()
    assert torch.stack([col, row]).equal(edge_index[:, perm])


def test_knn_graph_datapipe():
    from torch_geometric.data.datapipes import DatasetAdapter

    pipe = DatasetAdapter([Data(pos=normal(20, 2))])
    data = next(iter(pipe.agcn_knn_graph(k=3)))
    assert data.edge_index.equal(knn_graph(normal(20, 2), k=3))
