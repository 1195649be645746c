r"""A first layer for bag-of-words features, of which one in a hundred is set.

PyG's and our layers take sparse features as they are, and dropout keeps their
positions (:meth:`benchmarks.training.dropout`). What torch does badly is the
product's backward, for which it sorts all entries anew in each epoch.
"""
from copy import copy
from typing import TypeVar

from torch import Tensor
from torch.nn import Module
from torch_geometric.nn import Linear

from benchmarks.training import SparseFeatures

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
