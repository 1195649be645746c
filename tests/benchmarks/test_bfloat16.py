import pandas as pd
import pytest

from benchmarks import bfloat16
from benchmarks.bfloat16 import AUTOCAST, EXACT, METHODS, Task


@pytest.mark.parametrize('method', METHODS)
def test_measure(method, tmp_path, monkeypatch):
    monkeypatch.setitem(bfloat16.SCHEDULE, 'epochs', 2)
    for precision in [EXACT, AUTOCAST]:
        row = bfloat16.measure(Task(method, 'Cora', precision, 0),
                               str(tmp_path))
        assert set(row) == set(bfloat16.TABLE.own_columns)
        assert row['epochs'] == 2


def test_products_are_large_enough():
    nodes = {'Cora': 2708, 'CiteSeer': 3327, 'PubMed': 19717}
    assert set(nodes) == set(bfloat16.CITATION)
    for name, number in nodes.items():
        assert number * bfloat16.WIDTH[name] >= 2**20


def test_tables():
    rows = pd.DataFrame([
        dict(method='AGCN (paper)', dataset='Cora', precision=precision,
             seed=seed, test_accuracy=80 + seed + 0.5 * (precision != EXACT))
        for seed in range(3) for precision in [EXACT, AUTOCAST]])
    frame, = bfloat16.tables(rows).values()
    assert frame.values.tolist() == [[
        'AGCN (paper)', 'Cora', '81.0 ± 0.6 (3)', '81.5 ± 0.6 (3)',
        '+0.50 ± 0.00']]
    assert bfloat16.answer(rows).endswith('on Cora +0.50 ± 0.00.')
    rows = rows[rows.precision == EXACT]
    frame, = bfloat16.tables(rows).values()
    assert frame.values.tolist()[0][3:] == ['–', '–']
    assert bfloat16.answer(rows) == ''
