import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from benchmarks import settings as harness
from benchmarks import table, tune
from benchmarks.results import Table
from benchmarks.settings import COLUMNS, read_settings, settings_of

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def place(tmp_path, monkeypatch):
    r"""A table of its own, and methods that take no time."""
    settings = tmp_path / 'settings'
    settings.mkdir()
    (settings / 'gcn.yaml').write_text(
        'fixed: {all: {epochs: 2}}\n'
        'grid: {hidden_channels: [2, 3, 4, 5, 6, 7, 8, 9]}\n')
    (settings / 'mlp.yaml').write_text('fixed: {all: {epochs: 2}}\n')
    (settings / 'agcn.yaml').write_text('fixed: {all: {beta: -1.0}}\n')
    monkeypatch.setattr(harness, 'SETTINGS', settings)
    for name in ['TABLE', 'CHECKS']:
        path = tmp_path / f'{name.lower()}.csv'
        monkeypatch.setattr(table, name, Table(path, COLUMNS))
    monkeypatch.setattr(tune, 'TABLE',
                        Table(tmp_path / 'tune.csv', tune.TABLE.columns[:-3]))
    return tmp_path


def run(place, *more):
    table.main(['--datasets', 'Cora', '--root', str(place / 'data'),
                '--runs', '2', '--methods', *more])


@pytest.mark.filterwarnings('ignore:The last row')
def test_resume_and_jobs(place):
    run(place, 'mlp', 'gcn', '--jobs', '2')
    rows = table.TABLE.read()
    assert sorted(zip(rows.method, rows.seed)) == [
        ('gcn', 0), ('gcn', 1), ('mlp', 0), ('mlp', 1)]
    assert (rows.epochs == 2).all() and (rows.peak_mb > 10).all()
    assert json.loads(rows.settings[0])['epochs'] == 2

    # A row that was not finished is dropped, and only its run is run again:
    path = table.TABLE.path
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b''.join(lines[:-1]) + lines[-1][:20])
    run(place, 'mlp', 'gcn', '--jobs', '1')
    assert path.read_bytes().startswith(b''.join(lines[:-1]))
    again = table.TABLE.read()
    same = [c for c in rows if c not in ['seconds', 'peak_mb', 'date']]
    order = ['method', 'seed']
    pd.testing.assert_frame_equal(
        rows.sort_values(order)[same].reset_index(drop=True),
        again.sort_values(order)[same].reset_index(drop=True))

    content = path.read_bytes()
    run(place, 'mlp', 'gcn')  # nothing is left
    assert path.read_bytes() == content


def test_failure_is_reported(place, capsys):
    with pytest.raises(SystemExit, match='1 runs failed'):
        table.main(['--datasets', 'Cora', '--root', str(place / 'data'),
                    '--runs', '1', '--jobs', '1', '--methods', 'agcn',
                    'mlp'])
    assert 'beta=-1.0' in capsys.readouterr().err
    assert table.TABLE.read().method.tolist() == ['mlp']


def test_killed(tmp_path):
    # The parent is killed in the middle of a run; its worker ends as well.
    program = '\n'.join([
        'from pathlib import Path',
        'from benchmarks import table',
        'if __name__ == "__main__":',
        f'    table.TABLE.path = Path({str(tmp_path / "table.csv")!r})',
        '    table.main(["--datasets", "Cora", "--methods", "lp", "gat",',
        f'                "--jobs", "1", "--root", {str(tmp_path)!r}])'])
    (tmp_path / 'program.py').write_text(program)
    process = subprocess.Popen(
        [sys.executable, tmp_path / 'program.py'], start_new_session=True,
        env={**os.environ, 'PYTHONPATH': str(REPOSITORY)},
        stderr=subprocess.DEVNULL)
    path = tmp_path / 'table.csv'
    for _ in range(600):
        if path.exists() and path.read_text().count('\n') >= 2:
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(Table(path, COLUMNS).read()) >= 1
    for _ in range(100):  # no one is left in its group
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            break
        time.sleep(0.1)
    else:
        pytest.fail('a worker outlived its parent')


def test_settings_like_those_of_another(place):
    folder = place / 'settings'
    (folder / 'agcn.yaml').write_text(
        'fixed: {all: {alpha: 0.3}}\nchosen: {Cora: {p: 0.2}}\n')
    (folder / 'agcn_open.yaml').write_text(
        'like: agcn\nfixed: {all: {beta: 9.0}}\n')
    (folder / 'gcn_equal.yaml').write_text('module: gcn\nlike: agcn\n')
    ours, held_open, gcn = (json.loads(settings_of(method, 'Cora'))
                            for method in ['agcn', 'agcn_open', 'gcn_equal'])
    assert ours['alpha'] == 0.3 and ours['p'] == 0.2
    assert held_open == {**ours, 'beta': 9.0}
    assert gcn['p'] == 0.2 and set(gcn) < set(ours)
    assert harness.module_of('agcn_open') == 'agcn'
    with pytest.raises(ValueError, match="'gcn' has no settings"):
        settings_of('gcn', 'Cora', beta=1.0)


