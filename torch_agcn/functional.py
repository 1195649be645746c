r"""Measures of smoothness, the gate, and anisotropic edge weights."""
import warnings

import torch
from torch import Tensor
from torch_geometric.typing import Adj, OptTensor
from torch_geometric.utils import is_sparse

from torch_agcn import _checks, _energy
from torch_agcn._chance import chance_weights
from torch_agcn._edges import Edges, to_edges, with_self_loops
from torch_agcn._energy import row_dot
from torch_agcn._graph import Laplacian, Messages
from torch_agcn._groups import OneGraph, groups_of
from torch_agcn._spmm import CSR
from torch_agcn._tracing import (
    accumulation_dtype,
    can_look,
    is_traced,
    run_eagerly,
)

__all__ = [
    'anisotropic_gate',
    'anisotropic_weights',
    'dirichlet_energy',
    'mean_average_distance',
    'relative_energy',
]


def dirichlet_energy(
    x: Tensor,
    edge_index: Adj,
    edge_weight: OptTensor = None,
    batch: OptTensor = None,
    batch_size: int | None = None,
) -> Tensor:
    r"""The Dirichlet energy of node features

    .. math::
        \textrm{tr}(\mathbf{X}^{\top} \mathbf{L} \mathbf{X}) = \frac{1}{2}
        \sum_{i,j} A_{ij} {\| \mathbf{x}_i - \mathbf{x}_j \|}^2.

    Args:
        x (torch.Tensor): The node features of shape :obj:`[*, N, F]`, dense or
            sparse.
        edge_index (torch.Tensor or SparseTensor): The edge indices or the
            transposed adjacency matrix.
        edge_weight (torch.Tensor, optional): The non-negative edge weights.
            (default: :obj:`None`)
        batch (torch.Tensor, optional): The batch vector :math:`\mathbf{b} \in
            {\{ 0, \ldots, B-1\}}^N`. (default: :obj:`None`)
        batch_size (int, optional): The number of graphs :math:`B`, required
            with :obj:`batch` under :meth:`torch.compile`.
            (default: :obj:`None`)

    :rtype: :class:`torch.Tensor` of shape :obj:`[*]`, or :obj:`[*, B]` with
        :obj:`batch`

    Example:
        >>> x = torch.tensor([[0.], [1.], [3.]])
        >>> edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        >>> dirichlet_energy(x, edge_index)
        tensor(5.)
    """
    x, edges, groups = _read('dirichlet_energy', x, edge_index, edge_weight,
                             batch, batch_size)
    return _energy.total_energy(x, _laplacian(x, edge_index, edges), groups)


def relative_energy(
    x: Tensor,
    edge_index: Adj,
    edge_weight: OptTensor = None,
    batch: OptTensor = None,
    batch_size: int | None = None,
    add_self_loops: bool = True,
) -> Tensor:
    r"""The Dirichlet energy relative to the size of the features

    .. math::
        \frac{\langle \mathbf{X}_c, (\mathbf{I} - \mathbf{P}) \mathbf{X}_c
        \rangle}{\langle \mathbf{X}_c, \mathbf{X}_c \rangle}
        \in [0, 2], \quad \mathbf{P} = \mathbf{\tilde{D}}^{-1/2}
        \mathbf{\tilde{A}} \mathbf{\tilde{D}}^{-1/2}, \quad \mathbf{X}_c =
        \mathbf{X} - \mathbf{v} \mathbf{v}^{\top} \mathbf{X},

    where :math:`\mathbf{\tilde{A}} = \mathbf{A} + \mathbf{I}` and
    :math:`\mathbf{v} \propto \mathbf{\tilde{D}}^{1/2} \mathbf{1}`. It is zero
    where :math:`\mathbf{X}_c` vanishes.

    In directed graphs, :math:`\mathbf{\tilde{D}}` are the in-degrees, and it
    is the Dirichlet energy of :math:`\mathbf{\tilde{D}}^{-1/2} \mathbf{X}`
    over its variance weighted by the mean of in- and out-degree.

    Args:
        x, edge_index, edge_weight, batch, batch_size: As in
            :meth:`dirichlet_energy`.
        add_self_loops (bool, optional): If set to :obj:`False`,
            :math:`\mathbf{\tilde{A}} = \mathbf{A}`. (default: :obj:`True`)

    Example:
        >>> x = torch.tensor([[1.], [-1.]])
        >>> edge_index = torch.tensor([[0, 1], [1, 0]])
        >>> relative_energy(x, edge_index)
        tensor(1.)
    """
    x, edges, groups = _read('relative_energy', x, edge_index, edge_weight,
                             batch, batch_size)
    _checks.check_flags('relative_energy', add_self_loops=add_self_loops)
    if add_self_loops:
        edges = with_self_loops(edges, x.size(-2), 1.0, x.dtype)
    L = _laplacian(x, edge_index, edges)
    return _energy.relative_energy(x, L.P(x), L, groups)


