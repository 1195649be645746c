import pandas as pd
import pytest

from benchmarks import hops
from benchmarks.results import Table

SMALL = dict(nodes=200, edges=1000, features=8)


def test_times_and_memory(tmp_path):
    table = Table(tmp_path / 'hops.csv', hops.TABLE.own_columns)
    hops.times(table, [1, 4], 2, SMALL)
    rows = table.read()
    assert len(rows) == 2 * 2 * 2 and (rows.milliseconds > 0).all()
    assert rows.groupby('hops').recompute.value_counts().tolist() == [2] * 4
    # 24 hops that keep two times 1.5 MB each, and half a dozen that do:
    sizes = dict(nodes=6000, edges=10_000, features=64)
    hops.memory(table, [24], sizes)
    plain, recomputed = table.read().megabytes.dropna()
    assert 2 * 24 * 1.46 <= plain + 1 <= 3 * 24 * 1.46
    assert recomputed <= 0.6 * plain


def test_tables():
    def row(case, recompute, K, value, commit='new'):
        time = case == 'time'
        return dict(case=case, recompute=recompute, hops=K, commit=commit,
                    milliseconds=value if time else None,
                    megabytes=None if time else value)

    rows = [row('time', False, 1, 1.0, 'old')]
    for K in [1, 4, 16, 64]:
        for noise in [0.5, 1.0, 7.0]:
            rows += [row('time', False, K, noise * 10 * K),
                     row('time', True, K, noise * 10 * K**1.1)]
        rows += [row('memory', False, K, 3 * K),
                 row('memory', True, K, 5 * K**0.4)]
    by_hops, bounds = hops.tables(pd.DataFrame(rows)).values()
    assert by_hops.values.tolist()[1] == [
        '4', '40 ms', '1.00', '45.95 ms', '1.15', '12 MB', '8.706 MB']
    assert bounds.values.tolist() == [
        ['time over hops x one hop', '1.00 at most', '1.15', 'yes'],
        ['memory as hops to the power of', '1.00', '–', '–'],
        ['time over hops x one hop, recomputed', '1.52 at most', '–', '–'],
        ['memory as hops to the power of, recomputed', '0.40', '0.50', 'yes'],
    ]
    assert hops.exponent(pd.Series({1: 50, 8: 4, 32: 16})) == pytest.approx(1)
    few = hops.tables(pd.DataFrame(rows[:1]))
    assert few['Bounds'].values.tolist() == [
        ['time over hops x one hop', '1.00 at most', '1.15', 'yes']]
