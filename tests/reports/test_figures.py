"""Figures hold the numbers they were given and leave matplotlib as it was."""

import subprocess
import sys

import matplotlib as mpl
import numpy as np
import pytest

from exegete.errors import ExegeteError
from exegete.reports.curves import Curve
from exegete.reports.figures import curve_figure, heat_map, leaderboard_figure
from exegete.reports.leaderboard import leaderboard
from reports.boards import CARDS, attribution, image, results

HOSTILE = r"$\nosuch{x}$ $"


def _draw(figure, tmp_path):
    figure.savefig(tmp_path / "figure.png", dpi=40)
    assert (tmp_path / "figure.png").stat().st_size > 100
    return figure


def test_curves_are_the_numbers(tmp_path):
    x, mean = [0, 50, 100], [0.9, 0.5, 0.2]
    curves = [Curve(name, metric, x, mean, mean, mean) for metric in ("one", "two") for name in ("a", HOSTILE)]
    figure = _draw(curve_figure(curves), tmp_path)
    assert [axes.get_title() for axes in figure.axes] == ["one", "two"]
    for axes in figure.axes:
        for line in axes.lines:
            np.testing.assert_array_equal(line.get_ydata(), mean)


def test_bars_are_the_means(tmp_path):
    board = leaderboard(results(("a", HOSTILE)).assign(seconds=np.nan), CARDS)
    figure = _draw(leaderboard_figure(board), tmp_path)
    for column, axes in enumerate(figure.axes):
        np.testing.assert_array_equal([bar.get_width() for bar in axes.patches], board.mean[:, column])


@pytest.mark.parametrize(
    ("item", "shape"),
    [
        (image(3, 4), (3, 4)),
        (attribution("a b $ $x$"), (1, 4)),
        (attribution("a b", layers=np.arange(12).reshape(3, 4), signed=False), (3, 4)),
        (attribution("a b", [0, 0]), (1, 2)),
        (attribution("a b", [np.nan, np.inf]), (1, 2)),
    ],
)
def test_heat_maps_are_the_scores(tmp_path, item, shape):
    figure = _draw(heat_map(item), tmp_path)
    (drawn,) = figure.axes[0].images
    assert drawn.get_array().shape == shape
    low, high = drawn.get_clim()
    assert low == (-high if item.signed else 0)


def test_degenerate_figures(tmp_path):
    _draw(curve_figure([]), tmp_path)
    _draw(leaderboard_figure(leaderboard(results(examples=0), CARDS)), tmp_path)
    _draw(leaderboard_figure(leaderboard(results(), [])), tmp_path)
    empty = dict.fromkeys(("tokens", "scores", "words", "word_scores", "word_spans", "special"), ())
    with pytest.raises(ExegeteError, match="heat map"):
        heat_map(attribution("x", **empty))


def test_nothing_global_is_touched():
    code = """
import sys, matplotlib
def settings():
    return {name: matplotlib.rcParams[name] for name in matplotlib.rcParams if name != "backend"}
before = settings()
from exegete.reports.figures import curve_figure
from exegete.reports.curves import Curve
curve_figure([Curve("a", "b", [0, 1], [0, 1], [0, 1], [0, 1])])
assert "matplotlib.pyplot" not in sys.modules
assert settings() == before
"""
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        env={"PYTHONPATH": ":".join(sys.path), "MPLCONFIGDIR": mpl.get_configdir()},
    )
