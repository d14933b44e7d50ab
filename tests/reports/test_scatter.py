"""Figures of points."""

from __future__ import annotations

from exegete.reports.figures.scatter import Points, scatter_figure

POINTS = [
    Points("Movies", "baseline", [0.9, 0.8], [0.7, 0.6], x_spread=[0.01, 0.02]),
    Points("Movies", "er $joint", [0.5], [0.4], y_spread=[0.1]),
    Points("Reviews", "baseline", [0.1, 0.2], [0.3, 0.4], joined=True),
]


def test_a_panel_a_name_and_the_points_where_they_belong():
    figure = scatter_figure(POINTS, "AUC", "F1", lines=[0.03])
    movies, reviews = figure.axes
    assert (movies.get_title(), reviews.get_title()) == ("Movies", "Reviews")
    assert [text.get_text() for text in movies.get_legend().get_texts()] == ["baseline", r"er \$joint"]
    drawn = [container.lines[0].get_xydata().tolist() for container in movies.containers]
    assert drawn == [[[0.9, 0.7], [0.8, 0.6]], [[0.5, 0.4]]]
    assert [list(line.get_xdata()) for line in movies.lines if line.get_linestyle() == "--"] == [[0.03, 0.03]]
    assert reviews.containers[0].lines[0].get_linestyle() == "-"
