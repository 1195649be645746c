r"""Energies, gates and hops."""
import math
from typing import Any

import torch
from torch import Tensor

from torch_agcn._edges import Edges
from torch_agcn._graph import Graph, Laplacian, Operator
from torch_agcn._groups import OneGraph
from torch_agcn._spmm import (
    ALL,
    CSR,
    Rounded,
    blocks,
    define,
    is_low,
    lead_back,
    take,
)
from torch_agcn._tracing import (
    accumulation_dtype,
    can_look,
    is_traced,
    is_vmapped,
    lazy_property,
    uses_custom_ops,
)


def row_dot(a: Tensor, b: Tensor) -> Tensor:
    if a.requires_grad or b.requires_grad or is_traced():
        return (a * b).sum(-1)
    return torch.cat([(take(a, some) * take(b, some)).sum(-1)
                      for some in blocks(a.size(-2), a.size(-1))], dim=-1)


def to_measure(x: Tensor) -> Tensor:
    r"""Converts to dense features of at least single precision."""
    x = x if x.layout == torch.strided else x.to_dense()
    return x.to(accumulation_dtype(x.dtype))


# The gate and the hop ########################################################


def vanishing(dtype: torch.dtype) -> float:
    r"""The least integer :math:`u` with :math:`\exp(-u) = 0`."""
    return 746.0 if dtype == torch.float64 else 104.0


def saturation(beta: float, dtype: torch.dtype) -> float:
    r"""The energy from which the gate is exactly one."""
    return math.sqrt(vanishing(dtype) / beta) if beta > 0 else math.inf


def gate_of(energy: Tensor, beta: float | Tensor) -> Tensor:
    top = math.sqrt(torch.finfo(energy.dtype).max) / 2  # its square is finite
    if is_traced() and not isinstance(beta, Tensor):
        # Forward mode promotes products with Python scalars to double.
        beta = torch.full_like(energy, beta)
    if isinstance(beta, Tensor):
        last, beta = vanishing(energy.dtype), beta.to(energy.dtype)
        bound = math.sqrt(last) * beta.detach().clamp(
            min=last / top**2).rsqrt()
        energy = torch.fmin(energy, bound)  # NaN becomes the bound
    else:
        most = min(saturation(beta, energy.dtype), top)
        energy = torch.where(energy < most, energy, most)
    return torch.expm1((-beta * energy) * energy).neg()


def step(h: Tensor, ph: Tensor, gate: Tensor | None, groups: OneGraph,
         residual: bool) -> Tensor:
    if gate is None:
        return ph
    gate = groups.numbers(gate).to(ph.dtype)
    return torch.lerp(h.to(ph.dtype), ph, gate) if residual else gate * ph


class Energy:
    # Whether the energy needs the product, which then must not be rounded.
    looks_ahead = True

    def gate(self, h: Tensor, ph: Tensor, graph: Graph, groups: OneGraph,
             beta: float | Tensor) -> Tensor | None:
        r"""Returns the gate, or :obj:`None` if it is exactly one."""
        raise TypeError

    def hop(self, h: Tensor, graph: Graph, groups: OneGraph,
            beta: float | Tensor,
            residual: bool) -> tuple[Tensor, Tensor | None]:
        ph = graph.P(h) if self.looks_ahead else graph.propagate(h)
        gate = self.gate(h, ph, graph, groups, beta)
        return step(h, ph, gate, groups, residual), gate


# Total #######################################################################


class Total(Energy):
    looks_ahead = False

    def gate(self, h: Tensor, ph: Tensor, graph: Graph, groups: OneGraph,
             beta: float | Tensor) -> Tensor | None:
        L, is_one = graph.L, type(groups) is OneGraph
        if is_one and can_look(h) and isinstance(beta, float) and (
                is_saturated(h, L.adj, beta)):
            return None
        if is_one and uses_custom_ops() and isinstance(L.adj, CSR) and (
                h.dim() == 2):
            energy = torch.ops.torch_agcn.energy(
                to_measure(h), L.adj.rowptr, L.adj.col, L.adj.value,
                beta if isinstance(beta, float) else 0.0)
            return gate_of(energy, beta)
        return gate_of(total_energy(to_measure(h), L, groups), beta)


