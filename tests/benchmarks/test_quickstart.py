import pandas as pd
import pytest
import torch
from torch_geometric.data import Data

pytest.importorskip('matplotlib')
quickstart = pytest.importorskip('benchmarks.quickstart')


def tiny(sparse):
    y = torch.arange(30) % 3
    x = torch.nn.functional.one_hot(y, 8).float()
    role = torch.arange(30) // 10
    return Data(x=x.to_sparse().coalesce() if sparse else x, y=y,
                num_nodes=30, edge_index=torch.randint(30, (2, 90)),
                train_mask=role == 0, val_mask=role == 1, test_mask=role == 2)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setattr(quickstart, 'load', lambda root: {
        'Cora': tiny(sparse=True), 'Digits': tiny(sparse=False)})
    threads = torch.get_num_threads()
    yield tmp_path
    torch.set_num_threads(threads)


@pytest.mark.filterwarnings('ignore:The last row')
def test_quickstart_goes_on_where_it_stopped(here, capsys):
    arguments = ['--seeds', '1', '--depths', '2', '32', '--out', str(here)]
    quickstart.main(arguments)
    path = here / 'quickstart.csv'
    rows = pd.read_csv(path)
    jobs = list(zip(rows.dataset, rows.method, rows.depth, rows.seed))
    assert len(set(jobs)) == len(jobs) == 12
    table = capsys.readouterr().out
    for word in ['Cora', 'Digits', *quickstart.METHODS, 'ms per epoch']:
        assert word in table
    gates = rows[rows.method == 'AGCN, relative + residual'].gates
    assert all(0 <= float(g) <= 1 for row in gates for g in row.split())
    for name in ['depth', 'gates', 'losses']:
        assert (here / f'quickstart_{name}.png').stat().st_size > 1000

    # A killed process may leave half a row behind:
    path.write_bytes(path.read_bytes()[:-30])
    quickstart.main(arguments)
    again = pd.read_csv(path)
    assert len(again) == 12
    assert again.test_accuracy.tolist() == rows.test_accuracy.tolist()
