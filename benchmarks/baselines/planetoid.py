r"""Planetoid: a graph embedding that knows the labels, and the features.

Yang, Cohen and Salakhutdinov, `"Revisiting Semi-Supervised Learning with
Graph Embeddings" <https://arxiv.org/abs/1603.08861>`_ (2016).

Planetoid-T and -G give every node a free embedding :math:`\mathbf{e}_i`,
Planetoid-I the embedding :math:`\mathbf{e}_i = \mathbf{W} \mathbf{x}_i`. It
learns to tell contexts, :math:`\gamma = 1`, from noise, :math:`\gamma = -1`,
by :math:`-\log \sigma(\gamma \, \mathbf{e}_i^{\top} \mathbf{v}_c)`. A
context :math:`c` is a node of the same random walk or of the same label.

The class comes from a softmax over :math:`[\mathbf{h}(\mathbf{x}_i),
\mathbf{h}(\mathbf{e}_i)]`; both hidden layers are class probabilities with a
cross-entropy of their own, as in the authors' program. Planetoid-G has no
features, and its class comes from a softmax over :math:`\mathbf{e}_i`.

As its authors do, the embedding first learns from contexts alone. Then both
losses train all parameters: each epoch takes one step on their sum, where the
authors take steps on one and the other in turn.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Linear, Module, Parameter
from torch_geometric import seed_everything
from torch_geometric.data import Data

from benchmarks.baselines.deepwalk import neighbors, random_walk, window_mask
from benchmarks.training import (
    Run,
    count_classes,
    dropout,
    fit,
    remember,
    sparse_features,
)


def sample_context(size: int, indptr: Tensor, indices: Tensor, label: Tensor,
                   labelled: Tensor, *, graph_ratio: float,
                   positive_ratio: float, walk_length: int,
                   window: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draws nodes, contexts and whether these are real (the paper's alg. 1).
    ``label`` belongs to the nodes ``labelled``.
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
def embed(data: Data, *, seed: int, train: tuple[int, ...], inductive: bool,
          dim: int, samples: int, label_steps: int, graph_steps: int,
          lr: float, scale: float, graph_ratio: float,
          **settings: Any) -> tuple[Tensor, Tensor]:
    """Returns the embedding of every node, [N, dim], or for Planetoid-I its
    weights, [F, dim], and the contexts, [N, dim].

    Label contexts come first and alone: they give the labelled nodes a
    direction for each class, which graph contexts then carry to the others.
    For the same reason it is plain gradient descent from small values; Adam
    would blow up the random ones. ``train`` are the labelled nodes.
    """
    seed_everything(seed)
    N = data.num_nodes
    indptr, indices = neighbors(data)
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
    return W.detach(), v.detach()


class Planetoid(Module):
    """The classifier, with the embedding ``W`` (or its weights if the variant
    is I) and the contexts ``v`` to start from.
    """

    def __init__(self, variant: str, W: Tensor, v: Tensor, in_channels: int,
                 out_channels: int, scale: float, p: float) -> None:
        super().__init__()
        self.lin_e = Linear(W.size(1), out_channels)
        if variant != 'G':
            self.lin_x = Linear(in_channels, out_channels)
            self.lin = Linear(2 * out_channels, out_channels)
        self.W, self.v = Parameter(W.clone()), Parameter(v.clone())
        self.variant, self.scale, self.p = variant, scale, p

    def embed(self, x: Any) -> Tensor:
        """Returns the embedding of every node."""
        return self.scale * (x @ self.W) if self.variant == 'I' else self.W

    def hidden(self, x: Any) -> list[Tensor]:
        """Returns the logits from the embedding, and from the features."""
        h = [self.lin_e(self.embed(x))]
        if self.variant != 'G':
            x = dropout(x, self.p, self.training)
            h.append(self.scale * (x @ self.lin_x.weight.t())
                     + self.lin_x.bias)
        return h

    def forward(self, x: Any, edge_index: Tensor) -> Tensor:
        """Returns the logits; ``edge_index`` is not looked at."""
        hidden = self.hidden(x)
        if self.variant == 'G':
            return hidden[0]
        return self.lin(torch.cat([h.softmax(dim=-1) for h in hidden],
                                  dim=-1))


def run(data: Data, seed: int, *, variant: str = 'T', dim: int = 50,
        walk_length: int = 10, window: int = 3, graph_ratio: float = 5 / 6,
        positive_ratio: float = 1 / 2, samples: int = 4,
        label_steps: int = 200, graph_steps: int = 400,
        context_lr: float = 0.08, inductive_lr: float = 30.0,
        scale: float = 30.0, p: float = 0.0, lr: float = 0.01,
        joint_lr: float = 0.001, context_weight: float = 1.0,
        weight_decay: float = 5e-3, epochs: int = 500,
        patience: int = 50) -> Run:
    """Trains the embedding, then both it and the classifier.

    Each step has ``samples`` contexts per node, of which ``graph_ratio`` are
    from walks, the rest from labels; ``positive_ratio`` are real. The first
    steps are with labels only. ``context_lr`` is of each node's embedding,
    ``inductive_lr`` of weights that all nodes share, ``joint_lr`` of both
    while the classifier is trained, too. ``scale`` is a factor on the
    features, whose rows sum to one: without it the classifier learns from the
    embedding alone.
    """
    if variant not in ('T', 'I', 'G'):
        raise ValueError(f"Planetoid: 'variant' must be 'T', 'I' or 'G' (got "
                         f'{variant!r})')
    data = sparse_features(data)
    x, y, train = data.x, data.y, data.train_mask
    num_classes, inductive = count_classes(y), variant == 'I'
    labelled = train.nonzero().flatten()
    sampling = {'graph_ratio': graph_ratio, 'positive_ratio': positive_ratio,
                'walk_length': walk_length, 'window': window}
    W, v = embed(data, seed=seed, train=tuple(labelled.tolist()),
                 inductive=inductive, dim=dim, samples=samples,
                 label_steps=label_steps, graph_steps=graph_steps,
                 lr=inductive_lr if inductive else context_lr * len(y),
                 scale=scale if inductive else 1.0, **sampling)
    seed_everything(seed)
    model = Planetoid(variant, W, v, x.size(1), num_classes, scale, p)
    graph = neighbors(data)

    def penalty() -> Tensor:
        node, context, gamma = sample_context(
            samples * len(y), *graph, y[labelled], labelled, **sampling)
        loss = context_weight * context_loss(
            F.embedding(node, model.embed(x)), F.embedding(context, model.v),
            gamma)
        if variant != 'G':  # where the hidden layer is the output
            loss = loss + sum(F.cross_entropy(h[train], y[train])
                              for h in model.hidden(x))
        return loss

    slow = [model.W, model.v]
    decayed = [] if variant == 'G' else list(model.lin_x.parameters())
    ids = {id(p) for p in slow + decayed}
    params = [{'params': slow, 'lr': joint_lr},
              {'params': decayed, 'weight_decay': weight_decay},
              {'params': [p for p in model.parameters() if id(p) not in ids]}]
    return fit(model, data, lr=lr, params=[g for g in params if g['params']],
               epochs=epochs, patience=patience, penalty=penalty)
