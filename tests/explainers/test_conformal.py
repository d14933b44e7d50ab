"""Conformal lower bounds: exact quantiles, coverage of planted drops, and cases without a bound."""

from __future__ import annotations

import math

import numpy as np
import pytest

from expound.explainers.learned.conformal import ConformalLowerBound, shares

ALPHA, SOURCES = 0.1, 6


def draw_prompts(count, seed):
    """Scores, true falls and kinds of prompts: one needed source, two sources that say the same, or two hops."""
    random = np.random.default_rng(seed)
    scores, falls, kinds = [], [], []
    for number in range(count):
        kind = number % 3
        true, seen = np.zeros(SOURCES), np.zeros(SOURCES)
        for place in range(1 if kind == 0 else 2):
            seen[place] = random.gamma(20.0, 1.0) / (1 if kind == 0 else 2)
            true[place] = 0.0 if kind == 1 else seen[place] * random.lognormal(0, 0.4)
        scores.append(np.maximum(seen + 0.3 * random.normal(size=SOURCES), 0)[None])
        falls.append((true + 0.05 * random.normal(size=SOURCES))[None])
        kinds.append(kind)
    return scores, falls, kinds


def share_of_held_bounds(promise, scores, falls):
    """The share of bounds that hold, for each prompt with a bound."""
    bounds = [promise.lower_bounds(each) for each in scores]
    pairs = [(fall[~np.isnan(bound)], bound[~np.isnan(bound)]) for fall, bound in zip(falls, bounds, strict=True)]
    return np.array([(fall >= bound).mean() for fall, bound in pairs if len(bound)])


def test_bounds_on_new_prompts_hold_with_the_calibrated_probability():
    promise = ConformalLowerBound.calibrate(*draw_prompts(6000, 0)[:2], ALPHA)
    scores, falls, kinds = draw_prompts(3300, 1)
    found = share_of_held_bounds(promise, scores, falls)
    assert len(found) > 1000
    assert abs(found.mean() - (1 - ALPHA)) < 0.02
    bounded = np.array([not np.isnan(promise.lower_bounds(each)).all() for each in scores])
    assert bounded[np.array(kinds) == 0].mean() > 0.95  # one source that is needed
    assert bounded[np.array(kinds) == 1].mean() < 0.05  # the other one says it too


@pytest.mark.parametrize("count", [9, 10, 19, 200])
def test_one_source_a_prompt_gives_the_order_statistic_of_split_conformal(count):
    falls = np.random.default_rng(3).gamma(2.0, 1.0, count)
    promise = ConformalLowerBound.calibrate([np.ones((1, 1))] * count, list(falls.reshape(-1, 1, 1)), ALPHA)
    place = math.floor(ALPHA * (count + 1) + 1e-9)
    if place == 0:
        assert np.isnan(promise.bounds).all()
    else:
        assert promise.bounds[-1] == pytest.approx(np.sort(falls)[place - 1])
    assert np.isnan(promise.bounds[:-1]).all()


def test_coverage_with_few_prompts_is_at_least_one_minus_alpha():
    """The mean over many calibrations on 30 prompts each, of sources that depend on each other within a prompt."""
    rates = []
    for seed in range(300):
        random = np.random.default_rng(seed)
        level = random.gamma(3.0, 1.0, 31)
        falls = [(own + 0.1 * random.normal(size=(1, 1 + number % 4))) for number, own in enumerate(level)]
        scores = [np.ones_like(each) / each.shape[1] for each in falls]
        promise = ConformalLowerBound.calibrate(scores[:30], falls[:30], ALPHA, bins=1)
        rates.append((falls[30] >= promise.lower_bounds(scores[30])).mean())
    error = np.std(rates) / np.sqrt(len(rates))
    assert np.mean(rates) > 1 - ALPHA - 2 * error


def test_scores_that_are_not_positive_have_no_bound():
    promise = ConformalLowerBound(ALPHA, (1.0, 2.0))
    bounds = promise.lower_bounds(np.array([[3.0, 1.0, 0.0, -5.0], [0.0, 0.0, -1.0, 0.0]]))
    np.testing.assert_array_equal(bounds, [[2.0, 1.0, np.nan, np.nan], [np.nan] * 4])
    np.testing.assert_allclose(shares(np.array([3.0, 1.0, -2.0])), [0.75, 0.25, 0])


def test_tiny_drops_give_no_bound():
    scores = [np.ones((1, 1))] * 50
    assert np.isnan(ConformalLowerBound.calibrate(scores, [np.full((1, 1), 0.001)] * 50, ALPHA).bounds).all()
    assert np.isnan(ConformalLowerBound.calibrate([], [], ALPHA).bounds).all()
