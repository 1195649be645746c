r"""DeepWalk: skip-gram on random walks, then logistic regression.

Perozzi, Al-Rfou and Skiena, `"DeepWalk: Online Learning of Social
Representations" <https://arxiv.org/abs/1403.6652>`_ (2014).

Walks go to a uniformly drawn neighbour (node2vec's :math:`p = q = 1`). Nodes
:math:`i` and :math:`j` at most ``window`` steps apart in a walk are a pair,
and the embeddings :math:`\mathbf{u}` and contexts :math:`\mathbf{v}` minimise
the mean over pairs of

.. math::
    -\log \sigma(\mathbf{u}_i^{\top} \mathbf{v}_j)
    - \sum_{k=1}^{K} \log \sigma(-\mathbf{u}_i^{\top} \mathbf{v}_k)

with :math:`K` random nodes :math:`k`. The features are not looked at. Size,
window, length and number of walks are the paper's; for large graphs the
settings have fewer walks, so that a run takes about a minute.
"""
from math import ceil
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Parameter
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.utils import sort_edge_index

from benchmarks.sparse import row_pointer
from benchmarks.training import Run, classify, remember

NEGATIVES = 10  # random nodes that the nodes of a walk share


def neighbors(data: Data) -> tuple[Tensor, Tensor]:
    """Returns the graph's CSR row pointer and column indices."""
    row, indices = sort_edge_index(data.edge_index)
    return row_pointer(row, data.num_nodes), indices


def random_walk(indptr: Tensor, indices: Tensor, start: Tensor,
                length: int) -> Tensor:
    """Returns walks of ``length`` nodes; a node without edges stays put."""
    walk = [start]
    for _ in range(length - 1):
        node = walk[-1]
        degree = indptr[node + 1] - indptr[node]
        # In double, as in single a draw may round up to the degree itself.
        step = torch.rand(node.numel(), dtype=torch.double) * degree
        position = indptr[node] + step.long()
        last = indices.numel() - 1
        walk.append(torch.where(
            degree > 0, indices[position.clamp(max=last)], node))
    return torch.stack(walk, dim=1)


def window_mask(length: int, window: int) -> Tensor:
    """Returns which positions of a walk are a pair, [length, length]."""
    position = torch.arange(length)
    distance = (position[:, None] - position).abs()
    return (distance > 0) & (distance <= window)


def skip_gram_loss(u: Tensor, v: Tensor, walk: Tensor, negative: Tensor,
                   window: int, num_negatives: int) -> Tensor:
    """Returns the mean loss over the pairs of some walks.

    The nodes of a walk share its sampled nodes ``negative``, so that all
    scores are a small matrix product per walk in place of one gather per
    pair. Their mean stands for the mean over ``num_negatives`` own draws.
    """
    mask = window_mask(walk.size(1), window).float()
    size, n = negative.shape
    # A node with more pairs meets more negatives.
    noise = (num_negatives / n * mask.sum(dim=1, keepdim=True)).expand(-1, n)
    sign = torch.cat([-torch.ones_like(mask), torch.ones_like(noise)], dim=1)
    context = rows(v, torch.cat([walk, negative], dim=1))
    score = sign * Scores.apply(rows(u, walk), context)
    weight = torch.cat([mask, noise], dim=1) / (size * mask.sum())
    return (weight * F.softplus(score)).sum()


class Scores(torch.autograd.Function):
    """Products of all rows of two matrices, for a batch of them. Torch's own
    gradient would have to be transposed; NumPy is faster on small matrices.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        """Returns the products, [batch, rows of a, rows of b]."""
        ctx.save_for_backward(a, b)
        return a @ b.transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the gradients of both."""
        a, b = (t.numpy() for t in ctx.saved_tensors)
        return (torch.from_numpy(grad.numpy() @ b),
                torch.from_numpy(grad.numpy().swapaxes(1, 2) @ a))


def rows(table: Tensor, index: Tensor) -> Tensor:
    """Returns rows as an embedding does, with a gradient that is cheaper."""
    return table.index_select(0, index.flatten()).view(*index.shape, -1)


@remember
def embed(data: Data, *, seed: int, dim: int, walk_length: int,
          walks_per_node: int, window: int, num_negatives: int,
          batch_size: int, lr: float) -> Tensor:
    """Returns the skip-gram embedding of every node, [num_nodes, dim]."""
    seed_everything(seed)
    N, graph = data.num_nodes, neighbors(data)
    u = Parameter(torch.empty(N, dim).uniform_(-0.5, 0.5) / dim)
    v = Parameter(torch.zeros(N, dim))
    optimizer = torch.optim.Adam([u, v], lr=lr, fused=True)
    starts = torch.cat([torch.randperm(N) for _ in range(walks_per_node)])
    steps = ceil(len(starts) / batch_size)
    # The walks of many steps at once take little longer than those of one.
    walks = (walk for some in starts.split(32 * batch_size) for walk in
             random_walk(*graph, some, walk_length).split(batch_size))
    for step, walk in enumerate(walks):
        for group in optimizer.param_groups:  # falls to zero, as word2vec's
            group['lr'] = lr * (1 - step / steps)
        negative = torch.randint(N, (len(walk), NEGATIVES))
        optimizer.zero_grad()
        skip_gram_loss(u, v, walk, negative, window, num_negatives).backward()
        optimizer.step()
    return u.detach()


def run(data: Data, seed: int, *, dim: int = 128, walk_length: int = 40,
        walks_per_node: int = 80, window: int = 10, num_negatives: int = 5,
        batch_size: int = 256, lr: float = 0.01, C: float = 1.0) -> Run:
    """Embeds all nodes, then classifies them from the training labels."""
    z = embed(data, seed=seed, dim=dim, walk_length=walk_length,
              walks_per_node=walks_per_node, window=window,
              num_negatives=num_negatives, batch_size=batch_size, lr=lr)
    return Run(classify(z, data, C), walks_per_node)
