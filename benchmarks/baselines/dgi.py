r"""DGI: deep graph infomax, then logistic regression.

Velickovic et al., `"Deep Graph Infomax" <https://arxiv.org/abs/1809.10341>`_
(2019). A one-layer GCN learns, without labels, to tell its outputs from those
on shuffled features, given the mean of all outputs.
"""
from copy import deepcopy

import torch
from torch import Tensor
from torch.nn import Module, Parameter, PReLU
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.nn import DeepGraphInfomax
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import to_scipy_sparse_matrix

from benchmarks.baselines.layers import weights
from benchmarks.sparse import CSR
from benchmarks.training import Run, classify, dropout, remember


class Encoder(Module):
    r"""A GCN layer on features that are multiplied with its weights already:
    to shuffle rows before the product or after it is the same.
    """

    def __init__(self, hidden_channels: int) -> None:
        super().__init__()
        self.bias = Parameter(torch.zeros(hidden_channels))
        self.act = PReLU(hidden_channels)

    def forward(self, x: Tensor, adj: CSR) -> Tensor:
        r"""The embedding of all nodes."""
        return self.act(adj @ x + self.bias)


@remember
def embed(data: Data, *, seed: int, hidden_channels: int, p: float,
          lr: float, epochs: int, patience: int) -> tuple[Tensor, int]:
    r"""Learns to embed all nodes without labels; returns the embedding, of
    mean square one, and the number of epochs.
    """
    seed_everything(seed)
    # A matrix, as messages of 512 numbers each are too large:
    adj = CSR.from_scipy(to_scipy_sparse_matrix(*gcn_norm(
        data.edge_index, num_nodes=data.num_nodes), data.num_nodes))
    lin = weights(data.x.size(1), hidden_channels)
    model = DeepGraphInfomax(
        hidden_channels, Encoder(hidden_channels),
        summary=lambda z, *_: z.mean(dim=0).sigmoid(),
        corruption=lambda x, adj: (x[torch.randperm(x.size(0))], adj))
    model.lin = lin
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    best, best_epoch, epoch, state = float('inf'), 0, 0, None
    for epoch in range(1, epochs + 1):
        optimizer.zero_grad()
        x = lin(dropout(data.x, p, training=True))
        loss = model.loss(*model(x, adj))
        loss.backward()
        optimizer.step()
        if loss < best:
            best, best_epoch = loss.item(), epoch
            state = deepcopy(model.state_dict())
        elif epoch - best_epoch >= patience:
            break

    if state is not None:
        model.load_state_dict(state)
    with torch.no_grad():
        z = model.encoder(lin(data.x), adj)
    # The features' scale depends on the data set; C should not.
    return z / z.pow(2).mean().sqrt(), epoch


def run(data: Data, seed: int, *, hidden_channels: int = 512, p: float = 0.0,
        lr: float = 0.001, epochs: int = 300, patience: int = 20,
        C: float = 1.0) -> Run:
    r"""Embeds all nodes without labels, then classifies them."""
    z, epoch = embed(data, seed=seed, hidden_channels=hidden_channels, p=p,
                     lr=lr, epochs=epochs, patience=patience)
    return Run(classify(z, data, C), epoch)
