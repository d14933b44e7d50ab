"""The leaderboard as LaTeX and as comma-separated values."""

import csv
import io
import re

import numpy as np

from expound.data.cards import MetricCard
from expound.reports.tables.board_table import render_board_csv, render_board_latex
from expound.reports.tables.leaderboard import make_leaderboard
from expound.reports.text import escape_latex
from reports.boards import CARDS, results

HOSTILE = "50 % of_{a} & b # c $d$ ~ ^ \\input{x} <y> [z]\n\\end{table}"


def test_special_characters_are_escaped():
    assert escape_latex("a_b & 50 % # $ {x}") == r"a\_b \& 50 \% \# \$ \{x\}"
    assert escape_latex("\\x ~ ^") == r"\textbackslash{}x \textasciitilde{} \textasciicircum{}"
    assert escape_latex("up ↑ down ↓") == r"up $\uparrow$ down $\downarrow$"
    assert escape_latex("two\nlines") == "two lines"


def test_nothing_of_a_name_is_a_command():
    allowed = r"\\(textbackslash|textasciitilde|textasciicircum|textless|textgreater)\{\}|\\[&%$#_{}]|\{[\[\]]\}"
    rest = re.sub(allowed, "", escape_latex(HOSTILE))
    assert not set(rest) & set("\\{}$&#_%~^<>\n")


def test_the_latex_table():
    board = make_leaderboard(results(("a_b", "c")), CARDS)
    lines = render_board_latex(board, "5 % of it", "tab:one").splitlines()
    assert lines[:2] == [r"% \usepackage{booktabs}", r"\begin{table}"]
    assert r"\begin{tabular}{lrrr}" in lines
    assert r"Method & Comprehensiveness $\uparrow$ & Sufficiency $\downarrow$ & Seconds $\downarrow$ \\" in lines
    (caption,) = (line for line in lines if line.startswith(r"\caption"))
    assert caption.startswith(
        r"\caption{5 \% of it. Means over 40 examples, with 95 \% bootstrap intervals in brackets. Bold numbers are "
    )
    interval = f"{{[}}{board.low[board.rows.index('a_b'), 1]:.3f}, {board.high[board.rows.index('a_b'), 1]:.3f}{{]}}"
    assert r"\label{tab:one}" in lines
    (first,) = (line for line in lines if line.startswith(r"a\_b"))
    assert first.count("&") == 3
    assert f"{board.mean[board.rows.index('a_b'), 1]:.3f}" in first
    assert f"{{\\scriptsize {interval}}}" in first
    assert sum(line.count(r"\textbf") for line in lines) == board.best.sum()
    assert r"\begin{tabular}{lrr}" in render_board_latex(board.without_costs)
    assert "Seconds" not in render_board_latex(board.without_costs)


def test_undefined_numbers_in_latex_and_values():
    board = make_leaderboard(results(("one",)).assign(seconds=np.nan), CARDS)
    assert "& -- \\\\" in render_board_latex(board)
    (row,) = csv.DictReader(io.StringIO(render_board_csv(board)))
    assert row["seconds_mean"] == row["seconds_low"] == row["seconds_high"] == ""
    assert row["seconds_count"] == "0"


def test_values_come_back_exactly():
    names = ("plain", 'with "quotes", commas', HOSTILE)
    board = make_leaderboard(results(names), CARDS)
    rows = list(csv.DictReader(io.StringIO(render_board_csv(board), newline="")))
    assert [row["method"] for row in rows] == board.rows
    assert set(board.rows) == set(names)
    for column, card in enumerate(board.cards):
        for end in ("mean", "low", "high", "count"):
            found = [float(row[f"{card.name}_{end}"] or "nan") for row in rows]
            np.testing.assert_array_equal(found, getattr(board, end)[:, column])


def test_tables_without_methods_or_metrics():
    nothing = make_leaderboard(results(examples=0), CARDS)
    assert render_board_csv(nothing).count("\n") == 1
    assert r"\bottomrule" in render_board_latex(nothing)
    assert render_board_csv(make_leaderboard(results(), [])) == "method\nrandom\nattention\nocclusion\n"
    hostile = MetricCard(name="m", family="cost", higher_is_better=True, label=HOSTILE)
    assert render_board_latex(make_leaderboard(results().assign(m=1.0), [hostile])).count(r"\end{table}") == 1
