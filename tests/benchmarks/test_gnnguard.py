import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data

from benchmarks.baselines.gnnguard import Guard, Net, run
from benchmarks.training import adjacency, to_scipy


def graph(sparse=False, N=40, seed=0):
    rng = np.random.default_rng(seed)
    A = np.triu(rng.random((N, N)) < 0.15, 1)
    A[:, -1] = False  # one node without an edge
    y = torch.arange(N) % 3
    x = torch.from_numpy(rng.random((N, 12)) * (rng.random((N, 12)) < 0.2))
    x[torch.arange(3, N), y[3:]] = 1
    x[:3] = 0  # nodes without a word
    edge_index = torch.from_numpy(np.array((A | A.T).nonzero()))
    data = Data(x=x.float(), y=y, num_nodes=N, edge_index=edge_index,
                train_mask=torch.arange(N) < 15,
                val_mask=torch.arange(N) >= 25)
    data.x = data.x.to_sparse().coalesce() if sparse else data.x
    return data


def reference(A, x, threshold):
    """The weights entry by entry, and which edges are left."""
    N = len(A)
    S = np.zeros((N, N))
    for i in range(N):
        for j in range(N):
            length = np.linalg.norm(x[i]) * np.linalg.norm(x[j])
            if A[i, j] and i != j and length > 0:
                cosine = x[i] @ x[j] / length
                S[i, j] = cosine if cosine >= threshold else 0
    W = np.zeros((N, N))  # of a message from i to j
    for i in range(N):
        for j in range(N):
            if S[i, j] > 0:
                W[i, j] = np.exp(S[i, j] / S[i].sum())
        W[i, i] = np.exp(1 / ((S[i] > 0).sum() + 1))
    degree = W.sum(axis=1)
    return (W / np.sqrt(np.outer(degree, degree))).T, S > 0


def to_dense(matrix):
    layout = matrix.layout
    shape = (layout.col, layout.rowptr)
    return sp.csr_matrix((matrix.value, *shape), layout.shape).toarray()


@pytest.mark.parametrize('threshold', [0.0, 0.1, 0.4, 1.1])
def test_weights_are_those_of_a_loop(threshold):
    data = graph()
    A, x = adjacency(data).toarray(), data.x.double().numpy()
    expected, kept = reference(A, x, threshold)
    guard = Guard(adjacency(data), to_scipy(data.x), threshold)
    assert np.allclose(to_dense(guard.first), expected, atol=1e-6)
    if threshold == 1.1:
        assert np.allclose(expected, np.eye(40))
    else:
        assert 0 < kept.sum() < A.sum()
    assert guard.kept == pytest.approx(kept.sum() / A.sum())

    # Hidden features, one node without any:
    h = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    h[5] = 0
    expected, left = reference(kept, h.double().numpy(), threshold)
    second = guard(h.requires_grad_())
    assert np.allclose(to_dense(second), expected, atol=1e-6)
    assert not second.value.requires_grad
    assert threshold == 1.1 or 0 < left.sum() < kept.sum()


@pytest.mark.parametrize('sparse', [True, False])
def test_network_is_the_formula(sparse):
    data = graph(sparse)
    A = adjacency(data).toarray()
    guard = Guard(adjacency(data), to_scipy(data.x), 0.1)
    torch.manual_seed(0)
    model = Net(guard, 12, 8, 3, p=0.5)
    torch.nn.init.normal_(model.conv1.bias)
    out = model.eval()(data.x, data.edge_index)

    x = graph().x.double()
    W1, W2 = (conv.lin.weight.detach().double().t()
              for conv in (model.conv1, model.conv2))
    b1, b2 = (conv.bias.detach().double()
              for conv in (model.conv1, model.conv2))
    P, kept = reference(A, x.numpy(), 0.1)
    h = (torch.from_numpy(P) @ x @ W1 + b1).relu()
    P, _ = reference(kept, h.numpy(), 0.1)
    expected = torch.from_numpy(P) @ h @ W2 + b2
    assert torch.allclose(out.double(), expected, atol=1e-5)


@pytest.mark.parametrize('sparse', [True, False])
def test_run(sparse):
    out = run(graph(sparse), 3, epochs=5)
    assert out.logits.shape == (40, 3)
    assert out.logits.isfinite().all()
    assert 0 < out.extra['kept'] < 1
    assert run(graph(sparse), 3, epochs=5).logits.equal(out.logits)
    other = run(graph(sparse), 3, threshold=0.4, epochs=5)
    assert other.extra['kept'] < out.extra['kept']
