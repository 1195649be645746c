r"""Sparse matrix products by embedding bags."""
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.typing import OptTensor

from torch_agcn._edges import Edges
from torch_agcn._tracing import (
    can_look,
    is_traced,
    lazy_property,
    uses_custom_ops,
)

# Below this size, conversion to bfloat16 costs more than it saves.
LOW_FROM = 2**20


ALL = slice(None)


def blocks(num_rows: int, width: int) -> list[slice]:
    r"""Blocks of rows that fit into caches."""
    step = max(2**20 // max(width, 1), 1)
    if num_rows <= step:
        return [ALL]
    return [slice(i, i + step) for i in range(0, num_rows, step)]


def take(x: Tensor, some: slice) -> Tensor:
    return x if some is ALL else x[..., some, :]


def is_low(x: Tensor) -> bool:
    r"""Whether autocast asks for bfloat16 and it is faster."""
    return (x.is_cpu and x.numel() >= LOW_FROM
            and x.dtype in (torch.float32, torch.bfloat16)
            and torch.is_autocast_enabled('cpu')
            and torch.get_autocast_dtype('cpu') == torch.bfloat16
            and not is_traced())


class CSR:
    r"""A square matrix whose entries are one if :obj:`value` is not given."""

    def __init__(self, rowptr: Tensor, col: Tensor, value: OptTensor,
                 is_symmetric: bool = False) -> None:
        self.rowptr, self.col, self.value = rowptr, col, value
        self.is_symmetric = is_symmetric  # known to be
        self._t: CSR | None = None
        # Set by `scaled`:
        self._factors: tuple[CSR, Tensor] | None = None

    @classmethod
    def from_edges(cls, edges: Edges, num_nodes: int) -> 'CSR':
        row, col, value = edges
        perm, rowptr = _sort(row, num_nodes)
        if perm is None:
            return cls(rowptr, col, value)
        return cls(rowptr, col.index_select(0, perm),
                   value if value is None else value.index_select(0, perm))

    @property
    def num_nodes(self) -> int:
        return self.rowptr.numel() - 1

    @property
    def num_edges(self) -> int:
        return self.col.numel()

    @property
    def edges(self) -> Edges:
        return Edges(self.row, self.col, self.value)

    @property
    def row(self) -> Tensor:
        return torch.repeat_interleave(self.rowptr.diff(),
                                       output_size=self.col.numel())

    @property
    def t(self) -> 'CSR':
        if self.is_symmetric:
            return self
        if self._t is None and self._factors is not None:
            adj, scale = self._factors
            self._t = adj.t.scaled(scale)
        elif self._t is None:
            self._t = CSR.from_edges(Edges(self.col, self.row, self.value),
                                     self.num_nodes)
        return self._t

    @lazy_property
    def rounded(self) -> 'Rounded':
        r"""The matrix for products in bfloat16."""
        return Rounded(self, *(self._factors or (self, None)))

    def part(self, begin: int, end: int) -> Edges:
        r"""The entries from :obj:`begin` to :obj:`end`."""
        place = torch.arange(begin, end, dtype=self.rowptr.dtype,
                             device=self.rowptr.device)
        row = torch.searchsorted(self.rowptr, place, right=True) - 1
        return Edges(row, self.col[begin:end], self.value if self.value is None
                     else self.value[begin:end])

    def received(self, dtype: torch.dtype) -> Tensor:
        r"""The row sums."""
        if self.value is None:
            return self.rowptr.diff().to(dtype)
        return self.value.new_zeros(self.num_nodes).index_add(
            0, self.row, self.value)

    def sent(self, dtype: torch.dtype) -> Tensor:
        r"""The column sums."""
        value = self.value
        if value is None and can_look(self.col):
            return torch.bincount(self.col, minlength=self.num_nodes).to(dtype)
        if value is None:
            value = torch.ones_like(self.col, dtype=dtype)
        return value.new_zeros(self.num_nodes).index_add(0, self.col, value)

    def scaled(self, scale: Tensor) -> 'CSR':
        r"""Scales rows and columns."""
        value = scale.index_select(0, self.col)
        value = value if self.value is None else value * self.value
        out = self._with(value * scale.index_select(0, self.row))
        out._factors = self, scale
        return out

    def to(self, dtype: torch.dtype) -> 'CSR':
        if self.value is None or self.value.dtype == dtype:
            return self
        return self._with(self.value.to(dtype))

    def to_targets(self, num_sources: int) -> 'CSR':
        r"""The rows of the targets of a bipartite graph."""
        first = self.num_edges // 2
        rowptr = torch.cat([self.rowptr.new_zeros(num_sources),
                            self.rowptr[num_sources:] - first])
        return CSR(rowptr, self.col[first:], self.value if self.value is None
                   else self.value[first:])

    def kept(self) -> 'CSR':
        r"""A copy for caches: sorted, 32-bit indices, with its transpose."""
        back = self.t  # Transposing sorts the columns.
        out, back = back.t._to_int32(), back._to_int32()
        out.is_symmetric = _is_equal(out, back)
        out._t = None if out.is_symmetric else back
        return out

    def product(self, x: Tensor) -> Tensor:
        r"""The product with :obj:`[*, N, F]`, without gradient."""
        dtype = x.dtype if self.value is None else self.value.dtype
        shape, x = x.shape, x.to(dtype)
        if len(shape) == 2:
            return _product(self.rowptr, self.col, self.value, x)
        # Sums neighbors once for all stacked inputs.
        wide = x.movedim(-2, 0).reshape(shape[-2], x.numel() // max(
            shape[-2], 1))
        out = _product(self.rowptr, self.col, self.value, wide)
        return out.view(shape[-2], *shape[:-2], shape[-1]).movedim(
            0, -2).contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        if uses_custom_ops():
            return self._compiled_product(x)
        if is_traced():  # by torch.func
            out = x.index_select(-2, self.col)
            if self.value is not None:
                out = self.value.unsqueeze(-1) * out
            return torch.zeros_like(x, dtype=out.dtype).index_add(
                -2, self.row, out)
        if x.requires_grad and torch.is_grad_enabled():
            return _SpMM.apply(x, self, [])
        return self.product(x)

    def _compiled_product(self, x: Tensor) -> Tensor:
        back = self.t if torch.is_grad_enabled() else self
        dtype = x.dtype if self.value is None else self.value.dtype
        shape, x = x.shape, x.to(dtype)
        wide = x if len(shape) == 2 else x.movedim(-2, 0).flatten(1)
        out = torch.ops.torch_agcn.product(
            self.rowptr, self.col, self.value, wide,
            back.rowptr, back.col, back.value)
        return out if len(shape) == 2 else out.view(
            shape[-2], *shape[:-2], shape[-1]).movedim(0, -2).contiguous()

    def _with(self, value: Tensor) -> 'CSR':
        # Only for values that keep the symmetry.
        return CSR(self.rowptr, self.col, value, self.is_symmetric)

    def _to_int32(self) -> 'CSR':
        if self.col.numel() >= 2**31:
            return self
        return CSR(self.rowptr.int(), self.col.int(), self.value)


