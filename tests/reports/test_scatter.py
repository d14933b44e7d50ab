"""Figures of points, and pages of tables and figures."""

from __future__ import annotations

import pandas as pd

from exegete.reports.scatter import Points, Section, scatter_figure, sections_html

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


def test_a_page_holds_tables_and_figures_and_escapes_what_it_is_given():
    hostile = "<script>alert(1)</script>"
    table = pd.DataFrame({"approach": [hostile], "AUC": [0.123456]})
    page = sections_html(
        hostile, [Section(hostile, hostile, table, scatter_figure(POINTS, "x", "y")), Section("empty")]
    )
    assert "<script" not in page
    assert "0.123" in page
    assert page.count("data:image/svg+xml;base64,") == 1
    assert page.count("<section") == 2
    assert page.count("<table") == 1
    assert page.count('aria-labelledby="head-1"') == 1  # what scrolls has a name of its own
