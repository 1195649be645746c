r"""GCN: the graph convolutional network.

Kipf and Welling, `"Semi-Supervised Classification with Graph Convolutional
Networks" <https://arxiv.org/abs/1609.02907>`_ (2017). The default of 200
epochs and a patience of ten is its authors' and the AGCN paper's, whose
formula is compared with it; ``gcn_long.yaml`` has the 500 and 50 of the other
methods.
"""
from itertools import pairwise

from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

from benchmarks.baselines.layers import Stack, by_matrix
from benchmarks.training import Run, fit, sizes


class Net(Stack):
    r"""Two layers or more."""

    def __init__(self, in_channels: int, hidden_channels: int,
                 out_channels: int, p: float, num_layers: int = 2) -> None:
        widths = [in_channels, *[hidden_channels] * (num_layers - 1),
                  out_channels]
        super().__init__(*(GCNConv(a, b, cached=True)
                           for a, b in pairwise(widths)), p=p)


def run(data: Data, seed: int, *, num_layers: int = 2,
        hidden_channels: int = 16, p: float = 0.5, lr: float = 0.01,
        weight_decay: float = 5e-4, epochs: int = 200,
        patience: int = 10) -> Run:
    r"""Trains the network."""
    seed_everything(seed)
    model = by_matrix(Net(*sizes(data, hidden_channels), p, num_layers))
    return fit(model, data, lr=lr, weight_decay=weight_decay, epochs=epochs,
               patience=patience)
