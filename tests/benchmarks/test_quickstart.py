import pandas as pd
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

pytest.importorskip('matplotlib')
from benchmarks import runner

quickstart = pytest.importorskip('benchmarks.quickstart')


def tiny(sparse):
    y = torch.arange(30) % 3
    x = torch.nn.functional.one_hot(y, 8).float()
    role = torch.arange(30) // 10
    edges = torch.randint(30, (2, 45),
                          generator=torch.Generator().manual_seed(0))
    return Data(x=x.to_sparse().coalesce() if sparse else x, y=y,
                num_nodes=30, edge_index=to_undirected(edges),
                train_mask=role == 0, val_mask=role == 1, test_mask=role == 2)


@pytest.fixture
def here(tmp_path, monkeypatch):
    r"""A folder, small graphs, and runs that are made without processes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(quickstart, 'load', lambda name, *_: tiny(
        sparse=name == 'Cora'))
    monkeypatch.setitem(quickstart.OPTIONS, 'depths', [2, 32])
    monkeypatch.setitem(quickstart.OPTIONS, 'size', 100)
    monkeypatch.setattr(runner, 'execute', lambda tasks, measure, _, root: (
        (task, measure(task, root), '') for task in tasks))
    quickstart.take_times.cache_clear()
    return tmp_path


@pytest.mark.filterwarnings('ignore:The last row', 'ignore:.*random pairs')
def test_quickstart_goes_on_where_it_stopped(here, capsys):
    runner.main(quickstart, ['--runs', '1'])
    path = here / 'quickstart' / 'quickstart.csv'
    rows = pd.read_csv(path)
    # Three layers, four shares of edges with two methods, three models on
    # two graphs, two depths of three methods:
    assert rows.groupby('part').size().to_dict() == {
        'speed': 3, 'wrong edges': 8, 'models': 6, 'depth': 6}
    assert not rows.duplicated(list(quickstart.Task._fields)).any()
    assert rows.test_accuracy.dropna().between(0, 100).all()
    assert (rows[rows.part == 'speed'].milliseconds > 0).all()
    text = capsys.readouterr().out
    for word in ['Cora', 'Digits', 'AGCN (paper)', 'DiffusedMLP', 'AGCNConv',
                 'AnisotropicWeights', 'What to try next', '32 steps']:
        assert word in text
    assert 'nan' not in text
    assert path.with_suffix('.png').stat().st_size > 1000

    # A killed process may leave half a row behind:
    path.write_bytes(path.read_bytes()[:-30])
    runner.main(quickstart, ['--runs', '1'])
    again = pd.read_csv(path)
    assert len(again) == len(rows)
    assert again.test_accuracy.tolist()[3:] == rows.test_accuracy.tolist()[3:]
    assert again.milliseconds.tolist()[:3] == rows.milliseconds.tolist()[:3]
