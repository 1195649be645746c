r"""LP: label propagation by Gaussian fields and harmonic functions.

Zhu, Ghahramani and Lafferty, `"Semi-Supervised Learning Using Gaussian
Fields and Harmonic Functions" <https://cdn.aaai.org/ICML/2003/
ICML03-118.pdf>`_ (2003): labels are clamped, and all other nodes are the mean
of their neighbours, :math:`\mathbf{F}_U = \mathbf{L}_{UU}^{-1}
\mathbf{A}_{UL} \mathbf{Y}_L`.

A component without a label makes :math:`\mathbf{L}_{UU}` singular; a sink
of weight :math:`\epsilon` at every unlabelled node holds the labels' class
distribution, so such a component gets this distribution. Class mass
normalisation, also Zhu's, scales the columns until the mass of every class is
its share of the labels: far from few labels, the arg max says little without.
"""
import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.linalg import cg
from torch_geometric.data import Data

from benchmarks.training import Run, adjacency, known_labels


def harmonic(A: sp.csr_matrix, Y: np.ndarray, labelled: np.ndarray,
             eps: float = 1e-6) -> np.ndarray:
    """Returns the harmonic extension of ``Y[labelled]`` to all nodes."""
    U = ~labelled
    degree = np.asarray(A.sum(axis=1)).ravel()[U] + eps
    L_UU = sp.diags(degree) - A[U][:, U]
    prior = Y[labelled].mean(axis=0)
    B = A[U][:, labelled] @ Y[labelled] + eps * prior

    F = Y.astype(float)
    jacobi = sp.diags(1 / degree)
    # Conjugate gradients: a factorisation would fill in on large graphs.
    for c in range(Y.shape[1]):
        x0 = np.full(B.shape[0], prior[c])
        F[U, c], info = cg(L_UU, B[:, c], x0, rtol=1e-8, M=jacobi)
        if info != 0:
            raise ValueError(f"'harmonic' got eps={eps:g}, with which "
                             f'conjugate gradients do not converge; pass a '
                             f'larger one, and finite edge weights')
    return F


def normalize_class_mass(F: np.ndarray, Y: np.ndarray,
                         labelled: np.ndarray) -> np.ndarray:
    """Returns ``F`` with the labels' class shares on the unlabelled."""
    F = F * Y[labelled].mean(axis=0) / F[~labelled].mean(axis=0)
    return F / F.sum(axis=1, keepdims=True)


def run(data: Data, seed: int, *, class_mass: bool = True,
        eps: float = 1e-6) -> Run:
    """Solves once; nothing is random, so ``seed`` changes nothing."""
    Y, labelled = known_labels(data)
    F = harmonic(adjacency(data), Y, labelled, eps)
    if class_mass:
        F = normalize_class_mass(F, Y, labelled)
    return Run(torch.from_numpy(F).clamp(min=1e-12).log().float())
