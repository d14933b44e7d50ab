"""Tables in a paper's form."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

from expound_papers.paper_table import (
    PaperTable,
    format_cells,
    render_csv,
    render_latex,
    render_markdown,
)
from expound_papers.tables.html import render_html, render_study_page


def table(form="mean ± sd", digits=1, **changes):
    nan = float("nan")
    facts = {
        "title": "F1 of <b> & |c|",
        "head": "recipe",
        "rows": ["base_line", "ER | x"],
        "columns": ["SST ↑", "Movies"],
        "center": np.array([[92.95, 91.0], [93.56, nan]]),
        "low": np.array([[92.38, nan], [93.06, nan]]),
        "high": np.array([[93.52, nan], [94.06, nan]]),
        "count": np.array([[15, 1], [15, 0]]),
        "rank": np.array([[2, 1], [1, 0]]),
        "marked": np.array([[False, False], [True, False]]),
    }
    return PaperTable(**(facts | {"form": form, "digits": digits} | changes))


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("mean ± sd", "92.95 ± 0.57"),
        ("mean ± se", "92.95 ± 0.57"),
        ("median [25–75]", "92.95 [92.38–93.52]"),
        ("mean", "92.95"),
    ],
)
def test_forms(form, expected):
    assert format_cells(table(form, 2)) == [[expected, "91.00"], [format_cells(table(form, 2))[1][0], "–"]]


def test_markdown_has_best_bold_second_underlined_and_daggers():
    lines = render_markdown(table()).splitlines()
    assert lines[2] == "| recipe | SST ↑ | Movies |"
    assert lines[4] == "| base_line | <u>93.0 ± 0.6</u> | **91.0** |"
    assert lines[5] == "| ER \\| x | **93.6 ± 0.5**† | – |"
    assert "standard deviation over seeds" in lines[-1]


def test_latex_is_escaped_and_marked():
    found = render_latex(table(), "tab:one")
    assert r"base\_line & \underline{93.0 $\pm$ 0.6} & \textbf{91.0} \\" in found
    assert r"ER \textbar{} x & \textbf{93.6 $\pm$ 0.5}$^\dagger$ & -- \\" in found
    assert r"\caption{F1 of \textless{}b\textgreater{} \&" in found
    assert r"\label{tab:one}" in found


def test_csv_has_every_digit():
    rows = list(csv.reader(io.StringIO(render_csv(table()))))
    assert rows[0][:4] == ["recipe", "SST ↑ center", "SST ↑ low", "SST ↑ high"]
    assert rows[1][1:7] == ["92.95", "92.38", "93.52", "15", "2", "no"]
    assert rows[2][1:] == ["93.56", "93.06", "94.06", "15", "1", "yes", "", "", "", "0", "0", "no"]


def test_html_escapes_everything_and_needs_nothing_from_outside():
    shown = render_html(table())
    assert "F1 of &lt;b&gt; &amp; |c|" in shown
    assert '<span class="rank1">93.6 ± 0.5</span>†' in shown
    page = render_study_page("<script>", "notes & more", [table()], [("a 'picture'", "QUJD")], {"seeds": [1, 2]})
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert 'src="data:image/png;base64,QUJD"' in page
    assert page.count('aria-labelledby="meta-head"') == 1  # what scrolls has a name of its own
