r"""GAT: the graph attention network.

Velickovic et al., `"Graph Attention Networks"
<https://arxiv.org/abs/1710.10903>`_ (2018). Its authors wait for 100 epochs,
where other methods here wait for 50: it learns at half their rate.
"""
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import elu, leaky_relu
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.nn import GATConv
from torch_geometric.utils import (
    add_self_loops,
    remove_self_loops,
    scatter,
    sort_edge_index,
)

from benchmarks.baselines.layers import Stack
from benchmarks.sparse import Layout, weighted_sum
from benchmarks.training import Run, decay_on, drop, fit, sizes

FAR = 60.0  # its negative exponential is far from zero


class Neighbors(NamedTuple):
    r"""Edges with self-loops, sorted by the node that receives: its number
    and its neighbour's, the number of each edge, and the matrix's layout.
    """

    row: Tensor
    col: Tensor
    every: Tensor
    layout: Layout


def neighbors(edge_index: Tensor, num_nodes: int) -> Neighbors:
    r"""Sorts the edges of a graph both ways."""
    edge_index, _ = remove_self_loops(edge_index)
    edge_index, _ = add_self_loops(edge_index, num_nodes=num_nodes)
    return as_neighbors(sort_edge_index(edge_index, sort_by_row=False),
                        num_nodes)


def as_neighbors(edge_index: Tensor, num_nodes: int) -> Neighbors:
    r"""Sorted edges as they are, and sorted the other way."""
    col, row = edge_index
    every = torch.arange(row.numel(), dtype=torch.int)
    return Neighbors(row, col, every, Layout(row, col, (num_nodes, num_nodes)))


class Attention(torch.autograd.Function):
    r"""The softmax over each node's edges, and the sum of its neighbours that
    it weighs: what PyG does edge by edge, without a row of features for each
    edge but where gradients need it.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, logit: Tensor, scale: Tensor | None,
                graph: Neighbors) -> Tensor:
        weight = logit.exp()
        total = weighted_sum(graph.layout.rowptr, graph.every, None, weight)
        weight = weight / total.index_select(0, graph.row)
        kept = weight if scale is None else weight * scale
        ctx.save_for_backward(x, weight, kept, scale)
        ctx.graph = graph
        return _sum_heads(graph.layout.rowptr, graph.layout.col, kept, x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, weight, kept, scale = ctx.saved_tensors
        graph, layout = ctx.graph, ctx.graph.layout
        grad_x = _sum_heads(layout.back_rowptr, layout.back_col,
                            kept.index_select(0, layout.perm), grad)
        slope = (grad.index_select(0, graph.row)
                 * x.index_select(0, graph.col)).sum(dim=-1)
        slope = weight * (slope if scale is None else slope * scale)
        total = weighted_sum(layout.rowptr, graph.every, None, slope)
        return (grad_x, slope - weight * total.index_select(0, graph.row),
                None, None)


def _sum_heads(rowptr: Tensor, col: Tensor, weight: Tensor,
               x: Tensor) -> Tensor:
    heads = zip(weight.t().contiguous(), x.transpose(0, 1))
    return torch.stack([weighted_sum(rowptr, col, w, h) for w, h in heads],
                       dim=1)


class AttentionConv(GATConv):
    r"""PyG's layer, several times as fast on the CPU."""

    def forward(self, x: Tensor, graph: Neighbors) -> Tensor:
        r"""The weighted mean of neighbours."""
        x = self.lin(x).view(-1, self.heads, self.out_channels)
        source = (x * self.att_src).sum(dim=-1)
        target = (x * self.att_dst).sum(dim=-1)
        logit = leaky_relu(source.index_select(0, graph.col)
                           + target.index_select(0, graph.row),
                           self.negative_slope)
        with torch.no_grad():
            low, high = source.aminmax(dim=0)
            # No less than any logit of the node, and not so much more that
            # the exponential of all of them would vanish; or else the most:
            top = leaky_relu(high + target, self.negative_slope)
            if not (high - low).max() < FAR:
                top = scatter(logit, graph.row, dim_size=x.size(0),
                              reduce='max')
        scale = None
        if self.training and self.dropout > 0:
            scale = drop(torch.ones_like(logit), self.dropout)
        out = Attention.apply(
            x, logit - top.index_select(0, graph.row), scale, graph)
        out = out.flatten(1) if self.concat else out.mean(dim=1)
        return out if self.bias is None else out + self.bias


class Net(Stack):
    r"""Two layers or more; the last one takes the mean of its heads."""

    def __init__(self, in_channels: int, hidden_channels: int,
                 out_channels: int, heads: int, out_heads: int,
                 p: float, num_layers: int, graph: Neighbors) -> None:
        width = heads * hidden_channels
        inner = [in_channels, *[width] * (num_layers - 2)]
        super().__init__(
            *(AttentionConv(a, hidden_channels, heads, dropout=p)
              for a in inner),
            AttentionConv(width, out_channels, out_heads, concat=False,
                          dropout=p), p=p, act=elu, graph=(graph,))


def run(data: Data, seed: int, *, num_layers: int = 2,
        hidden_channels: int = 8, heads: int = 8, out_heads: int = 1,
        p: float = 0.6, lr: float = 0.005, weight_decay: float = 5e-4,
        epochs: int = 1000, patience: int = 100) -> Run:
    r"""Trains the network; weight decay is on all layers, as the authors'."""
    seed_everything(seed)
    model = Net(*sizes(data, hidden_channels), heads, out_heads, p,
                num_layers, neighbors(data.edge_index, data.x.size(0)))
    return fit(model, data, lr=lr, epochs=epochs, patience=patience,
               params=decay_on(model, model, weight_decay))
