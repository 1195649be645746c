import math
import sys
from functools import partial

import pytest
import torch
import torch_geometric.transforms as T
from torch_geometric.data import Data
from torch_geometric.nn import GCN
from torch_geometric.testing import withPackage
from torch_geometric.typing import SparseTensor
from torch_geometric.utils import erdos_renyi_graph, to_undirected

from torch_agcn import label_expansion
from torch_agcn.datasets import Planetoid
from torch_agcn.label_expansion import (
    Expansion,
    co_training,
    expansion_size,
    intersection,
    partially_absorbing_walk,
    self_training,
    union,
)


def graph(*edges):
    return to_undirected(torch.tensor(edges).t())


def path(num_nodes):
    return graph(*[(i, i + 1) for i in range(num_nodes - 1)])


def labels(*values):
    y = torch.tensor(values)
    return y, y >= 0


# Two triangles, and node 3 between them.
BARBELL = graph((0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (4, 5), (4, 6),
                (5, 6))


def dense(edge_index, y, train_mask, alpha, edge_weight=None):
    r"""The definition, on dense matrices."""
    N = y.numel()
    if edge_weight is None:
        edge_weight = torch.ones(edge_index.size(1))
    A = torch.zeros(N, N, dtype=torch.double)
    A.index_put_(tuple(edge_index), edge_weight.double(), accumulate=True)
    A.fill_diagonal_(0)
    B = torch.zeros(N, int(y[train_mask].max()) + 1, dtype=torch.double)
    B[train_mask, y[train_mask]] = 1
    return torch.linalg.solve((A.sum(1) + alpha).diag() - A, B)


# The walk ####################################################################


@pytest.mark.parametrize('alpha', [1e-9, 1e-6, 1e-2, 3.0])
def test_walk_on_an_edge(alpha):
    # The inverse of [[1 + a, -1], [-1, 1 + a]], and of [[a]]:
    y, mask = labels(0, -1, 1)
    out = partially_absorbing_walk(graph((0, 1)), y, mask, alpha=alpha)
    below = alpha * (2 + alpha)
    expected = torch.tensor([[(1 + alpha) / below, 0], [1 / below, 0],
                             [0, 1 / alpha]], dtype=torch.double)
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=0)
    # At a small alpha, the difference is what ranks nodes:
    difference = float(out[0, 0] - out[1, 0])
    assert difference == pytest.approx(1 / (2 + alpha), rel=1e-6)


@pytest.mark.parametrize('weighted', [False, True])
@pytest.mark.parametrize('alpha', [1e-6, 1e-3, 1.0])
def test_walk_is_the_dense_solution(alpha, weighted):
    # 0.01 leaves isolated nodes and small components, labelled or not.
    edge_index = torch.cat([
        erdos_renyi_graph(150, 0.01), 150 + erdos_renyi_graph(50, 0.2),
        torch.arange(5).expand(2, 5)], dim=1)
    weight = None
    if weighted:
        edge_index, weight = to_undirected(
            edge_index, torch.rand(edge_index.size(1)) + 0.1)
    y = torch.randint(4, (200, ))
    mask = torch.zeros(200, dtype=torch.bool)
    mask[torch.randperm(200)[:30]] = True
    expected = dense(edge_index, y, mask, alpha, weight)
    out = partially_absorbing_walk(edge_index, y, mask, weight, alpha)
    # The dense solution itself is no more exact than this:
    torch.testing.assert_close(out, expected, rtol=1e-8, atol=1e-8)
    assert bool((out[expected == 0] == 0).all())


def test_walk_on_cora(tmp_path):
    data = Planetoid(tmp_path, 'Cora')[0]  # 78 components
    args = data.edge_index, data.y, data.train_mask
    out = partially_absorbing_walk(*args)
    expected = dense(*args, alpha=1e-6)
    torch.testing.assert_close(out, expected, rtol=1e-8, atol=1e-8)
    # What ranks nodes is small beside what all of a component have:
    inside = (expected > 0).all(dim=1)  # the largest component
    assert int(inside.sum()) == 2485
    out, expected = out[inside], expected[inside]
    assert float(expected.min()) > 1000 and float(
        expected.std(dim=0).max()) < 10
    torch.testing.assert_close(out - out[0], expected - expected[0], rtol=0,
                               atol=1e-5)


