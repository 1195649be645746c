r"""Products with constant sparse matrices.

An embedding bag sums weighted rows of a table, which is several times as fast
as torch's sparse products. The transpose, which the backward pass needs, is
laid out once; torch sorts all entries anew in each epoch.
"""
from functools import cached_property
from typing import Any

import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag


def row_pointer(row: Tensor, size: int) -> Tensor:
    r"""The CSR row pointer of sorted or unsorted row indices."""
    count = torch.bincount(row, minlength=size)
    return torch.cat([count.new_zeros(1), count.cumsum(0)])


def weighted_sum(rowptr: Tensor, col: Tensor, value: Tensor | None,
                 x: Tensor) -> Tensor:
    r"""The product of a CSR matrix and ``x``; no value means ones."""
    return embedding_bag(col, x.contiguous(), rowptr, mode='sum',
                         per_sample_weights=value, include_last_offset=True)


class Layout:
    r"""Where a matrix has entries, sorted by rows, and, for the transpose, by
    columns: entry ``perm[i]`` comes as number ``i`` there.
    """

    def __init__(self, row: Tensor, col: Tensor,
                 shape: tuple[int, int]) -> None:
        self.shape, self.perm = shape, col.argsort(stable=True)
        self.rowptr, self.col = row_pointer(row, shape[0]).int(), col.int()
        self.back_rowptr = row_pointer(col, shape[1]).int()
        self.back_col = row[self.perm].int()


class CSR:
    r"""A constant matrix; ``matrix @ x`` is differentiable in ``x``."""

    def __init__(self, layout: Layout, value: Tensor) -> None:
        self.layout, self.value = layout, value

    @classmethod
    def from_edges(cls, row: Tensor, col: Tensor, value: Tensor,
                   shape: tuple[int, int]) -> 'CSR':
        r"""A matrix of entries in any order."""
        order = row.argsort(stable=True)
        return cls(Layout(row[order], col[order], shape), value[order])

    @classmethod
    def from_tensor(cls, x: Tensor) -> 'CSR':
        r"""A dense or sparse tensor's entries that are not zero."""
        x = x.coalesce() if x.is_sparse else x.to_sparse_coo().coalesce()
        return cls(Layout(*x.indices(), tuple(x.shape)), x.values())

    @classmethod
    def from_scipy(cls, A: sp.csr_matrix) -> 'CSR':
        r"""A SciPy matrix in single precision."""
        A = A.tocsr().sorted_indices().tocoo()
        row, col = (torch.from_numpy(i).long() for i in (A.row, A.col))
        return cls(Layout(row, col, A.shape),
                   torch.from_numpy(A.data).float())

    @cached_property
    def back_value(self) -> Tensor:
        r"""The values of the transpose."""
        return self.value.index_select(0, self.layout.perm)

    def size(self, dim: int) -> int:
        r"""A side of the matrix."""
        return self.layout.shape[dim]

    def __matmul__(self, x: Tensor) -> Tensor:
        r"""The product with a dense matrix."""
        return _Product.apply(self, x)

    def back(self, x: Tensor) -> Tensor:
        r"""The product of the transpose, which is not differentiable."""
        layout = self.layout
        return weighted_sum(layout.back_rowptr, layout.back_col,
                            self.back_value, x)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: CSR, x: Tensor) -> Tensor:
        ctx.matrix = matrix
        layout = matrix.layout
        return weighted_sum(layout.rowptr, layout.col, matrix.value, x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        return None, ctx.matrix.back(grad)
