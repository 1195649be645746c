import json

import numpy as np
import pandas as pd
import pytest
import torch
import torch_geometric.datasets
from sklearn.datasets import load_digits
from torch_geometric.data import Batch, Data
from torch_geometric.utils import to_undirected

from benchmarks import batches, runner, tasks
from benchmarks import settings as harness
from benchmarks.data import load, load_heterophilous
from benchmarks.results import Table
from benchmarks.tasks import ENCODERS, GRIDS, Task
from benchmarks.training import Run
from torch_agcn import AGCNConv


@pytest.fixture(scope='module')
def root(tmp_path_factory):
    return str(tmp_path_factory.mktemp('data'))


def pairs(edge_index):
    r"""Edges as a set, whatever their direction."""
    return {(min(e), max(e)) for e in edge_index.t().tolist()}


# Links #######################################################################


def test_no_link_leaks(root):
    data = load('Cora', root=root)
    torch.manual_seed(3)
    train, val, test = tasks.split_links(data)
    given = pairs(data.edge_index)
    assert len(given) == 5278

    def wanted(part):
        return pairs(part.edge_label_index[:, part.edge_label == 1])

    assert len(wanted(val)) == 263 and len(wanted(test)) == 527
    assert not wanted(val) & wanted(test)
    # Messages: never along what is to be found, now or later.
    assert pairs(train.edge_index) == given - wanted(val) - wanted(test)
    assert wanted(train) == pairs(train.edge_index)
    assert torch.equal(val.edge_index, train.edge_index)
    assert pairs(test.edge_index) == given - wanted(test)
    for part in [val, test]:
        not_there = pairs(part.edge_label_index[:, part.edge_label == 0])
        assert not_there and not not_there & given


def test_auc():
    # Products 6, 2, 3 and -1, of which the first and the last have an edge:
    # of four comparisons, two are right.
    z = torch.tensor([[2.0], [3.0], [1.0], [-1.0]])
    data = Data(edge_label_index=torch.tensor([[0, 0, 1, 2], [1, 2, 2, 3]]),
                edge_label=torch.tensor([1.0, 0.0, 0.0, 1.0]))
    assert tasks.decode(z, data.edge_label_index).tolist() == [6, 2, 3, -1]
    assert tasks.auc(z, data) == 50
    data.edge_label = torch.tensor([1.0, 0.0, 1.0, 0.0])
    assert tasks.auc(z, data) == 100


def test_links_are_learnt(root):
    rows = {}
    for method in ENCODERS:
        settings = json.loads(tasks.settings_of(method, 'links'))
        settings.update(hidden_channels=8, out_channels=4, epochs=3)
        if method == 'agcn_relative':
            settings['beta'] = 1.0  # at which the gates are not one
        task = Task(method, 'links', 1, runner.as_json(**settings))
        rows[method] = tasks.measure(task, root)
        assert set(rows[method]) == set(tasks.TABLE.own_columns)
        assert 55 < rows[method]['test_score'] < 100
    assert rows['mlp']['gates'] == '0 0'
    # A gate of exactly one makes a GCN, though it adds up in another order:
    assert rows['gcn']['gates'] == '' and rows['agcn_paper']['gates'] == '1 1'
    assert rows['agcn_paper']['test_score'] == pytest.approx(
        rows['gcn']['test_score'], abs=0.1)
    gates = [float(g) for g in rows['agcn_relative']['gates'].split()]
    assert len(gates) == 2 and all(0 < gate < 0.9 for gate in gates)


# Whole graphs ################################################################


