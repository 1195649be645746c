import numpy as np
import scipy.sparse as sp
import torch
from sklearn.linear_model import LogisticRegression
from torch_geometric.data import Data

from benchmarks.baselines.ica import count_labels, run, sweep

# 0 - 1 - 2
PATH = sp.csr_matrix(np.array([[0.0, 1, 0], [1, 0, 1], [0, 1, 0]]))


def test_count_labels():
    out = count_labels(PATH, np.array([0, 1, 1]), 2)
    assert np.array_equal(out, [[0, 1], [1, 1], [0, 1]])


def test_sweep_by_hand():
    # A node's own evidence, and one point per neighbour for its label.
    base = np.array([[9.0, 0.0], [0.0, 0.8], [0.0, 0.5]])
    weight = np.eye(2)
    start = np.array([0, 1, 1])
    # Node 1 has one neighbour of each class, so its own 0.8 decides: 1.
    # Node 2 then sees 1 at node 1: it stays 1.
    out = sweep(PATH, base, weight, start, np.array([1, 2]))
    assert np.array_equal(out, [0, 1, 1])
    # Two points per neighbour for class 0 and one for class 1:
    # node 1: class 0 has 2, class 1 has 0.8 + 1 -> 0. Node 2 sees this at
    # once: class 0 has 2, class 1 has 0.5 -> 0.
    weight = np.diag([2.0, 1.0])
    out = sweep(PATH, base, weight, start, np.array([1, 2]))
    assert np.array_equal(out, [0, 0, 0])
    # In the other order node 2 still sees the old label of node 1, where
    # class 1 has 0.5 + 1 -> 1; then node 1 changes to 0.
    out = sweep(PATH, base, weight, start, np.array([2, 1]))
    assert np.array_equal(out, [0, 0, 1])
    # Proportions: node 1 has 0.8 + 1/2 for class 1 and 2/2 for class 0.
    out = sweep(PATH, base, weight, start, np.array([1]), proportions=True)
    assert np.array_equal(out, [0, 1, 1])
    assert np.array_equal(start, [0, 1, 1])  # the input is left alone


def random_graph(N=60, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(N) % 3
    A = np.triu(rng.random((N, N)) < np.where(y[:, None] == y, 0.2, 0.02), 1)
    row, col = np.nonzero(A | A.T)
    x = np.eye(3)[y] + rng.normal(size=(N, 3))
    return Data(x=torch.from_numpy(x).float(), y=torch.from_numpy(y),
                edge_index=torch.from_numpy(np.stack([row, col])),
                train_mask=torch.arange(N) < 15)


def test_sweep_equals_the_naive_loop():
    data = random_graph()
    A = sp.csr_matrix((np.ones(data.num_edges), data.edge_index.numpy()))
    rng = np.random.default_rng(1)
    base, weight = rng.normal(size=(60, 3)), rng.normal(size=(3, 3))
    label, order = rng.integers(3, size=60), rng.permutation(60)
    for proportions in (False, True):
        naive = label.copy()
        for i in order:
            c = np.bincount(naive[A[i].indices], minlength=3)
            c = c / max(c.sum(), 1) if proportions else c
            naive[i] = (base[i] + weight @ c).argmax()
        out = sweep(A, base, weight, label, order, proportions)
        assert np.array_equal(out, naive)


def test_run_beats_the_local_classifier():
    data = random_graph()
    train, test = data.train_mask, ~data.train_mask
    local = LogisticRegression().fit(data.x[train], data.y[train])
    local_accuracy = local.score(data.x[test], data.y[test])
    out = run(data, seed=0)
    pred = out.logits.argmax(dim=-1)
    assert (pred == data.y)[test].float().mean() > local_accuracy + 0.1
    assert torch.allclose(out.logits.exp().sum(dim=-1), torch.ones(60))
    assert run(data, seed=0).logits.equal(out.logits)
    data.x = data.x.to_sparse()
    assert torch.allclose(run(data, seed=0).logits, out.logits, atol=1e-4)
