import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn.dense.linear import Linear
from torch_geometric.nn.models.basic_gnn import BasicGNN
from torch_geometric.nn.resolver import (
    activation_resolver,
    normalization_resolver,
)
from torch_geometric.typing import Adj, OptTensor
from tqdm import tqdm

from torch_agcn import _checks
from torch_agcn._energy import to_measure
from torch_agcn._graph import Graph
from torch_agcn._groups import OneGraph
from torch_agcn.nn.conv import AGCNConv
from torch_agcn.nn.conv.gated_diffusion import ENERGIES


class AGCN(BasicGNN):
    r"""The Graph Neural Network from the `"Anisotropic Graph Convolutional
    Network for Semi-supervised Learning" <https://arxiv.org/abs/2010.10284>`_
    paper, using the :class:`~torch_agcn.nn.conv.AGCNConv` operator for message
    passing.

    Args:
        in_channels (int or tuple): Size of each input sample, or :obj:`-1` to
            derive it from the first input. A tuple holds the sizes of source
            and target nodes.
        hidden_channels (int): Size of each hidden sample.
        num_layers (int): Number of layers.
        out_channels (int, optional): If not set to :obj:`None`, the size of
            each output sample. (default: :obj:`None`)
        dropout, act, act_first, act_kwargs, norm, norm_kwargs, jk (optional):
            As in :class:`torch_geometric.nn.models.GCN`.
        head (str, optional): The last layer, :obj:`"conv"`, or :obj:`"linear"`
            as in equation (9) of the paper. (default: :obj:`"conv"`)
        **kwargs (optional): Additional arguments of
            :class:`~torch_agcn.nn.conv.AGCNConv`.

    Example:
        >>> AGCN(1433, 16, num_layers=2, out_channels=7, dropout=0.5)
        AGCN(1433, 7, num_layers=2)
    """

    supports_edge_weight: Final[bool] = True
    supports_edge_attr: Final[bool] = False
    supports_norm_batch: bool

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        hidden_channels: int,
        num_layers: int,
        out_channels: int | None = None,
        dropout: float = 0.0,
        act: str | Callable | None = 'relu',
        act_first: bool = False,
        act_kwargs: dict[str, Any] | None = None,
        norm: str | Callable | None = None,
        norm_kwargs: dict[str, Any] | None = None,
        jk: str | None = None,
        *,
        head: str = 'conv',
        **kwargs: Any,
    ) -> None:
        _checks.check_choice('AGCN', ('conv', 'linear'), head=head)
        _checks.check_model(
            'AGCN', num_layers, dropout, -1, 2 if head == 'linear' else 1,
            hidden_channels=hidden_channels, out_channels=(
                hidden_channels if out_channels is None else out_channels))
        _checks.check_flags('AGCN', act_first=act_first)
        _checks.check_resolved('AGCN', 'act', act, act_kwargs,
                               activation_resolver)
        _checks.check_resolved(
            'AGCN', 'norm', norm, norm_kwargs, lambda norm, **kwargs:
            normalization_resolver(norm, hidden_channels, **kwargs), Module)
        if jk is not None:
            _checks.check_choice('AGCN', ('last', 'cat', 'max', 'lstm'),
                                 jk=jk)
        if head == 'linear':
            # PyG's Jumping Knowledge of mode 'last' adds a linear layer:
            num_layers -= 1
            jk = jk or 'last'
        super().__init__(in_channels, hidden_channels, num_layers,
                         out_channels, dropout, act, act_first, act_kwargs,
                         norm, norm_kwargs, jk, **kwargs)
        self.head = head
        if head == 'linear':
            linear = self.get_submodule('lin')
            self.lin = Linear(linear.in_features, linear.out_features,
                              weight_initializer='glorot',
                              bias_initializer='zeros')

    def init_conv(self, in_channels: int | tuple[int, int], out_channels: int,
                  **kwargs: Any) -> AGCNConv:
        return AGCNConv(in_channels, out_channels, **kwargs)

    def forward(
        self,
        x: Tensor,
        edge_index: Adj,
        edge_weight: OptTensor = None,
        edge_attr: OptTensor = None,
        batch: OptTensor = None,
        batch_size: int | None = None,
        num_sampled_nodes_per_hop: list[int] | None = None,
        num_sampled_edges_per_hop: list[int] | None = None,
        degree: OptTensor = None,
        node_weight: OptTensor = None,
    ) -> Tensor:
        r"""Forward pass.

        Args:
            x, edge_index, edge_weight, batch, batch_size, degree, node_weight:
                As in :class:`~torch_agcn.nn.conv.AGCNConv`.
            edge_attr (torch.Tensor, optional): Not used.
                (default: :obj:`None`)
            num_sampled_nodes_per_hop, num_sampled_edges_per_hop (List[int],
                optional): The numbers of sampled nodes and edges per hop, to
                trim the graph layer by layer. (default: :obj:`None`)
        """
        if (num_sampled_nodes_per_hop is not None
                or num_sampled_edges_per_hop is not None):
            _checks.check_sampled(
                'AGCN', x, edge_index, self.num_layers,
                num_sampled_nodes_per_hop=num_sampled_nodes_per_hop,
                num_sampled_edges_per_hop=num_sampled_edges_per_hop)
        xs: list[Tensor] = []
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms)):
            if i > 0 and num_sampled_nodes_per_hop is not None:
                x, edge_index, edge_weight = self._trim(
                    i, num_sampled_nodes_per_hop, num_sampled_edges_per_hop,
                    x, edge_index, edge_weight)
                batch, degree, node_weight = (
                    v[:x.size(0)] if isinstance(v, Tensor) else v
                    for v in (batch, degree, node_weight))
            x = conv(x, edge_index, edge_weight=edge_weight, batch=batch,
                     batch_size=batch_size, degree=degree,
                     node_weight=node_weight)
            if i < self.num_layers - 1 or self.jk_mode is not None:
                if self.act is not None and self.act_first:
                    x = self.act(x)
                if self.supports_norm_batch:
                    x = norm(x, batch, batch_size)
                else:
                    x = norm(x)
                if self.act is not None and not self.act_first:
                    x = self.act(x)
                x = self.dropout(x)
                xs.append(x)

        if hasattr(self, 'jk'):
            x = self.jk(xs)
        return self.lin(x) if hasattr(self, 'lin') else x

    @torch.no_grad()
    def inference(
        self,
        loader: NeighborLoader,
        device: str | torch.device | None = None,
        embedding_device: str | torch.device = 'cpu',
        progress_bar: bool = False,
        cache: bool = False,
    ) -> Tensor:
        r"""Performs layer-wise inference on large graphs, with the degrees and
        gates of the whole graph.

        Args:
            loader (torch_geometric.loader.NeighborLoader): A loader of full
                1-hop subgraphs of all nodes, *i.e.*,
                :obj:`loader.num_neighbors = [-1]`.
            device (torch.device, optional): The device to propagate on.
                (default: :obj:`None`)
            embedding_device (torch.device, optional): The device to store
                intermediate embeddings on. (default: :obj:`"cpu"`)
            progress_bar (bool, optional): Whether to show a progress bar.
                (default: :obj:`False`)
            cache (bool, optional): Whether to keep all subgraphs in memory.
                (default: :obj:`False`)
        """
        if self.training or self.jk_mode not in (None, 'last'):
            raise ValueError(f"'AGCN.inference' works layer by layer in "
                             f"evaluation mode with jk=None or jk='last' (got "
                             f'training={self.training} and '
                             f"jk='{self.jk_mode}'); call 'model.eval()' "
                             f"first, or 'model(x, edge_index)' instead")
        if any(conv.lin_dst is not None for conv in self.convs):
            raise ValueError(f"'AGCN.inference' works on graphs with one type "
                             f'of nodes; pass one number as in_channels (got '
                             f'{self.in_channels})')
        if (not isinstance(loader, NeighborLoader)
                or list(loader.node_sampler.num_neighbors.values) != [-1]
                or loader.node_sampler.subgraph_type.value != 'directional'
                or len(loader.dataset) != loader.data.num_nodes):
            raise ValueError("'AGCN.inference' needs a 'NeighborLoader' over "
                             "all nodes with 'num_neighbors=[-1]' and "
                             "subgraph_type='directional'")
        if any(conv.flow != 'source_to_target' for conv in self.convs):
            raise ValueError("'AGCN.inference' follows the flow of its "
                             "loader; turn the edges around and leave 'flow' "
                             "at 'source_to_target'")
        _checks.check_flags('AGCN.inference', progress_bar=progress_bar,
                            cache=cache)
        _checks.check_device_names('AGCN.inference', device=device,
                                   embedding_device=embedding_device)
        batches = list(loader) if cache else loader
        bar = tqdm(total=sum(c.num_hops for c in self.convs) * len(loader),
                   disable=not progress_bar, desc='Inference')
        x = loader.data.x.to(embedding_device)
        for i, conv in enumerate(self.convs):
            x = _infer(conv, x, loader.data, batches, device, bar)
            if i == self.num_layers - 1 and self.jk_mode is None:
                break
            x = x.to(device)
            if self.act is not None and self.act_first:
                x = self.act(x)
            x = self.norms[i](x)
            if self.act is not None and not self.act_first:
                x = self.act(x)
            x = x.to(embedding_device)
        bar.close()
        if hasattr(self, 'lin'):
            x = self.lin(x.to(device)).to(embedding_device)
        return x

    def __repr__(self) -> str:
        num_layers = self.num_layers + (self.head == 'linear')
        return (f'{self.__class__.__name__}({self.in_channels}, '
                f'{self.out_channels}, num_layers={num_layers})')


