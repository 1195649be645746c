r"""The graph as sparse matrices: one form out of PyG's many, and a fast
sparse-dense product.

Throughout, :obj:`row` is the receiving node of an edge and :obj:`col` the
sending one, so that entry :math:`(row, col)` of the matrix weighs what
:obj:`row` hears from :obj:`col`.
"""
import warnings
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric import EdgeIndex, is_compiling
from torch_geometric.typing import Adj, OptTensor, SparseTensor
from torch_geometric.utils import is_torch_sparse_tensor, scatter


class Edges(NamedTuple):
    r"""The edges of a graph; no weight means that each weighs one."""

    row: Tensor
    col: Tensor
    weight: OptTensor


def is_traced() -> bool:
    r"""Whether operations are compiled, or transformed by :mod:`torch.func`
    or forward-mode differentiation: no value may then be looked at, and all
    that is done must be torch's own.
    """
    return (is_compiling() or torch._C._are_functorch_transforms_active()
            or torch.autograd.forward_ad._current_level >= 0)


def calls_ops() -> bool:
    r"""Whether a graph is compiled that can call what we register; those that
    are exported are to run without us.
    """
    exporting = getattr(torch.compiler, 'is_exporting', None)  # torch 2.7
    return torch.compiler.is_dynamo_compiling() and not (
        exporting is not None and exporting())


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    r"""The type sums over nodes and edges are taken in."""
    return torch.promote_types(dtype, torch.float32)


def to_edges(
    edge_index: Adj,
    edge_weight: OptTensor,
    num_nodes: int | tuple[int, int],
    dtype: torch.dtype,
    flow: str = 'source_to_target',
    owner: str = 'torch_agcn',
) -> Edges:
    r"""Brings any form of a graph that PyG knows into :class:`Edges` with
    weights of type :obj:`dtype`, and refuses with a remedy what is no graph on
    :obj:`num_nodes` nodes, or from as many nodes as its first number says to
    as many as its second.

    What needs a look at the values is looked at on the CPU in eager mode
    only: elsewhere it would stall the device or break the compiled graph.
    """
    sizes = (num_nodes if isinstance(num_nodes, tuple) else
             (num_nodes, num_nodes))
    if isinstance(edge_index, SparseTensor) or is_torch_sparse_tensor(
            edge_index):
        edges = _from_matrix(edge_index, edge_weight, sizes, flow, owner)
    else:
        edges = _from_index(edge_index, edge_weight, flow, owner)
    if edges.row.is_cpu and not is_traced():
        _check_values(edges, sizes, owner)
    if edges.weight is not None:
        edges = edges._replace(weight=edges.weight.to(dtype))
    return edges


def _from_matrix(adj: Any, edge_weight: OptTensor, sizes: tuple[int, int],
                 flow: str, owner: str) -> Edges:
    if edge_weight is not None:
        raise ValueError(f"'{owner}' got a sparse matrix and 'edge_weight' as "
                         f"well; store the weights as the matrix's values")
    if flow == 'target_to_source':
        raise ValueError(f"'{owner}' cannot turn the flow of a sparse matrix "
                         f"(flow='target_to_source'); pass its transpose and "
                         f"flow='source_to_target' instead")
    size = [adj.size(0), adj.size(1)]
    if size != [sizes[1], sizes[0]]:
        remedy = ("pass a square one with as many rows as 'x'"
                  if sizes[0] == sizes[1] else
                  'pass the transposed one, with a row for each that receives')
        raise ValueError(f"'{owner}' got an adjacency matrix of size {size} "
                         f'for {_count(sizes)} nodes; {remedy}')
    if isinstance(adj, SparseTensor):
        row, col, weight = adj.coo()
        return Edges(row, col, weight)
    if adj.layout == torch.sparse_csr:
        col = adj.col_indices().long()
        row = torch.repeat_interleave(
            adj.crow_indices().diff(), output_size=col.numel())
        return Edges(row, col, adj.values())
    if adj.layout == torch.sparse_coo:
        adj = adj.coalesce()
        row, col = adj.indices()
        return Edges(row, col, adj.values())
    raise ValueError(f"'{owner}' does not take sparse matrices of layout "
                     f"'{adj.layout}'; pass the transposed adjacency matrix "
                     f"in CSR, e.g. 'adj.t()' of a CSC matrix or "
                     f"'adj.to_sparse_csr()'")


