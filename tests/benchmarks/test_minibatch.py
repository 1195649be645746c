import json

import numpy as np
import pandas as pd
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.testing import withPackage
from torch_geometric.utils import to_undirected

from benchmarks import batches, minibatch, runner
from benchmarks.baselines import agcn
from benchmarks.minibatch import Task
from benchmarks.results import Table
from benchmarks.settings import settings_of
from torch_agcn.functional import anisotropic_gate, relative_energy

pytestmark = pytest.mark.filterwarnings('ignore:Using .NeighborSampler.')
SMALL = dict(steps=12, seeds=40, num_neighbors=[4, 4], looked_at=4,
             num_hops=2, hidden_channels=8)


def blocks(num_nodes=120):
    y = torch.arange(num_nodes) % 3
    pairs = torch.randint(num_nodes, (2, 8 * num_nodes))
    same = y[pairs[0]] == y[pairs[1]]
    edge_index = to_undirected(pairs[:, same | (torch.rand(same.size()) < .1)])
    x = torch.randn(num_nodes, 6)
    x[torch.arange(num_nodes), y] += 2
    place = torch.arange(num_nodes)
    return Data(x=x.to_sparse(), y=y, edge_index=edge_index,
                num_nodes=num_nodes, train_mask=place < 30,
                val_mask=(place >= 30) & (place < 60), test_mask=place >= 60)


def task(method, sampling, estimate, **changes):
    settings = {**json.loads(batches.settings_of(method, 'PubMed')),
                **SMALL, **changes}
    if method == 'agcn_paper':
        settings['num_hops'] = 1
    return Task(method, 'PubMed', sampling, estimate, 0,
                runner.as_json(**settings))


def test_settings_are_those_of_table_1():
    ours, paper = (json.loads(batches.settings_of(m, 'PubMed'))
                   for m in ['agcn', 'agcn_paper'])
    chosen = json.loads(settings_of('agcn', 'PubMed'))
    assert all(ours[key] == chosen[key] for key in ['beta', 'alpha', 'p'])
    assert ours['num_hops'] == len(ours['num_neighbors']) == 4
    assert (paper['energy'], paper['beta']) == ('total', 0.1)
    assert paper['num_hops'] * 2 == len(paper['num_neighbors'])
    assert json.loads(batches.settings_of('agcn', 'PubMed', quick=True))[
        'steps'] < ours['steps']


@pytest.mark.parametrize('method', ['agcn', 'agcn_paper'])
def test_whole_graph(method, monkeypatch):
    monkeypatch.setattr(minibatch, 'load', lambda *_, **__: blocks())
    row = minibatch.measure(task(method, 'full', 'exact', steps=60), 'data')
    assert set(row) == set(minibatch.TABLE.own_columns)
    assert row['nodes'] == 120 and row['test_accuracy'] > 80
    assert len(row['gates'].split()) == 2 and row['batch_gates'] == '{}'


def test_gates():
    data = blocks()
    data.x = data.x.to_dense()
    model = batches.make_model(
        data, head='hops', hidden_channels=8, p=0.5, beta=3.0, alpha=0.1,
        energy='relative', residual=True, num_hops=2, momentum=0.1)
    with torch.no_grad():
        model.eval()
        h = model.lins[1](model.lins[0](data.x).relu())
    gate = anisotropic_gate(relative_energy(h, data.edge_index), 3.0)
    found = agcn.gates(model, data, **minibatch.no_weights(data))
    assert found[0] == pytest.approx(float(gate), abs=1e-5)
    # The average over a graph, and the same again, is its own; with other
    # features among them it is another.
    other = data.clone()
    other.x = 3 * data.x.roll(1, 0)
    same, mixed = (minibatch.average_gates(model, some, minibatch.no_weights)
                   for some in ([data, data], [data, other]))
    assert same == pytest.approx(found, abs=1e-5)
    assert abs(mixed[0] - found[0]) > 0.01
    for hop in model.diffusion.running_energy:
        assert hop.num_batches == 2


def test_loss():
    out = torch.tensor([[2.0, 0.0], [0.0, 0.0], [0.0, 1.0], [5.0, 5.0]])
    batch = Data(y=torch.tensor([0, 1, 1, 0]),
                 train_mask=torch.tensor([True, True, False, True]))
    a, b, d = (float(torch.nn.functional.cross_entropy(out[i], batch.y[i]))
               for i in [0, 1, 3])
    assert float(batches.loss_of(out, batch)) == pytest.approx(
        (a + b + d) / 3)
    batch.batch_size = 1  # the rest are neighbors
    assert float(batches.loss_of(out, batch)) == pytest.approx(a)
    batch.train_mask[:] = False
    assert batches.loss_of(out, batch) == 0


