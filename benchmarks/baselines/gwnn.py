r"""GWNN: the graph wavelet neural network.

Xu et al., `"Graph Wavelet Neural Network"
<https://openreview.net/forum?id=H1ewdiR5tQ>`_ (2019).

.. math::
    \mathbf{H}' = \mathrm{ReLU}(\mathbf{\Psi}^{-1} \mathrm{diag}(\theta)
    \mathbf{\Psi} \mathbf{H} \mathbf{W}), \qquad
    \mathbf{\Psi} = e^{-s \mathbf{L}}, \; \mathbf{\Psi}^{-1} = e^{s \mathbf{L}}

with the symmetrically normalised Laplacian :math:`\mathbf{L}`, one factor
:math:`\theta_i` per node, and entries of the wavelets below a threshold
dropped. They come from a series of sparse matrices, so neither eigenvectors
nor a dense :math:`N \times N` matrix is needed.

With the two true inverses of each other and :math:`\theta = 1`, where
training starts, the layer is a perceptron that sees no neighbour; this is the
paper's, ``inverse='exact'``. The authors' program differs from it: it makes
the inverse from eigenvalues that it has transformed already, hence uses
:math:`\exp(s \, e^{-s \mathbf{L}})`, which smooths as :math:`\mathbf{\Psi}`
does and inverts nothing. This is ``inverse='released'``, and the default, as
the published figures come from it; ``settings/checks.yaml`` has a run of the
other.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.polynomial.chebyshev import cheb2poly, chebinterpolate
from torch import Tensor
from torch.nn import Module, Parameter
from torch.nn.init import xavier_uniform_
from torch_geometric import seed_everything
from torch_geometric.data import Data

from benchmarks.baselines.layers import Stack
from benchmarks.sparse import CSR
from benchmarks.training import (
    Run,
    adjacency,
    fit,
    normalized,
    remember,
    sizes,
    sparse_features,
)


def spectral_function(A: sp.csr_matrix, f: Callable[[np.ndarray], np.ndarray],
                      threshold: float) -> sp.csr_matrix:
    """Returns f(L) of the normalised Laplacian of A, for a smooth function on
    [0, 2], without entries smaller than ``threshold``.

    f(L) = f(I - P) is a series in powers of P = I - L, whose coefficients
    come from a Chebyshev interpolation. Every power stays sparse: entries
    that cannot add up to a hundredth of the threshold are dropped at once.
    """
    def drop(M: sp.csr_matrix, bound: float) -> None:
        M.data[abs(M.data) < bound] = 0
        M.eliminate_zeros()

    P = normalized(A)
    coef = cheb2poly(chebinterpolate(lambda p: f(1 - p), 14))
    power = sp.eye(A.shape[0], format='csr')
    out = coef[0] * power
    for k in range(1, len(coef)):
        power = power @ P
        drop(power, 0.01 * threshold / abs(coef[k:]).max())
        out = out + coef[k] * power
    out = (out + out.T) / 2  # dropping broke the symmetry, by a little
    drop(out, threshold)
    return out


@remember
def wavelet_matrices(data: Data, **settings: Any) -> list[CSR]:
    """Returns both in single precision; few settings differ in them."""
    return [CSR.from_scipy(psi)
            for psi in wavelets(adjacency(data), **settings)]


def wavelets(A: sp.csr_matrix, s: float, threshold: float,
             inverse: str = 'exact') -> tuple[sp.csr_matrix, sp.csr_matrix]:
    """Returns the heat wavelets and their inverse."""
    def psi(x: np.ndarray) -> np.ndarray:
        return np.exp(-s * x)

    psi_inverse = {
        'exact': lambda x: np.exp(s * x),
        'released': lambda x: np.exp(s * psi(x)),
    }[inverse]
    return (spectral_function(A, psi, threshold),
            spectral_function(A, psi_inverse, threshold))


class WaveletConv(Module):
    """One layer; ``theta`` is the filter, one factor per node."""

    def __init__(self, num_nodes: int, in_channels: int,
                 out_channels: int) -> None:
        super().__init__()
        self.weight = Parameter(torch.empty(in_channels, out_channels))
        self.theta = Parameter(torch.ones(num_nodes, 1))
        xavier_uniform_(self.weight)

    def forward(self, x: Any, psi: CSR, psi_inverse: CSR) -> Tensor:
        """Returns Ψ⁻¹ diag(θ) Ψ x W."""
        return psi_inverse @ (self.theta * (psi @ (x @ self.weight)))


def run(data: Data, seed: int, *, s: float = 1.0, threshold: float = 1e-4,
        inverse: str = 'released', hidden_channels: int = 16, p: float = 0.5,
        lr: float = 0.01, weight_decay: float = 5e-4, epochs: int = 500,
        patience: int = 50) -> Run:
    """Computes the wavelets, then trains; defaults are the authors'."""
    seed_everything(seed)
    graph = wavelet_matrices(data, s=s, threshold=threshold, inverse=inverse)
    data = sparse_features(data)
    inner, hidden, outer = sizes(data, hidden_channels)
    model = Stack(WaveletConv(data.num_nodes, inner, hidden),
                  WaveletConv(data.num_nodes, hidden, outer), p=p,
                  graph=graph)
    out = fit(model, data, lr=lr, weight_decay=weight_decay, epochs=epochs,
              patience=patience)
    out.extra['density'] = graph[0].value.numel() / data.num_nodes**2
    return out
