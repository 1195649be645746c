import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

from benchmarks.baselines import gcn
from benchmarks.baselines.gcn_svd import factorize, low_rank, run


def graph(sparse=False, N=40, seed=0):
    rng = np.random.default_rng(seed)
    A = np.triu(rng.random((N, N)) < 0.15, 1)
    A[:, -1] = False  # one node without an edge
    y = torch.arange(N) % 3
    x = torch.from_numpy(rng.random((N, 12)) < 0.2).float()
    x[torch.arange(N), y] = 1
    edge_index = torch.from_numpy(np.array((A | A.T).nonzero()))
    data = Data(x=x, y=y, num_nodes=N, edge_index=edge_index,
                train_mask=torch.arange(N) < 15,
                val_mask=torch.arange(N) >= 25)
    data.x = x.to_sparse().coalesce() if sparse else x
    return data


def dense(data):
    A = np.zeros((data.num_nodes, data.num_nodes))
    A[tuple(data.edge_index.numpy())] = 1
    return A


def approximation(A, rank):
    U, S, V = np.linalg.svd(A)
    return U[:, :rank] * S[:rank] @ V[:rank]


@pytest.mark.parametrize('rank', [1, 5, 20])
def test_factors_are_the_svds(rank):
    A = dense(graph())
    U, S, V = factorize(sp.csr_matrix(A), rank)
    assert np.allclose(U * S @ V, approximation(A, rank), atol=1e-8)
    again = factorize(sp.csr_matrix(A), rank)
    assert all(np.array_equal(a, b) for a, b in zip((U, S, V), again))


@pytest.mark.parametrize('rank', [1, 5, 20])
def test_operator_is_the_dense_one(rank):
    data = graph()
    A = approximation(dense(data), rank) + np.eye(40)
    degree = A.sum(axis=1)
    assert degree.min() > 0
    P = torch.from_numpy(A / np.sqrt(np.outer(degree, degree))).float()

    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    x.requires_grad_()
    out, expected = low_rank(data, rank=rank)(None, x), P @ x
    assert torch.allclose(out, expected, atol=1e-4)
    weight = torch.randn(40, 4, generator=torch.Generator().manual_seed(1))
    grads = [torch.autograd.grad((weight * z).sum(), x)[0]
             for z in (out, expected)]
    assert torch.allclose(*grads, atol=1e-4)


def test_degrees_of_zero_or_less(monkeypatch):
    # Rows of the approximation sum to -2, -1 and 3.
    factors = (np.array([[-2.0], [-1.0], [3.0]]), np.ones(1),
               np.array([[0.0, 0.0, 1.0]]))
    monkeypatch.setattr('benchmarks.baselines.gcn_svd.factorize',
                        lambda A, rank: factors)
    data = Data(edge_index=torch.tensor([[0, 2], [2, 0]]), num_nodes=3)
    out = low_rank(data, rank=1)(None, torch.eye(3))
    assert torch.allclose(out, torch.diag(torch.tensor([0.0, 0.0, 1.0])))


def test_full_rank_is_the_gcn():
    data = graph()
    torch.manual_seed(0)
    model = gcn.Net(12, 8, 3, p=0.5).eval()
    expected = model(data.x, data.edge_index)
    for conv in model.modules():
        if isinstance(conv, GCNConv):
            conv.propagate = low_rank(data, rank=100)
    out = model(data.x, data.edge_index)
    assert torch.allclose(out, expected, atol=1e-4)


@pytest.mark.parametrize('sparse', [True, False])
def test_run(sparse):
    out = run(graph(sparse), 3, rank=5, epochs=5)
    assert out.logits.shape == (40, 3)
    assert out.logits.isfinite().all()
    assert out.extra['cut_off'] == 0
    again = run(graph(sparse), 3, rank=5, epochs=5)
    assert again.logits.equal(out.logits)
    other = run(graph(sparse), 3, rank=6, epochs=5)
    assert not other.logits.equal(out.logits)
    run(graph(sparse), 3, epochs=1)  # of a rank above the number of nodes
