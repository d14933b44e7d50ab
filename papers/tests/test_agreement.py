"""Kendall's tau against counting pairs."""

from __future__ import annotations

from itertools import combinations
from math import sqrt

import numpy as np
import pytest

from expound_papers.similarity import kendall_tau


def tau_by_pairs(one, other):
    """τ-b by its definition: concordant minus discordant pairs, ties corrected for."""
    pairs = [(np.sign(a - b), np.sign(c - d)) for (a, c), (b, d) in combinations(zip(one, other, strict=True), 2)]
    untied = [sum(1 for pair in pairs if pair[side] != 0) for side in (0, 1)]
    return sum(a * b for a, b in pairs) / sqrt(untied[0] * untied[1])


def test_kendall_tau_equals_its_definition_with_ties():
    generator = np.random.default_rng(0)
    for _ in range(20):
        one, other = generator.integers(0, 5, size=(2, 9)).astype(float)
        assert kendall_tau(one, other) == pytest.approx(tau_by_pairs(one, other))


@pytest.mark.parametrize(("one", "other"), [([1.0], [2.0]), ([], []), ([1.0, 1.0], [1.0, 2.0])])
def test_kendall_tau_of_short_or_constant_lists_is_nan(one, other):
    assert np.isnan(kendall_tau(one, other))
