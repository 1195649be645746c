import numpy as np
import pandas as pd
import pytest

pytest.importorskip('matplotlib')
from benchmarks import runner, significance
from benchmarks.data import CITATION
from benchmarks.results import Table
from benchmarks.settings import COLUMNS, Task, settings_of


def rows_of(accuracies, split='random', settings='{}'):
    r"""Rows of Table 1 from accuracies by data set and method."""
    return pd.DataFrame([
        dict(method=method, dataset=dataset, split=split, seed=seed,
             settings=settings, test_accuracy=value)
        for dataset, part in accuracies.items()
        for method, values in part.items()
        for seed, value in enumerate(values)])


def rows(agcn, gat, gcn, datasets=CITATION):
    return rows_of({name: dict(gcn=gcn, gat=gat, agcn_paper=agcn, agcn=agcn)
                    for name in datasets})


WIDE = [70., 76, 80, 84, 90]
NARROW = [80.1, 79.9, 80, 80.1, 79.9]
LOW, MIDDLE, HIGH = np.split(np.array([
    70, 70.5, 71, 74, 74.5, 75, 78, 78.5, 79]), 3)


def test_own_rows():
    # The last settings count, and each seed once; no other method or data.
    old = rows_of({'Cora': dict(gcn=[10])}, settings='{"old": 1}')
    new = rows_of({'Cora': dict(gcn=[80, 81], mlp=[55]),
                   'MNIST': dict(gcn=[90])})
    public = rows_of({'Cora': dict(gcn=[82])}, split='public')
    frame = pd.concat([old, new, new, public], ignore_index=True)
    found = significance.samples(frame)
    assert {name: wide.to_dict('list') for name, wide in found.items()} == {
        'Cora': {'gcn': [80, 81]}}
    assert len(significance.own_rows(frame)) == 2


@pytest.mark.parametrize('ours, gcn, holds', [
    (NARROW, WIDE, 'yes'), (WIDE, NARROW, 'no'),
    (WIDE, WIDE, 'no'),  # as wide is not less
    (WIDE[::-1], [71, 75, 80, 84, 91], 'not shown'),
])
def test_variability(ours, gcn, holds):
    claim = significance.claims(rows(ours, gcn, gcn))[0]
    assert claim.holds == holds
    assert f'Cora, GCN {np.std(ours, ddof=1):.2f} beside' in claim.measured


@pytest.mark.parametrize('agcn, gat, gcn, holds', [
    (HIGH, MIDDLE, LOW, ['yes', 'yes', 'yes']),
    (LOW, MIDDLE, HIGH, ['yes', 'yes', 'no']),  # they differ, the wrong way
    # What a test does not reject is not refuted, but the same is not better:
    (LOW, MIDDLE, LOW, ['yes', 'not shown', 'no']),
    (LOW, LOW, LOW, ['not shown', 'not shown', 'no']),
    (LOW + np.array([0.1, 0.5, -0.3]), LOW, LOW, ['not shown'] * 3),
])
def test_claims(agcn, gat, gcn, holds):
    claims = significance.claims(rows(agcn, gat, gcn))[1:]
    assert [claim.holds for claim in claims] == holds
    assert 'Cora -0.00' not in claims[1].measured


def test_claims_of_few_rows():
    frame = rows(HIGH, MIDDLE, LOW, ['Cora', 'PubMed'])
    _, anova, differ, best = significance.claims(frame)
    assert anova.holds == differ.holds == 'not shown'
    assert best.holds == 'yes'
    assert best.measured.endswith('GCN +8.0 ± 0.0; GAT +4.0 ± 0.0.')
    assert 'Cora +8.00 (p = ' in differ.measured
    for claim in significance.claims(frame[frame.seed == 0]):
        assert claim.holds == 'not shown'
        assert claim.measured == 'Not enough runs yet.'


def test_tables():
    tables = significance.tables(rows(HIGH, MIDDLE, LOW))
    assert list(tables) == [
        'Differences between runs of the same seed, random splits',
        'One-way ANOVA of GCN, GAT and AGCN, random splits',
        "Tukey's test, random splits: AGCN (paper)"]
    paired, anova, tukey = tables.values()
    # Three differences of one sign: 2 of 2^3 signs; three orders of three:
    # exp(-3) of Friedman's statistic 6.
    assert paired.iloc[0].tolist() == [
        'Cora', 'AGCN (paper)', 'GCN', '+8.0 ± 0.0', '0.25', '0.05',
        '0.50 beside 0.50 (ratio 1.00 to 1.00)']
    assert anova["the paper's p"].tolist() == [
        '1.00e-03', '2.51e-07', '1.21e-06'] * 2
    assert tukey.iloc[1, :4].tolist() == ['Cora', 'AGCN', 'GCN', '-8.00']
    assert tukey['reject'].tolist() == ['True'] * 9
    assert tukey["the paper's reject"].tolist() == ['False'] + ['True'] * 8
    assert significance.tables(rows([80.], [80.], [80.])) == {}


def test_draw(tmp_path):
    outlier = [*HIGH[:2], 14.9]
    paths = significance.draw(rows(outlier, MIDDLE, LOW), tmp_path)
    assert [path.name for path in paths] == [
        f'{name}.{kind}' for name in significance.CAPTIONS
        for kind in ['png', 'svg']]
    single = significance.draw(rows([80.], [80.], [80.]), tmp_path)
    assert [path.stem for path in single] == ['boxplot_random'] * 2
    none = rows(HIGH, MIDDLE, LOW)[:0]
    assert significance.draw(none, tmp_path) == []


def test_main_takes_what_is_there(tmp_path, monkeypatch, capsys):
    own = Table(tmp_path / 'table.csv', COLUMNS)
    monkeypatch.setattr(significance, 'TABLE', own)
    tasks = [Task(method, dataset, 'random', seed,
                  settings_of(method, dataset)) for dataset in CITATION
             for method in significance.LABELS for seed in range(3)]
    for i, task in enumerate(tasks):
        own.append(**task._asdict(), epochs=1, val_loss=1, val_accuracy=1,
                   test_accuracy=70 + i, seconds=1, peak_mb=1, gates='')
    before = own.path.read_bytes()
    runner.main(significance, ['--runs', '3'])
    assert own.path.read_bytes() == before  # nothing was run
    out = capsys.readouterr().out
    assert 'Differences between runs of the same seed' in out
    assert 'AGCN has less variability' in out
    assert (tmp_path / 'boxplot_random.png').exists()
    quick = significance.tasks(runner.parse(significance, ['--quick']))
    assert {(task.dataset, task.split) for task in quick} == {
        ('Cora', 'random')}
