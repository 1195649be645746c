from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils.data import Sampler
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.typing import OptTensor
from torch_geometric.utils import contains_self_loops, scatter

from torch_agcn import _checks
from torch_agcn._edges import to_edges

__all__ = ['ImportanceWeights', 'MixedBatchSampler']


class ImportanceWeights:
    r"""Computes the arguments with which :class:`~torch_agcn.nn.conv.AGCNConv`
    and :class:`~torch_agcn.nn.models.AGCN` estimate propagation and energy of
    the whole graph from a mini-batch of
    :class:`~torch_geometric.loader.NeighborLoader`

    .. math::
        \textrm{edge\_weight}_{ij} = A_{ij} \frac{p_i}{p_{ij}}, \quad
        \textrm{node\_weight}_i = \frac{1}{p_i}, \quad \textrm{degree}_i =
        \sum_j A_{ij},

    where :math:`p_i` is the probability that node :math:`i` is a seed (other
    nodes have weight zero), and :math:`p_{ij}` that the edge from :math:`j` to
    :math:`i` is sampled as well.

    Requires uniformly sampled neighbors, :obj:`subgraph_type="directional"`,
    and seeds drawn uniformly from all nodes or within :obj:`strata`.

    .. note::
        Energies are unbiased for the features of the batch, but too high after
        a layer with sampled neighbors.

    Args:
        loader (torch_geometric.loader.NeighborLoader): The loader.
        strata (torch.Tensor, optional): The stratum of each node, an integer.
            By default, that of :class:`MixedBatchSampler` if the loader has
            one, else one stratum. (default: :obj:`None`)

    Example:
        >>> edge_index = torch.tensor([[1, 2, 3, 0], [0, 0, 0, 3]])
        >>> data = Data(edge_index=edge_index, num_nodes=4)
        >>> loader = NeighborLoader(data, [2], batch_size=1, shuffle=True)
        >>> weights = ImportanceWeights(loader)
        >>> # A batch of node 0 and two of its three neighbors:
        >>> batch = Data(edge_index=torch.tensor([[1, 2], [0, 0]]),
        ...              n_id=torch.tensor([0, 1, 3]), batch_size=1)
        >>> weights(batch)  # for model(x, edge_index, **weights(batch))
        {'edge_weight': tensor([1.5000, 1.5000]),
         'node_weight': tensor([4., 0., 0.]), 'degree': tensor([3., 0., 1.])}
    """

    def __init__(self, loader: Any, strata: OptTensor = None) -> None:
        if not isinstance(loader, NeighborLoader):
            self._refuse(f"'loader' of type '{type(loader).__name__}'",
                         "pass a 'NeighborLoader'")
        sampler, data = loader.node_sampler, loader.data
        edge_index = getattr(data, 'edge_index', None)
        if not isinstance(data, Data) or edge_index is None:
            self._refuse('data without edge_index',
                         "pass one 'Data' object, and leave out "
                         "'ToSparseTensor'")
        if contains_self_loops(edge_index):
            self._refuse('a graph with self-loops', 'remove them by '
                         "'torch_geometric.transforms.RemoveSelfLoops': the "
                         'layer adds its own')
        if (sampler.subgraph_type.value != 'directional'
                or sampler.edge_weight is not None or sampler.is_temporal):
            self._refuse('neighbors that are not drawn uniformly',
                         "leave 'subgraph_type' at 'directional', and "
                         "'weight_attr' and 'time_attr' out")
        N = int(data.num_nodes)
        if len(loader.dataset) != N:
            self._refuse(f'a loader of {len(loader.dataset)} of {N} nodes',
                         "leave 'input_nodes' out, and pass 'batch_sampler="
                         "MixedBatchSampler(...)' to have some nodes more "
                         'often than others: nodes that are never seeds '
                         'cannot be stood for')
        if strata is None:
            strata = getattr(loader.batch_sampler, 'strata',
                             torch.zeros(N, dtype=torch.long))
        if (not _checks.is_dense(strata) or strata.shape != (N, )
                or strata.dtype not in _checks.INDICES or strata.is_meta):
            self._refuse(_checks.given('strata', strata),
                         f'pass {N} whole numbers (torch.long)')
        # Renumbered, as `bincount` allocates up to the largest:
        _, self._strata = strata.unique(return_inverse=True)

        target = edge_index[1]
        self._count = scatter(torch.ones_like(target, dtype=torch.float),
                              target, dim_size=N)
        weight = getattr(data, 'edge_weight', None)
        self._degree = self._count if weight is None else scatter(
            weight.view(-1), target, dim_size=N)

    def _refuse(self, what: str, remedy: str) -> NoReturn:
        _checks.refuse(self.__class__.__name__, what, remedy)

    def __call__(self, batch: Data) -> dict[str, Tensor]:
        r"""Returns the keyword arguments for a batch of the loader."""
        self._check_batch(batch)
        device, n_id = batch.edge_index.device, batch.n_id
        # The number of edges of each target over those sampled.
        target = batch.edge_index[1]
        count = self._count.to(device)[n_id]
        sampled = scatter(torch.ones_like(target, dtype=count.dtype), target,
                          dim_size=count.numel())
        edge_weight = (count / sampled)[target]
        given = getattr(batch, 'edge_weight', None)
        if given is not None:
            edge_weight = edge_weight * given.view(-1)
        # The number of nodes of each stratum over its seeds.
        strata = self._strata.to(device)
        size = torch.bincount(strata)
        own = strata[n_id[:batch.batch_size]]
        seeds = torch.bincount(own, minlength=size.numel())
        node_weight = torch.zeros_like(count)
        node_weight[:batch.batch_size] = (size / seeds)[own]
        return dict(edge_weight=edge_weight, node_weight=node_weight,
                    degree=self._degree.to(device)[n_id])


    def _check_batch(self, batch: Any) -> None:
        name, N = self.__class__.__name__, self._count.numel()
        n_id = getattr(batch, 'n_id', None)
        size = getattr(batch, 'batch_size', None)
        if (not isinstance(batch, Data) or not isinstance(n_id, Tensor)
                or not _checks.is_whole(size, 1, n_id.numel())):
            self._refuse("'batch' without the numbers of its nodes and seeds",
                         "pass a batch of the 'NeighborLoader'")
        _checks.check_numbers(name, n_id.numel(), N, n_id=n_id)
        to_edges(name, batch.edge_index, getattr(batch, 'edge_weight', None),
                 (n_id.numel(), n_id.numel()), torch.float)


