r"""GCN-SVD: a GCN on a low-rank approximation of the graph.

Entezari et al., `"All You Need Is Low (Rank): Defending Against Adversarial
Attacks on Graphs" <https://doi.org/10.1145/3336191.3371789>`_ (2020):
:math:`\mathbf{D}^{-\frac{1}{2}} (\mathbf{A}_k + \mathbf{I})
\mathbf{D}^{-\frac{1}{2}}` with the truncated singular value decomposition
:math:`\mathbf{A}_k` of the adjacency matrix, and the row sums
:math:`\mathbf{D}`. Products are with the factors.

An approximation has negative entries, too, and a degree may be zero or less.
Such a node gets zero for :math:`\mathbf{D}^{-\frac{1}{2}}`: it neither sends
nor receives, and its logits are the last bias. DeepRobust does the same with
zero, and has no number for less. The network is that of
:mod:`benchmarks.baselines.gcn`, with dropout before both layers and weight
decay on the first; DeepRobust's has dropout before the second alone and
weight decay on both.
"""
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.linalg import svds
from torch import Tensor
from torch_geometric import seed_everything
from torch_geometric.data import Data

from benchmarks.baselines.gcn import Net
from benchmarks.baselines.layers import by_matrix
from benchmarks.training import Run, adjacency, fit, remember, sizes


class LowRank(NamedTuple):
    r"""The matrix by its factors, to be called as PyG's GCN layers call
    ``propagate``.
    """

    left: Tensor  # [N, k]
    right: Tensor  # [k, N]
    loop: Tensor  # [N, 1]

    def __call__(self, edge_index: Tensor | None, x: Tensor,
                 edge_weight: Tensor | None = None) -> Tensor:
        return self.left @ (self.right @ x) + self.loop * x


def factorize(A: sp.csr_matrix, rank: int) -> tuple[np.ndarray, ...]:
    r"""Left vectors, values and right vectors of the largest values."""
    start = np.random.default_rng(0).standard_normal(A.shape[0])
    return svds(A, k=min(rank, A.shape[0] - 1), v0=start)


@remember
def low_rank(data: Data, rank: int) -> LowRank:
    r"""The normalised approximation, which only edges and rank decide."""
    U, S, V = factorize(adjacency(data), rank)
    U = U * S
    degree = (U @ V.sum(axis=1) + 1)[:, None]
    scale = np.where(degree > 0, degree, np.inf)**-0.5
    return LowRank(*(torch.from_numpy(np.ascontiguousarray(M)).float()
                     for M in (scale * U, V * scale.T, scale**2)))


def run(data: Data, seed: int, *, rank: int = 50, hidden_channels: int = 16,
        p: float = 0.5, lr: float = 0.01, weight_decay: float = 5e-4,
        epochs: int = 200, patience: int = 10) -> Run:
    r"""Approximates the graph, then trains with GCN's schedule."""
    seed_everything(seed)
    operator = low_rank(data, rank=rank)
    model = by_matrix(Net(*sizes(data, hidden_channels), p), operator)
    out = fit(model, data, lr=lr, weight_decay=weight_decay, epochs=epochs,
              patience=patience)
    out.extra['cut_off'] = float((operator.loop == 0).float().mean())
    return out
