import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data

from benchmarks.baselines.gwnn import (
    WaveletConv,
    run,
    spectral_function,
    wavelets,
)
from benchmarks.baselines.layers import Stack
from benchmarks.sparse import CSR
from benchmarks.training import normalized


def graph(N=40, seed=0):
    rng = np.random.default_rng(seed)
    A = np.triu(rng.random((N, N)) < 0.1, 1).astype(float)
    A[:, -1] = 0  # one node without an edge
    return sp.csr_matrix(A + A.T)


def eigen(A, f):
    L = np.eye(A.shape[0]) - normalized(A).toarray()
    value, U = np.linalg.eigh(L)
    assert value.min() > -1e-12 and value.max() < 2 + 1e-12
    return U @ np.diag(f(value)) @ U.T


@pytest.mark.parametrize('s', [0.5, 0.7, 1.0, 2.0])
def test_wavelets_equal_the_eigendecompositions(s):
    A = graph()
    psi, psi_inverse = wavelets(A, s, threshold=0.0)
    assert np.allclose(psi.toarray(), eigen(A, lambda x: np.exp(-s * x)),
                       atol=1e-7)
    assert np.allclose(psi_inverse.toarray(),
                       eigen(A, lambda x: np.exp(s * x)), atol=1e-7)
    assert np.allclose((psi @ psi_inverse).toarray(), np.eye(40), atol=1e-6)


def test_released_inverse_is_none():
    A = graph()
    psi, released = wavelets(A, 1.0, threshold=0.0, inverse='released')
    expected = eigen(A, lambda x: np.exp(np.exp(-x)))
    assert np.allclose(released.toarray(), expected, atol=1e-7)
    product = (psi @ released).toarray()
    assert abs(product - np.eye(40)).max() > 0.1


@pytest.mark.parametrize('threshold', [1e-2, 1e-3, 1e-4])
def test_threshold(threshold):
    A = graph(N=200)
    expected = eigen(A, lambda x: np.exp(-x))
    out = spectral_function(A, lambda x: np.exp(-x), threshold)
    assert abs(out.data).min() >= threshold
    assert abs(out - out.T).max() == 0
    error = abs(out.toarray() - expected)
    # What is kept is right, and what is dropped is small.
    assert error[out.toarray() != 0].max() < 0.2 * threshold
    assert error.max() < 1.2 * threshold


def test_layer_is_the_formula():
    A = graph()
    psi, psi_inverse = wavelets(A, 0.7, threshold=0.0)
    torch.manual_seed(0)
    conv = WaveletConv(40, 5, 3)
    conv.theta.data.normal_()
    x = torch.randn(40, 5)
    out = conv(x, CSR.from_scipy(psi), CSR.from_scipy(psi_inverse))

    dense = [torch.from_numpy(M.toarray()).float()
             for M in (psi, psi_inverse)]
    weight, theta = (p.detach().clone().requires_grad_()
                     for p in (conv.weight, conv.theta))
    expected = dense[1] @ torch.diag(theta[:, 0]) @ dense[0] @ x @ weight
    assert torch.allclose(out, expected, atol=1e-5)
    grad = torch.randn(40, 3)
    out.backward(grad)
    expected.backward(grad)
    assert torch.allclose(conv.weight.grad, weight.grad, atol=1e-4)
    assert torch.allclose(conv.theta.grad, theta.grad, atol=1e-4)


def test_exact_wavelets_start_as_a_perceptron():
    psi = [CSR.from_scipy(M) for M in wavelets(graph(), 1.0, threshold=0.0)]
    torch.manual_seed(0)
    first, second = WaveletConv(40, 5, 8), WaveletConv(40, 8, 3)
    model = Stack(first, second, p=0.5, graph=tuple(psi)).eval()
    x = torch.randn(40, 5)
    expected = (x @ first.weight).relu() @ second.weight
    assert torch.allclose(model(x, None), expected, atol=1e-5)


def test_run():
    block = torch.ones(6, 6).fill_diagonal_(0)
    y = torch.arange(12) // 6
    data = Data(x=torch.eye(12), y=y,
                edge_index=torch.block_diag(block, block).nonzero().t(),
                train_mask=torch.arange(12) % 6 == 0,
                val_mask=torch.arange(12) % 6 == 1)
    settings = {'epochs': 60, 'p': 0.0}
    out = run(data, seed=0, inverse='released', **settings)
    assert out.logits.argmax(dim=-1).equal(y)
    again = run(data, seed=0, inverse='released', **settings)
    assert again.logits.equal(out.logits)
    data.x = data.x.to_sparse()
    sparse = run(data, seed=0, inverse='released', **settings)
    assert torch.allclose(sparse.logits, out.logits, atol=1e-4)