def mean_average_distance(
    x: Tensor,
    edge_index: Adj,
    edge_weight: OptTensor = None,
    batch: OptTensor = None,
    batch_size: int | None = None,
) -> Tensor:
    r"""The Mean Average Distance (MAD) from the `"Measuring and Relieving the
    Over-smoothing Problem for Graph Neural Networks from the Topological View"
    <https://arxiv.org/abs/1909.03211>`_ paper

    .. math::
        \frac{1}{|\mathcal{V}|} \sum_{i \in \mathcal{V}}
        \frac{1}{|\mathcal{N}(i)|} \sum_{j \in \mathcal{N}(i)} \left( 1 -
        \frac{\mathbf{x}_i^{\top} \mathbf{x}_j}{\| \mathbf{x}_i \|
        \| \mathbf{x}_j \|} \right)

    over all nodes :math:`\mathcal{V}` with neighbors, without self-loops. A
    zero vector has distance :obj:`0` from zero vectors and :obj:`1` from
    others.

    Args:
        x, edge_index, edge_weight, batch, batch_size: As in
            :meth:`dirichlet_energy`; edge weights weigh neighbors.

    Example:
        >>> x = torch.tensor([[1., 0.], [0., 2.]])
        >>> edge_index = torch.tensor([[0, 1], [1, 0]])
        >>> mean_average_distance(x, edge_index)
        tensor(1.)
    """
    x, edges, groups = _read('mean_average_distance', x, edge_index,
                             edge_weight, batch, batch_size)
    is_loop = edges.row == edges.col
    if not can_look(is_loop) or bool(is_loop.any()):
        row, col, weight = edges.weighted(x.dtype)
        edges = Edges(row, col, torch.where(is_loop, 0.0, weight))
    distance, has_neighbor = _distances(x, _laplacian(x, edge_index, edges),
                                        groups)
    count = groups.sum(has_neighbor.to(x.dtype))
    return (groups.sum(distance) / count.clamp(min=1)).clamp(min=0)


def anisotropic_gate(energy: Tensor, beta: float | Tensor) -> Tensor:
    r"""The stop function from the `"Anisotropic Graph Convolutional Network
    for Semi-supervised Learning" <https://arxiv.org/abs/2010.10284>`_ paper

    .. math::
        g(s) = 1 - \exp(-\beta s^2).

    Values and gradients are always finite; an energy of :obj:`NaN` counts as
    infinite.

    Args:
        energy (torch.Tensor): The energies :math:`s`.
        beta (float or torch.Tensor): The sharpness :math:`\beta \geq 0`.

    Example:
        >>> anisotropic_gate(torch.tensor([0., 1., 1e30]), beta=1.0)
        tensor([0.0000, 0.6321, 1.0000])
    """
    _checks.check_gate('anisotropic_gate', energy, beta)
    beta = beta if isinstance(beta, Tensor) else float(beta)
    return _energy.gate_of(energy.to(accumulation_dtype(energy.dtype)), beta)