def _from_index(edge_index: Any, edge_weight: OptTensor, flow: str,
                owner: str) -> Edges:
    check_kind(edge_index, owner)
    if (edge_index.dim() != 2 or edge_index.size(0) != 2
            or edge_index.dtype not in (torch.int64, torch.int32)):
        raise ValueError(f"'{owner}' got 'edge_index' of shape "
                         f"{list(edge_index.shape)} and type "
                         f"'{edge_index.dtype}'; pass integers (torch.long) "
                         f'of shape [2, num_edges]')
    if edge_weight is not None and edge_weight.dim() == 2:
        edge_weight = edge_weight.squeeze(-1)
    if edge_weight is not None and (
            edge_weight.dim() != 1
            or edge_weight.size(0) != edge_index.size(1)
            or not edge_weight.is_floating_point()):
        raise ValueError(f"'{owner}' got 'edge_weight' of shape "
                         f"{list(edge_weight.shape)} and type "
                         f"'{edge_weight.dtype}' for {edge_index.size(1)} "
                         f'edges; pass one floating-point number per edge')
    if isinstance(edge_index, EdgeIndex):
        edge_index = edge_index.as_tensor()
    edge_index = edge_index.long()
    source, target = edge_index[0], edge_index[1]
    if flow == 'target_to_source':
        source, target = target, source
    return Edges(target, source, edge_weight)


def check_kind(edge_index: Any, owner: str) -> None:
    r"""Refuses what is neither edges nor a matrix."""
    if not isinstance(edge_index, (Tensor, SparseTensor)):
        raise ValueError(f"'{owner}' got 'edge_index' of type "
                         f"'{type(edge_index).__name__}'; pass a tensor of "
                         f'shape [2, num_edges] or a sparse matrix')


def check_devices(owner: str, tensor: Tensor, **inputs: Any) -> None:
    r"""Refuses inputs, or pairs of them, that are elsewhere than a tensor."""
    if is_traced():
        return
    for key, value in inputs.items():
        for part in value if isinstance(value, (tuple, list)) else [value]:
            if isinstance(part, SparseTensor):
                device = part.device()
            elif isinstance(part, Tensor):
                device = part.device
            else:
                continue
            if device != tensor.device:
                raise ValueError(f"'{owner}' got '{key}' on '{device}', and "
                                 f"other tensors on '{tensor.device}'; move "
                                 f"all to one device by 'to'")


def _count(sizes: tuple[int, int]) -> str:
    return (str(sizes[0]) if sizes[0] == sizes[1] else
            f'{sizes[0]} sending and {sizes[1]} receiving')


def _check_values(edges: Edges, sizes: tuple[int, int], owner: str) -> None:
    row, col, weight = edges
    if row.numel() == 0:
        return
    for index, size in [(col, sizes[0]), (row, sizes[1])]:
        low, high = (int(bound) for bound in index.aminmax())
        if low < 0 or high >= size:
            raise ValueError(f"'{owner}' got node {low if low < 0 else high} "
                             f"in 'edge_index', but 'x' has {_count(sizes)} "
                             f'nodes; all node numbers must lie in '
                             f'[0, {size})')
    if weight is not None and not (weight.min() >= 0
                                   and weight.max() < float('inf')):
        raise ValueError(f"'{owner}' got an edge weight of "
                         f'{weight.min().item():g} to '
                         f'{weight.max().item():g}; the energy is a sum over '
                         f'edges that must not be negative: pass finite '
                         f"weights >= 0, e.g. 'edge_weight.abs()'")


def apart_from_self_loops(
    edges: Edges,
    num_nodes: int,
    fill_value: float,
    dtype: torch.dtype,
) -> tuple[Edges, Tensor | float]:
    r"""The edges between different nodes, and the weight of each node's
    self-loop, which is :obj:`fill_value` where there is none; just that if it
    is known that there is none at all.

    Loops leave an edge of weight zero behind: the number of edges then depends
    on no value, and neither a device has to be waited for nor a compiled graph
    to be broken.
    """
    row, col, weight = edges
    is_loop = row == col
    if row.is_cpu and not is_traced() and not is_loop.any():
        return edges, fill_value
    if weight is None and fill_value == 1.0:
        loop_weight = torch.ones(num_nodes, dtype=dtype, device=row.device)
    else:
        if weight is None:
            weight = torch.ones_like(row, dtype=dtype)
        # The last loop of a node wins, as in PyG; without one, `fill_value`:
        number = torch.arange(row.numel(), device=row.device)
        last = number.new_full((num_nodes + 1, ), -1).scatter_reduce(
            0, torch.where(is_loop, row, num_nodes), number, 'amax')[:-1]
        values = torch.cat([weight, weight.new_full((1, ), fill_value)])
        loop_weight = values[torch.where(last < 0, row.numel(), last)]
    weight = ((~is_loop).to(dtype) if weight is None else
              torch.where(is_loop, 0.0, weight))
    return Edges(row, col, weight), loop_weight


