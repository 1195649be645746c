import numpy as np
import pandas as pd
import pytest
from scipy.stats import f, t

from benchmarks import stats
from benchmarks.stats import Gap, Spread, mean_error, paired


def test_paired_by_hand():
    # Differences 1, 2 and 3, whose standard error is 3^(-1/2); the 97.5 %
    # point of Student's t with two degrees of freedom is 4.303.
    gap = paired(pd.Series([80., 82., 84.]), pd.Series([79., 80., 81.]))
    assert gap.mean == pytest.approx(2)
    assert gap.half == pytest.approx(4.3027 / 3**0.5, rel=1e-4)
    assert str(gap) == '+2.0 ± 2.5' and not gap.is_above
    assert paired(pd.Series([5., 6.1]), pd.Series([1., 2.])).is_above
    assert Gap(-0.04, 0.5).text() == '+0.0 ± 0.5'


def test_only_seeds_that_both_have_count():
    a = pd.Series([1., 2., 3.], index=[100, 101, 102])
    b = pd.Series([0., 0., 9.], index=[102, 101, 7])
    assert paired(a, b).mean == pytest.approx(2.5)
    assert paired(a, b[[102]]) is None


def test_interval():
    gap = stats.interval(pd.Series([80., 82.]), 80)
    assert gap == (1, pytest.approx(12.706, rel=1e-4))
    assert stats.interval(pd.Series([80.])) is None


def test_by_seed():
    rows = pd.DataFrame(dict(seed=[0, 1, 0], method=['a', 'a', 'b'],
                             test_accuracy=[1., 2., 3.]))
    wide = stats.by_seed(rows)
    assert wide['a'].tolist() == [1, 2] and wide['b'].tolist()[0] == 3
    assert stats.pairs(wide, 'a', 'c') is None
    assert stats.pairs(wide, 'a', 'b') is None  # one seed
    assert stats.pairs(wide, 'a', 'a') == (0, 0)


def test_mean_error():
    assert mean_error(pd.Series([80., 82., 84.])) == '82.0 ± 1.2 (3)'
    assert mean_error(pd.Series([80.])) == '80.0 (1)'
    assert mean_error(pd.Series([], dtype=float)) == '–'


# Spreads #####################################################################


def test_the_interval_of_spreads_is_that_of_pitmans_test():
    # Where the ratio of the deviations is at an end of its interval, the sum
    # and the difference of one sample and the other, scaled by it, correlate
    # at the 5 % level.
    random = np.random.default_rng(0)
    a = pd.Series(random.normal(size=10))
    b = 0.5 * a + pd.Series(random.normal(size=10))
    found = stats.paired_spread(a, b)
    assert found[:2] == (a.std(), b.std())
    assert found.low < a.std() / b.std() < found.high
    for ratio in [found.low, found.high]:
        r = np.corrcoef(a + ratio * b, a - ratio * b)[0, 1]
        statistic = abs(r) * (8 / (1 - r * r))**0.5
        assert statistic == pytest.approx(t.ppf(0.975, 8))


def test_spreads_of_special_samples():
    a = pd.Series([1., 2., 4.])
    assert stats.paired_spread(a, a)[2:] == pytest.approx((1, 1))
    assert stats.paired_spread(a, 0 * a)[2:] == (np.inf, np.inf)
    assert stats.paired_spread(0 * a, a)[2:] == (0, 0)
    assert stats.paired_spread(0 * a, 0 * a)[2:] == (1, 1)
    assert stats.paired_spread(a[:2], a[:2]) is None
    assert str(Spread(1, 2, 0.25, 0.75)) == (
        '1.00 beside 2.00 (ratio 0.25 to 0.75)')


# Tests #######################################################################


def test_wilcoxon():
    # Five differences of one sign: 2 of 2^5 signs are as extreme.
    a = pd.Series([1., 2., 3., 4., 5.])
    assert stats.wilcoxon(a, 0 * a) == pytest.approx(2 / 32)
    assert stats.wilcoxon(a, a) == 1


