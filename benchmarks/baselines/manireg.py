r"""ManiReg: Laplacian regularised least squares.

Belkin, Niyogi and Sindhwani, `"Manifold Regularization"
<https://jmlr.org/papers/v7/belkin06a.html>`_ (2006).

With :math:`n` labelled nodes of :math:`N`, the selection :math:`\mathbf{J}`
of the labelled, the graph Laplacian :math:`\mathbf{L}` and a kernel
:math:`\mathbf{K}`, :math:`f` minimises

.. math::
    \frac{1}{n} \| \mathbf{J} (\mathbf{Y} - f) \|^2 +
    \gamma_A \| f \|_K^2 + \frac{\gamma_I}{N^2} \mathrm{tr}(f^{\top}
    \mathbf{L} f), \qquad f = \mathbf{K} \alpha.

The linear kernel is solved for its :math:`F` weights, without any
:math:`N \times N` matrix. The Gaussian kernel, for the images, is a dense
:math:`N \times N` matrix by nature: at 10,000 nodes it takes 2.4 GB.
"""
import numpy as np
import scipy.sparse as sp
import torch
from scipy.linalg import solve
from scipy.sparse.csgraph import laplacian
from sklearn.metrics.pairwise import euclidean_distances
from torch_geometric.data import Data

from benchmarks.training import Run, adjacency, known_labels, to_scipy


def linear_laprls(X: sp.csr_matrix, L: sp.csr_matrix, Y: np.ndarray,
                  labelled: np.ndarray, gamma_a: float,
                  gamma_i: float) -> np.ndarray:
    """Returns f = Xw for the kernel XXᵀ; ``Y`` is zero where not labelled."""
    n, N = labelled.sum(), X.shape[0]
    M = X[labelled].T @ X[labelled] + gamma_i * n / N**2 * (X.T @ L @ X)
    M = M.toarray() + gamma_a * n * np.eye(X.shape[1])
    return X @ solve(M, X.T @ Y, assume_a='pos', overwrite_a=True)


def kernel_laprls(K: np.ndarray, L: sp.csr_matrix, Y: np.ndarray,
                  labelled: np.ndarray, gamma_a: float,
                  gamma_i: float) -> np.ndarray:
    """Returns f = Kα for any kernel; ``Y`` is zero where not labelled."""
    n, N = labelled.sum(), K.shape[0]
    M = (L * (gamma_i * n / N**2)).astype(K.dtype) @ K
    M[labelled] += K[labelled]
    M[np.diag_indices(N)] += gamma_a * n
    return K @ solve(M, Y.astype(K.dtype), overwrite_a=True)


def gaussian_kernel(X: np.ndarray, width: float) -> np.ndarray:
    """Returns exp(-d²/2σ²) with σ = ``width`` × the root mean square d."""
    D = euclidean_distances(X, squared=True)
    D /= -2 * width**2 * D.mean()
    return np.exp(D, out=D)


def run(data: Data, seed: int, *, kernel: str = 'linear',
        gamma_a: float = 1e-5, gamma_i: float = 1.0,
        width: float = 0.5) -> Run:
    """Solves once; nothing is random, so ``seed`` changes nothing."""
    L, X = laplacian(adjacency(data)).tocsr(), to_scipy(data.x)
    known = L, *known_labels(data), gamma_a, gamma_i
    if kernel == 'linear':
        f = linear_laprls(X, *known)
    elif kernel == 'gaussian':
        K = gaussian_kernel(X.toarray().astype(np.float32), width)
        f = kernel_laprls(K, *known)
    else:
        raise ValueError(f"ManiReg: kernel must be 'linear' or 'gaussian' "
                         f'(got {kernel!r})')
    return Run(torch.from_numpy(f).float())
