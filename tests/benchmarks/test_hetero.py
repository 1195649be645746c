import json
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

pytest.importorskip('matplotlib')
from benchmarks import hetero, runner
from benchmarks.baselines import agcn
from benchmarks.results import provenance
from benchmarks.sparse import CSR

KEYS = [('director', 'directed', 'movie'), ('movie', 'rev_directed',
                                            'director')]
SETTINGS = dict(hidden_channels=8, num_layers=2, weight_decay=5e-4, epochs=3,
                patience=50, lr=0.01, p=0.5)


@pytest.fixture
def graph(monkeypatch):
    y = torch.arange(30) % 3
    x = {'movie': (torch.rand(30, 9) < 0.2).float(),
         'director': (torch.rand(10, 7) < 0.2).float()}
    x['movie'][torch.arange(30), y] = 1
    edge_index = torch.stack([torch.arange(30) % 10, torch.arange(30)])
    role = torch.arange(30) // 10
    graph = SimpleNamespace(
        x={kind: CSR.from_tensor(v) for kind, v in x.items()}, y=y,
        edge_index=dict(zip(KEYS, [edge_index, edge_index.flip(0)])),
        train_mask=role == 0, val_mask=role == 1, test_mask=role == 2)
    monkeypatch.setattr(hetero, 'load', lambda root: graph)
    return graph


@pytest.mark.parametrize('method', list(hetero.METHODS))
def test_measure(graph, method):
    task = hetero.Task(method, 'IMDB', 1, runner.as_json(**SETTINGS))
    row = hetero.measure(task, 'data')
    assert {*row, *provenance()} == set(hetero.TABLE.columns)
    assert row['epochs'] == 3
    again = hetero.measure(task, 'data')
    assert {**row, 'seconds': 0} == {**again, 'seconds': 0}
    gates = [float(gate) for gate in row['gates'].split()]
    # Two layers of two types of edges:
    assert len(gates) == 4 * method.startswith('agcn')
    if method == 'agcn_open':
        assert gates == [1] * 4


def test_network_by_hand(graph):
    model = hetero.Net('agcn', graph, 3, 8, 1, 0.5).eval()
    x = {kind: model.encoders[kind](v @ torch.eye(v.size(1))).relu()
         for kind, v in graph.x.items()}
    conv = model.convs[0].convs[KEYS[0]]
    h = conv((x['director'], x['movie']), graph.edge_index[KEYS[0]])
    h = (h + model.own[0]['movie'](x['movie'])).relu()
    assert torch.allclose(model(graph.x, graph.edge_index), model.lin(h),
                          atol=1e-5)
    gates = agcn.gates(model, graph)
    assert gates[0] == pytest.approx(float(conv.gate(
        (x['director'], x['movie']), graph.edge_index[KEYS[0]])), rel=1e-4)
    model = hetero.Net('none', graph, 3, 8, 1, 0.5).eval()
    x = model.encoders['movie'](graph.x['movie'] @ torch.eye(9)).relu()
    assert torch.allclose(model(graph.x, graph.edge_index),
                          model.lin(model.own[0]['movie'](x).relu()),
                          atol=1e-5)


def test_f1_score():
    true = torch.tensor([0, 0, 0, 1])
    # Class 0: TP 2, FN 1; class 1: TP 1, FP 1.
    assert hetero.f1_score(torch.tensor([0, 0, 1, 1]), true) == pytest.approx(
        (0.8 + 2 / 3) / 2)
    assert hetero.f1_score(true, true) == 1


def rows_of(accuracies):
    rows = []
    for (method, p), values in accuracies.items():
        for seed, (val, test) in enumerate(values):
            rows.append(dict(
                method=method, dataset='IMDB', seed=seed, epochs=10,
                settings=runner.as_json(lr=0.01, p=p), val_accuracy=val,
                test_accuracy=test, test_f1=test - 1, seconds=2.0,
                gates='0.25 1' if 'agcn' in method else None))
    return pd.DataFrame(rows)


def test_tables_and_figures(tmp_path):
    found = {('sage', 0.5): [(70, 60), (72, 62)],
             ('sage', 0.8): [(60, 90), (60, 90)],  # worse in validation
             ('gat', 0.5): [(70, 50), (70, 50)],
             ('agcn', 0.5): [(70, 59), (70, 61)]}
    rows = rows_of(found)
    table, = hetero.tables(rows).values()
    assert table.values.tolist() == [
        ['GraphSAGE', '61.0 ± 1.0 (2)', '60.0 ± 1.0 (2)', '-1.0 ± 0.0', '–'],
        ['GAT', '50.0 ± 0.0 (2)', '49.0 ± 0.0 (2)', '+10.0 ± 12.7', '–'],
        ['AGCN (relative)', '60.0 ± 1.0 (2)', '59.0 ± 1.0 (2)',
         '–', '0.25 … 1']]
    paths = hetero.draw(rows, tmp_path)
    assert [path.name for path in paths] == ['hetero_imdb.png',
                                             'hetero_imdb.svg']
    assert hetero.answer(rows) == (
        'Test accuracy on IMDB, in points with 95 % intervals: worse: AGCN '
        '(relative) minus GraphSAGE -1.0 ± 0.0; no difference shown: AGCN '
        '(relative) minus GAT +10.0 ± 12.7.')
    assert hetero.answer(rows[rows.method == 'gat']) == ''


def test_tasks(monkeypatch):
    monkeypatch.setattr(hetero, 'IMDB', lambda root: None)
    tasks = hetero.tasks(runner.parse(hetero, ['--runs', '2']))
    assert len(set(tasks)) == len(tasks) == 2 * 4 * 6
    assert [task.seed for task in tasks] == [0] * 24 + [1] * 24
    tasks = hetero.tasks(runner.parse(hetero, ['--quick']))
    assert len(tasks) == 6
    assert {json.loads(task.settings)['epochs'] for task in tasks} == {30}
