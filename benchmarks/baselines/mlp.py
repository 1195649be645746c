r"""MLP: a perceptron that does not see the graph."""
from torch import Tensor
from torch.nn import Module
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.nn import MLP

from benchmarks.baselines.layers import sparse_first
from benchmarks.training import Run, count_classes, dropout, fit


class Net(Module):
    r"""Two layers, dropout before both."""

    def __init__(self, in_channels: int, hidden_channels: int,
                 out_channels: int, p: float) -> None:
        super().__init__()
        self.mlp = sparse_first(MLP(
            [in_channels, hidden_channels, out_channels], dropout=[p, 0.0],
            norm=None))
        self.p = p

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        r"""The logits; ``edge_index`` is not looked at."""
        return self.mlp(dropout(x, self.p, self.training))


def run(
    data: Data,
    seed: int,
    *,
    hidden_channels: int = 16,
    p: float = 0.5,
    lr: float = 0.01,
    weight_decay: float = 5e-4,
    epochs: int = 500,
    patience: int = 50,
) -> Run:
    r"""Trains the perceptron on the labelled nodes."""
    seed_everything(seed)
    model = Net(data.x.size(1), hidden_channels, count_classes(data.y), p)
    params = [dict(params=model.mlp.lins[0].parameters(),
                   weight_decay=weight_decay),
              dict(params=model.mlp.lins[1].parameters())]
    return fit(model, data, lr=lr, params=params, epochs=epochs,
               patience=patience)
