import math
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from numbers import Integral, Real
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import Tensor, distributed
from torch.nn import Parameter
from torch.utils.checkpoint import checkpoint
from torch_geometric import EdgeIndex
from torch_geometric.nn.conv import MessagePassing
from torch_geometric.nn.dense.linear import (
    Linear,
    is_uninitialized_parameter,
)
from torch_geometric.nn.inits import zeros
from torch_geometric.typing import (
    Adj,
    OptTensor,
    PairTensor,
    SparseTensor,
)
from torch_geometric.utils import is_sparse

from torch_agcn._sparse import (
    Edges,
    Matrix,
    accumulation_dtype,
    apart_from_self_loops,
    bipartite,
    calls_ops,
    check_devices,
    check_kind,
    csr_tensor,
    degrees,
    gcn_weight,
    inverse_sqrt,
    is_traced,
    mean_degrees,
    short,
    spmm,
    to_csr,
    to_edges,
    transpose,
    with_self_loops,
)
from torch_agcn.functional import (
    anisotropic_gate,
    blocks,
    check_batch,
    check_features,
    edge_energy,
    energy_from_neighbors,
    energy_from_product,
    energy_from_sums,
    energy_or_enough,
    energy_sums,
    is_saturated,
    matrix_energy,
    merge_sums,
    normalized_energy,
    symmetric_step,
)


class Graph(NamedTuple):
    r"""What the layer needs of a graph: the edges of
    :math:`\mathbf{\tilde{A}}`, its degrees (received, and the mean of received
    and sent), and the operator :math:`\mathbf{P}` to propagate with, as a list
    of edges with weights or as a CSR matrix with its transpose.
    """

    edges: Edges
    degree: Tensor
    mean_degree: OptTensor
    adj: Tensor
    weight: OptTensor = None
    adj_back: OptTensor = None
    # The CSR matrix of A~ and its transpose:
    energy_adj: OptTensor = None
    energy_back: OptTensor = None
    # Undirected and without isolated nodes, as far as is known:
    is_symmetric: bool = False
    # Of two sets of nodes, the size of the one that sends, and comes first:
    num_sources: int | None = None
    # A part of another graph: the edges weigh what they stand for in that.
    is_sample: bool = False
    # Where `adj` is the matrix of the edges alone, P is that with the loops
    # added, and then scaled from both sides:
    loops: Tensor | float | None = None
    scale: OptTensor = None


@dataclass(frozen=True, eq=False)
class Cache:
    r"""A graph, and all that it was made of. Never changes, so that layers
    and threads may share it.
    """

    settings: tuple[Any, ...]
    inputs: list[OptTensor]
    copies: list[OptTensor]
    versions: list[int | None]
    graph: Graph


# The graphs that layers keep, for other layers to find: the last one for any
# settings, and only as long as there is a layer that keeps it.
_KEPT: 'WeakValueDictionary[tuple[Any, ...], Cache]' = WeakValueDictionary()


def _uncompiled(forward: Callable[..., Tensor], *args: Any) -> Tensor:
    r"""Runs a layer that keeps its graph within a compiled network: to look
    whether it is still the same is nothing to compile, and products with the
    matrix that is kept are faster than anything that is made of the edges.
    """
    return forward(*args)


_WHY = {'reason': 'layers with cached=True are not compiled; pass '
        'cached=False for fullgraph=True'}
if 'reason' not in signature(torch.compiler.disable).parameters:
    _WHY = {}  # torch 2.6
uncompiled: Callable[..., Tensor] = torch.compiler.disable(_uncompiled, **_WHY)