def test_friedman():
    # Ranks 1, 2 and 3 in each of six lines: 12 / (3 * 4 * 6) * 6^2 * 14 -
    # 3 * 4 * 6 = 12, of two degrees of freedom.
    wide = pd.DataFrame([[1., 2., 3.]] * 6)
    assert stats.friedman(wide) == pytest.approx(np.exp(-6))
    assert stats.friedman(0 * wide) == 1
    assert stats.friedman(wide[:1]) == 1


def test_anova_and_tukey_by_hand():
    # Means 2, 4 and 9, a variance of 1 in each: between them 3 * 26 / 2.
    found = stats.analyse(dict(AGCN=(8, 9, 10), GAT=(3, 4, 5), GCN=(1, 2, 3)))
    assert found.mean == dict(AGCN=9, GAT=4, GCN=2)
    assert found.statistic == pytest.approx(39)
    assert found.pvalue == pytest.approx(f.sf(39, 2, 6))
    q = 4.339  # of printed tables, for 3 means and 6 degrees of freedom
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
              zip(['AGCN', 'GAT', 'GCN'], [81.6, 81.3, 80], sizes)}
    theirs = multicomp.pairwise_tukeyhsd(
        np.concatenate(list(groups.values())),
        np.repeat(list(groups), [len(v) for v in groups.values()]))
    found = stats.analyse(groups)
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


# Verdicts ####################################################################


@pytest.mark.parametrize('gaps, holds', [
    ([Gap(2, 1), Gap(3, 1)], 'yes'),
    ([Gap(2, 1), Gap(-3, 1)], 'no'),
    ([Gap(2, 1), Gap(-3, 4)], 'not shown'),  # not rejected is not refuted
    ([Gap(0, 0)], 'no'),  # the same is not more
    ([Gap(1e-9, 1e-10)], 'no'),  # rounding
    ([Gap(2, 1), None], 'not shown'),
    ([Gap(-2, 1), None], 'no'),
    ([], 'not shown'),
])
def test_verdict(gaps, holds):
    assert stats.verdict(gaps, least=1e-6) == holds


@pytest.mark.parametrize('ends, holds', [
    ([(0.5, 0.9)], 'yes'), ([(-0.1, 0.9)], 'not shown'),
    ([(-0.5, -0.1)], 'no'), ([(0, 0)], 'no'),
    ([(0.5, 0.9), (-0.1, 0.9)], 'not shown'), ([(0.5, 0.9), None],
                                               'not shown'),
])
def test_decide(ends, holds):
    assert stats.decide(iter(ends)) == holds


def test_most():
    above, below, unknown = Gap(2, 1), Gap(-2, 1), Gap(1, 2)
    assert stats.most([above, above, below]) == 'yes'
    assert stats.most([above, below]) == 'no'
    assert stats.most([above, unknown, unknown]) == 'not shown'
    assert stats.most([]) == 'not shown'


def test_compared():
    assert stats.compared('a: ', {}) == ''
    assert stats.compared('a: ', {'x': None}) == ''
    # Printed numbers may be equal where those they are rounded from differ.
    found = {'u': stats.Gap(0.14, 0.06), 'v': stats.Gap(0.0, 0.0),
             'w': stats.Gap(-1.0, 0.5), 'x': None,
             'y': stats.Gap(0.14, 0.12), 'z': stats.Gap(1.0, 1.0)}
    assert stats.compared('a: ', found) == (
        'a: better: u +0.1 ± 0.1, y +0.1 ± 0.1; worse: w -1.0 ± 0.5; no '
        'difference shown: v +0.0 ± 0.0, z +1.0 ± 1.0.')
    assert stats.compared('', {'y': found['y']}, 2) == (
        'better: y +0.14 ± 0.12.')
