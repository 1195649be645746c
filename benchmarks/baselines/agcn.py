r"""AGCN: the anisotropic graph convolutional network, in three readings.

Mesgaran and Ben Hamza, `"Anisotropic Graph Convolutional Network for
Semi-supervised Learning" <https://arxiv.org/abs/2010.10284>`_ (2020).

* ``head='conv'``: the paper's formula in all layers.
* ``head='linear'``: its equation (9) to the letter, which propagates once.
* ``head='hops'``: our recommended setting, :class:`~torch_agcn.DiffusedMLP`: a
  perceptron and then ``num_hops`` gated steps.
"""
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric import seed_everything
from torch_geometric.data import Data

from benchmarks.baselines.layers import sparse_first
from benchmarks.training import (
    Run,
    decay_on,
    dropout,
    fit,
    sizes,
    weights_of,
)
from torch_agcn import AGCN, DiffusedMLP, GatedDiffusion


class Net(Module):
    r"""The paper's two layers, or more, dropout before all."""

    def __init__(self, in_channels: int, hidden_channels: int,
                 out_channels: int, p: float, num_layers: int = 2,
                 **kwargs: Any) -> None:
        super().__init__()
        self.model = AGCN(in_channels, hidden_channels, num_layers,
                          out_channels, dropout=p, cached=True, **kwargs)
        sparse_first(self.model.convs[0])
        self.p = p

    def first(self) -> Module:
        r"""The layer with weight decay."""
        return self.model.convs[0]

    def forward(self, x: Tensor, edge_index: Tensor,
                **weights: Tensor) -> Tensor:
        r"""The logits."""
        return self.model(dropout(x, self.p, self.training), edge_index,
                          **weights)


class Hops(DiffusedMLP):
    r"""The model of the package, with the harness's dropout, which takes a
    quarter of the time.
    """

    def __init__(self, in_channels: int, hidden_channels: int,
                 out_channels: int, p: float, num_layers: int = 2,
                 **kwargs: Any) -> None:
        super().__init__(in_channels, hidden_channels, num_layers,
                         out_channels, p, cached=True, **kwargs)
        sparse_first(self.lins[0])

    def first(self) -> Module:
        r"""The layer with weight decay."""
        return self.lins[0]

    def forward(self, x: Tensor, edge_index: Tensor,
                **weights: Tensor) -> Tensor:
        r"""The logits."""
        for i, lin in enumerate(self.lins):
            x = x.relu() if i > 0 else x
            x = lin(dropout(x, self.dropout, self.training))
        return self.diffusion(x, edge_index, **weights) + self.bias


@torch.no_grad()
def gates(model: Module, data: Data, **weights: Tensor) -> list[float]:
    r"""The gates of all layers or hops, in order, without dropout."""
    found: list[float] = []

    def look(conv: GatedDiffusion, args: Any, kwargs: Any, _: Tensor) -> None:
        found.extend(conv.gate(*args, **kwargs).flatten().tolist())

    hooks = [m.register_forward_hook(look, with_kwargs=True)
             for m in model.modules() if isinstance(m, GatedDiffusion)]
    model.eval()(data.x, data.edge_index, **weights or weights_of(data))
    for hook in hooks:
        hook.remove()
    return found


def add_gates(run: Run, data: Data) -> Run:
    r"""A run that says the gates of its model, too."""
    run.extra.update((f'gate_{i}', gate)
                     for i, gate in enumerate(gates(run.model, data)))
    return run


def run(data: Data, seed: int, *, head: str = 'hops', num_layers: int = 2,
        beta: float = 50.0, energy: str = 'relative', residual: bool = True,
        num_hops: int = 16, alpha: float = 0.1, hidden_channels: int = 64,
        p: float = 0.5, lr: float = 0.01, weight_decay: float = 5e-3,
        epochs: int = 1000, patience: int = 100) -> Run:
    r"""Trains the network and looks at its gates."""
    seed_everything(seed)
    layer = dict(beta=beta, energy=energy, residual=residual,
                 num_hops=num_hops, alpha=alpha)
    widths = sizes(data, hidden_channels)
    if head == 'hops':
        model: Any = Hops(*widths, p, num_layers, **layer)
    else:
        model = Net(*widths, p, num_layers, head=head, **layer)
    return add_gates(fit(model, data, lr=lr, epochs=epochs, patience=patience,
                         params=decay_on(model.first(), model, weight_decay)),
                     data)
