import torch
from torch import Tensor, distributed
from torch.nn import Module

from torch_agcn._energy import (
    Energy,
    Sums,
    gate_of,
    relative_sums,
    to_measure,
    total_energy,
)
from torch_agcn._graph import Graph
from torch_agcn._groups import OneGraph
from torch_agcn._tracing import accumulation_dtype


class RunningEnergy(Module, Energy):
    r"""The Dirichlet energy of one hop as a running average over mini-batches
    and processes, without batches of non-finite energy.
    """

    looks_ahead = False
    sums: Tensor
    num_batches: Tensor

    def __init__(self, momentum: float, width: int = 1) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer('sums', torch.zeros(width))
        self.register_buffer('num_batches', torch.tensor(0))

    def reset_parameters(self) -> None:
        r"""Resets the average."""
        self.sums.zero_()
        self.num_batches.zero_()

    def gate(self, h: Tensor, ph: Tensor, graph: Graph, groups: OneGraph,
             beta: float | Tensor) -> Tensor:
        sums = self.measure(h, ph, graph, groups)
        sums = self._update(sums) if self.training else self._read(sums)
        return gate_of(self.energy(sums), beta)

    def measure(self, h: Tensor, ph: Tensor, graph: Graph,
                groups: OneGraph) -> Tensor:
        r"""Returns the sums to average."""
        return total_energy(to_measure(h), graph.L, groups).view(1)

    def merge(self, old: Tensor, new: Tensor, share: Tensor) -> Tensor:
        r"""Weighs :obj:`new` by :obj:`share`, and :obj:`old` by the rest."""
        return torch.lerp(old, new, share)

    def energy(self, sums: Tensor) -> Tensor:
        return sums[0]

    def _read(self, sums: Tensor) -> Tensor:
        return torch.where(self.num_batches > 0, self.sums.to(sums.dtype),
                           sums)

    def _update(self, sums: Tensor) -> Tensor:
        new = self._mean_over_ranks(sums.detach())
        is_finite = new.isfinite().all()
        share = (1 / (self.num_batches + 1)).clamp(min=self.momentum)
        old = self.sums.to(sums.dtype)
        with torch.no_grad():
            merged = self.merge(old, new, share.to(sums.dtype))
            self.sums.copy_(torch.where(is_finite, merged, old))
            self.num_batches += is_finite
        # The value of the average with the gradient of the batch, which is
        # unbiased:
        return torch.where(is_finite, sums + (merged - sums).detach(),
                           self._read(sums))

    def _mean_over_ranks(self, sums: Tensor) -> Tensor:
        if not distributed.is_available() or not distributed.is_initialized():
            return sums
        found = [torch.empty_like(sums)
                 for _ in range(distributed.get_world_size())]
        distributed.all_gather(found, sums.contiguous())
        mean = found[0]
        for i, other in enumerate(found[1:], start=2):
            mean = self.merge(mean, other, sums.new_tensor(1 / i))
        return mean

    def _apply(self, fn: object, recurse: bool = True) -> 'RunningEnergy':
        sums = self.sums
        super()._apply(fn, recurse)
        dtype = accumulation_dtype(self.sums.dtype)
        if self.sums.dtype != dtype:  # Half precision is not enough.
            self.sums = sums.to(self.sums.device, dtype)
        return self


class RunningRelativeEnergy(RunningEnergy):
    r"""The relative energy of one hop, from running averages of its sums."""

    looks_ahead = True

    def __init__(self, momentum: float, channels: int) -> None:
        super().__init__(momentum, 3 + channels)

    def measure(self, h: Tensor, ph: Tensor, graph: Graph,
                groups: OneGraph) -> Tensor:
        ph = ph if graph.L.P is graph.P else graph.L.P(h)
        sums = relative_sums(to_measure(h), to_measure(ph), graph.L, groups)
        return torch.cat([torch.stack([sums.rough, sums.spread, sums.weight]),
                          sums.mean])

    def merge(self, old: Tensor, new: Tensor, share: Tensor) -> Tensor:
        rough, spread, weight = torch.lerp(old, new, share)[:3]
        part = share * new[2] / torch.where(weight > 0, weight, 1.0)
        gap = new[3:] - old[3:]
        # Each spread is around its own mean:
        spread = spread + (1 - share) * old[2] * part * gap.square().sum()
        return torch.cat([torch.stack([rough, spread, weight]),
                          old[3:] + part * gap])

    def energy(self, sums: Tensor) -> Tensor:
        return Sums(sums[0], sums[1], sums[2], sums[3:]).energy
