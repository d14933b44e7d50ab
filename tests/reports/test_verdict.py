"""The sentence over a table, against tables whose answer is known."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest

from expound.reports.tables.board_table import format_disagreements, format_verdict
from expound.reports.tables.leaderboard import compute_win_rates, count_separating_examples, make_leaderboard
from reports.boards import CARDS, results

NOISE = np.random.default_rng(0).normal(size=50)


def _board(values, seconds):
    """A leaderboard of comprehensiveness by method and example, and of seconds by method."""
    parts = [
        pd.DataFrame({"method": name, "example": range(50), "comprehensiveness": value, "seconds": seconds[name]})
        for name, value in values.items()
    ]
    return make_leaderboard(pd.concat(parts), [CARDS[0], CARDS[2]])


def _others(**more):
    return {"random": NOISE - 5, "saliency": NOISE[::-1] - 5, **more}


COSTS = {"random": 0.001, "saliency": 0.01, "fast": 0.02, "slow": 0.12}


def test_ties_and_what_they_cost():
    board = _board(_others(fast=NOISE + 0.4 - NOISE.mean(), slow=NOISE[::-1] + 0.39 - NOISE.mean()), COSTS)
    assert format_verdict(board) == (
        "On 50 examples, fast and slow are tied best by Comprehensiveness (0.400, 0.390); "
        "fast costs a sixth of slow, 0.02 s per example. More than 100,000 examples would be needed to separate the "
        "first two. saliency is no better than random."
    )


def test_the_examples_that_would_separate_the_first_two_are_those_of_a_paired_test():
    differences = 0.3 + 1.5 * (NOISE - NOISE.mean()) / NOISE.std(ddof=1)
    need = count_separating_examples(differences)
    assert need == pytest.approx(((1.959964 + 0.841621) * 1.5 / 0.3) ** 2)
    noise = np.random.default_rng(1).normal(0.3, 1.5, size=(4000, round(need)))
    found = np.abs(noise.mean(1)) > 1.96 * noise.std(1, ddof=1) / np.sqrt(round(need))
    assert found.mean() == pytest.approx(0.8, abs=0.02)
    slow = np.roll(NOISE, 7)
    board = _board(_others(fast=slow + differences, slow=slow), COSTS)
    assert f"About {float(f'{need:.2g}'):.0f} examples would separate the first two." in format_verdict(board)
    sure = _board(_others(fast=slow + 9, slow=slow), COSTS)
    assert "separate" not in format_verdict(sure)
    same = _board(_others(fast=NOISE, slow=NOISE), COSTS)
    assert same.separating == np.inf


def test_the_verdict_says_what_another_way_of_removal_changes():
    others = {"random": NOISE - 5, "saliency": NOISE[::-1] - 5, "fast": NOISE, "slow": NOISE - 9}
    mask = replace(CARDS[0], name="comprehensiveness?perturbation=mask")

    def make_verdict(**changed):
        rows = []
        for name, value in others.items():
            replaced = changed.get(name, value)
            row = {"method": name, "example": range(50), "comprehensiveness": value, mask.name: replaced}
            rows.append(pd.DataFrame(row))
        board = make_leaderboard(pd.concat(rows), [CARDS[0], mask])
        assert not format_disagreements(board)
        return format_verdict(board)

    assert make_verdict().endswith("slow are no better than random. The same holds with perturbation=mask.")
    changed = make_verdict(fast=NOISE - 5, slow=NOISE + 1)
    assert changed.endswith(
        "With perturbation=mask: slow is best; fast is no better than random; slow is better than random."
    )
    tied = make_verdict(slow=NOISE[::-1] - NOISE.mean() + 0.1)
    assert tied.endswith("With perturbation=mask: slow is also among the best; slow is better than random.")


def test_wins_over_random_are_counted_by_example():
    values = {"random": [1.0, 1, 1, 1], "a": [2, 2, 1, 0]}
    parts = [
        pd.DataFrame({"method": name, "example": range(4), "comprehensiveness": of}) for name, of in values.items()
    ]
    ((method, metric, *found),) = compute_win_rates(pd.concat(parts), CARDS[:1]).to_numpy().tolist()
    assert (method, metric, found[0]) == ("a", "comprehensiveness", 0.625)
    # A whole number of wins has scipy's interval.
    whole = pd.concat([parts[0].assign(comprehensiveness=1.0), parts[1].assign(comprehensiveness=[2, 2, 2, 0])])
    low, high = binomtest(3, 4).proportion_ci(method="wilson")
    assert compute_win_rates(whole, CARDS[:1]).iloc[0, 2:].tolist() == pytest.approx([0.75, low, high])


def test_one_is_best():
    board = _board(_others(slow=NOISE, fast=NOISE - 1), COSTS)
    assert format_verdict(board).startswith("On 50 examples, slow is best by Comprehensiveness (")
    assert "it takes 0.12 s per example." in format_verdict(board)


def test_the_cheapest_is_set_beside_the_dearest():
    board = _board(_others(slow=NOISE, fast=NOISE[::-1]), COSTS | {"fast": 0.001})
    assert "fast costs 1/120 of slow, 0.001 s per example" in format_verdict(board)
    same = _board(_others(slow=NOISE, fast=NOISE[::-1]), COSTS | {"fast": 0.12})
    assert "they cost about the same, 0.12 s per example" in format_verdict(same)
    third = _others(fast=NOISE, quick=np.roll(NOISE, 1), slow=NOISE[::-1])
    three = _board(third, COSTS | {"quick": 0.019})
    assert "quick costs a sixth of slow, 0.019 s per example" in format_verdict(three)


def test_nothing_is_claimed_that_is_within_noise():
    alike = {name: np.roll(NOISE, at) for at, name in enumerate(("fast", "slow"))}
    assert "no method is significantly worse than the best" in format_verdict(_board(alike, COSTS))
    worst = _board({"random": NOISE, "fast": NOISE[::-1], "slow": NOISE - 9}, COSTS)
    assert "no method is better than random" in format_verdict(worst)
    constant = _board({"random": 1e-6 * NOISE, "fast": 1e-6 * NOISE + 1e-4, "slow": 1e-6 * NOISE + 2e-4}, COSTS)
    assert format_verdict(constant) == (
        "On 50 examples, Comprehensiveness is 0.000 for all methods: look at the model's accuracy first."
    )


def test_another_metric_that_disagrees_has_a_line_of_its_own():
    frame = pd.concat(
        pd.DataFrame(
            {"method": name, "example": range(50), "comprehensiveness": NOISE + high, "sufficiency": NOISE + low}
        )
        for name, high, low in (("first", 1, 1), ("second", 0, 0), ("third", -1, 1))
    )
    assert format_disagreements(make_leaderboard(frame, CARDS[:2])) == ["By Sufficiency, second is best."]
    assert format_disagreements(make_leaderboard(frame, [CARDS[1], CARDS[0]])) == [
        "By Comprehensiveness, first is best."
    ]
    agreeing = frame.assign(sufficiency=-frame["comprehensiveness"])
    assert format_disagreements(make_leaderboard(agreeing, CARDS[:2])) == []


def test_many_ties_are_counted():
    names = [f"m{number}" for number in range(9)]
    board = _board(
        _others(**{name: np.roll(NOISE, at) for at, name in enumerate(names)}), COSTS | dict.fromkeys(names, 1.0)
    )
    assert "5 more are tied best" in format_verdict(board)


def test_tables_of_nothing_say_nothing():
    assert format_verdict(make_leaderboard(results(examples=0), CARDS)) == ""
    assert format_verdict(make_leaderboard(results(), [])) == ""
    assert format_disagreements(make_leaderboard(results(), [])) == []
    assert format_verdict(make_leaderboard(results().assign(comprehensiveness=np.nan), CARDS)) == ""
    assert "no other method" in format_verdict(make_leaderboard(results(("one",)), CARDS))


@pytest.mark.parametrize("count", [1, 2])
def test_one_example_is_not_many(count):
    board = make_leaderboard(results(("one", "two"), examples=count).fillna(0.0), CARDS)
    assert f"On {count} example{'s' * (count - 1)}," in format_verdict(board)
