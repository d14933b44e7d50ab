"""A page of results: hand-written text with placeholders for tables and figures of finished runs.

A part is Markdown after a head between two lines of `---`, with the keys `title`, `scale` and `studies` (study files by
name). Placeholders in the text:

- `{{facts}}`: a table of dates, versions, machines, data and cost of all runs;
- `{{NAME:TABLE}}`: a table of a study; `{{NAME}}`: all its tables; `{{NAME:FIGURE}}`: an agreement figure;
- `{{NAME:TABLE | ROW | COLUMN}}`: a cell (of the first table by default);
- `{{NAME:TABLE | ROW minus OTHER | COLUMN}}`: the difference of two rows, paired by seed.

A fourth field selects the `center` alone, the `spread` of differences, the number of `runs`, or the `wins` of a row
over the other; a condition (`> 0.5`, `< 0`) makes the page fail if it does not hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from exegete.errors import ExegeteError, unknown
from exegete.reports.tables.paper_table import render_markdown
from exegete.studies.spec.schema import FigurePart
from exegete.studies.spec.study_file import SCALES
from exegete.studies.tables.facts import format_run_facts
from exegete.studies.tables.figure_in_text import TableFigures
from exegete.studies.tables.results import Results

PLACEHOLDER = re.compile(r"\{\{(.+?)\}\}")
TYPED_NUMBER = re.compile(r"(?<![\w.])[-+−]?\d*\.\d+")
NOT_RUN, OPEN = "not run", "open (not run)"
HERE, VERDICT = "here", "verdict"
KEYS = ("title", "scale", "studies")


@dataclass(frozen=True)
class PagePart:
    """The hand-written part of a page: `studies` are files by name; `first` is the number of the text's first line."""

    path: Path
    title: str
    scale: str
    studies: Mapping[str, Path]
    text: str
    first: int = 1


def read_page_part(path: Path) -> PagePart:
    """Return the part in a Markdown file, or for a study file a part that shows all its tables.

    Raises:
        ExegeteError: a file that cannot be read, or a head with unknown keys.
    """
    if path.suffix in (".yaml", ".yml"):
        return PagePart(path, "", "small", {path.stem: path}, f"{{{{facts}}}}\n\n{{{{{path.stem}}}}}\n")
    try:
        before, head, text = path.read_text(encoding="utf-8").split("---\n", 2)
        given = yaml.safe_load(head)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ExegeteError(f"{path} is no page part: expected a head between two lines of ---") from error
    wrong = next((key for key in given if key not in KEYS), None) if isinstance(given, dict) and not before else ""
    if wrong is not None:
        raise unknown(f"key in the head of {path}", wrong, KEYS)
    if given.get("scale", "small") not in SCALES:
        raise unknown("scale", str(given["scale"]), SCALES)
    studies = {name: path.parent / file for name, file in given.get("studies", {}).items()}
    first = head.count("\n") + 3
    return PagePart(path, str(given.get("title", "")), str(given.get("scale", "small")), studies, text, first)


def fill_page(part: PagePart, results: Mapping[str, Results]) -> str:
    """Return the page in Markdown.

    In a table with a column `verdict`, a row with an unfinished figure gets the verdict "open (not run)".

    Args:
        part: the hand-written part.
        results: of each of its studies, by name.

    Raises:
        ExegeteError: an unknown placeholder, a condition that does not hold, or a number in a column `here` that was
            typed by hand; the message has file and line.
    """
    filler, lines, columns = _PlaceholderFiller(results), list[str](), list[str]()
    for number, line in enumerate(part.text.split("\n"), part.first):
        cells = _split_cells(line)
        if not cells:
            columns = []
        elif not columns:
            columns = [cell.strip() for cell in cells]
        try:
            lines.append(_fill_row(cells, columns, filler) if cells else filler.fill(line)[0])
        except ExegeteError as error:
            raise ExegeteError(f"{part.path}:{number}: {error}") from error
    made = f"<!-- Made by `exegete study page {part.path.name}`: change that file, or run its studies. -->"
    return "\n".join([*([f"# {part.title}", made, ""] if part.title else []), *lines])


