import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv
from torch_geometric.utils import contains_self_loops, to_undirected

from benchmarks import attacks

QUICK = dict(block_size=1000, epochs=30, epochs_resampling=20)


def clusters(sparse=True, num_nodes=60):
    r"""Two classes with edges within, and features that say little."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(num_nodes) % 2
    pairs = torch.combinations(torch.arange(num_nodes)).t()
    chance = torch.where(y[pairs[0]] == y[pairs[1]], 0.15, 0.01)
    edges = torch.rand(pairs.size(1), generator=generator) < chance
    x = torch.randn(num_nodes, 8, generator=generator)
    x[torch.arange(num_nodes), y] += 1
    node = torch.arange(num_nodes)
    return Data(x=x.to_sparse().coalesce() if sparse else x, y=y,
                edge_index=to_undirected(pairs[:, edges]),
                num_nodes=num_nodes, train_mask=node < 20,
                val_mask=(node >= 20) & (node < 30), test_mask=node >= 30)


@pytest.fixture(scope='module')
def data():
    return clusters()


@pytest.fixture(scope='module')
def model(data):
    return attacks.surrogate(data, seed=0)


def changes(old, new):
    r"""The undirected edges that came and those that went."""
    old, new = ({(a, b) for a, b in e.t().tolist() if a < b}
                for e in (old, new))
    return new - old, old - new


def is_sound(edge_index, num_nodes):
    r"""Whether edges are both ways, sorted, without loops and doubles."""
    return not contains_self_loops(edge_index) and torch.equal(
        edge_index, to_undirected(edge_index, num_nodes=num_nodes))


def accuracy(model, data, edge_index):
    with torch.no_grad():
        right = model(data.x, edge_index).argmax(dim=1) == data.y
    return float(right[data.test_mask].float().mean())


@pytest.mark.parametrize('share', [0, 0.05, 0.3, 1.5])
def test_add_random(data, share):
    args = data.edge_index, data.num_nodes, share
    out = attacks.add_random(*args, seed=1)
    assert is_sound(out, data.num_nodes)
    came, went = changes(data.edge_index, out)
    assert len(came) == round(share * data.num_edges / 2) and not went
    assert torch.equal(out, attacks.add_random(*args, seed=1))
    assert torch.equal(out, attacks.add_random(*args, seed=2)) == (share == 0)


@pytest.mark.parametrize('share', [0, 0.05, 0.3, 1])
def test_dice(data, share):
    args = data.edge_index, data.y, share
    out = attacks.dice(*args, seed=1)
    assert is_sound(out, data.num_nodes)
    came, went = changes(data.edge_index, out)
    assert len(came) + len(went) == round(share * data.num_edges / 2)
    assert all(data.y[a] != data.y[b] for a, b in came)
    assert all(data.y[a] == data.y[b] for a, b in went)
    if share >= 0.3:
        assert 0.5 < len(came) / len(went) < 2
    assert torch.equal(out, attacks.dice(*args, seed=1))
    assert torch.equal(out, attacks.dice(*args, seed=2)) == (share == 0)


def test_own_generator(data):
    before = torch.get_rng_state()
    attacks.add_random(data.edge_index, data.num_nodes, 0.1, seed=1)
    attacks.dice(data.edge_index, data.y, 0.1, seed=1)
    assert torch.equal(before, torch.get_rng_state())


def test_until_complete():
    path = to_undirected(torch.tensor([[0, 1, 2], [1, 2, 3]]))
    assert attacks.add_random(path, 4, 1, seed=0).size(1) == 12
    with pytest.raises(ValueError, match='3 edges to add, not 6'):
        attacks.add_random(path, 4, 2, seed=0)
    # No edge to delete, hence all are added:
    came, went = changes(path, attacks.dice(path, torch.arange(4), 1, seed=0))
    assert len(came) == 3 and not went


def test_surrogate_is_a_gcn(data, model):
    weight = torch.rand(data.num_edges)
    convs = []
    for part in [model.conv1, model.convs[0]]:
        convs.append(GCNConv(part.in_channels, part.out_channels))
        convs[-1].load_state_dict(part.state_dict())
    x = convs[0](data.x.to_dense(), data.edge_index, weight).relu()
    out = model(data.x, data.edge_index, weight)
    assert torch.allclose(out, convs[1](x, data.edge_index, weight),
                          atol=1e-5)
    assert accuracy(model, data, data.edge_index) > 0.8


@pytest.mark.parametrize('weighted', [False, True])
def test_gradient(weighted):
    data = clusters(sparse=False, num_nodes=32)
    model = attacks.surrogate(data, seed=0).double()
    factor = torch.rand(data.num_edges).double()
    seen = []

    def weigh(x, edge_index, edge_weight):
        seen.append(edge_weight)
        return factor

    if weighted:
        model = attacks.Weighted(model, weigh)
    weight = torch.rand(data.num_edges).double().requires_grad_()

    def some_logits(weight):
        return model(data.x.double(), data.edge_index, weight)[:2]

    assert torch.autograd.gradcheck(some_logits, weight)
    assert bool(seen) == weighted
    assert not any(weight.requires_grad for weight in seen)


def test_prbcd(data, model):
    share = 0.15
    out = attacks.prbcd(model, data, share, seed=0, **QUICK)
    assert is_sound(out, data.num_nodes)
    came, went = changes(data.edge_index, out)
    assert 0 < len(came) + len(went) <= round(share * data.num_edges / 2)
    noise = [accuracy(model, data, attacks.add_random(
        data.edge_index, data.num_nodes, share, seed)) for seed in range(5)]
    assert accuracy(model, data, out) < min(noise) - 0.1

    torch.rand(3)  # the state before does not matter
    again = attacks.prbcd(model, data, share, seed=0, **QUICK)
    assert torch.equal(out, again)


def test_adaptive(data, model):
    r"""An attack that knows a defense adds no edge that it would ignore."""
    def weigh(x, edge_index, edge_weight):
        assert edge_weight.min() > 0
        return ((edge_index[0] - edge_index[1]).abs() < 20).float()

    defense = attacks.Weighted(model, weigh)
    share = 0.1
    out = attacks.prbcd(defense, data, share, seed=0, **QUICK)
    assert is_sound(out, data.num_nodes)
    came, went = changes(data.edge_index, out)
    assert 0 < len(came) + len(went) <= round(share * data.num_edges / 2)
    blind = attacks.prbcd(model, data, share, seed=0, **QUICK)
    assert any(abs(a - b) >= 20 for a, b in changes(
        data.edge_index, blind)[0])
    assert accuracy(defense, data, out) < accuracy(defense, data, blind)
    assert all(abs(a - b) < 20 for a, b in came)


def test_without_weights(data, model):
    defense = attacks.Weighted(model, lambda x, e, w: torch.ones_like(w))
    assert torch.equal(defense(data.x, data.edge_index),
                       model(data.x, data.edge_index))
