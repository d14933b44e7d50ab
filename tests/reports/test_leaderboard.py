"""The table's numbers against brute force and scipy; ranks; degenerate tables."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import bootstrap

from exegete.data.cards import MetricCard
from exegete.errors import ExegeteError
from exegete.reports.cells import cells, decimals
from exegete.reports.leaderboard import Leaderboard, best, intervals, leaderboard, ranks, resamples, second
from reports.boards import CARDS, results


def test_intervals_are_those_of_a_loop_over_the_same_examples():
    generator = np.random.default_rng(1)
    values = generator.normal(size=(2, 3, 17))
    values[generator.random(values.shape) < 0.3] = np.nan
    drawn = resamples(17, 230, seed=5)
    low, high = intervals(values, drawn)
    for row in range(2):
        for column in range(3):
            means = [np.nanmean(values[row, column, chosen]) for chosen in drawn]
            expected = np.nanpercentile(means, [2.5, 97.5])
            np.testing.assert_allclose([low[row, column], high[row, column]], expected, rtol=1e-12, atol=1e-14)


def test_intervals_agree_with_scipy():
    values = np.random.default_rng(2).gamma(2.0, size=60)
    low, high = intervals(values[None, None], resamples(60, 20_000, seed=0))
    other = bootstrap((values,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(9))
    error = 4 * other.standard_error * np.sqrt(0.025 * 0.975 / 20_000) / 0.058
    np.testing.assert_allclose([low[0, 0], high[0, 0]], list(other.confidence_interval), atol=error)


def test_a_resample_without_a_defined_example_is_left_out():
    values = np.array([[[3.0, np.nan]]])
    low, high = intervals(values, np.array([[0, 0], [1, 1], [0, 1]]))
    assert low[0, 0] == high[0, 0] == 3.0


def test_means_and_counts_leave_out_the_undefined():
    frame = results()
    board = leaderboard(frame, CARDS)
    for row, method in enumerate(board.rows):
        for column, card in enumerate(board.cards):
            values = frame.loc[frame["method"] == method, card.name]
            assert board.mean[row, column] == pytest.approx(values.mean(), rel=1e-12)
            assert board.count[row, column] == values.notna().sum()
    assert board.rows == ["random", "attention", "occlusion"]
    assert np.all(board.low <= board.mean)
    assert np.all(board.mean <= board.high)


def test_methods_are_resampled_together():
    frame = results(("one",))
    shifted = frame.assign(method="two", sufficiency=frame["sufficiency"] + 1)
    shuffled = shifted.sample(frac=1.0, random_state=3)
    board = leaderboard(pd.concat([frame, shuffled]), CARDS)
    np.testing.assert_allclose(board.low[1, 1] - board.low[0, 1], 1.0, rtol=1e-12)
    np.testing.assert_allclose(board.high[1, 1] - board.high[0, 1], 1.0, rtol=1e-12)


def test_the_seed_decides():
    one, same, other = (leaderboard(results(), CARDS, seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.low, same.low)
    assert np.any(one.low != other.low)


def test_an_example_that_a_method_lacks_is_undefined():
    frame = results()
    board = leaderboard(frame[~((frame["method"] == "random") & (frame["example"] >= 30))], CARDS)
    assert board.count[:, 1].tolist() == [30, 40, 40]


def test_one_example_no_example_and_nothing_defined():
    board = leaderboard(results(examples=2).query("example == 1"), CARDS)
    np.testing.assert_array_equal(board.low, board.mean)
    np.testing.assert_array_equal(board.high, board.mean)
    empty = leaderboard(results(examples=0), CARDS)
    assert empty.mean.shape == (0, 3)
    assert empty.rows == []
    nothing = leaderboard(results().assign(seconds=np.nan), CARDS)
    assert np.isnan(nothing.mean[:, 2]).all()
    assert np.isnan(nothing.low[:, 2]).all()
    assert nothing.count[:, 2].tolist() == [0, 0, 0]
    assert ranks(nothing)[:, 2].tolist() == [0, 0, 0]
    assert leaderboard(results(), []).mean.shape == (3, 0)


def test_infinite_values_are_undefined():
    frame = results().assign(seconds=np.inf)
    assert leaderboard(frame, CARDS).count[:, 2].tolist() == [0, 0, 0]


def test_bad_tables_are_refused():
    with pytest.raises(ExegeteError, match="seconds"):
        leaderboard(results().drop(columns="seconds"), CARDS)
    with pytest.raises(ExegeteError, match="more than one row"):
        leaderboard(pd.concat([results(), results()]), CARDS)
    with pytest.raises(ExegeteError, match="n_resamples"):
        leaderboard(results(), CARDS, n_resamples=0)


def _board(mean, higher=True):
    mean = np.array(mean, dtype=float)[:, None]
    card = MetricCard(name="m", family="faithfulness", higher_is_better=higher)
    return Leaderboard([str(row) for row in range(len(mean))], [card], mean, mean, mean, np.ones_like(mean, dtype=int))


def test_ties_share_a_place():
    board = _board([0.5, 0.9, np.nan, 0.9, 0.1])
    assert ranks(board)[:, 0].tolist() == [2, 1, 0, 1, 3]
    assert best(board)[:, 0].tolist() == [False, True, False, True, False]
    assert second(board)[:, 0].tolist() == [True, False, False, False, False]
    assert ranks(_board([0.5, 0.9, np.nan, 0.9, 0.1], higher=False))[:, 0].tolist() == [2, 3, 0, 3, 1]


def test_cells_say_enough_digits():
    assert decimals(np.array([0.5, 0.123])) == [3, 3]
    assert decimals(np.array([0.0051, np.nan])) == [5, 5]
    assert decimals(np.array([1089.0, 1.02, 0.0])) == [0, 2, 3]
    assert [cell.mean for (cell,) in cells(_board([1089.4, 1.024, np.nan]))] == ["1089", "1.02", "–"]
    assert decimals(np.array([])) == []