def _split_cells(line: str) -> list[str]:
    """Return the cells of a line of a Markdown table; empty for other lines. Bars in placeholders separate no cells."""
    hidden = PLACEHOLDER.sub(lambda found: found[0].replace("|", "\0"), line.strip())
    if not (hidden.startswith("|") and hidden.endswith("|") and len(hidden) > 1):
        return []
    return [cell.replace("\0", "|") for cell in hidden[1:-1].split("|")]


def _fill_row(cells: list[str], columns: list[str], filler: _PlaceholderFiller) -> str:
    """Return a line of a table with its placeholders filled in."""
    named = dict(zip(columns, range(len(cells)), strict=False))
    if HERE in named and (typed := TYPED_NUMBER.search(PLACEHOLDER.sub("", cells[named[HERE]]))):
        raise ExegeteError(f"the figure {typed[0]} was typed by hand: in the column {HERE!r} figures are placeholders")
    filled = [filler.fill(cell) for cell in cells]
    texts = [text for text, _ in filled]
    if VERDICT in named and not all(is_complete for _, is_complete in filled):
        texts[named[VERDICT]] = f" {OPEN} "
    return f"|{'|'.join(texts)}|"


class _PlaceholderFiller:
    """Replaces placeholders by text. Each table is made once, since significance tests take seconds."""

    def __init__(self, results: Mapping[str, Results]) -> None:
        self.results = results
        self.made: dict[tuple[str, str], TableFigures] = {}

    def fill(self, text: str) -> tuple[str, bool]:
        """Return the text with its placeholders filled in, and whether all their runs are finished."""
        is_complete = True

        def replace(placeholder: re.Match[str]) -> str:
            nonlocal is_complete
            value = self.value([field.strip() for field in placeholder[1].split("|")])
            is_complete = is_complete and value is not None
            return NOT_RUN if value is None else value

        return PLACEHOLDER.sub(replace, text), is_complete

    def value(self, fields: list[str]) -> str | None:
        """Return the text for a placeholder; None if its runs are not finished."""
        if fields == ["facts"]:
            return format_run_facts(self.results)
        name, _, table = fields[0].partition(":")
        if name not in self.results:
            raise unknown("study of the page", name, self.results)
        declared = self.results[name].grid.study.file.tables
        if len(fields) == 1 and table in (figures := self.results[name].grid.study.file.figures):
            return "\n\n".join(_format_matrices(self.results[name], figures[table])) or None
        if len(fields) == 1:
            made = [self._table(name, each) for each in ([table] if table else declared)]
            return "\n\n".join(render_markdown(each.table).strip() for each in made if each.table.rows) or None
        if len(fields) not in (3, 4):
            raise ExegeteError(f"expected NAME:TABLE | ROW | COLUMN | FIELD, got {' | '.join(fields)}")
        return self._table(name, table or next(iter(declared))).format_field(*fields[1:])

    def _table(self, name: str, table: str) -> TableFigures:
        if (name, table) not in self.made:
            self.made[name, table] = TableFigures.from_results(self.results[name], table)
        return self.made[name, table]


def _format_matrices(results: Results, part: FigurePart) -> Iterator[str]:
    """Yield the matrices of a figure as pipe tables below their titles."""
    # Importing matplotlib takes a second, which most pages do not need.
    from exegete.studies.tables.figures import make_agreement_matrices

    for matrix in make_agreement_matrices(results, part):
        rows = [
            [name, *(f"{value:.2f}" for value in line)]
            for name, line in zip(matrix.rows, matrix.values.tolist(), strict=True)
        ]
        lines = [["", *matrix.columns], ["---", *["---:"] * len(matrix.columns)], *rows]
        yield "\n".join([f"**{matrix.title}**", "", *(f"| {' | '.join(line)} |" for line in lines)])
