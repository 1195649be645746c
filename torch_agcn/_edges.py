r"""Converts the graph formats of PyG to edges."""
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.typing import Adj, OptTensor, SparseTensor
from torch_geometric.utils import is_torch_sparse_tensor

from torch_agcn import _checks
from torch_agcn._tracing import can_look


class Edges(NamedTuple):
    r"""Edges from :obj:`col` to :obj:`row`, of weight one if not given."""

    row: Tensor
    col: Tensor
    weight: OptTensor

    def select(self, some: Any) -> 'Edges':
        weight = self.weight if self.weight is None else self.weight[some]
        return Edges(self.row[some], self.col[some], weight)

    def clone(self) -> 'Edges':
        return Edges(self.row.clone(), self.col.clone(), self.weight
                     if self.weight is None else self.weight.clone())

    def weighted(self, dtype: torch.dtype) -> 'Edges':
        r"""Sets missing weights to one."""
        if self.weight is not None:
            return self
        return self._replace(weight=torch.ones_like(self.row, dtype=dtype))


def to_edges(owner: str, edge_index: Adj, edge_weight: OptTensor,
             sizes: tuple[int, int], dtype: torch.dtype,
             flow: str = 'source_to_target') -> Edges:
    r"""Reads edges from :obj:`sizes[0]` sources to :obj:`sizes[1]` targets."""
    _checks.check_kinds(owner, edge_index, edge_weight)
    if isinstance(edge_index, SparseTensor) or is_torch_sparse_tensor(
            edge_index):
        _checks.check_matrix(owner, edge_index, edge_weight, sizes, flow)
        edges = _from_matrix(owner, edge_index)
    else:
        edges = _from_index(owner, edge_index, edge_weight, flow)
    if can_look(edges.row):
        _checks.check_edges(owner, *edges, sizes)
    if edges.weight is None:
        return edges
    return edges._replace(weight=edges.weight.to(dtype))


def _from_matrix(owner: str, adj: Any) -> Edges:
    if isinstance(adj, SparseTensor):
        return Edges(*adj.coo())
    if adj.layout == torch.sparse_csr:
        col = adj.col_indices().long()
        row = torch.repeat_interleave(adj.crow_indices().diff(),
                                      output_size=col.numel())
        return Edges(row, col, adj.values())
    if adj.layout == torch.sparse_coo:
        adj = adj.coalesce()
        return Edges(adj.indices()[0], adj.indices()[1], adj.values())
    _checks.check_layout(owner, adj)


def _from_index(owner: str, edge_index: Tensor, edge_weight: OptTensor,
                flow: str) -> Edges:
    _checks.check_index(owner, edge_index)
    if edge_weight is not None:
        _checks.check_edge_weight(owner, edge_weight, edge_index.size(1))
        edge_weight = edge_weight.view(-1)
    if isinstance(edge_index, EdgeIndex):
        edge_index = edge_index.as_tensor()
    source, target = edge_index.long().unbind(0)
    if flow == 'target_to_source':
        source, target = target, source
    return Edges(target, source, edge_weight)


def with_self_loops(edges: Edges, num_nodes: int, fill: float,
                    dtype: torch.dtype) -> Edges:
    r"""Adds remaining self-loops as PyG does, but leaves edges of weight zero
    where loops were, so that the number of edges is static.
    """
    row, col, _ = edges
    node = torch.arange(num_nodes, device=row.device)
    is_loop = row == col
    has_none = can_look(row) and not is_loop.any()
    index = torch.cat([row, node]), torch.cat([col, node])
    if has_none and edges.weight is None and fill == 1.0:
        return Edges(*index, None)
    weight = torch.ones_like(row, dtype=dtype) if (
        edges.weight is None) else edges.weight
    if has_none:
        loops = torch.full_like(node, fill, dtype=dtype)
    else:
        number = torch.arange(row.numel(), device=row.device)
        last = number.new_full((num_nodes + 1, ), -1).scatter_reduce(
            0, torch.where(is_loop, row, num_nodes), number, 'amax')[:-1]
        values = torch.cat([weight, weight.new_full((1, ), fill)])
        loops = values[torch.where(last < 0, row.numel(), last)]
        weight = torch.where(is_loop, 0.0, weight)
    return Edges(*index, torch.cat([weight, loops]))


def both_ways(edges: Edges, num_sources: int) -> Edges:
    r"""Appends the reverse edges, with sources numbered before targets."""
    row, col, weight = edges
    row = row + num_sources
    return Edges(torch.cat([row, col]), torch.cat([col, row]),
                 None if weight is None else torch.cat([weight, weight]))
