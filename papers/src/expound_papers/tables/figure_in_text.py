"""Single figures of a study's table as text for a page, by the names of rows and columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from expound.errors import check_choice, unknown
from expound.reports.tables.board_table import choose_decimals
from expound.reports.tables.leaderboard import Floats
from expound.reports.tables.significance import Effect, measure_effect
from expound_papers.paper_table import PaperTable, format_cells
from expound_papers.tables.claims import Condition, format_effect
from expound_papers.tables.comparable import find_differences, list_unnamed
from expound_papers.tables.layout import (
    BySeed,
    TableLayout,
    center_and_spread,
    format_entry,
    get_card,
    get_metric,
    lay_out_table,
    repeat_single_run,
)
from expound_papers.tables.predictions import PREDICTION_FIGURES
from expound_papers.tables.results import Results
from expound_papers.tables.tables import count_judged, has_training, make_study_table, pair_summands

ARROW = re.compile(r" [↑↓](?=$| /)")
MINUS = " minus "
FIELDS = ("center", "spread", "runs", "wins", "> NUMBER", "< NUMBER", "within NUMBER")


@dataclass(frozen=True, eq=False)
class TableFigures:
    """A table of a study with its figures."""

    results: Results
    layout: TableLayout
    table: PaperTable

    @classmethod
    def from_results(cls, results: Results, name: str) -> TableFigures:
        """Return the table of this name."""
        layout, table = lay_out_table(results, name), make_study_table(results, name)
        titles = [format_entry(results, layout.part, layout.part.rows, row) for row in layout.rows]
        # Tables of means over examples are sorted by their figures.
        order = [titles.index(title) for title in table.rows]
        values = {(order.index(row), at): own for (row, at), own in layout.values.items() if row in order}
        return cls(results, layout._replace(rows=[layout.rows[row] for row in order], values=values), table)

    def format_field(self, row: str, column: str, field: str = "") -> str | None:
        """Return a cell, or the difference of two rows in a column, as text; None if its runs are not finished.

        Args:
            row: the name of a row, or "ROW minus OTHER".
            column: the name of a column.
            field: one of FIELDS; default: the text of the cell.

        Raises:
            ExpoundError: an unknown row, column or field.
        """
        found = self._find(row, column)
        if found is None:
            return None
        rows, at, cells = found
        if len(cells) == 1:
            return self._cell(cells[0], rows[0], at, field)
        return self._difference(cells[0], cells[1], rows, at, field)

    def measure_claim(self, row: str, column: str, condition: Condition) -> tuple[str, Effect] | None:
        """Return an effect with its interval as text and as numbers; None if its runs are not finished.

        Runs are paired by seed; the only run that is planned for a row is compared with each run of the other row.

        Args:
            row: "ROW minus OTHER", or ROW.
            column: the name of a column.
            condition: what the claim says about the figure; shown if it is about a number other than 0.

        Raises:
            ExpoundError: an unknown row or column.
        """
        found = self._find(row, column)
        if found is None:
            return None
        rows, at, cells = found
        own, reference = _figures_by_seed(cells[0]), _figures_by_seed(cells[-1])
        if len(cells) == 1:
            reference = dict.fromkeys(own, 0.0)
        if self._may_repeat(rows, at, cells):
            own, reference = repeat_single_run(own, reference)
        differences = np.array([own[seed] - reference[seed] for seed in sorted(own.keys() & reference.keys())])
        differences = differences[np.isfinite(differences)]
        if not len(differences):
            return None
        effect = self._measure(differences, rows, at, may_repeat=self._may_repeat(rows, at, cells))
        form = f"{'+' if MINUS in row else ''}.{self._digits(rows[0], at)}f"
        return format_effect(effect, condition, form), effect

    def list_unnamed_differences(self, row: str, column: str, sentence: str) -> list[str]:
        """Return the settings in which the trainings of "ROW minus OTHER" differ and which a sentence does not name."""
        found = self._find(row, column)
        if found is None or len(found[0]) < 2:
            return []
        entries = [self.layout.rows[place] for place in found[0]]
        return list_unnamed(
            find_differences(self.results, self.layout, entries, self.layout.columns[found[1]]), sentence
        )

    def _may_repeat(self, rows: Sequence[int], column: int, cells: Sequence[BySeed]) -> bool:
        """Return whether a row with one run has no other: the seeds of a training that is not finished are missing."""
        entry, planned = self.layout.columns[column], self.results.study.runs
        for row, cell in zip(rows, cells, strict=True):
            if cell.count() != 1:
                continue
            (line, *_) = self.layout.lines[self.layout.rows[row], entry].values()
            own = (line["training"], line["model"], line["recipe"])
            if len({run.seed for run in planned if (run.training, run.model, run.recipe) == own}) > 1:
                return False
        return True

    def _measure(self, differences: Floats, rows: Sequence[int], column: int, *, may_repeat: bool) -> Effect:
        """Return the effect of figures by seed, over examples if it is a difference and their figures are stored."""
        part, entry = self.layout.part, self.layout.columns[column]
        entries = [self.layout.rows[row] for row in rows]
        metric = get_metric(part, entries[0], entry)
        is_stored = metric in self.results.study.metrics or metric in PREDICTION_FIGURES
        pairs = []
        if is_stored and metric not in part.gain:
            pairs = pair_summands(self.results, self.layout, entries, entry, repeat_single=may_repeat)
        judged = None if pairs else count_judged(self.results, self.layout, entries[0], entry)
        is_trained = any(has_training(self.results, self.layout, each, entry) for each in entries)
        return measure_effect(differences / part.scale, pairs, part.scale, judged, is_trained=is_trained)

    def _find(self, row: str, column: str) -> tuple[list[int], int, list[BySeed]] | None:
        """Return the rows, the column and the figures by seed of a cell or difference; None before they are done."""
        one, _, other = row.partition(MINUS)
        at = self._place(column, self.table.columns, "column")
        places, cells = list[int](), list[BySeed]()
        # Every name is looked up, also after an unfinished one, so that a misspelt name is always an error.
        names = [each for each in (one, other) if each]
        for name in names:
            place = self._place(name, self.table.rows, "row")
            if place is not None and at is not None and (place, at) in self.layout.values:
                places.append(place)
                cells.append(self.layout.values[place, at] * self.layout.part.scale)
        return None if at is None or len(cells) < len(names) else (places, at, cells)

    def _cell(self, own: BySeed, row: int, column: int, field: str) -> str | None:
        center = float(self.table.center[row, column])
        if not np.isfinite(center):
            return None
        if field == "runs":
            return str(int(own.notna().sum()))
        if not field:
            return format_cells(self.table)[row][column] + ("†" if self.table.marked[row, column] else "")
        if field != "center":
            raise unknown("field", field, FIELDS)
        return f"{center:.{self._digits(row, column)}f}"

    def _difference(self, one: BySeed, other: BySeed, rows: Sequence[int], column: int, field: str) -> str | None:
        """Return the difference of two rows, paired by seed."""
        # The subtraction aligns the two series by seed; seeds of one row alone become NaN.
        pairs = (one - other).dropna()
        if pairs.empty:
            return None
        if field == "runs":
            return str(len(pairs))
        if field == "wins":
            entry = self.layout.rows[rows[0]], self.layout.columns[column]
            sign = 1 if get_card(self.results, self.layout.part, *entry).higher_is_better else -1
            return f"{int((sign * pairs > 0).sum())} of {len(pairs)}"
        digits, form = self._digits(rows[0], column), self.table.form
        center, low, _ = center_and_spread(np.asarray(pairs, np.float64), "mean ± sd" if form == "mean" else form)
        # A typographic minus, so that it is not read as a hyphen in running text.
        text = f"{center:+.{digits}f}".replace("-", "−")
        if field == "spread":
            return text if np.isnan(low) else f"{text} ± {center - low:.{digits}f}"
        if field not in ("", "center"):
            raise unknown("field", field, FIELDS)
        if self._differs(rows, column):
            text += "†"
        return text

    def _differs(self, rows: Sequence[int], column: int) -> bool:
        """Return whether the first row is marked in the table as different from the second."""
        how, one, other = self.layout.part.significance, self.layout.rows[rows[0]], self.layout.rows[rows[1]]
        changed = [theirs for own, theirs in zip(one, other, strict=True) if own != theirs]
        return how is not None and changed == [how.against] and bool(self.table.marked[rows[0], column])

    def _digits(self, row: int, column: int) -> int:
        given = self.table.digits
        return choose_decimals(self.table.center[:, column])[row] if given is None else given

    def _place(self, name: str, titles: Sequence[str], what: str) -> int | None:
        """Return the index of a row or column; None before its runs are done. Raises ExpoundError if it is unknown."""
        plain, wanted = [ARROW.sub("", title) for title in titles], ARROW.sub("", name)
        if wanted in plain:
            return plain.index(wanted)
        # A name that a finished run would have is no error: the page is rendered before all runs are done.
        known = _possible_names(self.results, self.layout)
        for part in wanted.split(" / "):
            check_choice(f"name in a {what}", part, known)
        return None


def _figures_by_seed(cell: BySeed) -> dict[int, float]:
    return dict(zip(cell.index.tolist(), cell.tolist(), strict=True))


def _possible_names(results: Results, layout: TableLayout) -> set[str]:
    """Return every name that a row or column of the table can have once all runs are finished."""
    study, part = results.study, layout.part
    fields: dict[str, Iterable[str]] = {
        "training": study.trainings, "model": study.models, "recipe": study.recipes, "dataset": study.datasets,
        "judgement": study.judgements, "explainer": study.explainers, "metric": part.metrics,
    }  # fmt: skip
    known = set[str]()
    for field in (*part.rows, *part.columns):
        known.update(part.labels.get(name, name) for name in fields[field])
    return known