def test_accuracies():
    graph = Data(y=torch.tensor([0, 1, 1, 0]),
                 val_mask=torch.tensor([True, True, True, False]),
                 test_mask=torch.tensor([False, True, False, True]))
    # Nodes 0 and 2 are right:
    logits = torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 5.0]])
    assert batches.accuracies(logits, graph) == {
        'val_accuracy': 66.667, 'test_accuracy': 0.0}


@pytest.mark.extensions
@withPackage('torch_sparse')
@pytest.mark.parametrize('way', [
    ('agcn', 'neighbor', 'raw'), ('agcn', 'neighbor', 'running'),
    ('agcn_paper', 'neighbor', 'weighted')])
def test_batches(way, monkeypatch):
    monkeypatch.setattr(minibatch, 'load', lambda *_, **__: blocks())
    row = minibatch.measure(task(*way, steps=60), 'data')
    assert set(row) == set(minibatch.TABLE.own_columns)
    assert row['nodes'] < 120 and row['test_accuracy'] > 75
    found = json.loads(row['batch_gates'])
    if way[2] == 'running':
        assert {k: np.shape(v) for k, v in found.items()} == {
            'trained': (1, 2), 'running': (1, 2), 'raw': (4, 2),
            'weighted': (4, 2)}
    else:
        assert found == {}


# What comes of it ############################################################


def rows_of(values):
    batch_gates = json.dumps({'trained': [[1.0, 0.6]],
                              'running': [[1.0, 0.52]],
                              'raw': [[1.0, 0.9], [0.9, 0.7]],
                              'weighted': [[1.0, 0.4], [1.0, 0.6]]})
    return pd.DataFrame([
        dict(method=method, dataset='PubMed', sampling=sampling,
             estimate=estimate, seed=seed, settings='{}', nodes=100,
             best_epoch=9, val_accuracy=1.0, test_accuracy=accuracy,
             gates='1 0.5', seconds=2.0,
             batch_gates=batch_gates if estimate == 'running' else '{}')
        for (method, sampling, estimate), accuracies in values.items()
        for seed, accuracy in enumerate(accuracies)])


ROWS = {('agcn', 'full', 'exact'): [79.0, 80.0, 81.0],
        ('agcn', 'neighbor', 'raw'): [77.0, 78.0, 79.0],
        ('agcn', 'neighbor', 'weighted'): [79.0, 80.1, 81.1],
        ('agcn', 'neighbor', 'running'): [80.0, 80.0, 80.0],
        ('agcn_paper', 'full', 'exact'): [79.0]}


def test_tables():
    rows = rows_of(ROWS)
    old = rows_of({('agcn', 'full', 'exact'): [1.0]}).assign(settings='{"p"}')
    accuracy, = minibatch.tables(pd.concat([old, rows])).values()
    assert accuracy.iloc[:, 1:].values.tolist() == [
        ['DiffusedMLP', 'whole graph', '80.0 ± 0.6 (3)', '–'],
        ['DiffusedMLP', 'batch as it is', '78.0 ± 0.6 (3)', '-2.00 ± 0.00'],
        # Differences of 0, 0.1 and 0.1, and 4.303 standard errors:
        ['DiffusedMLP', 'batch, ImportanceWeights', '80.1 ± 0.6 (3)',
         '+0.07 ± 0.14'],
        ['DiffusedMLP', 'running mean of batches', '80.0 ± 0.0 (3)',
         '+0.00 ± 2.48'],
        ['AGCN (paper)', 'whole graph', '79.0 (1)', '–']]
    assert ('worse: DiffusedMLP on PubMed (batch as it is) -2.00 ± 0.00'
            in minibatch.answer(rows))


def test_figures(tmp_path):
    pytest.importorskip('matplotlib')
    paths = minibatch.draw(rows_of(ROWS), tmp_path)
    assert {path.stem for path in paths} == set(minibatch.CAPTIONS)
    assert all(path.stat().st_size > 1000 for path in paths)
    few = rows_of({('agcn', 'full', 'exact'): [79.0]})
    assert minibatch.draw(few, tmp_path) == []


def test_tasks(tmp_path):
    todo = minibatch.tasks(runner.parse(minibatch, []))
    assert len(set(todo)) == len(todo) == 6 * (1 + 3 + 3)
    assert [t.seed for t in todo] == sorted(t.seed for t in todo)
    todo = minibatch.tasks(runner.parse(minibatch, ['--quick']))
    assert {t.dataset for t in todo} == {'Cora'} and len(todo) == 3

    # What was run is found again in the file:
    file = Table(tmp_path / 'minibatch.csv', minibatch.TABLE.own_columns)
    file.append(**{**dict.fromkeys(file.own_columns, 1), **todo[0]._asdict()})

    def measure(task, root):
        raise AssertionError(task)

    assert runner.run_missing(todo[:1], file, measure, 1, 'data') == []
