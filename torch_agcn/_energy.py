r"""Energies of features, the gates they lead to, and the hop they gate."""
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_agcn._edges import Edges
from torch_agcn._graph import Graph, Laplacian, Messages, Operator
from torch_agcn._groups import OneGraph
from torch_agcn._spmm import CSR, define
from torch_agcn._tracing import (
    accumulation_dtype,
    can_look,
    is_traced,
    is_vmapped,
    uses_custom_ops,
)



def blocks(num_rows: int, width: int) -> list[slice]:
    r"""Blocks of rows small enough to stay in the processor's cache while
    several operations pass over them, and for malloc to keep their memory.
    """
    step = max(2**17 // max(width, 1), 1)
    return [slice(i, i + step) for i in range(0, max(num_rows, 1), step)]


# The gate ####################################################################


def vanishing(dtype: torch.dtype) -> float:
    r"""The first whole number whose negative exponential is zero."""
    return 746.0 if dtype == torch.float64 else 104.0


def saturation(beta: float, dtype: torch.dtype) -> float:
    r"""The energy from which the gate is exactly one."""
    return math.sqrt(vanishing(dtype) / beta) if beta > 0 else math.inf


def gate_of(energy: Tensor, beta: float | Tensor) -> Tensor:
    r"""The gate, see :meth:`~torch_agcn.functional.anisotropic_gate`."""
    top = math.sqrt(torch.finfo(energy.dtype).max) / 2  # has a finite square
    bound: Tensor
    if isinstance(beta, Tensor):
        beta = beta.to(energy.dtype)
        last = vanishing(energy.dtype)
        bound = math.sqrt(last) * beta.detach().clamp(
            min=last / top**2).rsqrt()
    else:
        bound = energy.new_tensor(min(saturation(beta, energy.dtype), top))
    energy = torch.fmin(energy, bound)  # which NaN becomes
    return -torch.expm1(-(beta * energy) * energy)


def step(h: Tensor, ph: Tensor, gate: Tensor | None, groups: OneGraph,
         residual: bool) -> Tensor:
    r"""From zero, or from :obj:`h`, to :obj:`ph` by the share of the gate. No
    gate is a gate of one.
    """
    if gate is None:
        return ph
    gate = groups.numbers(gate).to(ph.dtype)
    return torch.lerp(h.to(ph.dtype), ph, gate) if residual else gate * ph


# Total #######################################################################


class Energy:
    r"""An energy, and the hop that it gates."""

    def gate(self, h: Tensor, ph: Tensor, graph: Graph, groups: OneGraph,
             beta: float | Tensor) -> Tensor | None:
        r"""The gate of features :obj:`h`, which :obj:`ph` are propagated
        from; no gate is a gate of one.
        """
        raise TypeError

    def hop(self, h: Tensor, graph: Graph, groups: OneGraph,
            beta: float | Tensor,
            residual: bool) -> tuple[Tensor, Tensor | None]:
        r"""Propagates, measures, and steps as far as the gate is open."""
        ph = graph.P(h)
        gate = self.gate(h, ph, graph, groups, beta)
        return step(h, ph, gate, groups, residual), gate


class Total(Energy):
    r"""The paper's energy."""

    def gate(self, h: Tensor, ph: Tensor, graph: Graph, groups: OneGraph,
             beta: float | Tensor) -> Tensor | None:
        L, is_one = graph.L, type(groups) is OneGraph
        if is_one and isinstance(beta, float):
            if can_look(h) and is_saturated(h, L.adj, beta):
                return None
            if uses_custom_ops() and h.is_cpu and h.dim() == 2:
                return gate_of(_compiled_energy(h, L.adj, beta), beta)
        return gate_of(total_energy(to_measure(h), L, groups), beta)


def to_measure(x: Tensor) -> Tensor:
    r"""Dense features, precise enough to take sums of."""
    x = x if x.layout == torch.strided else x.to_dense()
    return x.to(accumulation_dtype(x.dtype))


def total_energy(x: Tensor, L: Laplacian, groups: OneGraph) -> Tensor:
    r"""The Dirichlet energy of dense features."""
    if not isinstance(L.adj, CSR) or is_traced():
        return _edge_energy(x, L.adj.edges, groups)
    if x.requires_grad and torch.is_grad_enabled():
        return _TotalEnergy.apply(x, L, groups)
    return _matrix_energy(x, L, groups)[0]


def _edge_energy(x: Tensor, edges: Edges, groups: OneGraph) -> Tensor:
    row, col, weight = edges
    difference = x.index_select(-2, row) - x.index_select(-2, col)
    energy = difference.square().sum(-1) / 2
    energy = energy if weight is None else weight * energy
    return groups.of_edges(row).sum(energy)


def _matrix_energy(x: Tensor, L: Laplacian,
                   groups: OneGraph) -> tuple[Tensor, Tensor, Tensor | None]:
    r"""The energy by one product, which is given back as well, and the mean
    that had to be taken away before.
    """
    if x.is_cpu:
        ax = L.adj.product(x)
        energy, whole = _difference_of_sums(x, ax, L, groups)
        if bool((energy >= 1e-3 * whole).all()):
            return energy, ax, None
    # The Laplacian annihilates what is constant on a graph. In floating point
    # it does so only if that has been taken away before:
    mean = groups.mean(x)
    x = x - groups.rows(mean)
    ax = L.adj.product(x)
    energy, whole = _difference_of_sums(x, ax, L, groups)
    if x.is_cpu and not bool((energy >= 1e-3 * whole).all()):
        # Smooth, but not constant. Term by term, nothing cancels:
        energy = torch.zeros_like(energy)
        for some in blocks(L.adj.num_edges, x[..., 0, :].numel()):
            part = L.adj.part(some.start, min(some.stop, L.adj.num_edges))
            energy += _edge_energy(x, part, groups)
    return energy.clamp(min=0), ax, mean


def _difference_of_sums(x: Tensor, ax: Tensor, L: Laplacian,
                        groups: OneGraph) -> tuple[Tensor, Tensor]:
    # The energy, and the sum that most of it may be taken away from.
    weight = L.mean_degree.unsqueeze(-1)
    energy = whole = x.new_zeros(())
    for some in blocks(x.size(-2), x.size(-1)):
        part, own = x[..., some, :], groups[some]
        square = own.dot(part, weight[some] * part)
        whole = whole + square
        energy = energy + (square - own.dot(part, ax[..., some, :]))
    return energy, whole


class _TotalEnergy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, L: Laplacian,
                groups: OneGraph) -> Tensor:
        energy, ax, mean = _matrix_energy(x, L, groups)
        ctx.L, ctx.groups = L, groups
        ctx.save_for_backward(x, ax, mean)
        return energy

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        x, ax, mean = ctx.saved_tensors
        adj, groups = ctx.L.adj, ctx.groups
        weight = 2 * ctx.L.mean_degree.unsqueeze(-1)
        grad = groups.numbers(grad)
        if torch.is_grad_enabled() or is_vmapped(grad):
            both = adj(x) + adj.t(x)
            return grad * (weight * x - both), None, None
        x = x if mean is None else x - groups.rows(mean)
        out = torch.empty_like(x)
        other = ax if adj.is_symmetric else adj.t.product(x)
        for some in blocks(x.size(-2), x.size(-1)):
            part = out[..., some, :]
            torch.mul(x[..., some, :], weight[some], out=part)
            part.sub_(ax[..., some, :]).sub_(other[..., some, :])
        return out.mul_(grad), None, None


