r"""Attacks on the edges of an undirected graph without self-loops.

All return new edges, both directions of each, sorted. The budget is a share
of the undirected edges there are; a change adds or deletes one.
"""
import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import to_undirected

from benchmarks.baselines.layers import Stack
from benchmarks.training import fit, sizes


def budget_of(edge_index: Tensor, share: float) -> int:
    r"""How many undirected edges may change."""
    return round(share * edge_index.size(1) / 2)


def add_random(edge_index: Tensor, num_nodes: int, share: float,
               seed: int) -> Tensor:
    r"""Adds random edges."""
    generator = torch.Generator().manual_seed(seed)
    # Each node is a class of its own:
    new = _between(edge_index, torch.arange(num_nodes),
                   budget_of(edge_index, share), generator)
    return to_undirected(torch.cat([edge_index, new], dim=1),
                         num_nodes=num_nodes)


def dice(edge_index: Tensor, y: Tensor, share: float, seed: int) -> Tensor:
    r"""Deletes edges within classes and adds edges between them, by coins.

    DICE of Waniek et al., `"Hiding Individuals and Communities in a Social
    Network" <https://arxiv.org/abs/1608.00375>`_ (2018), which knows all
    labels. Where no edge within a class is left, it adds.
    """
    generator = torch.Generator().manual_seed(seed)
    budget = budget_of(edge_index, share)
    pairs = edge_index[:, edge_index[0] < edge_index[1]]
    within = (y[pairs[0]] == y[pairs[1]]).nonzero().view(-1)
    coins = torch.rand(budget, generator=generator) < 0.5
    order = torch.randperm(within.numel(), generator=generator)
    gone = within[order[:int(coins.sum())]]
    new = _between(edge_index, y, budget - gone.numel(), generator)
    keep = torch.ones(pairs.size(1), dtype=torch.bool)
    keep[gone] = False
    return to_undirected(torch.cat([pairs[:, keep], new], dim=1),
                         num_nodes=y.numel())


def _between(edge_index: Tensor, y: Tensor, count: int,
             generator: torch.Generator) -> Tensor:
    r"""Random new pairs of nodes of different classes, the smaller first."""
    N = y.numel()
    row, col = edge_index[:, edge_index[0] < edge_index[1]]
    size = y.unique(return_counts=True)[1]
    free = (N**2 - int((size**2).sum())) // 2 - int((y[row] != y[col]).sum())
    if count > free:
        raise ValueError(f'There are {free} edges to add, not {count}')
    taken, new = row * N + col, row.new_empty(0)
    while new.numel() < count:
        a, b = torch.randint(N, (2, 2 * count), generator=generator)
        a, b = torch.minimum(a, b), torch.maximum(a, b)
        drawn = (a * N + b)[y[a] != y[b]]
        new = torch.cat([new, drawn[~torch.isin(drawn, taken)]]).unique()
    new = new[torch.randperm(new.numel(), generator=generator)[:count]]
    return torch.stack([new // N, new % N])


class GCN(Stack):
    r"""Two layers; differentiable in the weights of the edges."""

    def __init__(self, in_channels: int, hidden_channels: int,
                 out_channels: int, p: float) -> None:
        super().__init__(
            GCNConv(in_channels, hidden_channels, normalize=False),
            GCNConv(hidden_channels, out_channels, normalize=False), p=p)

    def graph_of(self, x: Tensor, edge_index: Tensor,
                 edge_weight: Tensor | None) -> tuple[Tensor, Tensor]:
        r"""Both layers share what normalizes the edges."""
        return gcn_norm(edge_index, edge_weight, x.size(0))


def surrogate(data: Data, seed: int, hidden_channels: int = 16,
              p: float = 0.5) -> Module:
    r"""A GCN trained on a graph, for attacks to see."""
    seed_everything(seed)
    return fit(GCN(*sizes(data, hidden_channels), p), data).model


class Weighted(Module):
    r"""A model behind a defense, for adaptive attacks: ``weigh`` is called as
    the model is, and returns a factor in :math:`[0, 1]` per edge, a constant
    to the gradient. The attack's candidates are edges of weight 1e-7 to it,
    hence it must count edges by weight.
    """

    def __init__(self, model: Module,
                 weigh: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.weigh = model, weigh

    def forward(self, x: Tensor, edge_index: Tensor,
                edge_weight: Tensor | None = None) -> Tensor:
        r"""The model's outputs on the weighted edges."""
        if edge_weight is None:
            edge_weight = torch.ones(edge_index.size(1), device=x.device)
        with torch.no_grad():
            factor = self.weigh(x, edge_index, edge_weight.detach())
        return self.model(x, edge_index, edge_weight * factor)


class _Discrete(Module):
    r"""Leaves out edges of weight zero, which PyG keeps in discrete graphs;
    most of the block is such.
    """

    def __init__(self, model: Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, edge_index: Tensor,
                edge_weight: Tensor) -> Tensor:
        if not edge_weight.requires_grad:
            there = edge_weight > 0
            edge_index, edge_weight = edge_index[:, there], edge_weight[there]
        return self.model(x, edge_index, edge_weight)


def prbcd(model: Module, data: Data, share: float, seed: int, *,
          block_size: int = 10_000, epochs: int = 60,
          epochs_resampling: int = 45) -> Tensor:
    r"""Flips edges by gradients to make a trained model fail on test nodes.

    Projected randomized block coordinate descent of Geisler et al.,
    `"Robustness of Graph Neural Networks at Scale"
    <https://arxiv.org/abs/2110.14038>`_ (2021), PyG's, with true labels and
    the paper's loss; the block is as large as is affordable.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', '.*contains experimental code')
        from torch_geometric.contrib.nn import PRBCDAttack
    seed_everything(seed)
    budget = budget_of(data.edge_index, share)
    attack = PRBCDAttack(
        _Discrete(model), max(block_size, 4 * budget), epochs,
        epochs_resampling, 'tanh_margin', lr=1000., is_undirected=True,
        log=False)
    return attack.attack(data.x, data.edge_index, data.y, budget,
                         data.test_mask)[0]
