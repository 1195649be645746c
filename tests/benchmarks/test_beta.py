import json
import math

import pandas as pd
import pytest
import torch

from benchmarks import beta, plots, runner
from benchmarks.settings import Task, settings_of
from torch_agcn.functional import anisotropic_gate


def rows_of(accuracies, method='agcn_paper', dataset='PubMed', settings='{}'):
    r"""Rows from accuracies by beta, one for each seed."""
    return pd.DataFrame([
        dict(method=method, dataset=dataset, split='public', seed=seed,
             settings=settings, beta=value, val_accuracy=70.,
             test_accuracy=accuracy, val_loss=accuracy / 100,
             gates='1 0.75' if value else '0 0', input_energy=2586.)
        for value, some in accuracies.items()
        for seed, accuracy in enumerate(some)])


@pytest.mark.parametrize('energy', [2586., 649.6, 236.7])
def test_saturation_is_that_of_the_gate(energy):
    bound = beta.saturation(energy)
    # Torch's exponential may be wrong in the last digit:
    gate = [float(anisotropic_gate(torch.tensor(energy), factor * bound))
            for factor in [0.9, 1.01]]
    assert gate[0] < 1 == gate[1]
    assert bound < min(b for b in beta.GRID if b > 0) / 100


def test_grids():
    assert beta.GRID[:2] == [0, 0.1] and beta.GRID[-1] == 5
    assert len(set(beta.GRID)) == 51
    # From closed to saturated on each of the citation networks:
    for energy in [2586., 649.6, 236.7]:
        bound = beta.saturation(energy)
        assert min(beta.BELOW) < bound / 1000
        assert max(beta.BELOW) > bound


def test_measure(tmp_path):
    settings = json.loads(settings_of('agcn_paper', 'Cora'))
    rows = []
    for value in [0.0, 1e-6, 0.4]:
        settings.update(beta=value, epochs=2)
        rows.append(beta.measure(Task(
            'agcn_paper', 'Cora', 'public', 0, runner.as_json(**settings)),
            str(tmp_path)))
        assert set(rows[-1]) == set(beta.TABLE.own_columns)
    found = beta.latest(pd.DataFrame(rows))
    assert found.beta.tolist() == [0.0, 1e-6, 0.4]
    assert found.input_energy.astype(float).tolist() == pytest.approx(
        [649.6] * 3, abs=0.05)
    assert found.first_gate.tolist() == pytest.approx(
        [0, 1 - math.exp(-1e-6 * 649.6**2), 1], rel=1e-3)


def test_tables_by_hand():
    old = rows_of({0.4: [1., 1]}, settings='{"old": 1}')
    rows = pd.concat([old, rows_of({0.5: [79.], 0.4: [78., 80], 0.3: [78., 80],
                                    0.0: [78., 80], 0.1: [78., 80]})],
                     ignore_index=True)
    same, more = beta.tables(rows).values()
    # All values have the first seed:
    assert same.values.tolist() == [
        ['0', '78.0 (1)', '0', '0'],
        ['0.1 … 0.4', '78.0 (1)', '1', '0.75'],
        ['0.5', '79.0 (1)', '1', '0.75']]
    # A standard deviation of sqrt(2), and two seeds:
    assert more.values.tolist() == [
        ['0', '79.0 ± 1.0 (2)', '0', '0'],
        ['0.1 … 0.4', '79.0 ± 1.0 (2)', '1', '0.75']]
    # Other seeds make no difference where beta makes none:
    assert '78.0 to 79.0 % with' in beta.answer(rows)
    assert beta.answer(rows[rows.beta != 0.5]).endswith(
        ': 79.0 % with AGCN (paper) on PubMed.')


def test_claim_where_the_gate_is_saturated():
    same = [79., 80]
    claim, = beta.claims(pd.concat([
        rows_of({0.0: [41., 43], 1e-5: [50., 50], 0.1: same, 0.4: same,
                 5.0: same}),
        rows_of({0.5: [74.], 50.0: [80.]}, method='agcn')],
        ignore_index=True))
    assert claim.holds == 'no'
    assert claim.measured == (
        'All 3 non-zero values of the grid give the same accuracy in every '
        'seed, 79.50 % in the mean (public split): the gates are one.')


@pytest.mark.parametrize('best, holds', [
    ([82., 83.1], 'yes'), ([75., 76.1], 'no'), ([78., 84], 'not shown')])
def test_claim_where_it_is_not(best, holds):
    rows = rows_of({0.1: [77., 78], 0.3: [79., 80], 0.4: best})
    claim, = beta.claims(rows)
    assert claim.holds == holds
    assert 'at 2 other non-zero values of the grid' in claim.measured
    # The paper says so of PubMed only:
    claim, = beta.claims(rows.assign(dataset='Cora'))
    assert claim.holds == 'not shown'
    assert f'to {max(79.5, sum(best) / 2):.1f} % with' in beta.answer(rows)


def test_claim_needs_its_beta():
    claim, = beta.claims(rows_of({0.1: [79.], 0.2: [79.]}))
    assert claim.holds == 'not shown' and 'not run yet' in claim.measured


def test_draw(tmp_path, monkeypatch):
    figures = {}

    def keep(figure, folder, name):
        figures[name] = figure
        return []

    monkeypatch.setattr(plots, 'save', keep)
    rows = rows_of({0.0: [41.], 1e-10: [42.], 0.1: [79.], 5.0: [79.]})
    beta.draw(pd.concat([rows, rows_of({0.5: [74.], 5000.: [80.]},
                                       method='agcn')]), tmp_path)
    assert list(figures) == ['beta_pubmed_public']
    assert set(figures) <= set(beta.CAPTIONS)
    figure = figures['beta_pubmed_public']
    _, bottom = figure.axes
    saturation, *lines = [list(line.get_xdata()) for line in bottom.lines]
    assert saturation[0] == beta.saturation(2586)
    assert lines == [[1e-10, 0.1, 5.0]] * 2 + [[0.5, 5000.0]] * 2
    plots.plt.close(figure)


def test_tasks():
    full, quick = (beta.tasks(runner.parse(beta, argv))
                   for argv in [[], ['--quick']])
    # All values with three seeds, and ten of the paper's grid with ten:
    assert len(set(full)) == len(full) == 3 * (51 + 13 + 9) + 7 * 10
    assert [task.seed for task in full] == (
        sorted(73 * [0, 1, 2]) + sorted(10 * list(range(3, 10))))
    assert {task.dataset for task in quick} == {'Cora'}
    # Nothing but beta differs from Table 1:
    for task in full[:73]:
        settings = json.loads(task.settings)
        usual = json.loads(settings_of(task.method, 'PubMed'))
        assert {**settings, 'beta': 0} == {**usual, 'beta': 0}