def total_energy(x: Tensor, L: Laplacian, groups: OneGraph) -> Tensor:
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
    r"""Returns the energy, its product, and the subtracted mean, if any."""
    adj: Any = L.adj
    if x.is_cpu:
        ax = adj.product(x)
        energy, is_exact = _difference_of_sums(x, ax, L, groups)
        if is_exact:
            return energy, ax, None
    # Constant features have no energy, which is exact only if the mean is
    # subtracted first:
    mean = groups.mean(x)
    x = x - groups.rows(mean)
    ax = adj.product(x)
    energy, is_exact = _difference_of_sums(x, ax, L, groups)
    if not is_exact:  # Summed edge by edge, nothing cancels.
        energy, count = torch.zeros_like(energy), adj.num_edges
        for some in blocks(count, x[..., 0, :].numel()):
            part = adj.part(*some.indices(count)[:2])
            energy += _edge_energy(x, part, groups)
    return energy.clamp(min=0), ax, mean


def _difference_of_sums(x: Tensor, ax: Tensor, L: Laplacian,
                        groups: OneGraph) -> tuple[Tensor, bool]:
    # Returns the energy, and whether enough digits did not cancel.
    weight, energy, whole = L.mean_degree.unsqueeze(-1), [], []
    for some in blocks(x.size(-2), x.size(-1)):
        part, own = take(x, some), groups.of_nodes(some)
        whole.append(own.dot(part, take(weight, some) * part))
        energy.append(whole[-1] - own.dot(part, take(ax, some)))
    left, of = total(energy), total(whole)
    return left, not x.is_cpu or bool((left >= 0.01 * of).all())


def total(values: list[Tensor]) -> Tensor:
    return values[0] if len(values) == 1 else torch.stack(values).sum(0)


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
            return grad * (weight * x - adj(x) - adj.t(x)), None, None
        x = x if mean is None else x - groups.rows(mean)
        out = torch.empty_like(x)
        other = ax if adj.is_symmetric else adj.t.product(x)
        for some in blocks(x.size(-2), x.size(-1)):
            part = take(out, some)
            torch.mul(take(x, some), take(weight, some), out=part)
            part.sub_(take(ax, some)).sub_(take(other, some))
        return out.mul_(grad), None, None


