r"""Compares edges with random pairs to find chance edges."""
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from torch_agcn._edges import Edges
from torch_agcn._energy import row_dot
from torch_agcn._groups import OneGraph
from torch_agcn._spmm import CSR, blocks

RANDOM_PAIRS = 2**14
LEVELS = 2**12  # of similarity between zero and one
NOTHING_TO_SAY = 0.9  # From this share on, weights stay as they are.


class Pairs(NamedTuple):
    r"""Undirected edges without loops, with weights relative to their mean."""

    i: Tensor
    j: Tensor
    weight: Tensor


class Chance(NamedTuple):
    share: float  # of chance edges
    weight: Tensor  # of each pair: the probability that it is not by chance
    similarity: Tensor  # of each pair
    of_random: Tensor  # the similarity of each random pair


def to_pairs(edges: Edges, num_nodes: int,
             dtype: torch.dtype) -> tuple[Pairs, Tensor]:
    r"""Returns the pairs, and the pair of each edge (none for loops)."""
    row, col, weight = edges.weighted(dtype)
    key = torch.minimum(row, col) * num_nodes + torch.maximum(row, col)
    is_loop = row == col
    key, place = torch.unique(torch.where(is_loop, num_nodes**2, key),
                              return_inverse=True)
    num_pairs = key.numel() - int(is_loop.any())
    key = key[:num_pairs]
    total = weight.new_zeros(num_pairs + 1).index_add(0, place, weight)[
        :num_pairs]
    total = total / total.max().clamp(min=torch.finfo(dtype).tiny) if (
        num_pairs > 0) else total
    # The mean is weighted, too:
    mean = total.square().sum() / total.sum().clamp(min=1)
    total = total / torch.where(mean > 0, mean, 1.0)
    return Pairs(key // max(num_nodes, 1), key % max(num_nodes, 1),
                 total), place


def chance_weights(x: Tensor, edges: Edges, groups: OneGraph,
                   steps: int) -> tuple[Tensor, list[float]]:
    r"""Returns the probability that each edge is not there by chance, and a
    bound of the share of chance edges per graph left unchanged.
    """
    out = torch.ones_like(edges.row, dtype=x.dtype)
    unsure = []
    for features, part, some in groups.graphs(x, edges):
        pairs, place = to_pairs(part, features.size(0), x.dtype)
        comparisons = find_chance(features, pairs, steps)
        found = next(comparisons)
        most = min(1.0, found.share + sampling_error(pairs))
        if most >= NOTHING_TO_SAY:
            unsure.append(most)
            continue
        last = [found, *comparisons][-1]
        out[some] = torch.cat([last.weight, out.new_ones(1)])[place]
    return out, unsure


def sampling_error(pairs: Pairs) -> float:
    r"""The sampling error of the share, by the effective number of edges."""
    weight = pairs.weight.double()
    count = float(weight.sum()**2 / weight.square().sum().clamp(min=1e-300))
    return 2 / math.sqrt(count) if count > 0 else 0.0


def find_chance(x: Tensor, pairs: Pairs, steps: int) -> Iterator[Chance]:
    r"""Compares features, then neighborhood sums :obj:`steps` times."""
    num_nodes, num_pairs = x.size(0), pairs.i.numel()
    u = centred_directions(x)
    random = random_pairs(num_nodes, x.device)
    numbers = torch.arange(num_pairs, device=x.device)
    order = CSR.from_edges(Edges(
        torch.cat([pairs.i, pairs.j]), torch.cat([pairs.j, pairs.i]),
        torch.cat([numbers, numbers])), num_nodes)
    bar = tqdm(total=(steps + 1) * (num_pairs + random[0].numel()), delay=3,
               desc='Chance edges', unit='pair', unit_scale=True)
    with bar:
        found = _compare(u, u, pairs, torch.zeros_like(pairs.weight), random,
                         bar)
        yield found
        for _ in range(steps):
            weight = found.weight * pairs.weight
            total = u + CSR(order.rowptr, order.col,
                            weight[order.value]).product(u)
            found = _compare(total, u, pairs, weight, random, bar)
            yield found


def centred_directions(x: Tensor) -> Tensor:
    r"""Unit vectors minus their mean; zero or non-finite rows become zero."""
    top = x.abs().amax(-1, keepdim=True) if x.size(-1) > 0 else x.sum(
        -1, keepdim=True)
    is_there = (top > 0) & top.isfinite()
    x = torch.where(is_there, x / torch.where(is_there, top, 1.0), 0.0)
    x = torch.nn.functional.normalize(x, dim=-1)
    x = torch.where(is_there, x - x.sum(0) / is_there.sum().clamp(min=1), 0.0)
    # Equal rows leave rounding noise:
    is_noise = row_dot(x, x) < 64 * torch.finfo(x.dtype).eps**2 * x.size(1)
    return x.masked_fill_(is_noise.unsqueeze(-1), 0.0)