class MixedBatchSampler(Sampler[list[int]]):
    r"""A :obj:`batch_sampler` of a
    :class:`~torch_geometric.loader.NeighborLoader` of all nodes that adds
    random other nodes to each batch of given nodes (*e.g.*, those to train
    on), for :class:`ImportanceWeights`.

    Args:
        nodes (torch.Tensor): The mask or indices of the given nodes.
        num_nodes (int): The number of all nodes.
        batch_size (int): The number of given nodes per batch.
        num_random (int): The number of other nodes per batch.
        generator (torch.Generator, optional): The random number generator.
            (default: :obj:`None`)

    Example:
        >>> sampler = MixedBatchSampler(torch.arange(5), num_nodes=100,
        ...                             batch_size=3, num_random=20)
        >>> [len(batch) for batch in sampler]
        [23, 22]
    """

    def __init__(self, nodes: Tensor, num_nodes: int, batch_size: int,
                 num_random: int,
                 generator: torch.Generator | None = None) -> None:
        name = self.__class__.__name__
        _checks.check_whole(name, 1, num_nodes=num_nodes,
                            batch_size=batch_size, num_random=num_random)
        if generator is not None:
            _checks.check_kind(name, torch.Generator, "pass a 'torch."
                               "Generator'", generator=generator)
        if not _checks.is_dense(nodes):
            _checks.refuse(name, _checks.given('nodes', nodes), "pass a "
                           "tensor, e.g. 'torch.tensor(nodes)'")
        if nodes.dtype == torch.bool:
            _checks.check_mask(name, num_nodes, nodes=nodes)
        else:
            _checks.check_numbers(name, nodes.numel(), num_nodes, nodes=nodes)
        self.strata = torch.zeros(num_nodes, dtype=torch.long)
        self.strata[nodes.cpu()] = 1
        self.nodes, self.others = (
            (self.strata == i).nonzero().view(-1) for i in (1, 0))
        if num_random > self.others.numel() or self.nodes.numel() == 0:
            _checks.refuse(name, f'num_random={num_random} for '
                           f'{self.nodes.numel()} given nodes and '
                           f'{self.others.numel()} others', 'pass positive '
                           'numbers, and not more than there are')
        self.batch_size = int(batch_size)
        self.num_random = num_random
        self.generator = generator

    def __iter__(self) -> Iterator[list[int]]:
        for some in self._shuffled(self.nodes).split(self.batch_size):
            others = self._shuffled(self.others)[:self.num_random]
            yield torch.cat([some, others]).tolist()

    def __len__(self) -> int:
        return -(-self.nodes.numel() // self.batch_size)

    def _shuffled(self, nodes: Tensor) -> Tensor:
        return nodes[torch.randperm(nodes.numel(), generator=self.generator)]