def is_saturated(x: Tensor, adj: Operator, beta: float) -> bool:
    r"""Whether the terms of a few edges suffice for a gate of exactly one."""
    num_edges, dtype = adj.num_edges, accumulation_dtype(x.dtype)
    needed = saturation(beta, dtype)
    if x.numel() == 0 or needed == math.inf:
        return False
    is_dense = x.layout == torch.strided
    width = x.size(-1) if is_dense else x._nnz() // max(x.size(0), 1)
    begin, end = 0, max(2**12 // max(width, 1), 1)
    found, x = torch.zeros((), dtype=dtype), x.detach()
    while end < num_edges // 4:
        row, col, weight = adj.part(begin, end)
        difference = _rows(x, row).to(dtype) - _rows(x, col).to(dtype)
        terms = difference.square().sum(-1)
        terms = terms if weight is None else weight.detach() * terms
        found = found + terms.sum(-1) / 2
        part = float(found.min())
        if part >= needed:
            return True
        if not part * num_edges >= needed * end:
            return False  # All edges would not suffice.
        begin, end = end, int(1.1 * end * needed / part) + 1
    return False


def _rows(x: Tensor, index: Tensor) -> Tensor:
    if x.layout == torch.strided:
        return x.index_select(-2, index)
    if x.layout == torch.sparse_csr:
        rowptr, col = x.crow_indices().long(), x.col_indices().long()
    else:
        x = x.to_sparse_coo().coalesce()
        row, col = x.indices()
        rowptr = torch._convert_indices_from_coo_to_csr(row, x.size(0))
    start, count = rowptr[index], rowptr[index + 1] - rowptr[index]
    row = torch.repeat_interleave(count)
    entry = torch.arange(row.numel()) + (start - count.cumsum(0) + count)[row]
    out = x.values().new_zeros(index.numel(), x.size(1))
    out[row, col[entry]] = x.values()[entry]
    return out


# Relative ####################################################################


class Relative(Energy):
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


class Sums:
    r"""The Dirichlet energy of :math:`\mathbf{\tilde{D}}^{-1/2} \mathbf{H}`,
    its spread around the mean, the sum of degrees, and the mean weighted by
    degree.
    """

    def __init__(self, rough: Tensor, spread: Tensor, weight: Tensor,
                 mean: Tensor) -> None:
        self.rough, self.spread = rough, spread
        self.weight, self.mean = weight, mean
        # The spread around zero:
        self.whole = spread + weight * mean.square().sum(-1)

    @lazy_property
    def divisor(self) -> Tensor:
        r"""The spread, or infinity if it is rounding noise."""
        noise = (256 * torch.finfo(self.spread.dtype).eps)**2
        return torch.where(self.spread <= noise * self.whole, math.inf,
                           self.spread)

    @lazy_property
    def energy(self) -> Tensor:
        return (self.rough / self.divisor).clamp(0, 2)

    @property
    def is_normal(self) -> bool:
        r"""Whether squares neither underflow nor overflow."""
        whole = self.whole.detach()
        if whole.dim() == 0:
            return 2.0**-80 < float(whole) < 2.0**80
        return bool(((whole > 2.0**-80) & (whole < 2.0**80)).all())


def relative_sums(h: Tensor, ph: Tensor, L: Laplacian, groups: OneGraph,
                  mean: Tensor | None = None) -> Sums:
    is_whole = is_traced() or (torch.is_grad_enabled() and ph.requires_grad)
    parts = [ALL] if is_whole else blocks(h.size(-2), h.size(-1))
    weight = groups.sum(L.mean_degree)
    mean = _mean(h, L, groups, parts) if mean is None else mean
    rough, spread = (total(list(found)) for found in zip(*(
        _sums_of_rows(take(h, some), take(ph, some), mean, L,
                      groups.of_nodes(some), some) for some in parts)))
    if not L.is_even:
        lone = groups.sum(L.terms.lone.squeeze(-1)) * mean.square().sum(-1)
        rough, spread = rough + lone, spread + lone
    return Sums(rough, spread, weight, mean)


def _mean(h: Tensor, L: Laplacian, groups: OneGraph,
          parts: list[slice]) -> Tensor:
    out = total([groups.of_nodes(some).sum_rows(
        take(h, some) * take(L.terms.weight, some)) for some in parts])
    return out / _positive(groups.sum(L.mean_degree)).unsqueeze(-1)


def _sums_of_rows(h: Tensor, ph: Tensor, mean: Tensor, L: Laplacian,
                  groups: OneGraph, some: slice) -> tuple[Tensor, Tensor]:
    own = groups.rows(mean)
    centred = torch.addcmul(h, take(L.terms.root, some), own, value=-1)
    if L.is_even:
        return groups.dot(centred, h - ph), groups.dot(centred, centred)
    weighted = take(L.terms.ratio, some) * centred
    difference = torch.addcmul(weighted - ph, take(L.terms.shift, some), own)
    return groups.dot(centred, difference), groups.dot(centred, weighted)


def _positive(weight: Tensor) -> Tensor:
    # A divisor. Where it is zero, so is the dividend.
    return weight.clamp(min=torch.finfo(weight.dtype).tiny)


def relative_energy(h: Tensor, ph: Tensor, L: Laplacian,
                    groups: OneGraph) -> Tensor:
    if can_look(h):
        sums = relative_sums(h, ph, L, groups)
        if sums.is_normal:
            return sums.energy
    # The energy does not depend on scale, but its squares may overflow. A
    # power of two scales exactly.
    top = groups.amax(h)
    mantissa, _ = torch.frexp(top)
    most = 1 / torch.finfo(top.dtype).tiny  # also a power of two
    scale = groups.numbers(torch.where(
        top > 0, (mantissa / top).clamp(max=most), 1.0))
    return relative_sums(h * scale, ph * scale, L, groups).energy


# The fused hop ###############################################################


def _fused_hop(h: Tensor, graph: Graph, groups: OneGraph,
               beta: float | Tensor,
               residual: bool) -> tuple[Tensor, Tensor] | None:
    r"""One hop with a single product in the backward pass, or :obj:`None` if
    squares are out of range.
    """
    dtype, adj, mean = accumulation_dtype(h.dtype), _matrix_of(graph, h), None
    with torch.no_grad():
        if isinstance(adj, Rounded):
            ph, mean = _rounded_product(h.to(dtype), adj, graph.L, groups)
        else:
            ph = adj.product(h)
        sums = relative_sums(h.to(dtype), ph.to(dtype), graph.L, groups, mean)
        if not sums.is_normal:
            return None
    if isinstance(beta, float) and bool(
            (sums.energy >= saturation(beta, dtype)).all()):
        # The gates are one, and their gradient is zero.
        return lead_back(h, adj, ph), torch.ones_like(sums.energy)
    if torch.is_grad_enabled() and (h.requires_grad or (
            isinstance(beta, Tensor) and beta.requires_grad)):
        beta = torch.as_tensor(beta, dtype=dtype)
        out, gate = _Hop.apply(h.to(dtype), beta, ph.to(dtype), sums, adj,
                               graph, groups, residual)
        return out.to(ph.dtype), gate
    gate = gate_of(sums.energy, beta)
    share = groups.numbers(gate).to(ph.dtype)
    if residual:
        return torch.lerp(h.to(ph.dtype), ph, share, out=ph), gate
    return ph.mul_(share), gate


def _matrix_of(graph: Graph, h: Tensor) -> CSR | Rounded:
    adj: Any = graph.P
    return adj.rounded if is_low(h) else adj


def _rounded_product(h: Tensor, adj: Rounded, L: Laplacian,
                     groups: OneGraph) -> tuple[Tensor, Tensor]:
    r"""The product in bfloat16 of centred features, plus that of the mean."""
    parts = blocks(h.size(-2), h.size(-1))
    mean, centred = _mean(h, L, groups, parts), torch.empty_like(h)
    for some in parts:
        torch.addcmul(take(h, some), take(L.terms.root, some),
                      groups.of_nodes(some).rows(mean), value=-1,
                      out=take(centred, some))
    out = adj.product(centred)
    for some in parts:
        take(out, some).addcmul_(take(L.kept, some),
                                 groups.of_nodes(some).rows(mean))
    return out, mean


class _Hop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, beta: Tensor, ph: Tensor, sums: Sums,
                adj: CSR | Rounded, graph: Graph, groups: OneGraph,
                residual: bool) -> tuple[Tensor, Tensor]:
        gate = gate_of(sums.energy, beta)
        ctx.save_for_backward(h, ph, beta, gate, sums.energy, sums.divisor,
                              sums.mean)
        ctx.adj, ctx.graph, ctx.groups = adj, graph, groups
        ctx.residual = residual
        ctx.mark_non_differentiable(gate)
        return step(h, ph, gate, groups, residual), gate

    @staticmethod
    def backward(ctx: Any, grad: Tensor,
                 _: Any) -> tuple[Tensor | None, ...]:
        h, ph, beta, gate, energy, spread, mean = ctx.saved_tensors
        graph, groups = ctx.graph, ctx.groups
        if torch.is_grad_enabled() or is_vmapped(grad):
            return _plain_gradient(grad, h, beta, graph, groups, ctx.residual)
        grad_gate = total([groups.of_nodes(some).dot(
            take(ph, some) - take(h, some) if ctx.residual else
            take(ph, some), take(grad, some))
            for some in blocks(h.size(-2), h.size(-1))])
        # g = 1 - exp(-u):
        u = (beta * energy * energy).clamp(max=vanishing(h.dtype))
        rest = torch.exp(-u)
        grad_beta = (grad_gate * energy * energy * rest).sum()
        slope = torch.where(energy > 0, 2 * u * rest / energy, 0.0)
        slope = grad_gate * slope / spread
        pull = _even_gradient if graph.L.is_even else _uneven_gradient
        out = pull(ctx, grad, h, ph, gate, slope, energy, mean)
        if ctx.residual:
            for some in blocks(h.size(-2), h.size(-1)):
                take(out, some).addcmul_(
                    take(grad, some), groups.of_nodes(some).numbers(rest))
        return out, grad_beta, *[None] * 6


