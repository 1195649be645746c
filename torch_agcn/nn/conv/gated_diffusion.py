import math
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn.conv import MessagePassing
from torch_geometric.typing import Adj, OptTensor, PairTensor
from torch_geometric.utils import is_sparse, spmm

from torch_agcn import _cache, _checks
from torch_agcn._energy import Energy, Relative, Total
from torch_agcn._graph import (
    Graph,
    Messages,
    Recipe,
    explainer_mask,
    make_graph,
)
from torch_agcn._groups import OneGraph, groups_of
from torch_agcn._repr import changed_arguments
from torch_agcn._tracing import (
    accumulation_dtype,
    is_traced,
    run_eagerly,
    uses_custom_ops,
)

ENERGIES: dict[str, Energy] = {'total': Total(), 'relative': Relative()}
BETAS = {'total': 1.0, 'relative': 500.0}


class Inputs(NamedTuple):
    r"""The checked inputs; in bipartite graphs, sources come first."""

    x: Tensor
    graph: Graph
    groups: OneGraph
    num_sources: int | None
    x_0: Tensor


class GatedDiffusion(MessagePassing):
    r"""The gated propagation of the `"Anisotropic Graph Convolutional Network
    for Semi-supervised Learning" <https://arxiv.org/abs/2010.10284>`_ paper
    without weights, as a replacement of
    :class:`~torch_geometric.nn.conv.APPNP`

    .. math::
        \mathbf{X}^{(k)} = (1 - \alpha) \left( \mathbf{X}^{(k-1)} + g(s)
        (\mathbf{P} \mathbf{X}^{(k-1)} - \mathbf{X}^{(k-1)}) \right) + \alpha
        \mathbf{X}^{(0)}, \quad g(s) = 1 - \exp(-\beta s^2),

    where :math:`\mathbf{P} = \mathbf{\tilde{D}}^{-1/2} \mathbf{\tilde{A}}
    \mathbf{\tilde{D}}^{-1/2}`, and :math:`s` is the
    :meth:`~torch_agcn.functional.relative_energy` of
    :math:`\mathbf{X}^{(k-1)}`. The gate :math:`g(s)` is one number per graph
    and hop, and closes where features are smooth.

    Args:
        num_hops (int, optional): Number of hops. (default: :obj:`10`)
        alpha (float, optional): The share :math:`\alpha \in [0, 1)` of the
            input in the output of each hop. (default: :obj:`0.1`)
        energy (str, optional): The energy :math:`s`, :obj:`"relative"` or
            :obj:`"total"` (the paper's). (default: :obj:`"relative"`)
        beta (float, optional): The sharpness :math:`\beta \geq 0` of the gate.
            By default, :obj:`500.0` for :obj:`"relative"` and :obj:`1.0` for
            :obj:`"total"`. (default: :obj:`None`)
        residual (bool, optional): If set to :obj:`False`, a hop computes
            :math:`g(s) \mathbf{P} \mathbf{X}`, as in the paper. By default,
            :obj:`True` for :obj:`"relative"` only. (default: :obj:`None`)
        improved, cached, add_self_loops, normalize, learn_beta, recompute
            (bool, optional): As in :class:`~torch_agcn.nn.conv.AGCNConv`.
        **kwargs (optional): Additional arguments of
            :class:`torch_geometric.nn.conv.MessagePassing`.

    Shapes:
        - **input:** node features :math:`(|\mathcal{V}|, F)`, edge indices
          :math:`(2, |\mathcal{E}|)`, edge weights
          :math:`(|\mathcal{E}|)` *(optional)*
        - **output:** node features :math:`(|\mathcal{V}|, F)`

    Example:
        >>> x = torch.eye(3)
        >>> edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
        >>> diffusion = GatedDiffusion(num_hops=3, alpha=0.1, beta=5.0)
        >>> diffusion(x, edge_index).shape
        torch.Size([3, 3])
        >>> diffusion.gate(x, edge_index)
        tensor([0.9690, 0.7144, 0.7585])
    """

    _cache: _cache.Cache | None
    fuse: bool

    def __init__(
        self,
        num_hops: int = 10,
        alpha: float = 0.1,
        *,
        energy: str = 'relative',
        beta: float | None = None,
        residual: bool | None = None,
        improved: bool = False,
        cached: bool = False,
        add_self_loops: bool | None = None,
        normalize: bool = True,
        learn_beta: bool = False,
        recompute: bool = False,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault('aggr', 'add')
        cls = type(self)
        _checks.check_messages(cls.__name__, kwargs)
        _checks.check_choice(cls.__name__, ENERGIES, energy=energy)
        super().__init__(**kwargs)
        self._name = cls.__name__
        self.fuse = (self.fuse and cls.message is GatedDiffusion.message
                     and cls.aggregate is MessagePassing.aggregate
                     and cls.update is MessagePassing.update)
        self.num_hops = num_hops
        self.alpha = alpha
        self.energy = energy
        self.residual = energy == 'relative' if residual is None else residual
        self.improved = improved
        self.cached = cached
        self.add_self_loops = (normalize if add_self_loops is None else
                               add_self_loops)
        self.normalize = normalize
        self.learn_beta = learn_beta
        self.recompute = recompute
        self._cache = None
        _checks.check_diffusion(self._name, self)
        beta = BETAS[energy] if beta is None else beta
        _checks.check_beta(self._name, beta, learn_beta)
        self._beta = float(beta)
        self.register_parameter('raw_beta', Parameter(torch.empty(()))
                                if learn_beta else None)
        self._reset_beta()

    def reset_parameters(self) -> None:
        r"""Resets all learnable parameters of the module."""
        super().reset_parameters()
        self._reset_beta()
        self._cache = None

    def _reset_beta(self) -> None:
        if self.raw_beta is not None:
            # The inverse of softplus, in a form that does not overflow:
            raw_beta = self._beta + math.log(-math.expm1(-self._beta))
            torch.nn.init.constant_(self.raw_beta, raw_beta)

    @property
    def beta(self) -> float | Tensor:
        r"""The sharpness of the gate; a tensor if learned."""
        return (self._beta if self.raw_beta is None else
                torch.nn.functional.softplus(self.raw_beta))

    @beta.setter
    def beta(self, beta: float) -> None:
        _checks.check_beta(self._name, beta, self.learn_beta)
        self._beta = float(beta)
        self._reset_beta()

    def forward(
        self,
        x: Tensor | PairTensor,
        edge_index: Adj,
        edge_weight: OptTensor = None,
        batch: OptTensor | PairTensor = None,
        batch_size: int | None = None,
        degree: OptTensor = None,
        node_weight: OptTensor = None,
    ) -> Tensor:
        r"""Runs the forward pass of the module.

        Args:
            x (torch.Tensor or (torch.Tensor, torch.Tensor)): The node
                features, dense or sparse, or those of source and target nodes.
            edge_index (torch.Tensor or SparseTensor): The edge indices or the
                transposed adjacency matrix.
            edge_weight (torch.Tensor, optional): The non-negative edge
                weights. (default: :obj:`None`)
            batch (torch.Tensor, optional): The batch vector :math:`\mathbf{b}
                \in {\{ 0, \ldots, B-1\}}^N`, or one per side if bipartite.
                Each graph has its own gate. (default: :obj:`None`)
            batch_size (int, optional): The number of graphs :math:`B`.
                (default: :obj:`None`)
            degree (torch.Tensor, optional): The degrees in the whole graph if
                this one is sampled, see
                :class:`~torch_agcn.loader.ImportanceWeights`.
                (default: :obj:`None`)
            node_weight (torch.Tensor, optional): The importance weight of each
                sampled node in the energy. (default: :obj:`None`)
        """
        if self.cached and torch.compiler.is_dynamo_compiling():
            return run_eagerly(self.forward, x, edge_index, edge_weight,
                               batch, batch_size, degree, node_weight)
        return self._run(self._prepare(x, edge_index, edge_weight, batch,
                                       batch_size, degree, node_weight))[0]

    @torch.no_grad()
    def gate(self, *args: Any, **kwargs: Any) -> Tensor:
        r"""Returns the gates of :meth:`forward`, with the same arguments: a
        number, or one per graph, stacked over hops if there are many.
        """
        inputs = self._prepare(*args, **{**kwargs, 'counts': True})
        gates, x = self._gates(inputs), inputs.x
        one = torch.ones(x.shape[:-2], device=x.device,
                         dtype=accumulation_dtype(x.dtype))
        out = torch.stack([one if gate is None else gate for gate in gates])
        return out if self.num_hops > 1 else out[0]

    # The paper's steps #######################################################

    def _run(self, inputs: Inputs) -> tuple[Tensor, list[OptTensor]]:
        r"""Returns the output and the gate of each hop."""
        x, graph, groups, num_sources, x_0 = inputs
        out, gates = self._diffuse(x, x_0, graph, groups)
        if num_sources is not None:
            out = out[..., num_sources:, :].contiguous()
        return out, gates

    def _gates(self, inputs: Inputs) -> list[OptTensor]:
        x, graph, groups, _, x_0 = inputs
        return self._diffuse(x, x_0, graph, groups)[1]

    def _measures(self) -> list[Energy]:
        return [ENERGIES[self.energy]] * self.num_hops

    def _diffuse(self, h: Tensor, x: Tensor, graph: Graph,
                 groups: OneGraph) -> tuple[Tensor, list[OptTensor]]:
        r"""Runs all hops from :obj:`h` with restarts from :obj:`x`."""
        if h.layout != torch.strided:
            h = x = h.to_dense()
        beta, length, measures = self.beta, self._segment, self._measures()
        if length == self.num_hops:
            return self._hops(h, x, graph, groups, beta, measures)
        graph.L.settle()  # outside of the checkpoints
        gates: list[OptTensor] = []
        for i in range(0, self.num_hops, length):
            h, some = checkpoint(
                self._hops, h, x, graph, groups, beta,
                measures[i:i + length], use_reentrant=False,
                preserve_rng_state=False)
            gates += some
        return h, gates

    def _hops(self, h: Tensor, x: Tensor, graph: Graph, groups: OneGraph,
              beta: float | Tensor,
              measures: list[Energy]) -> tuple[Tensor, list[OptTensor]]:
        # May run again in the backward pass, after parameters have changed:
        # `beta` is an argument.
        gates: list[OptTensor] = []
        for measure in measures:
            h, gate = measure.hop(h, graph, groups, beta, self.residual)
            h = self._restart(h, x)
            gates.append(gate)
        return h, gates

    def _restart(self, h: Tensor, x: Tensor) -> Tensor:
        return torch.lerp(h, x.to(h.dtype), self.alpha) if self.alpha else h

    @property
    def _segment(self) -> int:
        # Hops per checkpoint. The backward pass stores the inputs of all
        # checkpoints and the hops of one.
        if (not self.recompute or not torch.is_grad_enabled() or is_traced()
                or self.explain):
            return self.num_hops
        return math.isqrt(self.num_hops - 1) + 1

    # The inputs ##############################################################

    def _prepare(
        self, x: Tensor | PairTensor, edge_index: Adj,
        edge_weight: OptTensor = None,
        batch: OptTensor | PairTensor = None, batch_size: int | None = None,
        degree: OptTensor = None, node_weight: OptTensor = None,
        counts: bool = False,
    ) -> Inputs:
        # `to_hetero` turns None into (None, None).
        batch, degree, node_weight = (
            None if isinstance(v, (tuple, list)) and len(v) == 2 and all(
                side is None for side in v) else v
            for v in (batch, degree, node_weight))
        _checks.check_kinds(self._name, edge_index, edge_weight)
        self._check_devices(x=x, edge_index=edge_index,
                            edge_weight=edge_weight, batch=batch,
                            degree=degree, node_weight=node_weight)
        x, batch, num_sources = self._join(x, batch)
        if isinstance(batch_size, (tuple, list)) and len(batch_size) == 2:
            batch_size = batch_size[1]  # the same on both sides
        _checks.check_sample(self._name, x.size(-2), degree, node_weight,
                             num_sources is not None, batch is not None)
        graph = self._graph(x, num_sources, edge_index, edge_weight, degree,
                            node_weight)
        groups = groups_of(self._name, batch, batch_size, x.size(-2),
                           None if batch is None else graph.P.edges, counts)
        return Inputs(x, graph, groups, num_sources, x)

    def _check_devices(self, **inputs: Any) -> None:
        _checks.check_devices(self._name, None, **inputs)

    def _join(self, x: Any,
              batch: Any) -> tuple[Tensor, OptTensor, int | None]:
        r"""Joins both sides of a bipartite graph to one set of nodes."""
        if not isinstance(x, (tuple, list)):
            self._check_features(x)
            return x, batch, None
        _checks.check_bipartite(self._name, self, x)
        source, target = self._map_sides(*x)
        sides = [side if side.layout == torch.strided else side.to_dense()
                 for side in (source, target)]
        if batch is not None:
            _checks.check_batches(self._name, batch)
            batch = torch.cat(list(batch))
        return torch.cat(sides, dim=-2), batch, source.size(-2)

    def _map_sides(self, source: Any, target: Any) -> tuple[Tensor, Tensor]:
        _checks.check_widths(self._name, source, target)
        self._check_features(source)
        return source, target

    def _check_features(self, x: Any) -> None:
        _checks.check_features(self._name, x, node_dim=self.node_dim)

    # The graph ###############################################################

    def _graph(self, x: Tensor, num_sources: int | None, edge_index: Adj,
               edge_weight: OptTensor, degree: OptTensor,
               node_weight: OptTensor) -> Graph:
        is_kept = (self.cached and degree is None and node_weight is None
                   and not self._sends(x, edge_index, edge_weight))
        if not is_kept or is_traced():
            return self._make_graph(x, num_sources, edge_index, edge_weight,
                                    degree, node_weight)
        inputs = [*_cache.tensors_of(edge_index), edge_weight]
        size = (edge_index.sizes() if hasattr(edge_index, 'sizes') else
                edge_index.size())
        settings = (x.size(-2), num_sources, x.dtype, x.device,
                    type(edge_index), *size, self.flow, self.improved,
                    self.add_self_loops, self.normalize,
                    num_sources is not None and self.energy,
                    *(v if v is None else v.dtype for v in inputs))
        # A local variable, as other threads may set `self._cache`.
        cache = _cache.find(self._cache, settings, inputs)
        if cache is None:
            self._cache = None  # Free the old graph first.
            cache = _cache.keep(settings, inputs, lambda: self._make_graph(
                x, num_sources, edge_index, edge_weight, to_keep=True))
        self._cache = cache
        return cache.graph

    def _make_graph(self, x: Tensor, num_sources: int | None,
                    edge_index: Adj, edge_weight: OptTensor,
                    degree: OptTensor = None, node_weight: OptTensor = None,
                    to_keep: bool = False) -> Graph:
        fill = 2.0 if self.improved else 1.0
        sends = self._sends(x, edge_index, edge_weight)
        how = Recipe(
            self._name, self.flow, fill if self.add_self_loops else None,
            self.normalize, self.energy == 'total' or bool(self.explain),
            self._send if sends else None, to_keep,
            partial(explainer_mask, self) if self.explain else None)
        return make_graph(how, x, num_sources, edge_index, edge_weight,
                          degree, node_weight)

    def _sends(self, x: Tensor, edge_index: Adj,
               edge_weight: OptTensor) -> bool:
        r"""Whether to propagate by messages instead of a sparse matrix."""
        if (not self.fuse or self.explain or self._has_hooks
                or getattr(edge_index, 'requires_grad', None) is True
                or any(v is not None and v.requires_grad for v in (
                    *_cache.tensors_of(edge_index), edge_weight))):
            return True
        if is_traced():
            return not (x.is_cpu and uses_custom_ops())
        return not (x.is_cpu or self.cached or is_sparse(edge_index))

    @property
    def _has_hooks(self) -> bool:
        aggr = self.aggr_module
        return bool(aggr._forward_hooks or aggr._forward_pre_hooks) or any(
            getattr(self, f'_{name}_forward{when}hooks')
            for name in ('propagate', 'message', 'aggregate')
            for when in ('_', '_pre_'))

    def _send(self, x: Tensor, edges: Messages) -> Tensor:
        index = edges.index
        if self.flow == 'target_to_source':
            index = index.flip(0)
        # propagate_type: (x: Tensor, edge_weight: OptTensor)
        return self.propagate(index, x=x, edge_weight=edges.edges.weight)

    def message(self, x_j: Tensor, edge_weight: OptTensor) -> Tensor:
        return x_j if edge_weight is None else edge_weight.view(-1, 1) * x_j

    def message_and_aggregate(self, adj_t: Adj, x: Tensor) -> Tensor:
        return spmm(adj_t, x, reduce='sum')

    # What Python and torch ask ###############################################

    def __getstate__(self) -> dict[str, Any]:
        # Copies and pickles leave out the cache.
        return {**self.__dict__, '_cache': None}

    def __prepare_scriptable__(self) -> None:
        _checks.refuse(self._name, "'torch.jit.script', which PyTorch has "
                       'deprecated', "use 'torch.compile', 'torch.export' or "
                       "'torch.jit.trace'")

    def __repr__(self) -> str:
        return f"{self._name}({', '.join(self._arguments())})"

    def _arguments(self) -> list[str]:
        r"""The arguments that :obj:`repr` shows."""
        return changed_arguments(self, GatedDiffusion, {
            'beta': BETAS[self.energy], 'residual': self.energy == 'relative',
            'add_self_loops': self.normalize})