def test_all_walks_end():
    y = torch.randint(3, (7, ))
    out = partially_absorbing_walk(BARBELL, y, y >= 0, alpha=0.01)
    torch.testing.assert_close(out.sum(1), torch.full((7, ), 100.0).double())


@pytest.mark.parametrize('max_steps', [1000, 1])
def test_walk_on_a_long_path(monkeypatch, max_steps):
    # Conjugate gradients would need a step for each of its edges. From the
    # end of a path, the scores are cosh((n - 1/2 - i) t) up to a factor, with
    # 2 cosh(t) = 2 + alpha, and sum to 1 / alpha.
    monkeypatch.setattr(label_expansion, 'MAX_STEPS', max_steps)
    n, alpha = 3000, 1e-6
    t = math.acosh(1 + alpha / 2)
    expected = (t * (n - 0.5 - torch.arange(n).double())).cosh()
    expected = expected / (alpha * expected.sum())
    y = torch.full((n, ), -1)
    y[0] = 0
    out = partially_absorbing_walk(path(n), y, y >= 0)
    torch.testing.assert_close(out[:, 0], expected, rtol=1e-7, atol=0)


def test_walk_makes_ties_equal():
    # Node 3 is as far from one side as from the other, and 5 is as 6.
    y, mask = labels(0, -1, -1, -1, -1, -1, 1)
    y[5], mask[5], y[1], mask[1] = 1, True, 0, True
    out = partially_absorbing_walk(BARBELL, y, mask)
    assert out[3, 0] == out[3, 1] and out[5, 0] == out[6, 0]
    assert torch.equal(out, out.flip([0, 1]))


def test_walk_in_all_forms_of_a_graph():
    y, mask = labels(0, -1, -1, -1, -1, -1, 1)
    expected = partially_absorbing_walk(BARBELL, y, mask)
    N = y.numel()
    weight = torch.ones(BARBELL.size(1))
    matrix = torch.sparse_coo_tensor(BARBELL, weight, (N, N))
    loops = torch.cat([BARBELL, torch.arange(N).expand(2, N)], dim=1)
    for form in [matrix, matrix.to_sparse_csr(), loops]:
        assert torch.equal(partially_absorbing_walk(form, y, mask), expected)
    # Weights scale like the rate at which walks end:
    scaled = partially_absorbing_walk(BARBELL, y, mask, 2 * weight, 2e-6)
    torch.testing.assert_close(2 * scaled, expected)


@pytest.mark.extensions
@withPackage('torch_sparse')
def test_walk_on_a_sparse_tensor():
    # Edges that stand twice weigh twice, in every form.
    edge_index = torch.cat([BARBELL, BARBELL, torch.tensor([[3], [3]])], dim=1)
    adj = SparseTensor.from_edge_index(edge_index, None, (7, 7)).t()
    expected = co_training(edge_index, Y, MASK, 1)
    out = co_training(adj, Y, MASK, 1)
    assert torch.equal(out.pseudo_y, expected.pseudo_y)
    assert torch.equal(partially_absorbing_walk(adj, Y, MASK),
                       partially_absorbing_walk(edge_index, Y, MASK))


def test_walk_needs_scipy(monkeypatch):
    monkeypatch.setitem(sys.modules, 'scipy.sparse', None)
    with pytest.raises(ImportError, match='pip install scipy'):
        partially_absorbing_walk(BARBELL, *labels(0, *[-1] * 6))


# Sizes #######################################################################


def test_expansion_size():
    # N = 7, mean degree 16 / 7: 3 * 7 * (7 / 16)^2 = 4.02 for all classes.
    y, mask = labels(0, 0, 1, -1, -1, -1, -1)
    assert expansion_size(BARBELL, y, mask).tolist() == [2, 1]
    # With one layer 21 * 7 / 16 = 9.19, with none 21, of which 7 are there:
    assert expansion_size(BARBELL, y, mask, 1).tolist() == [6, 3]
    assert expansion_size(BARBELL, y, mask, 0).tolist() == [7, 7]
    assert expansion_size(BARBELL, y, mask, factor=6).tolist() == [5, 2]
    assert expansion_size(BARBELL, y, mask, num_classes=4).tolist() == [
        2, 1, 0, 0]
    loops = torch.cat([BARBELL, torch.arange(7).expand(2, 7)], dim=1)
    assert expansion_size(loops, y, mask).tolist() == [2, 1]


