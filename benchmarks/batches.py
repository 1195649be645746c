r"""What experiments with training loops of their own share."""
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Identity, Module
from torch_geometric.data import Data
from torch_geometric.utils import index_to_mask

from benchmarks import settings
from benchmarks.baselines.agcn import Hops, Net
from benchmarks.runner import as_json
from benchmarks.training import count_classes, decay_on
from torch_agcn import AGCNConv
from torch_agcn.loader import MixedBatchSampler

STEPS_PER_EPOCH = 3


class Task(NamedTuple):
    r"""One run. ``settings`` are all of them, as JSON."""

    method: str
    dataset: str
    seed: int
    settings: str


def settings_of(method: str, dataset: str, quick: bool = False) -> str:
    r"""Those of Table 1, and what belongs to batches."""
    names = ['head', 'beta', 'alpha', 'energy', 'residual', 'num_hops',
             'hidden_channels', 'p', 'lr', 'weight_decay']
    known = json.loads(settings.settings_of(method, dataset))
    own = {name: known[name] for name in names}
    if method == 'agcn':
        own['num_hops'] = 4
    return as_json(
        **own, steps=15 if quick else 300, momentum=0.1, seeds=256,
        num_neighbors=[10, 5, 5, 5] if method == 'agcn' else [10, 10],
        looked_at=9 if quick else 45)


def make_loader(data: Data, nodes: Tensor, seeds: int,
                num_neighbors: list[int]) -> Any:
    r"""Batches of nodes to train on and of others, as many as steps."""
    from torch_geometric.loader import NeighborLoader
    part = data.clone()
    part.x = data.x.to_dense()
    part.train_mask = index_to_mask(nodes, data.num_nodes)
    size = -(-nodes.numel() // STEPS_PER_EPOCH)
    return NeighborLoader(part, num_neighbors, batch_sampler=MixedBatchSampler(
        nodes, data.num_nodes, size, seeds - size))


class Sampled(Hops):
    r"""DiffusedMLP with an :class:`~torch_agcn.AGCNConv`, which may have a
    running estimate.
    """

    def __init__(self, in_channels: int, hidden_channels: int,
                 out_channels: int, p: float, momentum: float | None = None,
                 **kwargs: Any) -> None:
        super().__init__(in_channels, hidden_channels, out_channels, p,
                         **kwargs)
        self.diffusion = AGCNConv(out_channels, out_channels, cached=True,
                                  bias=False, momentum=momentum, **kwargs)
        self.diffusion.lin = Identity()


def make_model(data: Data, *, head: str, hidden_channels: int, p: float,
               **layer: Any) -> Any:
    r"""The network of Table 1."""
    sizes = data.x.size(1), hidden_channels, count_classes(data.y)
    if head == 'hops':
        return Sampled(*sizes, p, **layer)
    return Net(*sizes, p, head=head, **layer)


def make_optimizer(model: Any, lr: float,
                   weight_decay: float) -> torch.optim.Optimizer:
    r"""Adam, with weight decay of the first layer."""
    return torch.optim.Adam(decay_on(model.first(), model, weight_decay),
                            lr=lr)


def loss_of(out: Tensor, batch: Data) -> Tensor:
    r"""The mean over the nodes of a batch to train on: those with all their
    neighbors.
    """
    mask = batch.train_mask.clone()
    mask[batch.get('batch_size', mask.numel()):] = False
    loss = F.cross_entropy(out[mask], batch.y[mask], reduction='sum')
    return loss / mask.sum().clamp(min=1)  # there may be none


def train_best(model: Module, epochs: int, train: Callable[[], None],
               score: Callable[[], float]) -> tuple[int, float]:
    r"""Trains, goes back to the weights of the best validation score, and
    returns the epoch and the score.
    """
    best, best_epoch, state = -1.0, 0, {}
    for epoch in range(1, epochs + 1):
        model.train()
        train()
        model.eval()
        with torch.no_grad():
            value = score()
        if value > best:
            best, best_epoch = value, epoch
            state = {key: v.clone() for key, v in model.state_dict().items()}
    if best_epoch == 0:
        raise ValueError(f"'train_best' got no validation score that is a "
                         f'number in {epochs} epochs; lower the learning rate')
    model.load_state_dict(state)
    model.eval()
    return best_epoch, best


def accuracies(logits: Tensor, graph: Any) -> dict[str, float]:
    r"""The accuracies of validation and test, in percent."""
    hit = 100 * (logits.argmax(-1) == graph.y).double()
    return {'val_accuracy': round(float(hit[graph.val_mask].mean()), 3),
            'test_accuracy': round(float(hit[graph.test_mask].mean()), 3)}
