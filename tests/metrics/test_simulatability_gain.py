from __future__ import annotations

import math

from expound.metrics.simulatability import simulatability_gain


def test_the_gain_is_the_share_of_what_was_wrong():
    for explained, unexplained, gain in [(1.0, 0.5, 1), (0.75, 0.5, 0.5), (0.5, 0.5, 0), (0.25, 0.5, -0.5), (0, 0, 0)]:
        assert simulatability_gain(explained, unexplained) == gain


def test_the_gain_is_nan_if_no_guess_was_wrong():
    assert math.isnan(simulatability_gain(0.9, 1.0))
