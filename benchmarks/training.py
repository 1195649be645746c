"""What the baselines share: one result type and one training loop."""

from collections.abc import Callable
from copy import copy, deepcopy
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Data

from benchmarks.sparse import CSR


@dataclass
class Run:
    """The outcome of one run of one method."""

    logits: Tensor  # [N, C], log-probabilities where the method has them
    epochs: int = 0
    extra: dict[str, float] = field(default_factory=dict)
    model: Module | None = None  # what was trained, if anything was
    losses: list[tuple[float, float]] = field(default_factory=list)


def remember(function: Callable[..., Any]) -> Callable[..., Any]:
    """Keeps the last results of a step that many configurations share.

    Args:
        function: Called as ``function(data, **settings)``; what it returns
            is not to be changed, and depends on the edges, the labels and
            the settings, or on features that belong to the edges.
    """
    kept: dict[Any, Any] = {}

    @wraps(function)
    def call(data: Data, **settings: Any) -> Any:
        y = getattr(data, 'y', None)
        key = (data.edge_index.numpy().tobytes(), data.num_nodes,
               None if y is None else y.numpy().tobytes(),
               tuple(sorted(settings.items())))
        if key not in kept:
            if len(kept) >= 4:
                del kept[next(iter(kept))]
            kept[key] = function(data, **settings)
        return kept[key]

    return call


def sparse_features(data: Data, density: float = 0.2) -> Data:
    """Returns the graph with features as :class:`CSR` where that pays.

    Features denser than ``density`` (images) become a plain matrix.
    """
    x = data.x
    data = copy(data)
    data.num_nodes = x.size(0)
    is_sparse = x.layout != torch.strided
    if is_sparse or int((x != 0).sum()) <= density * x.numel():
        data.x = CSR.from_tensor(x)
    return data


def drop(value: Tensor, p: float) -> Tensor:
    """Drops entries; a coin of torch's own dropout costs four times this."""
    coins = torch.rand_like(value).ge_(p)
    if value.requires_grad:
        return coins * value / (1 - p)
    return coins.mul_(value).div_(1 - p)


def dropout(x: Any, p: float, training: bool) -> Any:
    """Drops entries of a dense or a sparse matrix."""
    if isinstance(x, Tensor) and x.is_sparse:
        if not training or p == 0:
            return x
        return torch.sparse_coo_tensor(
            x.indices(), drop(x.values(), p), x.shape,
            is_coalesced=True, check_invariants=False)
    if isinstance(x, CSR):
        if not training or p == 0:
            return x
        return CSR(x.layout, drop(x.value, p))
    if training and p > 0 and not x.requires_grad:  # images
        return drop(x, p)
    return F.dropout(x, p, training)


def count_classes(y: Tensor) -> int:
    """Returns the number of classes, by which models are as wide."""
    count = int(y.max()) + 1
    if not 0 < count <= y.numel():
        raise ValueError(f"'y' has a largest label of {count - 1} for "
                         f'{y.numel()} nodes; number the classes from 0 on, '
                         f"e.g. by 'y.unique(return_inverse=True)'")
    return count


def to_scipy(x: Tensor) -> sp.csr_matrix:
    """Returns dense or sparse features as a SciPy matrix in double."""
    x = x.coalesce() if x.is_sparse else x.to_sparse_coo().coalesce()
    row, col = x.indices().numpy()
    value = x.values().numpy().astype(np.float64)
    return sp.csr_matrix((value, (row, col)), shape=tuple(x.shape))


def adjacency(data: Data) -> sp.csr_matrix:
    """Returns the graph as a binary symmetric matrix without self-loops."""
    N = data.num_nodes
    row, col = data.edge_index[:, data.edge_index[0] != data.edge_index[1]]
    A = sp.csr_matrix((np.ones(row.numel()), (row, col)), shape=(N, N))
    A = A.maximum(A.T)
    A.data[:] = 1
    return A


def fit(
    model: Module,
    data: Data,
    *,
    lr: float = 0.01,
    weight_decay: float = 5e-4,
    epochs: int = 200,
    patience: int = 10,
    params: list[dict[str, Any]] | None = None,
    penalty: Callable[[], Tensor] | None = None,
) -> Run:
    """Trains a model on the whole graph and returns its best outputs, and
    the training and validation loss of each epoch.

    Adam on the cross-entropy of the training nodes; stops after ``patience``
    epochs without a lower validation loss and goes back to the weights of
    the lowest. Without patience there is no validation, and the weights are
    those of the last epoch.

    Args:
        model: Called as ``model(x, edge_index)``, returns logits; and with
            ``edge_weight`` by name if the graph has one.
        data: The graph, with ``train_mask`` and ``val_mask``.
        lr: The learning rate.
        weight_decay: Weight decay of the first layer's parameters.
        epochs: The largest number of epochs.
        patience: Epochs without a lower validation loss before the stop, or
            zero for no validation and no stop.
        params: Adam's parameter groups, in place of ``weight_decay``.
        penalty: Called once per epoch, its value is added to the loss.
    """
    if params is None:
        layers = [c for c in model.children() if list(c.parameters())]
        first = list(layers[0].parameters())
        ids = {id(p) for p in first}
        rest = [p for p in model.parameters() if id(p) not in ids]
        params = [{'params': first, 'weight_decay': weight_decay},
                  {'params': rest}]
    optimizer = torch.optim.Adam(params, lr=lr)
    train = data.train_mask
    edge_weight = getattr(data, 'edge_weight', None)
    weights = {} if edge_weight is None else {'edge_weight': edge_weight}

    best, state, best_epoch, epoch = float('inf'), None, 0, 0
    losses = []
    for epoch in range(1, epochs + 1):
        model.train()
        optimizer.zero_grad()
        out = model(data.x, data.edge_index, **weights)
        loss = F.cross_entropy(out[train], data.y[train])
        if penalty is not None:
            loss = loss + penalty()
        loss.backward()
        optimizer.step()
        if patience == 0:
            continue

        model.eval()
        with torch.no_grad():
            out = model(data.x, data.edge_index, **weights)
            train_loss, val = float(loss), data.val_mask
            loss = F.cross_entropy(out[val], data.y[val])
        losses.append((train_loss, float(loss)))
        if loss < best:
            best, best_epoch = float(loss), epoch
            state = deepcopy(model.state_dict())
        elif epoch - best_epoch >= patience:
            break

    if state is not None:
        model.load_state_dict(state)
    model.eval()
    with torch.no_grad():
        logits = model(data.x, data.edge_index, **weights).log_softmax(dim=-1)
    return Run(logits, epoch, {'val_loss': best, 'best_epoch': best_epoch},
               model, losses)
