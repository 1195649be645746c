r"""What the nodes and edges of a mini-batch stand for in the whole graph."""
from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils.data import Sampler
from torch_geometric.data import Data
from torch_geometric.index import ptr2index
from torch_geometric.loader import (
    ClusterLoader,
    GraphSAINTSampler,
    NeighborLoader,
)
from torch_geometric.typing import OptTensor
from torch_geometric.utils import contains_self_loops, scatter

__all__ = ['ImportanceWeights', 'MixedBatchSampler']


class ImportanceWeights:
    r"""Makes the arguments with which :class:`~torch_agcn.nn.conv.AGCNConv`
    and :class:`~torch_agcn.nn.models.AGCN` work on a mini-batch as on the
    graph that it was sampled from, in expectation.

    What is in a batch with probability :math:`p` counts :math:`1/p` times
    (Horvitz and Thompson). With the probability :math:`p_i` that the batch
    has node :math:`i` and all that is said about it, and :math:`p_{ij}` that
    it has the edge from :math:`j` to :math:`i` as well,

    * :obj:`edge_weight` is :math:`A_{ij} p_i / p_{ij}`, and :obj:`degree` that
      of the whole graph: what a node of the batch receives is then in
      expectation what it receives in the graph;
    * :obj:`node_weight` is :math:`1 / p_i`, so that an edge has the weight
      :math:`A_{ij} / p_{ij}` in the energy: all sums that the energy is made
      of are then in expectation those of the graph.

    It is meant for the features of the batch. Behind a layer that saw only
    some of the neighbors, features are noisy, and noise is rough: there, the
    energy comes out too high, the less the more neighbors are sampled.

    The loaders it knows are

    * :class:`~torch_geometric.loader.NeighborLoader` with
      :obj:`subgraph_type="directional"`, whose neighbors are drawn uniformly:
      the energy is taken on the edges that the seed nodes receive. Seeds must
      be drawn uniformly from all nodes, or within :obj:`strata`, see
      :class:`MixedBatchSampler`;
    * :class:`~torch_geometric.loader.GraphSAINTSampler` with
      :obj:`sample_coverage > 0`, from whose norms the probabilities are taken.
      These are counts of a trial, and the weights are right as far as the
      counts are. An edge that the trial missed counts as the rarest one that
      it saw. Few edges with large weights are noisy: the layer is therefore
      left to take degrees from the weighted edges as well, for then smooth
      features stay smooth. This is right in the limit of large batches, but
      not exactly in expectation;
    * :class:`~torch_geometric.loader.ClusterLoader` with :obj:`shuffle=True`.
      An edge between two clusters is there only if both were drawn. In
      batches of a single cluster there is none, and no weight can make up for
      that: energies are then those of a graph without such edges, and too
      small.

    The latter two need :obj:`data.generate_ids()` to be called before they are
    made, to tell which nodes are in a batch.

    Args:
        loader (torch.utils.data.DataLoader): The loader.
        strata (torch.Tensor, optional): A whole number for each node. Seeds
            are then drawn uniformly among nodes of the same number, and each
            batch has seeds of all. By default, those of the loader's
            :class:`MixedBatchSampler`, or else all nodes are alike.
            (default: :obj:`None`)

    Example:
        >>> edge_index = torch.tensor([[1, 2, 3, 0], [0, 0, 0, 3]])
        >>> data = Data(x=torch.eye(4), edge_index=edge_index)
        >>> loader = NeighborLoader(data, [2], batch_size=1, shuffle=True)
        >>> weights = ImportanceWeights(loader)
        >>> # One of its batches, of node 0 and two of three neighbors:
        >>> batch = Data(x=data.x[[0, 1, 3]], n_id=torch.tensor([0, 1, 3]),
        ...              edge_index=torch.tensor([[1, 2], [0, 0]]),
        ...              batch_size=1)
        >>> weights(batch)
        {'edge_weight': tensor([1.5000, 1.5000]),
         'node_weight': tensor([4., 0., 0.]), 'degree': tensor([3., 0., 1.])}

    A model is then trained by :obj:`model(batch.x, batch.edge_index,
    **weights(batch))` for each :obj:`batch` in :obj:`loader`.
    """

    def __init__(self, loader: Any, strata: OptTensor = None) -> None:
        self._cluster: OptTensor = None
        self._strata: OptTensor = None
        edge_index: OptTensor
        if isinstance(loader, ClusterLoader):
            data = loader.cluster_data.data
            edge_index, self._cluster = _partition(loader.cluster_data)
        elif isinstance(loader, (NeighborLoader, GraphSAINTSampler)):
            data = loader.data
            edge_index = getattr(data, 'edge_index', None)
        else:
            self._refuse(f"a '{type(loader).__name__}'", "pass a "
                         "'NeighborLoader', 'GraphSAINTSampler' or "
                         "'ClusterLoader'")
        if not isinstance(data, Data) or edge_index is None:
            self._refuse('data without edge_index',
                         "pass one 'Data' object, and leave out "
                         "'ToSparseTensor'")
        self._is_saint = isinstance(loader, GraphSAINTSampler)
        if contains_self_loops(edge_index):
            self._refuse('a graph with self-loops', 'remove them by '
                         "'torch_geometric.transforms.RemoveSelfLoops': the "
                         'layer adds its own')
        self._num_nodes = int(data.num_nodes)
        if isinstance(loader, NeighborLoader):
            self._strata = self._check_neighbors(loader, strata)
        elif 'n_id' not in data:
            self._refuse("data without 'n_id'", "call 'data.generate_ids()' "
                         'before the loader is made')
        elif self._is_saint:
            if loader.sample_coverage <= 0:
                self._refuse('sample_coverage=0', 'pass a larger one, e.g. '
                             '50: how often nodes and edges are sampled is '
                             'counted')
            # PyG gives infinity as 10,000, which would drown all others.
            norm = loader.edge_norm
            self._largest_norm = float(norm[norm < 1e4].max())

        target = edge_index[1]
        weight = getattr(data, 'edge_weight', None)
        one = torch.ones_like(target, dtype=torch.float)
        self._count = scatter(one, target, dim_size=self._num_nodes)
        self._degree = self._count if weight is None else scatter(
            weight.view(-1), target, dim_size=self._num_nodes)

    def _check_neighbors(self, loader: NeighborLoader,
                         strata: OptTensor) -> Tensor:
        sampler = loader.node_sampler
        if (sampler.subgraph_type.value != 'directional'
                or sampler.edge_weight is not None or sampler.is_temporal):
            self._refuse('neighbors that are not drawn uniformly',
                         "leave 'subgraph_type' at 'directional', and "
                         "'weight_attr' and 'time_attr' out")
        if strata is None and isinstance(loader.batch_sampler,
                                         MixedBatchSampler):
            strata = loader.batch_sampler.strata
        if len(loader.dataset) != self._num_nodes:
            self._refuse(f'a loader of {len(loader.dataset)} of '
                         f'{self._num_nodes} nodes', "leave 'input_nodes' "
                         "out, and pass 'batch_sampler=MixedBatchSampler("
                         "...)' to have some nodes more often than others: "
                         'nodes that are never seeds cannot be stood for')
        if strata is None:
            strata = torch.zeros(self._num_nodes, dtype=torch.long)
        if strata.size(0) != self._num_nodes:
            self._refuse(f'strata of {strata.size(0)} nodes', f'pass a number '
                         f'for each of {self._num_nodes}')
        return strata.long()

    def _refuse(self, what: str, remedy: str) -> NoReturn:
        raise ValueError(f"'{self.__class__.__name__}' got {what}; {remedy}")

    def __call__(self, batch: Data) -> dict[str, Tensor]:
        r"""The arguments for a batch of the loader, by name."""
        device, n_id = batch.edge_index.device, batch.n_id
        if self._strata is not None:
            count = self._count.to(device)[n_id]
            edge_weight = neighbor_weight(batch.edge_index[1], count)
            node_weight = torch.zeros_like(count)
            node_weight[:batch.batch_size] = seed_weight(
                n_id[:batch.batch_size], self._strata.to(device))
        elif self._cluster is not None:
            edge_weight, node_weight = cluster_weights(
                n_id, batch.edge_index, self._cluster.to(device))
        else:
            edge_weight, node_weight = saint_weights(
                batch.edge_index, batch.node_norm,
                batch.edge_norm.clamp(max=self._largest_norm),
                self._num_nodes)
        given = getattr(batch, 'edge_weight', None)
        if given is not None:
            edge_weight = edge_weight * given.view(-1)
        found = dict(edge_weight=edge_weight, node_weight=node_weight)
        if not self._is_saint:
            found['degree'] = self._degree.to(device)[n_id]
        return found