def test_digit_graphs():
    graphs, digits = tasks.digit_graphs(), load_digits()
    assert len(graphs) == 1797
    assert [graph.y for graph in graphs] == digits.target.tolist()
    for i in [0, 7, 1796]:
        graph, image = graphs[i], digits.images[i]
        assert graph.num_nodes == (image > 0).sum() > 15
        assert torch.equal(graph.x[:, 0].double(), torch.from_numpy(
            image[image > 0] / 16))
        # An edge between all pixels with ink side by side or corner to
        # corner, found from their places alone:
        row, column = np.nonzero(image)
        far = np.maximum(np.abs(row[:, None] - row),
                         np.abs(column[:, None] - column))
        expected = {(a, b) for a, b in zip(*np.nonzero(far == 1))}
        assert set(map(tuple, graph.edge_index.t().tolist())) == expected
        assert graph.num_edges == len(expected)
        # All places are told apart, from -1 to 1 in seven steps:
        place = 3.5 * (graph.x[:, 1:] + 1)
        assert torch.allclose(place, place.round(), atol=1e-5)
        place = place.round().long()
        step = place[graph.edge_index[0]] - place[graph.edge_index[1]]
        assert int(step.abs().max()) == 1
        assert len({tuple(p) for p in place.tolist()}) == graph.num_nodes


@pytest.mark.parametrize('method', list(ENCODERS))
def test_batch_equals_one_by_one(method):
    graphs = tasks.digit_graphs()[:5]
    torch.manual_seed(2)
    layer = dict(ENCODERS[method])
    # Values of beta at which the gates differ:
    layer.update({'agcn_paper': dict(beta=1e-4),
                  'agcn_relative': dict(beta=1.0)}.get(method, {}))
    model = tasks.Classifier(tasks.make_encoder(method, 3, 6, 2, **layer), 6,
                             10).eval()
    batch = Batch.from_data_list(graphs)
    out = model(batch.x, batch.edge_index, batch.batch)
    alone = [model(g.x, g.edge_index, torch.zeros(g.num_nodes).long())
             for g in graphs]
    assert torch.allclose(out, torch.cat(alone), atol=1e-6)
    if method == 'mlp':  # a perceptron of ink and place
        a, b = (conv.lin.weight.t() for conv in model.encoder.convs)
        x = ((batch.x @ a).relu() @ b).relu()
        means = torch.stack([x[batch.batch == i].mean(0) for i in range(5)])
        assert torch.allclose(out, model.lin(means), atol=1e-6)
    if method in ['mlp', 'gcn']:
        return
    conv = next(m for m in model.modules() if isinstance(m, AGCNConv))
    gates = conv.gate(batch.x, batch.edge_index, batch=batch.batch)
    assert gates.shape == (5, ) and gates.std() > 0.003
    first = tasks.gates_of(model, batch.x, batch.edge_index, batch.batch)[0]
    assert first == pytest.approx(float(gates.mean()))


def test_digits_are_learnt(monkeypatch, root):
    some = [graph for graph in tasks.digit_graphs() if graph.y < 2][:150]
    monkeypatch.setattr(tasks, 'digit_graphs', lambda: some)
    for method in ENCODERS:
        settings = json.loads(tasks.settings_of(method, 'digits'))
        settings.update(hidden_channels=16, batch_size=16, epochs=5)
        row = tasks.measure(Task(method, 'digits', 1, runner.as_json(
            **settings)), root)
        assert set(row) == set(tasks.TABLE.own_columns)
        assert row['test_score'] > 75  # zeros and ones
        assert len(row['gates'].split()) == 2 * (method != 'gcn')


def test_train_best():
    model = torch.nn.Linear(1, 1, bias=False)
    weights = iter([1.0, 5.0, 3.0, 5.0])

    def train():
        assert model.training
        torch.nn.init.constant_(model.weight, next(weights))

    def score():
        assert not model.training and not torch.is_grad_enabled()
        return model.weight.item()

    assert batches.train_best(model, 3, train, score) == (2, 5.0)
    assert model.weight.item() == 5 and not model.training
    with pytest.raises(ValueError, match='lower the learning rate'):
        batches.train_best(model, 2, lambda: None, lambda: float('nan'))


# Neighbors of other classes ##################################################


