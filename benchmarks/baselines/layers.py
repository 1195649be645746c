r"""A stack of layers, and PyG's layers, faster: sparse features first, and
propagation by a matrix.

Of bag-of-words features, one in a hundred is set. PyG's and our layers take
sparse features as they are, and dropout keeps their positions
(:meth:`benchmarks.training.dropout`). What torch does badly are the products
(:mod:`benchmarks.sparse`).
"""
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import Module, ModuleList
from torch_geometric.nn import GCN2Conv, GCNConv, Linear

from benchmarks.sparse import CSR, Layout
from benchmarks.training import dropout

M = TypeVar('M', bound=Module)


class SparseLinear(Linear):
    r"""PyG's linear layer, faster on sparse features whose positions stay."""

    _layout: Layout | None = None
    _indices: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        r"""The product with the weights, and the bias if there is one."""
        if not x.is_sparse:
            return super().forward(x)
        x = x.coalesce()
        indices = x.indices()
        if self._layout is None or not _is_same(indices, self._indices):
            self._layout = Layout(*indices, tuple(x.shape))
            self._indices = indices
        out = CSR(self._layout, x.values()) @ self.weight.t()
        return out if self.bias is None else out + self.bias


def _is_same(a: Tensor, b: Tensor | None) -> bool:
    # `b` is kept, hence its memory cannot have become another tensor's.
    return b is not None and a.data_ptr() == b.data_ptr() and (
        a.shape == b.shape)


def weights(in_channels: int, out_channels: int) -> SparseLinear:
    r"""A matrix for sparse or dense features, initialised as PyG's layers."""
    return SparseLinear(in_channels, out_channels, bias=False,
                        weight_initializer='glorot')


def sparse_first(module: M) -> M:
    r"""Lets all of PyG's linear layers in a module take sparse features."""
    for child in module.modules():
        if type(child) is Linear:
            child.__class__ = SparseLinear
    return module


class Stack(Module):
    r"""Layers one after the other, dropout ``p`` before each and ``act``
    between two. They are called with features and ``graph``, or with features,
    edges and their weights.
    """

    def __init__(self, first: Module, *others: Module, p: float,
                 graph: tuple[Any, ...] | None = None,
                 act: Callable[[Tensor], Tensor] = torch.relu) -> None:
        super().__init__()
        self.conv1, self.convs = sparse_first(first), ModuleList(others)
        self.p, self.graph, self.act = p, graph, act

    def graph_of(self, x: Any, edge_index: Tensor,
                 edge_weight: Tensor | None) -> tuple[Any, ...]:
        r"""What the layers are called with beside features."""
        return (edge_index, edge_weight) if self.graph is None else self.graph

    def forward(self, x: Any, edge_index: Tensor,
                edge_weight: Tensor | None = None) -> Tensor:
        r"""The logits."""
        graph = self.graph_of(x, edge_index, edge_weight)
        x = self.conv1(dropout(x, self.p, self.training), *graph)
        for conv in self.convs:
            x = conv(dropout(self.act(x), self.p, self.training), *graph)
        return x


class Product:
    r"""What PyG's GCN layers call ``propagate``, as one product with a sparse
    matrix: several times as fast as a row of features per edge.
    """

    edge_index: Tensor | None = None

    def __call__(self, edge_index: Tensor, x: Tensor,
                 edge_weight: Tensor) -> Tensor:
        if edge_index is not self.edge_index:
            source, target = edge_index
            self.adj = CSR.from_edges(target, source, edge_weight,
                                      (x.size(0), x.size(0)))
            self.edge_index = edge_index
        return self.adj @ x


def by_matrix(model: M, product: Callable[..., Tensor] | None = None) -> M:
    r"""Lets all of PyG's GCN layers in a model use a :class:`Product` each, or
    the one that is given.
    """
    for conv in model.modules():
        if isinstance(conv, (GCNConv, GCN2Conv)):
            conv.propagate = product or Product()
    return model