def test_latest():
    rows = pd.DataFrame([
        dict(method='gcn', dataset='Cora', seed=seed, settings=settings,
             depth=depth, value=i)
        for i, (seed, settings, depth) in enumerate([
            (0, 'old', 2), (0, 'new', 2), (1, 'new', 2), (1, 'new', 2),
            (0, 'old', 4)])])
    assert harness.latest(rows, 'depth').value.tolist() == [1, 3, 4]
    assert harness.latest(rows[:4]).value.tolist() == [1, 3]


# Tune ########################################################################


def tuned(*accuracies, loss=1.0):
    r"""Rows of the first configurations of GCN, a list of seeds each."""
    return pd.DataFrame([
        dict(method='gcn', dataset='Cora', seed=seed, val_accuracy=value,
             val_loss=loss - 0.1 * i,
             settings=settings_of('gcn', 'Cora', **config))
        for i, (config, values) in enumerate(zip(tune.grid('gcn'),
                                                 accuracies))
        for seed, value in enumerate(values)])


def test_tune(place):
    others = [[70.0]] * 5
    assert len(tune.grid('gcn')) == 8 and tune.grid('mlp') == []
    # One run decides where the best is more than a point ahead:
    clear = tuned([80.0], [81.1], [79.0], *others)
    assert tune.choose(clear, 'gcn', 'Cora') == {'hidden_channels': 3}
    assert tune.choose(clear[:-1], 'gcn', 'Cora') is None
    # Else the mean of three does, of all within a point:
    close = tuned([80.0], [80.5], [79.0], *others)
    assert tune.near_best(close, 'gcn', 'Cora') == [
        {'hidden_channels': 2}, {'hidden_channels': 3}]
    assert tune.choose(close, 'gcn', 'Cora') is None
    three = tuned([80.0, 83, 83], [80.5, 80, 80], [79.0, 99, 99], *others)
    assert tune.choose(three, 'gcn', 'Cora') == {'hidden_channels': 2}
    equal = tuned([80.0, 80, 80], [80.0, 80, 80], [78.9], *others)
    assert tune.choose(equal, 'gcn', 'Cora') == {'hidden_channels': 3}

    path = harness.SETTINGS / 'gcn.yaml'
    path.write_text('# Why.\n' + path.read_text())
    tune.write_chosen('gcn', {'Cora': {'hidden_channels': 7}})
    assert path.read_text().startswith('# Why.\n')
    settings = json.loads(settings_of('gcn', 'Cora'))
    assert settings['hidden_channels'] == 7 and settings['epochs'] == 2
    assert json.loads(
        settings_of('gcn', 'PubMed'))['hidden_channels'] == 16
    assert 'test_accuracy' not in tune.TABLE.columns


def test_tune_runs_the_near_ones_again(place, monkeypatch):
    def measure(task, root):
        width = json.loads(task.settings)['hidden_channels']
        return {**dict.fromkeys(tune.TABLE.own_columns, 1), **task._asdict(),
                'val_accuracy': 80 + 0.8 * (width == 2) + (
                    task.seed > 0) * (width == 3), 'val_loss': 1}

    def run_missing(tasks, table, _, jobs, root):
        for task in tasks:
            table.append(task._fields, **measure(task, root))
        return []

    monkeypatch.setattr(tune.runner, 'run_missing', run_missing)
    tune.main(['--datasets', 'Cora', '--methods', 'gcn'])
    rows = tune.TABLE.read()
    assert rows.groupby('seed').size().tolist() == [8, 8, 8]
    assert read_settings('gcn')['chosen'] == {'Cora': {'hidden_channels': 2}}


# Tables and claims ###########################################################


def rows_of(accuracies, split='public', **columns):
    r"""Rows by method and data set, one for each seed."""
    return pd.DataFrame([
        dict(method=method, dataset=dataset, split=split, seed=seed,
             settings='{}', epochs=1, val_loss=1.0, val_accuracy=80.0,
             test_accuracy=value, seconds=2.0 + seed, peak_mb=1, gates='1 1',
             **columns)
        for (method, dataset), values in accuracies.items()
        for seed, value in enumerate(values)])


