r"""GNNGuard: a GCN whose edges weigh as much as their ends are alike.

Zhang and Zitnik, `"GNNGuard: Defending Graph Neural Networks against
Adversarial Attacks" <https://arxiv.org/abs/2006.08149>`_ (2020). In each
layer, an edge has the cosine similarity :math:`s_{ij}` of its ends' features
at that layer, or none below a threshold, and

.. math::
    w_{ij} = \exp\Big(\frac{s_{ij}}{\sum_k s_{kj}}\Big), \qquad
    w_{jj} = \exp\Big(\frac{1}{d_j + 1}\Big), \qquad \mathbf{P} =
    \mathbf{D}^{-\frac{1}{2}} \mathbf{W} \mathbf{D}^{-\frac{1}{2}}

with the number :math:`d_j` of edges that node :math:`j` keeps and the sum
:math:`D_{jj} = \sum_i w_{ij}`. This is the authors' program for a GCN. The
paper has neither the exponential nor the second normalisation, and divides by
the sum of the node that receives, the program by that of the one that sends.
As in the program, the second layer has but edges that the first one kept, no
gradient flows into weights, and the memory of the first layer's weights and
the learnt pruning are off.

What differs: self-loops are always as above, where the program looks at node
0 to tell whether they are there, and rounding decides; biases are vectors,
the program's are single numbers; there is weight decay and dropout on the
first layer as in :mod:`benchmarks.baselines.gcn`, the program has neither;
and the best epoch is that of the lowest validation loss alone.
"""
import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import normalize
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

from benchmarks.baselines.gcn_jaccard import row_products
from benchmarks.baselines.layers import sparse_first
from benchmarks.sparse import CSR, Layout
from benchmarks.training import Run, adjacency, dropout, fit, sizes, to_scipy


class Guard:
    r"""Weighs the edges of a symmetric adjacency matrix. The features ``X``
    decide what edges there are at all, and the matrix ``first``; edges of a
    similarity below the threshold are dropped.
    """

    def __init__(self, A: sp.csr_matrix, X: sp.csr_matrix,
                 threshold: float) -> None:
        N, self.threshold = A.shape[0], threshold
        norm = np.sqrt(np.asarray(X.multiply(X).sum(axis=1)).ravel())
        X = sp.diags(1 / np.where(norm > 0, norm, 1)) @ X
        pairs = sp.triu(A, 1).tocoo()  # each edge once
        cosine = row_products(X, pairs.row, pairs.col)
        keep = (cosine >= threshold) & (cosine > 0)
        self.kept = float(keep.mean())
        i, j = (torch.from_numpy(k[keep]).long()
                for k in (pairs.row, pairs.col))
        node = torch.arange(N)
        row, col = torch.cat([i, j, node]), torch.cat([j, i, node])
        self.order = row.argsort(stable=True)
        self.is_loop = self.order >= 2 * i.numel()
        self.pairs = i, j
        self.row, self.col = row[self.order], col[self.order]
        self.layout = Layout(self.row, self.col, (N, N))
        self.first = self.weigh(torch.from_numpy(cosine[keep]))

    def __call__(self, x: Tensor) -> CSR:
        r"""The matrix P by hidden features."""
        x = normalize(x.detach(), dim=-1)
        i, j = (x.index_select(0, k) for k in self.pairs)
        return self.weigh(i.mul_(j).sum(dim=-1))

    def weigh(self, s: Tensor) -> CSR:
        r"""The matrix P; where edges are dropped, there are zeros."""
        row, col = self.row, self.col
        s = s.masked_fill(s < self.threshold, 0)
        s = torch.cat([s, s, s.new_zeros(self.layout.shape[0])])[self.order]
        total = torch.bincount(col, s).clamp(min=1e-12)
        share = 1 / (torch.bincount(col, (s != 0).to(s.dtype)) + 1)
        s = torch.where(self.is_loop, share[col], s / total[col])
        w = s.exp() * (s != 0)
        scale = torch.bincount(col, w).rsqrt()
        return CSR(self.layout, (scale[row] * w * scale[col]).float())


class GuardedConv(GCNConv):
    def forward(self, x: Tensor, adj: CSR) -> Tensor:
        r"""PyG's layer with a matrix in place of edges."""
        return adj @ self.lin(x) + self.bias


class Net(Module):
    r"""Two layers; the graph is in the guard, handed over once."""

    def __init__(self, guard: Guard, in_channels: int, hidden_channels: int,
                 out_channels: int, p: float) -> None:
        super().__init__()
        self.conv1 = sparse_first(GuardedConv(in_channels, hidden_channels))
        self.conv2 = GuardedConv(hidden_channels, out_channels)
        self.guard, self.p = guard, p

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        r"""The logits; ``edge_index`` was used before."""
        x = dropout(x, self.p, self.training)
        x = self.conv1(x, self.guard.first).relu()
        adj = self.guard(x)
        return self.conv2(dropout(x, self.p, self.training), adj)


def run(data: Data, seed: int, *, threshold: float = 0.1,
        hidden_channels: int = 16, p: float = 0.5, lr: float = 0.01,
        weight_decay: float = 5e-4, epochs: int = 200,
        patience: int = 10) -> Run:
    r"""Weighs the first layer's edges, then trains with GCN's schedule."""
    seed_everything(seed)
    guard = Guard(adjacency(data), to_scipy(data.x), threshold)
    model = Net(guard, *sizes(data, hidden_channels), p)
    out = fit(model, data, lr=lr, weight_decay=weight_decay, epochs=epochs,
              patience=patience)
    out.extra['kept'] = guard.kept
    return out
