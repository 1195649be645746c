import json

import pandas as pd
import pytest

from benchmarks import settings as harness
from benchmarks import table, verify
from benchmarks.results import Table


@pytest.fixture
def place(tmp_path, monkeypatch):
    r"""A table with four rows of one that takes no time."""
    own = Table(tmp_path / 'table.csv', harness.COLUMNS)
    monkeypatch.setattr(table, 'TABLE', own)
    settings = json.loads(harness.settings_of('mlp', 'Cora'))
    text = harness.as_json(**{**settings, 'epochs': 2, 'patience': 2})
    for seed in range(3):
        own.append(**harness.measure(harness.Task(
            'mlp', 'Cora', 'public', seed, text), str(tmp_path)))
    return tmp_path


def run(place, *argv):
    verify.main(['--experiments', 'table', '--jobs', '1', '--root',
                 str(place), *argv])


def test_rows_that_come_out_the_same(place, capsys):
    run(place, '--sample', '2', '--datasets', 'Cora')
    out = capsys.readouterr().out
    assert out.count(': same\n') == 2
    assert '2 of 2 rows are the same.' in out


def test_rows_that_do_not(place, capsys):
    path = table.TABLE.path
    rows = pd.read_csv(path, dtype=str)
    rows.loc[1, 'val_loss'] = '1.5'
    rows['seconds'], rows['peak_mb'] = '0', '0'  # which may differ
    rows.to_csv(path, index=False)
    with pytest.raises(SystemExit) as error:
        run(place, '--methods', 'mlp')
    assert error.value.code == 1
    out = capsys.readouterr().out
    assert '2 of 3 rows are the same.' in out
    line, = [line for line in out.splitlines() if 'was 1.5, is ' in line]
    assert line.startswith('table (mlp, Cora, public, 1): val_loss was 1.5')


def test_no_rows(place):
    with pytest.raises(SystemExit, match='no such rows'):
        run(place, '--datasets', 'PubMed')


def test_what_is_picked():
    frames = {name: pd.DataFrame(dict(seconds=seconds))
              for name, seconds in [('a', [3.0, 1.0, 4.0]), ('b', [2.0]),
                                    ('c', [])]}
    assert verify.cheapest(frames, 2) == [('a', 1), ('b', 0)]
    picked = verify.pick(frames, 3, seed=0)
    assert [name for name, _ in picked] == ['a', 'b', 'a']
    assert picked == verify.pick(frames, 3, seed=0)
    assert len(verify.pick(frames, 9, seed=0)) == 4
    assert len({tuple(verify.pick(frames, 3, seed)) for seed in range(9)}) > 1


def test_differences():
    before = dict(a=1.0, b='0.50', gates=float('nan'), seconds=1, date='x',
                  purity_tsne=0.5)
    after = dict(a=1, b=0.5, gates='', seconds=2, date='y', purity_tsne=0.6)
    assert verify.differences(before, after) == {}
    assert verify.differences(before, {**after, 'a': 1.5}) == {
        'a': ('1', '1.5')}


def test_long_texts_are_shown_where_they_differ():
    a = '0.25 ' * 10_000
    b = a[:600] + '0.75 ' + a[605:]
    first, second = verify.excerpt(a, b), verify.excerpt(b, a)
    assert first != second and '0.75' in second
    assert len(first) < 50
    assert verify.excerpt('1.5', '1.6') == '1.5'


@pytest.mark.parametrize('name', verify.EXPERIMENTS)
def test_all_experiments_can_be_verified(name):
    module = verify.importlib.import_module(f'benchmarks.{name}')
    rows = verify.rows_of(name)
    assert len(rows)
    task = verify.task_of(module, rows.iloc[0])
    assert isinstance(task, module.Task) and callable(module.measure)
    assert set(task._fields) <= set(module.TABLE.own_columns)


def test_all_values_of_beta_are_rows():
    rows = verify.rows_of('beta')
    assert rows.beta.nunique() > 10
    assert not rows.duplicated(['method', 'dataset', 'beta', 'seed']).any()
