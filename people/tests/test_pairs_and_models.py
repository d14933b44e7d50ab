"""Bradley–Terry and mixed models: a reference package, planted values, and how often intervals cover them."""

from __future__ import annotations

import math

import choix
import numpy as np
import pytest
from scipy.special import expit, logit

from expound.errors import ExpoundError
from expound_people.analysis.bradley_terry import count_wins, estimate_strengths, fit_bradley_terry
from expound_people.analysis.mixed_model import Observation, fit_mixed_model
from expound_people.blocks import BlockDesign

PLANTED = np.array([0.8, 0.1, -0.9])


def draw_wins(people, games, generator, taste=0.0):
    """Draws wins [P, M, M] by planted strengths, to which each person's taste is added."""
    size = len(PLANTED)
    found = np.zeros((people, size, size))
    for person in range(people):
        mine = PLANTED + generator.normal(0, taste, size) if taste else PLANTED
        for one in range(size):
            for other in range(one):
                won = generator.binomial(games, expit(mine[one] - mine[other]))
                found[person, one, other], found[person, other, one] = won, games - won
    return found


def test_strengths_are_those_of_the_reference_package():
    found = draw_wins(6, 5, np.random.default_rng(0))
    total = found.sum(0).astype(int)
    games = [(one, other) for one in range(3) for other in range(3) for _ in range(total[one, other])]
    assert fit_bradley_terry(found).strengths == pytest.approx(choix.opt_pairwise(3, games, tol=1e-12), abs=1e-6)


def test_two_methods_have_the_log_odds_of_their_wins():
    found = fit_bradley_terry(np.array([[[0, 3], [1, 0]], [[0, 2], [2, 0]]], dtype=float))
    assert found.strengths[0] - found.strengths[1] == pytest.approx(math.log(5 / 3))


def test_intervals_cover_the_planted_strengths_though_people_differ():
    generator, deviation = np.random.default_rng(1), 1.2
    apart = PLANTED[0] - PLANTED[1] + generator.normal(0, deviation * math.sqrt(2), 200_000)
    truth = logit(expit(apart).mean())  # what is true of people on average
    covered = []
    for _ in range(200):
        fitted = fit_bradley_terry(draw_wins(25, 8, generator, taste=deviation)[:, :2, :2])
        _, low, high = fitted.interval(np.array([1.0, -1.0]))
        covered.append(low < truth < high)
    assert 0.90 <= np.mean(covered) <= 0.99


def test_ballots_become_wins_of_each_person_and_ties_half_wins():
    ballots = [{"a": 1, "b": 2, "c": 2}, {"b": 1, "a": 2}]
    found = count_wins(ballots, ["Ada", "Ben"], ["a", "b", "c"])
    assert found[0].tolist() == [[0, 1, 1], [0, 0, 0.5], [0, 0.5, 0]]
    assert found[1].tolist() == [[0, 0, 0], [1, 0, 0], [0, 0, 0]]
    rows = estimate_strengths([*ballots, {"c": 1, "a": 2}], ["Ada", "Ben", "Cy"])
    assert sum(row.strength for row in rows) == pytest.approx(0)
    assert all(row.low < row.strength < row.high for row in rows)


def test_unbounded_strengths_are_nan():
    rows = estimate_strengths([{"a": 1, "b": 2}] * 4, range(4))
    assert all(math.isnan(row.strength) for row in rows)
    (one, _) = estimate_strengths([{"a": 1, "b": 2}, {"a": 2, "b": 1}, {"a": 1, "b": 2}], ["Ada"] * 3)
    assert one.strength == pytest.approx(math.log(2) / 2)
    assert math.isnan(one.low)


def draw_observations(generator, people=14, items=10):
    """Draws values of three methods with means 1, 2 and 2, and deviations 0.7 (people), 0.4 (items) and 0.5."""
    person, item = generator.normal(0, 0.7, people), generator.normal(0, 0.4, items)
    means = {"a": 1.0, "b": 2.0, "c": 2.0}
    return [
        Observation(f"p{p}", i, method, mean + person[p] + item[i] + generator.normal(0, 0.5))
        for p in range(people)
        for i in range(items)
        for method, mean in means.items()
    ]


def test_the_mixed_model_finds_planted_means_and_deviations():
    found = fit_mixed_model(draw_observations(np.random.default_rng(5)))
    assert found.converged
    first, second, third = found.effects
    assert second.mean - first.mean == pytest.approx(1, abs=0.2)
    assert third.mean - first.mean == pytest.approx(1, abs=0.2)
    assert all(effect.low < truth < effect.high for effect, truth in zip(found.effects, (1, 2, 2), strict=True))
    assert (found.sd_person, found.sd_item) == (pytest.approx(0.7, abs=0.3), pytest.approx(0.4, abs=0.25))
    assert found.sd_residual == pytest.approx(0.5, abs=0.05)
    assert math.isnan(first.p)
    assert max(second.p, third.p) < 1e-6


def test_a_balanced_mixed_model_has_the_plain_means_of_its_methods():
    rows = draw_observations(np.random.default_rng(6), people=5, items=4)
    for effect in fit_mixed_model(rows).effects:
        assert effect.mean == pytest.approx(np.mean([row.value for row in rows if row.method == effect.method]))


def test_a_mixed_model_needs_two_of_everything():
    rows = draw_observations(np.random.default_rng(6), people=2, items=2)
    with pytest.raises(ExpoundError, match="two of each person or more, found 1"):
        fit_mixed_model([row for row in rows if row.person == "p0"])


def test_blocks_show_methods_and_pairs_equally_often():
    for methods, screen in [(3, 4), (7, 3), (13, 4), (12, 4), (6, 4), (5, 2)]:
        blocks = BlockDesign.for_methods(methods, screen)
        assert len(blocks.get_methods(0, 0)) == min(methods, screen)
        counts = np.bincount(
            np.concatenate([blocks.get_methods(4, item) for item in range(methods)]), minlength=methods
        )
        assert set(counts.tolist()) == {min(methods, screen)}
        together = np.zeros((methods, methods))
        for person in range(len(blocks.bases)):
            for item in range(methods):
                shown = blocks.get_methods(person, item)
                together[np.ix_(shown, shown)] += 1
        assert np.ptp(together[~np.eye(methods, dtype=bool)]) == 0


def test_blocks_of_many_methods_are_nearly_balanced():
    blocks = BlockDesign.for_methods(20, 4)
    apart = np.zeros(20)
    for base in blocks.bases:
        for one in base:
            for other in base:
                apart[(one - other) % 20] += one != other
    assert np.ptp(apart[1:]) <= 0.05 * apart[1:].mean()
