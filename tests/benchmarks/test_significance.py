import numpy as np
import pandas as pd
import pytest
from scipy.stats import f

from benchmarks import significance
from benchmarks.data import CITATION


def rows(agcn, gat, gcn, datasets=CITATION):
    return pd.DataFrame([
        dict(method=method, dataset=dataset, split='random', seed=seed,
             settings='{}', test_accuracy=value)
        for dataset in datasets
        for method, values in dict(gcn=gcn, gat=gat, agcn_paper=agcn,
                                   agcn=agcn).items()
        for seed, value in enumerate(values)])


def test_by_hand():
    # Means 2, 4 and 9, a variance of 1 in each: between them 3 * 26 / 2.
    found = significance.analyse((8, 9, 10), (3, 4, 5), (1, 2, 3))
    assert found.mean == dict(AGCN=9, GAT=4, GCN=2)
    assert found.statistic == pytest.approx(39)
    assert found.pvalue == pytest.approx(f.sf(39, 2, 6))
    q = 4.339  # of printed tables, for 3 means and 6 degrees of freedom
    assert significance.quantile(6) == pytest.approx(q, abs=1e-3)
    for pair, difference in [(('AGCN', 'GAT'), -5), (('AGCN', 'GCN'), -7),
                             (('GAT', 'GCN'), -2)]:
        test = found.pairs[pair]
        assert test['meandiff'] == pytest.approx(difference)
        assert test['lower'] == pytest.approx(difference - q / 3**0.5,
                                              abs=1e-3)
        assert test['upper'] == pytest.approx(difference + q / 3**0.5,
                                              abs=1e-3)
        assert test['reject'] == (abs(difference) > q / 3**0.5)
    assert list(found.half.values()) == pytest.approx([q / 3**0.5 / 2] * 3,
                                                      abs=1e-3)


@pytest.mark.parametrize('sizes', [(10, 10, 10), (4, 10, 7)])
def test_statsmodels(sizes):
    multicomp = pytest.importorskip('statsmodels.stats.multicomp')
    random = np.random.default_rng(1)
    groups = {name: random.normal(mean, 1, size) for name, mean, size in
              zip(significance.NAMES, [81.6, 81.3, 80], sizes)}
    theirs = multicomp.pairwise_tukeyhsd(
        np.concatenate(list(groups.values())),
        np.repeat(list(groups), [len(v) for v in groups.values()]))
    found = significance.analyse(*map(tuple, groups.values()))
    pairs = found.pairs.values()
    assert [list(pair) for pair in found.pairs] == [
        line[:2] for line in theirs.summary().data[1:]]
    np.testing.assert_allclose([t['meandiff'] for t in pairs],
                               theirs.meandiffs)
    np.testing.assert_allclose([[t['lower'], t['upper']] for t in pairs],
                               theirs.confint, rtol=1e-3)
    np.testing.assert_allclose([t['p'] for t in pairs], theirs.pvalues,
                               rtol=1e-3, atol=1e-6)
    assert [t['reject'] for t in pairs] == theirs.reject.tolist()
    theirs.plot_simultaneous()  # where it computes the widths
    np.testing.assert_allclose(list(found.half.values()), theirs.halfwidths,
                               rtol=1e-3)
    # Intervals overlap just where means do not differ, for any sizes:
    for (a, b), test in found.pairs.items():
        apart = abs(found.mean[a] - found.mean[b])
        assert (apart > found.half[a] + found.half[b]) == test['reject']


LOW, MIDDLE, HIGH = np.split(np.array([
    70, 70.5, 71, 74, 74.5, 75, 78, 78.5, 79]), 3)


@pytest.mark.parametrize('agcn, gat, gcn, holds', [
    (HIGH, MIDDLE, LOW, ['yes', 'yes', 'yes']),
    (LOW, MIDDLE, HIGH, ['yes', 'yes', 'no']),  # they differ, the wrong way
    (LOW, MIDDLE, LOW, ['yes', 'no', 'no']),  # as GCN
    (LOW, LOW, LOW, ['no', 'no', 'no']),
    (LOW + 0.1, LOW, LOW, ['no', 'no', 'not shown']),  # best, but who knows
])
def test_claims(agcn, gat, gcn, holds):
    claims = significance.claims(rows(agcn, gat, gcn))
    assert [claim.holds for claim in claims] == holds * 2
    assert 'Cora -0.00' not in claims[1].measured
    assert [claim.paper.rsplit('(')[-1] for claim in claims] == (
        ['AGCN, paper)'] * 3 + ['AGCN, recommended)'] * 3)


def test_claims_of_few_rows():
    frame = rows(HIGH, MIDDLE, LOW, ['Cora', 'PubMed'])
    anova, differ, best = significance.claims(frame)[:3]
    assert anova.holds == differ.holds == 'not shown'
    assert best.holds == 'yes' and 'AGCN 78.50, GAT 74.50' in best.measured
    assert differ.measured.startswith('AGCN minus GCN: Cora +8.00 (p = ')
    assert 'Not enough runs yet on CiteSeer.' in differ.measured
    for claim in significance.claims(frame[frame.seed == 0]):
        assert claim.holds == 'not shown'
        assert claim.measured.startswith('Not enough runs yet on ')


def test_tables():
    tables = significance.tables(rows(HIGH, MIDDLE, LOW))
    assert list(tables) == [
        'One-way ANOVA, random split',
        "Tukey's test, random split: AGCN, paper",
        "Tukey's test, random split: AGCN, recommended"]
    anova, tukey, _ = tables.values()
    assert anova["the paper's p"].tolist() == [
        '1.00e-03', '2.51e-07', '1.21e-06'] * 2
    assert tukey.iloc[1, :4].tolist() == ['Cora', 'AGCN', 'GCN', '-8.00']
    assert tukey['reject'].tolist() == ['True'] * 9
    assert tukey["the paper's reject"].tolist() == ['False'] + ['True'] * 8


def test_draw(tmp_path):
    frame = rows(HIGH, MIDDLE, LOW)
    paths = significance.draw(frame, tmp_path)
    assert [path.name for path in paths] == ['significance_random.png',
                                             'significance_random.svg']
    assert paths[0].stem in significance.CAPTIONS
    assert significance.draw(frame[frame.seed == 0], tmp_path) == []
