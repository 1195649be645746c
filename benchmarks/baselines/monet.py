r"""MoNet: mixtures of Gaussians on pseudo-coordinates of the edges.

Monti et al., `"Geometric Deep Learning on Graphs and Manifolds Using Mixture
Model CNNs" <https://arxiv.org/abs/1611.08402>`_ (2017). Edge :math:`(i, j)`
lies at :math:`\mathbf{u}_{ij} = \tanh(\mathbf{A} (d_i^{-1/2}, d_j^{-1/2})
+ \mathbf{b})`, a map that each layer learns, and kernel :math:`k` weighs it by
a Gaussian of :math:`\mathbf{u}_{ij}`, normalised over the neighbours of
:math:`i`.
"""
import torch
from torch import Tensor
from torch.nn import Linear, Module
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.nn import GMMConv
from torch_geometric.utils import add_remaining_self_loops, degree, softmax

from benchmarks.baselines.layers import SparseLinear
from benchmarks.training import Run, count_classes, dropout, fit


class MoNetConv(GMMConv):
    r"""PyG's layer with weights that sum to one at each node and kernel."""

    def __init__(self, in_channels: int, out_channels: int,
                 kernel_size: int) -> None:
        super().__init__(in_channels, out_channels, dim=2,
                         kernel_size=kernel_size, aggr='sum',
                         root_weight=False)
        del self.g  # a matrix that sparse features can be multiplied with
        self.lin = SparseLinear(in_channels, out_channels * kernel_size,
                                bias=False, weight_initializer='glorot')
        self.map = Linear(2, 2)
        # Around the coordinates, which lie between minus one and one:
        torch.nn.init.uniform_(self.mu, -1, 1)
        torch.nn.init.ones_(self.sigma)

    def forward(self, x: Tensor, edge_index: Tensor,
                edge_attr: Tensor) -> Tensor:
        r"""The mixture of the neighbours' features."""
        x = self.lin(x)
        return self.propagate(edge_index, x=(x, x), edge_attr=self.map(
            edge_attr).tanh()) + self.bias

    def message(self, x_j: Tensor, edge_attr: Tensor,
                index: Tensor) -> Tensor:
        r"""The features of neighbours, weighed."""
        z = (edge_attr[:, None] - self.mu) / (self.sigma.abs() + 1e-6)
        # Gaussians that are normalised are a softmax of their exponents:
        weight = softmax(-0.5 * z.pow(2).sum(dim=-1), index)
        x_j = x_j.view(-1, self.kernel_size, self.out_channels)
        return (x_j * weight[:, :, None]).sum(dim=1)


class Net(Module):
    r"""Two layers, dropout before both."""

    def __init__(self, data: Data, hidden_channels: int, out_channels: int,
                 kernel_size: int, p: float) -> None:
        super().__init__()
        self.conv1 = MoNetConv(data.x.size(1), hidden_channels, kernel_size)
        self.conv2 = MoNetConv(hidden_channels, out_channels, kernel_size)
        self.p = p
        self.edge_index, _ = add_remaining_self_loops(
            data.edge_index, num_nodes=data.num_nodes)
        root = degree(self.edge_index[1], data.num_nodes).pow(-0.5)
        self.pseudo = root[self.edge_index.flip(0)].t()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        r"""The logits, on the graph the network was made for."""
        x = dropout(x, self.p, self.training)
        x = self.conv1(x, self.edge_index, self.pseudo).relu()
        x = dropout(x, self.p, self.training)
        return self.conv2(x, self.edge_index, self.pseudo)


def run(
    data: Data,
    seed: int,
    *,
    kernel_size: int = 2,
    hidden_channels: int = 16,
    p: float = 0.5,
    lr: float = 0.01,
    weight_decay: float = 5e-4,
    epochs: int = 500,
    patience: int = 50,
) -> Run:
    r"""Trains the network."""
    seed_everything(seed)
    model = Net(data, hidden_channels, count_classes(data.y), kernel_size, p)
    return fit(model, data, lr=lr, weight_decay=weight_decay, epochs=epochs,
               patience=patience)
