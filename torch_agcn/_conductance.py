r"""How well edges conduct: weights under which chance edges hardly count."""
import torch
from torch import Tensor
from tqdm import tqdm

from torch_agcn._edges import Edges, with_self_loops
from torch_agcn._energy import blocks
from torch_agcn._graph import Laplacian
from torch_agcn._groups import OneGraph
from torch_agcn._spmm import CSR


def conductances(x: Tensor, edges: Edges, groups: OneGraph, beta: float,
                 steps: int) -> Tensor:
    r"""The conductance :math:`\exp(-\beta s_{ij}^2)` of each edge on features
    that were smoothed :obj:`steps` times with the conductances before.
    """
    bar = tqdm(total=(steps + 1) * edges.row.numel(), delay=3,
               desc='Anisotropic weights', unit='edge', unit_scale=True)
    with bar:
        out = _conductance(x, edges, groups, beta, bar)
        for _ in range(steps):
            weight = out if edges.weight is None else out * edges.weight
            x = smoothed(x, edges._replace(weight=weight))
            out = _conductance(x, edges, groups, beta, bar)
    return out


def smoothed(x: Tensor, edges: Edges) -> Tensor:
    r"""The product :math:`\mathbf{P} \mathbf{X}`."""
    num_nodes = x.size(0)
    edges = with_self_loops(edges, num_nodes, 1.0, x.dtype)
    return Laplacian(CSR.from_edges(edges, num_nodes), x.dtype).P(x)


def directions(x: Tensor) -> Tensor:
    r"""Rows of length one; zero where they are zero or not finite."""
    top = x.abs().amax(-1, keepdim=True) if x.size(-1) > 0 else x.sum(
        -1, keepdim=True)
    is_there = (top > 0) & top.isfinite()
    x = torch.where(is_there, x / torch.where(is_there, top, 1.0), 0.0)
    return torch.nn.functional.normalize(x, dim=-1)


def _conductance(x: Tensor, edges: Edges, groups: OneGraph, beta: float,
                 bar: tqdm) -> Tensor:
    u = directions(x)
    # Twice the mean squared distance from the mean is what two nodes that
    # have nothing to do with each other are apart on average:
    square = (u - groups.rows(groups.mean(u))).square().sum(-1, keepdim=True)
    spread = 2 * groups.mean(square).squeeze(-1)
    distance = torch.empty(edges.row.numel(), dtype=u.dtype, device=u.device)
    for some in blocks(edges.row.numel(), u.size(1)):
        row, col = edges.row[some], edges.col[some]
        difference = u.index_select(0, row).sub_(u.index_select(0, col))
        distance[some] = difference.square_().sum(-1)
        bar.update(row.numel())
    apart = groups.of_edges(edges.row).numbers(spread).view(-1)
    # Where all nodes are alike, features say nothing:
    s = torch.where(apart > 0, distance / torch.where(apart > 0, apart, 1.0),
                    0.0)
    return torch.exp(-beta * s * s)
