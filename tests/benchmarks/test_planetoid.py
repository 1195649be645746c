import pytest
import torch
import torch.nn.functional as F
from torch_geometric.data import Data

from benchmarks.baselines.planetoid import (
    Planetoid,
    context_loss,
    run,
    sample_context,
)

# 0 - 1 - 2 - 3 - 4, and 5 - 6
EDGES = torch.tensor([[0, 1, 1, 2, 2, 3, 3, 4, 5, 6],
                      [1, 0, 2, 1, 3, 2, 4, 3, 6, 5]])
INDPTR = torch.tensor([0, 1, 3, 5, 7, 8, 9, 10])
LABELLED = torch.tensor([1, 4, 5, 6])
LABEL = torch.tensor([1, 0, 1, 1])
N, SIZE = 7, 40000


def sample(graph_ratio, positive_ratio, **kwargs):
    torch.manual_seed(0)
    kwargs = {'walk_length': 4, 'window': 1, **kwargs}
    return sample_context(SIZE, INDPTR, EDGES[1], LABEL, LABELLED,
                          graph_ratio=graph_ratio,
                          positive_ratio=positive_ratio, **kwargs)


def share(*nodes):
    """Returns how often a tuple of nodes was drawn."""
    index = torch.zeros_like(nodes[0])
    for node in nodes:
        index = index * N + node
    return (index.bincount(minlength=N**len(nodes)) / SIZE).view(
        [N] * len(nodes))


def close(out, expected):
    # Five standard deviations of a share of SIZE draws.
    std = (expected * (1 - expected) / SIZE).sqrt()
    return bool(((out - expected).abs() <= 5 * std + 1e-6).all())


def test_graph_contexts_are_the_walks_pairs():
    node, context, gamma = sample(1.0, 1.0)
    assert gamma.all()
    A = torch.zeros(N, N)
    A[EDGES[0], EDGES[1]] = 1
    P = A / A.sum(dim=1, keepdim=True)
    # Neighbouring places t, t + 1 of a walk from a uniform start, in both
    # orders: 3 + 3 equally likely pairs in a walk of four nodes.
    expected, at = torch.zeros(N, N), torch.full((N,), 1 / N)
    for _ in range(3):
        step = at[:, None] * P
        expected += (step + step.t()) / 6
        at = at @ P
    assert close(share(node, context), expected)


def test_window():
    node, context, _ = sample(1.0, 1.0, window=2)
    distance = (node - context).abs()
    path = node < 5
    assert distance[path].max() == 2
    assert (distance == 0).any()  # there and back again
    assert ((context >= 5) == (node >= 5)).all()


def test_graph_noise_is_uniform_and_independent():
    node, context, gamma = sample(1.0, 0.0)
    assert not gamma.any()
    assert close(share(context), torch.full((N,), 1 / N))
    expected = share(node)[:, None] * torch.full((N,), 1 / N)
    assert (share(node, context) - expected).abs().max() < 5e-3


def test_label_contexts():
    # Labelled 1, 5, 6 of one class and 4 of another, all equally likely;
    # the context is any labelled node of the same class, itself included.
    node, context, _ = sample(0.0, 1.0)
    expected = torch.zeros(N, N)
    same = torch.tensor([1, 5, 6])
    expected[same[:, None], same] = 1 / 4 / 3
    expected[4, 4] = 1 / 4
    assert close(share(node, context), expected)


def test_label_noise_has_another_label():
    node, context, _ = sample(0.0, 0.0)
    expected = torch.zeros(N, N)
    same = torch.tensor([1, 5, 6])
    expected[same, 4] = 1 / 4
    expected[4, same] = 1 / 4 / 3
    assert close(share(node, context), expected)


def test_ratios():
    _, _, gamma = sample(0.5, 0.3)
    assert abs(gamma.float().mean() - 0.3) < 0.02
    node, _, _ = sample(0.6, 0.5)
    graph = share(sample(1.0, 0.5)[0])
    label = share(sample(0.0, 0.5)[0])
    assert (share(node) - 0.6 * graph - 0.4 * label).abs().max() < 0.02


def test_context_loss():
    e, v = torch.tensor([[1.0, 2.0]] * 2), torch.tensor([[0.5, 1.0]] * 2)
    out = context_loss(e, v, torch.tensor([True, False]))
    score = torch.tensor(2.5)
    expected = -(F.logsigmoid(score) + F.logsigmoid(-score)) / 2
    assert torch.allclose(out, expected)