def _even_gradient(ctx: Any, grad: Tensor, h: Tensor, ph: Tensor,
                   gate: Tensor, slope: Tensor, energy: Tensor,
                   mean: Tensor) -> Tensor:
    # P is symmetric and P r = r, so one product suffices.
    out = ctx.adj.product(grad)
    root = ctx.graph.L.terms.root
    for some in blocks(h.size(-2), h.size(-1)):
        own, part = ctx.groups.of_nodes(some), take(out, some)
        part.mul_(own.numbers(gate))
        part.addcmul_(take(h, some), own.numbers(2 * slope * (1 - energy)))
        part.addcmul_(take(ph, some), own.numbers(-2 * slope))
        part.addcmul_(take(root, some), own.rows(
            (2 * slope * energy).unsqueeze(-1) * mean))
    return out


def _uneven_gradient(ctx: Any, grad: Tensor, h: Tensor, ph: Tensor,
                     gate: Tensor, slope: Tensor, energy: Tensor,
                     mean: Tensor) -> Tensor:
    L, groups, parts = ctx.graph.L, ctx.groups, blocks(h.size(-2), h.size(-1))
    root, weight, ratio, _, _ = L.terms
    # The gradients with respect to the product and the mean:
    given, pulls = torch.empty_like(h), []
    for some in parts:
        own, part = groups.of_nodes(some), take(given, some)
        pulls.append(own.sum_rows((take(h, some) + take(ph, some))
                                  * take(root, some)))
        torch.addcmul(take(h, some), take(root, some), own.rows(mean),
                      value=-1, out=part)
        part.mul_(own.numbers(-slope))
        part.addcmul_(take(grad, some), own.numbers(gate))
    out = ctx.adj.t.product(given)
    pull = total(pulls) - 2 * groups.sum(L.degree).unsqueeze(-1) * mean
    pull = pull * (slope / _positive(groups.sum(L.mean_degree))).unsqueeze(-1)
    for some in parts:
        own, part = groups.of_nodes(some), take(out, some)
        centred = torch.addcmul(take(h, some), take(root, some),
                                own.rows(mean), value=-1)
        part.addcmul_(centred.mul_(take(ratio, some)),
                      own.numbers(2 * slope * (1 - energy)))
        part.addcmul_(take(ph, some), own.numbers(-slope))
        part.addcmul_(take(root, some), own.rows(slope.unsqueeze(-1) * mean))
        part.addcmul_(take(weight, some), own.rows(pull))
    return out