# Saturation ##################################################################


def is_saturated(x: Tensor, adj: Operator, beta: float) -> bool:
    r"""Whether a few edges prove that the gate on the Dirichlet energy of
    :obj:`x` is exactly one.

    No term of the energy is negative, so that a part of the sum is a lower
    bound of it.
    """
    num_edges, dtype = adj.num_edges, accumulation_dtype(x.dtype)
    needed = saturation(beta, dtype)
    if x.numel() == 0 or needed == math.inf:
        return False
    is_dense = x.layout == torch.strided
    width = x.size(-1) if is_dense else x._nnz() // max(x.size(0), 1)
    begin, end = 0, max(2**12 // max(width, 1), 1)
    energy = torch.zeros((), dtype=dtype)
    while end < num_edges // 4:
        row, col, weight = adj.part(begin, end)
        terms = _squared_differences(x.detach(), row, col)
        terms = terms if weight is None else weight.detach() * terms
        energy = energy + terms.sum(-1) / 2
        part = float(energy.min())
        if part >= needed:
            return True
        if not part * num_edges >= needed * end:
            return False  # At this rate all edges together will not do.
        begin, end = end, int(1.1 * end * needed / part) + 1
    return False


def _squared_differences(x: Tensor, row: Tensor, col: Tensor) -> Tensor:
    r"""Between the features at both ends of some edges, dense or sparse."""
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
    # Torch selects rows of sparse matrices by a look at all entries. Here the
    # entries of both ends are laid side by side and sorted by edge and
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


# Relative ####################################################################


class Relative(Energy):
    r"""The energy relative to the size of the features."""

    def gate(self, h: Tensor, ph: Tensor, graph: Graph, groups: OneGraph,
             beta: float | Tensor) -> Tensor:
        ph = ph if graph.L.P is graph.P else graph.L.P(h)
        energy = relative_energy(to_measure(h), to_measure(ph), graph.L,
                                 groups)
        return gate_of(energy, beta)

    def hop(self, h: Tensor, graph: Graph, groups: OneGraph,
            beta: float | Tensor,
            residual: bool) -> tuple[Tensor, Tensor | None]:
        if graph.is_matrix and h.is_cpu:
            found = _fused_hop(h, graph, groups, beta, residual)
            if found is not None:
                return found
        return super().hop(h, graph, groups, beta, residual)


class Sums(NamedTuple):
    r"""What the relative energy is made of: the Dirichlet energy of
    :math:`\mathbf{\tilde{D}}^{-1/2} \mathbf{H}`, its spread around its mean
    weighted by degree, all weight, and that mean.
    """

    rough: Tensor
    spread: Tensor
    weight: Tensor
    mean: Tensor

    @property
    def whole(self) -> Tensor:
        r"""The spread around zero."""
        return self.spread + self.weight * self.mean.square().sum(-1)

    def energy(self) -> Tensor:
        r"""The relative energy."""
        return (self.rough / self.divisor()).clamp(0, 2)

    def divisor(self) -> Tensor:
        r"""The spread, and infinity if it is rounding noise."""
        noise = (256 * torch.finfo(self.spread.dtype).eps)**2
        return torch.where(self.spread <= noise * self.whole, math.inf,
                           self.spread)

    def is_normal(self) -> bool:
        r"""Whether no squares have vanished or become infinite."""
        if self.spread.numel() == 0:
            return True
        low, high = (float(v) for v in self.whole.detach().aminmax())
        return low > 2.0**-80 and high < 2.0**80


def relative_sums(h: Tensor, ph: Tensor, L: Laplacian,
                  groups: OneGraph) -> Sums:
    r"""Takes all sums from :math:`\mathbf{H}` and
    :math:`\mathbf{P} \mathbf{H}`.
    """
    is_whole = is_traced() or (torch.is_grad_enabled() and (
        h.requires_grad or ph.requires_grad))
    parts = [slice(None)] if is_whole else blocks(h.size(-2), h.size(-1))
    weight = groups.sum(L.mean_degree)
    mean = rough = spread = h.new_zeros(())
    for some in parts:
        mean = mean + groups[some].sum_rows(h[..., some, :],
                                            L.mean_weight[some])
    mean = mean / _positive(weight).unsqueeze(-1)
    for some in parts:
        more = _sums_of_rows(h[..., some, :], ph[..., some, :], mean, L,
                             groups[some], some)
        rough, spread = rough + more[0], spread + more[1]
    if not L.is_even:
        lone = groups.sum(L.lone_weight) * mean.square().sum(-1)
        rough, spread = rough + lone, spread + lone
    return Sums(rough, spread, weight, mean)


def _positive(total: Tensor) -> Tensor:
    # To divide by: where it is zero, so is what is divided.
    return total.clamp(min=torch.finfo(total.dtype).tiny)


def _sums_of_rows(h: Tensor, ph: Tensor, mean: Tensor, L: Laplacian,
                  groups: OneGraph, some: slice) -> tuple[Tensor, Tensor]:
    own = groups.rows(mean)
    centred = torch.addcmul(h, L.root[some], own, value=-1)
    if L.is_even:
        return groups.dot(centred, h - ph), groups.dot(centred, centred)
    weighted = L.ratio[some] * centred
    difference = torch.addcmul(weighted - ph, L.shift[some], own)
    return groups.dot(centred, difference), groups.dot(centred, weighted)


def relative_energy(h: Tensor, ph: Tensor, L: Laplacian,
                    groups: OneGraph) -> Tensor:
    r"""The relative energy from :math:`\mathbf{H}` and
    :math:`\mathbf{P} \mathbf{H}`.
    """
    if can_look(h):
        sums = relative_sums(h, ph, L, groups)
        if sums.is_normal():
            return sums.energy()
    # Scale does not matter to the energy, but to its squares. A power of two
    # changes no digit.
    top = groups.amax(h)
    mantissa, _ = torch.frexp(top)
    scale = groups.numbers(torch.where(top > 0, mantissa / top, 1.0))
    return relative_sums(h * scale, ph * scale, L, groups).energy()


# The fused hop ###############################################################


def _fused_hop(h: Tensor, graph: Graph, groups: OneGraph,
               beta: float | Tensor,
               residual: bool) -> tuple[Tensor, Tensor] | None:
    r"""One hop gated by the relative energy, in few passes over memory and
    with one product in the backward pass; :obj:`None` for features whose
    squares are out of range.
    """
    dtype = accumulation_dtype(h.dtype)
    with torch.no_grad():
        ph = graph.P.product(h)
        sums = relative_sums(h.to(dtype), ph.to(dtype), graph.L, groups)
        if not sums.is_normal():
            return None
    if torch.is_grad_enabled() and (h.requires_grad or (
            isinstance(beta, Tensor) and beta.requires_grad)):
        beta = torch.as_tensor(beta, dtype=dtype)
        out, gate = _Hop.apply(h.to(dtype), beta, ph.to(dtype), sums, graph,
                               groups, residual)
        return out.to(ph.dtype), gate
    gate = gate_of(sums.energy(), beta)
    share = groups.numbers(gate).to(ph.dtype)
    if residual:
        return torch.lerp(h.to(ph.dtype), ph, share, out=ph), gate
    return ph.mul_(share), gate


class _Hop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, beta: Tensor, ph: Tensor, sums: Sums,
                graph: Graph, groups: OneGraph,
                residual: bool) -> tuple[Tensor, Tensor]:
        energy = sums.energy()
        gate = gate_of(energy, beta)
        ctx.save_for_backward(h, ph, beta, gate, energy, sums.divisor(),
                              sums.mean)
        ctx.graph, ctx.groups, ctx.residual = graph, groups, residual
        ctx.mark_non_differentiable(gate)
        return step(h, ph, gate, groups, residual), gate

    @staticmethod
    def backward(ctx: Any, grad: Tensor,
                 _: Any) -> tuple[Tensor | None, ...]:
        h, ph, beta, gate, energy, spread, mean = ctx.saved_tensors
        graph, groups = ctx.graph, ctx.groups
        if torch.is_grad_enabled() or is_vmapped(grad):
            return _plain_gradient(grad, h, beta, graph, groups, ctx.residual)
        grad_gate = h.new_zeros(())
        for some in blocks(h.size(-2), h.size(-1)):
            part = ph[..., some, :]
            part = part - h[..., some, :] if ctx.residual else part
            grad_gate = grad_gate + groups[some].dot(part,
                                                     grad[..., some, :])
        # g = 1 - exp(-u):
        u = (beta * energy * energy).clamp(max=vanishing(h.dtype))
        rest = torch.exp(-u)
        grad_beta = (grad_gate * energy * energy * rest).sum()
        slope = torch.where(energy > 0, 2 * u * rest / energy, 0.0)
        slope = grad_gate * slope / spread
        pull = _even_gradient if graph.L.is_even else _uneven_gradient
        out = pull(grad, h, ph, gate, rest, slope, energy, mean, ctx)
        return out, grad_beta, None, None, None, None, None


