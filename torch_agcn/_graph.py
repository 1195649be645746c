r"""A graph: the operator that propagates and the Laplacian of the energy."""
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
    r"""A matrix with the methods of :class:`CSR`, as messages along edges."""

    is_symmetric = False  # not known to be

    def __init__(self, edges: Edges, num_nodes: int,
                 send: Callable[[Tensor, 'Messages'], Tensor] | None = None,
                 ) -> None:
        self.edges, self.num_nodes, self._send = edges, num_nodes, send
        self.num_edges = edges.row.numel()

    @lazy_property
    def index(self) -> Tensor:
        return torch.stack([self.edges.col, self.edges.row])

    def part(self, begin: int, end: int) -> Edges:
        return self.edges.select(slice(begin, end))

    def received(self, dtype: torch.dtype) -> Tensor:
        row, _, weight = self.edges.weighted(dtype)
        return scatter(weight, row, dim_size=self.num_nodes, reduce='sum')

    def sent(self, dtype: torch.dtype) -> Tensor:
        _, col, weight = self.edges.weighted(dtype)
        return scatter(weight, col, dim_size=self.num_nodes, reduce='sum')

    def scaled(self, scale: Tensor) -> 'Messages':
        row, col, weight = self.edges
        value = scale[col] if weight is None else scale[col] * weight
        return self._with(self.edges._replace(weight=value * scale[row]))

    def to(self, dtype: torch.dtype) -> 'Messages':
        weight = self.edges.weight
        if weight is None or weight.dtype == dtype:
            return self
        return self._with(self.edges._replace(weight=weight.to(dtype)))

    def to_targets(self, num_sources: int) -> 'Messages':
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
    r"""Terms of the relative energy per node, of shape :obj:`[N, 1]`."""

    root: Tensor  # r = d^(1/2)
    weight: Tensor  # w / r, with w the mean degree
    ratio: Tensor  # w / d
    shift: Tensor  # received degree / r
    lone: Tensor  # w where d = 0


class Laplacian:
    r"""The adjacency matrix and degrees of an energy."""

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
        r""":math:`\tilde{d}^{-1/2}`, zero for isolated nodes."""
        positive = self.degree > 0
        return torch.where(positive, torch.where(
            positive, self.degree, 1.0).rsqrt(), 0.0)

    @lazy_property
    def mean_degree(self) -> Tensor:
        r"""The mean of received and sent degrees."""
        return (self.received + self.adj.sent(self.received.dtype)) / 2

    @lazy_property
    def terms(self) -> Terms:
        w, scale = self.mean_degree[:, None], self.scale[:, None]
        degree = self.degree[:, None]
        return Terms(degree * scale, w * scale, w * scale * scale,
                     self.received[:, None] * scale,
                     torch.where(degree > 0, 0.0, w))

    @lazy_property
    def kept(self) -> Tensor:
        r"""The product of :math:`\mathbf{P}` with :math:`\tilde{d}^{1/2}`."""
        root = self.terms.root
        return root if self.is_even else self.P(root)

    @lazy_property
    def is_even(self) -> bool:
        r"""Whether the graph is undirected without nodes of degree zero."""
        return (self.adj.is_symmetric and self.degree is self.received
                and can_look(self.degree) and bool((self.degree > 0).all()))

    def settle(self) -> None:
        r"""Computes all lazy properties."""
        _ = self.P, self.terms, self.is_even


class Graph(NamedTuple):
    P: Operator
    L: Laplacian

    @property
    def is_matrix(self) -> bool:
        r"""Whether the energy is measured on the matrix :obj:`P`."""
        return (isinstance(self.P, CSR) and self.L.P is self.P
                and self.L.degree is self.L.received and not is_traced())

    def propagate(self, x: Tensor) -> Tensor:
        r"""Propagates, in bfloat16 under autocast."""
        if isinstance(self.P, CSR) and is_low(x):
            return self.P.rounded(x)
        return self.P(x)


# Making a graph ##############################################################


class Recipe(NamedTuple):
    r"""The settings of :meth:`make_graph`."""

    owner: str
    flow: str
    fill: float | None  # the weight of self-loops that are added
    normalize: bool
    targets_only: bool  # In bipartite graphs, sources receive nothing.
    send: Callable[[Tensor, Messages], Tensor] | None = None
    to_keep: bool = False
    # Gets an explainer's mask by the number of edges and is_bipartite:
    mask: Callable[[int, bool], OptTensor] | None = None


def make_graph(how: Recipe, x: Tensor, num_sources: int | None,
               edge_index: Adj, edge_weight: OptTensor,
               degree: OptTensor = None,
               node_weight: OptTensor = None) -> Graph:
    r"""Makes a graph, bipartite if :obj:`num_sources` is given, and sampled if
    :obj:`degree` or :obj:`node_weight` is.
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
            # Explainers expect self-loops at the end only:
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
    if x.dtype == torch.double:  # The operator takes the type of weights.
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
    # The outputs of an operator must not share memory.
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
    r"""A masked copy that calls no message hooks."""
    row, col, weight = edges.weighted(L.degree.dtype)
    mask = None if how.mask is None else how.mask(row.numel(),
                                                  num_sources is not None)
    weight = weight if mask is None else mask * weight
    return Laplacian(Messages(Edges(row, col, weight), L.degree.numel()),
                     L.degree.dtype,
                     None if L.degree is L.received else L.degree)


def _sampled(L: Laplacian, node_weight: Tensor) -> Laplacian:
    r"""A copy with importance-weighted nodes."""
    row, col, weight = L.adj.edges.weighted(L.degree.dtype)
    stands_for = node_weight[row]
    edges, num_nodes = Edges(row, col, stands_for * weight), L.degree.numel()
    if isinstance(L.adj, Messages):
        return Laplacian(Messages(edges, num_nodes), L.degree.dtype, L.degree)
    if can_look(row):  # Most sampled edges have weight zero.
        edges = edges.select(stands_for != 0)
    return Laplacian(CSR.from_edges(edges, num_nodes), L.degree.dtype,
                     L.degree)


def explainer_mask(layer: Any, num_edges: int,
                   is_bipartite: bool) -> OptTensor:
    mask = layer._edge_mask
    if mask is None:
        return None
    mask = mask.sigmoid() if layer._apply_sigmoid else mask
    if is_bipartite:  # in both directions
        return torch.cat([mask, mask])
    if mask.numel() != num_edges:
        mask = mask[layer._loop_mask]
        mask = torch.cat([mask, mask.new_ones(num_edges - mask.numel())])
    return mask
