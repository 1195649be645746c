import pytest
import torch
from torch_geometric.data import Data

from benchmarks.baselines.gin import Net, run

# 0 - 1 - 2
EDGES = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])


def normalize(x):
    return (x - x.mean(dim=0)) / (x.var(dim=0, unbiased=False) + 1e-5).sqrt()


def test_first_layer_by_hand():
    # Of 1, 2, 6 and eps = 1: 2 + 2, 4 + 1 + 6, 12 + 2, times the weight 0.5.
    model = Net(1, 1, 2, p=0.0).train()
    torch.nn.init.constant_(model.lin1.weight, 0.5)
    torch.nn.init.ones_(model.conv1.eps)
    lin = model.conv1.nn[2]
    torch.nn.init.constant_(lin.weight, 2.0)
    torch.nn.init.constant_(lin.bias, 1.0)
    x = torch.tensor([[1.0], [2.0], [6.0]])
    out = model.conv1(model.lin1(x), EDGES)
    # 2, 5.5, 7: the mean is 29 / 6, the variance 79 / 18.
    z = (torch.tensor([[2.0], [5.5], [7.0]]) - 29 / 6) / (79 / 18 + 1e-5)**0.5
    assert torch.allclose(out, 2 * z.relu() + 1, atol=1e-5)


@pytest.mark.parametrize('norm_last', [False, True])
def test_network_is_the_formula(norm_last):
    torch.manual_seed(0)
    model = Net(4, 5, 2, p=0.0, norm_last=norm_last).train()
    x = torch.rand(3, 4)
    A = torch.tensor([[0.0, 1, 0], [1, 0, 1], [0, 1, 0]])
    with torch.no_grad():
        model.conv1.eps.fill_(0.3)
        model.conv2.eps.fill_(-0.2)
        # Sums first, as in the paper:
        h = (1.3 * x + A @ x) @ model.lin1.weight.t()
        h = model.conv1.nn[2](normalize(h).relu()).relu()
        h = (0.8 * h + A @ h) @ model.lin2.weight.t()
        h = normalize(h) if norm_last else h
        expected = model.conv2.nn[2](h.relu())
        assert torch.allclose(model(x, EDGES), expected, atol=1e-5)


def test_features_are_taken_as_they_are():
    # Values count, not only where they are: TF-IDF is not made binary.
    torch.manual_seed(0)
    node = torch.arange(6)
    x = torch.rand(6, 3)
    data = Data(x=x, y=node % 2, train_mask=node < 2, val_mask=node >= 4,
                edge_index=torch.stack([node, node.roll(1)]))
    other = data.clone()
    other.x = torch.ones(6, 3)
    outs = [run(d, 0, epochs=2).logits for d in [data, other]]
    assert not torch.allclose(*outs)
