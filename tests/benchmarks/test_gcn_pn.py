import pytest
import torch
from torch.nn import Module, Parameter
from torch_geometric.data import Data

from benchmarks.baselines.gcn_pn import Net, pair_norm, run
from benchmarks.training import fit

X = torch.tensor([[3.0, 4.0], [0.0, 2.0], [3.0, 0.0]])  # mean (2, 2)
EDGES = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])


@pytest.mark.parametrize('mode, expected', [
    # Centred: (1, 2), (-2, 0), (1, -2), of squares 5, 4, 5.
    ('PN', torch.tensor([[1.0, 2], [-2, 0], [1, -2]]) / (14 / 3)**0.5),
    ('PN-SI', torch.tensor([[1 / 5**0.5, 2 / 5**0.5], [-1.0, 0.0],
                            [1 / 5**0.5, -2 / 5**0.5]])),
    # Rows of length one, minus the mean of the rows as they were:
    ('PN-SCS', torch.tensor([[0.6, 0.8], [0.0, 1.0], [1.0, 0.0]])),
])
@pytest.mark.parametrize('scale', [1.0, 10.0])
def test_pair_norm_by_hand(mode, expected, scale):
    shift = 2.0 if mode == 'PN-SCS' else 0.0
    out = pair_norm(X, mode, scale)
    assert torch.allclose(out, scale * expected - shift, atol=1e-5)


@pytest.mark.parametrize('mode', ['PN', 'PN-SI', 'PN-SCS'])
def test_pair_norm_gradients(mode):
    x = torch.randn(4, 3, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: pair_norm(x, mode), (x,))
    x = torch.zeros(4, 3, requires_grad=True)  # rows of length zero
    pair_norm(x, mode).sum().backward()
    assert x.grad.isfinite().all()


def test_unknown_mode():
    with pytest.raises(ValueError, match='PN-SCS'):
        pair_norm(X, 'SI')


def test_network_is_the_formula():
    torch.manual_seed(0)
    x = torch.randn(3, 4)
    data = Data(x=x, edge_index=EDGES, num_nodes=3)
    model = Net(data, 5, 2, 2, 'PN-SI', 1.0, p=0.6).eval()
    A = torch.tensor([[1.0, 1, 0], [1, 1, 1], [0, 1, 1]])
    P = A / A.sum(dim=1, keepdim=True)
    first, last = model.conv1, *model.convs
    with torch.no_grad():
        h = P @ x @ first.lin.weight.t() + first.bias
        h = pair_norm(h, 'PN-SI').relu()
        expected = P @ h @ last.lin.weight.t() + last.bias
        assert torch.allclose(model(x, EDGES), expected, atol=1e-5)


class Counter(Module):
    """Returns the logits of the epoch, which it counts by its parameter."""

    def __init__(self, logits):
        super().__init__()
        self.at = Parameter(torch.tensor(-1.0))
        self.logits = logits

    def forward(self, x, edge_index):
        step = min(max(round(self.at.item()), 0), len(self.logits) - 1)
        return self.logits[step] + 0 * self.at


class Step:
    """Adds one to the counter in place of a gradient step."""

    def __init__(self, params, lr):
        self.at, = params[0]['params']

    def zero_grad(self):
        pass

    def step(self):
        self.at.data += 1


@pytest.mark.parametrize('patience, best, epochs',
                         [(3, 4, 7), (1, 2, 3), (0, 0, 7)])
def test_epoch_of_the_highest_accuracy(patience, best, epochs, monkeypatch):
    monkeypatch.setattr(torch.optim, 'Adam', Step)
    # Of two validation nodes of class 0: none is right, both by little, one
    # (with a lower loss), both by more (the best), then one again.
    rows = torch.tensor([[-1.0, -1], [0.1, 0.1], [9, -0.05], [2, 2], [5, -1],
                         [5, -1], [5, -1]])
    logits = torch.stack([rows, torch.zeros_like(rows)], dim=2)
    data = Data(x=torch.zeros(2, 1), y=torch.tensor([0, 0]),
                train_mask=torch.tensor([True, True]),
                val_mask=torch.tensor([True, True]),
                edge_index=torch.empty(2, 0, dtype=torch.long))
    model = Counter(logits)
    out = fit(model, data, epochs=7, patience=patience, by_accuracy=True,
              params=[dict(params=[model.at])])
    assert (out.extra['best_epoch'], out.epochs) == (best, epochs)
    at = best - 1 if patience else 6  # without a stop, the last
    assert torch.allclose(out.logits, logits[at].log_softmax(dim=-1))


def test_run_is_reproducible():
    torch.manual_seed(0)
    node = torch.arange(8)
    data = Data(x=torch.rand(8, 3), y=node % 2, num_nodes=8,
                edge_index=torch.stack([node, node.roll(1)]),
                train_mask=node < 4, val_mask=node >= 4)
    outs = [run(data, 0, mode='PN-SCS', epochs=5).logits for _ in range(2)]
    assert torch.equal(*outs)
