"""Figures hold the numbers they were given and leave matplotlib as it was."""

import subprocess
import sys

import matplotlib as mpl
import numpy as np

from expound.reports.figures.curves import Curve, plot_curves

HOSTILE = r"$\nosuch{x}$ $"


def _draw(figure, tmp_path):
    figure.savefig(tmp_path / "figure.png", dpi=40)
    assert (tmp_path / "figure.png").stat().st_size > 100
    return figure


def test_curves_are_the_numbers(tmp_path):
    x, mean = [0, 50, 100], [0.9, 0.5, 0.2]
    curves = [Curve(name, metric, x, mean, mean, mean) for metric in ("one", "two") for name in ("a", HOSTILE)]
    figure = _draw(plot_curves(curves), tmp_path)
    assert [axes.get_title() for axes in figure.axes] == ["one", "two"]
    for axes in figure.axes:
        for line in axes.lines:
            np.testing.assert_array_equal(line.get_ydata(), mean)


def test_degenerate_figures(tmp_path):
    _draw(plot_curves([]), tmp_path)


def test_nothing_global_is_touched():
    code = """
import sys, matplotlib
def settings():
    return {name: matplotlib.rcParams[name] for name in matplotlib.rcParams if name != "backend"}
before = settings()
from expound.reports.figures.curves import plot_curves
from expound.reports.figures.curves import Curve
plot_curves([Curve("a", "b", [0, 1], [0, 1], [0, 1], [0, 1])])
assert "matplotlib.pyplot" not in sys.modules
assert settings() == before
"""
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        env={"PYTHONPATH": ":".join(sys.path), "MPLCONFIGDIR": mpl.get_configdir()},
    )
