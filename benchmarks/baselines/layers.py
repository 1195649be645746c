r"""PyG's layers, faster: sparse features first, and propagation by a matrix.

Of bag-of-words features, one in a hundred is set. PyG's and our layers take
sparse features as they are, and dropout keeps their positions
(:meth:`benchmarks.training.dropout`). What torch does badly is the product's
backward, for which it sorts all entries anew in each epoch.
"""
from copy import copy
from typing import TypeVar

from torch import Tensor
from torch.nn import Module
from torch_geometric.nn import GCN2Conv, GCNConv, Linear

from benchmarks.training import SparseFeatures
from torch_agcn._sparse import csr_tensor, spmm, to_csr, transpose

M = TypeVar('M', bound=Module)


class SparseLinear(Linear):
    r"""PyG's linear layer, faster on sparse features whose positions stay."""

    _layout: SparseFeatures | None = None
    _indices: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        r"""The product with the weights, and the bias if there is one."""
        if not x.is_sparse:
            return super().forward(x)
        indices = x._indices()
        if self._layout is None or not _is_same(indices, self._indices):
            self._layout, self._indices = SparseFeatures(x), indices
        features = copy(self._layout)
        features.value = x._values()
        out = features @ self.weight.t()
        return out if self.bias is None else out + self.bias


def _is_same(a: Tensor, b: Tensor | None) -> bool:
    # `b` is kept, hence its memory cannot have become another tensor's.
    return b is not None and a.data_ptr() == b.data_ptr() and (
        a.shape == b.shape)


def sparse_first(module: M) -> M:
    r"""Lets all of PyG's linear layers in a module take sparse features."""
    for child in module.modules():
        if type(child) is Linear:
            child.__class__ = SparseLinear
    return module


class Product:
    r"""What PyG's GCN layers call ``propagate``, as one product with a sparse
    matrix: several times as fast as a row of features per edge.
    """

    edge_index: Tensor | None = None

    def __call__(self, edge_index: Tensor, x: Tensor,
                 edge_weight: Tensor) -> Tensor:
        if edge_index is not self.edge_index:
            source, target = edge_index
            rowptr, col, (value, ) = to_csr(target, source, x.size(0),
                                            edge_weight)
            self.adj = csr_tensor(rowptr, col, value)
            self.back = transpose(self.adj)
            self.edge_index = edge_index
        return spmm(self.adj, x, self.back)


def by_matrix(model: M) -> M:
    r"""Lets all of PyG's GCN layers in a model use :class:`Product`."""
    for conv in model.modules():
        if isinstance(conv, (GCNConv, GCN2Conv)):
            conv.propagate = Product()
    return model
