r"""GCNII: a GCN with initial residual and identity mapping.

Chen et al., `"Simple and Deep Graph Convolutional Networks"
<https://arxiv.org/abs/2007.02133>`_ (2020). PyG calls its :math:`\lambda`
``theta``. Its authors train for 1,500 epochs and wait for 100, where other
methods here wait for 50: deep networks need more.
"""
from typing import Any

from torch import Tensor
from torch.nn import Module, ModuleList
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.nn import GCN2Conv, Linear

from benchmarks.baselines.layers import by_matrix, sparse_first
from benchmarks.training import Run, drop, dropout, fit, sizes


class Net(Module):
    r"""A linear map, graph convolutions, and another linear map."""

    def __init__(self, in_channels: int, hidden_channels: int,
                 out_channels: int, num_layers: int, alpha: float,
                 theta: float, p: float) -> None:
        super().__init__()
        self.lin_in = sparse_first(Linear(in_channels, hidden_channels))
        self.convs = ModuleList([
            GCN2Conv(hidden_channels, alpha, theta, layer, cached=True)
            for layer in range(1, num_layers + 1)])
        self.lin_out = Linear(hidden_channels, out_channels)
        self.dropout = p

    def forward(self, x: Tensor, edge_index: Tensor,
                edge_weight: Tensor | None = None) -> Tensor:
        r"""The logits."""
        def dropped(x: Tensor) -> Tensor:
            # Torch's own dropout is a third of the time of a deep network.
            return drop(x, self.dropout) if self.training else x

        x = first = self.lin_in(dropout(x, self.dropout, self.training)).relu()
        for conv in self.convs:
            x = conv(dropped(x), first, edge_index, edge_weight).relu()
        return self.lin_out(dropped(x))


def groups(model: Any, convs: list[Tensor], weight_decay: float,
           weight_decay_linear: float) -> list[dict[str, Any]]:
    r"""Both linear maps have a weight decay of their own, as the authors'."""
    linear = [*model.lin_in.parameters(), *model.lin_out.parameters()]
    return [dict(params=convs, weight_decay=weight_decay),
            dict(params=linear, weight_decay=weight_decay_linear)]


def run(data: Data, seed: int, *, num_layers: int = 64,
        hidden_channels: int = 64, alpha: float = 0.1, theta: float = 0.5,
        p: float = 0.6, lr: float = 0.01, weight_decay: float = 0.01,
        weight_decay_linear: float = 5e-4, epochs: int = 1500,
        patience: int = 100) -> Run:
    r"""Trains the network."""
    seed_everything(seed)
    model = by_matrix(Net(*sizes(data, hidden_channels), num_layers, alpha,
                          theta, p))
    return fit(model, data, lr=lr, epochs=epochs, patience=patience,
               params=groups(model, [*model.convs.parameters()], weight_decay,
                             weight_decay_linear))
