r"""How smooth features are on a graph, and what the gate makes of it.

Pure functions: tensors in, tensors out. All of them take node features
:obj:`x` of shape :obj:`[*, N, F]`, a graph in any of PyG's forms, and a
:obj:`batch` vector for many graphs at once; they sum in :obj:`float32` at
least, and are differentiable in features and edge weights.
"""
import math
from numbers import Integral
from typing import Any

import torch
from torch import Tensor
from torch_geometric.typing import Adj, OptTensor
from torch_geometric.utils import scatter

from torch_agcn._sparse import (
    Edges,
    accumulation_dtype,
    check_devices,
    csr_tensor,
    degrees,
    gcn_weight,
    inverse_sqrt,
    is_traced,
    mean_degrees,
    product,
    spmm,
    to_csr,
    to_edges,
    transpose,
    with_self_loops,
)

__all__ = [
    'anisotropic_gate',
    'dirichlet_energy',
    'mean_average_distance',
    'relative_energy',
]

# From this many numbers on, sorting the edges for a matrix product costs less
# than one gathered copy of the features per edge:
MANY_NUMBERS = 2**22


def dirichlet_energy(
    x: Tensor,
    edge_index: Adj,
    edge_weight: OptTensor = None,
    batch: OptTensor = None,
    batch_size: int | None = None,
) -> Tensor:
    r"""The Dirichlet energy

    .. math::
        \textrm{tr}(\mathbf{X}^{\top} \mathbf{L} \mathbf{X}) = \frac{1}{2}
        \sum_{i,j} A_{ij} {\| \mathbf{x}_i - \mathbf{x}_j \|}^2

    of node features on a graph, the sum of how much neighbors differ: zero
    for features that are constant on every connected component, and small for
    over-smoothed ones.

    Self-loops do not count.
    In a directed graph, every directed edge counts half of what an undirected
    one does.

    Args:
        x (torch.Tensor): The node features
            :math:`\mathbf{X} \in \mathbb{R}^{N \times F}`, dense or sparse;
            with leading dimensions, one energy is computed for each of them.
        edge_index (torch.Tensor or SparseTensor): The edge indices, or the
            (transposed) adjacency matrix.
        edge_weight (torch.Tensor, optional): The edge weights :math:`A_{ij}
            \geq 0`. (default: :obj:`None`)
        batch (torch.Tensor, optional): The batch vector
            :math:`\mathbf{b} \in {\{ 0, \ldots, B-1\}}^N`, which assigns
            each node to a graph. (default: :obj:`None`)
        batch_size (int, optional): The number of graphs :math:`B`.
            Automatically calculated if not given, except under
            :meth:`torch.compile`. (default: :obj:`None`)

    Returns:
        The energy, a scalar, or one number per graph if :obj:`batch` is given.

    Example:
        >>> x = torch.tensor([[0.], [1.], [3.]])
        >>> edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        >>> dirichlet_energy(x, edge_index)
        tensor(5.)
    """
    x = check_features(x, 'dirichlet_energy')
    check_devices('dirichlet_energy', x, edge_index=edge_index,
                  edge_weight=edge_weight, batch=batch)
    num_nodes = x.size(-2)
    edges = to_edges(edge_index, edge_weight, num_nodes, x.dtype,
                     owner='dirichlet_energy')
    size = check_batch(batch, batch_size, x, 'dirichlet_energy', edges)
    return edge_energy(x, edges, batch, size)


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
        \mathbf{\tilde{A}} \mathbf{\tilde{D}}^{-1/2},

    where :math:`\mathbf{X}_c = \mathbf{X} - \mathbf{v} \mathbf{v}^{\top}
    \mathbf{X}` is free of the direction :math:`\mathbf{v} \propto
    \mathbf{\tilde{D}}^{1/2} \mathbf{1}` that propagation by
    :math:`\mathbf{P}` keeps and :math:`\mathbf{\tilde{A}} = \mathbf{A} +
    \mathbf{I}`.
    It is the mean frequency of the features on the graph's spectrum: neither
    their scale nor a shift along :math:`\mathbf{v}` changes it.

    Put differently, it is the Dirichlet energy of :math:`\mathbf{U} =
    \mathbf{\tilde{D}}^{-1/2} \mathbf{X}` over the variance of
    :math:`\mathbf{U}` weighted by degree.
    That is how it is defined for directed graphs, with
    :math:`\mathbf{\tilde{D}}` the in-degrees as in
    :class:`~torch_geometric.nn.conv.GCNConv` and the variance weighted by the
    mean of in- and out-degree, which keeps it in :math:`[0, 2]`.
    Nodes of degree zero, which there are only without self-loops, do not
    count.

    Args:
        x (torch.Tensor): The node features
            :math:`\mathbf{X} \in \mathbb{R}^{N \times F}`, dense or sparse;
            with leading dimensions, one energy is computed for each of them.
        edge_index (torch.Tensor or SparseTensor): The edge indices, or the
            (transposed) adjacency matrix.
        edge_weight (torch.Tensor, optional): The edge weights :math:`A_{ij}
            \geq 0`. (default: :obj:`None`)
        batch (torch.Tensor, optional): The batch vector
            :math:`\mathbf{b} \in {\{ 0, \ldots, B-1\}}^N`, which assigns
            each node to a graph. (default: :obj:`None`)
        batch_size (int, optional): The number of graphs :math:`B`.
            Automatically calculated if not given, except under
            :meth:`torch.compile`. (default: :obj:`None`)
        add_self_loops (bool, optional): If set to :obj:`False`, takes
            :math:`\mathbf{A}` for :math:`\mathbf{\tilde{A}}`.
            (default: :obj:`True`)

    Returns:
        The energy, a scalar, or one number per graph if :obj:`batch` is given;
        zero where :math:`\mathbf{X}_c` vanishes.

    Example:
        >>> x = torch.tensor([[1.], [-1.]])
        >>> edge_index = torch.tensor([[0, 1], [1, 0]])
        >>> relative_energy(x, edge_index)
        tensor(1.)
        >>> relative_energy(100 * x + 5, edge_index)
        tensor(1.)
        >>> relative_energy(x, edge_index, add_self_loops=False)
        tensor(2.)
    """
    x = check_features(x, 'relative_energy')
    check_devices('relative_energy', x, edge_index=edge_index,
                  edge_weight=edge_weight, batch=batch)
    num_nodes = x.size(-2)
    edges = to_edges(edge_index, edge_weight, num_nodes, x.dtype,
                     owner='relative_energy')
    if add_self_loops:
        edges = with_self_loops(edges, num_nodes, 1.0, x.dtype)
    size = check_batch(batch, batch_size, x, 'relative_energy', edges)
    return normalized_energy(x, edges, batch, size)


def mean_average_distance(
    x: Tensor,
    edge_index: Adj,
    edge_weight: OptTensor = None,
    batch: OptTensor = None,
    batch_size: int | None = None,
) -> Tensor:
    r"""The Mean Average Distance (MAD) from the `"Measuring and Relieving the
    Over-smoothing Problem for Graph Neural Networks from the Topological
    View" <https://arxiv.org/abs/1909.03211>`_ paper: the cosine distance of
    each node to its neighbors, averaged over the neighbors and then over all
    nodes that have some

    .. math::
        \frac{1}{|\mathcal{V}|} \sum_{i \in \mathcal{V}}
        \frac{1}{|\mathcal{N}(i)|} \sum_{j \in \mathcal{N}(i)} \left( 1 -
        \frac{\mathbf{x}_i^{\top} \mathbf{x}_j}{\| \mathbf{x}_i \|
        \| \mathbf{x}_j \|} \right).

    Zero means that neighbors point the same way.
    Self-loops do not count. Two zero vectors have distance :obj:`0` from each
    other, and distance :obj:`1` from any other vector.

    Args:
        x (torch.Tensor): The node features
            :math:`\mathbf{X} \in \mathbb{R}^{N \times F}`, dense or sparse;
            with leading dimensions, one distance is computed for each of
            them.
        edge_index (torch.Tensor or SparseTensor): The edge indices, or the
            (transposed) adjacency matrix.
        edge_weight (torch.Tensor, optional): Weights of the average over
            neighbors, :math:`\geq 0`. (default: :obj:`None`)
        batch (torch.Tensor, optional): The batch vector
            :math:`\mathbf{b} \in {\{ 0, \ldots, B-1\}}^N`, which assigns
            each node to a graph. (default: :obj:`None`)
        batch_size (int, optional): The number of graphs :math:`B`.
            Automatically calculated if not given, except under
            :meth:`torch.compile`. (default: :obj:`None`)

    Returns:
        The distance, a scalar, or one number per graph if :obj:`batch` is
        given; zero for a graph without edges.

    Example:
        >>> x = torch.tensor([[1., 0.], [0., 2.]])
        >>> edge_index = torch.tensor([[0, 1], [1, 0]])
        >>> mean_average_distance(x, edge_index)
        tensor(1.)
    """
    x = check_features(x, 'mean_average_distance')
    check_devices('mean_average_distance', x, edge_index=edge_index,
                  edge_weight=edge_weight, batch=batch)
    num_nodes = x.size(-2)
    edges = to_edges(edge_index, edge_weight, num_nodes, x.dtype,
                     owner='mean_average_distance')
    row, col, weight = edges
    if weight is None:
        weight = torch.ones_like(row, dtype=x.dtype)
    weight = torch.where(row == col, 0.0, weight)
    size = check_batch(batch, batch_size, x, 'mean_average_distance', edges)

    # Unit vectors, zero ones having a direction of their own. Then 1 - cos is
    # half a squared distance, which does not cancel once it is centred:
    x = x / largest(x, dim=-1)
    x = torch.nn.functional.normalize(x, dim=-1)
    x = torch.cat([x, (x == 0).all(-1, keepdim=True).to(x.dtype)], dim=-1)
    x = x - of_each_node(mean_over_nodes(x, None, batch, size), batch)
    square = x.square().sum(-1, keepdim=True)
    one = torch.ones_like(square)
    summed = matmul(Edges(row, col, weight), weight,
                    torch.cat([x, square, one], dim=-1))
    degree = summed[..., -1]
    distance = ((degree * square[..., 0] + summed[..., -2]) / 2 -
                (x * summed[..., :-2]).sum(-1))
    has_neighbor = degree > 0
    distance = torch.where(
        has_neighbor, distance / torch.where(has_neighbor, degree, 1.0), 0.0)
    total = sum_graphs(distance, batch, size)
    count = sum_graphs(has_neighbor.to(x.dtype), batch, size)
    return (total / count.clamp(min=1)).clamp(min=0)


def anisotropic_gate(energy: Tensor, beta: float | Tensor) -> Tensor:
    r"""The stop function of the `"Anisotropic Graph Convolutional Network for
    Semi-supervised Learning" <https://arxiv.org/abs/2010.10284>`_ paper

    .. math::
        g(s) = 1 - \exp(-\beta s^2),

    which is :obj:`0` where features are smooth already and propagation should
    stop, and :obj:`1` where they are rough.

    Neither the gate nor its gradient is ever :obj:`NaN` or infinite: from
    where :math:`\exp(-\beta s^2)` vanishes in floating point, the gate is
    exactly one and its gradient exactly zero.

    Args:
        energy (torch.Tensor): The energies :math:`s`, of any shape.
        beta (float or torch.Tensor): The sharpness :math:`\beta \geq 0`.

    Example:
        >>> anisotropic_gate(torch.tensor([0., 1., 1e30]), beta=1.0)
        tensor([0.0000, 0.6321, 1.0000])
    """
    if not isinstance(energy, Tensor) or not energy.is_floating_point():
        raise ValueError(f"'anisotropic_gate' got energy={energy}; pass a "
                         f'floating-point tensor')
    energy = energy.to(accumulation_dtype(energy.dtype))
    info = torch.finfo(energy.dtype)
    top = math.sqrt(info.max) / 2  # Its square does not overflow.
    if isinstance(beta, Tensor):
        if beta.is_cpu and not is_traced() and bool((beta < 0).any()):
            raise ValueError(f"'anisotropic_gate' got beta={beta.tolist()}; "
                             f'pass numbers >= 0')
        beta = beta.to(energy.dtype)
        last = vanishing(energy.dtype)
        bound = beta.detach().clamp(min=last / top**2).rsqrt()
        energy = energy.clamp(max=math.sqrt(last) * bound)
    elif 0 <= beta < math.inf:
        energy = energy.clamp(max=min(saturation(beta, energy.dtype), top))
    else:
        raise ValueError(f"'anisotropic_gate' got beta={beta}; pass a finite "
                         f'number >= 0')
    return -torch.expm1(-(beta * energy) * energy)


# What the layer builds on ####################################################


def vanishing(dtype: torch.dtype) -> float:
    r"""The first whole number whose negative exponential is zero."""
    return 746.0 if dtype == torch.float64 else 104.0


def saturation(beta: float, dtype: torch.dtype) -> float:
    r"""The energy from which the gate is exactly one."""
    return math.sqrt(vanishing(dtype) / beta) if beta > 0 else math.inf


def check_features(x: Any, owner: str) -> Tensor:
    r"""Makes :obj:`x` dense and precise enough to take sums of."""
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() < 2:
        what = (f"shape {list(x.shape)} and type '{x.dtype}'" if isinstance(
            x, Tensor) else f"type '{type(x).__name__}'")
        raise ValueError(f"'{owner}' got 'x' of {what}; pass floating-point "
                         f'features of shape [num_nodes, num_features], e.g. '
                         f"'x.float()'")
    x = x.to_dense() if x.layout != torch.strided else x
    return x.to(accumulation_dtype(x.dtype))


def check_batch(batch: OptTensor, batch_size: int | None, x: Tensor,
                owner: str, edges: Edges | None = None,
                bound: bool = False) -> int | None:
    r"""The number of graphs, or a :obj:`bound` of it where that will do; no
    batch vector means one graph.
    """
    if batch is None:
        return None
    num_nodes = x.size(-2)
    if not isinstance(batch, Tensor) or not (
            batch_size is None
            or isinstance(batch_size, (Integral, torch.SymInt))):
        raise ValueError(f"'{owner}' got 'batch' of type "
                         f"'{type(batch).__name__}' and 'batch_size' of type "
                         f"'{type(batch_size).__name__}'; pass a tensor and a "
                         f'whole number')
    if (batch.dim() != 1 or batch.size(0) != num_nodes
            or batch.dtype not in (torch.int64, torch.int32)):
        raise ValueError(f"'{owner}' got 'batch' of shape "
                         f"{list(batch.shape)} and type '{batch.dtype}' for "
                         f'{num_nodes} nodes; pass the number of its graph '
                         f'(torch.long) for each node')
    if is_traced() or (bound and not batch.is_cpu):
        if batch_size is None and not bound:
            raise ValueError(f"'{owner}' cannot count the graphs of 'batch' "
                             f"under 'torch.compile'; pass 'batch_size'")
        # There are no more graphs than nodes: a bound costs less than waiting
        # for the device to tell the number.
        return num_nodes if batch_size is None else batch_size
    if num_nodes == 0:
        return batch_size or 0
    size = int(batch.max()) + 1
    if int(batch.min()) < 0 or (batch_size is not None and size > batch_size):
        raise ValueError(f"'{owner}' got graph numbers from "
                         f"{int(batch.min())} to {size - 1} in 'batch'; with "
                         f'batch_size={batch_size} they must lie in '
                         f'[0, {batch_size or size})')
    if edges is not None and batch.is_cpu:
        graphs = [batch.index_select(0, end) for end in (edges.col, edges.row)]
        if not torch.equal(*graphs):
            i = int((graphs[0] != graphs[1]).nonzero()[0])
            raise ValueError(
                f"'{owner}' got an edge from node {int(edges.col[i])} of graph"
                f' {int(graphs[0][i])} to node {int(edges.row[i])} of graph '
                f"{int(graphs[1][i])}; pass the 'batch' that belongs to "
                f"'edge_index', where no edge leaves its graph")
    return batch_size or size


def sum_graphs(value: Tensor, batch: OptTensor, size: int | None) -> Tensor:
    r"""Sums numbers per node, of shape :obj:`[*, N]`, to numbers per graph."""
    if batch is None:
        return value.sum(-1)
    return value.new_zeros(*value.shape[:-1], size or 0).index_add(
        -1, batch, value)


def sum_rows(value: Tensor, batch: OptTensor, size: int | None) -> Tensor:
    r"""Sums rows, of shape :obj:`[*, N, F]`, to rows of graphs, of shape
    :obj:`[*, B, F]`, of which there is one without :obj:`batch`.
    """
    if batch is None:
        return value.sum(-2, keepdim=True)
    return value.new_zeros(*value.shape[:-2], size or 0,
                           value.size(-1)).index_add(-2, batch, value)


def sum_all(value: Tensor, batch: OptTensor, size: int | None) -> Tensor:
    r"""Sums rows, of shape :obj:`[*, N, F]`, to one number per graph."""
    if batch is None:
        return value.sum() if value.dim() == 2 else value.sum((-2, -1))
    return sum_rows(value, batch, size).sum(-1)


def largest(x: Tensor, dim: int | tuple[int, int]) -> Tensor:
    r"""The largest magnitudes along :obj:`dim`, or one where all are zero: to
    divide by, so that squares neither overflow nor vanish.
    """
    if x.numel() == 0:
        return x.new_ones(()).expand_as(x.sum(dim, keepdim=True))
    top = x.detach().abs().amax(dim, keepdim=True)
    return torch.where(top > 0, top, 1.0)


def mean_over_nodes(x: Tensor, weight: OptTensor, batch: OptTensor,
                    size: int | None) -> Tensor:
    r"""The weighted mean features of graphs, of shape :obj:`[*, B, F]`, of
    which there is one without :obj:`batch`.
    """
    if weight is None:
        if batch is None:
            return x.sum(-2, keepdim=True) / max(x.size(-2), 1)
        weight = x.new_ones(x.size(-2))
    total = _positive(sum_graphs(weight, batch, size)).unsqueeze(-1)
    return sum_rows(weight.unsqueeze(-1) * x, batch, size) / total


def _positive(total: Tensor) -> Tensor:
    # To divide by: where it is zero, so is what is divided.
    return total.clamp(min=torch.finfo(total.dtype).tiny)


def of_each_node(value: Tensor, batch: OptTensor) -> Tensor:
    r"""Rows of graphs, of shape :obj:`[*, B, F]`, as rows of their nodes."""
    return value if batch is None else value.index_select(-2, batch)


def matmul(edges: Edges, weight: Tensor, x: Tensor) -> Tensor:
    r"""The product of the matrix of :obj:`edges` with entries :obj:`weight`
    and :obj:`x`.
    """
    row, col, _ = edges
    num_nodes = x.size(-2)
    if (is_traced() or weight.requires_grad
            or row.numel() * x.size(-1) < MANY_NUMBERS):
        message = weight.unsqueeze(-1) * x.index_select(-2, col)
        return scatter(message, row.long(), dim=-2, dim_size=num_nodes,
                       reduce='sum')
    rowptr, col, (value, ) = to_csr(row, col, num_nodes, weight)
    assert value is not None
    return spmm(csr_tensor(rowptr, col, value), x)


def edge_energy(x: Tensor, edges: Edges, batch: OptTensor = None,
                size: int | None = None) -> Tensor:
    r"""The Dirichlet energy from a list of edges."""
    row, col, weight = edges
    if (is_traced() or (weight is not None and weight.requires_grad)
            or row.numel() * x.size(-1) < MANY_NUMBERS):
        return _energy_of_edges(x, edges, batch, size)
    if weight is None:
        weight = torch.ones_like(row, dtype=x.dtype)
    mean_degree = mean_degrees(edges, degrees(edges, x.size(-2), x.dtype))
    rowptr, col, (value, ) = to_csr(row, col, x.size(-2), weight)
    assert value is not None
    adj = csr_tensor(rowptr, col, value)
    return matrix_energy(x, adj, None, mean_degree, batch, size)


def _energy_of_edges(x: Tensor, edges: Edges, batch: OptTensor,
                     size: int | None) -> Tensor:
    row, col, weight = edges
    difference = x.index_select(-2, row) - x.index_select(-2, col)
    energy = difference.square().sum(-1) / 2
    energy = energy if weight is None else weight * energy
    return sum_graphs(energy, None if batch is None else batch[row], size)


def blocks(num_rows: int, width: int) -> list[slice]:
    r"""Blocks of rows small enough to stay in the processor's cache while
    several operations pass over them: memory is then read once for all.
    """
    step = max(2**20 // max(width, 1), 1)
    return [slice(i, i + step) for i in range(0, num_rows, step)]


class _MatrixEnergy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, adj: Tensor, adj_back: Tensor | None,
                mean_degree: Tensor, batch: OptTensor,
                size: int | None) -> Tensor:
        energy, ax, mean = energy_by_matrix(x, adj, mean_degree, batch, size)
        ctx.adj, ctx.adj_back = adj, adj_back
        ctx.save_for_backward(x, ax, mean, mean_degree, batch)
        return energy

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, ax, mean, mean_degree, batch = ctx.saved_tensors
        adj, back = ctx.adj, ctx.adj_back
        if batch is None:
            grad = grad[..., None, None]
        else:
            grad = grad.index_select(-1, batch).unsqueeze(-1)
        is_symmetric = back is adj
        back = transpose(adj) if back is None else back
        mean_degree = mean_degree.unsqueeze(-1)
        if torch.is_grad_enabled():  # To be differentiated once more.
            both = spmm(adj, x, back) + spmm(back, x, adj)
            out = grad * (2 * mean_degree * x - both)
            return out, None, None, None, None, None
        if mean is not None:
            x = x - of_each_node(mean, batch)
        other = ax if is_symmetric else product(back, x)
        out = torch.empty_like(x)
        for some in blocks(x.size(-2), x.size(-1)):
            part = out[..., some, :]
            torch.mul(x[..., some, :], 2 * mean_degree[some], out=part)
            part.sub_(ax[..., some, :]).sub_(other[..., some, :])
            part.mul_(grad if batch is None else grad[..., some, :])
        return out, None, None, None, None, None


def energy_by_matrix(
    x: Tensor,
    adj: Tensor,
    mean_degree: Tensor,
    batch: OptTensor,
    size: int | None,
) -> tuple[Tensor, Tensor, OptTensor]:
    r"""The Dirichlet energy, the product it was taken from, and the mean that
    had to be taken away before.
    """
    if x.is_cpu:
        ax = product(adj, x)
        energy, whole = _difference_of_sums(x, ax, mean_degree, batch, size)
        if _is_much(energy, whole, 1e-3):
            return energy, ax, None
    # The Laplacian annihilates what is constant on a graph. In floating point
    # it does so only if that has been taken away before:
    mean = mean_over_nodes(x, None, batch, size)
    x = x - of_each_node(mean, batch)
    ax = product(adj, x)
    energy, whole = _difference_of_sums(x, ax, mean_degree, batch, size)
    if x.is_cpu and not _is_much(energy, whole, 1e-3):
        # Smooth, but not constant: too little is left of the difference.
        energy = _sum_over_edges(x, adj, batch, size)
    return energy.clamp(min=0), ax, mean


def _is_much(part: Tensor, whole: Tensor, share: float) -> bool:
    # Whether enough is left of what was taken away from, for all graphs.
    part, whole = part.detach(), whole.detach()
    if part.dim() == 0:
        return float(part) >= share * float(whole)
    return bool((part >= share * whole).all())


def _is_of_normal_size(whole: Tensor) -> bool:
    # Whether no squares in a sum have vanished or become infinite.
    if whole.numel() == 0:
        return True
    low, high = (float(bound) for bound in whole.detach().aminmax())
    return low > 2.0**-80 and high < 2.0**80


def _difference_of_sums(x: Tensor, ax: Tensor, mean_degree: Tensor,
                        batch: OptTensor,
                        size: int | None) -> tuple[Tensor, Tensor]:
    # The energy, and the sum that most of it may be taken away from.
    weight = mean_degree.unsqueeze(-1)
    parts = blocks(x.size(-2), x.size(-1))
    if len(parts) > 1:
        sums = [_difference_of_sums(
            x[..., some, :], ax[..., some, :], mean_degree[some],
            batch if batch is None else batch[some], size) for some in parts]
        energy, whole = (torch.stack(v).sum(0) for v in zip(*sums))
        return energy, whole
    whole = sum_all((weight * x).mul_(x), batch, size)
    return whole - sum_all(ax * x, batch, size), whole


def _sum_over_edges(x: Tensor, adj: Tensor, batch: OptTensor,
                    size: int | None) -> Tensor:
    # The energy term by term, which never cancels, some edges at a time.
    row = torch.repeat_interleave(adj.crow_indices().diff().long(),
                                  output_size=adj.values().numel())
    col, value = adj.col_indices().long(), adj.values()
    shape = x.shape[:-2] if batch is None else (*x.shape[:-2], size or 0)
    energy = x.new_zeros(shape)
    for some in blocks(row.numel(), x.size(-1)):
        edges = Edges(row[some], col[some], value[some])
        energy += _energy_of_edges(x, edges, batch, size)
    return energy


def matrix_energy(x: Tensor, adj: Tensor, adj_back: Tensor | None,
                  mean_degree: Tensor, batch: OptTensor = None,
                  size: int | None = None) -> Tensor:
    r"""The Dirichlet energy by one product with a CSR matrix, and none for
    the gradient where that is symmetric (:obj:`adj_back is adj`).
    """
    if not (x.requires_grad and torch.is_grad_enabled()):
        return energy_by_matrix(x, adj, mean_degree, batch, size)[0]
    return _MatrixEnergy.apply(x, adj, adj_back, mean_degree, batch, size)


class _SymmetricStep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, px: Tensor, root: Tensor, beta: Tensor,
                residual: bool) -> tuple[Tensor, Tensor]:
        total = root.square().sum()
        mean = x.new_zeros(x.size(1))
        for some in blocks(*x.shape):
            mean.addmv_(x[some].t(), root[some, 0])
        mean /= total
        inverse = largest(x, (0, 1)).reciprocal().view(())
        rough, spread = x.new_zeros(()), x.new_zeros(())
        for some in blocks(*x.shape):
            centred = torch.addcmul(x[some], root[some], mean, value=-1)
            centred.mul_(inverse)
            spread += centred.square().sum()
            rough += centred.mul_((x[some] - px[some]).mul_(inverse)).sum()
        whole = spread + total * (inverse * mean).square().sum()
        energy, spread = quotient(rough, spread, whole)
        gate = anisotropic_gate(energy, beta)
        out = torch.lerp(x, px, gate) if residual else gate * px
        ctx.residual = residual
        ctx.save_for_backward(x, px, root, beta, mean, inverse, spread, energy)
        ctx.mark_non_differentiable(gate)
        return out, gate

    @staticmethod
    def backward(ctx: Any, grad: Tensor,
                 _: Any) -> tuple[Tensor | None, ...]:
        x, px, root, beta, mean, inverse, spread, energy = ctx.saved_tensors
        if torch.is_grad_enabled():  # To be differentiated once more.
            return _plain_gradient(grad, x, px, root, beta, ctx.residual)
        grad_gate = x.new_zeros(())
        for some in blocks(*x.shape):
            towards = px[some] - x[some] if ctx.residual else px[some]
            grad_gate += (towards * grad[some]).sum()
        with torch.enable_grad():
            beta = beta.detach().requires_grad_()
            energy = energy.detach().requires_grad_()
            gate = anisotropic_gate(energy, beta)
        grad_beta, grad_energy = torch.autograd.grad(gate, [beta, energy],
                                                     grad_gate)
        gate, energy = gate.detach(), energy.detach()
        slope = grad_energy / spread * inverse

        grad_x, grad_px = torch.empty_like(x), torch.empty_like(x)
        for some in blocks(*x.shape):
            centred = torch.addcmul(x[some], root[some], mean, value=-1)
            centred.mul_(inverse)
            torch.mul(grad[some], gate, out=grad_px[some])
            grad_px[some].addcmul_(centred, slope, value=-1)
            centred.mul_(1 - 2 * energy)
            centred.add_((x[some] - px[some]).mul_(inverse))
            torch.mul(centred, slope, out=grad_x[some])
            if ctx.residual:
                grad_x[some].addcmul_(grad[some], 1 - gate)
        return grad_x, grad_px, None, grad_beta, None


def _plain_gradient(grad: Tensor, x: Tensor, px: Tensor, root: Tensor,
                    beta: Tensor, residual: bool) -> tuple[Tensor | None, ...]:
    # Apart, for `px` comes from `x`:
    x, px, beta = x.view_as(x), px.view_as(px), beta.view_as(beta)
    wanted = [v for v in (x, px, beta) if v.requires_grad]
    degree = root.squeeze(-1).square()
    gate = anisotropic_gate(energy_from_product(x, px, degree, degree), beta)
    out = torch.lerp(x, px, gate) if residual else gate * px
    grads = iter(torch.autograd.grad(out, wanted, grad, create_graph=True))
    found = [next(grads) if v.requires_grad else None for v in (x, px, beta)]
    return found[0], found[1], None, found[2], None


def symmetric_step(x: Tensor, px: Tensor, degree: Tensor,
                   beta: float | Tensor,
                   residual: bool) -> tuple[Tensor, Tensor]:
    r"""One step of propagation gated by the relative energy, and the gate, in
    few passes over memory, for one undirected graph without isolated nodes.

    There, :math:`\mathbf{X} - \mathbf{P} \mathbf{X}` has no part along
    :math:`\mathbf{v}`, so that both the energy of
    :meth:`energy_from_product` and its gradient take a simpler form.
    """
    dtype = accumulation_dtype(px.dtype)
    beta = torch.as_tensor(beta, dtype=dtype, device=x.device)
    out, gate = _SymmetricStep.apply(
        x.to(dtype), px.to(dtype), degree.sqrt().unsqueeze(-1).to(dtype),
        beta, residual)
    return out.to(px.dtype), gate


def energy_from_product(x: Tensor, px: Tensor, degree: Tensor,
                        mean_degree: Tensor, batch: OptTensor = None,
                        size: int | None = None) -> Tensor:
    r"""The relative energy from :math:`\mathbf{X}` and
    :math:`\mathbf{P} \mathbf{X}`.
    """
    dtype = accumulation_dtype(x.dtype)
    scale = inverse_sqrt(degree).unsqueeze(-1)
    # As A~ U = D~^1/2 P X:
    return energy_from_neighbors(
        scale * x.to(dtype), (degree.unsqueeze(-1) * scale) * px.to(dtype),
        degree, mean_degree, batch, size)


def energy_from_neighbors(u: Tensor, au: Tensor, degree: Tensor,
                          mean_degree: Tensor, batch: OptTensor = None,
                          size: int | None = None) -> Tensor:
    r"""The relative energy from :math:`\mathbf{U} = \mathbf{\tilde{D}}^{-1/2}
    \mathbf{X}` and :math:`\mathbf{\tilde{A}} \mathbf{U}`.
    """
    weight = mean_degree.unsqueeze(-1)
    total = sum_graphs(mean_degree, batch, size)
    if u.is_cpu and not is_traced():
        weighted = weight * u
        whole = sum_all(weighted * u, batch, size)
        rough = whole - sum_all(au * u, batch, size)
        mean = sum_rows(weighted, batch, size)
        spread = whole - _squares(mean, batch) / _positive(total)
        if (_is_much(torch.minimum(rough, spread), whole, 1e-2)
                and _is_of_normal_size(whole)):
            return (rough / spread).clamp(0, 2)
    # Too little is left of those differences. Scale does not matter to the
    # energy, but to its squares:
    if batch is None:
        top = largest(u, (-2, -1))
    else:
        top = scatter(largest(u, -1), batch, dim=-2, dim_size=size,
                      reduce='max').index_select(-2, batch)
    u, au = u / top, au / top
    mean = mean_over_nodes(u, mean_degree, batch, size)
    own = of_each_node(mean, batch)
    centred = u - own
    weighted = weight * centred
    # L (U - mean), as A~ 1 = D~ 1:
    difference = torch.addcmul(weighted - au, degree.unsqueeze(-1), own)
    rough = sum_all(centred * difference, batch, size)
    spread = sum_all(centred * weighted, batch, size)
    return quotient(rough, spread, spread + total * _squares(mean, batch))[0]


def _squares(mean: Tensor, batch: OptTensor) -> Tensor:
    # Of what there is for each graph, one number for each.
    out = mean.square().sum(-1)
    return out if batch is not None else out.squeeze(-1)


def normalized_energy(x: Tensor, edges: Edges, batch: OptTensor = None,
                      size: int | None = None) -> Tensor:
    r"""The relative energy from a list of edges."""
    degree = degrees(edges, x.size(-2), x.dtype)
    px = matmul(edges, gcn_weight(edges, degree), x)
    return energy_from_product(x, px, degree, mean_degrees(edges, degree),
                               batch, size)


def energy_sums(x: Tensor, edges: Edges, degree: Tensor) -> Tensor:
    r"""What the relative energy is made of, of shape :obj:`[*, 3 + F]`: the
    Dirichlet energy of :math:`\mathbf{U} = \mathbf{D}^{-1/2} \mathbf{X}`, its
    spread around its mean weighted by degree, all weight, and that mean.

    All of it is summed over :obj:`edges` (the weight of a node is half of what
    it receives and sends along them), but for :obj:`degree`, which is the one
    to scale with: edges may be a sample of a graph, and degrees the graph's.
    """
    u = inverse_sqrt(degree).unsqueeze(-1) * x
    weight = mean_degrees(edges, degrees(edges, x.size(-2), x.dtype))
    mean = mean_over_nodes(u, weight, None, None)
    spread = (weight.unsqueeze(-1) * (u - mean).square()).sum((-2, -1))
    rough = edge_energy(u, edges)
    return torch.cat([torch.stack([
        rough, spread, weight.sum().expand_as(rough)], dim=-1),
        mean.squeeze(-2)], dim=-1)


def merge_sums(old: Tensor, new: Tensor, share: float | Tensor) -> Tensor:
    r"""A share of :obj:`new` and the rest of :obj:`old`, both from
    :meth:`energy_sums`, as if the edges of both were one graph with that share
    of weights. A single number is a Dirichlet energy.
    """
    out = torch.lerp(old, new, torch.as_tensor(share, dtype=old.dtype,
                                               device=old.device))
    if out.numel() == 1:
        return out
    rough, spread, weight = out[:3]
    step = share * new[2] / torch.where(weight > 0, weight, 1.0)
    gap = new[3:] - old[3:]
    # Each was measured around a mean of its own:
    spread = spread + (1 - share) * old[2] * step * gap.square().sum()
    return torch.cat([torch.stack([rough, spread, weight]),
                      old[3:] + step * gap])


def energy_from_sums(sums: Tensor) -> Tensor:
    r"""The relative energy from :meth:`energy_sums`, or the Dirichlet energy
    that stands alone.
    """
    if sums.size(-1) == 1:
        return sums[..., 0]
    rough, spread, weight = (sums[..., i] for i in range(3))
    whole = spread + weight * sums[..., 3:].square().sum(-1)
    return quotient(rough, spread, whole)[0]


def quotient(rough: Tensor, spread: Tensor,
             whole: Tensor) -> tuple[Tensor, Tensor]:
    r"""The relative energy, and what was divided by.

    What is left of features along :math:`\mathbf{v}` is rounding, whose energy
    says nothing: it counts as smooth, and infinity is divided by.
    """
    noise = (256 * torch.finfo(whole.dtype).eps)**2
    spread = torch.where(spread <= noise * whole, math.inf, spread)
    return (rough / spread).clamp(0, 2), spread


def _squared_differences(x: Tensor, row: Tensor, col: Tensor) -> Tensor:
    # Of the features at both ends of some edges, dense or sparse.
    dtype = accumulation_dtype(x.dtype)
    if x.layout == torch.strided:
        a, b = (x.index_select(-2, index).to(dtype) for index in (row, col))
        return torch.linalg.vector_norm(a - b, dim=-1).square()
    if x.layout == torch.sparse_csr:
        rowptr, feature = x.crow_indices().long(), x.col_indices().long()
    else:
        x = x.to_sparse_coo().coalesce()
        entry_row, feature = x.indices()
        rowptr = torch._convert_indices_from_coo_to_csr(entry_row, x.size(0))
    # Torch can select rows of sparse matrices too, but looks at all entries
    # for it. Those of either end are laid side by side and sorted by edge and
    # feature, so that what is to be subtracted comes in pairs.
    num_edges, ends = row.numel(), torch.cat([row, col])
    start, count = rowptr[ends], rowptr[ends + 1] - rowptr[ends]
    end = torch.repeat_interleave(count)
    entry = torch.arange(end.numel()) + (start - count.cumsum(0) + count)[end]
    edge = end % num_edges
    _, order = (edge * x.size(1) + feature[entry]).sort()
    edge, feature, value = (v[order] for v in (
        edge, feature[entry],
        torch.where(end < num_edges, 1, -1) * x.values()[entry].to(dtype)))
    paired = (edge[1:] == edge[:-1]) & (feature[1:] == feature[:-1])
    value[:-1] += torch.where(paired, value[1:], 0)
    value[1:][paired] = 0
    return value.new_zeros(num_edges).index_add_(0, edge, value.square())


def is_saturated(x: Tensor, edges: Edges, beta: float) -> bool:
    r"""Whether a few edges prove that the gate on the Dirichlet energy of
    :obj:`x` is exactly one.

    No term of the energy is negative, so that a part of the sum is a lower
    bound of it. On the CPU, looking is cheap.
    """
    row, col, weight = edges
    num_edges = row.numel()
    needed = saturation(beta, accumulation_dtype(x.dtype))
    if x.numel() == 0 or needed == math.inf:
        return False
    is_dense = x.layout == torch.strided
    size = x.size(-1) if is_dense else x._nnz() // max(x.size(0), 1)
    begin, end = 0, max(2**12 // max(size, 1), 1)
    energy = torch.zeros((), dtype=accumulation_dtype(x.dtype))
    while end < num_edges // 4:
        some = slice(begin, end)
        terms = _squared_differences(x.detach(), row[some], col[some]) / 2
        if weight is not None:
            terms = weight[some].detach() * terms
        energy = energy + terms.sum(-1)
        part = float(energy.min())
        if part >= needed:
            return True
        if not part * num_edges >= needed * end:
            return False  # At this rate all edges together will not do.
        begin, end = end, int(1.1 * end * needed / part) + 1
    return False


# For compiled graphs #########################################################

# Compiled code does not look at values, to see that a few edges will do. This
# it calls as it is:


@torch.library.custom_op('torch_agcn::energy', mutates_args=())
def energy_or_enough(x: Tensor, row: Tensor, col: Tensor, weight: Tensor,
                     beta: float) -> Tensor:
    r"""The Dirichlet energy of :obj:`x`, or any from which the gate is exactly
    one, if a few edges prove that it is more.
    """
    edges = Edges(row, col, weight)
    if is_saturated(x, edges, beta):
        return x.new_tensor(saturation(beta, x.dtype))
    return edge_energy(x, edges)


@energy_or_enough.register_fake
def _(x: Tensor, row: Tensor, col: Tensor, weight: Tensor,
      beta: float) -> Tensor:
    return x.new_empty(())


@torch.library.custom_op('torch_agcn::energy_gradient', mutates_args=())
def _energy_gradient(grad: Tensor, x: Tensor, row: Tensor, col: Tensor,
                     weight: Tensor) -> Tensor:
    if grad == 0:  # of a gate that is one
        return torch.zeros_like(x)
    edges = Edges(row, col, weight)
    mean_degree = mean_degrees(edges, degrees(edges, x.size(0), x.dtype))
    x = x - mean_over_nodes(x, None, None, None)
    out = 2 * mean_degree.unsqueeze(-1) * x
    for ends in [(row, col), (col, row)]:
        rowptr, other, (value, ) = to_csr(*ends, x.size(0), weight)
        assert value is not None
        out -= product(csr_tensor(rowptr, other, value), x)
    return out.mul_(grad)


@_energy_gradient.register_fake
def _(grad: Tensor, x: Tensor, *edges: Tensor) -> Tensor:
    return torch.empty_like(x)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])


def _energy_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return (_energy_gradient(grad, *ctx.saved_tensors), None, None, None,
            None)


energy_or_enough.register_autograd(_energy_backward, setup_context=_keep)
