r"""A graph: an operator to propagate with, and a Laplacian to measure on."""
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch_geometric.typing import Adj, OptTensor
from torch_geometric.utils import scatter

from torch_agcn._edges import Edges, both_ways, to_edges, with_self_loops
from torch_agcn._spmm import CSR, define, is_low
from torch_agcn._tracing import (
    accumulation_dtype,
    can_look,
    is_traced,
    lazy_property,
    uses_custom_ops,
)


class Messages:
    r"""What :class:`CSR` is, as messages along a list of edges in torch's own
    operations, sent by :obj:`send` if it is given.
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
        r"""Of a bipartite graph, what targets receive."""
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
    r"""What the relative energy needs of each node: :math:`r`, :math:`w / r`,
    :math:`w / \tilde{d}`, what it receives if all features are one over
    :math:`r`, and :math:`w` where :math:`\tilde{d} = 0`.
    """

    root: Tensor
    weight: Tensor
    ratio: Tensor
    shift: Tensor
    lone: Tensor


class Laplacian:
    r"""A graph to measure energies on, with the adjacency matrix
    :math:`\mathbf{\tilde{A}}` and degrees :math:`\tilde{d}` to scale by.
    """

    def __init__(self, adj: Operator, dtype: torch.dtype,
                 degree: OptTensor = None,
                 received: OptTensor = None) -> None:
        self.adj, self._dtype = adj, dtype
        self.received = (adj.received(accumulation_dtype(dtype))
                         if received is None else received)
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
    def kept(self) -> Tensor:
        r"""What :math:`\mathbf{P}` makes of :math:`r`: itself, unless a node
        sends and receives nothing.
        """
        root = self.terms.root
        return root if self.is_even else self.P(root)

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
        r"""Whether :obj:`P` is a matrix, and energies are measured on it."""
        return (isinstance(self.P, CSR) and self.L.P is self.P
                and self.L.degree is self.L.received and not is_traced())

    def propagate(self, x: Tensor) -> Tensor:
        r"""The product with :obj:`P`, in bfloat16 if autocast asks for it."""
        if isinstance(self.P, CSR) and is_low(x):
            return self.P.rounded(x)
        return self.P(x)


# Making a graph ##############################################################


class Recipe(NamedTuple):
    r"""How a layer makes graphs."""

    owner: str
    flow: str
    fill: float | None  # the weight of self-loops that are added
    normalize: bool
    targets_only: bool  # In bipartite graphs, sources receive nothing.
    send: Callable[[Tensor, Messages], Tensor] | None = None
    to_keep: bool = False
    # An explainer's mask for so many edges, there and back in bipartite ones:
    mask: Callable[[int, bool], OptTensor] | None = None


def make_graph(how: Recipe, x: Tensor, num_sources: int | None,
               edge_index: Adj, edge_weight: OptTensor,
               degree: OptTensor = None,
               node_weight: OptTensor = None) -> Graph:
    r"""The graph of a call. It is bipartite if there are sources, and a
    sample of another graph if degrees or node weights are given.
    """
    num_nodes, dtype = x.size(-2), accumulation_dtype(x.dtype)
    sizes = (num_nodes, num_nodes) if num_sources is None else (
        num_sources, num_nodes - num_sources)
    edges = to_edges(how.owner, edge_index, edge_weight, sizes, dtype,
                     how.flow)
    if num_sources is not None:
        edges = both_ways(edges, num_sources)
    if how.send is None and uses_custom_ops() and (
            degree is None and node_weight is None):
        return _compiled_graph(how, x, num_sources, edges)
    if num_sources is None and how.fill is not None:
        degree = degree if degree is None else degree.to(dtype) + how.fill
        num_edges = edges.row.numel()
        edges = with_self_loops(edges, num_nodes, how.fill, dtype)
        if how.mask is not None:
            # Explainers count on loops at the end and nowhere else:
            keep = edges.row != edges.col
            keep[num_edges:] = True
            edges = edges.select(keep)
    adj: Operator
    if how.send is not None:
        adj = Messages(edges, num_nodes, how.send)
    else:
        adj = CSR.from_edges(edges.clone() if how.to_keep else edges,
                             num_nodes)
        adj = adj.kept() if how.to_keep else adj
    L = Laplacian(adj, x.dtype, degree)
    P = L.P if how.normalize else adj.to(x.dtype)
    if num_sources is not None and how.targets_only:
        P = P.to_targets(num_sources)
    if how.send is not None and (how.mask is not None or not how.normalize):
        L = _silent(how, L, edges, num_sources)
    if node_weight is not None:
        L = _sampled(L, node_weight.to(dtype))
    if how.to_keep:
        L.settle()
    return Graph(P, L)


def _compiled_graph(how: Recipe, x: Tensor, num_sources: int | None,
                    edges: Edges) -> Graph:
    fill = how.fill if num_sources is None else None
    if x.dtype == torch.double:  # of which the operator is told by weights
        edges = edges.weighted(x.dtype)
    rowptr, col, weight, value, received, mean_degree, *back = (
        torch.ops.torch_agcn.graph(
            *edges, x.size(-2), fill, how.normalize,
            not how.targets_only, torch.is_grad_enabled()))
    P = CSR(rowptr, col, value).to(x.dtype)
    P._t = CSR(*back).to(x.dtype)
    L = Laplacian(CSR(rowptr, col, weight), x.dtype, received=received)
    if not how.targets_only:
        L.mean_degree = mean_degree
    if how.normalize:
        L.P = P
    if num_sources is not None and how.targets_only:
        P = P.to_targets(num_sources)
    return Graph(P, L)


def _run_graph(row: Tensor, col: Tensor, weight: OptTensor, num_nodes: int,
               fill: float | None, normalize: bool, has_mean: bool,
               has_back: bool) -> tuple[Tensor, ...]:
    dtype = torch.float if weight is None else weight.dtype
    edges = Edges(row, col, weight)
    if fill is not None:
        edges = with_self_loops(edges, num_nodes, fill, dtype)
    adj = CSR.from_edges(edges, num_nodes)
    L = Laplacian(adj, dtype)
    P: CSR = L.P if normalize else adj
    one = torch.ones_like(adj.col, dtype=dtype)
    nothing = one[:0].clone(), adj.col[:0].clone()
    back = (P.t.rowptr, P.t.col, one if P.value is None else P.t.value) if (
        has_back) else (nothing[1], nothing[1].clone(), nothing[0].clone())
    found = [adj.rowptr, adj.col, one if adj.value is None else adj.value,
             one if P.value is None else P.value, L.received,
             L.mean_degree if has_mean else nothing[0], *back]
    # What an operator gives out has memory of its own.
    used = {v.data_ptr() for v in (row, col, weight) if v is not None}
    for i, value in enumerate(found):
        if value.data_ptr() in used:
            found[i] = value.clone()
        used.add(found[i].data_ptr())
    return tuple(found)


def _fake_graph(row: Tensor, col: Tensor, weight: OptTensor, num_nodes: int,
                fill: float | None, normalize: bool, has_mean: bool,
                has_back: bool) -> tuple[Tensor, ...]:
    num_edges = row.size(0) + (0 if fill is None else num_nodes)
    dtype = torch.float if weight is None else weight.dtype

    def empty(size: int, dtype: torch.dtype, is_there: bool = True) -> Tensor:
        return row.new_empty(size if is_there else 0, dtype=dtype)

    return (empty(num_nodes + 1, row.dtype), empty(num_edges, row.dtype),
            empty(num_edges, dtype), empty(num_edges, dtype),
            empty(num_nodes, dtype), empty(num_nodes, dtype, has_mean),
            empty(num_nodes + 1, row.dtype, has_back),
            empty(num_edges, row.dtype, has_back),
            empty(num_edges, dtype, has_back))


define('graph(Tensor row, Tensor col, Tensor? weight, SymInt num_nodes, '
       'float? fill, bool normalize, bool has_mean, bool has_back) -> '
       '(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, '
       'Tensor)', _run_graph, _fake_graph)


def _silent(how: Recipe, L: Laplacian, edges: Edges,
            num_sources: int | None) -> Laplacian:
    r"""The same without messages that others see, under a mask."""
    row, col, weight = edges.weighted(L.degree.dtype)
    mask = None if how.mask is None else how.mask(row.numel(),
                                                  num_sources is not None)
    weight = weight if mask is None else mask * weight
    return Laplacian(Messages(Edges(row, col, weight), L.degree.numel()),
                     L.degree.dtype,
                     None if L.degree is L.received else L.degree)


def _sampled(L: Laplacian, node_weight: Tensor) -> Laplacian:
    r"""The same where nodes, and what they receive, stand for many."""
    row, col, weight = L.adj.edges.weighted(L.degree.dtype)
    stands_for = node_weight[row]
    edges, num_nodes = Edges(row, col, stands_for * weight), L.degree.numel()
    if isinstance(L.adj, Messages):
        return Laplacian(Messages(edges, num_nodes), L.degree.dtype, L.degree)
    if can_look(row):  # Most edges of sampled neighborhoods do not count.
        edges = edges.select(stands_for != 0)
    return Laplacian(CSR.from_edges(edges, num_nodes), L.degree.dtype,
                     L.degree)


def explainer_mask(layer: Any, num_edges: int,
                   is_bipartite: bool) -> OptTensor:
    r"""The mask of an explainer, which weighs the edges of the energy, too."""
    mask = layer._edge_mask
    if mask is None:
        return None
    mask = mask.sigmoid() if layer._apply_sigmoid else mask
    if is_bipartite:  # There, and back.
        return torch.cat([mask, mask])
    if mask.numel() != num_edges:
        mask = mask[layer._loop_mask]
        mask = torch.cat([mask, mask.new_ones(num_edges - mask.numel())])
    return mask
