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

from benchmarks.baselines.layers import SparseLinear
from benchmarks.training import Run, count_classes, dropout, fit


class Block(Module):
    r"""Stands for :math:`\mathbf{W}_k` where it was multiplied before."""

    def __init__(self, k: int, size: int) -> None:
        super().__init__()
        self.part = slice(k * size, (k + 1) * size)

    def forward(self, x: Tensor) -> Tensor:
        r"""The columns of :math:`\mathbf{H} \mathbf{W}_k`."""
        return x[:, self.part]


class WeightFirst(Module):
    r"""A :class:`ChebConv` that multiplies before it propagates, which is the
    same and cheaper where features are many or sparse.
    """

    def __init__(self, in_channels: int, out_channels: int, K: int) -> None:
        super().__init__()
        # One matrix per k, each initialised as PyG does:
        self.lins = ModuleList([
            SparseLinear(in_channels, out_channels, bias=False,
                         weight_initializer='glorot') for _ in range(K)])
        self.conv = ChebConv(K * out_channels, out_channels, K)
        self.conv.lins = ModuleList([Block(k, out_channels)
                                     for k in range(K)])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        r"""The filtered features."""
        x = cat([lin(x) for lin in self.lins], dim=-1)
        return self.conv(x, edge_index, lambda_max=2.0)


class Net(Module):
    r"""Two layers, dropout before both."""

    def __init__(self, in_channels: int, hidden_channels: int,
                 out_channels: int, K: int, p: float) -> None:
        super().__init__()
        # PyG counts the terms, the paper the largest power:
        self.conv1 = WeightFirst(in_channels, hidden_channels, K + 1)
        self.conv2 = ChebConv(hidden_channels, out_channels, K + 1)
        self.p = p

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        r"""The logits."""
        x = dropout(x, self.p, self.training)
        x = self.conv1(x, edge_index).relu()
        x = dropout(x, self.p, self.training)
        return self.conv2(x, edge_index, lambda_max=2.0)


def run(
    data: Data,
    seed: int,
    *,
    K: int = 2,
    hidden_channels: int = 16,
    p: float = 0.5,
    lr: float = 0.01,
    weight_decay: float = 5e-4,
    epochs: int = 500,
    patience: int = 50,
) -> Run:
    r"""Trains the network."""
    seed_everything(seed)
    model = Net(data.x.size(1), hidden_channels, count_classes(data.y), K, p)
    return fit(model, data, lr=lr, weight_decay=weight_decay, epochs=epochs,
               patience=patience)