class AGCNConv(MessagePassing):
    r"""The anisotropic graph convolutional operator from the `"Anisotropic
    Graph Convolutional Network for Semi-supervised Learning"
    <https://arxiv.org/abs/2010.10284>`_ paper

    .. math::
        \mathbf{X}^{\prime} = g(s) \, \mathbf{P} \mathbf{X} \mathbf{\Theta},
        \quad \mathbf{P} = \mathbf{\tilde{D}}^{-1/2} \mathbf{\tilde{A}}
        \mathbf{\tilde{D}}^{-1/2},
        \quad g(s) = 1 - \exp(-\beta s^2),

    where :math:`\mathbf{\tilde{A}} = \mathbf{A} + \mathbf{I}` denotes the
    adjacency matrix with inserted self-loops, :math:`\mathbf{\tilde{D}}` its
    diagonal degree matrix, and the energy

    .. math::
        s = \textrm{tr}(\mathbf{X}^{\top} (\mathbf{\tilde{D}} -
        \mathbf{\tilde{A}}) \mathbf{X}) = \frac{1}{2} \sum_{i,j} \tilde{A}_{ij}
        {\| \mathbf{x}_i - \mathbf{x}_j \|}^2

    measures how rough the features :math:`\mathbf{X}` are (the paper's
    :math:`\mathbf{H}^{(\ell)}`, and :math:`\mathbf{\Theta}` its
    :math:`\mathbf{W}^{(\ell)}`).
    The gate is one number for each graph.

    It is used wherever :class:`~torch_geometric.nn.conv.GCNConv` is, and
    shares its arguments and the keys of its :obj:`state_dict`.

    .. note::
        The energy is a sum over all edges: on the usual data sets it is so
        large that the gate is exactly one, and the layer then computes just
        what :class:`~torch_geometric.nn.conv.GCNConv` does.
        Deep inside a network it falls to zero and takes the signal with it.
        For depth, use :obj:`energy="relative", residual=True`: the energy
        relative to the size of the features (see
        :meth:`~torch_agcn.functional.relative_energy`), and the convex step

        .. math::
            \mathbf{X}^{\prime} = \left( \mathbf{X} + g(s) (\mathbf{P}
            \mathbf{X} - \mathbf{X}) \right) \mathbf{\Theta},

        which keeps the features where the gate closes instead of erasing
        them.

    In **bipartite graphs**, from source nodes with features
    :math:`\mathbf{X}_s` to target nodes with features :math:`\mathbf{X}_t`
    (in heterogeneous graphs, one energy and one gate per edge type), there
    are no self-loops, and with the weights :math:`\mathbf{A}` of the edges
    and the degrees of either side

    .. math::
        \mathbf{X}^{\prime}_t = g(s) \, \mathbf{P} \mathbf{X}_s
        \mathbf{\Theta}, \quad \mathbf{P} = \mathbf{D}_t^{-1/2} \mathbf{A}
        \mathbf{D}_s^{-1/2}, \quad s = \sum_{i,j} A_{ij} {\|
        \mathbf{x}_{t,i} - \mathbf{x}_{s,j} \|}^2,

    which is the energy of the undirected graph of all nodes of both sides,
    each edge counted once. The relative energy is that of this graph, too,
    and :obj:`residual=True` leads from :math:`\mathbf{X}_t
    \mathbf{\Theta}` to :math:`\mathbf{P} \mathbf{X}_s \mathbf{\Theta}`;
    without, targets know of themselves by nothing but the gate.
    Differences between nodes have a meaning only in one space: if
    :obj:`in_channels` is one number, both sides are taken to have the same
    features, and share :math:`\mathbf{\Theta}`. If it is a pair, even of
    equal numbers, each side is mapped by a matrix of its own *before*
    anything is measured, so that the layer learns the space to compare them
    in.
    The relative energy counts a constant difference between the sides as
    rough: it is the highest frequency that such a graph has.

    In **mini-batches** of a large graph, neither degrees nor energy are the
    graph's. :class:`~torch_agcn.loader.ImportanceWeights` tells what each
    node and edge of a batch stands for: given its :obj:`edge_weight` and
    :obj:`degree`, what a node receives is right in expectation, and given its
    :obj:`node_weight`, so are all sums the energy is made of, for the
    features of the batch. The gate is not a linear function of them, and is
    right up to the noise of the batch.
    With :obj:`momentum`, it is taken from an average over batches, in which
    that noise vanishes. In training the average includes the present batch,
    which is also what gradients flow through, and is one over all processes
    of :mod:`torch.distributed`. In evaluation it is used as it is, whatever
    the input. Features in training are rougher than in evaluation if there
    is dropout before the layer, and so is their average;
    :meth:`AGCN.inference` does without it.

    Args:
        in_channels (int or tuple): Size of each input sample, or :obj:`-1` to
            derive the size from the first input(s) to the forward method.
            A tuple corresponds to the sizes of source and target
            dimensionalities, and makes a layer for bipartite graphs.
        out_channels (int): Size of each output sample.
        beta (float, optional): The sharpness :math:`\beta \geq 0` of the
            gate. (default: :obj:`1.0`)
        energy (str, optional): The energy the gate looks at: :obj:`"total"`
            for the paper's, or :obj:`"relative"`. (default: :obj:`"total"`)
        residual (bool, optional): If set to :obj:`True`, the gate leads from
            :math:`\mathbf{X}` to :math:`\mathbf{P} \mathbf{X}` instead of
            from zero. (default: :obj:`False`)
        num_hops (int, optional): The number of propagation steps before the
            weight matrix. The gate is taken anew at each. In a bipartite
            graph, there is one. (default: :obj:`1`)
        alpha (float, optional): The share :math:`\alpha \in [0, 1)` of the
            layer's input that is mixed into the result of each step.
            (default: :obj:`0.0`)
        learn_beta (bool, optional): If set to :obj:`True`, :math:`\beta` is
            learnt, starting from :obj:`beta`, and kept positive.
            (default: :obj:`False`)
        improved (bool, optional): If set to :obj:`True`, the layer computes
            :math:`\mathbf{\tilde{A}}` as :math:`\mathbf{A} + 2\mathbf{I}`.
            (default: :obj:`False`)
        cached (bool, optional): If set to :obj:`True`, the layer keeps
            :math:`\mathbf{P}` as a sparse matrix, which makes it several
            times faster on a graph that stays the same.
            Another graph is noticed, and takes the place of the one before.
            Layers with the same settings share what they keep.
            Under :meth:`torch.compile`, such a layer runs as it is, between
            the parts that are compiled; for :obj:`fullgraph=True`, leave it
            at :obj:`False`. (default: :obj:`False`)
        add_self_loops (bool, optional): If set to :obj:`False`, will not add
            self-loops to the input graph. By default, self-loops will be added
            in case :obj:`normalize` is set to :obj:`True`, and not added
            otherwise, nor in bipartite graphs. PyG's
            :class:`~torch_geometric.nn.conv.HeteroConv` asks for
            :obj:`False` where two types of nodes meet and
            :obj:`in_channels` is one number. (default: :obj:`None`)
        normalize (bool, optional): Whether to add self-loops and compute
            symmetric normalization coefficients on-the-fly.
            Without, the given edge weights are used for propagation as well
            as for the energy. (default: :obj:`True`)
        bias (bool, optional): If set to :obj:`False`, the layer will not learn
            an additive bias. (default: :obj:`True`)
        recompute (bool, optional): If set to :obj:`True`, only the results
            of each :math:`\sqrt{K}`-th of the :math:`K =` :obj:`num_hops`
            steps are kept for the backward pass, which takes the steps in
            between once more: memory grows with :math:`\sqrt{K}` instead of
            :math:`K`, at the price of a second forward pass.
            Has no effect on results, on a single step, under
            :meth:`torch.compile` (which plans memory by itself), for
            explainers, and with :obj:`momentum`. (default: :obj:`False`)
        momentum (float, optional): The least share of the present batch in a
            running estimate of the sums that the energy is made of, which is
            kept in buffers as :class:`~torch.nn.BatchNorm1d` keeps its own:
            the :math:`t`-th batch has the share :math:`\max(1/t,`
            :obj:`momentum` :math:`)`, so that :obj:`0.0` makes it the mean of
            all batches. Is for mini-batches of one graph.
            By default, there is none, and each input has its own energy.
            (default: :obj:`None`)
        **kwargs (optional): Additional arguments of
            :class:`torch_geometric.nn.conv.MessagePassing`.

    Shapes:
        - **input:**
          node features :math:`(|\mathcal{V}|, F_{in})`, dense or sparse,
          or :math:`((|\mathcal{V}_s|, F_s), (|\mathcal{V}_t|, F_t))` if
          bipartite,
          edge indices :math:`(2, |\mathcal{E}|)`
          or sparse matrix :math:`(|\mathcal{V}|, |\mathcal{V}|)`
          or :math:`(|\mathcal{V}_t|, |\mathcal{V}_s|)`,
          edge weights :math:`(|\mathcal{E}|)` *(optional)*,
          batch vector :math:`(|\mathcal{V}|)`, or one of each side
          *(optional)*,
          degrees and node weights :math:`(|\mathcal{V}|)` *(optional)*
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

    _cache: Cache | None
    running_energy: OptTensor
    num_batches_tracked: OptTensor

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        beta: float = 1.0,
        energy: str = 'total',
        residual: bool = False,
        num_hops: int = 1,
        alpha: float = 0.0,
        learn_beta: bool = False,
        improved: bool = False,
        cached: bool = False,
        add_self_loops: bool | None = None,
        normalize: bool = True,
        bias: bool = True,
        recompute: bool = False,
        momentum: float | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault('aggr', 'add')
        super().__init__(**kwargs)

        sizes: Any = in_channels
        pair = tuple(sizes) if isinstance(sizes, (tuple, list)) else None
        if add_self_loops is None:
            add_self_loops = normalize and pair is None

        self.in_channels = sizes if pair is None else pair
        self.out_channels = out_channels
        self.energy = energy
        self.residual = residual
        self.num_hops = num_hops
        self.alpha = alpha
        self.learn_beta = learn_beta
        self.improved = improved
        self.cached = cached
        self.add_self_loops = add_self_loops
        self.normalize = normalize
        self.recompute = recompute
        self.momentum = momentum
        self._beta = beta
        self._cache = None
        self._check_arguments()

        self.lin = Linear(sizes if pair is None else pair[0], out_channels,
                          bias=False, weight_initializer='glorot')
        self.lin_dst: Linear | None = None
        if pair is not None:
            self.lin_dst = Linear(pair[1], out_channels, bias=False,
                                  weight_initializer='glorot')
        if bias:
            self.bias = Parameter(torch.empty(out_channels))
        else:
            self.register_parameter('bias', None)
        if learn_beta:
            self.raw_beta = Parameter(torch.empty(()))
        else:
            self.register_parameter('raw_beta', None)
        if momentum is not None:
            width = 1 if energy == 'total' else 3 + sizes
            self.register_buffer('running_energy',
                                 torch.empty(num_hops, width))
            self.register_buffer('num_batches_tracked', torch.tensor(0))

        self.reset_parameters()

    def _check_arguments(self) -> None:
        def refuse(what: str, remedy: str) -> None:
            raise ValueError(f"'{self.__class__.__name__}' got {what}; "
                             f'{remedy}')

        if not _is_number(self._beta) or not 0 <= self._beta < math.inf:
            refuse(f'beta={self._beta!r}', 'pass a finite number >= 0')
        self._beta = float(self._beta)
        if self.learn_beta and self._beta == 0:
            refuse('beta=0 and learn_beta=True',
                   'start from a positive beta: the learnt one never is zero')
        if self.energy not in ('total', 'relative'):
            refuse(f"energy='{self.energy}'",
                   "pass 'total' (the paper's) or 'relative'")
        if not isinstance(self.num_hops, Integral) or self.num_hops < 1:
            refuse(f'num_hops={self.num_hops!r}', 'pass a whole number >= 1')
        if not isinstance(self.out_channels, Integral) or (
                self.out_channels < 0):
            refuse(f'out_channels={self.out_channels!r}',
                   'pass the number of features that come out')
        if isinstance(self.in_channels, tuple):
            if len(self.in_channels) != 2:
                refuse(f'in_channels={self.in_channels}',
                       'pass one number, or those of source and target')
            self._check_bipartite()
        if not _is_number(self.alpha) or not 0 <= self.alpha < 1:
            refuse(f'alpha={self.alpha!r}', 'pass a number in [0, 1)')
        if self.add_self_loops and not self.normalize:
            refuse('add_self_loops=True and normalize=False',
                   'add self-loops to the graph before it is normalized, e.g. '
                   "with 'torch_geometric.transforms.GCNNorm'")
        if self.aggr not in ('add', 'sum'):
            refuse(f"aggr='{self.aggr}'", "leave it at 'add': the energy "
                   'belongs to the sum over neighbors')
        if self.momentum is not None:
            if not _is_number(self.momentum) or not 0 <= self.momentum <= 1:
                refuse(f'momentum={self.momentum!r}',
                       'pass a number in [0, 1]')
            if not isinstance(self.in_channels, int):
                refuse(f'in_channels={self.in_channels} and momentum',
                       'leave one of them out: there is no running estimate '
                       'between two types of nodes')
            elif self.in_channels < 1 and self.energy == 'relative':
                refuse(f'in_channels={self.in_channels} and momentum',
                       'pass the number of features: the running estimate '
                       'has a mean of each')
        if self.node_dim not in (-2, 0):
            refuse(f'node_dim={self.node_dim}',
                   'pass features of shape [*, num_nodes, num_features]')

    def _check_bipartite(self) -> None:
        name = self.__class__.__name__
        if self.num_hops > 1:
            raise ValueError(f"'{name}' got num_hops={self.num_hops} for a "
                             f'bipartite graph, where one hop leads to the '
                             f'other side; leave it at 1 and stack layers of '
                             f'both directions instead')
        if self.flow == 'target_to_source':
            raise ValueError(f"'{name}' got flow='target_to_source' for a "
                             f"bipartite graph; pass 'edge_index.flip(0)', "
                             f"'x' as (source, target) and leave 'flow' at "
                             f"'source_to_target'")
        if self.add_self_loops and isinstance(self.in_channels, tuple):
            raise ValueError(f"'{name}' got in_channels={self.in_channels} "
                             f'and add_self_loops=True, but no node stands on '
                             f'both sides; leave it out, or pass one number '
                             f"as 'in_channels'")

    def reset_parameters(self) -> None:
        r"""Resets all learnable parameters of the module."""
        super().reset_parameters()
        self.lin.reset_parameters()
        if self.lin_dst is not None:
            self.lin_dst.reset_parameters()
        zeros(self.bias)
        self._reset_beta()
        self.reset_running_energy()
        self._cache = None

    def reset_running_energy(self) -> None:
        r"""Forgets the running estimate, if there is one."""
        if self.momentum is not None:
            zeros(self.running_energy)
            zeros(self.num_batches_tracked)

    def _reset_beta(self) -> None:
        if self.raw_beta is not None:
            # The inverse of softplus, in a form that does not overflow:
            raw_beta = self._beta + math.log(-math.expm1(-self._beta))
            torch.nn.init.constant_(self.raw_beta, raw_beta)

    def __getstate__(self) -> dict[str, Any]:
        # Copies and pickles do without the cache: it is made anew.
        return {**self.__dict__, '_cache': None}

    @property
    def beta(self) -> float | Tensor:
        r"""The sharpness of the gate; a tensor if it is learnt."""
        if self.raw_beta is None:
            return self._beta
        return torch.nn.functional.softplus(self.raw_beta)

    @beta.setter
    def beta(self, beta: float) -> None:
        old, self._beta = self._beta, beta
        try:
            self._check_arguments()
        except ValueError:
            self._beta = old
            raise
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
                features, dense or sparse, or those of source and target
                nodes.
                If :obj:`in_channels` is a pair, one tensor stands for both.
            edge_index (torch.Tensor or SparseTensor): The edge indices or the
                transposed adjacency matrix.
            edge_weight (torch.Tensor, optional): The edge weights, which must
                not be negative. (default: :obj:`None`)
            batch (torch.Tensor, optional): The batch vector
                :math:`\mathbf{b} \in {\{ 0, \ldots, B-1\}}^N`, which assigns
                each node to a graph, or that of the source and that of the
                target nodes. Each graph has a gate of its own.
                (default: :obj:`None`)
            batch_size (int, optional): The number of graphs :math:`B`.
                Automatically calculated if not given. (default: :obj:`None`)
            degree (torch.Tensor, optional): The degrees of the nodes in the
                graph that this one is a part of, without the self-loops that
                the layer adds. (default: :obj:`None`)
            node_weight (torch.Tensor, optional): How many nodes of that graph
                each node stands for in the energy, together with the edges
                that it receives; zero where its neighborhood is not known.
                (default: :obj:`None`)
        """
        if self.cached and torch.compiler.is_dynamo_compiling():
            return uncompiled(self.forward, x, edge_index, edge_weight, batch,
                              batch_size, degree, node_weight)

        x, graph, batch, size = self._prepare(
            x, edge_index, edge_weight, batch, batch_size, degree, node_weight,
            bound=True)

        if self._weighs_first:
            gate = self._total_gate(x, graph, self.beta, batch, size,
                                    update=self.training)
            x = self.lin(x)
            out = self._step(x, self._propagate(x, graph), gate, batch)
            out = self._restart(out, x)
        else:
            out, _ = self._diffuse(x, graph, batch, size,
                                   update=self.training)
        if self.momentum is not None and self.training:
            assert self.num_batches_tracked is not None
            self.num_batches_tracked.add_(1)
        if graph.num_sources is not None:
            out = out[..., graph.num_sources:, :]
        if not self._weighs_first and self.lin_dst is None:
            out = self.lin(out)

        if self.bias is not None:
            out = out + self.bias

        return out

    @torch.no_grad()
    def gate(
        self,
        x: Tensor | PairTensor,
        edge_index: Adj,
        edge_weight: OptTensor = None,
        batch: OptTensor | PairTensor = None,
        batch_size: int | None = None,
        degree: OptTensor = None,
        node_weight: OptTensor = None,
    ) -> Tensor:
        r"""The gate :math:`g(s)` that :meth:`forward` would apply; with
        :obj:`momentum`, in evaluation mode.

        Returns:
            One number, or one per graph if :obj:`batch` is given; stacked
            along a first dimension for the steps if there are many
            (:obj:`num_hops > 1`).
        """
        x, graph, batch, size = self._prepare(
            x, edge_index, edge_weight, batch, batch_size, degree, node_weight)
        if self._weighs_first:
            gates = [self._total_gate(x, graph, self.beta, batch, size)]
        else:
            _, gates = self._diffuse(x, graph, batch, size)
        one = torch.ones(x.shape[:-2], device=x.device,
                         dtype=accumulation_dtype(x.dtype))
        out = torch.stack([one if gate is None else gate for gate in gates])
        return out if self.num_hops > 1 else out[0]

    # The paper's steps #######################################################

    @property
    def _weighs_first(self) -> bool:
        # One step of propagation commutes with the weight matrix, and is
        # cheaper on its (usually fewer) outputs. The relative energy, and the
        # gates of further steps, need the propagated inputs themselves. Two
        # weight matrices come first of all.
        return (self.energy == 'total' and self.num_hops == 1
                and self.lin_dst is None)

    def _diffuse(self, x: Tensor, graph: Graph, batch: OptTensor,
                 size: int | None, *,
                 update: bool = False) -> tuple[Tensor, list[OptTensor]]:
        h = x = x.to_dense() if x.layout != torch.strided else x
        beta = self.beta
        length = self._segment
        gates: list[OptTensor] = []
        for first in range(0, self.num_hops, length):
            args = (h, x, graph, beta, batch, size,
                    min(length, self.num_hops - first), update)
            if length < self.num_hops:
                h, some = checkpoint(self._hops, *args, use_reentrant=False,
                                     preserve_rng_state=False)
            else:
                h, some = self._hops(*args)
            gates += some
        return h, gates

    @property
    def _segment(self) -> int:
        # How many steps are taken at once: in the backward pass, the inputs
        # of all segments and all steps of one of them are held.
        if (not self.recompute or not torch.is_grad_enabled()
                or is_traced() or self.explain
                or self.momentum is not None):
            return self.num_hops
        return math.isqrt(self.num_hops - 1) + 1

    def _hops(self, h: Tensor, x: Tensor, graph: Graph, beta: float | Tensor,
              batch: OptTensor, size: int | None, num_hops: int,
              update: bool) -> tuple[Tensor, list[OptTensor]]:
        # Depends on what it is given and on settings alone: it may run again
        # in the backward pass, when parameters may be others.
        gates: list[OptTensor] = []
        for hop in range(num_hops):
            u, au, ph = self._sum_neighbors(h, graph)
            gate: OptTensor
            if self.energy == 'total':
                gate = self._total_gate(h, graph, beta, batch, size, hop,
                                        update)
                h = self._step(h, ph, gate, batch)
            elif self.momentum is not None or graph.is_sample:
                sums = energy_sums(
                    check_features(h, self.__class__.__name__),
                    self._explained(graph), graph.degree)
                gate = self._estimated_gate(sums, beta, hop, update)
                h = self._step(h, ph, gate, batch)
            elif graph.is_symmetric and batch is None and h.dim() == 2:
                h, gate = symmetric_step(h, ph, graph.degree, beta,
                                         self.residual)
            else:
                energy = self._relative_energy(h, ph, u, au, graph, batch,
                                               size)
                gate = anisotropic_gate(energy, beta)
                h = self._step(h, ph, gate, batch)
            h = self._restart(h, x)
            gates.append(gate)
        return h, gates

    def _step(self, h: Tensor, ph: Tensor, gate: OptTensor,
              batch: OptTensor) -> Tensor:
        if gate is None:
            return ph
        if batch is None:
            gate = gate[..., None, None]
        else:
            gate = gate.index_select(-1, batch).unsqueeze(-1)
        gate = gate.to(ph.dtype)
        if self.residual:
            return torch.lerp(h.to(ph.dtype), ph, gate)
        return gate * ph

    def _restart(self, h: Tensor, x: Tensor) -> Tensor:
        return torch.lerp(h, x.to(h.dtype), self.alpha) if self.alpha else h

    def _total_gate(self, x: Tensor, graph: Graph, beta: float | Tensor,
                    batch: OptTensor, size: int | None, hop: int = 0,
                    update: bool = False) -> OptTensor:
        # No gate stands for a gate of exactly one.
        edges = self._explained(graph)
        if (batch is None and x.is_cpu and not is_traced()
                and self.momentum is None
                and not isinstance(beta, Tensor)
                and is_saturated(x, edges, beta)):
            return None
        x = check_features(x, self.__class__.__name__)
        if (isinstance(graph.adj, Matrix) and batch is None and x.dim() == 2
                and not isinstance(beta, Tensor)):
            row, col, weight = edges
            if weight is None:
                weight = torch.ones_like(row, dtype=x.dtype)
            energy = energy_or_enough(x, row, col, weight, beta)
        elif graph.energy_adj is None or is_traced():
            energy = edge_energy(x, edges, batch, size)
        else:
            mean_degree = graph.mean_degree
            if mean_degree is None:  # There may be no need for it.
                mean_degree = mean_degrees(
                    edges, degrees(edges, x.size(-2), x.dtype))
            energy = matrix_energy(x, graph.energy_adj, graph.energy_back,
                                   mean_degree, batch, size)
        if self.momentum is not None:
            return self._estimated_gate(energy.unsqueeze(-1), beta, hop,
                                        update)
        return anisotropic_gate(energy, beta)

    def _estimated_gate(self, sums: Tensor, beta: float | Tensor, hop: int,
                        update: bool) -> Tensor:
        # From a batch, or from the average that it becomes a part of.
        if self.momentum is not None:
            assert self.running_energy is not None
            assert self.num_batches_tracked is not None
            kept = self.running_energy[hop].to(sums.dtype)
            count = self.num_batches_tracked
            if update:
                share = (1 / (count + 1)).clamp(min=self.momentum)
                kept = merge_sums(kept, _mean_over_ranks(sums.detach()),
                                  share.to(sums.dtype))
                with torch.no_grad():
                    self.running_energy[hop] = kept
                # Its value, but the gradient of the batch, which in
                # expectation is the graph's.
                sums = sums + (kept - sums).detach()
            else:
                sums = torch.where(count > 0, kept, sums)
        return anisotropic_gate(energy_from_sums(sums), beta)

    def _relative_energy(self, h: Tensor, ph: Tensor, u: Tensor, au: Tensor,
                         graph: Graph, batch: OptTensor,
                         size: int | None) -> Tensor:
        if self.explain or not self.normalize:
            # What was propagated is not P h of the graph to measure on.
            return normalized_energy(
                check_features(h, self.__class__.__name__),
                self._explained(graph), batch, size)
        assert graph.mean_degree is not None
        if graph.scale is None:
            return energy_from_product(h, ph, graph.degree, graph.mean_degree,
                                       batch, size)
        dtype = accumulation_dtype(u.dtype)
        return energy_from_neighbors(u.to(dtype), au.to(dtype), graph.degree,
                                     graph.mean_degree, batch, size)

    def _propagate(self, x: Tensor, graph: Graph) -> Tensor:
        return self._sum_neighbors(x, graph)[-1]

    def _sum_neighbors(self, x: Tensor,
                       graph: Graph) -> tuple[Tensor, Tensor, Tensor]:
        # What is scaled first and last, in between, and P x.
        u = x if graph.scale is None else graph.scale * x
        # propagate_type: (x: Tensor, edge_weight: OptTensor, adj_back: OptTensor)  # noqa: E501
        au = (spmm(graph.adj, u, graph.adj_back)
              if isinstance(graph.adj, Matrix) else
              self.propagate(graph.adj, x=u, edge_weight=graph.weight,
                             adj_back=graph.adj_back))
        if isinstance(graph.loops, Tensor):
            au = torch.addcmul(au, graph.loops, u)
        elif graph.loops is not None:
            au = torch.add(au, u, alpha=graph.loops)
        return u, au, au if graph.scale is None else graph.scale * au

    def message(self, x_j: Tensor, edge_weight: OptTensor) -> Tensor:
        r"""The weighted features of the neighbors."""
        return x_j if edge_weight is None else edge_weight.view(-1, 1) * x_j

    def message_and_aggregate(self, adj_t: Adj, x: Tensor,
                              adj_back: OptTensor) -> Tensor:
        r"""The product with the CSR matrix :obj:`adj_t`, whose transpose
        :obj:`adj_back` is the way back.
        """
        return spmm(adj_t, x, adj_back)

    # The graph ###############################################################

    def _prepare(
        self, x: Tensor | PairTensor, edge_index: Adj, edge_weight: OptTensor,
        batch: OptTensor | PairTensor, batch_size: int | None,
        degree: OptTensor = None, node_weight: OptTensor = None,
        bound: bool = False,
    ) -> tuple[Tensor, Graph, OptTensor, int | None]:
        weight = self._some_weight
        if weight is not None:
            check_devices(self.__class__.__name__, weight, x=x,
                          edge_index=edge_index, edge_weight=edge_weight,
                          batch=batch)
        # A bipartite graph is a graph on the nodes of both sides.
        sizes = None
        if isinstance(x, (tuple, list)) or self.lin_dst is not None:
            if not isinstance(x, (tuple, list)):
                batch = batch if batch is None else (batch, batch)
                x = x, x
            batch = self._both_batches(batch)
            if isinstance(batch_size, (tuple, list)):
                batch_size = batch_size[1]  # The same on both sides.
            x, sizes = self._both_sides(x)
        else:
            self._check_features(x)
        degree, node_weight = self._check_sample(x, sizes, batch, degree,
                                                 node_weight)
        graph = self._graph(x, edge_index, edge_weight, sizes, degree,
                            node_weight)
        size = check_batch(batch, batch_size, x, self.__class__.__name__,
                           graph.edges, bound=bound)
        return x, graph, batch, size

    def _both_sides(self, x: Any) -> tuple[Tensor, tuple[int, int]]:
        self._check_bipartite()
        if len(x) != 2 or any(side is None for side in x):
            raise ValueError(f"'{self.__class__.__name__}' got 'x' as tuple "
                             f'without the features of both sides; pass '
                             f'(source, target), for the energy needs both')
        for i, side in enumerate(x):
            self._check_features(side, None if self.lin_dst is None else i)
        source, target = x
        if self.lin_dst is not None:
            source, target = self.lin(source), self.lin_dst(target)
        elif source.size(-1) != target.size(-1):
            size = source.size(-1), target.size(-1)
            raise ValueError(f"'{self.__class__.__name__}' got {size[0]} "
                             f'features of sources and {size[1]} of targets, '
                             f'which cannot be compared; make the layer with '
                             f'in_channels={size}, or (-1, -1)')
        else:
            self._check_features(source)
        sides = [side if side.layout == torch.strided else side.to_dense()
                 for side in (source, target)]
        return torch.cat(sides, dim=-2), (source.size(-2), target.size(-2))

    def _both_batches(self, batch: Any) -> OptTensor:
        # `to_hetero` makes a pair of nothing, too.
        if batch is None or (isinstance(batch, (tuple, list))
                             and all(side is None for side in batch)):
            return None
        if (not isinstance(batch, (tuple, list)) or len(batch) != 2
                or any(side is None for side in batch)):
            raise ValueError(f"'{self.__class__.__name__}' needs 'batch' of "
                             f'both sides of a bipartite graph; pass (source, '
                             f'target)')
        return torch.cat(list(batch))

    def _check_features(self, x: Any, side: int | None = 0) -> None:
        # Of no side, any number of channels will do.
        name = self.__class__.__name__
        if not isinstance(x, Tensor) or not x.is_floating_point():
            kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"'{name}' got 'x' of type '{kind}'; pass a "
                             f"floating-point tensor, e.g. 'x.float()'")
        weight = self._some_weight
        channels = (self.in_channels[side or 0] if isinstance(
            self.in_channels, tuple) else self.in_channels)
        if (x.dim() < 2 or (self.node_dim == 0 and x.dim() != 2)
                or (weight is not None and side is not None and channels > 0
                    and x.size(-1) != channels)):
            raise ValueError(f"'{name}' got 'x' of shape {list(x.shape)}; "
                             f'pass [num_nodes, {channels}], or '
                             f'[*, num_nodes, {channels}] for many '
                             f'features on the same graph')
        if (weight is not None and x.dtype != weight.dtype
                and not is_traced()
                and not torch.is_autocast_enabled(x.device.type)):
            raise ValueError(f"'{name}' got 'x' of type '{x.dtype}' and has "
                             f"weights of type '{weight.dtype}'; pass "
                             f"'x.to({weight.dtype})', or convert the layer")

    @property
    def _some_weight(self) -> OptTensor:
        # None of a map that was put in the place of ours.
        weight = getattr(self.lin, 'weight', None)
        return None if is_uninitialized_parameter(weight) else weight

    def _check_sample(
        self, x: Tensor, sizes: tuple[int, int] | None, batch: OptTensor,
        *values: Any,
    ) -> list[OptTensor]:
        name = self.__class__.__name__
        # `to_hetero` makes a pair of nothing, too.
        given = [None if isinstance(value, (tuple, list))
                 and all(side is None for side in value) else value
                 for value in values]
        if self.momentum is not None and (
                x.dim() > 2 or batch is not None or sizes is not None):
            raise ValueError(f"'{name}' got momentum={self.momentum}, but not "
                             f'one graph with one set of features; leave it '
                             f'at None: whole graphs have energies of their '
                             f'own')
        if all(value is None for value in given):
            return given
        if sizes is not None or (batch is not None and given[1] is not None):
            raise ValueError(f"'{name}' takes 'degree' and 'node_weight' for "
                             f'parts of one graph with one type of nodes; '
                             f'leave them out')
        for value in given:
            if value is not None and (
                    not isinstance(value, Tensor) or value.dim() != 1
                    or value.size(0) != x.size(-2)
                    or not value.is_floating_point()):
                raise ValueError(f"'{name}' needs 'degree' and 'node_weight' "
                                 f'as one floating-point number for each of '
                                 f"{x.size(-2)} nodes; pass what "
                                 f"'torch_agcn.loader.ImportanceWeights' "
                                 f'makes of the batch')
        return given

    def _graph(self, x: Tensor, edge_index: Adj, edge_weight: OptTensor,
               sizes: tuple[int, int] | None, degree: OptTensor,
               node_weight: OptTensor) -> Graph:
        if degree is not None or node_weight is not None:
            return self._make_sample(x, edge_index, edge_weight, degree,
                                     node_weight)
        if not self.cached or is_traced() or self.explain:
            return self._make_graph(x, edge_index, edge_weight, sizes=sizes)
        check_kind(edge_index, self.__class__.__name__)
        inputs = [*_tensors(edge_index), edge_weight]
        if (getattr(edge_index, 'requires_grad', None) is True
                or any(v is not None and v.requires_grad for v in inputs)):
            return self._make_graph(x, edge_index, edge_weight, sizes=sizes)

        size = (edge_index.sizes() if isinstance(edge_index, SparseTensor)
                else edge_index.size())
        is_fused = self._is_fused(x, edge_index, edge_weight)
        settings = (x.size(-2), sizes, x.dtype, x.device, type(edge_index),
                    *size, self.flow, self.improved, self.add_self_loops,
                    self.normalize, self.energy, is_fused,
                    *(v if v is None else v.dtype for v in inputs))
        # Not read from the layer again: other threads may call it, too.
        cache = _find(self._cache, settings, inputs)
        if cache is None:
            self._cache = None  # Not two at a time.
            with torch.inference_mode(False), torch.no_grad():
                # Ours to keep, whatever happens to the caller's:
                copies = [v if v is None else short(v, copy=True)
                          for v in inputs]
                if not is_fused and inputs[0] is edge_index:
                    edge_index, edge_weight = (
                        v if v is None else v.clone() for v in inputs)
                graph = self._make_graph(x, edge_index, edge_weight,
                                         sizes=sizes)
            # On the CPU, the caller's are not looked at again and may go:
            seen = [None if v is None or v.is_cpu else v for v in inputs]
            cache = _KEPT[settings] = Cache(
                settings, seen, copies, [_version(v) for v in seen], graph)
        self._cache = cache
        return cache.graph

    def _make_graph(self, x: Tensor, edge_index: Adj, edge_weight: OptTensor,
                    degree: OptTensor = None,
                    sizes: tuple[int, int] | None = None,
                    is_sample: bool = False) -> Graph:
        # A degree is given where the graph is a part of another one, and two
        # sizes where it is bipartite.
        edges = self._find_edges(x, edge_index, edge_weight, sizes)
        num_sources = None if sizes is None else sizes[0]
        is_fused = self._is_fused(x, edge_index, edges.weight)
        is_estimated = is_sample or self.momentum is not None
        if is_fused and not is_estimated and (not self.cached or is_traced()):
            return self._make_scaled(x, edges, num_sources)
        is_fused = is_fused and not is_traced()
        edges = self._add_loops(x, edges, num_sources)
        if degree is None:
            degree = degrees(edges, x.size(-2), accumulation_dtype(x.dtype))
        weight = gcn_weight(edges, degree) if self.normalize else edges.weight
        assert weight is not None
        weight = weight.to(x.dtype)
        mean_degree = None
        if is_fused or self.energy == 'relative':
            mean_degree = mean_degrees(edges, degree)
        if is_fused:
            graph = self._make_matrix(edges, weight, degree, mean_degree)
            return graph._replace(num_sources=num_sources)
        index = torch.stack([edges.col, edges.row])
        index = index if self.flow == 'source_to_target' else index.flip(0)
        if sizes is not None and (self.energy == 'total' or self.explain
                                  or not self.normalize):
            # Nobody looks at what sources would receive.
            index, weight = (v[..., :index.size(1) // 2]
                             for v in (index, weight))
        return Graph(edges, degree, mean_degree, index, weight,
                     num_sources=num_sources)

    def _make_scaled(self, x: Tensor, edges: Edges,
                     num_sources: int | None) -> Graph:
        # For one use: edges are sorted once, and nothing is made for each of
        # them that can be made for each node.
        num_nodes, dtype = x.size(-2), accumulation_dtype(x.dtype)
        loops: Tensor | float | None = None
        scale = mean_degree = None
        if self.add_self_loops and num_sources is None:
            edges, loops = apart_from_self_loops(
                edges, num_nodes, 2.0 if self.improved else 1.0, dtype)
        rowptr, col, (value, ) = to_csr(edges.row, edges.col, num_nodes,
                                        edges.weight)
        if value is None:
            value = torch.ones_like(col, dtype=dtype)
            degree = rowptr.diff().to(dtype)
        else:
            degree = degrees(edges, num_nodes, dtype)
        if self.energy == 'relative' or self.learn_beta:
            mean_degree = mean_degrees(edges, degree)
        energy_adj = adj = csr_tensor(rowptr, col, value)
        if x.dtype != dtype:
            adj = csr_tensor(rowptr, col, value.to(x.dtype))
        energy_back = adj_back = None
        if torch.is_grad_enabled() and (
                x.requires_grad or self._weighs_first
                or (self.learn_beta and self.num_hops > 1)):
            energy_back = adj_back = transpose(energy_adj)
            if x.dtype != dtype:
                adj_back = transpose(adj)
        if loops is not None:
            degree = degree + loops
            if mean_degree is not None and self.energy == 'relative':
                mean_degree = mean_degree + loops
            if isinstance(loops, Tensor):
                loops = loops.unsqueeze(-1).to(x.dtype)
        if self.normalize:
            scale = (degree.rsqrt() if isinstance(loops, float) else
                     inverse_sqrt(degree)).unsqueeze(-1).to(x.dtype)
        return Graph(edges, degree, mean_degree, adj, None, adj_back,
                     energy_adj, energy_back, num_sources=num_sources,
                     loops=loops, scale=scale)

    def _make_sample(self, x: Tensor, edge_index: Adj, edge_weight: OptTensor,
                     degree: OptTensor, node_weight: OptTensor) -> Graph:
        if degree is not None:
            degree = degree.to(accumulation_dtype(x.dtype))
            if self.add_self_loops:
                degree = degree + (2.0 if self.improved else 1.0)
        graph = self._make_graph(x, edge_index, edge_weight, degree,
                                 is_sample=True)
        edges = graph.edges
        if node_weight is not None:
            assert edges.weight is not None
            stands_for = node_weight.to(edges.weight.dtype)[edges.row]
            edges = edges._replace(weight=stands_for * edges.weight)
            if edges.row.is_cpu and not is_traced() and not self.explain:
                # Most edges of sampled neighborhoods do not count.
                keep = stands_for != 0
                edges = Edges(*(v[keep] for v in edges if v is not None))
        return graph._replace(edges=edges, energy_adj=None, energy_back=None,
                              is_sample=True)

    def _make_edges(self, x: Tensor, edge_index: Adj,
                    edge_weight: OptTensor) -> Edges:
        edges = self._find_edges(x, edge_index, edge_weight)
        return self._add_loops(x, edges)

    def _find_edges(self, x: Tensor, edge_index: Adj, edge_weight: OptTensor,
                    sizes: tuple[int, int] | None = None) -> Edges:
        edges = to_edges(edge_index, edge_weight, sizes or x.size(-2),
                         accumulation_dtype(x.dtype), self.flow,
                         self.__class__.__name__)
        return edges if sizes is None else bipartite(edges, sizes[0])

    def _add_loops(self, x: Tensor, edges: Edges,
                   num_sources: int | None = None) -> Edges:
        num_edges, dtype = edges.row.numel(), accumulation_dtype(x.dtype)
        if self.add_self_loops and num_sources is None:
            edges = with_self_loops(edges, x.size(-2),
                                    2.0 if self.improved else 1.0, dtype)
            if self.explain:
                # Explainers count on loops at the end and nowhere else:
                keep = edges.row != edges.col
                keep[num_edges:] = True
                edges = Edges(*(v[keep] for v in edges if v is not None))
        if edges.weight is None:
            edges = edges._replace(
                weight=torch.ones_like(edges.row, dtype=dtype))
        return edges

    def _make_matrix(self, edges: Edges, weight: Tensor, degree: Tensor,
                     mean_degree: OptTensor) -> Graph:
        num_nodes = degree.numel()
        row, col, a = edges
        # To compare values is to wait for the device, if there is one: once,
        # for a graph that is kept.
        needs_transpose = self.cached or (row.is_cpu
                                          and torch.is_grad_enabled())
        assert a is not None
        if needs_transpose:
            # Columns in order as well, so that a matrix and its transpose can
            # be compared, and for the sake of the processor's caches:
            col, perm = torch.sort(col, stable=True)
            row, weight, a = row[perm], weight[perm], a[perm]
            del perm
        rowptr, col, (row, value, a) = to_csr(row, col, num_nodes, row,
                                              weight, a)
        del weight, edges
        row, col = short(row), short(col)
        rowptr = rowptr.to(col.dtype)
        adj = csr_tensor(rowptr, col, value)
        energy_adj = csr_tensor(rowptr, col, a)
        adj_back = energy_back = None
        if needs_transpose:
            energy_back = transpose(energy_adj)
            if _equal(energy_adj, energy_back):
                adj_back, energy_back = adj, energy_adj
            else:
                adj_back = transpose(adj)
        return Graph(Edges(row, col, a), degree, mean_degree, adj, None,
                     adj_back, energy_adj, energy_back,
                     self.normalize and adj_back is adj
                     and bool((degree > 0).all()))

    def _is_fused(self, x: Tensor, edge_index: Adj, weight: OptTensor) -> bool:
        if (not self.fuse or self.explain or self.flow == 'target_to_source'
                or (weight is not None and weight.requires_grad)):
            return False
        if any((self._message_forward_pre_hooks, self._message_forward_hooks,
                self._aggregate_forward_pre_hooks,
                self._aggregate_forward_hooks)):
            return False  # They want to see messages.
        if is_traced():
            return x.is_cpu and calls_ops()
        return self.cached or x.is_cpu or is_sparse(edge_index)

    def _explained(self, graph: Graph) -> Edges:
        # An explainer's mask weighs the edges of the energy as it does those
        # of the messages.
        if not self.explain or self._edge_mask is None:
            return graph.edges
        row, col, weight = graph.edges
        assert weight is not None
        mask = self._edge_mask
        mask = mask.sigmoid() if self._apply_sigmoid else mask
        if graph.num_sources is not None:  # There, and back.
            mask = torch.cat([mask, mask])
        elif mask.numel() != weight.numel():
            mask = mask[self._loop_mask]
            loops = weight.numel() - mask.numel()
            mask = torch.cat([mask, mask.new_ones(loops)])
        return Edges(row, col, mask * weight)


def _is_number(value: Any) -> bool:
    # Python counts True and False among them.
    return isinstance(value, Real) and not isinstance(value, bool)


def _mean_over_ranks(sums: Tensor) -> Tensor:
    r"""The mean of what all processes have summed, where there are many."""
    if not distributed.is_available() or not distributed.is_initialized():
        return sums
    found = [torch.empty_like(sums)
             for _ in range(distributed.get_world_size())]
    distributed.all_gather(found, sums.contiguous())
    mean = found[0]
    for i, other in enumerate(found[1:], start=2):
        mean = merge_sums(mean, other, 1 / i)
    return mean


def _tensors(edge_index: Any) -> list[OptTensor]:
    r"""The tensors a graph consists of."""
    if isinstance(edge_index, SparseTensor):
        return list(edge_index.csr())
    if isinstance(edge_index, EdgeIndex):
        return [edge_index.as_tensor()]
    if not isinstance(edge_index, Tensor):
        return []
    if edge_index.layout == torch.sparse_csr:
        return [edge_index.crow_indices(), edge_index.col_indices(),
                edge_index.values()]
    if edge_index.layout == torch.sparse_coo:
        return [edge_index._indices(), edge_index._values()]
    return [edge_index]


def _version(value: OptTensor) -> int | None:
    if value is None or value.is_inference():
        return None
    return value._version


def _find(own: Cache | None, settings: tuple[Any, ...],
          inputs: list[OptTensor]) -> Cache | None:
    r"""The graph that a layer keeps, or that another one does, if it is the
    right one: the layers of a network share one.
    """
    for cache in [own, _KEPT.get(settings)]:
        if cache is not None and _is_same(cache, settings, inputs):
            return cache
    return None


def _is_same(cache: Cache, settings: tuple[Any, ...],
             inputs: list[OptTensor]) -> bool:
    r"""Whether a graph is the one in the cache."""
    if cache.settings != settings:
        return False
    for new, old, copy, version in zip(inputs, cache.inputs, cache.copies,
                                       cache.versions):
        if new is None or copy is None:  # Both are: settings have their types.
            continue
        if new.device != copy.device or new.shape != copy.shape:
            return False
        # On the CPU, to compare all values is cheap and sees changes that
        # autograd does not (through `.data` or NumPy). A device would have to
        # be waited for: there, the same memory is trusted to be the same
        # while its version is.
        unchanged = (old is not None and new.data_ptr() == old.data_ptr()
                     and new.shape == old.shape and version is not None
                     and version == _version(new))
        if (new.is_cpu or not unchanged) and not all(
                torch.equal(new[..., some], copy[..., some].to(new.dtype))
                for some in blocks(new.size(-1), 32)):
            return False
    return True


def _equal(a: Tensor, b: Tensor) -> bool:
    return (torch.equal(a.crow_indices(), b.crow_indices())
            and torch.equal(a.col_indices(), b.col_indices())
            and torch.equal(a.values(), b.values()))
