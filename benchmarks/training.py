"""What the baselines share: one result type and one training loop."""
from collections.abc import Callable
from copy import copy, deepcopy
from dataclasses import dataclass, field
from functools import partial, wraps
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
    """Keeps the last results of ``function(data, **settings)``, a step that
    many configurations share. What it returns is not to be changed, and
    depends on the edges, the labels and the settings, or on features that
    belong to the edges.
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


# Features ####################################################################


def sparse_features(data: Data, density: float = 0.2) -> Data:
    """Returns the graph with features as :class:`CSR` where that pays:
    features denser than ``density`` (images) become a plain matrix.
    """
    x = data.x
    data = copy(data)
    data.num_nodes = x.size(0)
    if x.layout != torch.strided or int((x != 0).sum()) <= (
            density * x.numel()):
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
    if not training or p == 0:
        return x
    if isinstance(x, CSR):
        return CSR(x.layout, drop(x.value, p))
    if x.is_sparse:
        return torch.sparse_coo_tensor(
            x.indices(), drop(x.values(), p), x.shape, is_coalesced=True,
            check_invariants=False)
    return F.dropout(x, p) if x.requires_grad else drop(x, p)


def to_scipy(x: Tensor) -> sp.csr_matrix:
    """Returns dense or sparse features as a SciPy matrix in double."""
    return sp.csr_matrix(x.to_dense().double().numpy())


# Classes #####################################################################


def count_classes(y: Tensor) -> int:
    """Returns the number of classes, by which models are as wide."""
    count = int(y.max()) + 1
    if not 0 < count <= y.numel():
        raise ValueError(f"'y' has a largest label of {count - 1} for "
                         f'{y.numel()} nodes; number the classes from 0 on, '
                         f"e.g. by 'y.unique(return_inverse=True)'")
    return count


def sizes(data: Data, hidden_channels: int) -> tuple[int, int, int]:
    """Returns the widths of a network: features, hidden, classes."""
    return data.x.size(1), hidden_channels, count_classes(data.y)


def known_labels(data: Data) -> tuple[np.ndarray, np.ndarray]:
    """Returns the training labels as rows of the identity, all other rows
    zero, and which nodes have one.
    """
    Y = np.eye(count_classes(data.y))[data.y.numpy()]
    labelled = data.train_mask.numpy()
    return Y * labelled[:, None], labelled


def classify(z: Tensor, data: Data, C: float) -> Tensor:
    """Returns the log-probabilities of a logistic regression on ``z``."""
    from sklearn.linear_model import LogisticRegression
    points, train = z.numpy(), data.train_mask
    model = LogisticRegression(C=C, max_iter=1000)
    model.fit(points[train], data.y[train])
    return torch.from_numpy(model.predict_log_proba(points)).float()


# Graphs ######################################################################


def weights_of(data: Data) -> dict[str, Tensor]:
    """Returns the weights of the edges by their name, if there are any."""
    edge_weight = getattr(data, 'edge_weight', None)
    return {} if edge_weight is None else {'edge_weight': edge_weight}


def adjacency(data: Data) -> sp.csr_matrix:
    """Returns the graph as a binary symmetric matrix without self-loops."""
    row, col = data.edge_index[:, data.edge_index[0] != data.edge_index[1]]
    A = sp.csr_matrix((np.ones(row.numel()), (row, col)),
                      shape=(data.num_nodes, data.num_nodes))
    return A.maximum(A.T).sign()


def normalized(A: sp.csr_matrix) -> sp.csr_matrix:
    """Returns D^-½ A D^-½, zero where a node has no edge."""
    degree = np.asarray(A.sum(axis=1)).ravel()
    scale = sp.diags(np.where(degree > 0, degree, np.inf)**-0.5)
    return (scale @ A @ scale).tocsr()


# Training ####################################################################


def decay_on(layer: Module, model: Module, weight_decay: float,
             **adam: Any) -> list[dict[str, Any]]:
    """Returns parameter groups with weight decay on a part of a model, and
    with other options of Adam on all of it.
    """
    inner = list(layer.parameters())
    ids = {id(p) for p in inner}
    rest = [p for p in model.parameters() if id(p) not in ids]
    return [dict(params=inner, weight_decay=weight_decay, **adam),
            dict(params=rest, **adam)]


def fit(model: Module, data: Data, *, lr: float = 0.01,
        weight_decay: float = 5e-4, epochs: int = 200, patience: int = 10,
        params: list[dict[str, Any]] | None = None,
        penalty: Callable[[], Tensor] | None = None,
        by_accuracy: bool = False) -> Run:
    """Trains a model on the whole graph and returns its best outputs, and
    the training and validation loss of each epoch.

    Adam on the cross-entropy of the training nodes; stops after ``patience``
    epochs without a lower validation loss and goes back to the weights of
    the lowest. Without patience there is no validation, and the weights are
    those of the last epoch.

    The model is called as ``model(x, edge_index)``, and with ``edge_weight``
    by name if the graph has one, and returns logits. Its first child with
    parameters has weight decay, unless ``params`` are Adam's groups. What
    ``penalty`` returns is added to the loss. The best epoch may be that of the
    highest validation accuracy, and of equal ones that of the lowest loss.
    """
    if params is None:
        first = next(c for c in model.children() if [*c.parameters()])
        params = decay_on(first, model, weight_decay)
    optimizer = torch.optim.Adam(params, lr=lr)
    call = partial(model, data.x, data.edge_index, **weights_of(data))

    def predict() -> Tensor:
        model.eval()
        with torch.no_grad():
            return call().log_softmax(dim=-1)

    y, train = data.y, data.train_mask
    best: tuple[float, ...] = (float('inf'),)
    state, best_epoch, epoch, losses = None, 0, 0, []
    for epoch in range(1, epochs + 1):
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(call()[train], y[train])
        if penalty is not None:
            loss = loss + penalty()
        loss.backward()
        optimizer.step()
        if patience == 0:
            continue

        out, target = predict()[data.val_mask], y[data.val_mask]
        score = float(F.nll_loss(out, target)),
        losses.append((loss.item(), *score))
        if by_accuracy:
            score = float((out.argmax(dim=-1) != target).sum()), *score
        if score < best:
            best, best_epoch = score, epoch
            state = deepcopy(model.state_dict())
        elif epoch - best_epoch >= patience:
            break

    if state is not None:
        model.load_state_dict(state)
    return Run(predict(), epoch,
               {'val_loss': best[-1], 'best_epoch': best_epoch}, model, losses)
