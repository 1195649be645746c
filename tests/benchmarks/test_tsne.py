import json

import numpy as np
import pandas as pd
import pytest
import torch
from torch_geometric.data import Data

from benchmarks import plots, runner, tsne
from benchmarks.baselines import agcn
from benchmarks.settings import Task, run_of, settings_of


def rows_of(values, dataset='MNIST', **more):
    r"""Rows whose four measures are the same number, one for each seed."""
    return pd.DataFrame([
        dict(method=method, dataset=dataset, split='random', seed=seed,
             settings='{}', width=16, nodes=5, test_accuracy=90.,
             **dict.fromkeys(tsne.MEASURES, value), **more)
        for method, some in values.items() for seed, value in enumerate(some)])


def test_one_weight_matrix_leads_from_the_embedding_to_the_scores():
    y = torch.arange(40) % 3
    edge_index = torch.randint(40, (2, 60))
    edge_index = torch.cat([edge_index, edge_index.flip(0)], dim=1)
    data = Data(x=torch.rand(40, 8), y=y, num_nodes=40,
                edge_index=edge_index.unique(dim=1),
                train_mask=torch.arange(40) < 20,
                val_mask=torch.arange(40) >= 20)
    for method in tsne.LABELS:
        settings = settings_of(method, 'Cora', epochs=5, patience=5)
        run = run_of(method)(data, 0, **json.loads(settings))
        model = run.model
        h = tsne.embed(model, data)
        assert h.shape == (40, json.loads(settings)['hidden_channels'])
        with torch.no_grad():
            if method == 'agcn':
                gates = agcn.gates(model, data)
                assert len(gates) > 1 and max(gates) - min(gates) > 0.01
                out = model.lins[1](h) + model.bias
            else:
                assert float(h.min()) >= 0
                last = (model.model if method == 'agcn_paper' else
                        model).convs[-1]
                out = last(h, data.edge_index)
        torch.testing.assert_close(out.log_softmax(dim=-1), run.logits,
                                   atol=1e-5, rtol=1e-5)


def test_purity_by_hand():
    points = np.array([[0.], [1], [10], [11], [12]])
    assert tsne.purity(points, np.array([0, 0, 1, 1, 1]), k=1) == 1
    assert tsne.purity(points, np.array([0, 1, 0, 1, 0]), k=1) == 0
    # Two neighbors: 1, 10; 0, 10; 11, 12; 10, 12; 11, 10.
    assert tsne.purity(points, np.array([0, 0, 1, 1, 1]), k=2) == 0.8


def test_measure(tmp_path):
    rows = []
    for method, seed in [('gcn', 0), ('agcn', 0), ('gcn', 1)]:
        settings = settings_of(method, 'Digits', epochs=15, patience=15)
        rows.append(tsne.measure(Task(method, 'Digits', 'random', seed,
                                            settings), str(tmp_path)))
    for row in rows:
        assert set(row) == set(tsne.TABLE.own_columns)
        # Better than chance before and after, or nothing has been learnt:
        assert min(row['purity'], row['purity_tsne']) > 0.5
        assert row['nodes'] == 1797
    first, second, other = rows
    assert first['labels'] == second['labels'] != ''
    assert len(first['x'].split()) == len(first['y'].split()) == 1797
    assert other['x'] == other['labels'] == ''  # of the first seed only
    # What is kept is what was measured:
    points = np.array([first['x'].split(), first['y'].split()], float).T
    labels = np.array(first['labels'].split(), int)
    assert tsne.purity(points, labels) == pytest.approx(
        first['purity_tsne'], abs=0.01)


def test_claims():
    gcn, better = [0.3, 0.5, 0.4], [0.4, 0.6, 0.5]
    claim, = tsne.claims(rows_of({'gcn': gcn, 'agcn_paper': gcn}))
    assert claim.holds == 'no'
    assert 'silhouette +0.000 ± 0.000' in claim.measured
    rows = rows_of({'gcn': gcn, 'agcn_paper': better})
    claim, = tsne.claims(rows)
    assert claim.holds == 'yes'
    assert 'purity after t-SNE +0.100 ± 0.000' in claim.measured
    # One of the measures is enough to say no, and another data set is not
    # enough to say yes:
    assert tsne.claims(rows.assign(dataset='Digits'))[0].holds == 'not shown'
    rows.loc[rows.method == 'agcn_paper', 'silhouette'] -= 0.3
    assert tsne.claims(rows)[0].holds == 'no'
    claim, = tsne.claims(rows_of({'gcn': [0.3], 'agcn_paper': [0.4]}))
    assert claim.measured == 'Not two seeds of both yet.'


def test_tables():
    frame, = tsne.tables(rows_of({'gcn': [0.2, 0.4]})).values()
    assert frame.values.tolist() == [
        ['MNIST', 'GCN', 2, 5, *['0.300 ± 0.100'] * 4]]
    # Wider layers do not compare, nor do parts of the nodes:
    for other in [dict(width=[16, 64]), dict(nodes=[5, 3])]:
        rows = rows_of({'gcn': [0.2], 'agcn': [0.9]}).assign(**other)
        frame, = tsne.tables(rows).values()
        assert frame.iloc[:, 1].tolist() == ['GCN']


def test_draw(tmp_path, monkeypatch):
    figures = {}

    def keep(figure, folder, name):
        figures[name] = figure
        return []

    monkeypatch.setattr(plots, 'save', keep)
    rows = rows_of({'gcn': [0.3, 0.4], 'agcn': [0.3, 0.4]}, x='0 1 5 7 8',
                   y='0 0 0 1 1', labels='3 3 3 1 1')
    rows.loc[rows.method == 'agcn', 'x'] = '0 1 5 7 9'
    rows.loc[rows.method == 'agcn', 'purity'] = 0.5
    same = rows[rows.method == 'gcn'].assign(method='agcn_paper')
    rows = pd.concat([rows, same], ignore_index=True)
    rows.loc[rows.seed > 0, ['x', 'y', 'labels']] = np.nan
    tsne.draw(rows, tmp_path)
    figure = figures['tsne_mnist']
    assert set(figures) <= set(tsne.CAPTIONS) and len(figure.axes) == 2
    assert [axis.get_title() for axis in figure.axes] == [
        'MNIST: GCN and AGCN (paper)\nsilhouette 0.300, purity 0.300',
        'MNIST: DiffusedMLP\nsilhouette 0.300, purity 0.500']
    for axis, last in zip(figure.axes, [8, 9]):
        one, three = axis.collections
        assert one.get_offsets().tolist() == [[7, 1], [last, 1]]
        assert three.get_offsets().tolist() == [[0, 0], [1, 0], [5, 0]]
        # The number stands at the point nearest to the median:
        assert [(text.get_text(), *text.xy) for text in axis.texts] == [
            ('1', 7, 1), ('3', 1, 0)]
    plots.plt.close(figure)


def test_tasks():
    full, quick = (tsne.tasks(runner.parse(tsne, argv))
                   for argv in [[], ['--quick']])
    assert [task.seed for task in full] == sorted(3 * [*range(5)])
    assert {task.dataset for task in full} == {'MNIST'}
    assert {task.dataset for task in quick} == {'Digits'}
    # Nothing but the gate tells the paper's network from GCN:
    gcn, paper, _ = [json.loads(task.settings) for task in full[:3]]
    assert all(paper[key] == value for key, value in gcn.items())
    assert {json.loads(task.settings)['hidden_channels']
            for task in full} == {16}
