import json

import numpy as np
import pandas as pd
import pytest
import torch
from torch_geometric.data import Data

from benchmarks import history, plots, runner
from benchmarks.settings import Task, run_of, settings_of


def tiny():
    y = torch.arange(30) % 3
    role = torch.arange(30) // 10
    return Data(x=torch.nn.functional.one_hot(y, 8).float(), y=y,
                num_nodes=30, edge_index=torch.randint(30, (2, 90)),
                train_mask=role == 0, val_mask=role == 1)


def rows_of(losses):
    r"""Rows from training losses by method, a list for each seed."""
    return pd.DataFrame([
        dict(method=method, dataset='Cora', split='public', seed=seed,
             settings='{}', train_losses=' '.join(map(str, curve)),
             val_losses=' '.join(str(loss + 1) for loss in curve))
        for method, curves in losses.items()
        for seed, curve in enumerate(curves)])


@pytest.mark.parametrize('method', history.LABELS)
def test_runs_keep_their_network_and_losses(method):
    data = tiny()
    settings = settings_of(method, 'Cora', epochs=4, patience=4)
    run = run_of(method)(data, 1, **json.loads(settings))
    logits = run.model(data.x, data.edge_index).log_softmax(dim=-1)
    assert torch.equal(logits, run.logits)
    assert len(run.losses) == run.epochs == 4
    assert min(val for _, val in run.losses) == run.extra['val_loss']


def test_the_papers_gate_changes_nothing_on_cora(tmp_path):
    found = {}
    for method in ['gcn', 'agcn_paper']:
        settings = settings_of(method, 'Cora', epochs=20, patience=20)
        task = Task(method, 'Cora', 'public', 0, settings)
        row = history.measure(task, str(tmp_path))
        assert set(row) == set(history.TABLE.own_columns)
        found[method] = history.curves(pd.DataFrame([row]), 'train_losses')[
            method]
    assert found['gcn'].shape == (1, 20)
    assert found['gcn'][0, 0] == pytest.approx(np.log(7), abs=0.01)
    np.testing.assert_allclose(found['gcn'], found['agcn_paper'],
                               atol=history.ROUNDING)


def test_curves_are_by_seed_and_of_the_last_settings():
    rows = rows_of({'gcn': [[2, 1], [4, 3]]})
    old = rows.assign(settings='{"old": 1}', train_losses='9 9')
    rows = pd.concat([old, rows[::-1]], ignore_index=True)
    found = history.curves(rows, 'train_losses')
    assert {key: part.tolist() for key, part in found.items()} == {
        'gcn': [[2, 1], [4, 3]]}


def test_claims():
    gcn, lower = [[2., 1], [3, 1]], [[1., 0.5], [2, 0.6]]
    claim, = history.claims(rows_of({'gcn': gcn, 'agcn_paper': gcn}))
    assert claim.holds == 'no'
    assert claim.measured.endswith(
        'Cora +0.0000 ± 0.0000; no loss differs by more than 0.')
    # Means of 1.5, 2 and of 0.75, 1.3: differences 0.75 and 0.7.
    claim, = history.claims(rows_of({'gcn': gcn, 'agcn_paper': lower}))
    assert claim.holds == 'yes' and 'equal' not in claim.measured
    assert 'Cora +0.7250 ± 0.3177' in claim.measured
    claim, = history.claims(rows_of({'gcn': gcn, 'agcn_paper': [
        [1., 0.5], [3, 1.1]]}))
    assert claim.holds == 'not shown'
    claim, = history.claims(rows_of({'gcn': gcn[:1], 'agcn_paper': gcn}))
    assert claim.holds == 'not shown'
    assert claim.measured == 'Not two seeds of both yet.'
    assert history.answer(rows_of({'gcn': gcn, 'agcn': lower})) == (
        "Training loss minus GCN's on Cora, the mean of all epochs (less is "
        'better): DiffusedMLP -0.7250 ± 0.3177.')


def test_tables():
    frame, = history.tables(rows_of({'gcn': [[2., 1, 1.5]]})).values()
    assert frame.iloc[0].tolist() == [
        'GCN', 1, '1.5000 ± 0.0000', '1.5000 ± 0.0000', '2.0000 ± 0.0000']


def test_draw(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(plots, 'save',
                        lambda figure, *_: figures.append(figure) or [])
    history.draw(rows_of({'gcn': [[2, 1], [4, 2]], 'agcn': [[1, 0]]}),
                 tmp_path)
    left, right = figures[0].axes
    assert [line.get_ydata().tolist() for line in left.lines] == [
        [3, 1.5], [1, 0]]
    assert right.lines[0].get_ydata().tolist() == [4, 2.5]
    assert left.lines[0].get_xdata().tolist() == [1, 2]
    plots.plt.close(figures[0])


def test_tasks():
    tasks = history.tasks(runner.parse(history, []))
    assert [task.seed for task in tasks] == sorted(3 * [*range(10)])
    for task in tasks:
        assert (task.dataset, task.split) == ('Cora', 'public')
        settings = json.loads(task.settings)
        assert settings['epochs'] == settings['patience'] == 200