class MixedBatchSampler(Sampler[list[int]]):
    r"""Batches of given nodes, *e.g.*, those to train on, to each of which
    nodes are added that are drawn at random from all others.

    The energy is a property of the whole graph, of which training nodes,
    being few or chosen, tell little. The others tell the rest: with them,
    :class:`ImportanceWeights` is right in expectation.

    Args:
        nodes (torch.Tensor): The given nodes, as indices or as a mask.
        num_nodes (int): The number of all nodes.
        batch_size (int): The number of given nodes in a batch; the last one
            may have fewer.
        num_random (int): The number of other nodes in a batch.
        generator (torch.Generator, optional): The source of chance.
            (default: :obj:`None`)

    Example:
        >>> sampler = MixedBatchSampler(torch.arange(5), num_nodes=100,
        ...                             batch_size=3, num_random=20)
        >>> [len(batch) for batch in sampler]
        [23, 22]

    It is to be passed as :obj:`batch_sampler` of a
    :class:`~torch_geometric.loader.NeighborLoader` of all nodes.
    """

    def __init__(self, nodes: Tensor, num_nodes: int, batch_size: int,
                 num_random: int,
                 generator: torch.Generator | None = None) -> None:
        self.strata = torch.zeros(num_nodes, dtype=torch.long)
        self.strata[nodes] = 1
        self.nodes, self.others = (
            (self.strata == i).nonzero().view(-1) for i in (1, 0))
        if not 0 < num_random <= self.others.numel() or (
                batch_size < 1 or self.nodes.numel() == 0):
            raise ValueError(f"'{self.__class__.__name__}' got batch_size="
                             f'{batch_size} and num_random={num_random} for '
                             f'{self.nodes.numel()} given nodes and '
                             f'{self.others.numel()} others; pass positive '
                             f'numbers, and not more than there are')
        self.batch_size = batch_size
        self.num_random = num_random
        self.generator = generator

    def __iter__(self) -> Iterator[list[int]]:
        r"""Each of the given nodes once, in random order."""
        for some in self._shuffled(self.nodes).split(self.batch_size):
            others = self._shuffled(self.others)[:self.num_random]
            yield torch.cat([some, others]).tolist()

    def __len__(self) -> int:
        r"""The number of batches."""
        return -(-self.nodes.numel() // self.batch_size)

    def _shuffled(self, nodes: Tensor) -> Tensor:
        return nodes[torch.randperm(nodes.numel(), generator=self.generator)]


# The probabilities ###########################################################


def neighbor_weight(target: Tensor, count: Tensor) -> Tensor:
    r"""How many edges each edge stands for, where nodes sampled some of
    :obj:`count` edges uniformly: :math:`p_i / p_{ij}`.
    """
    sampled = scatter(torch.ones_like(target, dtype=count.dtype), target,
                      dim_size=count.numel())
    return (count / sampled.clamp(min=1))[target]


def seed_weight(seeds: Tensor, strata: Tensor) -> Tensor:
    r"""How many nodes each seed stands for: :math:`1 / p_i`."""
    size = torch.bincount(strata)
    found = torch.bincount(strata[seeds], minlength=size.numel())
    return (size / found.clamp(min=1))[strata[seeds]]


def saint_weights(edge_index: Tensor, node_norm: Tensor, edge_norm: Tensor,
                  num_nodes: int) -> tuple[Tensor, Tensor]:
    r"""Weights of edges and nodes from GraphSAINT's norms, which are
    :math:`1 / (N p_j)` of the nodes, and :math:`p_j / p_{ij}` of the edges,
    where :math:`j` is the sender.
    """
    source, target = edge_index
    node_weight = num_nodes * node_norm
    return (edge_norm * node_weight[source] / node_weight[target],
            node_weight)


def cluster_weights(n_id: Tensor, edge_index: Tensor,
                    cluster: Tensor) -> tuple[Tensor, Tensor]:
    r"""Weights of edges and nodes, where some clusters are drawn at random,
    and the edges between clusters are there that were drawn together.
    """
    total = cluster.unique().numel()
    local = cluster[n_id]
    drawn = local.unique().numel()
    source, target = local[edge_index]
    between = (total - 1) / max(drawn - 1, 1)
    return (torch.where(source == target, 1.0, between),
            torch.full_like(n_id, total / drawn, dtype=torch.float))


def _partition(cluster_data: Any) -> tuple[Tensor, Tensor]:
    r"""The edges of a partitioned graph and the clusters of its nodes."""
    partition = cluster_data.partition
    edge_index = torch.stack([ptr2index(partition.indptr), partition.index])
    if partition.sparse_format == 'csc':
        edge_index = edge_index.flip(0)
    cluster = torch.empty_like(partition.node_perm)
    cluster[partition.node_perm] = ptr2index(partition.partptr)
    return partition.node_perm[edge_index], cluster
