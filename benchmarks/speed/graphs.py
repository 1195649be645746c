r"""Graphs and features to measure on."""
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data


class Size(NamedTuple):
    r"""A kind of graph, and how much of it; of graphs that change, means."""

    graph: str
    nodes: int
    edges: int
    features: int


def random_graph(num_nodes: int, num_edges: int, seed: int = 0) -> Tensor:
    r"""An undirected graph with :obj:`num_edges` directed edges, sorted, none
    twice and no loops.
    """
    generator = torch.Generator().manual_seed(seed)
    pairs = _pairs(num_nodes, num_edges, generator, lambda count:
                   torch.randint(num_nodes, (2, count), generator=generator))
    return _both_ways(pairs // num_nodes, pairs % num_nodes, num_nodes)


def power_law_graph(num_nodes: int, num_edges: int, gamma: float = 2.5,
                    seed: int = 0) -> Tensor:
    r"""A graph as :meth:`random_graph`, in which the number of nodes of degree
    :math:`k` falls as :math:`k^{-\gamma}`, with :math:`\gamma > 2`.

    Each edge joins two nodes that are drawn with a probability of
    :math:`r^{-a}`, where :math:`r` is the rank of a node and :math:`a = 1 /
    (\gamma - 1)`. The first ranks are left out: from a degree of about
    :math:`\sqrt{|\mathcal{E}|}` on, most edges of two such nodes would be
    drawn twice.
    """
    generator = torch.Generator().manual_seed(seed)
    a = 1 / (gamma - 1)
    # Rank r has degree (1 - a) |E| / N (r / N)^-a, and the first the root:
    first = num_nodes * ((1 - a) * num_edges**0.5 / num_nodes)**(1 / a)
    low = (first / (num_nodes + first))**(1 - a)

    def draw(count: int) -> Tensor:
        # The inverse of the ranks' distribution, (r / N)^(1 - a):
        ends = torch.rand(2, count, dtype=torch.double, generator=generator)
        ends.mul_(1 - low).add_(low).pow_(1 / (1 - a))
        ends = ends.mul_(num_nodes + first).sub_(first).long()
        return ends.clamp_(0, num_nodes - 1)

    pairs = _pairs(num_nodes, num_edges, generator, draw)
    names = torch.randperm(num_nodes, generator=generator)  # hubs anywhere
    return _both_ways(names[pairs // num_nodes], names[pairs % num_nodes],
                      num_nodes)


def _pairs(num_nodes: int, num_edges: int, generator: torch.Generator,
           draw: Callable[[int], Tensor]) -> Tensor:
    r"""Different pairs of different nodes, as numbers."""
    wanted = num_edges // 2
    if num_edges % 2 or 4 * wanted > num_nodes * (num_nodes - 1):
        raise ValueError(f'There is no graph of {num_nodes} nodes with '
                         f'{num_edges} directed edges here; pass an even '
                         f'number, of at most half of all pairs')
    pairs = torch.empty(0, dtype=torch.long)
    while pairs.numel() < wanted:
        missing = wanted - pairs.numel()
        a, b = draw(missing + missing // 16 + 8)
        keys = torch.minimum(a, b) * num_nodes + torch.maximum(a, b)
        pairs = torch.cat([pairs, keys[a != b]]).unique()
    # Those too many are any, not the last:
    order = torch.randperm(pairs.numel(), generator=generator)
    return pairs[order[:wanted]]


def _both_ways(row: Tensor, col: Tensor, num_nodes: int) -> Tensor:
    keys = torch.cat([row * num_nodes + col, col * num_nodes + row])
    keys = keys.sort().values
    return torch.stack([keys // num_nodes, keys % num_nodes])


def knn_graph(num_nodes: int, num_edges: int, seed: int = 0) -> Tensor:
    r"""Edges to points of the unit square, in random order, from their
    nearest neighbors.
    """
    from scipy.spatial import cKDTree
    k = num_edges // num_nodes
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(num_nodes, 2, generator=generator).numpy()
    _, found = cKDTree(points).query(points, k + 1)
    source = torch.from_numpy(found)[:, 1:].reshape(-1)
    return torch.stack([source,
                        torch.arange(num_nodes).repeat_interleave(k)])


GRAPHS: dict[str, Callable[..., Tensor]] = {
    'random': random_graph, 'power law': power_law_graph, 'points': knn_graph}


def make(size: Size, seed: int = 0) -> Any:
    r"""Features and a graph, or a list of graphs that change."""
    if size.graph == 'changing':
        return changing(size)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size.nodes, size.features, generator=generator)
    return Data(x=x.requires_grad_(), edge_index=GRAPHS[size.graph](
        size.nodes, size.edges, seed=seed))


def number_of_graphs(size: Size) -> int:
    r"""How many graphs change into each other."""
    return 4 if size.edges > 10**5 else 20


def changing(size: Size) -> list[Data]:
    r"""Power-law graphs from half to one and a half of a size, in random
    order.
    """
    share = torch.linspace(0.5, 1.5, number_of_graphs(size))
    share = share[torch.randperm(
        share.numel(), generator=torch.Generator().manual_seed(0))]
    found = [make(Size('power law', int(size.nodes * s),
                       int(size.edges * s) // 2 * 2, size.features), seed)
             for seed, s in enumerate(share.tolist())]
    for data in found:
        data.x = data.x.detach()
    return found
