r"""SemiEmb: semi-supervised embedding.

Weston, Ratle and Collobert, `"Deep Learning via Semi-Supervised Embedding"
<https://doi.org/10.1145/1390156.1390303>`_ (2008): a perceptron that sees one
node at a time. The graph enters through the loss, the cross-entropy plus
:math:`\lambda` times the mean over sampled edges and as many sampled non-edges
of

.. math::
    \ell(\mathbf{h}_i, \mathbf{h}_j) = \begin{cases}
        \| \mathbf{h}_i - \mathbf{h}_j \|^2 & (i, j) \text{ an edge} \\
        \max(0, m - \| \mathbf{h}_i - \mathbf{h}_j \|)^2 & \text{otherwise.}
    \end{cases}
"""
import torch
from torch import Tensor
from torch.nn import Linear, Module
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.utils import negative_sampling

from benchmarks.training import Run, dropout, fit, sizes, sparse_features


def embedding_loss(h: Tensor, edge_index: Tensor, non_edge_index: Tensor,
                   margin: float = 1.0) -> Tensor:
    """Returns the mean of the pair losses."""
    def difference(pairs: Tensor) -> Tensor:
        return h.index_select(0, pairs[0]) - h.index_select(0, pairs[1])

    near, far = difference(edge_index), difference(non_edge_index)
    # The norm has no gradient at zero, which equal rows would reach.
    distance = (far.pow(2).sum(dim=-1) + 1e-12).sqrt()
    return torch.cat([near.pow(2).sum(dim=-1),
                      (margin - distance).clamp(min=0).pow(2)]).mean()


class SemiEmb(Module):
    """A two-layer perceptron that keeps its hidden layer in reach."""

    def __init__(self, in_channels: int, hidden_channels: int,
                 out_channels: int, p: float) -> None:
        super().__init__()
        self.lin1 = Linear(in_channels, hidden_channels)
        self.lin2 = Linear(hidden_channels, out_channels)
        self.p = p

    def embed(self, x: Tensor) -> Tensor:
        """Returns the hidden layer, where the graph's loss acts."""
        return (x @ self.lin1.weight.t() + self.lin1.bias).relu()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Returns the logits; ``edge_index`` is not looked at."""
        h = self.embed(dropout(x, self.p, self.training))
        return self.lin2(dropout(h, self.p, self.training))


def run(data: Data, seed: int, *, hidden_channels: int = 64, p: float = 0.5,
        weight: float = 1.0, margin: float = 1.0, pairs: int = 5000,
        lr: float = 0.01, weight_decay: float = 5e-4, epochs: int = 500,
        patience: int = 50) -> Run:
    """Trains both losses together, on new pairs in every epoch."""
    seed_everything(seed)
    data = sparse_features(data)
    model = SemiEmb(*sizes(data, hidden_channels), p)
    edges = data.edge_index[:, data.edge_index[0] < data.edge_index[1]]
    count = min(pairs, edges.size(1))

    def penalty() -> Tensor:
        near = edges[:, torch.randperm(edges.size(1))[:count]]
        far = negative_sampling(data.edge_index, data.num_nodes, count)
        return weight * embedding_loss(model.embed(data.x), near, far, margin)

    return fit(model, data, lr=lr, weight_decay=weight_decay, epochs=epochs,
               patience=patience, penalty=penalty)
