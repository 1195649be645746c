r"""MLP: a perceptron of two layers that does not see the graph."""
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.nn import MLP

from benchmarks.baselines.layers import Stack
from benchmarks.training import Run, fit, sizes


def run(data: Data, seed: int, *, hidden_channels: int = 16, p: float = 0.5,
        lr: float = 0.01, weight_decay: float = 5e-4, epochs: int = 500,
        patience: int = 50) -> Run:
    r"""Trains the perceptron on the labelled nodes."""
    seed_everything(seed)
    mlp = MLP([*sizes(data, hidden_channels)], norm=None)
    model = Stack(*mlp.lins, p=p, graph=())
    return fit(model, data, lr=lr, weight_decay=weight_decay, epochs=epochs,
               patience=patience)
