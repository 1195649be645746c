r"""LanczosNet: short scales by powers, long scales by Ritz vectors.

Liao et al., `"LanczosNet: Multi-Scale Deep Graph Convolutional Networks"
<https://arxiv.org/abs/1901.01484>`_ (2019).

:math:`K` Lanczos steps on :math:`\mathbf{P} = \tilde{\mathbf{D}}^{-1/2}
\tilde{\mathbf{A}} \tilde{\mathbf{D}}^{-1/2}` give Ritz values
:math:`\mathbf{R}` and vectors :math:`\mathbf{V}` with :math:`\mathbf{P}
\approx \mathbf{V} \mathbf{R} \mathbf{V}^{\top}`. A layer is

.. math::
    \mathbf{H}' = \sum_{k \in \mathrm{short}} \mathbf{P}^k \mathbf{H}
    \mathbf{W}_k + \sum_{k \in \mathrm{long}} \mathbf{V} f_k(\mathbf{R})
    \mathbf{V}^{\top} \mathbf{H} \mathbf{W}_k,

which is the paper's concatenation of all scales before one weight matrix.
The filters :math:`f_k` are the outputs of a perceptron that sees the long
powers of a Ritz value.
"""

from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn import Linear, Module, Parameter, ReLU, Sequential
from torch.nn.init import xavier_uniform_, zeros_
from torch_geometric import seed_everything
from torch_geometric.data import Data

from benchmarks.sparse import CSR
from benchmarks.training import (
    Run,
    adjacency,
    decay_on,
    drop,
    dropout,
    fit,
    normalized,
    sizes,
    sparse_features,
)


def lanczos(P: sp.csr_matrix, num_steps: int,
            rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Returns Ritz values, ascending, and Ritz vectors of ``P``.

    There are fewer than ``num_steps`` if the start vector's Krylov space
    ends before.
    """
    Q = np.zeros((P.shape[0], num_steps))
    alpha, beta = [], []
    q = rng.standard_normal(P.shape[0])
    q /= np.linalg.norm(q)
    for k in range(num_steps):
        Q[:, k] = q
        r = P @ q
        alpha.append(q @ r)
        # Against all earlier vectors, twice: rounding errors would
        # otherwise bring converged Ritz pairs back as ghosts.
        for _ in range(2):
            r -= Q[:, :k + 1] @ (Q[:, :k + 1].T @ r)
        beta.append(np.linalg.norm(r))
        if beta[-1] < 1e-8:
            break
        q = r / beta[-1]
    K = len(alpha)
    T = np.diag(alpha) + np.diag(beta[:K - 1], 1) + np.diag(beta[:K - 1], -1)
    R, B = np.linalg.eigh(T)
    return R, Q[:, :K] @ B


class LanczosConv(Module):
    """One layer."""

    def __init__(self, in_channels: int, out_channels: int,
                 short: tuple[int, ...], long: tuple[int, ...],
                 filter_channels: int) -> None:
        super().__init__()
        scales = len(short) + len(long)
        # Glorot as for the one matrix of the concatenation.
        self.weight = Parameter(torch.empty(scales * in_channels,
                                            out_channels))
        xavier_uniform_(self.weight)
        self.bias = Parameter(torch.zeros(out_channels))
        self.filter = Sequential(
            Linear(len(long), filter_channels), ReLU(),
            Linear(filter_channels, filter_channels), ReLU(),
            Linear(filter_channels, len(long)))
        # Zero biases: a Ritz value whose powers vanish starts at f = 0.
        for lin in self.filter[::2]:
            xavier_uniform_(lin.weight)
            zeros_(lin.bias)
        self.short, self.long = short, long

    def forward(self, x: Any, P: CSR, R: Tensor, V: Tensor) -> Tensor:
        """Returns the layer's output before the nonlinearity."""
        W = self.weight.view(-1, x.size(1), self.bias.numel())
        n = len(self.short)
        if isinstance(x, CSR):
            # One by one, as all at once do not fit into a processor's cache,
            # and V^T first, as Ritz vectors are fewer than channels.
            short, long = [x @ w for w in W[:n]], x.back(V).t() @ W[n:]
        else:
            *short, xW = (x @ W.transpose(0, 1).flatten(1)).split(
                [W.size(2)] * n + [W.size(2) * len(self.long)], dim=1)
            long = (V.t() @ xW).view(R.numel(), -1, W.size(2)).transpose(0, 1)

        # Horner: P (x W_1 + P (x W_2 + ...)), on the narrow side of W.
        term = dict(zip(self.short, short))
        out = torch.zeros(x.size(0), W.size(2))
        for k in range(max(self.short, default=-1), -1, -1):
            out = out + term[k] if k in term else out
            out = P @ out if k > 0 else out

        f = self.filter(torch.stack([R**k for k in self.long], dim=1))
        out = out + V @ (f.t()[:, :, None] * long).sum(dim=0)
        return out + self.bias


class LanczosNet(Module):
    """Two layers; the graph is in P and its Ritz pairs, handed over once."""

    def __init__(self, graph: tuple[CSR, Tensor, Tensor], in_channels: int,
                 hidden_channels: int, out_channels: int, p: float,
                 *scales: Any) -> None:
        super().__init__()
        self.conv1 = LanczosConv(in_channels, hidden_channels, *scales)
        self.conv2 = LanczosConv(hidden_channels, out_channels, *scales)
        self.graph, self.p = graph, p

    def forward(self, x: Any, edge_index: Tensor) -> Tensor:
        """Returns the logits; ``edge_index`` is not looked at."""
        x = dropout(x, self.p, self.training)
        x = self.conv1(x, *self.graph).relu()
        x = drop(x, self.p) if self.training else x
        return self.conv2(x, *self.graph)


def run(data: Data, seed: int, *, num_steps: int = 20,
        short: tuple[int, ...] = (1, 2, 5, 7),
        long: tuple[int, ...] = (10, 20, 30), hidden_channels: int = 64,
        filter_channels: int = 128, p: float = 0.5, lr: float = 0.01,
        weight_decay: float = 5e-4, epochs: int = 500,
        patience: int = 50) -> Run:
    """Runs Lanczos once, then trains."""
    seed_everything(seed)
    P = normalized(adjacency(data) + sp.eye(data.num_nodes))
    R, V = lanczos(P, num_steps, np.random.default_rng(seed))
    data = sparse_features(data)
    graph = (CSR.from_scipy(P), torch.from_numpy(R).float(),
             torch.from_numpy(V).float())
    model = LanczosNet(graph, *sizes(data, hidden_channels), p, tuple(short),
                       tuple(long), filter_channels)
    return fit(model, data, lr=lr, epochs=epochs, patience=patience,
               params=decay_on(model.conv1, model, weight_decay, fused=True))