def test_expansion_size_is_exact():
    # A ring of 10 nodes and one label of 5 each: 3 * 10 / 4 * 1 / 5 = 1.5;
    # six of those are nine, which floats may take for 8.999...
    ring = torch.stack([torch.arange(10), (torch.arange(10) + 1) % 10])
    y, mask = labels(0, 1, 2, 3, 4, -1, -1, -1, -1, -1)
    ring = to_undirected(ring)
    assert expansion_size(ring, y, mask).tolist() == [1] * 5
    assert expansion_size(ring, y, mask, factor=18).tolist() == [9] * 5


# Expansions ##################################################################


def test_co_training_on_a_barbell():
    y, mask = labels(0, -1, -1, -1, -1, -1, 1)
    out = co_training(BARBELL, y, mask, num_added=2)
    assert out.train_mask.tolist() == [1, 1, 1, 0, 1, 1, 1]
    assert out.pseudo_y.tolist() == [0, 0, 0, -1, 1, 1, 1]
    # The inputs are as they were.
    assert y.tolist() == [0, -1, -1, -1, -1, -1, 1] and int(mask.sum()) == 2
    none = co_training(BARBELL, y, mask, 0)
    assert torch.equal(none.train_mask, mask) and torch.equal(none.pseudo_y, y)
    one = co_training(BARBELL, y, mask, torch.tensor([0, 1]))
    assert one.train_mask.tolist() == [1, 0, 0, 0, 0, 1, 1]


def test_co_training_claims():
    # All four nodes between are claimed by both classes, and each goes to the
    # nearer one. Nothing replaces what a class has lost.
    y, mask = labels(0, -1, -1, -1, -1, 1)
    out = co_training(path(6), y, mask, 4)
    assert out.pseudo_y.tolist() == [0, 0, 0, 1, 1, 1]
    out = co_training(path(6), y, mask, [4, 2])
    assert out.pseudo_y.tolist() == [0, 0, 0, 1, 1, 1]
    # A tie goes to the lower class, and of tied nodes the lower is taken.
    y, mask = labels(1, -1, 0)
    assert co_training(path(3), y, mask, 1).pseudo_y.tolist() == [1, 0, 0]
    star = graph((0, 1), (0, 2), (0, 3), (0, 4))
    out = co_training(star, *labels(0, -1, -1, -1, -1), 2)
    assert out.train_mask.tolist() == [1, 1, 1, 0, 0]


def test_co_training_between_components():
    # Class 1 has one label, in a component of three nodes: the walk leads to
    # no others, however many are wanted. No label at all: never added.
    edge_index = graph((0, 1), (1, 2), (2, 3), (4, 5), (5, 6), (7, 8))
    y, mask = labels(0, -1, -1, 0, 1, -1, -1, -1, -1, -1)
    out = co_training(edge_index, y, mask, 100)
    assert out.pseudo_y.tolist() == [0, 0, 0, 0, 1, 1, 1, -1, -1, -1]
    assert out.train_mask.tolist() == [1] * 7 + [0] * 3
    # A small component is surer than a large one: 1e6 / 3 and 1e6 / 4.
    y[4], mask[0] = 0, False
    out = co_training(edge_index, y, mask, 2)
    assert out.train_mask.nonzero().flatten().tolist() == [3, 4, 5, 6]


def test_excluded_nodes_are_never_added():
    y, mask = labels(0, -1, -1, -1, -1, 1)
    logits = torch.tensor([[5., 0], [4, 0], [3, 0], [2, 0], [0, 1], [0, 2]])
    # As a mask, and by number. A label that is known stays.
    for exclude in [torch.tensor([1, 1, 0, 0, 0, 0]).bool(),
                    torch.tensor([1]), torch.tensor([1, 0, 1])]:
        out = co_training(path(6), y, mask, 1, exclude=exclude)
        assert out.pseudo_y.tolist() == [0, -1, 0, -1, 1, 1]
        out = self_training(logits, y, mask, 2, exclude=exclude)
        assert out.pseudo_y.tolist() == [0, -1, 0, 0, 1, 1]
    none = torch.empty(0, dtype=torch.long)
    assert co_training(path(6), y, mask, 1, exclude=none).pseudo_y.tolist() \
        == co_training(path(6), y, mask, 1).pseudo_y.tolist()