def with_self_loops(edges: Edges, num_nodes: int, fill_value: float,
                    dtype: torch.dtype) -> Edges:
    r"""Gives each node without a self-loop one of weight :obj:`fill_value`,
    as :meth:`torch_geometric.utils.add_remaining_self_loops` does, behind all
    other edges.
    """
    (row, col, weight), loops = apart_from_self_loops(edges, num_nodes,
                                                      fill_value, dtype)
    nodes = torch.arange(num_nodes, device=row.device)
    if weight is None:
        weight = torch.ones_like(row, dtype=dtype)
    if not isinstance(loops, Tensor):
        loops = weight.new_full((num_nodes, ), loops)
    return Edges(torch.cat([row, nodes]), torch.cat([col, nodes]),
                 torch.cat([weight, loops]))


def bipartite(edges: Edges, num_sources: int) -> Edges:
    r"""Edges from sources to targets as an undirected graph on both: first
    the sources, then the targets. The edges as they were come first, and then
    their ways back.
    """
    row, col, weight = edges
    row = row + num_sources
    return Edges(torch.cat([row, col]), torch.cat([col, row]),
                 None if weight is None else torch.cat([weight, weight]))


def degrees(edges: Edges, num_nodes: int, dtype: torch.dtype) -> Tensor:
    r"""What each node receives."""
    weight = edges.weight
    if weight is None and edges.row.is_cpu and not is_traced():
        return torch.bincount(edges.row, minlength=num_nodes).to(dtype)
    if weight is None:
        weight = torch.ones_like(edges.row, dtype=dtype)
    return scatter(weight, edges.row.long(), dim_size=num_nodes, reduce='sum')


def mean_degrees(edges: Edges, received: Tensor) -> Tensor:
    r"""The mean of what each node receives and what it sends."""
    sent = degrees(Edges(edges.col, edges.row, edges.weight),
                   received.numel(), received.dtype)
    return (received + sent) / 2


def inverse_sqrt(degree: Tensor) -> Tensor:
    r"""The entries of :math:`\mathbf{D}^{-1/2}`; zero for isolated nodes, and
    with a finite gradient there.
    """
    positive = degree > 0
    return torch.where(positive,
                       torch.where(positive, degree, 1.0).pow(-0.5), 0.0)


def gcn_weight(edges: Edges, degree: Tensor) -> Tensor:
    r"""The entries of :math:`\mathbf{D}^{-1/2}\mathbf{A}\mathbf{D}^{-1/2}`."""
    scale = inverse_sqrt(degree)
    if edges.weight is None:
        return scale[edges.col] * scale[edges.row]
    return scale[edges.col] * edges.weight * scale[edges.row]


# Sparse-dense products #######################################################


class Matrix(NamedTuple):
    r"""A CSR matrix in compiled graphs, which know no sparse tensors."""

    rowptr: Tensor
    col: Tensor
    value: Tensor


def csr_of(adj: Any) -> Matrix:
    r"""What a CSR matrix consists of."""
    return adj if isinstance(adj, Matrix) else Matrix(
        adj.crow_indices(), adj.col_indices(), adj.values())


def order_of(index: Tensor, size: int) -> Tensor:
    r"""The order in which numbers below :obj:`size` ascend, equal ones as
    they come.
    """
    if index.is_cpu and size <= 2**16:
        # What NumPy sorts by its digits, torch compares.
        return torch.from_numpy(np.argsort(
            index.numpy().astype(np.uint16), kind='stable'))
    return torch.sort(index, stable=True).indices


def to_csr(row: Tensor, col: Tensor, num_nodes: int,
           *values: OptTensor) -> tuple[Tensor, Tensor, list[OptTensor]]:
    r"""Sorts edges by :obj:`row`; returns row pointers, columns and the
    :obj:`values` in the new order.
    """
    perm, rowptr = (_sort_op if calls_ops() else _sort)(row, num_nodes)
    return rowptr, col.index_select(0, perm), [
        v if v is None else v.index_select(0, perm) for v in values]