def _is_equal(a: CSR, b: CSR) -> bool:
    if a.col.is_meta:
        return False
    return (torch.equal(a.rowptr, b.rowptr) and torch.equal(a.col, b.col)
            and (a.value is None or torch.equal(a.value, b.value)))


def _sort(row: Tensor, num_nodes: int) -> tuple[Tensor | None, Tensor]:
    r"""The sorting permutation (:obj:`None` if sorted) and row pointers."""
    if uses_custom_ops():
        perm, rowptr = torch.ops.torch_agcn.sort(row, num_nodes)
        return perm, rowptr
    perm = None
    if not (can_look(row) and bool((row[1:] >= row[:-1]).all())):
        perm = _order(row, num_nodes)
        row = row.index_select(0, perm)
    return perm, torch._convert_indices_from_coo_to_csr(row, num_nodes)


def _order(row: Tensor, num_nodes: int) -> Tensor:
    if row.is_cpu and num_nodes <= 2**16:
        # NumPy radix-sorts 16-bit integers.
        return torch.from_numpy(np.argsort(row.numpy().astype(np.uint16),
                                           kind='stable'))
    return torch.sort(row, stable=True).indices


def _product(rowptr: Tensor, col: Tensor, value: OptTensor,
             x: Tensor) -> Tensor:
    if x.numel() == 0 or col.numel() == 0:
        return x.new_zeros(rowptr.numel() - 1, x.size(1))
    return torch._embedding_bag_forward_only(
        x.contiguous(), col, rowptr, False, 0, False, value, True)[0]


