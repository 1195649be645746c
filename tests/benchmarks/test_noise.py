import json

import pandas as pd
import pytest
import torch

pytest.importorskip('matplotlib')
from benchmarks import noise, runner
from benchmarks.noise import Estimate, Task
from benchmarks.results import Table


@pytest.fixture(autouse=True)
def short(monkeypatch):
    r"""Three epochs, and no graph of another test."""
    grids = {}
    for method, (run, grid) in noise.GRIDS.items():
        def quick(*args, run=run, **kwargs):
            return run(*args, **{**kwargs, 'epochs': 3})
        grids[method] = quick, grid
    monkeypatch.setattr(noise, 'GRIDS', grids)
    noise.graph.cache_clear()
    noise.weighted.cache_clear()


def task_of(method, attack='random', level=0.5, weighted=0, dataset='Cora'):
    return Task(method, dataset, attack, level, weighted, 3,
                noise.configurations(method)[0])


@pytest.mark.parametrize('weighted, method', [
    (w, method) for w in [0, 1] for method in noise.FAMILIES['random'][3 + w]])
def test_random_edges(method, weighted, tmp_path):
    row = noise.measure(task_of(method, weighted=weighted), str(tmp_path))
    assert set(row) == set(noise.TABLE.own_columns)
    assert 0 < row['test_score'] < 100
    assert 'test_score' not in noise.search(
        task_of(method, weighted=weighted), str(tmp_path))
    assert noise.graph('Cora', 'random', 0.5, 3,
                       str(tmp_path)).num_edges == 1.5 * 10556


@pytest.mark.parametrize('method, threshold', [('gcn', None), ('gat', 0.5)])
def test_weights_reach_the_method(method, threshold, tmp_path, monkeypatch):
    seen = []
    run, grid = noise.GRIDS[method]
    monkeypatch.setitem(noise.GRIDS, method, (
        lambda data, *args, **kwargs: (seen.append(data),
                                       run(data, *args, **kwargs))[1], grid))
    for weighted in [0, 1]:
        noise.measure(task_of(method, weighted=weighted), str(tmp_path))
    plain, ours = seen
    assert 'edge_weight' not in plain
    if threshold is None:
        assert torch.equal(plain.edge_index, ours.edge_index)
        assert 0.4 < ours.edge_weight.mean() < 0.9
    else:
        assert 'edge_weight' not in ours
        assert ours.num_edges < plain.num_edges


def test_attacks(tmp_path, monkeypatch):
    monkeypatch.setattr(noise.attacks, 'prbcd', lambda model, data, *_, **k: (
        model(data.x, data.edge_index), data.edge_index[:, :5000])[1])
    for attack, weighted in [('dice', 0), ('prbcd', 1), ('adaptive', 1)]:
        for method in noise.FAMILIES[attack][3 + weighted][-1:]:
            row = noise.measure(task_of(method, attack, 0.05, weighted),
                                str(tmp_path))
            assert 0 < row['test_score'] < 100


def test_neighbors_of_digits(tmp_path):
    row = noise.measure(task_of('gcn', 'knn', 16.0, 1, 'Digits'),
                        str(tmp_path))
    assert row['test_score'] > 50
    data = noise.graph('Digits', 'knn', 16.0, 3, str(tmp_path))
    assert 16 * 1797 <= data.num_edges <= 32 * 1797


def test_scores():
    y = torch.tensor([0, 1, 1])
    out = torch.tensor([[0.3, 0.0], [0.0, 0.1], [0.0, -0.5]])
    assert noise.score('Cora', out, y) == 66.667
    assert noise.score('minesweeper', out, y) == 50.0


def test_estimate(tmp_path):
    task = Estimate('weights', 'Cora', 'random', 1.0, 3)
    row = noise.estimate(task, str(tmp_path))
    assert set(row) == set(noise.ESTIMATES.own_columns)
    assert row['true_share'] == 0.5 and abs(row['share'] - 0.5) < 0.1
    assert row['auc'] > 90 and row['own_weight'] > 3 * row['added_weight']
    assert noise.estimate(task._replace(level=0.0), str(tmp_path))['auc'] == ''
    frame = noise.estimates(pd.DataFrame([row, row]))
    assert frame.values.tolist()[0][:3] == ['Cora', '100%', '0.50']


def test_validation_chooses(monkeypatch):
    monkeypatch.setattr(noise, 'configurations', lambda _: ['a', 'b'])
    rows = pd.DataFrame([
        dict(method='gcn', dataset='Cora', attack='random', level=0.5,
             weighted=w, settings=settings, val_score=score)
        for w, settings, score in [(0, 'a', 70.), (0, 'b', 71.),
                                   (1, 'a', 75.), (1, 'b', 75.),
                                   (1, 'gone', 99.)]])
    assert noise.chosen(rows) == {('gcn', 'Cora', 'random', 0.5, 0): 'b',
                                  ('gcn', 'Cora', 'random', 0.5, 1): 'a'}


