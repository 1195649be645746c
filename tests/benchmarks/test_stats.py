import pandas as pd
import pytest

from benchmarks.stats import mean_error, paired


def test_paired_by_hand():
    # Differences 1, 2 and 3, whose standard error is 3^(-1/2); the 97.5 %
    # point of Student's t with two degrees of freedom is 4.303.
    gap = paired(pd.Series([80., 82., 84.]), pd.Series([79., 80., 81.]))
    assert gap.mean == pytest.approx(2)
    assert gap.half == pytest.approx(4.3027 / 3**0.5, rel=1e-4)
    assert str(gap) == '+2.0 ± 2.5' and not gap.is_above
    assert paired(pd.Series([5., 6.1]), pd.Series([1., 2.])).is_above


def test_only_seeds_that_both_have_count():
    a = pd.Series([1., 2., 3.], index=[100, 101, 102])
    b = pd.Series([0., 0., 9.], index=[102, 101, 7])
    assert paired(a, b).mean == pytest.approx(2.5)
    assert paired(a, b[[102]]) is None


def test_mean_error():
    assert mean_error(pd.Series([80., 82., 84.])) == '82.0 ± 1.2 (3)'
    assert mean_error(pd.Series([80.])) == '80.0 (1)'
    assert mean_error(pd.Series([], dtype=float)) == '–'