def _even_gradient(grad: Tensor, h: Tensor, ph: Tensor, gate: Tensor,
                   rest: Tensor, slope: Tensor, energy: Tensor, mean: Tensor,
                   ctx: Any) -> Tensor:
    # P is symmetric and P r = r, so that one product will do.
    out = ctx.graph.P.product(grad)
    root = ctx.graph.L.root
    for some in blocks(h.size(-2), h.size(-1)):
        groups, part = ctx.groups[some], out[..., some, :]
        part.mul_(groups.numbers(gate))
        if ctx.residual:
            part.addcmul_(grad[..., some, :], groups.numbers(rest))
        part.addcmul_(h[..., some, :],
                      groups.numbers(2 * slope * (1 - energy)))
        part.addcmul_(ph[..., some, :], groups.numbers(-2 * slope))
        part.addcmul_(root[some], groups.rows(
            (2 * slope * energy).unsqueeze(-1) * mean))
    return out


def _uneven_gradient(grad: Tensor, h: Tensor, ph: Tensor, gate: Tensor,
                     rest: Tensor, slope: Tensor, energy: Tensor,
                     mean: Tensor, ctx: Any) -> Tensor:
    L, groups = ctx.graph.L, ctx.groups
    weight = _positive(groups.sum(L.mean_degree)).unsqueeze(-1)
    # What the mean pulls at:
    grad_mean = -2 * groups.sum(L.degree).unsqueeze(-1) * mean
    given = torch.empty_like(h)
    for some in blocks(h.size(-2), h.size(-1)):
        own, part = groups[some], given[..., some, :]
        grad_mean = grad_mean + own.sum_rows(
            h[..., some, :] + ph[..., some, :], L.root[some].squeeze(-1))
        torch.addcmul(h[..., some, :], L.root[some], own.rows(mean),
                      value=-1, out=part)
        part.mul_(own.numbers(-slope))
        part.addcmul_(grad[..., some, :], own.numbers(gate))
    grad_mean = grad_mean * slope.unsqueeze(-1) / weight
    out = ctx.graph.P.t.product(given)
    for some in blocks(h.size(-2), h.size(-1)):
        own, part = groups[some], out[..., some, :]
        if ctx.residual:
            part.addcmul_(grad[..., some, :], own.numbers(rest))
        centred = torch.addcmul(h[..., some, :], L.root[some],
                                own.rows(mean), value=-1)
        part.addcmul_(centred.mul_(L.ratio[some]),
                      own.numbers(2 * slope * (1 - energy)))
        part.addcmul_(ph[..., some, :], own.numbers(-slope))
        part.addcmul_(L.root[some],
                      own.rows(slope.unsqueeze(-1) * mean))
        part.addcmul_(L.mean_weight[some].unsqueeze(-1), own.rows(grad_mean))
    return out


