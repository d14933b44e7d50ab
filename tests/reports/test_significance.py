"""Paired tests against scipy and scikit-learn, and their error rates."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from expound.errors import ExpoundError
from expound.reports.tables.significance import adjust_p_values, metric_summands, paired_test


@pytest.mark.parametrize("shift", [0.0, 0.15, 0.4])
def test_the_permutation_test_agrees_with_scipy(shift):
    draw = np.random.default_rng(1)
    one = draw.normal(size=60)
    other = one + draw.normal(shift, 0.6, size=60)
    found = paired_test([metric_summands(one)], [metric_summands(other)], "permutation", 4000)
    expected = stats.permutation_test(
        (one, other), lambda a, b: np.mean(a - b), permutation_type="samples", n_resamples=4000, rng=3
    ).pvalue
    assert found == pytest.approx(expected, abs=0.03)
    assert paired_test([metric_summands(one)], [metric_summands(other)], "bootstrap", 4000) == pytest.approx(
        found, abs=0.05
    )


@pytest.mark.parametrize("method", ["permutation", "bootstrap"])
def test_of_differences_that_are_none_one_in_twenty_is_called_one(method):
    draw = np.random.default_rng(2)
    p = [
        paired_test([metric_summands(draw.normal(size=80))], [metric_summands(draw.normal(size=80))], method, 400)
        for _ in range(300)
    ]
    assert 0.02 <= np.mean(np.array(p) < 0.05) <= 0.09


def test_seeds_are_exchanged_together_and_must_fit():
    draw = np.random.default_rng(3)
    same = [metric_summands(draw.normal(size=40)) for _ in range(3)]
    assert paired_test(same, same, "permutation", 200) == 1.0
    better = [metric_summands(run.values[:, 0] + 1) for run in same]
    assert paired_test(same, better, "permutation", 200) == pytest.approx(1 / 201)
    with pytest.raises(ExpoundError, match="same runs and examples"):
        paired_test(same, same[:2], "permutation")


def test_corrections_match_what_others_compute():
    p = [0.01, 0.04, float("nan"), 0.03, 0.005, 0.5]
    known = [value for value in p if value == value]
    assert adjust_p_values(p, "bh")[:2] + adjust_p_values(p, "bh")[3:] == pytest.approx(
        stats.false_discovery_control(known)
    )
    assert adjust_p_values(p, "holm")[:2] + adjust_p_values(p, "holm")[3:] == pytest.approx(
        [0.04, 0.09, 0.09, 0.025, 0.5]
    )
    assert adjust_p_values(known, "none") == known
    assert np.isnan(adjust_p_values(p, "holm")[2])
    assert adjust_p_values([], "holm") == []