@pytest.fixture
def graph(monkeypatch):
    r"""A small graph in place of those that are fetched: neighbors are of
    the same class.
    """
    torch.manual_seed(1)
    y = torch.arange(200) % 5
    ends = torch.randint(40, (2, 600)) * 5 + torch.randint(5, (600, ))
    x = torch.randn(200, 8)
    x[torch.arange(200), y] += 2
    part = torch.arange(200) % 4
    data = Data(x=x, y=y, edge_index=to_undirected(ends), num_nodes=200,
                train_mask=part < 2, val_mask=part == 2, test_mask=part == 3)
    monkeypatch.setattr(tasks, 'load_heterophilous', lambda *_: data)
    return data


@pytest.mark.parametrize('name, kind', [
    ('actor', 'Actor'), ('texas', 'WebKB'),
    ('tolokers', 'HeterophilousGraphDataset')])
def test_load_heterophilous(name, kind, monkeypatch):
    masks = torch.rand(3, 10) > 0.5
    given = Data(x=torch.ones(3, 2, dtype=torch.long), num_nodes=3,
                 y=torch.tensor([0, 1, 1]), train_mask=masks,
                 edge_index=torch.tensor([[0, 1, 1], [1, 1, 2]]),
                 val_mask=masks.byte(), test_mask=~masks)
    monkeypatch.setattr(torch_geometric.datasets, kind, lambda *_: [given])
    data = load_heterophilous(name, 12)
    assert data.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert data.x.dtype == torch.float
    for key in ['train', 'val']:
        assert torch.equal(data[f'{key}_mask'], masks[:, 2])
    assert torch.equal(data.test_mask, ~masks[:, 2])


def test_validation_chooses(monkeypatch, graph):
    # What is right where, by the value of beta: the second and third are the
    # best on the validation set, the third with the lower loss there; the
    # first is the best on the test set.
    right = {0.1: (0, 50, 1.0), 1.0: (40, 20, 0.9), 50.0: (40, 10, 0.8)}
    seen = []

    def run(given, seed, *, beta, **settings):
        assert given is graph and seed == 2
        assert settings['num_hops'] == 4 and 'choices' not in settings
        seen.append(beta)
        val, test, loss = right[beta]
        guess = (graph.y + 1) % 5
        for mask, count in [(graph.val_mask, val), (graph.test_mask, test)]:
            nodes = mask.nonzero().flatten()[:count]
            guess[nodes] = graph.y[nodes]
        logits = torch.nn.functional.one_hot(guess, 5).float()
        return Run(logits, 7, {'val_loss': loss, 'gate_0': beta / 100,
                               'gate_1': 0.25})

    monkeypatch.setattr(harness, 'run_of', lambda _: run)
    row = tasks.measure(Task('agcn', 'texas', 2, runner.as_json(
        num_hops=4, choices=GRIDS['agcn'])), 'data')
    assert seen == [0.1, 1.0, 50.0]
    assert row['chosen'] == '{"beta": 50.0}' and row['epochs'] == 7
    assert (row['val_score'], row['test_score']) == (80, 20)
    assert row['gates'] == '0.5 0.25'


def test_settings():
    for method, choices in GRIDS.items():
        settings = json.loads(tasks.settings_of(method, 'texas'))
        assert settings['choices'] == choices
        (key, values), = choices.items()
        assert key in settings and len(values) == 3
    recommended, held_open, paper = (
        json.loads(tasks.settings_of(method, 'texas'))
        for method in ['agcn', 'appnp', 'agcn_paper'])
    assert recommended['num_hops'] == held_open['num_hops'] == 4
    assert held_open['beta'] == 1e30 and paper['num_hops'] == 1
    # Nothing but what was chosen from, and the gate, differs:
    for key in ['beta', 'choices']:
        del recommended[key], held_open[key]
    assert recommended == held_open


