r"""DeepAGCN: GCNII's layers with a gate each.

What it has more than :mod:`benchmarks.baselines.gcnii` is the gate: with
``beta=1e30`` they are the same.
"""
from typing import Any

from torch_geometric import seed_everything
from torch_geometric.data import Data

from benchmarks.baselines import gcnii
from benchmarks.baselines.agcn import add_gates
from benchmarks.baselines.layers import sparse_first
from benchmarks.training import Run, count_classes, fit
from torch_agcn import DeepAGCN


class Net(DeepAGCN):
    r"""The model of the package, with the harness's dropout."""

    forward = gcnii.Net.forward


def run(data: Data, seed: int, *, num_layers: int = 64,
        hidden_channels: int = 64, alpha: float = 0.1, theta: float = 0.5,
        num_hops: int | None = None, beta: float = 500.0,
        learn_beta: bool = False, residual: bool = True, p: float = 0.6,
        lr: float = 0.01, weight_decay: float = 0.01,
        weight_decay_linear: float = 5e-4, epochs: int = 1500,
        patience: int = 100) -> Run:
    r"""Trains the network with GCNII's weight decay; learnt gates have
    none.
    """
    seed_everything(seed)
    model: Any = Net(data.x.size(1), hidden_channels, num_layers,
                     count_classes(data.y), dropout=p, alpha=alpha,
                     theta=theta, num_hops=num_hops, beta=beta,
                     learn_beta=learn_beta, residual=residual, cached=True)
    sparse_first(model.lin_in)
    params = gcnii.groups(model, [conv.lin.weight for conv in model.convs],
                          weight_decay, weight_decay_linear)
    params.append(dict(params=[conv.raw_beta for conv in model.convs
                               if learn_beta]))
    return add_gates(fit(model, data, lr=lr, params=params, epochs=epochs,
                         patience=patience), data)