def _sort(row: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    perm = order_of(row, num_nodes)
    rowptr = torch._convert_indices_from_coo_to_csr(
        row.index_select(0, perm), num_nodes)
    return perm, rowptr


def short(value: Tensor, copy: bool = False) -> Tensor:
    r"""Node numbers as 32-bit integers where they suffice for all edges: half
    the memory to keep, and to read in each product. What is no integer stays
    what it is.
    """
    fits = value.dtype == torch.int64 and value.numel() < 2**31
    return value.to(torch.int32 if fits else value.dtype, copy=copy)


@cache
def _say_nothing_of_beta() -> None:
    # That torch's support is in beta state is said with the first matrix, and
    # tells users of a layer nothing.
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        zero = torch.zeros(1, dtype=torch.long)
        torch.sparse_csr_tensor(zero, zero[:0], zero[:0].float(), (0, 0),
                                check_invariants=False)


def csr_tensor(rowptr: Tensor, col: Tensor, value: Tensor) -> Any:
    r"""A square CSR matrix of :class:`torch.sparse`, or of ours."""
    if calls_ops():
        return Matrix(rowptr, col, value)
    _say_nothing_of_beta()
    size = (rowptr.numel() - 1, rowptr.numel() - 1)
    return torch.sparse_csr_tensor(rowptr.to(col.dtype), col, value, size,
                                   check_invariants=False)


def transpose(adj: Any) -> Any:
    r"""The transpose of a CSR matrix, in CSR."""
    rowptr, col, value = csr_of(adj)
    row = torch.repeat_interleave(rowptr.diff(), output_size=col.numel())
    rowptr, col, (value, ) = to_csr(col, row, rowptr.numel() - 1, value)
    assert value is not None
    return csr_tensor(rowptr, col, value)


def product(adj: Any, x: Tensor, adj_back: Any = None) -> Tensor:
    r"""The product of a CSR matrix and :obj:`x` of shape :obj:`[*, N, F]`,
    which is differentiable in compiled graphs only, given the transpose.
    """
    shape, (rowptr, col, value) = x.shape, csr_of(adj)
    x = (x if calls_ops() else x.detach()).to(value.dtype)
    if x.dim() > 2:  # Neighbours are summed once for all the stacked inputs.
        x = x.movedim(-2, 0).reshape(shape[-2], x[..., 0, :].numel()
                                     if shape[-2] else 0)
    if calls_ops():
        out = _product_op(rowptr, col, value, x, *(adj_back or adj))
    else:
        out = _product(rowptr, col, value, x)
    if len(shape) > 2 and shape[-2] > 0:
        out = out.view(shape[-2], *shape[:-2], shape[-1]).movedim(0, -2)
    return out if shape[-2] > 0 else out.new_zeros(shape)


def _product(rowptr: Tensor, col: Tensor, value: Tensor, x: Tensor) -> Tensor:
    r"""The product with a matrix of features.

    To sum weighted rows of a table is what an embedding bag does, and its
    kernels do it faster than the sparse libraries, on any device and for
    every type.
    """
    if x.numel() == 0 or value.numel() == 0:
        return x.new_zeros(rowptr.numel() - 1, x.size(1))
    return torch.nn.functional.embedding_bag(
        col, x.contiguous(), rowptr, mode='sum', per_sample_weights=value,
        include_last_offset=True)


class _SpMM(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, adj: Tensor,
                adj_back: Tensor | None) -> Tensor:
        ctx.adj, ctx.adj_back, ctx.dtype = adj, adj_back, x.dtype
        return product(adj, x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        back = transpose(ctx.adj) if ctx.adj_back is None else ctx.adj_back
        # Through `spmm`, so that it can be differentiated again:
        return spmm(back, grad, ctx.adj).to(ctx.dtype), None, None


def spmm(adj: Any, x: Tensor, adj_back: Any = None) -> Tensor:
    r"""The differentiable product of a CSR matrix and :obj:`x`.

    The gradient is the product with the transpose: :obj:`adj_back` if it is
    given (the matrix itself where that is symmetric), otherwise it is made
    when it is needed.
    """
    if calls_ops():
        if adj_back is None and torch.is_grad_enabled() and x.requires_grad:
            adj_back = transpose(adj)
        return product(adj, x, adj_back)
    if not (x.requires_grad and torch.is_grad_enabled()):
        return product(adj, x)
    return _SpMM.apply(x, adj, adj_back)


# For compiled graphs #########################################################

# The compiler makes atomic additions of sums over neighbors, one by one, and
# slow. These it calls as they are:


@torch.library.custom_op('torch_agcn::sort', mutates_args=())
def _sort_op(row: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    return _sort(row, num_nodes)


@_sort_op.register_fake
def _(row: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    return (row.new_empty(row.size(0), dtype=torch.long),
            row.new_empty(num_nodes + 1, dtype=torch.long))


@torch.library.custom_op('torch_agcn::product', mutates_args=())
def _product_op(rowptr: Tensor, col: Tensor, value: Tensor, x: Tensor,
                rowptr_back: Tensor, col_back: Tensor,
                value_back: Tensor) -> Tensor:
    return _product(rowptr, col, value, x)


@_product_op.register_fake
def _(rowptr: Tensor, col: Tensor, value: Tensor, x: Tensor,
      *back: Tensor) -> Tensor:
    return x.new_empty(rowptr.size(0) - 1, x.size(1))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    rowptr, col, value, _, *back = inputs
    ctx.save_for_backward(*back, rowptr, col, value)


def _turn_back(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    rowptr, col, value, *back = ctx.saved_tensors
    out = _product_op(rowptr, col, value, grad, *back)
    return None, None, None, out, None, None, None


_product_op.register_autograd(_turn_back, setup_context=_keep)
