"""The table's numbers against brute force and scipy; marks; degenerate tables."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import bootstrap

from expound.errors import ExpoundError
from expound.reports.tables.board_table import choose_decimals, make_board_table
from expound.reports.tables.leaderboard import bootstrap_intervals, draw_resamples, make_leaderboard
from expound.reports.tables.significance import adjust_p_values, metric_summands, paired_test
from reports.boards import CARDS, results


def test_intervals_are_those_of_a_loop_over_the_same_examples():
    generator = np.random.default_rng(1)
    values = generator.normal(size=(2, 3, 17))
    values[generator.random(values.shape) < 0.3] = np.nan
    drawn = draw_resamples(17, 230, seed=5)
    low, high = bootstrap_intervals(values, drawn)
    for row in range(2):
        for column in range(3):
            means = [np.nanmean(values[row, column, chosen]) for chosen in drawn]
            expected = np.nanpercentile(means, [2.5, 97.5])
            np.testing.assert_allclose([low[row, column], high[row, column]], expected, rtol=1e-12, atol=1e-14)


def test_intervals_agree_with_scipy():
    values = np.random.default_rng(2).gamma(2.0, size=60)
    low, high = bootstrap_intervals(values[None, None], draw_resamples(60, 20_000, seed=0))
    other = bootstrap((values,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(9))
    error = 4 * other.standard_error * np.sqrt(0.025 * 0.975 / 20_000) / 0.058
    np.testing.assert_allclose([low[0, 0], high[0, 0]], list(other.confidence_interval), atol=error)


def test_a_resample_without_a_defined_example_is_left_out():
    values = np.array([[[3.0, np.nan]]])
    low, high = bootstrap_intervals(values, np.array([[0, 0], [1, 1], [0, 1]]))
    assert low[0, 0] == high[0, 0] == 3.0


def test_means_and_counts_leave_out_the_undefined():
    frame = results()
    board = make_leaderboard(frame, CARDS)
    for row, method in enumerate(board.rows):
        for column, card in enumerate(board.cards):
            values = frame.loc[frame["method"] == method, card.name]
            assert board.mean[row, column] == pytest.approx(values.mean(), rel=1e-12)
            assert board.count[row, column] == values.notna().sum()
    assert board.rows == sorted(board.rows, key=dict(zip(board.rows, -board.mean[:, 0], strict=True)).get)
    board = board.without_costs
    assert np.all(board.low <= board.mean)
    assert np.all(board.mean <= board.high)


def test_methods_are_resampled_together():
    frame = results(("one",))
    shifted = frame.assign(method="two", sufficiency=frame["sufficiency"] + 1)
    shuffled = shifted.sample(frac=1.0, random_state=3)
    board = make_leaderboard(pd.concat([frame, shuffled]), CARDS)
    np.testing.assert_allclose(board.low[1, 1] - board.low[0, 1], 1.0, rtol=1e-12)
    np.testing.assert_allclose(board.high[1, 1] - board.high[0, 1], 1.0, rtol=1e-12)


def test_the_seed_decides():
    one, same, other = (make_leaderboard(results(), CARDS, seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.low, same.low)
    assert np.any(one.low != other.low)


def test_an_example_that_a_method_lacks_is_undefined():
    frame = results()
    board = make_leaderboard(frame[~((frame["method"] == "random") & (frame["example"] >= 30))], CARDS)
    assert dict(zip(board.rows, board.count[:, 1], strict=True)) == {"random": 30, "attention": 40, "occlusion": 40}


def test_one_example_no_example_and_nothing_defined():
    board = make_leaderboard(results(examples=2).query("example == 1"), CARDS).without_costs
    np.testing.assert_array_equal(board.low, board.mean)
    np.testing.assert_array_equal(board.high, board.mean)
    empty = make_leaderboard(results(examples=0), CARDS)
    assert empty.mean.shape == (0, 3)
    assert empty.rows == []
    nothing = make_leaderboard(results().assign(seconds=np.nan), CARDS)
    assert np.isnan(nothing.mean[:, 2]).all()
    assert np.isnan(nothing.low[:, 2]).all()
    assert nothing.count[:, 2].tolist() == [0, 0, 0]
    assert not nothing.best[:, 2].any()
    assert make_leaderboard(results(), []).mean.shape == (3, 0)


def test_infinite_values_are_undefined():
    frame = results().assign(seconds=np.inf)
    assert make_leaderboard(frame, CARDS).count[:, 2].tolist() == [0, 0, 0]


def test_bad_tables_are_refused():
    with pytest.raises(ExpoundError, match="seconds"):
        make_leaderboard(results().drop(columns="seconds"), CARDS)
    with pytest.raises(ExpoundError, match="more than one row"):
        make_leaderboard(pd.concat([results(), results()]), CARDS)
    with pytest.raises(ExpoundError, match="n_resamples"):
        make_leaderboard(results(), CARDS, n_resamples=0)


def _frame(values, metric="sufficiency"):
    """A table of one metric, from the values of the examples by method."""
    return pd.DataFrame(
        [
            {"method": method, "example": example, metric: value}
            for method, column in values.items()
            for example, value in enumerate(column)
        ]
    )


def _find_best(values, card=CARDS[1], **options):
    board = make_leaderboard(_frame(values, card.name), [card], **options)
    return [name for name, marked in zip(board.rows, board.best[:, 0], strict=True) if marked]


def test_what_is_not_told_apart_from_the_best_is_best_too():
    noise = np.random.default_rng(0).normal(size=60)
    other = np.random.default_rng(1).normal(size=60)
    values = {"far": noise + 1, "near": noise + 0.05 * other, "first": noise}
    assert _find_best(values) == ["near", "first"] or _find_best(values) == ["first", "near"]
    assert _find_best({name: -value for name, value in values.items()}, CARDS[0]) == _find_best(values)
    assert _find_best({"far": noise + 1, "first": noise}) == ["first"]
    assert _find_best({"near": noise + 0.05 * other, "first": noise}) == []
    assert _find_best({"only": noise}) == ["only"]


def test_marks_agree_with_the_test_of_a_study_and_holm():
    noise = np.random.default_rng(3).normal(size=(8, 50))
    values = {f"m{row}": noise[0] + row * 0.08 + 0.8 * noise[row] for row in range(1, 8)}
    board = make_leaderboard(_frame(values), [CARDS[1]])
    first = board.rows[0]
    summands = {name: [metric_summands(value)] for name, value in values.items()}
    p = [paired_test(summands[name], summands[first], "bootstrap", seed=5) for name in board.rows[1:]]
    apart = np.array(adjust_p_values(p, "holm")) <= 0.05
    assert apart.any()
    assert not apart.all()
    assert board.best[:, 0].tolist() == [True, *~apart]


def test_few_examples_tell_nothing_apart():
    assert _find_best({"a": [0.0] * 5, "b": [9.0] * 5}) == []
    assert _find_best({"a": [0.0] * 6, "b": [9.0] * 6}) == ["a"]


def test_methods_no_better_than_random_are_known():
    noise = np.random.default_rng(0).normal(size=80)
    values = {"random": noise, "worse": noise + 1, "same": noise[::-1], "good": noise - 1}
    board = make_leaderboard(_frame(values), [CARDS[1]])
    assert dict(zip(board.rows, board.is_at_chance, strict=True)) == {
        "good": False,
        "random": False,
        "same": True,
        "worse": True,
    }
    assert not make_leaderboard(_frame({"a": noise, "b": noise + 1}), [CARDS[1]]).chance.any()


def test_cells_say_enough_digits():
    assert choose_decimals(np.array([0.5, 0.123])) == [3, 3]
    assert choose_decimals(np.array([0.0051, np.nan])) == [5, 5]
    assert choose_decimals(np.array([1089.0, 1.02, 0.0])) == [0, 2, 3]
    board = make_leaderboard(_frame({"a": [1089.4], "b": [1.024], "c": [np.nan]}), [CARDS[1]])
    assert [cell.text for _, cell in make_board_table(board).cells] == ["1.02", "1089", "–"]
    assert choose_decimals(np.array([])) == []


def test_costs_have_neither_an_interval_nor_a_best_and_significant_digits():
    frame = results().assign(
        seconds=lambda rows: rows["method"].map({"random": 9e-5, "attention": 0.012, "occlusion": 1.5})
    )
    board = make_leaderboard(frame, CARDS)
    assert np.isnan(board.low[:, 2]).all()
    assert np.isnan(board.high[:, 2]).all()
    assert not board.best[:, 2].any()
    by_method = {name: row[3] for name, row in zip(board.rows, make_board_table(board).cells, strict=True)}
    assert {name: cell.text for name, cell in by_method.items()} == {
        "random": "0.000090", "attention": "0.012", "occlusion": "1.5",
    }  # fmt: skip
    assert {cell.interval for cell in by_method.values()} == {""}
    assert [card.name for card in board.without_costs.cards] == ["comprehensiveness", "sufficiency"]
