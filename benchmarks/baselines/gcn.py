r"""GCN: the graph convolutional network.

Kipf and Welling, `"Semi-Supervised Classification with Graph Convolutional
Networks" <https://arxiv.org/abs/1609.02907>`_ (2017): :math:`\mathbf{P}
\mathrm{ReLU}(\mathbf{P} \mathbf{X} \mathbf{W}_1) \mathbf{W}_2`. The default of
200 epochs and a patience of ten is its authors' and the AGCN paper's, whose
formula is compared with it; ``gcn_long.yaml`` has the 500 and 50 of the other
methods.
"""
from itertools import pairwise

from torch import Tensor
from torch.nn import Module, ModuleList
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

from benchmarks.baselines.layers import by_matrix, sparse_first
from benchmarks.training import Run, count_classes, dropout, fit


class Net(Module):
    r"""Two layers or more, dropout before all."""

    def __init__(self, in_channels: int, hidden_channels: int,
                 out_channels: int, p: float, num_layers: int = 2) -> None:
        super().__init__()
        self.conv1 = sparse_first(
            GCNConv(in_channels, hidden_channels, cached=True))
        sizes = [hidden_channels] * (num_layers - 1) + [out_channels]
        self.convs = ModuleList([GCNConv(a, b, cached=True)
                                 for a, b in pairwise(sizes)])
        self.p = p

    def forward(self, x: Tensor, edge_index: Tensor,
                edge_weight: Tensor | None = None) -> Tensor:
        r"""The logits."""
        x = dropout(x, self.p, self.training)
        x = self.conv1(x, edge_index, edge_weight)
        for conv in self.convs:
            x = dropout(x.relu(), self.p, self.training)
            x = conv(x, edge_index, edge_weight)
        return x


def run(
    data: Data,
    seed: int,
    *,
    num_layers: int = 2,
    hidden_channels: int = 16,
    p: float = 0.5,
    lr: float = 0.01,
    weight_decay: float = 5e-4,
    epochs: int = 200,
    patience: int = 10,
) -> Run:
    r"""Trains the network."""
    seed_everything(seed)
    model = by_matrix(Net(data.x.size(1), hidden_channels,
                          count_classes(data.y), p, num_layers))
    return fit(model, data, lr=lr, weight_decay=weight_decay, epochs=epochs,
               patience=patience)