def fill(module, value):
    for parameter in module.parameters():
        torch.nn.init.constant_(parameter, value)


@pytest.mark.parametrize('variant, e', [('T', 1.0), ('I', 6.0), ('G', 1.0)])
def test_classifier_by_hand(variant, e):
    # Rows of x sum to 1; the inductive embedding of ones is 2 * 3 * 1.
    x = torch.tensor([[0.5, 0.5], [1.0, 0.0]])
    W = 3 * torch.ones(2, 4) if variant == 'I' else torch.ones(2, 4)
    model = Planetoid(variant, W, torch.zeros(2, 4), 2, 3, scale=2.0,
                      p=0.5).eval()
    fill(model.lin_e, 0.0)
    model.lin_e.weight.data[1] = 0.25
    model.lin_e.bias.data[2] = 1.0
    of_e = torch.tensor([[0.0, e, 1.0]] * 2)  # 4 * 0.25 * e
    assert torch.allclose(model.hidden(x)[0], of_e)
    if variant == 'G':  # no features
        assert torch.allclose(model(x, None), of_e)
        assert not hasattr(model, 'lin_x')
        return
    fill(model.lin_x, 0.0)
    model.lin_x.weight.data[0, 0] = 1.0
    of_x = torch.tensor([[1.0, 0.0, 0.0], [2.0, 0.0, 0.0]])
    assert torch.allclose(model.hidden(x)[1], of_x)
    torch.nn.init.zeros_(model.lin.bias)
    model.lin.weight.data = torch.cat([torch.eye(3), 2 * torch.eye(3)], dim=1)
    expected = of_e.softmax(dim=1) + 2 * of_x.softmax(dim=1)
    assert torch.allclose(model(x, None), expected)


def two_cliques():
    # One label each; the features help a little.
    torch.manual_seed(0)
    block = torch.ones(8, 8).fill_diagonal_(0)
    A = torch.block_diag(block, block)
    A[0, 8] = A[8, 0] = 1
    y = torch.arange(16) // 8
    x = torch.rand(16, 5)
    x[:, 0] += 3 * y
    return Data(x=x / x.sum(dim=1, keepdim=True), y=y,
                edge_index=A.nonzero().t(), num_nodes=16,
                train_mask=torch.arange(16) % 8 < 2,
                val_mask=torch.arange(16) % 8 == 2)


SETTINGS = {'dim': 8, 'epochs': 200, 'scale': 5.0, 'label_steps': 20,
            'samples': 20, 'graph_steps': 100, 'inductive_lr': 0.3}


@pytest.mark.parametrize('variant', ['T', 'I', 'G'])
def test_run(variant):
    data = two_cliques()
    out = run(data, seed=0, variant=variant, **SETTINGS)
    assert (out.logits.argmax(dim=-1) == data.y).float().mean() > 0.9
    again = run(data, seed=0, variant=variant, **SETTINGS)
    assert again.logits.equal(out.logits)


def test_features_do_not_matter_to_the_graph_alone():
    data, other = two_cliques(), two_cliques()
    other.x = other.x.flip(0)
    outs = [run(d, seed=0, variant='G', **SETTINGS).logits
            for d in [data, other]]
    assert outs[0].equal(outs[1])


@pytest.mark.parametrize('variant', ['T', 'I', 'G'])
def test_training_is_joint(variant):
    # Without first steps nothing but joint training moves the embedding:
    # a node without a label learns from contexts, the classes count too.
    data = two_cliques()
    settings = {**SETTINGS, 'label_steps': 0, 'graph_steps': 0, 'epochs': 5}
    changes = [{}, {'joint_lr': 0.0}, {'context_weight': 0.0}]
    models = [run(data, 0, variant=variant, **{**settings, **change}).model
              for change in changes]
    trained, frozen, supervised = [m.W.detach() for m in models]
    moved = (trained != frozen).any(dim=1)
    assert moved.all()
    assert (models[0].v != models[1].v).any(dim=1).all()
    assert not trained.equal(supervised)
    # Classes alone reach the labelled ones, and shared weights:
    reached = (supervised != frozen).any(dim=1)
    expected = torch.ones(5).bool() if variant == 'I' else data.train_mask
    assert reached.equal(expected)


def test_unknown_variant():
    with pytest.raises(ValueError, match="'T', 'I' or 'G'"):
        run(two_cliques(), seed=0, variant='X')