@torch.no_grad()
def anisotropic_weights(
    x: Tensor,
    edge_index: Adj,
    edge_weight: OptTensor = None,
    steps: int = 2,
    batch: OptTensor = None,
    batch_size: int | None = None,
) -> Tensor:
    r"""The edge weights times the probabilities

    .. math::
        c_{ij} = 1 - \pi \frac{f_0(s_{ij})}{f(s_{ij})}, \quad s_{ij} =
        \cos(\mathbf{h}_i - c_{ij} A_{ij} \mathbf{u}_j, \mathbf{h}_j - c_{ij}
        A_{ij} \mathbf{u}_i), \quad \mathbf{h}_i = \mathbf{u}_i + \sum_k
        c_{ik} A_{ik} \mathbf{u}_k

    that edges are not there by chance, where :math:`\mathbf{u}_i =
    \mathbf{x}_i / \| \mathbf{x}_i \| - \textrm{mean}`, :math:`f` and
    :math:`f_0` are the distributions of :math:`s` over edges and over random
    pairs of nodes, and :math:`\pi` is the share of chance edges, see
    :meth:`~torch_agcn.diagnostics.chance_edges`. :math:`A_{ij}` is the weight
    in both directions relative to its mean.

    .. warning::
        If :math:`\pi \geq 0.9` is possible by features alone, weights stay
        as they are, with a warning.

    Args:
        x, edge_index, edge_weight, batch, batch_size: As in
            :meth:`dirichlet_energy`, with :obj:`x` of shape :obj:`[N, F]`.
        steps (int, optional): How often :math:`\mathbf{h}` is computed anew
            with the latest :math:`c`. (default: :obj:`2`)

    :rtype: :class:`torch.Tensor`, the weight of each edge (row by row of a
        sparse matrix), without gradient

    Example:
        >>> x = torch.eye(2).repeat_interleave(5, dim=0)
        >>> clique = torch.combinations(torch.arange(5)).t()
        >>> edge_index = torch.cat([clique, clique + 5,
        ...                         torch.tensor([[0], [9]])], dim=1)
        >>> anisotropic_weights(x, edge_index)[-3:]  # The last is wrong.
        tensor([0.9600, 0.9600, 0.0000])
    """
    if torch.compiler.is_dynamo_compiling():
        return run_eagerly(anisotropic_weights, x, edge_index, edge_weight,
                           steps, batch, batch_size)
    owner = 'anisotropic_weights'
    _checks.check_whole(owner, steps=steps)
    _checks.check_features(owner, x, node_dim=0)
    x, edges, groups = _read(owner, x, edge_index, edge_weight, batch,
                             batch_size)
    weight, unsure = chance_weights(x, edges, groups, steps)
    if unsure:
        warnings.warn(
            f"'{owner}' leaves the weights of {len(unsure)} graph(s) as they "
            f'are: up to {max(unsure):.0%} of the edges look like random '
            f'pairs of nodes, so features cannot tell wrong edges from right '
            f'ones', stacklevel=3)
    return weight if edges.weight is None else weight * edges.weight


def _read(owner: str, x: Tensor, edge_index: Adj, edge_weight: OptTensor,
          batch: OptTensor,
          batch_size: int | None) -> tuple[Tensor, Edges, OneGraph]:
    r"""Returns checked features, edges and groups."""
    _checks.check_features(owner, x)
    _checks.check_devices(owner, x.device, edge_index=edge_index,
                          edge_weight=edge_weight, batch=batch)
    x = _energy.to_measure(x)
    num_nodes = x.size(-2)
    edges = to_edges(owner, edge_index, edge_weight, (num_nodes, num_nodes),
                     x.dtype)
    return x, edges, groups_of(owner, batch, batch_size, num_nodes, edges)


def _laplacian(x: Tensor, edge_index: Adj, edges: Edges) -> Laplacian:
    weight, num_nodes = edges.weight, x.size(-2)
    is_learnt = weight is not None and weight.requires_grad
    if is_traced() or is_learnt or not (can_look(x) or is_sparse(edge_index)):
        return Laplacian(Messages(edges, num_nodes), x.dtype)
    return Laplacian(CSR.from_edges(edges, num_nodes), x.dtype)


def _distances(x: Tensor, L: Laplacian,
               groups: OneGraph) -> tuple[Tensor, Tensor]:
    r"""The mean cosine distance to neighbors, and whether there are any."""
    # Of centred unit vectors, 1 - cos is half a squared distance, which does
    # not cancel. Zero vectors get an additional axis.
    x = x if x.size(-1) > 0 else torch.nn.functional.pad(x, (0, 1))
    parts = _columns(x)
    top = torch.cat([x[..., some].detach().abs().amax(-1, keepdim=True)
                     for some in parts], dim=-1).amax(-1, keepdim=True)
    top = torch.where(top > 0, top, 1.0)
    if not can_look(x) or not bool(((top > 1e-12) & (top < 1e12)).all()):
        x = x / top  # keeps squares in range
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    is_zero = length == 0
    unit = torch.where(is_zero, 1.0, length)

    def terms(part: Tensor) -> tuple[Tensor, Tensor]:
        return row_dot(part, part), row_dot(part, L.adj(part))

    square, mixed = terms(is_zero.to(x.dtype))
    for some in parts:
        part = x[..., some] / unit
        own = terms(part - groups.rows(groups.mean(part)))
        square, mixed = square + own[0], mixed + own[1]
    around = L.adj(square.unsqueeze(-1)).squeeze(-1)
    distance = (L.received * square + around) / 2 - mixed
    has_neighbor = L.received > 0
    return torch.where(has_neighbor, distance / torch.where(
        has_neighbor, L.received, 1.0), 0.0), has_neighbor


def _columns(x: Tensor) -> list[slice]:
    r"""Blocks of columns that fit into the processor's cache."""
    width, step = x.size(-1), max(2**18 // max(x.size(-2), 1), 16)
    if not can_look(x) or x.requires_grad or width <= step:
        return [slice(None)]
    return [slice(i, i + step) for i in range(0, width, step)]
