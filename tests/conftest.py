import pytest
import torch
from torch import Tensor

# Small tensors gain nothing from threads, and on a busy machine threads that
# wait for each other stall.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(12345)


class Dense:
    r"""The mathematics on dense float64 matrices, as plainly as it can be
    written: what everything else is measured against.
    """

    def __init__(self, num_nodes, edge_index, edge_weight=None, loops=True,
                 fill=1.0):
        if edge_weight is None:
            edge_weight = torch.ones(edge_index.size(1))
        source, target = edge_index
        # Row: who receives. Edges that stand twice weigh twice.
        A = torch.zeros(num_nodes, num_nodes, dtype=torch.double)
        for s, t, w in zip(source.tolist(), target.tolist(),
                           edge_weight.double()):
            if loops and s == t:
                A[t, t] = w  # of several loops, the last
            else:
                A[t, s] = A[t, s] + w
        if loops:
            has_loop = torch.zeros(num_nodes, dtype=torch.bool)
            has_loop[target[source == target]] = True
            A = A + torch.diag((~has_loop).double() * fill)
        self.A = A
        self.degree = A.sum(1)
        scale = self.degree.pow(-0.5)
        scale[self.degree == 0] = 0
        self.scale = scale
        self.P = scale[:, None] * A * scale[None, :]

    def total(self, H: Tensor) -> Tensor:
        difference = H[:, None] - H[None, :]
        return (self.A * difference.square().sum(-1)).sum() / 2

    def relative(self, H: Tensor) -> Tensor:
        U = self.scale[:, None] * H
        weight = (self.A.sum(0) + self.A.sum(1)) / 2
        mean = (weight[:, None] * U).sum(0) / weight.sum()
        spread = (weight[:, None] * (U - mean).square()).sum()
        return self.total(U) / spread

    def layer(self, H, W, b, beta, energy, residual, num_hops, alpha):
        start = H
        for _ in range(num_hops):
            s = self.total(H) if energy == 'total' else self.relative(H)
            g = 1 - torch.exp(-beta * s**2)
            PH = self.P @ H
            H = (H + g * (PH - H)) if residual else g * PH
            H = (1 - alpha) * H + alpha * start
        return H @ W + b


@pytest.fixture
def dense() -> type[Dense]:
    return Dense
