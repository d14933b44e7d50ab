"""Tables of a study as HTML, and the page of all its tables and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, FileSystemLoader

from expound.reports.highlighted.highlight import template_environment
from expound.reports.pages.html import make_meta_table
from expound_papers.paper_table import PaperTable, format_caption, make_table


@cache
def _load_templates() -> Environment:
    """Return the environment of our templates, which use those of the library's reports."""
    reports = template_environment()
    assert reports.loader is not None
    own = FileSystemLoader(Path(__file__).parents[1] / "templates")
    return reports.overlay(loader=ChoiceLoader([own, reports.loader]))


def render_html(table: PaperTable) -> str:
    """Return a `<figure>` of the table with its caption, to be placed in a page."""
    template = _load_templates().get_template("paper_table.html.j2")
    return template.render(table=make_table(table), caption=format_caption(table))


def render_study_page(
    title: str,
    notes: str,
    tables: Sequence[PaperTable],
    pictures: Sequence[tuple[str, str]],
    meta: Mapping[str, Any],
) -> str:
    """Return the page; `pictures` are (caption, PNG image in base64) pairs. All values are escaped."""
    rendered = [(make_table(table), format_caption(table)) for table in tables]
    template = _load_templates().get_template("study.html.j2")
    return template.render(title=title, notes=notes, tables=rendered, pictures=pictures, meta=make_meta_table(meta))