def test_no_test_node_of_cora_is_labelled(tmp_path):
    data = Planetoid(tmp_path, 'Cora')[0]
    held_out = data.val_mask | data.test_mask
    args = data.y, data.train_mask, 20
    for expand in [partial(co_training, data.edge_index, *args),
                   partial(self_training, torch.randn(2708, 7), *args)]:
        assert bool((expand().train_mask & held_out).any())
        out = expand(exclude=held_out)
        assert int((out.train_mask & ~data.train_mask).sum()) > 100
        assert not bool((out.train_mask & held_out).any())


def test_given_labels_stay_apart():
    # True labels of nodes without a label in training are not handed on, so
    # that who measures by what comes back sees it at once.
    y = torch.tensor([0, 0, 0, 1, 1, 1, 1])
    mask = torch.tensor([1, 0, 0, 0, 0, 0, 1]).bool()
    walk = co_training(BARBELL, y, mask, 1)
    own = self_training(torch.eye(2)[y], y, mask, 1)
    for out in [walk, own, union(walk, own), intersection(walk, own),
                union((mask, y), (mask, y)),
                intersection((mask, y), (mask, y))]:
        assert out._fields == ('train_mask', 'pseudo_y')
        assert bool((out.pseudo_y[~out.train_mask] == -1).all())
        assert torch.equal(out.pseudo_y[out.train_mask], y[out.train_mask])
    assert y.tolist() == [0, 0, 0, 1, 1, 1, 1] and int(mask.sum()) == 2


def test_self_training():
    # Most confident of each predicted class, not the highest of a column:
    # node 2 has more of class 1 than node 4 has, but is put into class 0.
    p = torch.tensor([[.9, .1, .0], [.6, .3, .1], [.51, .49, .0],
                      [.3, .0, .7], [.2, .45, .35], [.1, .1, .8]])
    y, mask = labels(1, -1, -1, -1, -1, 2)
    out = self_training(p.log(), y, mask, [1, 1, 3])
    assert out.train_mask.tolist() == [1, 1, 0, 1, 1, 1]
    assert out.pseudo_y.tolist() == [1, 0, -1, 2, 1, 2]
    # More than there are, and sizes for the classes with labels only:
    out = self_training(p.log() + 7, y, mask, 100)
    assert out.pseudo_y.tolist() == [1, 0, 0, 2, 1, 2]
    y[5] = 0
    assert self_training(p.log(), y, mask, [1, 0]).pseudo_y.tolist() == [
        1, 0, -1, -1, -1, 0]


def test_self_training_ties():
    y, mask = labels(0, -1, -1, -1, -1)
    logits = torch.zeros(5, 2)  # class 0 by the first rule, 1 to 4 tied
    out = self_training(logits, y, mask, 2)
    assert out.pseudo_y.tolist() == [0, 0, 0, -1, -1]
    # Both are 1.0 in single precision; the second is the surer one.
    logits[:, 0] = torch.tensor([0., 20., 25., 0., 0.])
    out = self_training(logits, y, mask, 1)
    assert out.train_mask.tolist() == [1, 0, 1, 0, 0]


def test_union_and_intersection():
    # Node 0 has a label. Then: both agree, both disagree, one alone, the
    # other alone, none. Entries outside of the masks do not count.
    given = torch.tensor([0, 5, 6, 7, 8, 9])
    a = Expansion(torch.tensor([1, 1, 1, 1, 0, 0], dtype=torch.bool),
                  torch.tensor([0, 1, 1, 2, 8, 9]))
    b = Expansion(torch.tensor([1, 1, 1, 0, 1, 0], dtype=torch.bool),
                  torch.tensor([0, 1, 2, 7, 3, 9]))
    for first, second in [(a, b), (b, a)]:
        out = union(first, second)
        assert out.train_mask.tolist() == [1, 1, 0, 1, 1, 0]
        assert out.pseudo_y.tolist() == [0, 1, -1, 2, 3, -1]
        out = intersection(first, second)
        assert out.train_mask.tolist() == [1, 1, 0, 0, 0, 0]
        assert out.pseudo_y.tolist() == [0, 1, -1, -1, -1, -1]
    start = Expansion(torch.tensor([True] + [False] * 5), given)
    for out, expected in [(union(a, start), a), (intersection(a, start),
                                                 start), (union(a, a), a)]:
        mask = out.train_mask
        assert torch.equal(mask, expected.train_mask)
        assert torch.equal(out.pseudo_y[mask], expected.pseudo_y[mask])


