r"""Planetoid: a graph embedding that knows the labels, and the features.

Yang, Cohen and Salakhutdinov, `"Revisiting Semi-Supervised Learning with
Graph Embeddings" <https://arxiv.org/abs/1603.08861>`_ (2016).

Planetoid-T gives every node a free embedding :math:`\mathbf{e}_i`,
Planetoid-I the embedding :math:`\mathbf{e}_i = \mathbf{W} \mathbf{x}_i`. It
learns to tell contexts, :math:`\gamma = 1`, from noise, :math:`\gamma = -1`,
by :math:`-\log \sigma(\gamma \, \mathbf{e}_i^{\top} \mathbf{v}_c)`. A
context :math:`c` is a node of the same random walk or of the same label.

The class comes from a softmax over :math:`[\mathbf{h}(\mathbf{x}_i),
\mathbf{h}(\mathbf{e}_i)]`; both hidden layers are class probabilities with a
cross-entropy of their own, as in the authors' program. The embedding is not
trained further by the classes: a free embedding learns the labelled nodes by
heart, and the validation accuracy falls.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Linear, Module, Parameter
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.utils import sort_edge_index

from benchmarks.baselines.deepwalk import random_walk, window_mask
from benchmarks.sparse import row_pointer
from benchmarks.training import (
    Run,
    count_classes,
    dropout,
    fit,
    remember,
    sparse_features,
)


def sample_context(
    size: int,
    indptr: Tensor,
    indices: Tensor,
    label: Tensor,
    labelled: Tensor,
    *,
    graph_ratio: float,
    positive_ratio: float,
    walk_length: int,
    window: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Draws nodes, contexts and whether these are real (the paper's alg. 1).

    Args:
        size: The number of samples.
        indptr: The graph's CSR row pointer.
        indices: The graph's CSR column indices.
        label: The labels of the nodes ``labelled``.
        labelled: The nodes with a label.
        graph_ratio: The share of samples from walks, the rest from labels.
        positive_ratio: The share of real contexts, the rest is noise.
        walk_length: The number of nodes of a walk.
        window: The largest distance of two nodes in a walk.
    """
    N = indptr.numel() - 1
    gamma = torch.rand(size) < positive_ratio
    num_walks = int((torch.rand(size) < graph_ratio).sum())
    real, real_label = gamma[:num_walks], gamma[num_walks:]

    walk = random_walk(indptr, indices, torch.randint(N, (num_walks,)),
                       walk_length)
    j, k = window_mask(walk_length, window).nonzero().t()
    pair = torch.randint(j.numel(), (num_walks,))
    node = walk.gather(1, j[pair, None]).squeeze(1)
    near = walk.gather(1, k[pair, None]).squeeze(1)
    context = torch.where(real, near, torch.randint(N, (num_walks,)))

    # The labelled in the order of their classes: class c has the places
    # start[c], ..., start[c] + count[c] - 1, all others another label.
    label, order = label.sort()
    count = label.bincount()
    start = count.cumsum(0) - count
    first = torch.randint(label.numel(), real_label.shape)
    n, at = count[label[first]], start[label[first]]
    same = at + (torch.rand(n.shape) * n).long()
    other = (torch.rand(n.shape) * (label.numel() - n)).long()
    other = torch.where(other >= at, other + n, other)
    second = torch.where(real_label, same, other)
    node = torch.cat([node, labelled[order[first]]])
    context = torch.cat([context, labelled[order[second]]])
    return node, context, gamma


def context_loss(e: Tensor, v: Tensor, gamma: Tensor) -> Tensor:
    """Returns the mean of -log σ(± eᵀv)."""
    score = (e * v).sum(dim=-1)
    return F.softplus(torch.where(gamma, -score, score)).mean()


