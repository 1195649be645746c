r"""JK-Net: a GCN whose last layer sees all layers before it.

Xu et al., `"Representation Learning on Graphs with Jumping Knowledge
Networks" <https://arxiv.org/abs/1806.03536>`_ (2018): :math:`\mathbf{P}
[\mathbf{H}_1, \ldots, \mathbf{H}_L] \mathbf{W}`, or with the maximum of the
layers :math:`\mathbf{H}_\ell = \mathrm{ReLU}(\mathbf{P} \mathbf{H}_{\ell - 1}
\mathbf{W}_\ell)` in place of the list.
"""
from itertools import pairwise

from torch import Tensor
from torch.nn import Module, ModuleList
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, JumpingKnowledge

from benchmarks.baselines.layers import by_matrix, sparse_first
from benchmarks.training import Run, decay_on, dropout, fit, sizes


class Net(Module):
    r"""Graph convolutions, their outputs joined, and another one."""

    def __init__(self, in_channels: int, hidden_channels: int,
                 out_channels: int, num_layers: int, mode: str,
                 p: float) -> None:
        super().__init__()
        widths = [in_channels] + [hidden_channels] * num_layers
        self.convs = ModuleList([GCNConv(a, b, cached=True)
                                 for a, b in pairwise(widths)])
        sparse_first(self.convs[0])
        self.jk = JumpingKnowledge(mode)
        self.last = GCNConv(sum(widths[1:]) if mode == 'cat' else
                            hidden_channels, out_channels, cached=True)
        self.p = p

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        r"""The logits."""
        xs = []
        for conv in self.convs:
            x = dropout(x, self.p, self.training)
            xs.append(x := conv(x, edge_index).relu())
        x = dropout(self.jk(xs), self.p, self.training)
        return self.last(x, edge_index)


def run(data: Data, seed: int, *, num_layers: int = 2, mode: str = 'cat',
        hidden_channels: int = 32, p: float = 0.5, lr: float = 0.005,
        weight_decay: float = 5e-4, epochs: int = 500,
        patience: int = 50) -> Run:
    r"""Trains the network, weight decay on the first layer."""
    seed_everything(seed)
    model = by_matrix(Net(*sizes(data, hidden_channels), num_layers, mode, p))
    return fit(model, data, lr=lr, epochs=epochs, patience=patience,
               params=decay_on(model.convs[0], model, weight_decay))
