"""Single figures of a study's table as text for a page, by the names of rows and columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from exegete.errors import ExegeteError, unknown
from exegete.reports.tables.cells import choose_decimals
from exegete.reports.tables.paper_table import PaperTable, format_cells
from exegete.studies.tables.layout import BySeed, TableLayout, center_and_spread, get_card, lay_out_table
from exegete.studies.tables.results import Results
from exegete.studies.tables.tables import make_study_table

ARROW = re.compile(r" [↑↓](?=$| /)")
MINUS = " minus "
CONDITION = re.compile(r"([<>])\s*([-+−]?\d*\.?\d+)")
FIELDS = ("center", "spread", "runs", "wins", "> NUMBER", "< NUMBER")


@dataclass(frozen=True, eq=False)
class TableFigures:
    """A table of a study with its figures."""

    results: Results
    layout: TableLayout
    table: PaperTable

    @classmethod
    def from_results(cls, results: Results, name: str) -> TableFigures:
        """Return the table of this name."""
        return cls(results, lay_out_table(results, name), make_study_table(results, name))

    def format_field(self, row: str, column: str, field: str = "") -> str | None:
        """Return a cell, or the difference of two rows in a column, as text; None if its runs are not finished.

        Args:
            row: the name of a row, or "ROW minus OTHER".
            column: the name of a column.
            field: one of FIELDS; default: the text of the cell.

        Raises:
            ExegeteError: an unknown row, column or field, or a condition that does not hold.
        """
        one, _, other = row.partition(MINUS)
        places = [self._place(each, self.table.rows, "row") for each in (one, other) if each]
        at = self._place(column, self.table.columns, "column")
        if at is None or None in places:
            return None
        cells = [self.layout.values.get((place, at)) for place in places if place is not None]
        known = [cell * self.layout.part.scale for cell in cells if cell is not None]
        if len(known) < len(places):
            return None
        if len(known) == 1:
            return self._cell(known[0], places[0] or 0, at, field)
        return self._difference(known[0], known[1], [place or 0 for place in places], at, field)

    def _cell(self, own: BySeed, row: int, column: int, field: str) -> str | None:
        center = float(self.table.center[row, column])
        if not np.isfinite(center):
            return None
        if field == "runs":
            return str(int(own.notna().sum()))
        if not field:
            return format_cells(self.table)[row][column] + ("†" if self.table.marked[row, column] else "")
        self._check(center, field)
        return f"{center:.{self._digits(row, column)}f}"

    def _difference(self, one: BySeed, other: BySeed, rows: Sequence[int], column: int, field: str) -> str | None:
        """Return the difference of two rows, paired by seed."""
        # The subtraction aligns the two series by seed; seeds of one row alone become NaN.
        pairs = (one - other).dropna()
        if pairs.empty:
            return None
        higher_is_better = get_card(
            self.results, self.layout.part, self.layout.rows[rows[0]], self.layout.columns[column]
        )
        if field == "runs":
            return str(len(pairs))
        if field == "wins":
            return f"{int((pairs > 0 if higher_is_better.higher_is_better else pairs < 0).sum())} of {len(pairs)}"
        digits, form = self._digits(rows[0], column), self.table.form
        center, low, _ = center_and_spread(np.asarray(pairs, np.float64), "mean ± sd" if form == "mean" else form)
        # A typographic minus, so that it is not read as a hyphen in running text.
        text = f"{center:+.{digits}f}".replace("-", "−")
        if field == "spread":
            return text if np.isnan(low) else f"{text} ± {center - low:.{digits}f}"
        if field:
            self._check(center, field)
        return text + ("†" if self._differs(rows, column) else "")

    def _differs(self, rows: Sequence[int], column: int) -> bool:
        """Return whether the first row is marked in the table as different from the second."""
        how, (one, other) = self.layout.part.significance, (self.layout.rows[row] for row in rows)
        changed = [theirs for own, theirs in zip(one, other, strict=True) if own != theirs]
        return how is not None and changed == [how.against] and bool(self.table.marked[rows[0], column])

    def _digits(self, row: int, column: int) -> int:
        given = self.table.digits
        return choose_decimals(self.table.center[:, column])[row] if given is None else given

    def _check(self, value: float, field: str) -> None:
        """Raise ExegeteError for an unknown field or a condition that does not hold."""
        found = CONDITION.fullmatch(field)
        if found is None and field not in ("center", "spread"):
            raise unknown("field", field, FIELDS)
        if found is not None:
            bound = float(found[2].replace("−", "-"))
            if not (value > bound if found[1] == ">" else value < bound):
                raise ExegeteError(f"{value:.6g} is not {field}: the text about it is no longer true")

    def _place(self, name: str, titles: Sequence[str], what: str) -> int | None:
        """Return the index of a row or column; None before its runs are done. Raises ExegeteError if it is unknown."""
        plain = [ARROW.sub("", title) for title in titles]
        if ARROW.sub("", name) in plain:
            return plain.index(ARROW.sub("", name))
        # A name that a finished run would have is no error: the page is rendered before all runs are done.
        known = set(_possible_names(self.results, self.layout))
        wrong = next((each for each in ARROW.sub("", name).split(" / ") if each not in known), None)
        if wrong is not None:
            raise unknown(f"name in a {what}", wrong, known)
        return None


def _possible_names(results: Results, layout: TableLayout) -> Iterator[str]:
    """Yield every name that a row or column of the table can have once all runs are finished."""
    file, part = results.grid.study.file, layout.part
    fields: dict[str, Iterable[str]] = {
        "training": file.training, "model": file.models, "recipe": file.recipes, "dataset": file.datasets,
        "judgement": file.judgements, "explainer": file.explainers, "metric": part.metrics,
    }  # fmt: skip
    for field in (*part.rows, *part.columns):
        yield from (part.labels.get(name, name) for name in fields[field])
