r"""A graph: an operator to propagate with, and a Laplacian to measure on."""
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch_geometric.typing import OptTensor
from torch_geometric.utils import scatter

from torch_agcn._edges import Edges
from torch_agcn._spmm import CSR
from torch_agcn._tracing import (
    accumulation_dtype,
    can_look,
    is_traced,
    lazy_property,
)


class Messages:
    r"""A square matrix as messages along a list of edges: what :class:`CSR`
    is, for those who want to see messages or learn weights, and in torch's
    own operations alone. Messages are sent by :obj:`send`, if it is given.
    """

    is_symmetric = False  # as far as is known

    def __init__(self, edges: Edges, num_nodes: int,
                 send: Callable[[Tensor, 'Messages'], Tensor] | None = None,
                 ) -> None:
        self.edges, self.num_nodes, self._send = edges, num_nodes, send
        self.num_edges = edges.row.numel()

    @lazy_property
    def index(self) -> Tensor:
        r"""Senders and receivers."""
        return torch.stack([self.edges.col, self.edges.row])

    def part(self, begin: int, end: int) -> Edges:
        r"""Some of the entries."""
        return self.edges.select(slice(begin, end))

    def received(self, dtype: torch.dtype) -> Tensor:
        r"""The sums of rows."""
        row, _, weight = self.edges.weighted(dtype)
        return scatter(weight, row, dim_size=self.num_nodes, reduce='sum')

    def sent(self, dtype: torch.dtype) -> Tensor:
        r"""The sums of columns."""
        _, col, weight = self.edges.weighted(dtype)
        return scatter(weight, col, dim_size=self.num_nodes, reduce='sum')

    def scaled(self, scale: Tensor) -> 'Messages':
        r"""Rows and columns multiplied by :obj:`scale`."""
        row, col, weight = self.edges
        value = scale[col] if weight is None else scale[col] * weight
        return self._with(self.edges._replace(weight=value * scale[row]))

    def to(self, dtype: torch.dtype) -> 'Messages':
        r"""Entries of another type."""
        weight = self.edges.weight
        if weight is None or weight.dtype == dtype:
            return self
        return self._with(self.edges._replace(weight=weight.to(dtype)))

    def to_targets(self, num_sources: int) -> 'Messages':
        r"""Of a bipartite graph, what targets receive: the first half of the
        entries.
        """
        return self._with(self.edges.select(slice(0, self.num_edges // 2)))

    def __call__(self, x: Tensor) -> Tensor:
        if self._send is not None:
            return self._send(x, self)
        row, col, weight = self.edges
        message = x.index_select(-2, col)
        if weight is not None:
            message = weight.unsqueeze(-1) * message
        return scatter(message, row, dim=-2, dim_size=self.num_nodes,
                       reduce='sum')

    def _with(self, edges: Edges) -> 'Messages':
        return Messages(edges, self.num_nodes, self._send)


Operator: TypeAlias = CSR | Messages


class Terms(NamedTuple):
    r"""What the relative energy needs of each node: :math:`r` and
    :math:`w / r`, the ratio :math:`w / \tilde{d}`, what it receives if all
    features are one over :math:`r` (which is :math:`r`, unless the degrees
    are those of another graph), and :math:`w` where :math:`\tilde{d} = 0`.
    """

    root: Tensor
    weight: Tensor
    ratio: Tensor
    shift: Tensor
    lone: Tensor


class Laplacian:
    r"""A graph to measure energies on. Self-loops add to degrees and to
    nothing else.

    Args:
        adj (Operator): The adjacency matrix :math:`\mathbf{\tilde{A}}`.
        dtype (torch.dtype): The type of the features.
        degree (torch.Tensor, optional): The degrees :math:`\tilde{d}` to
            scale features by, if they are not those of :obj:`adj`.
    """

    def __init__(self, adj: Operator, dtype: torch.dtype,
                 degree: OptTensor = None) -> None:
        self.adj, self._dtype = adj, dtype
        self.received = adj.received(accumulation_dtype(dtype))
        self.degree = self.received if degree is None else degree

    @lazy_property
    def P(self) -> Operator:  # noqa: N802
        r"""The normalized adjacency matrix."""
        return self.adj.scaled(self.scale).to(self._dtype)

    @lazy_property
    def scale(self) -> Tensor:
        r"""The entries of :math:`\mathbf{\tilde{D}}^{-1/2}`; zero for isolated
        nodes, and with a finite gradient there.
        """
        positive = self.degree > 0
        return torch.where(positive, torch.where(
            positive, self.degree, 1.0).rsqrt(), 0.0)

    @lazy_property
    def mean_degree(self) -> Tensor:
        r"""The mean :math:`w` of received and sent degrees."""
        return (self.received + self.adj.sent(self.received.dtype)) / 2

    @lazy_property
    def terms(self) -> Terms:
        r"""What the relative energy needs, :obj:`[N, 1]` each."""
        w, scale = self.mean_degree[:, None], self.scale[:, None]
        degree = self.degree[:, None]
        return Terms(degree * scale, w * scale, w * scale * scale,
                     self.received[:, None] * scale,
                     torch.where(degree > 0, 0.0, w))

    @lazy_property
    def is_even(self) -> bool:
        r"""Whether it is known that the graph is undirected and has no node of
        degree zero: then :math:`w = \tilde{d}`.
        """
        return (self.adj.is_symmetric and self.degree is self.received
                and can_look(self.degree) and bool((self.degree > 0).all()))

    def settle(self) -> None:
        r"""Computes all that is computed when it is needed."""
        _ = self.P, self.terms, self.is_even


class Graph(NamedTuple):
    r"""A graph to propagate with :obj:`P` and to measure on :obj:`L`."""

    P: Operator
    L: Laplacian

    @property
    def is_matrix(self) -> bool:
        r"""Whether :obj:`P` is a matrix with its own degrees, energies are
        measured on it, too, and nothing is traced.
        """
        return (isinstance(self.P, CSR) and self.L.P is self.P
                and self.L.degree is self.L.received and not is_traced())
