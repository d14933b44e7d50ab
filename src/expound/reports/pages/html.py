"""The self-contained HTML page of a comparison: table, curves, examples, glossary, configuration."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from expound.data.cards import MetricCard
from expound.data.provenance import flatten
from expound.reports.explanations import Explanation
from expound.reports.figures.curves import HEIGHT, WIDTH, Curve, make_charts
from expound.reports.highlighted.colors import LIGHT
from expound.reports.highlighted.highlight import format_number, template_environment
from expound.reports.highlighted.pieces import Spans
from expound.reports.table import Table
from expound.reports.tables.board_table import (
    find_leaders,
    format_verdict,
    make_board_table,
    make_difference_table,
    summarize_difference,
)
from expound.reports.tables.leaderboard import CONTROL, Leaderboard

if TYPE_CHECKING:
    import pandas as pd

FEW = 5
"""The most curves that are readable in one chart."""


@dataclass(frozen=True, slots=True)
class ExampleView:
    """One example as every method explains it.

    `label` (None if unknown) and `prediction` are names of classes; `rationale` has the spans that people marked in
    each text (None for a text without annotation); `attributions` are by method; `picture`: the image as a data URL.
    """

    index: int
    texts: Sequence[str]
    label: str | None
    prediction: str
    rationale: Sequence[Spans | None]
    attributions: Mapping[str, Explanation]
    picture: str = ""


def render_report(
    title: str,
    leaderboard: Leaderboard,
    curves: Sequence[Curve] = (),
    examples: Sequence[ExampleView] = (),
    meta: Mapping[str, Any] | None = None,
    subject: Mapping[str, str] | None = None,
    changes: pd.DataFrame | None = None,
) -> str:
    """Return the page; `meta` (configuration, versions, …) holds JSON-like values.

    `subject` says what was explained, by name: the model, its data, its accuracy. `changes` from another model
    (the columns of `Comparison.difference`) come first.

    It works offline, and without its script, which only sorts and filters. All values are escaped.
    """
    script = (Path(__file__).parents[1] / "templates" / "report.js").read_text(encoding="utf-8")
    titles = _method_titles(leaderboard, curves, examples)
    shown = _choose_shown_methods(leaderboard, titles)
    families = groupby(card.family.capitalize() for card in leaderboard.cards)
    groups = [(family, len(list(columns))) for family, columns in families]
    difference = None
    if changes is not None:
        metrics = {card.name: card.title for card in leaderboard.cards}
        difference = (summarize_difference(changes), make_difference_table(changes, titles | metrics))
    template = template_environment().get_template("report.html.j2")
    return template.render(
        title=title,
        subject=subject or {},
        board=leaderboard,
        table=replace(make_board_table(leaderboard, "Method"), groups=groups),
        verdict=format_verdict(leaderboard),
        difference=difference,
        examples=examples,
        titles=titles,
        charts=make_charts(curves, titles, len(LIGHT.series), shown),
        width=WIDTH,
        height=HEIGHT,
        meta=make_meta_table(meta or {}),
        bounds=format_bounds,
        script=Markup(script),  # noqa: S704  # our own file, the only unescaped value
        # The content policy of the page allows this script alone.
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def render_leaderboard_html(board: Leaderboard) -> str:
    """Return the verdict and the table as an HTML fragment with its own style sheet, for a notebook."""
    table = make_board_table(board, "Method")
    return template_environment().get_template("board.html.j2").render(table=table, verdict=format_verdict(board))


def make_meta_table(values: Mapping[str, Any]) -> Table:
    """Return the table of nested values by their dotted names, without a head."""
    rows = []
    for name, value in (flatten(values) if values else {}).items():
        rows.append((name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)))
    return Table((), rows)


def format_bounds(card: MetricCard) -> str:
    """Return the range of one example's value in words."""
    low, high = card.bounds
    if low is None and high is None:
        return "any number"
    if high is None:
        return f"at least {format_number(low)}"
    if low is None:
        return f"at most {format_number(high)}"
    return f"{format_number(low)} to {format_number(high)}"


def _method_titles(board: Leaderboard, curves: Sequence[Curve], examples: Sequence[ExampleView]) -> dict[str, str]:
    """Return the title of every method, the table's methods first."""
    names = dict.fromkeys([*board.rows, *(curve.method for curve in curves)])
    for example in examples:
        names |= dict.fromkeys(example.attributions)
    return {name: name for name in names} | dict(zip(board.rows, board.titles, strict=True))


def _choose_shown_methods(board: Leaderboard, methods: Collection[str]) -> list[str]:
    """Return the methods whose curves are drawn strongly at first: all of a few, else the best few and the control."""
    if len(methods) <= FEW or not board.cards:
        return list(methods)
    best = [board.rows[row] for row in find_leaders(board)[: FEW - 1]] or board.rows[:1]
    return [*best, *(name for name in methods if name.partition("?")[0] == CONTROL)]