def random_pairs(num_nodes: int,
                 device: torch.device) -> tuple[Tensor, Tensor]:
    r"""All pairs of nodes if few, else a fixed random sample."""
    if num_nodes * (num_nodes - 1) // 2 <= RANDOM_PAIRS:
        i, j = torch.triu_indices(num_nodes, num_nodes, 1, device=device)
        return i, j
    generator = torch.Generator('cpu').manual_seed(0)
    i = torch.randint(num_nodes, (RANDOM_PAIRS, ), generator=generator,
                      device='cpu')
    step = torch.randint(1, num_nodes, (RANDOM_PAIRS, ), generator=generator,
                         device='cpu')
    return i.to(device), ((i + step) % num_nodes).to(device)


def _compare(total: Tensor, u: Tensor, pairs: Pairs, weight: Tensor,
             random: tuple[Tensor, Tensor], bar: tqdm) -> Chance:
    similarity = _similarity(total, u, pairs.i, pairs.j, weight, bar)
    of_random = _similarity(total, u, *random, None, bar)
    share, weight = posterior(similarity, pairs.weight, of_random)
    return Chance(share, weight, similarity, of_random)


def _similarity(total: Tensor, u: Tensor, i: Tensor, j: Tensor,
                weight: Tensor | None, bar: tqdm) -> Tensor:
    r"""Cosines of :obj:`total`, leaving out what the pair's own edge adds."""
    out = torch.empty(i.numel(), dtype=u.dtype, device=u.device)
    for some in blocks(i.numel(), u.size(1)):
        a = total.index_select(0, i[some])
        b = total.index_select(0, j[some])
        length = a.norm(dim=-1) * b.norm(dim=-1)
        least = 1e-5 * length
        if weight is not None:
            w = weight[some].unsqueeze(-1)
            a.addcmul_(w, u.index_select(0, j[some]), value=-1)
            b.addcmul_(w, u.index_select(0, i[some]), value=-1)
            length = a.norm(dim=-1) * b.norm(dim=-1)
        # Zero vectors and rounding noise have no direction:
        known = length > least
        out[some] = torch.where(known, (a * b).sum(-1) / torch.where(
            known, length, 1.0), 0.0)
        bar.update(out[some].numel())
    return out


def posterior(similarity: Tensor, weight: Tensor,
              of_random: Tensor) -> tuple[float, Tensor]:
    r"""The share of chance edges, and one minus the local false discovery rate
    of each edge.
    """
    if float(weight.sum()) == 0 or of_random.numel() == 0:
        return 0.0, torch.ones_like(similarity)
    level, of_edges = _histogram(similarity, weight)
    _, of_pairs = _histogram(of_random, torch.ones_like(of_random))
    # The median of the random pairs:
    middle = int(torch.searchsorted(of_pairs.cumsum(0),
                                    of_random.numel() / 2))
    of_edges = of_edges / of_edges.sum()
    of_pairs = of_pairs / of_random.numel()
    share = min(1.0, float(of_edges[:middle + 1].sum()
                           / of_pairs[:middle + 1].sum()))
    by_chance = share * _falling_ratio(of_pairs, of_edges)
    return share, (1 - by_chance).clamp(0, 1)[level].to(
        weight.device, weight.dtype)


def _histogram(similarity: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    r"""The level of each value, and the weight of each level."""
    level = ((similarity.clamp(-1, 1) + 1) * LEVELS).round().long().cpu()
    return level, torch.bincount(level, weight.double().cpu(), 2 * LEVELS + 1)


def _falling_ratio(above: Tensor, below: Tensor) -> Tensor:
    r"""The ratio of two histograms, made non-increasing by pooling levels."""
    there = (above + below).nonzero().view(-1)
    pools: list[tuple[float, float, int]] = []
    for a, b in zip(above[there].tolist(), below[there].tolist()):
        count = 1
        while pools and pools[-1][0] * b <= a * pools[-1][1]:
            a, b, count = (a + pools[-1][0], b + pools[-1][1],
                           count + pools[-1][2])
            pools.pop()
        pools.append((a, b, count))
    most = torch.finfo(above.dtype).max
    ratio = torch.tensor([a / b if b > 0 else most for a, b, _ in pools],
                         dtype=above.dtype)
    size = torch.tensor([count for _, _, count in pools])
    out = torch.zeros_like(above)
    out[there] = ratio.repeat_interleave(size)
    return out
