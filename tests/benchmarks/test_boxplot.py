import numpy as np
import pandas as pd
import pytest
from scipy.stats import f

from benchmarks import boxplot, runner, table
from benchmarks.data import CITATION
from benchmarks.results import Table


def rows_of(accuracies, split='random', settings='{}'):
    r"""Rows of Table 1 from accuracies by data set and method."""
    return pd.DataFrame([
        dict(method=method, dataset=dataset, split=split, seed=seed,
             settings=settings, test_accuracy=value)
        for dataset, part in accuracies.items()
        for method, values in part.items()
        for seed, value in enumerate(values)])


WIDE, NARROW = [70., 76, 80, 84, 90], [79., 79.5, 80, 80.5, 81]


def rows(ours, gcn=WIDE, gat=WIDE):
    return rows_of({name: dict(gcn=gcn, gat=gat, agcn_paper=ours, agcn=ours)
                    for name in CITATION})


def test_spread_by_hand():
    part = dict(gcn=[1, 2, 3], gat=[5, 5, 8], agcn_paper=[0, 2, 4])
    tests = boxplot.spread(rows_of({'Cora': part}), 'random')
    assert tests.AGCN.tolist() == ['AGCN, paper'] * 2
    assert tests.beside.tolist() == ['GCN', 'GAT']
    assert tests['std of AGCN'].tolist() == [2, 2]
    assert tests['std beside'].tolist() == [1, pytest.approx(3**0.5)]
    # Distances from the medians 2, 0, 2 and 1, 0, 1 differ by F = 0.8; from
    # the median 0, 0, 3 and from the mean 1, 1, 2, which is F = 1/13 and 0:
    assert tests["Brown-Forsythe's p"].tolist() == pytest.approx(
        [f.sf(0.8, 1, 4), f.sf(1 / 13, 1, 4)])
    assert tests["Levene's p"].tolist() == pytest.approx([f.sf(0.8, 1, 4), 1])


def test_own_rows():
    # The last settings count, and each seed once; no other method or data.
    old = rows_of({'Cora': dict(gcn=[10])}, settings='{"old": 1}')
    new = rows_of({'Cora': dict(gcn=[80, 81], mlp=[55]),
                   'MNIST': dict(gcn=[90])})
    public = rows_of({'Cora': dict(gcn=[82])}, split='public')
    frame = pd.concat([old, new, new, public], ignore_index=True)
    found = boxplot.samples(frame, 'random')
    assert {d: {m: v.tolist() for m, v in part.items()}
            for d, part in found.items()} == {'Cora': {'GCN': [80, 81]}}
    assert boxplot.samples(frame, 'public')['Cora']['GCN'].tolist() == [82]


@pytest.mark.parametrize('ours, holds', [
    (NARROW, 'yes'),
    (WIDE, 'no'),  # as wide is not less
    ([71, 76, 80, 84, 89], 'not shown'),  # less, but not significantly
])
def test_claims(ours, holds):
    paper, recommended = boxplot.claims(rows(ours))
    assert paper.holds == recommended.holds == holds
    for name in CITATION:
        assert f'{name} {np.std(ours, ddof=1):.2f} beside GCN 7.62' in (
            paper.measured)


def test_claims_need_all_data():
    frame = rows(NARROW)
    for claim in boxplot.claims(frame[frame.dataset != 'PubMed']):
        assert claim.holds == 'not shown'
        assert claim.measured.endswith('Not enough runs yet on PubMed.')
    for claim in boxplot.claims(frame[frame.seed < 2]):
        assert claim.holds == 'not shown'
        assert claim.measured == (
            'Not enough runs yet on Cora, CiteSeer, PubMed.')


def test_tables():
    frame = boxplot.tables(rows(NARROW))['Test accuracy (%), random split']
    assert len(frame) == 12
    assert frame.iloc[0].tolist() == [
        'Cora', 'GCN', 5, '80.00', '80.00', '7.62', '8.00', '70.0 to 90.0']
    single = boxplot.tables(rows([80.], [80.], [80.]))
    assert [frame['std'].tolist() for frame in single.values()] == [['–'] * 12]


def test_draw(tmp_path):
    frame = pd.concat([rows(NARROW), rows_of({'Cora': dict(gcn=[81.])},
                                             split='public')])
    names = ['boxplot_random', 'boxplot_public']
    paths = boxplot.draw(frame, tmp_path)
    assert [p.name for p in paths] == [
        f'{name}.{kind}' for name in names for kind in ['png', 'svg']]
    assert all(name in boxplot.CAPTIONS for name in names)
    assert boxplot.draw(frame[:0], tmp_path) == []


def test_equal_runs_are_no_error():
    for claim in boxplot.claims(rows([80.] * 3, [80.] * 3, [80.] * 3)):
        assert claim.holds == 'no'


def test_tasks():
    found, args = boxplot.tasks('boxplot', ['--runs', '2'])
    assert args.split == 'random' and len(found) == 2 * 3 * 4
    assert [task.seed for task in found] == [0] * 12 + [1] * 12
    assert found[0] == table.Task('gcn', 'Cora', 'random', 0,
                                  table.settings_of('gcn', 'Cora'))
    found, _ = boxplot.tasks('boxplot', ['--split', 'public', '--quick'])
    assert {(task.dataset, task.split) for task in found} == {
        ('Cora', 'public')}


def test_main_takes_what_is_there(tmp_path, monkeypatch, capsys):
    own = Table(tmp_path / 'table.csv', table.COLUMNS)
    monkeypatch.setattr(boxplot, 'TABLE', own)
    monkeypatch.setattr(runner, 'FIGURES', tmp_path)
    tasks, _ = boxplot.tasks('boxplot', ['--runs', '3'])
    for i, task in enumerate(tasks):
        own.append(**task._asdict(), epochs=1, val_loss=1, val_accuracy=1,
                   test_accuracy=70 + i, seconds=1, peak_mb=1, gates='')
    before = own.path.read_bytes()
    boxplot.main(['--runs', '3'])
    assert own.path.read_bytes() == before  # nothing was run
    out = capsys.readouterr().out
    assert 'Test accuracy (%), random split' in out
    assert 'AGCN has less variability' in out
    assert (tmp_path / 'boxplot_random.png').exists()
