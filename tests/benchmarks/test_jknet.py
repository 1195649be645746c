import pytest
import torch
from torch_geometric.data import Data

from benchmarks.baselines import jknet
from benchmarks.baselines.jknet import Net
from benchmarks.training import Run

# 0 - 1 - 2; P of A + I
EDGES = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
A = torch.tensor([[1.0, 1, 0], [1, 1, 1], [0, 1, 1]])
P = A / torch.outer(*[A.sum(dim=1).sqrt()] * 2)


@pytest.mark.parametrize('mode', ['cat', 'max'])
def test_network_is_the_formula(mode):
    torch.manual_seed(0)
    model = Net(4, 5, 2, num_layers=3, mode=mode, p=0.5).eval()
    x = torch.randn(3, 4)
    with torch.no_grad():
        h, hs = x, []
        for conv in model.convs:
            h = (P @ h @ conv.lin.weight.t() + conv.bias).relu()
            hs.append(h)
        joined = (torch.cat(hs, dim=1) if mode == 'cat' else
                  torch.stack(hs).amax(dim=0))
        expected = P @ joined @ model.last.lin.weight.t() + model.last.bias
        assert torch.allclose(model(x, EDGES), expected, atol=1e-5)


def test_weight_decay_is_on_the_first_layer(monkeypatch):
    groups = []

    def fit(model, data, *, params, **_):
        groups.extend([p.shape for p in g['params']] for g in params)
        decays = [g.get('weight_decay', 0) for g in params]
        assert decays == [0.25, 0]
        return Run(torch.zeros(3, 2))

    monkeypatch.setattr(jknet, 'fit', fit)
    data = Data(x=torch.rand(3, 4), y=torch.tensor([0, 1, 0]),
                edge_index=EDGES)
    jknet.run(data, 0, num_layers=2, hidden_channels=5, weight_decay=0.25)
    first, rest = ([tuple(s) for s in group] for group in groups)
    assert sorted(first) == [(5,), (5, 4)]
    assert sorted(rest) == [(2,), (2, 10), (5,), (5, 5)]
