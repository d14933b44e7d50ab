"""Krippendorff's α and Kendall's W on published examples, and against a reference package."""

from __future__ import annotations

import math

import krippendorff as reference
import numpy as np
import pytest

from expound.errors import ExpoundError
from expound_people.analysis.agreement import krippendorff_alpha
from expound_people.analysis.ranking import kendall_w

# Krippendorff (2011), Computing Krippendorff's Alpha-Reliability, example C: four observers, twelve units; 0: no rating
EXAMPLE_C = [
    [1, 2, 3, 3, 2, 1, 4, 1, 2, 0, 0, 0],
    [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, 0, 3],
    [0, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, 0],
    [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, 0],
]


def units(table):
    return [[value for value in column if value] for column in zip(*table, strict=True)]


@pytest.mark.parametrize(("level", "alpha"), [("nominal", 0.743), ("ordinal", 0.815)])
def test_krippendorffs_own_example_with_missing_ratings(level, alpha):
    assert krippendorff_alpha(units(EXAMPLE_C), level) == pytest.approx(alpha, abs=5e-4)


def test_krippendorffs_examples_of_two_observers():
    binary = [(0, 1), (1, 1), (0, 1), (0, 0), (0, 0), (0, 1), (0, 0), (0, 0), (1, 0), (0, 0)]  # example A
    assert krippendorff_alpha(binary) == pytest.approx(0.095, abs=5e-4)
    letters = list(zip("aabbdcccedda", "babbbccceddd", strict=True))  # example B
    assert krippendorff_alpha(letters) == pytest.approx(0.692, abs=5e-4)


@pytest.mark.parametrize("level", ["nominal", "ordinal"])
def test_alpha_agrees_with_the_reference_package(level):
    generator = np.random.default_rng(3)
    for _ in range(20):
        table = generator.integers(1, 7, (5, 30)).astype(float)
        table[generator.random(table.shape) < 0.3] = np.nan
        mine = [[value for value in column if not np.isnan(value)] for column in table.T]
        expected = reference.alpha(reliability_data=table, level_of_measurement=level)
        assert krippendorff_alpha(mine, level) == pytest.approx(expected, abs=1e-12)


def test_alpha_is_undefined_where_nothing_differs_or_nothing_is_shared():
    assert math.isnan(krippendorff_alpha([[1, 1], [1, 1, 1]]))
    assert math.isnan(krippendorff_alpha([[1], [2]]))
    with pytest.raises(ExpoundError, match="Valid choices: nominal, ordinal"):
        krippendorff_alpha([[1, 2]], "ratio")


def test_kendalls_w_of_siegels_three_executives():
    # Siegel (1956), Nonparametric Statistics, table 9.4: six applicants ranked by three executives, W = .16
    ranks = [[1, 6, 3, 2, 5, 4], [1, 5, 6, 4, 2, 3], [6, 3, 2, 5, 4, 1]]
    ballots = [dict(zip("abcdef", row, strict=True)) for row in ranks]
    assert kendall_w(ballots) == pytest.approx(12 * 25.5 / (9 * (6**3 - 6)))
    assert round(kendall_w(ballots), 2) == 0.16