class Rounded:
    r"""Products with :math:`\mathbf{S} \mathbf{A} \mathbf{S}` in bfloat16, one
    factor at a time.
    """

    def __init__(self, exact: CSR, adj: CSR, scale: OptTensor) -> None:
        self._exact = exact
        self.adj = adj.to(torch.bfloat16)
        self.scale = (torch.ones(adj.num_nodes) if scale is None else
                      scale).unsqueeze(-1)

    @lazy_property
    def t(self) -> 'Rounded':
        return self if self._exact.is_symmetric else self._exact.t.rounded

    def product(self, x: Tensor) -> Tensor:
        value, parts = self._exact.value, blocks(x.size(-2), x.size(-1))
        given = torch.empty_like(x, dtype=torch.bfloat16)
        for some in parts:
            take(given, some).copy_(take(x, some) * take(self.scale, some))
        found = self.adj.product(given)
        out = torch.empty_like(x, dtype=x.dtype if value is None else
                               value.dtype)
        for some in parts:
            torch.mul(take(found, some), take(self.scale, some),
                      out=take(out, some))
        return out

    def __call__(self, x: Tensor) -> Tensor:
        if x.requires_grad and torch.is_grad_enabled():
            return _SpMM.apply(x, self, [])
        return self.product(x)


def lead_back(x: Tensor, adj: CSR | Rounded, product: Tensor) -> Tensor:
    r"""Adds the gradient to a known product."""
    if x.requires_grad and torch.is_grad_enabled():
        return _SpMM.apply(x, adj, [product])
    return product


class _SpMM(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, adj: CSR | Rounded,
                found: list[Tensor]) -> Tensor:
        ctx.adj, ctx.dtype = adj, x.dtype
        return found[0] if found else adj.product(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        # A call instead of `product` supports double backward:
        return ctx.adj.t(grad).to(ctx.dtype), None, None


# Operators for compiled graphs ###############################################

# The compiler turns sums over neighbors into slow atomic additions, but calls
# custom operators as they are.

_LIBRARY = torch.library.Library('torch_agcn', 'FRAGMENT')


def define(schema: str, run: Any, fake: Any) -> None:
    r"""Registers an operator and its shape function."""
    name = schema.split('(')[0]
    _LIBRARY.define(schema)
    _LIBRARY.impl(name, run, 'CompositeExplicitAutograd')
    torch.library.register_fake(f'torch_agcn::{name}', fake, lib=_LIBRARY)


def _run_sort(row: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    perm, rowptr = _sort(row, num_nodes)
    return (torch.arange(row.numel(), device=row.device) if perm is None else
            perm), rowptr


def _fake_sort(row: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    return (row.new_empty(row.size(0), dtype=torch.long),
            row.new_empty(num_nodes + 1))


def _run_product(rowptr: Tensor, col: Tensor, value: OptTensor, x: Tensor,
                 *back: OptTensor) -> Tensor:
    return _product(rowptr, col, value, x)


def _fake_product(rowptr: Tensor, col: Tensor, value: OptTensor, x: Tensor,
                  *back: OptTensor) -> Tensor:
    return x.new_empty(rowptr.size(0) - 1, x.size(1))


def _save_matrices(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    rowptr, col, value, _, *back = inputs
    ctx.save_for_backward(*back, rowptr, col, value)


def _product_backward(ctx: Any, grad: Tensor) -> tuple[OptTensor, ...]:
    rowptr, col, value, *back = ctx.saved_tensors
    out = torch.ops.torch_agcn.product(rowptr, col, value, grad, *back)
    return None, None, None, out, None, None, None


define('sort(Tensor row, SymInt num_nodes) -> (Tensor, Tensor)', _run_sort,
       _fake_sort)
define('product(Tensor rowptr, Tensor col, Tensor? value, Tensor x, '
       'Tensor rowptr_back, Tensor col_back, Tensor? value_back) -> Tensor',
       _run_product, _fake_product)
torch.library.register_autograd('torch_agcn::product', _product_backward,
                                setup_context=_save_matrices, lib=_LIBRARY)
