import math

import torch
from torch_geometric.data import Data

from benchmarks.baselines.monet import MoNetConv, coordinates

# 0 - 1 - 2, and the loops that the network adds
EDGES = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])


def test_pseudo_coordinates():
    data = Data(x=torch.rand(3, 4), edge_index=EDGES, num_nodes=3)
    edge_index, places = coordinates(data)
    degree = [2, 3, 2]
    assert edge_index.size(1) == len(places) == 7
    for (j, i), u in zip(edge_index.t().tolist(), places):
        expected = torch.tensor([degree[i]**-0.5, degree[j]**-0.5])
        assert torch.allclose(u, expected)


def test_layer_by_hand():
    # One kernel at zero, and a map to (tanh(u_1 + u_2), 0).
    conv = MoNetConv(1, 1, kernel_size=1)
    with torch.no_grad():
        conv.lin.weight.fill_(1.0)
        conv.map.weight.copy_(torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
        conv.map.bias.zero_()
        conv.mu.zero_()
        conv.sigma.fill_(0.5)
    edge_index = torch.tensor([[1, 2], [0, 0]])
    pseudo = torch.tensor([[0.5, 0.25], [0.5, 1.0]])
    out = conv(torch.tensor([[7.0], [1.0], [3.0]]), edge_index, pseudo)
    a, b = (math.exp(-0.5 * (math.tanh(u) / 0.5)**2) for u in (0.75, 1.5))
    expected = (a * 1 + b * 3) / (a + b)
    assert abs(out[0, 0].item() - expected) < 1e-4
    assert out[1:].tolist() == [[0.0], [0.0]]  # no neighbour


def test_map_is_learnt():
    torch.manual_seed(0)
    conv = MoNetConv(2, 3, kernel_size=2)
    out = conv(torch.rand(3, 2), EDGES, torch.rand(4, 2))
    out.square().sum().backward()
    for p in conv.map.parameters():
        assert p.grad.abs().sum() > 0


def test_weights_sum_to_one():
    conv = MoNetConv(4, 1, kernel_size=2)
    torch.nn.init.ones_(conv.lin.weight)
    x = torch.full((3, 4), 0.25)
    # Each kernel takes a mean of ones from the rows that sum to one:
    out = conv(x, EDGES, torch.rand(4, 2))
    assert torch.allclose(out, torch.full((3, 1), 2.0), atol=1e-5)
