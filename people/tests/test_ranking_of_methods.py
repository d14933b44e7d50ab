"""Ratings and agreement from rankings, against the paper's table and independent statistics."""

from __future__ import annotations

import math

import numpy as np
import pytest
import trueskill
from scipy.stats import friedmanchisquare

from expound_people.analysis.ranking import (
    compute_rank_ranges,
    kendall_w,
    mean_kendall_w,
    rate_methods,
)
from expound_people.analysis.simulation import Guess, compute_gains

TABLE_4 = {
    "input_x_gradient": (-2.7, 0.67),
    "integrated_gradients": (-2.1, 0.67),
    "all": (0.7, 0.67),
    "smat": (4.3, 0.70),
}


def ballots(count, strengths=(-2.7, -2.1, 0.7, 4.3), ties=False, seed=0):
    """Rankings of methods a, b, ... whose strength shows through noise."""
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        shown = np.array(strengths) + generator.normal(0, 25 / 6, len(strengths))
        shown = np.round(shown / 2) if ties else shown
        distinct = sorted(set(shown), reverse=True)
        found.append({chr(97 + i): distinct.index(value) + 1 for i, value in enumerate(shown)})
    return found


def test_the_ranks_of_table_4_follow_from_its_ratings():
    mu, sigma = zip(*TABLE_4.values(), strict=True)
    assert compute_rank_ranges(mu, sigma) == [(3, 4), (3, 4), (2, 2), (1, 1)]


def test_the_deviations_of_table_4_follow_from_its_parameters_only():
    sigmas = [rating.sigma for rating in rate_methods(ballots(300))]
    assert all(0.65 < sigma < 0.73 for sigma in sigmas)
    scaled = trueskill.TrueSkill(mu=0, sigma=0.5, beta=0.25, tau=0.005, draw_probability=0.1)
    one, _ = scaled.rate_1vs1(scaled.create_rating(), scaled.create_rating())
    assert one.sigma < 0.5


def test_a_ballot_of_two_is_the_update_of_the_published_formula():
    (winner, loser) = rate_methods([{"a": 1, "b": 2}])
    beta, tau, sigma = 25 / 6, 25 / 300, 0.5
    variance = sigma**2 + tau**2
    c = math.sqrt(2 * beta**2 + 2 * variance)
    margin = 0.1256613468550742 * math.sqrt(2) * beta  # Φ⁻¹(0.55) √2 β: a draw in one of ten
    t, cdf = -margin / c, lambda x: (1 + math.erf(x / math.sqrt(2))) / 2
    v = math.exp(-t * t / 2) / math.sqrt(2 * math.pi) / cdf(t)
    w = v * (v + t)
    assert (winner.method, loser.method) == ("a", "b")
    assert winner.mu == pytest.approx(variance / c * v, rel=1e-6)
    assert loser.mu == pytest.approx(-winner.mu)
    assert winner.sigma == pytest.approx(math.sqrt(variance * (1 - variance / c**2 * w)), rel=1e-6)
    assert winner.high - winner.low == pytest.approx(2 * 1.959964 * winner.sigma)


def test_ties_keep_equal_ratings_equal():
    found = rate_methods([dict.fromkeys("abc", 2)] * 5)
    assert [rating.mu for rating in found] == pytest.approx([0, 0, 0], abs=1e-9)
    assert {rating.rank for rating in found} == {"1-3"}


def test_the_stronger_method_gets_the_better_rank():
    found = rate_methods(ballots(200))
    assert found[0].method == "d"
    assert found[0].rank == "1"
    assert [rating.mu for rating in found] == sorted((rating.mu for rating in found), reverse=True)
    counted = {name: np.mean([ballot[name] for ballot in ballots(200)]) for name in "abcd"}
    assert all(rating.mean_rank == pytest.approx(counted[rating.method]) for rating in found)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("people", [3, 7])
def test_kendalls_w_is_friedmans_statistic_over_its_largest_value(people, ties):
    cast = ballots(people, ties=ties, seed=people)
    columns = [[ballot[name] for ballot in cast] for name in "abcd"]
    expected = friedmanchisquare(*columns).statistic / (people * 3)
    assert kendall_w(cast) == pytest.approx(expected, rel=1e-9)


def test_kendalls_w_by_hand():
    same, reverse = {"a": 1, "b": 2, "c": 3}, {"a": 3, "b": 2, "c": 1}
    assert kendall_w([same, same]) == pytest.approx(1.0)
    assert kendall_w([same, reverse]) == pytest.approx(0.0)
    # sums of ranks 4, 4, 10 around 6: S = 24, so W = 12 · 24 / (9 · 24)
    assert kendall_w([same, {"a": 2, "b": 1, "c": 3}, {"a": 1, "b": 2, "c": 3}]) == pytest.approx(12 * 14 / (9 * 24))
    assert math.isnan(kendall_w([same]))
    assert math.isnan(kendall_w([dict.fromkeys("abc", 1)] * 3))


def test_only_examples_that_several_people_ranked_count_for_agreement():
    same, reverse = {"a": 1, "b": 2}, {"a": 2, "b": 1}
    assert mean_kendall_w([(0, same), (0, same), (1, same), (2, same), (2, reverse)]) == (pytest.approx(0.5), 2)
    assert math.isnan(mean_kendall_w([(0, same)])[0])


def test_gain_is_the_mean_over_examples_inside_its_interval():
    guesses = [Guess(e, "good", before=e % 4 == 0, after=True) for e in range(40)]
    guesses += [Guess(e, "none", before=e % 2 == 0, after=e % 2 == 0) for e in range(40)]
    good, none = compute_gains(guesses)
    assert (good.method, good.before, good.after) == ("good", 0.25, 1.0)
    assert good.gain == pytest.approx(0.75)
    assert (good.normalized_gain, none.normalized_gain) == (1, 0)
    assert good.low < 0.75 < good.high
    # the bootstrap's width is near that of a proportion: 2 · 1.96 · √(0.75 · 0.25 / 40)
    assert good.high - good.low == pytest.approx(2 * 1.96 * math.sqrt(0.75 * 0.25 / 40), rel=0.25)
    assert (none.gain, none.low, none.high) == (0, 0, 0)