def _infer(conv: AGCNConv, x: Tensor, data: Any, batches: Any,
           device: str | torch.device | None, bar: tqdm) -> Tensor:
    r"""One layer on all nodes, with energies of the whole graph."""
    x = to_measure(x)
    P, L = conv._make_graph(x, None, *_edges_of(data, x.device))
    added = (2.0 if conv.improved else 1.0) if conv.add_self_loops else 0.0
    by_batches: Any = _Batches(conv, L.degree - added, batches, device, bar)
    if L.P is P:
        L.P = by_batches
    measures = [ENERGIES[conv.energy]] * conv.num_hops
    h, _ = conv._hops(x, x, Graph(by_batches, L), OneGraph(), conv.beta,
                      measures)
    out = conv.lin(h.to(device, conv.lin.weight.dtype))
    return (out if conv.bias is None else out + conv.bias).to(x.device)


class _Batches:
    r"""Propagates by batches, with the degrees of the whole graph."""

    def __init__(self, conv: AGCNConv, degree: Tensor, batches: Any,
                 device: str | torch.device | None, bar: tqdm) -> None:
        self.conv, self.degree, self.batches = conv, degree, batches
        self.device, self.bar = device, bar

    def __call__(self, h: Tensor) -> Tensor:
        out = torch.full_like(h, math.nan)
        for batch in self.batches:
            n_id = batch.n_id.to(h.device)
            local = h[n_id].to(self.device)
            P, _ = self.conv._make_graph(
                local, None, *_edges_of(batch, self.device),
                self.degree[n_id].to(self.device))
            seeds = n_id[:batch.batch_size]
            out[seeds] = P(local)[:len(seeds)].to(out)
            self.bar.update()
        if not torch.isfinite(out).all() and torch.isfinite(h).all():
            _checks.refuse('AGCN.inference', 'a loader that does not reach '
                           'all nodes', "leave 'input_nodes' out")
        return out


def _edges_of(data: Any, device: Any) -> tuple[Adj, OptTensor]:
    if getattr(data, 'adj_t', None) is not None:
        return data.adj_t.to(device), None
    weight = getattr(data, 'edge_weight', None)
    return (data.edge_index.to(device),
            None if weight is None else weight.to(device))
