r"""GCN-PN: a GCN that keeps the distances of its nodes.

Zhao and Akoglu, `"PairNorm: Tackling Oversmoothing in GNNs"
<https://arxiv.org/abs/1909.12223>`_ (2020): hidden features are centred and
scaled to a constant mean square. As its authors do, neighbours are averaged
by :math:`\mathbf{\tilde{D}}^{-1} \mathbf{\tilde{A}}`.
"""
from itertools import pairwise

from torch import Tensor
from torch.nn import Module, ModuleList
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, PairNorm
from torch_geometric.utils import add_remaining_self_loops, degree

from benchmarks.baselines.layers import by_matrix, sparse_first
from benchmarks.training import Run, count_classes, dropout, fit


class Net(Module):
    r"""Graph convolutions with a norm between them, dropout before all."""

    def __init__(self, data: Data, hidden_channels: int, out_channels: int,
                 num_layers: int, scale: float, individually: bool,
                 p: float) -> None:
        super().__init__()
        sizes = [data.x.size(1), *[hidden_channels] * (num_layers - 1),
                 out_channels]
        self.convs = ModuleList([GCNConv(a, b, normalize=False)
                                 for a, b in pairwise(sizes)])
        sparse_first(self.convs[0])
        self.norm = PairNorm(scale, individually)
        self.p = p
        self.edge_index, _ = add_remaining_self_loops(
            data.edge_index, num_nodes=data.num_nodes)
        target = self.edge_index[1]
        self.edge_weight = 1 / degree(target, data.num_nodes)[target]

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        r"""The logits, on the graph the network was made for."""
        for i, conv in enumerate(self.convs):
            if i > 0:
                x = self.norm(x).relu()
            x = dropout(x, self.p, self.training)
            x = conv(x, self.edge_index, self.edge_weight)
        return x


def run(
    data: Data,
    seed: int,
    *,
    num_layers: int = 2,
    scale: float = 1.0,
    individually: bool = False,
    hidden_channels: int = 64,
    p: float = 0.6,
    lr: float = 0.005,
    weight_decay: float = 5e-4,
    epochs: int = 1000,
    patience: int = 100,
) -> Run:
    r"""Trains the network, weight decay on all layers."""
    seed_everything(seed)
    model = by_matrix(Net(data, hidden_channels, count_classes(data.y),
                          num_layers, scale, individually, p))
    params = [dict(params=model.parameters(), weight_decay=weight_decay)]
    return fit(model, data, lr=lr, params=params, epochs=epochs,
               patience=patience)
