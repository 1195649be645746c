from typing import Any

import torch
from torch import Tensor
from torch.nn import ModuleList, Parameter
from torch.nn.modules.module import _has_any_global_hook
from torch_geometric.nn.dense.linear import Linear
from torch_geometric.nn.inits import zeros
from torch_geometric.typing import OptTensor

from torch_agcn import _checks
from torch_agcn._energy import Energy, step
from torch_agcn._graph import Graph
from torch_agcn._groups import OneGraph
from torch_agcn.nn.conv.gated_diffusion import GatedDiffusion, Inputs
from torch_agcn.nn.conv.running_energy import (
    RunningEnergy,
    RunningRelativeEnergy,
)


class AGCNConv(GatedDiffusion):
    r"""The anisotropic graph convolutional operator from the `"Anisotropic
    Graph Convolutional Network for Semi-supervised Learning"
    <https://arxiv.org/abs/2010.10284>`_ paper

    .. math::
        \mathbf{X}^{\prime} = g(s) \, \mathbf{P} \mathbf{X} \mathbf{\Theta},
        \quad g(s) = 1 - \exp(-\beta s^2), \quad s = \frac{1}{2} \sum_{i,j}
        \tilde{A}_{ij} {\| \mathbf{x}_i - \mathbf{x}_j \|}^2,

    where :math:`\mathbf{P} = \mathbf{\tilde{D}}^{-1/2} \mathbf{\tilde{A}}
    \mathbf{\tilde{D}}^{-1/2}`, :math:`\mathbf{\tilde{A}} = \mathbf{A} +
    \mathbf{I}` is the adjacency matrix with self-loops and
    :math:`\mathbf{\tilde{D}}` its degree matrix (:math:`\mathbf{X}` and
    :math:`\mathbf{\Theta}` are the paper's :math:`\mathbf{H}^{(\ell)}` and
    :math:`\mathbf{W}^{(\ell)}`). The gate :math:`g(s)` is one number per
    graph. Positional arguments and :obj:`state_dict` keys are those of
    :class:`~torch_geometric.nn.conv.GCNConv`.

    .. note::
        On the features of common data sets, :math:`s` is so large that the
        gate is exactly one, as in
        :class:`~torch_geometric.nn.conv.GCNConv`. For many layers or hops, use
        :obj:`energy="relative"`, see
        :class:`~torch_agcn.nn.conv.GatedDiffusion`.

    In bipartite graphs, without self-loops,

    .. math::
        \mathbf{X}^{\prime}_t = g(s) \, \mathbf{D}_t^{-1/2} \mathbf{A}
        \mathbf{D}_s^{-1/2} \mathbf{X}_s \mathbf{\Theta}, \quad s =
        \sum_{i,j} A_{ij} {\| \mathbf{x}_{t,i} - \mathbf{x}_{s,j} \|}^2.

    If :obj:`in_channels` is a tuple, sources and targets are first mapped by a
    matrix each, and :math:`s` is the energy of the results.

    Args:
        in_channels (int or tuple): Size of each input sample, or :obj:`-1` to
            derive it from the first input. A tuple holds the sizes of source
            and target nodes.
        out_channels (int): Size of each output sample.
        improved (bool, optional): If set to :obj:`True`,
            :math:`\mathbf{\tilde{A}} = \mathbf{A} + 2\mathbf{I}`.
            (default: :obj:`False`)
        cached (bool, optional): If set to :obj:`True`, caches
            :math:`\mathbf{P}` until the graph changes. Excludes
            :obj:`torch.compile(fullgraph=True)`. (default: :obj:`False`)
        add_self_loops (bool, optional): If set to :obj:`False`, will not add
            self-loops. By default, as :obj:`normalize`. (default: :obj:`None`)
        normalize (bool, optional): If set to :obj:`False`, propagation and
            energy use the given edge weights as they are.
            (default: :obj:`True`)
        bias (bool, optional): If set to :obj:`False`, the layer will not learn
            an additive bias. (default: :obj:`True`)
        energy (str, optional): The energy :math:`s`, :obj:`"total"` (the
            paper's) or :obj:`"relative"`. (default: :obj:`"total"`)
        beta (float, optional): The sharpness :math:`\beta \geq 0` of the gate.
            By default, :obj:`1.0` for :obj:`"total"` and :obj:`500.0` for
            :obj:`"relative"`. (default: :obj:`None`)
        residual (bool, optional): If set to :obj:`True`, a hop computes
            :math:`\mathbf{X} + g(s) (\mathbf{P} \mathbf{X} - \mathbf{X})`. By
            default, only for :obj:`"relative"`. (default: :obj:`None`)
        num_hops (int, optional): Number of hops before the weight matrix, each
            with its own gate. (default: :obj:`1`)
        alpha (float, optional): The share of the input in the output of each
            hop. (default: :obj:`0.0`)
        learn_beta (bool, optional): If set to :obj:`True`, :math:`\beta` is
            learned, starting from :obj:`beta`. (default: :obj:`False`)
        recompute (bool, optional): If set to :obj:`True`, the backward pass
            recomputes hops, in :math:`O(\sqrt{\textrm{num\_hops}})` memory. No
            effect with :obj:`momentum`. (default: :obj:`False`)
        momentum (float, optional): If given, :math:`s` is a running average
            over mini-batches of one graph, in which the :math:`t`-th batch has
            the share :math:`\max(1/t,` :obj:`momentum` :math:`)`; evaluation
            does not update it. (default: :obj:`None`)
        **kwargs (optional): Additional arguments of
            :class:`torch_geometric.nn.conv.MessagePassing`.

    Shapes:
        - **input:**
          node features :math:`(|\mathcal{V}|, F_{in})`
          or :math:`((|\mathcal{V}_s|, F_s), (|\mathcal{V}_t|, F_t))` if
          bipartite,
          edge indices :math:`(2, |\mathcal{E}|)`
          or sparse matrix :math:`(|\mathcal{V}_t|, |\mathcal{V}_s|)`,
          edge weights :math:`(|\mathcal{E}|)` *(optional)*
        - **output:** node features :math:`(|\mathcal{V}|, F_{out})` or
          :math:`(|\mathcal{V}_t|, F_{out})` if bipartite

    Example:
        >>> x = torch.eye(3)
        >>> edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        >>> conv = AGCNConv(3, 16, beta=0.1)
        >>> conv(x, edge_index).shape
        torch.Size([3, 16])
        >>> conv.gate(x, edge_index)
        tensor(0.7981)
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        improved: bool = False,
        cached: bool = False,
        add_self_loops: bool | None = None,
        normalize: bool = True,
        bias: bool = True,
        *,
        energy: str = 'total',
        beta: float | None = None,
        residual: bool | None = None,
        num_hops: int = 1,
        alpha: float = 0.0,
        learn_beta: bool = False,
        recompute: bool = False,
        momentum: float | None = None,
        **kwargs: Any,
    ) -> None:
        sizes: Any = in_channels
        pair = tuple(sizes) if isinstance(sizes, (tuple, list)) else None
        if add_self_loops is None and pair is not None:
            add_self_loops = False
        super().__init__(
            num_hops, alpha, energy=energy, beta=beta, residual=residual,
            improved=improved, cached=cached, add_self_loops=add_self_loops,
            normalize=normalize, learn_beta=learn_beta,
            recompute=recompute, **kwargs)
        self.recompute = recompute and momentum is None
        self.in_channels = sizes if pair is None else pair
        self.out_channels = out_channels
        self.momentum = momentum
        _checks.check_channels(self._name, self, bias)
        self.lin = self._linear(sizes if pair is None else pair[0])
        self.lin_dst = None if pair is None else self._linear(pair[1])
        self.register_parameter('bias', Parameter(torch.empty(out_channels))
                                if bias else None)
        self.running_energy: ModuleList | None = None
        if momentum is not None:
            _checks.check_momentum(self._name, momentum, self.in_channels,
                                   energy)
            self.running_energy = ModuleList([
                RunningEnergy(momentum) if energy == 'total' else
                RunningRelativeEnergy(momentum, sizes)
                for _ in range(num_hops)])
        self.reset_parameters()

    def _linear(self, in_channels: int) -> Linear:
        return Linear(in_channels, self.out_channels, bias=False,
                      weight_initializer='glorot')

    def reset_parameters(self) -> None:
        r"""Resets all learnable parameters of the module."""
        super().reset_parameters()
        self.lin.reset_parameters()
        if self.lin_dst is not None:
            self.lin_dst.reset_parameters()
        zeros(self.bias)
        self.reset_running_energy()

    def reset_running_energy(self) -> None:
        r"""Resets the running average of :obj:`momentum`."""
        for running in self.running_energy or []:
            running.reset_parameters()  # type: ignore[operator]

    @torch.no_grad()
    def gate(self, *args: Any, **kwargs: Any) -> Tensor:
        r"""Returns the gates of :meth:`forward`, with the same arguments; with
        :obj:`momentum`, those of evaluation mode.
        """
        running = list(self.running_energy or [])
        modes = [module.training for module in running]
        for module in running:
            module.eval()
        try:
            return super().gate(*args, **kwargs)
        finally:
            for module, mode in zip(running, modes):
                module.train(mode)

    def _run(self, inputs: Inputs) -> tuple[Tensor, list[OptTensor]]:
        x, graph, groups, num_sources, _ = inputs
        if self._weighs_first:
            gates = self._gates(inputs)
            x = self.lin(x)
            out = step(x, graph.propagate(x), gates[0], groups,
                       self.residual)
            out = self._restart(out, x)
        else:
            out, gates = self._diffuse(x, x, graph, groups)
        if num_sources is not None:
            out = out[..., num_sources:, :].contiguous()
        if not self._weighs_first and self.lin_dst is None:
            out = self.lin(out)
        return self._add_bias(out, graph), gates

    def _gates(self, inputs: Inputs) -> list[OptTensor]:
        if not self._weighs_first:
            return super()._gates(inputs)
        x, graph, groups, _, _ = inputs
        measure, = self._measures()
        return [measure.gate(x, x, graph, groups, self.beta)]

    @property
    def _weighs_first(self) -> bool:
        # One hop commutes with the weight matrix and is cheaper after it. The
        # relative energy and the gates of further hops need propagated inputs.
        # A pair of weight matrices is applied in `_map_sides`.
        return (self.energy == 'total' and self.num_hops == 1
                and self.lin_dst is None)

    def _add_bias(self, out: Tensor, graph: Graph) -> Tensor:
        if self.bias is None:
            return out
        # In place if nothing else can hold the output:
        lin = self.lin
        if (graph.is_matrix and type(lin) is Linear
                and out.dtype == self.bias.dtype and not (
                    lin._forward_hooks or lin._backward_hooks
                    or lin._backward_pre_hooks or _has_any_global_hook())):
            return out.add_(self.bias)
        return out + self.bias

    def _measures(self) -> list[Energy]:
        if self.momentum is None or self.running_energy is None:
            return super()._measures()
        measures: list[Any] = list(self.running_energy)
        for running in measures:
            running.momentum = self.momentum  # may have been changed
        return measures

    def _prepare(self, *args: Any, **kwargs: Any) -> Inputs:
        inputs = super()._prepare(*args, **kwargs)
        if self.momentum is not None:
            is_one = (type(inputs.groups) is OneGraph and inputs.x.dim() == 2
                      and inputs.num_sources is None)
            _checks.check_one_graph(self._name, self.momentum, is_one)
        return inputs

    def _check_devices(self, **inputs: Any) -> None:
        weight = getattr(self.lin, 'weight', None)
        if weight is None:  # `lin` was replaced.
            return super()._check_devices(**inputs)
        _checks.check_devices(self._name, weight.device, **inputs)
        _checks.check_type(self._name, weight.dtype, inputs['x'])

    def _join(self, x: Any,
              batch: Any) -> tuple[Tensor, OptTensor, int | None]:
        if self.lin_dst is not None and not isinstance(x, (tuple, list)):
            x, batch = (x, x), batch if batch is None else (batch, batch)
        return super()._join(x, batch)

    def _map_sides(self, source: Any, target: Any) -> tuple[Tensor, Tensor]:
        if self.lin_dst is None:
            return super()._map_sides(source, target)
        for side, lin in ((source, self.lin), (target, self.lin_dst)):
            _checks.check_features(self._name, side, _width(lin))
        return self.lin(source), self.lin_dst(target)

    def _check_features(self, x: Any) -> None:
        _checks.check_features(self._name, x, _width(self.lin),
                               self.node_dim)

    def _arguments(self) -> list[str]:
        shown = super()._arguments()
        if isinstance(self.in_channels, tuple):
            shown = [v for v in shown if v != 'add_self_loops=False']
        return [str(self.in_channels), str(self.out_channels), *shown]


def _width(lin: Any) -> int:
    r"""The input size, or :obj:`-1` if unknown."""
    return getattr(lin, 'in_channels', -1)