def _plain_gradient(grad: Tensor, h: Tensor, beta: Tensor, graph: Graph,
                    groups: OneGraph,
                    residual: bool) -> tuple[Tensor | None, ...]:
    # By autograd, for double backward and batched gradients.
    with torch.enable_grad():
        h, beta = h.view_as(h), beta.view_as(beta)  # `h` may depend on `beta`
        wanted = [v for v in (h, beta) if v.requires_grad]
        out, _ = Energy.hop(Relative(), h, graph, groups, beta, residual)
        grads = iter(torch.autograd.grad(out, wanted, grad,
                                         create_graph=not is_vmapped(grad)))
    found = [next(grads) if v.requires_grad else None for v in (h, beta)]
    return found[0], found[1], *[None] * 6


# Operators for compiled graphs ###############################################

# Compiled code cannot call `is_saturated`, which reads values.


def _run_energy(x: Tensor, rowptr: Tensor, col: Tensor, value: Tensor | None,
                beta: float) -> Tensor:
    adj = CSR(rowptr, col, value)
    if is_saturated(x, adj, beta):
        return x.new_tensor(saturation(beta, x.dtype))
    return _matrix_energy(x, Laplacian(adj, x.dtype), OneGraph())[0].clone()


def _run_energy_gradient(grad: Tensor, x: Tensor, rowptr: Tensor, col: Tensor,
                         value: Tensor | None) -> Tensor:
    if grad == 0:  # The gate is saturated.
        return torch.zeros_like(x)
    adj = CSR(rowptr, col, value)
    x = x - x.mean(0)
    out = 2 * Laplacian(adj, x.dtype).mean_degree.unsqueeze(-1) * x
    return out.sub_(adj.product(x)).sub_(adj.t.product(x)).mul_(grad)


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])


def _energy_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    out = torch.ops.torch_agcn.energy_gradient(grad, *ctx.saved_tensors)
    return out, None, None, None, None


define('energy(Tensor x, Tensor rowptr, Tensor col, Tensor? value, '
       'float beta) -> Tensor', _run_energy,
       lambda x, *_: x.new_empty(()))
define('energy_gradient(Tensor grad, Tensor x, Tensor rowptr, Tensor col, '
       'Tensor? value) -> Tensor', _run_energy_gradient,
       lambda grad, x, *_: torch.empty_like(x))
torch.library.register_autograd('torch_agcn::energy', _energy_backward,
                                setup_context=_save_inputs)