def test_tables(place):
    (place / 'settings' / 'lp.yaml').write_text('deterministic: true\n')
    rows = rows_of({('gcn', 'Cora'): [81, 82], ('agcn', 'Cora'): [83, 85],
                    ('mlp', 'Cora'): [50], ('lp', 'Cora'): [60, 60]})
    # Settings that were replaced do not count:
    old = rows.assign(settings='{"old": 1}', test_accuracy=10.0)
    frame = next(iter(table.tables(pd.concat([old, rows])).values()))
    assert frame.values.tolist() == [
        ['MLP', '50.0', '55.1'], ['LP', '60.0', '68.0'],
        ['GCN', '81.5 ± 0.7 (2)', '81.5'],
        ['DiffusedMLP', '**84.0 ± 1.4 (2)**', '–']]
    # On random splits its runs differ:
    frame = next(iter(table.tables(rows.assign(split='random')).values()))
    assert frame.iloc[1, 1] == '60.0 ± 0.0 (2)'
    assert harness.is_repeated('lp', 'public', 1)
    assert not harness.is_repeated('lp', 'public', 0)
    assert not harness.is_repeated('gcn', 'public', 1)


def test_schedules():
    rows = rows_of({('gcn', 'Cora'): [81], ('agcn', 'Cora'): [83],
                    ('mlp', 'Cora'): [50], ('lp', 'Cora'): [60]})
    rows['settings'] = ['{"epochs": 200, "patience": 10}',
                        *2 * ['{"epochs": 500, "patience": 50}'], '{}']
    assert table.schedules(rows).values.tolist() == [
        [200, 10, 'GCN'], [500, 50, 'MLP; DiffusedMLP']]


def test_gates_are_judged_by_the_same_with_an_open_one(place):
    rows = pd.concat([
        rows_of({('agcn', 'Cora'): [80, 81], ('agcn_open', 'Cora'): [79, 80],
                 ('agcn_deep', 'Cora'): [90, 91]}),
        rows_of({('agcn_paper', 'PubMed'): [70, 72],
                 ('gcn_equal', 'PubMed'): [71, 72]}, 'random')])
    frame = table.gates_worth(rows, ['Cora', 'PubMed'])
    assert frame.to_numpy().tolist() == [
        ['DiffusedMLP', 'public', '+1.0 ± 0.0', '–'],
        ['AGCN (paper)', 'random', '–', '-0.5 ± 6.4']]
    assert table.gates_worth(rows, ['MNIST']).empty


def test_the_best_of_ours_and_of_gcns_are_chosen_by_validation(place):
    rows = pd.concat([
        rows_of({('agcn', 'Cora'): [80, 81], ('gcn', 'Cora'): [79, 80]}),
        rows_of({('agcn_paper', 'Cora'): [90, 91],
                 ('gcn_long', 'Cora'): [60, 61]}).assign(
            val_accuracy=70.0)], ignore_index=True)
    assert table.best_of(table.OURS, rows, 'Cora', 'public') == 'agcn'
    assert table.best_of(table.GCNS, rows, 'Cora', 'public') == 'gcn'
    assert table.best_of(table.OURS, rows, 'PubMed', 'public') is None
    # Where others have more seeds, those that all have decide:
    more = rows_of({('gcn_wide', 'Cora'): [70, 71, 72]}).assign(
        val_accuracy=[60.0, 60.0, 99.0])
    more = pd.concat([rows, more], ignore_index=True)
    assert table.best_of(table.GCNS, more, 'Cora', 'public') == 'gcn'

    # A deterministic method has one run, which stands for all:
    one = rows_of({('lp', 'Cora'): [60], ('sgc', 'Cora'): [70, 71]})
    one['val_accuracy'] = [70.0, 60.0, 90.0]
    (place / 'settings' / 'lp.yaml').write_text('deterministic: true\n')
    assert table.best_of(['lp', 'sgc'], one, 'Cora', 'public') == 'sgc'

    rows = pd.concat([rows, rows_of({('sgc', 'Cora'): [85, 86]}).assign(
        val_accuracy=90.0)])
    assert table.answer(rows) == (
        'Test accuracy of the one of our 8 methods that validation prefers, '
        'minus that of the one of 3 GCNs that it prefers, in points with 95 % '
        'intervals: better: Cora (DiffusedMLP minus GCN) +1.0 ± 0.0. Minus '
        'that of the one of all other methods that it prefers: worse: Cora '
        '(DiffusedMLP minus SGC) -5.0 ± 0.0.')


