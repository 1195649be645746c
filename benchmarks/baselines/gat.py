r"""GAT: the graph attention network.

Velickovic et al., `"Graph Attention Networks"
<https://arxiv.org/abs/1710.10903>`_ (2018): neighbours are weighed by a
softmax over :math:`\mathrm{LeakyReLU}(\mathbf{a}^{\top} [\mathbf{W}
\mathbf{h}_i, \mathbf{W} \mathbf{h}_j])`, in eight heads.
"""
from torch import Tensor
from torch.nn import Module, ModuleList
from torch.nn.functional import elu
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.nn import GATConv

from benchmarks.baselines.layers import sparse_first
from benchmarks.training import Run, dropout, fit


class Net(Module):
    r"""Two layers or more; the last one takes the mean of its heads."""

    def __init__(self, in_channels: int, hidden_channels: int,
                 out_channels: int, heads: int, out_heads: int,
                 p: float, num_layers: int = 2) -> None:
        super().__init__()
        self.conv1 = sparse_first(
            GATConv(in_channels, hidden_channels, heads, dropout=p))
        width = heads * hidden_channels
        self.convs = ModuleList([
            *(GATConv(width, hidden_channels, heads, dropout=p)
              for _ in range(num_layers - 2)),
            GATConv(width, out_channels, out_heads, concat=False, dropout=p)])
        self.p = p

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        r"""The logits."""
        x = dropout(x, self.p, self.training)
        x = self.conv1(x, edge_index)
        for conv in self.convs:
            x = dropout(elu(x), self.p, self.training)
            x = conv(x, edge_index)
        return x


def run(
    data: Data,
    seed: int,
    *,
    num_layers: int = 2,
    hidden_channels: int = 8,
    heads: int = 8,
    out_heads: int = 1,
    p: float = 0.6,
    lr: float = 0.005,
    weight_decay: float = 5e-4,
    epochs: int = 1000,
    patience: int = 100,
) -> Run:
    r"""Trains the network; weight decay is on all layers, as the authors'."""
    seed_everything(seed)
    model = Net(data.x.size(1), hidden_channels, int(data.y.max()) + 1,
                heads, out_heads, p, num_layers)
    params = [dict(params=model.parameters(), weight_decay=weight_decay)]
    return fit(model, data, lr=lr, params=params, epochs=epochs,
               patience=patience)