def test_labels_of_others_are_never_read(tmp_path):
    data = Planetoid(tmp_path, 'Cora')[0]
    logits = torch.randn(data.num_nodes, 7)

    def expand(y):
        size = expansion_size(data.edge_index, y, data.train_mask)
        walk = co_training(data.edge_index, y, data.train_mask, size)
        own = self_training(logits, y, data.train_mask, size)
        return walk, own, union(walk, own), intersection(walk, own)

    honest = expand(data.y)
    for junk in [torch.randint_like(data.y, 7),
                 torch.full_like(data.y, -100),
                 torch.full_like(data.y, 2**40)]:
        y = torch.where(data.train_mask, data.y, junk)
        for one, other in zip(honest, expand(y)):
            mask = one.train_mask
            assert torch.equal(mask, other.train_mask)
            assert torch.equal(one.pseudo_y, other.pseudo_y)
            assert torch.equal(one.pseudo_y[data.train_mask],
                               data.y[data.train_mask])
    walk, own, either, both = honest
    assert int(walk.train_mask.sum()) > 140 + 400
    assert int((both.train_mask & ~data.train_mask).sum()) > 0
    # All of the union is from one of the two:
    assert not bool((either.train_mask & ~walk.train_mask
                     & ~own.train_mask).any())


def test_stock_training_loop(tmp_path):
    data = Planetoid(tmp_path, 'Cora', transform=T.NormalizeFeatures())[0]
    few = torch.zeros_like(data.train_mask)
    for c in range(7):  # two labels per class
        few[(data.train_mask & (data.y == c)).nonzero().flatten()[:2]] = True

    def train(data: Data, labels: Expansion):
        torch.manual_seed(0)
        model = GCN(data.num_features, 16, 2, 7)
        optimizer = torch.optim.Adam(model.parameters(), 0.05,
                                     weight_decay=5e-4)
        for _ in range(20):
            optimizer.zero_grad()
            out = model(data.x, data.edge_index)
            torch.nn.functional.cross_entropy(
                out[labels.train_mask],
                labels.pseudo_y[labels.train_mask]).backward()
            optimizer.step()
        hit = model(data.x, data.edge_index).argmax(dim=-1) == data.y
        return float(hit[data.test_mask].float().mean())

    before = train(data, Expansion(few, data.y))
    args = data.edge_index, data.y, few
    size = expansion_size(*args)
    assert train(data, co_training(*args, size)) > before + 0.03


# Bad input ###################################################################


Y, MASK = labels(0, -1, -1, -1, -1, -1, 1)


