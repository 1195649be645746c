import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data

from benchmarks.baselines.lp import harmonic, normalize_class_mass, run


def graph(N, edges):
    row, col = np.array(edges).T
    A = sp.csr_matrix((np.ones(len(edges)), (row, col)), shape=(N, N))
    return A + A.T


def test_path_interpolates_linearly():
    A = graph(5, [(0, 1), (1, 2), (2, 3), (3, 4)])
    labelled = np.array([True, False, False, False, True])
    Y = np.zeros((5, 2))
    Y[0, 0] = Y[4, 1] = 1
    F = harmonic(A, Y, labelled, eps=1e-9)
    expected = np.array([1, 0.75, 0.5, 0.25, 0])
    assert np.allclose(F, np.stack([expected, 1 - expected], 1), atol=1e-6)


def test_harmonic_on_the_unlabelled_and_the_dense_solution():
    rng = np.random.default_rng(0)
    N = 30
    A = np.triu(rng.random((N, N)) < 0.2, 1)
    A[np.arange(N - 1), np.arange(1, N)] = True  # connected
    A = (A | A.T).astype(float)
    labelled = np.arange(N) < 6
    Y = np.zeros((N, 3))
    Y[np.arange(6), np.arange(6) % 3] = 1
    F = harmonic(sp.csr_matrix(A), Y, labelled, eps=1e-10)

    assert np.array_equal(F[labelled], Y[labelled])  # clamped
    mean = A @ F / A.sum(axis=1, keepdims=True)
    assert np.allclose(F[~labelled], mean[~labelled], atol=1e-6)
    assert np.allclose(F.sum(axis=1), 1, atol=1e-6)

    L = np.diag(A.sum(axis=1)) - A
    U = ~labelled
    expected = np.linalg.solve(L[U][:, U], A[U][:, labelled] @ Y[labelled])
    assert np.allclose(F[U], expected, atol=1e-6)


def test_component_without_a_label_and_isolated_node():
    A = graph(6, [(0, 1), (1, 2), (3, 4)])
    labelled = np.array([True, False, True, False, False, False])
    Y = np.zeros((6, 2))
    Y[0, 0] = Y[2, 0] = 1
    F = harmonic(A, Y, labelled)
    prior = np.array([1, 0])
    assert np.allclose(F, prior, atol=1e-6)

    Y[2] = [0, 1]
    F = harmonic(A, Y, labelled)
    assert np.allclose(F[[1, 3, 4, 5]], 0.5, atol=1e-6)


def test_class_mass():
    F = np.array([[1, 0], [0, 1], [0.9, 0.1], [0.7, 0.3]])
    Y = np.array([[1, 0], [0, 1], [0, 0], [0, 0]])
    labelled = np.array([True, True, False, False])
    out = normalize_class_mass(F, Y, labelled)
    # Masses 0.8 and 0.2 become equal: the columns' ratio is multiplied by 4.
    assert np.allclose(out[2], np.array([0.9, 0.4]) / 1.3)
    assert np.allclose(out[3], np.array([0.7, 1.2]) / 1.9)
    assert np.allclose(out.sum(axis=1), 1)


def test_run():
    edge_index = torch.tensor([[0, 1, 1, 2, 3, 2], [1, 0, 2, 1, 2, 3]])
    data = Data(edge_index=edge_index, y=torch.tensor([0, 0, 1, 1]),
                train_mask=torch.tensor([True, False, False, True]),
                x=torch.zeros(4, 1))
    for class_mass in (False, True):
        out = run(data, seed=0, class_mass=class_mass).logits
        assert out.argmax(dim=-1).equal(data.y)
        assert torch.allclose(out[1].exp(), torch.tensor([2 / 3, 1 / 3]),
                              atol=1e-5)


def test_what_does_not_converge_is_refused():
    A = sp.csr_matrix(np.array([[0, np.nan], [np.nan, 0]]))
    with pytest.raises(ValueError, match='do not converge; pass a larger'):
        harmonic(A, np.eye(2), np.array([True, False]))