def test_claims(place):
    def claims(ours, gcn, **columns):
        return [claim.holds for claim in table.claims(rows_of({
            (method, name): values for name in ['Cora', 'CiteSeer', 'PubMed']
            for method, values in [('agcn_paper', ours), ('gcn', gcn),
                                   ('gcn_equal', gcn)]}, 'random',
            **columns))]

    # What is reached on each data set, then GCN, other methods, the gate:
    found = claims([84, 84.2], [80, 80])
    assert found[:5] == ['not shown', 'yes', 'yes', 'not shown', 'not shown']
    assert found[5:9] == ['yes', 'yes', 'not shown', 'not shown']
    assert found[9:-1] == ['not shown'] * 8
    found = claims([70, 70.2], [80, 80])
    assert found[:3] == ['no'] * 3 and found[5:7] == ['no'] * 2
    assert claims([80, 80], [80, 80])[5] == 'no'  # the same is not better
    assert claims([79, 82], [80, 80])[5] == 'not shown'
    text = table.claims(rows_of({('agcn_paper', 'Cora'): [80, 81],
                                 ('gcn_equal', 'Cora'): [80, 80]}))
    assert 'Cora +0.5 ± 6.4' in text[7].measured


def test_the_papers_claims_on_other_methods():
    def claim(index, **accuracies):
        rows = rows_of({(method, dataset): values
                        for dataset in ['Cora', 'CiteSeer', 'PubMed']
                        for method, values in accuracies.items()})
        return table.claims(rows)[9 + index]

    better, own = [79, 79.2], [80, 80.1]
    assert claim(3, agcn_paper=own, gin=better).holds == 'not shown'
    found = claim(3, agcn_paper=own, gin=better, lanczosnet=better)
    assert found.holds == 'yes'
    assert found.measured.startswith('AGCN (paper) minus it, 95 % interval: ')
    assert found.measured.count('+0.9 ± 0.6') == 6
    assert claim(3, agcn_paper=own, gin=better, lanczosnet=[81, 81.1]
                 ).holds == 'no'
    # Of all methods, those are shown that come nearest:
    found = claim(7, agcn_paper=own, dgi=[81, 81.1], gat=better)
    assert found.holds == 'no' and 'minus the best of them' in found.measured
    assert found.measured.index('DGI') < found.measured.index('GAT')


def test_the_claim_that_gates_act():
    def claim(*gates):
        rows = rows_of({('agcn_paper', 'Cora'): [80] * len(gates)})
        return table.claims(rows.assign(gates=gates))[-1]

    assert claim(*['1 1'] * 9, '1 0').holds == 'no'
    assert claim(*['1 0.9'] * 9, '1 1').holds == 'yes'
    assert claim('1 1', '1 0').holds == 'not shown'
    assert 'in 1 of 10 networks of AGCN (paper), or 0% to 45% by' in (
        claim(*['1 1'] * 9, '1 0').measured)


def test_checks(place):
    (place / 'settings' / 'checks.yaml').write_text(
        'checks:\n- {method: gcn, change: {p: 0.0}, why: dropout}\n')

    def rows(settings, **values):
        return pd.DataFrame([dict(
            method='gcn', dataset=dataset, split='public', seed=seed,
            settings=settings, test_accuracy=value + seed)
            for dataset, value in values.items() for seed in range(2)])

    measured = rows(settings_of('gcn', 'Cora'), Cora=85.0,
                    CiteSeer=70.0)  # published: 81.5 and 70.3
    assert table.far_means(measured) == {('gcn', 'Cora'): 85.5}
    check = json.loads(settings_of('gcn', 'Cora'))
    check = table.runner.as_json(**{**check, 'p': 0.0})
    checks = pd.concat([rows(check, Cora=81.0), rows('{}', Cora=1.0)])
    line, = table.deviations(measured, checks).to_dict('records')
    assert line == {'': 'GCN', 'data': 'Cora', 'measured': '85.5',
                    'published': '81.5', 'checked': '81.5 (2)',
                    'explains it': 'yes', 'what may be the reason': 'dropout'}
    for accuracy, explains in [(80.0, 'yes'), (83.0, 'yes'),
                               (79.6, 'partly'), (79.0, 'no')]:
        checks.test_accuracy = accuracy
        line, = table.deviations(measured, checks).to_dict('records')
        assert line['explains it'] == explains

    line, = table.deviations(measured, checks[2:]).to_dict('records')
    assert line['checked'] == '–'


def test_the_projects_own_checks():
    for check in read_settings('checks')['checks']:
        assert check['method'] in harness.METHODS and check['why']
        if 'change' in check:
            known = json.loads(settings_of(check['method'], 'Cora'))
            assert set(check['change']) <= set(known)