def test_no_peer_has_less_to_choose_from():
    for method in noise.PEERS:
        assert len(noise.configurations(method)) == 12
    for method in noise.FAMILIES['random'].weighted:
        assert len(noise.configurations(method)) == 4
    cells = noise.cells(['random'], ['Cora'], ['mlp', 'gcn', 'gnnguard'])
    assert len(cells) == 5 + 5 + 5 + 1  # GCN twice, a peer, and MLP once


def rows_of(scores):
    return pd.DataFrame([
        dict(method=method, dataset='Cora', attack='random', level=level,
             weighted=weighted, seed=100 + i, settings='{}', test_score=score)
        for (method, weighted, level), values in scores.items()
        for i, score in enumerate(values)])


def test_tables_by_hand(tmp_path, monkeypatch):
    monkeypatch.setattr(noise, 'ESTIMATES', Table(tmp_path / 'none.csv', [
        'dataset']))
    rows = rows_of({
        ('gcn', 0, 0.0): [80., 82.], ('gcn', 1, 0.0): [80., 82.],
        ('gcn', 0, 1.0): [70., 70.], ('gcn', 1, 1.0): [77., 78.],
        ('gnnguard', 0, 1.0): [72., 74.], ('gcn_svd', 0, 1.0): [60., 60.]})
    ours = 'GCN with AnisotropicWeights'
    scores, gains = noise.tables(rows).values()
    assert scores.values.tolist() == [
        ['GCN', '81.0 ± 1.0 (2)', '70.0 ± 0.0 (2)'],
        [ours, '81.0 ± 1.0 (2)', '77.5 ± 0.5 (2)'],
        ['GCN-SVD', '–', '60.0 ± 0.0 (2)'],
        ['GNNGuard', '–', '73.0 ± 1.0 (2)']]
    assert gains.values.tolist() == [
        ['Cora', ours, 'GCN', '+0.0 ± 0.0', '+7.5 ± 6.4'],
        ['Cora', ours, 'GCN-SVD', '–', '+17.5 ± 6.4'],
        ['Cora', ours, 'GNNGuard', '–', '+4.5 ± 6.4']]
    old = rows.assign(settings='old', test_score=0.)
    again = noise.tables(pd.concat([old, rows]))
    assert next(iter(again.values())).equals(scores)
    assert all(path.exists() for path in noise.draw(rows, tmp_path))
    assert noise.draw(rows[:0], tmp_path) == []


def test_rows_of_graphs_by_nature(monkeypatch, tmp_path):
    monkeypatch.setattr(noise, 'ESTIMATES', Table(tmp_path / 'none.csv', [
        'dataset']))
    rows = rows_of({('mlp', 0, 0.0): [80.], ('gcn', 0, 0.0): [60.]}).assign(
        attack='none', dataset='texas')
    more = rows_of({('gcn', 0, 0.0): [30.], ('appnp', 0, 0.0): [5.]}).assign(
        attack='none', dataset='actor')
    frame, = noise.tables(pd.concat([rows, more])).values()
    assert list(frame) == ['', 'texas', 'actor']
    assert frame.values.tolist() == [
        ['MLP', '80.0 (1)', '–'], ['GCN', '60.0 (1)', '30.0 (1)'],
        ['APPNP', '–', '5.0 (1)']]


def test_main_searches_first(monkeypatch, tmp_path):
    calls = []

    def run_missing(tasks, table, measure, jobs, root):
        calls.append((table.path.name, tasks))
        for task in tasks if measure is noise.search else []:
            table.append(**task._asdict(), epochs=1, seconds=1, val_score=len(
                task.settings))
        return []

    for name in ['SEARCH', 'ESTIMATES', 'TABLE']:
        table = getattr(noise, name)
        monkeypatch.setattr(noise, name, Table(tmp_path / table.path.name,
                                               table.own_columns))
    monkeypatch.setattr(runner, 'run_missing', run_missing)
    noise.main(['--attacks', 'random', 'dice', '--datasets', 'Cora',
                '--methods', 'gcn', '--runs', '2'])
    (search, tried), (_, guesses), (_, tasks) = calls
    assert search == 'noise_search.csv' and len(tried) == 4 * 2 * 8
    assert {task.seed for task in tried} == {noise.SEARCH_SEED}
    assert len(guesses) == 2 * 5
    assert {task.seed for task in tasks} == {100, 101} and len(tasks) == 32
    longest = max(noise.configurations('gcn'), key=len)
    assert all(len(task.settings) == len(longest) for task in tasks)
    assert set(json.loads(longest)) == {'p', 'weight_decay'}
