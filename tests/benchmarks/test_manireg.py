import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import laplacian
from torch_geometric.data import Data

from benchmarks.baselines.manireg import (
    gaussian_kernel,
    kernel_laprls,
    linear_laprls,
    run,
)

GAMMA_A, GAMMA_I = 1e-2, 30.0


def problem():
    rng = np.random.default_rng(0)
    N, F, C = 12, 5, 3
    A = np.triu(rng.random((N, N)) < 0.3, 1).astype(float)
    L = sp.csr_matrix(laplacian(A + A.T))
    labelled = np.zeros(N, dtype=bool)
    labelled[:4] = True
    Y = np.zeros((N, C))
    Y[np.arange(4), [0, 1, 2, 1]] = 1
    return sp.csr_matrix(rng.random((N, F))), L, Y, labelled


def objective(K, L, Y, labelled, alpha):
    f, L = K @ alpha, torch.from_numpy(L.toarray())
    N, n = len(labelled), labelled.sum()
    fit = (Y - f)[torch.from_numpy(labelled)].pow(2).sum() / n
    smooth = (f * (L @ f)).sum()
    return fit + GAMMA_A * (alpha * f).sum() + GAMMA_I / N**2 * smooth


def test_kernel_closed_form_minimises_its_objective():
    X, L, Y, labelled = problem()
    K = gaussian_kernel(X.toarray(), width=0.5)
    f = kernel_laprls(K, L, Y, labelled, GAMMA_A, GAMMA_I)

    alpha = torch.from_numpy(np.linalg.solve(K, f)).requires_grad_()
    args = torch.from_numpy(K), L, torch.from_numpy(Y), labelled
    loss = objective(*args, alpha)
    loss.backward()
    assert alpha.grad.abs().max() < 1e-10
    # A convex objective: a zero gradient is the minimum, but make sure.
    noise = 1e-2 * torch.randn(
        alpha.shape, generator=torch.manual_seed(0), dtype=torch.double)
    assert objective(*args, alpha + noise) > loss


def test_linear_form_is_the_kernel_form():
    X, L, Y, labelled = problem()
    expected = kernel_laprls((X @ X.T).toarray(), L, Y, labelled,
                             GAMMA_A, GAMMA_I)
    out = linear_laprls(X, L, Y, labelled, GAMMA_A, GAMMA_I)
    assert np.allclose(out, expected, atol=1e-10)


def test_without_graph_it_is_ridge_regression():
    X, L, Y, labelled = problem()
    out = linear_laprls(X, L, Y, labelled, GAMMA_A, 0.0)
    X_l, Y_l = X.toarray()[labelled], Y[labelled]
    M = X_l.T @ X_l + 4 * GAMMA_A * np.eye(5)
    assert np.allclose(out, X @ np.linalg.solve(M, X_l.T @ Y_l))


def test_gaussian_kernel():
    K = gaussian_kernel(np.array([[0.0], [2.0]]), width=0.5)
    # The mean squared distance of all four pairs is 2.
    assert np.allclose(K, [[1, np.exp(-4)], [np.exp(-4), 1]])


@pytest.mark.parametrize('kernel', ['linear', 'gaussian'])
def test_run(kernel):
    # Two triangles with features of their own, one label each.
    edge_index = torch.tensor([[0, 1, 1, 2, 2, 0, 3, 4, 4, 5, 5, 3],
                               [1, 0, 2, 1, 0, 2, 4, 3, 5, 4, 3, 5]])
    x = torch.eye(2).repeat_interleave(3, dim=0)
    y = torch.tensor([0, 0, 0, 1, 1, 1])
    mask = torch.tensor([True, False, False, True, False, False])
    data = Data(x=x, edge_index=edge_index, y=y, train_mask=mask)
    out = run(data, seed=0, kernel=kernel).logits
    assert out.argmax(dim=-1).equal(y)
    data.x = x.to_sparse()
    assert torch.allclose(run(data, seed=1, kernel=kernel).logits, out)


def test_unknown_kernel():
    data = Data(x=torch.eye(2), edge_index=torch.tensor([[0, 1], [1, 0]]),
                y=torch.tensor([0, 1]), train_mask=torch.ones(2).bool())
    with pytest.raises(ValueError, match='ManiReg: kernel must be'):
        run(data, seed=0, kernel='cubic')
