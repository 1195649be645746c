r"""SGC: the simple graph convolution.

Wu et al., `"Simplifying Graph Convolutional Networks"
<https://arxiv.org/abs/1902.07153>`_ (2019): logistic regression on
:math:`\mathbf{P}^K \mathbf{X}`, which is propagated only once. The 100 epochs
without a stop are its authors', who chose the learning rate for them.
"""
import torch
from torch import Tensor
from torch.nn import Identity, Linear
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.nn import SGConv
from torch_geometric.utils import to_torch_csr_tensor

from benchmarks.baselines.layers import Stack
from benchmarks.training import Run, count_classes, fit


@torch.no_grad()
def propagate(data: Data, K: int) -> Tensor:
    r"""The features after K steps."""
    conv = SGConv(data.x.size(1), 1, K)
    conv.lin = Identity()
    adj = to_torch_csr_tensor(data.edge_index, size=data.num_nodes)
    return conv(data.x.to_dense(), adj)  # messages of all words are large


def run(data: Data, seed: int, *, K: int = 2, lr: float = 0.2,
        weight_decay: float = 1.3e-5, epochs: int = 100,
        patience: int = 100) -> Run:
    r"""Propagates, then trains the classifier."""
    seed_everything(seed)
    data = data.clone()
    data.x = propagate(data, K)
    lin = Linear(data.x.size(1), count_classes(data.y))
    return fit(Stack(lin, p=0.0, graph=()), data, lr=lr,
               weight_decay=weight_decay, epochs=epochs, patience=patience)
