import pandas as pd
import pytest

pytest.importorskip('matplotlib')
from benchmarks import weights
from benchmarks.weights import Task


def test_measure(tmp_path):
    row = weights.measure(Task('weights', 'small', 0), str(tmp_path))
    assert set(row) == set(weights.TABLE.own_columns)
    assert (row['nodes'], row['edges'], row['channels']) == (1000, 10_000, 64)
    assert row['seconds'] > 0 and row['extra_mb'] >= 0


def test_graph(tmp_path):
    data = weights.graph('small', str(tmp_path))
    assert data.is_undirected() or data.has_isolated_nodes()
    row, col = data.edge_index
    assert float((row % 2 != col % 2).double().mean()) == pytest.approx(0.1)


def test_tables(tmp_path):
    row = dict(method='weights', dataset='small', nodes=1000, edges=10_000,
               channels=64)
    rows = pd.DataFrame([
        {**row, 'repeat': 0, 'seconds': 9., 'extra_mb': 9, 'commit': 'old'},
        {**row, 'repeat': 0, 'seconds': 1., 'extra_mb': 5, 'commit': 'new'},
        {**row, 'repeat': 1, 'seconds': 2., 'extra_mb': 7, 'commit': 'new'}])
    frame, = weights.tables(rows).values()
    assert frame.values.tolist() == [
        ['small', '1,000', '10,000', 64, '1.50', '6', 2]]
    assert weights.draw(rows, tmp_path) == [] == weights.claims(rows)
