r"""Which nodes belong to one graph: sums per graph, and back to the nodes."""
from typing import Any

import torch
from torch import Tensor
from torch_geometric.typing import OptTensor

from torch_agcn import _checks
from torch_agcn._tracing import can_look, is_traced


class OneGraph:
    r"""All nodes are one graph. What there is per graph has no dimension."""

    def __getitem__(self, some: slice) -> 'OneGraph':
        return self

    def of_edges(self, row: Tensor) -> 'OneGraph':
        r"""The same for edges that nodes :obj:`row` receive."""
        return self

    def sum(self, value: Tensor) -> Tensor:
        r"""Sums numbers per node :obj:`[*, N]` to numbers per graph."""
        return value.sum(-1)

    def sum_rows(self, x: Tensor, weight: Tensor) -> Tensor:
        r"""Sums weighted rows :obj:`[*, N, F]` to rows per graph."""
        return (weight.unsqueeze(-1) * x).sum(-2)

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        r"""The inner product of :obj:`[*, N, F]` and the same per graph."""
        if a.dim() > 2 or a.requires_grad or b.requires_grad or is_traced():
            return (a * b).sum((-2, -1))
        return torch.dot(a.reshape(-1), b.reshape(-1))

    def mean(self, x: Tensor) -> Tensor:
        r"""The mean row per graph."""
        one = x.new_ones(x.size(-2))
        total = self.sum(one).clamp(min=1).unsqueeze(-1)
        return self.sum_rows(x, one) / total

    def rows(self, value: Tensor) -> Tensor:
        r"""Rows per graph as rows per node."""
        return value.unsqueeze(-2)

    def numbers(self, value: Tensor) -> Tensor:
        r"""Numbers per graph as numbers per node :obj:`[*, N, 1]`."""
        return value[..., None, None]

    def amax(self, x: Tensor) -> Tensor:
        r"""The largest magnitude per graph, zero where there is none."""
        if x.numel() == 0:
            return x.new_zeros(x.shape[:-2])
        return x.detach().abs().amax((-2, -1))


class ManyGraphs(OneGraph):
    r"""Nodes are assigned to :obj:`size` graphs by :obj:`batch`. What there
    is per graph has a dimension :obj:`[*, B]`.
    """

    def __init__(self, batch: Tensor, size: int) -> None:
        self.batch, self.size = batch, size

    def __getitem__(self, some: slice) -> 'ManyGraphs':
        return ManyGraphs(self.batch[some], self.size)

    def of_edges(self, row: Tensor) -> 'ManyGraphs':
        return ManyGraphs(self.batch.index_select(0, row), self.size)

    def sum(self, value: Tensor) -> Tensor:
        return value.new_zeros(*value.shape[:-1], self.size).index_add(
            -1, self.batch, value)

    def sum_rows(self, x: Tensor, weight: Tensor) -> Tensor:
        return x.new_zeros(*x.shape[:-2], self.size, x.size(-1)).index_add(
            -2, self.batch, weight.unsqueeze(-1) * x)

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        return self.sum((a * b).sum(-1))

    def rows(self, value: Tensor) -> Tensor:
        return value.index_select(-2, self.batch)

    def numbers(self, value: Tensor) -> Tensor:
        return value.index_select(-1, self.batch).unsqueeze(-1)

    def amax(self, x: Tensor) -> Tensor:
        top = x.new_zeros(*x.shape[:-2], self.size)
        if x.numel() == 0:
            return top
        value = x.detach().abs().amax(-1)
        return top.scatter_reduce(-1, self.batch.expand_as(value), value,
                                  'amax')


def groups_of(owner: str, batch: OptTensor, batch_size: int | None,
              num_nodes: int, adj: Any, counts: bool = True) -> OneGraph:
    r"""The graphs of a batch vector; :obj:`counts` says that their number
    must be exact. No vector means one graph.
    """
    if batch is None:
        return OneGraph()
    _checks.check_batch(owner, batch, batch_size, num_nodes)
    if is_traced() or not batch.is_cpu:
        if batch_size is None and not counts:
            # There are no more graphs than nodes: a bound costs less than
            # waiting for the device to tell the number.
            return ManyGraphs(batch, num_nodes)
        if batch_size is None and is_traced():
            _checks.refuse(owner, "'batch' under 'torch.compile', where "
                           'graphs cannot be counted', "pass 'batch_size'")
    if batch_size is None and num_nodes == 0:
        return ManyGraphs(batch, 0)
    if not can_look(batch):
        return ManyGraphs(batch, int(batch.max()) + 1
                          if batch_size is None else batch_size)
    if num_nodes > 0:
        batch_size = _checks.check_graph_numbers(owner, batch, batch_size)
        row, col, _ = adj.edges
        _checks.check_inside(owner, batch, row, col)
    return ManyGraphs(batch, batch_size)
