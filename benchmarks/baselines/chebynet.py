r"""ChebyNet: filters that are polynomials of the Laplacian.

Defferrard, Bresson and Vandergheynst, `"Convolutional Neural Networks on
Graphs with Fast Localized Spectral Filtering"
<https://arxiv.org/abs/1606.09375>`_ (2016): :math:`\sum_k
T_k(\mathbf{\hat{L}}) \mathbf{H} \mathbf{W}_k` with Chebyshev polynomials
:math:`T_0, \ldots, T_K`.
"""
from typing import Any

import torch
from torch import Tensor
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.nn import ChebConv

from benchmarks.baselines.layers import Stack
from benchmarks.sparse import CSR
from benchmarks.training import Run, decay_on, fit, sizes, sparse_features


class WeightFirst(ChebConv):
    r"""PyG's layer for one graph that multiplies before it propagates, which
    is the same and cheaper where features are many or sparse.
    """

    L: CSR | None = None

    def forward(self, x: Any, edge_index: Tensor,
                edge_weight: Tensor | None = None) -> Tensor:
        r"""The filtered features."""
        if self.L is None:
            N = x.size(0)
            (source, target), value = self.__norm__(
                edge_index, N, edge_weight, self.normalization)
            self.L = CSR.from_edges(target, source, value, (N, N))
        W = torch.cat([lin.weight for lin in self.lins])
        first, *terms = (x @ W.t()).chunk(len(self.lins), dim=1)
        # Clenshaw: as Horner's scheme, for Chebyshev polynomials.
        b, c = terms.pop(), torch.zeros_like(first)
        for term in terms[::-1]:
            b, c = term + 2 * (self.L @ b) - c, b
        return first + self.L @ b - c + self.bias


def run(data: Data, seed: int, *, K: int = 2, hidden_channels: int = 16,
        p: float = 0.5, lr: float = 0.01, weight_decay: float = 5e-4,
        epochs: int = 500, patience: int = 50) -> Run:
    r"""Trains the network. PyG counts the terms, the paper the largest
    power.
    """
    seed_everything(seed)
    inner, hidden, outer = sizes(data, hidden_channels)
    model = Stack(WeightFirst(inner, hidden, K + 1),
                  WeightFirst(hidden, outer, K + 1), p=p)
    return fit(model, sparse_features(data), lr=lr, epochs=epochs,
               patience=patience,
               params=decay_on(model.conv1, model, weight_decay, fused=True))
