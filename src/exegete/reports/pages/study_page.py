"""A study as one self-contained HTML page: tables, figures, configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from exegete.reports.highlighted.highlight import template_environment
from exegete.reports.pages.html import flatten
from exegete.reports.tables.paper_table import PaperTable, format_caption, format_cells


def render_study_page(
    title: str,
    notes: str,
    tables: Sequence[PaperTable],
    pictures: Sequence[tuple[str, str]],
    meta: Mapping[str, Any],
) -> str:
    """Return the page; `pictures` are (caption, PNG image in base64) pairs. All values are escaped."""
    template = template_environment().get_template("study.html.j2")
    rendered = [(table, format_cells(table), format_caption(table)) for table in tables]
    return template.render(title=title, notes=notes, tables=rendered, pictures=pictures, meta=list(flatten(meta)))
