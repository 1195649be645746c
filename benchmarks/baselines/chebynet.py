r"""ChebyNet: filters that are polynomials of the Laplacian.

Defferrard, Bresson and Vandergheynst, `"Convolutional Neural Networks on
Graphs with Fast Localized Spectral Filtering"
<https://arxiv.org/abs/1606.09375>`_ (2016): :math:`\sum_k
T_k(\mathbf{\hat{L}}) \mathbf{H} \mathbf{W}_k` with Chebyshev polynomials
:math:`T_0, \ldots, T_K`.
"""
from torch import Tensor, cat
from torch.nn import Module, ModuleList
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.nn import ChebConv

from benchmarks.baselines.layers import Stack, weights
from benchmarks.training import Run, fit, sizes


class Block(Module):
    r"""Stands for :math:`\mathbf{W}_k` where it was multiplied before."""

    def __init__(self, k: int, size: int) -> None:
        super().__init__()
        self.part = slice(k * size, (k + 1) * size)

    def forward(self, x: Tensor) -> Tensor:
        r"""The columns of :math:`\mathbf{H} \mathbf{W}_k`."""
        return x[:, self.part]


class WeightFirst(ChebConv):
    r"""PyG's layer that multiplies before it propagates, which is the same and
    cheaper where features are many or sparse.
    """

    def __init__(self, in_channels: int, out_channels: int, K: int) -> None:
        # One matrix per k, each initialised as PyG does:
        maps = [weights(in_channels, out_channels) for _ in range(K)]
        super().__init__(K * out_channels, out_channels, K)
        self.maps = ModuleList(maps)
        self.lins = ModuleList([Block(k, out_channels) for k in range(K)])

    def forward(self, x: Tensor, *graph: Tensor | None) -> Tensor:
        r"""The filtered features."""
        return super().forward(cat([f(x) for f in self.maps], dim=-1), *graph)


def run(data: Data, seed: int, *, K: int = 2, hidden_channels: int = 16,
        p: float = 0.5, lr: float = 0.01, weight_decay: float = 5e-4,
        epochs: int = 500, patience: int = 50) -> Run:
    r"""Trains the network. PyG counts the terms, the paper the largest
    power.
    """
    seed_everything(seed)
    inner, hidden, outer = sizes(data, hidden_channels)
    model = Stack(WeightFirst(inner, hidden, K + 1),
                  ChebConv(hidden, outer, K + 1), p=p)
    return fit(model, data, lr=lr, weight_decay=weight_decay, epochs=epochs,
               patience=patience)