def _plain_gradient(grad: Tensor, h: Tensor, beta: Tensor, graph: Graph,
                    groups: OneGraph,
                    residual: bool) -> tuple[Tensor | None, ...]:
    # By torch's own derivatives, to be differentiated or batched.
    with torch.enable_grad():
        h, beta = h.view_as(h), beta.view_as(beta)  # `h` may depend on `beta`
        wanted = [v for v in (h, beta) if v.requires_grad]
        out, _ = Energy.hop(Relative(), h, graph, groups, beta, residual)
        grads = iter(torch.autograd.grad(out, wanted, grad,
                                         create_graph=not is_vmapped(grad)))
    found = [next(grads) if v.requires_grad else None for v in (h, beta)]
    return found[0], found[1], None, None, None, None, None


# Operators for compiled graphs ###############################################

# Compiled code does not look at values, to see that a few edges will do. This
# operator does.


def _compiled_energy(x: Tensor, adj: Operator, beta: float) -> Tensor:
    row, col, weight = adj.edges
    return torch.ops.torch_agcn.energy(to_measure(x), row, col, weight, beta)


def _run_energy(x: Tensor, row: Tensor, col: Tensor, weight: Tensor | None,
                beta: float) -> Tensor:
    adj = Messages(Edges(row, col, weight), x.size(0))
    if is_saturated(x, adj, beta):
        return x.new_tensor(saturation(beta, x.dtype))
    return _matrix_energy(x, _laplacian(x, row, col, weight), OneGraph())[0]


