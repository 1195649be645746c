import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import results, table, tune
from benchmarks.results import Table
from benchmarks.table import Task

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
    for module in [table, tune]:
        monkeypatch.setattr(module, 'SETTINGS', settings)
    monkeypatch.setattr(table, 'TABLE',
                        Table(tmp_path / 'table.csv', table.COLUMNS))
    monkeypatch.setattr(tune, 'TABLE',
                        Table(tmp_path / 'tune.csv', tune.TABLE.columns[:-3]))
    return tmp_path


def run(place, *more):
    table.main(['--datasets', 'Cora', '--root', str(place / 'data'),
                '--runs', '2', '--methods', *more])


def test_the_same_run_is_made_once(place):
    (place / 'settings' / 'gcn_long.yaml').write_text(
        'module: gcn\nfixed: {all: {epochs: 2}}\n')
    run(place, 'gcn', 'mlp')
    before = table.TABLE.read()
    run(place, 'gcn_long')
    rows = table.TABLE.read()
    gcn, twin = (rows[rows.method == m].drop(columns='method').sort_values(
        'seed', ignore_index=True) for m in ['gcn', 'gcn_long'])
    assert len(rows) == 6 and rows[:4].equals(before) and gcn.equals(twin)
    run(place, 'gcn', 'gcn_long')
    assert len(table.TABLE.read()) == 6


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
    assert len(Table(path, table.COLUMNS).read()) >= 1
    for _ in range(100):  # no one is left in its group
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            break
        time.sleep(0.1)
    else:
        pytest.fail('a worker outlived its parent')


def test_tune(place):
    rows = []
    for i, config in enumerate(tune.grid('gcn')):
        for seed in range(2):
            rows.append(dict(
                method='gcn', dataset='Cora', seed=seed,
                settings=table.settings_of('gcn', 'Cora', **config),
                val_accuracy=80.0 + (i in [3, 5]), val_loss=1.0 - 0.1 * i))
    frame = pd.DataFrame(rows)
    assert tune.choose(frame[:-1], 'gcn', 'Cora', 2) is None
    choice = tune.choose(frame, 'gcn', 'Cora', 2)
    assert choice == {'hidden_channels': 7}  # the lower loss of the two
    tune.write_chosen('gcn', {'Cora': choice})
    settings = json.loads(table.settings_of('gcn', 'Cora'))
    assert settings['hidden_channels'] == 7 and settings['epochs'] == 2
    assert json.loads(
        table.settings_of('gcn', 'PubMed'))['hidden_channels'] == 16
    assert len(tune.grid('gcn')) == 8
    assert 'test_accuracy' not in tune.TABLE.columns


def test_show(place, monkeypatch, capsys):
    readme = place / 'README.md'
    readme.write_text('a\n<!-- table -->\nold\n<!-- /table -->\nb\n')
    monkeypatch.setattr(results, 'README', readme)
    monkeypatch.setattr(table, 'FIGURES', place)
    for method, values in [('gcn', [81, 82]), ('agcn', [83, 85]),
                           ('agcn_free', [84, 83]), ('mlp', [50])]:
        for seed, value in enumerate(values):
            # Settings that were replaced do not count:
            for settings, accuracy in [('{"old": 1}', 10), ('{}', value)]:
                table.TABLE.append(
                    **Task(method, 'Cora', 'public', seed, settings)
                    ._asdict(), epochs=1, val_loss=1, val_accuracy=1,
                    test_accuracy=accuracy, seconds=2 + seed, peak_mb=1,
                    gates='')
    table.main(['--show'])
    text = readme.read_text()
    assert text.startswith('a\n<!-- table -->\n**Public split**')
    assert text.endswith('<!-- /table -->\nb\n') and '\nold' not in text
    assert '| GCN | 81.5 ± 0.7 (2) | 81.5 | 2.5 |' in text
    assert '| AGCN, recommended | **84.0 ± 1.4 (2)** | – | 2.5 |' in text
    assert '| MLP | 50.0 (1) | 55.1 | 2.0 |' in text
    assert 'Cora +2.5 ± 6.4 (AGCN, recommended)' in text
    assert 'minus AGCN, recommended, with the 95 % interval over seeds: Cora '\
        '-0.5 ± 19.1.' in text
    assert 'Public split' in capsys.readouterr().out
    assert (place / 'table_public.png').stat().st_size > 1000


def test_checks(place):
    (place / 'settings' / 'checks.yaml').write_text(
        'checks:\n- {method: gcn, change: {p: 0.0}, why: dropout}\n')

    def rows(settings, **values):
        return pd.DataFrame([dict(
            method='gcn', dataset=dataset, split='public', seed=seed,
            settings=settings, test_accuracy=value + seed)
            for dataset, value in values.items() for seed in range(2)])

    measured = rows(table.settings_of('gcn', 'Cora'), Cora=85.0,
                    CiteSeer=70.0)  # published: 81.5 and 70.3
    assert table.far_means(measured) == {('gcn', 'Cora'): 85.5}
    check = json.loads(table.settings_of('gcn', 'Cora'))
    check = table.runner.as_json(**{**check, 'p': 0.0})
    checks = pd.concat([rows(check, Cora=81.0), rows('{}', Cora=1.0)])
    line, = table.deviations(measured, checks).to_dict('records')
    assert line == {'': 'GCN', 'data': 'Cora', 'measured': '85.5',
                    'published': '81.5', 'checked': '81.5 (2)',
                    'why': 'dropout'}
    line, = table.deviations(measured, checks[2:]).to_dict('records')
    assert line['checked'] == '–'


def test_words_on_gates():
    rows = pd.DataFrame([
        dict(method=method, dataset='Cora', split='random', seed=seed,
             settings='{}', epochs=12, test_accuracy=14.94, gates=gates)
        for method, all_gates in [
            ('agcn_paper', ['1 1', '1 0', '1 0.99']),
            ('agcn', ['1 0.9 0.5', '0.8 0.7 0.3', '0.9 0.2 0.4']),
            ('gcn', [np.nan])]
        for seed, gates in enumerate(all_gates)])
    assert table.gate_words(rows) == (
        "What the gates did: In AGCN, the paper's formula, all gates were "
        'exactly 1 in 1 of 3 trained networks. One was closed, and took all '
        'signal with it, on Cora (random split, seed 1): 14.9 % after 12 '
        'epochs. In AGCN, recommended, the gate closes from the first step to '
        'the last (medians): Cora 0.90 to 0.40.')
    assert table.gate_words(rows[rows.method == 'gcn']) == ''


def test_words_on_epochs():
    rows = pd.DataFrame([
        dict(dataset='Cora', variant=variant, milliseconds=ms)
        for variant, all_ms in [('AGCN', [3, 4, 90]),
                                ('GCN, dense', [80, 70, 9])]
        for ms in all_ms])
    words = table.epoch_words(rows)
    assert 'Cora 4.0 beside 70.0 ms, 0.057 (at most 0.12 was' in words
    assert table.epoch_words(rows[:0]) == ''


def test_the_projects_own_checks():
    for check in table.read_settings('checks')['checks']:
        assert check['method'] in table.METHODS and check['why']
        if 'change' in check:
            known = json.loads(table.settings_of(check['method'], 'Cora'))
            assert set(check['change']) <= set(known)