@remember
def embed(
    data: Data,
    *,
    seed: int,
    train: tuple[int, ...],
    inductive: bool,
    dim: int,
    samples: int,
    label_steps: int,
    graph_steps: int,
    lr: float,
    scale: float,
    graph_ratio: float,
    **settings: Any,
) -> Tensor:
    """Returns the embedding of every node, [N, dim].

    Label contexts come first and alone: they give the labelled nodes a
    direction for each class, which graph contexts then carry to the others.
    For the same reason it is plain gradient descent from small values; Adam
    would blow up the random ones. ``train`` are the labelled nodes.
    """
    seed_everything(seed)
    N = data.num_nodes
    row, indices = sort_edge_index(data.edge_index)
    indptr = row_pointer(row, N)
    labelled = torch.tensor(train)
    rows = data.x.size(1) if inductive else N
    W = Parameter(torch.empty(rows, dim).uniform_(-0.5, 0.5) / dim)
    v = Parameter(torch.zeros(N, dim))
    optimizer = torch.optim.SGD([W, v], lr=lr)
    for step in range(label_steps + graph_steps):
        node, context, gamma = sample_context(
            samples * N, indptr, indices, data.y[labelled], labelled,
            graph_ratio=graph_ratio if step >= label_steps else 0.0,
            **settings)
        e = scale * (data.x @ W) if inductive else W
        loss = context_loss(F.embedding(node, e), F.embedding(context, v),
                            gamma)
        optimizer.zero_grad()
        loss.backward()
        if not inductive:
            # The rate is made for nodes that are met as often as all others.
            # Labelled ones are met far more often where labels are few, and
            # would blow up: no step of a node is longer than one.
            for table in [W, v]:
                length = lr * table.grad.norm(dim=1, keepdim=True)
                table.grad /= length.clamp(min=1)
        optimizer.step()
    return (scale * (data.x @ W) if inductive else W).detach()


class Planetoid(Module):
    """The classifier on the features and a given embedding ``e``."""

    def __init__(self, e: Tensor, in_channels: int, out_channels: int,
                 scale: float, p: float) -> None:
        super().__init__()
        self.lin_x = Linear(in_channels, out_channels)
        self.lin_e = Linear(e.size(1), out_channels)
        self.lin = Linear(2 * out_channels, out_channels)
        self.e, self.scale, self.p = e, scale, p

    def hidden(self, x: Any) -> tuple[Tensor, Tensor]:
        """Returns the logits of both hidden layers."""
        x = dropout(x, self.p, self.training)
        h = self.scale * (x @ self.lin_x.weight.t()) + self.lin_x.bias
        return h, self.lin_e(self.e)

    def forward(self, x: Any, edge_index: Tensor) -> Tensor:
        """Returns the logits; ``edge_index`` is not looked at."""
        hidden = [h.softmax(dim=-1) for h in self.hidden(x)]
        return self.lin(torch.cat(hidden, dim=-1))


def run(
    data: Data,
    seed: int,
    *,
    inductive: bool = False,
    dim: int = 50,
    walk_length: int = 10,
    window: int = 3,
    graph_ratio: float = 5 / 6,
    positive_ratio: float = 1 / 2,
    samples: int = 4,
    label_steps: int = 200,
    graph_steps: int = 400,
    context_lr: float = 0.08,
    inductive_lr: float = 30.0,
    scale: float = 30.0,
    p: float = 0.0,
    lr: float = 0.01,
    weight_decay: float = 5e-3,
    epochs: int = 500,
    patience: int = 50,
) -> Run:
    """Trains the embedding, then the classifier.

    Args:
        data: The graph.
        seed: The seed of everything random.
        inductive: Planetoid-I in place of Planetoid-T.
        dim: The size of the embedding.
        walk_length: The number of nodes of a walk.
        window: The largest distance of two nodes in a walk.
        graph_ratio: The share of samples from walks, the rest from labels.
        positive_ratio: The share of real contexts, the rest is noise.
        samples: Samples per node in each step.
        label_steps: Steps with label contexts only.
        graph_steps: Steps with both kinds of contexts.
        context_lr: Planetoid-T's learning rate of each node's embedding.
        inductive_lr: Planetoid-I's learning rate of the embedding's weights,
            which all nodes share.
        scale: A factor on the features, whose rows sum to one: without it
            the classifier learns from the embedding alone.
        p: Dropout of the features.
        lr: The learning rate of the classifier.
        weight_decay: Weight decay of the hidden layer on the features.
        epochs: The largest number of epochs of the classifier.
        patience: Epochs without a lower validation loss before the stop.
    """
    data = sparse_features(data)
    x, y, train = data.x, data.y, data.train_mask
    num_classes = count_classes(y)
    e = embed(data, seed=seed, train=tuple(train.nonzero().flatten().tolist()),
              inductive=inductive, dim=dim, samples=samples,
              label_steps=label_steps, graph_steps=graph_steps,
              lr=inductive_lr if inductive else context_lr * data.num_nodes,
              scale=scale if inductive else 1.0,
              graph_ratio=graph_ratio, positive_ratio=positive_ratio,
              walk_length=walk_length, window=window)
    seed_everything(seed)
    model = Planetoid(e, x.size(1), num_classes, scale, p)

    def penalty() -> Tensor:
        return sum(F.cross_entropy(h[train], y[train])
                   for h in model.hidden(x))

    return fit(model, data, lr=lr, weight_decay=weight_decay, epochs=epochs,
               patience=patience, penalty=penalty)