@pytest.mark.parametrize('match, call', [
    ('torch.long', lambda: expansion_size(BARBELL, Y.float(), MASK)),
    ('torch.long', lambda: co_training(BARBELL, Y[:, None], MASK, 1)),
    (r'train_mask\[:, 0\]', lambda: co_training(
        BARBELL, Y, torch.stack([MASK, MASK], 1), 1)),
    ('torch.bool', lambda: co_training(BARBELL, Y, MASK.long(), 1)),
    ('exclude', lambda: co_training(BARBELL, Y, MASK, 1, exclude=MASK[:3])),
    ('exclude', lambda: co_training(BARBELL, Y, MASK, 1, exclude=Y)),
    ('exclude.bool', lambda: co_training(
        BARBELL, Y, MASK, 1, exclude=MASK.long())),  # not nodes 0 and 1
    ('num_classes', lambda: expansion_size(
        BARBELL, Y, MASK, num_classes=10**9)),
    ('num_classes', lambda: partially_absorbing_walk(
        BARBELL, Y, MASK, num_classes=10**9)),
    ('exclude', lambda: self_training(
        torch.zeros(7, 2), Y, MASK, 1, exclude=torch.tensor([7]))),
    ('exclude', lambda: self_training(
        torch.zeros(7, 2), Y, MASK, 1, exclude=torch.rand(7))),
    # What was called 'candidates', the opposite, is not taken for weights:
    ('edge_weight', lambda: co_training(BARBELL, Y, MASK, 1, ~MASK)),
    ('one node at', lambda: expansion_size(BARBELL, Y, MASK & False)),
    ('negative', lambda: partially_absorbing_walk(BARBELL, Y, ~MASK)),
    ('num_classes=1', lambda: partially_absorbing_walk(
        BARBELL, Y, MASK, num_classes=1)),
    ('alpha', lambda: partially_absorbing_walk(BARBELL, Y, MASK, alpha=0)),
    ('alpha', lambda: co_training(BARBELL, Y, MASK, 1, alpha=math.inf)),
    ('to_undirected', lambda: co_training(BARBELL[:, :5], Y, MASK, 1)),
    ('weights', lambda: co_training(
        BARBELL, Y, MASK, 1, edge_weight=-torch.ones(16))),
    ('node 7', lambda: co_training(graph((0, 7)), Y, MASK, 1)),
    ('without edges', lambda: expansion_size(BARBELL[:, :0], Y, MASK)),
    ('num_layers', lambda: expansion_size(BARBELL, Y, MASK, -1)),
    ('num_layers', lambda: expansion_size(BARBELL, Y, MASK, 10**9)),
    ('expansion_size', lambda: co_training(BARBELL, Y, MASK, -1)),
    ('expansion_size', lambda: co_training(BARBELL, Y, MASK, [1])),
    ('expansion_size', lambda: co_training(BARBELL, Y, MASK, 0.5)),
    ('expansion_size', lambda: self_training(
        torch.zeros(7, 2), Y, MASK, [1, 1, 1])),
    ('logits', lambda: self_training(torch.zeros(7), Y, MASK, 1)),
    ('logits', lambda: self_training(torch.zeros(7, 1), Y, MASK, 1)),
    ('NaN', lambda: self_training(
        torch.full((7, 2), math.nan), Y, MASK, 1)),
    ('one graph', lambda: union((MASK, Y), (MASK[:1], Y[:1]))),
    ('torch.bool', lambda: intersection((MASK, Y), (Y, MASK.long()))),
])
def test_bad_input(match, call):
    with pytest.raises(ValueError, match=match):
        call()


@pytest.mark.parametrize('label', [7, 10**9, 2**62])
def test_labels_that_are_no_class_numbers(label):
    # One column of scores per class: a billion of them are 56 GB.
    y = Y.clone()
    y[6] = label
    for call in [lambda: expansion_size(BARBELL, y, MASK),
                 lambda: partially_absorbing_walk(BARBELL, y, MASK),
                 lambda: co_training(BARBELL, y, MASK, 1),
                 lambda: co_training(BARBELL, y, MASK, torch.tensor(1))]:
        with pytest.raises(ValueError, match=f'a label {label} for 7 nodes; '
                           'number the classes'):
            call()
    with pytest.raises(ValueError, match='logits'):
        self_training(torch.zeros(7, 2), y, MASK, 1)


def test_more_classes_than_nodes_if_asked_for():
    y = Y.clone()
    y[6] = 7
    out = partially_absorbing_walk(BARBELL, y, MASK, num_classes=8)
    assert out.size() == (7, 8)
    size = expansion_size(BARBELL, y, MASK, num_classes=8)
    assert size.tolist() == [2, 0, 0, 0, 0, 0, 0, 2]
    out = co_training(BARBELL, y, MASK, size)
    assert out.pseudo_y.tolist() == [0, 0, 0, -1, 7, 7, 7]
    out = self_training(torch.eye(8)[out.pseudo_y], y, MASK, 1)
    assert int(out.train_mask.sum()) == 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a GPU')
def test_on_cuda():
    y, mask = Y.cuda(), MASK.cuda()
    size = expansion_size(BARBELL.cuda(), y, mask)
    out = co_training(BARBELL.cuda(), y, mask, size)
    expected = co_training(BARBELL, Y, MASK, size.cpu())
    assert torch.equal(out.pseudo_y.cpu(), expected.pseudo_y)