def _run_energy_gradient(grad: Tensor, x: Tensor, row: Tensor, col: Tensor,
                         weight: Tensor | None) -> Tensor:
    if grad == 0:  # of a gate that is one
        return torch.zeros_like(x)
    L = _laplacian(x, row, col, weight)
    x = x - x.mean(0)
    out = 2 * L.mean_degree.unsqueeze(-1) * x
    return out.sub_(L.adj.product(x)).sub_(L.adj.t.product(x)).mul_(grad)


def _laplacian(x: Tensor, row: Tensor, col: Tensor,
               weight: Tensor | None) -> Laplacian:
    adj = CSR.from_edges(Edges(row, col, weight), x.size(0))
    return Laplacian(adj, x.dtype)


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])


def _energy_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    out = torch.ops.torch_agcn.energy_gradient(grad, *ctx.saved_tensors)
    return out, None, None, None, None


define('energy(Tensor x, Tensor row, Tensor col, Tensor? weight, '
       'float beta) -> Tensor', _run_energy,
       lambda x, *_: x.new_empty(()))
define('energy_gradient(Tensor grad, Tensor x, Tensor row, Tensor col, '
       'Tensor? weight) -> Tensor', _run_energy_gradient,
       lambda grad, x, *_: torch.empty_like(x))
torch.library.register_autograd('torch_agcn::energy', _energy_backward,
                                setup_context=_save_inputs)
