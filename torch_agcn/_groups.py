r"""Sums over the nodes of each graph of a batch."""
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch_geometric.typing import OptTensor

from torch_agcn import _checks
from torch_agcn._edges import Edges
from torch_agcn._tracing import can_look, is_traced


class OneGraph:
    r"""All nodes belong to one graph."""

    def of_nodes(self, some: slice) -> 'OneGraph':
        return self

    def of_edges(self, row: Tensor) -> 'OneGraph':
        r"""The groups of edges that :obj:`row` receives."""
        return self

    def graphs(self, x: Tensor,
               edges: Edges) -> Iterator[tuple[Tensor, Edges, Any]]:
        r"""Yields features, edges and positions of these edges per graph."""
        yield x, edges, slice(None)

    def sum(self, value: Tensor) -> Tensor:
        r"""Sums :obj:`[*, N]` per graph."""
        return value.sum(-1)

    def sum_rows(self, x: Tensor) -> Tensor:
        r"""Sums :obj:`[*, N, F]` per graph."""
        return x.sum(-2)

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        r"""Inner products of :obj:`[*, N, F]` per graph."""
        if a.dim() > 2 or a.requires_grad or b.requires_grad or is_traced():
            return (a * b).sum((-2, -1))
        return torch.dot(a.reshape(-1), b.reshape(-1))

    def rows(self, value: Tensor) -> Tensor:
        r"""Expands rows per graph to nodes."""
        return value.unsqueeze(-2)

    def numbers(self, value: Tensor) -> Tensor:
        r"""Expands numbers per graph to :obj:`[*, N, 1]`."""
        return value[..., None, None]

    def amax(self, x: Tensor) -> Tensor:
        r"""The largest absolute value per graph."""
        if x.numel() == 0:
            return x.new_zeros(x.shape[:-2])
        return x.detach().abs().amax((-2, -1))

    def mean(self, x: Tensor) -> Tensor:
        total = self.sum(x.new_ones(x.size(-2))).clamp(min=1)
        return self.sum_rows(x) / total.unsqueeze(-1)


class ManyGraphs(OneGraph):
    r""":obj:`batch` assigns nodes to :obj:`size` graphs."""

    def __init__(self, batch: Tensor, size: int) -> None:
        self.batch, self.size = batch, size

    def of_nodes(self, some: slice) -> 'ManyGraphs':
        return ManyGraphs(self.batch[some], self.size)

    def of_edges(self, row: Tensor) -> 'ManyGraphs':
        return ManyGraphs(self.batch.index_select(0, row), self.size)

    def graphs(self, x: Tensor,
               edges: Edges) -> Iterator[tuple[Tensor, Edges, Any]]:
        nodes = _members(self.batch, self.size)
        number = torch.empty_like(  # index of a node in its graph
            self.batch, dtype=torch.long)
        for some in nodes:
            number[some] = torch.arange(some.numel(), device=x.device)
        for some, of_edges in zip(nodes, _members(self.batch[edges.row],
                                                  self.size)):
            row, col, weight = edges.select(of_edges)
            yield x[some], Edges(number[row], number[col], weight), of_edges

    def sum(self, value: Tensor) -> Tensor:
        return value.new_zeros(*value.shape[:-1], self.size).index_add(
            -1, self.batch, value)

    def sum_rows(self, x: Tensor) -> Tensor:
        return x.new_zeros(*x.shape[:-2], self.size, x.size(-1)).index_add(
            -2, self.batch, x)

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


def _members(batch: Tensor, size: int) -> list[Tensor]:
    order = batch.argsort(stable=True)
    return list(order.split(batch.bincount(minlength=size).tolist()))


def groups_of(owner: str, batch: OptTensor, batch_size: int | None,
              num_nodes: int, edges: Edges | None,
              counts: bool = True) -> OneGraph:
    r"""Reads a batch vector. Without :obj:`counts`, the number of graphs may
    be an upper bound.
    """
    if batch is None:
        _checks.check_batch_size(owner, batch_size)
        return OneGraph()
    _checks.check_batch(owner, batch, batch_size, num_nodes)
    if can_look(batch) and num_nodes > 0:
        size = _checks.check_graph_numbers(owner, batch, batch_size)
        if edges is not None:
            _checks.check_inside(owner, batch, edges.row, edges.col)
    elif batch_size is not None:
        size = batch_size
    elif not counts or num_nodes == 0:
        size = num_nodes
    elif is_traced():
        _checks.refuse(owner, "'batch' under 'torch.compile', where graphs "
                       'cannot be counted', "pass 'batch_size'")
    else:
        size = _checks.check_graph_numbers(owner, batch, None)
    return ManyGraphs(batch, size)
