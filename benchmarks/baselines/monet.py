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
from torch.nn import Linear
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.nn import GMMConv
from torch_geometric.utils import add_remaining_self_loops, degree, scatter

from benchmarks.baselines.gat import FAR, Attention, Neighbors, as_neighbors
from benchmarks.baselines.layers import Stack, weights
from benchmarks.training import Run, decay_on, fit, sizes


class MoNetConv(GMMConv):
    r"""PyG's layer with weights that sum to one at each node and kernel."""

    graph: Neighbors | None = None

    def __init__(self, in_channels: int, out_channels: int,
                 kernel_size: int) -> None:
        super().__init__(in_channels, out_channels, dim=2,
                         kernel_size=kernel_size, aggr='sum',
                         root_weight=False)
        del self.g  # a matrix that sparse features can be multiplied with
        self.lin = weights(in_channels, out_channels * kernel_size)
        self.map = Linear(2, 2)
        # Around the coordinates, which lie between minus one and one:
        torch.nn.init.uniform_(self.mu, -1, 1)
        torch.nn.init.ones_(self.sigma)

    def forward(self, x: Tensor, edge_index: Tensor,
                edge_attr: Tensor) -> Tensor:
        r"""The mixture of the neighbours' features, for one graph."""
        x = self.lin(x).view(-1, self.kernel_size, self.out_channels)
        if self.graph is None:
            order = edge_index[1].argsort(stable=True)
            self.graph = as_neighbors(edge_index[:, order], x.size(0))
            # Both coordinates as one integer, to find equal pairs:
            pairs = edge_attr[order].contiguous().view(torch.long).flatten()
            keys, self.place = pairs.unique(return_inverse=True)
            self.places = keys[:, None].view(torch.float)
        u = self.map(self.places).tanh()  # edges of equal degrees share it
        z = (u[:, None] - self.mu) / (self.sigma.abs() + 1e-6)
        # Gaussians that are normalised are a softmax of their exponents:
        logit = (-0.5 * z.pow(2).sum(dim=-1)).index_select(0, self.place)
        if logit.min() < -FAR:  # the exponential of all might vanish
            row = self.graph.row
            top = scatter(logit.detach(), row, dim_size=x.size(0),
                          reduce='max')
            logit = logit - top.index_select(0, row)
        out = Attention.apply(x, logit, None, self.graph)
        return out.sum(dim=1) + self.bias


def coordinates(data: Data) -> tuple[Tensor, Tensor]:
    r"""The edges with self-loops, and where they lie before the map."""
    edge_index, _ = add_remaining_self_loops(data.edge_index,
                                             num_nodes=data.num_nodes)
    root = degree(edge_index[1], data.num_nodes).pow(-0.5)
    return edge_index, root[edge_index.flip(0)].t()


def run(data: Data, seed: int, *, kernel_size: int = 2,
        hidden_channels: int = 16, p: float = 0.5, lr: float = 0.01,
        weight_decay: float = 5e-4, epochs: int = 500,
        patience: int = 50) -> Run:
    r"""Trains the network."""
    seed_everything(seed)
    inner, hidden, outer = sizes(data, hidden_channels)
    model = Stack(MoNetConv(inner, hidden, kernel_size),
                  MoNetConv(hidden, outer, kernel_size), p=p,
                  graph=coordinates(data))
    return fit(model, data, lr=lr, epochs=epochs, patience=patience,
               params=decay_on(model.conv1, model, weight_decay, fused=True))
