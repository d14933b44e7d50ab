"""Files of a study: its tables, figures and page."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from expound.data.atomic_files import atomic_file
from expound.data.provenance import get_versions
from expound.errors import ExpoundError
from expound_papers import paper_table
from expound_papers.paper_table import PaperTable
from expound_papers.tables.html import render_html, render_study_page
from expound_papers.tables.results import Results
from expound_papers.tables.tables import make_study_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

FORMATS: dict[str, Callable[[PaperTable], str]] = {
    "md": paper_table.render_markdown,
    "csv": paper_table.render_csv,
    "tex": paper_table.render_latex,
    "html": render_html,
}


def write_report(results: Results, folder: Path) -> Path:
    """Write every table in every format, every figure as PNG and PDF, `figures.parquet` and `report.html`.

    Returns the path of `report.html`.
    """
    study = results.study
    with atomic_file(folder / "figures.parquet") as fresh:
        results.figures.to_parquet(fresh, index=False)
    tables = {name: make_study_table(results, name) for name in study.tables}
    for name, table in tables.items():
        for ending, write in FORMATS.items():
            with atomic_file(folder / f"{name}.{ending}") as fresh:
                fresh.write_text(write(table), encoding="utf-8")
    pictures = []
    for name, part in study.figures.items():
        figure = _make_figure(results, name)
        if figure is not None:
            # Without its date, a PDF of the same figures has the same bytes.
            for ending, metadata in (("png", {}), ("pdf", {"CreationDate": None})):
                with atomic_file(folder / f"{name}.{ending}") as fresh:
                    figure.savefig(fresh, format=ending, dpi=120, metadata=metadata)
            picture = BytesIO()
            figure.savefig(picture, format="png", dpi=110)
            pictures.append((part.caption or name, base64.b64encode(picture.getvalue()).decode()))
    facts = {"study": study.describe(), "scale": study.scale, "versions": get_versions()}
    page = render_study_page(study.title, study.notes, list(tables.values()), pictures, facts)
    with atomic_file(folder / "report.html") as fresh:
        fresh.write_text(page, encoding="utf-8")
    return folder / "report.html"


def _make_figure(results: Results, name: str) -> Figure | None:
    """Return the figure; None, with a warning, if no run of it is finished."""
    # Importing matplotlib takes a second, which studies without figures do not need.
    from expound_papers.tables.figures import make_study_figure

    try:
        figure = make_study_figure(results, name)
    except ExpoundError as error:
        logger.warning("figure %s: %s", name, error)
        return None
    return figure if figure.axes else None