def test_all_runs_on_a_small_graph(graph):
    for method in GRIDS:
        settings = json.loads(tasks.settings_of(method, 'actor'))
        key, = GRIDS[method]
        settings.update(epochs=20, choices={key: [settings[key]]})
        row = tasks.measure(Task(method, 'actor', 1, runner.as_json(
            **settings)), 'data')
        assert set(row) == set(tasks.TABLE.own_columns)
        assert row['test_score'] > (30 if method == 'mlp' else 65)
        if method in ['appnp', 'agcn_paper']:
            assert {float(g) for g in row['gates'].split()} == {1}


# What comes of it ############################################################


def rows_of(values):
    return pd.DataFrame([
        dict(method=method, dataset=dataset, seed=seed, settings='{}',
             chosen='{}', epochs=9, val_score=1.0, test_score=score,
             gates='0.5 0.25' if 'agcn' in method else np.nan, seconds=1.0)
        for (method, dataset), scores in values.items()
        for seed, score in enumerate(scores)])


def test_tables():
    rows = rows_of({
        ('gcn', 'links'): [90.0, 92.0], ('agcn_paper', 'links'): [91.0, 93.0],
        ('mlp', 'actor'): [36.0, 37.0], ('gcn', 'actor'): [30.0, 31.5],
        ('agcn', 'tolokers'): [80.0]})
    # Other settings, and data sets of another version, do not count:
    old = rows_of({('gcn', 'links'): [1.0], ('gcn', 'other'): [1.0]})
    found = tasks.tables(pd.concat([old.assign(settings='{"lr": 1}'), rows],
                                   ignore_index=True))
    links, accuracy, gap = found.values()
    assert links.values.tolist() == [
        ['GCN', '91.0 ± 1.4 (2)', '–'],
        ['AGCN (paper)', '92.0 ± 1.4 (2)', '+1.0 ± 0.0']]
    assert list(accuracy.columns) == ['', 'actor', 'tolokers']
    assert accuracy.values.tolist()[:2] == [
        ['MLP', '36.5 ± 0.7 (2)', '–'], ['GCN', '30.8 ± 1.1 (2)', '–']]
    assert accuracy.values.tolist()[-1] == ['DiffusedMLP', '–', '80.0 (1)']
    # Differences -6 and -5.5: the mean, and 12.706 standard errors of 0.25.
    assert gap.values.tolist()[0] == ['GCN', '-5.8 ± 3.2', '–']


def test_figures(tmp_path):
    pytest.importorskip('matplotlib')
    links = rows_of({('gcn', 'links'): [90.0, 92.0]})
    rest = rows_of({('mlp', 'actor'): [36.0, 37.0],
                    ('agcn', 'actor'): [37.0, 38.5]})
    paths = tasks.draw(pd.concat([links, rest], ignore_index=True), tmp_path)
    assert [path.name for path in paths] == [
        'tasks_heterophilous.png', 'tasks_heterophilous.svg']
    assert all(path.stat().st_size > 1000 for path in paths)
    assert tasks.draw(links, tmp_path) == []
    assert {path.stem for path in paths} == set(tasks.CAPTIONS)


def test_all_of_them(tmp_path):
    todo = tasks.tasks(runner.parse(tasks, []))
    assert len(set(todo)) == len(todo) == 10 * (2 * 4 + 6 * 5)
    assert [task.seed for task in todo] == sorted(task.seed for task in todo)
    quick = tasks.tasks(runner.parse(tasks, ['--quick']))
    assert [task.method for task in quick] == 2 * list(ENCODERS)

    # What was run is found again in the file:
    file = Table(tmp_path / 'tasks.csv', tasks.TABLE.own_columns)
    some = todo[:2]
    for task in some:
        file.append(**{**dict.fromkeys(file.own_columns, 1),
                       **task._asdict()})

    def measure(task, root):
        raise AssertionError(task)

    assert runner.run_missing(some, file, measure, 1, 'data') == []
