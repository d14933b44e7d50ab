"""A page of results: hand-written text with placeholders for tables and figures of finished runs.

A part is Markdown after a head between two lines of `---`, with the keys `title`, `scale` and `studies` (their names on
the page). Placeholders in the text:

- `{{facts}}`: a table of dates, versions, machines, data and cost of all runs;
- `{{legend}}`: how verdicts on claims are computed;
- `{{NAME:TABLE}}`: a table of a study; `{{NAME}}`: all its tables; `{{NAME:FIGURE}}`: an agreement figure;
- `{{NAME:TABLE | ROW | COLUMN}}`: a cell (of the first table by default);
- `{{NAME:TABLE | ROW minus OTHER | COLUMN}}`: the difference of two rows, paired by seed;
- `{{NAME:FIGURE | AXIS | ρ | < 0.5}}`: Spearman's ρ over the runs of a scatter between an x axis and y.

A fourth field selects the `center` alone, the `spread` of differences, the number of `runs`, or the `wins` of a row
over the other. A condition on a cell or a difference (`> 0`, `< 0.5`, `within 2`) is what a claim says: the figure
gets a 95 % interval, and the columns `verdict` and `n × seeds` of its row are computed, see
`expound_papers.tables.claims`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from expound.errors import ExpoundError, check_choice, unknown
from expound.reports.table import Table
from expound.reports.tables.significance import Effect
from expound_papers.paper_table import render_markdown
from expound_papers.study.display import FigurePart
from expound_papers.study.loading import SCALES
from expound_papers.tables.claims import LEGEND, NOT_TESTED, Condition, format_effect, format_size, format_verdict
from expound_papers.tables.facts import format_run_facts
from expound_papers.tables.figure_in_text import MINUS, TableFigures
from expound_papers.tables.results import Results

PLACEHOLDER = re.compile(r"\{\{(.+?)\}\}")
TYPED_NUMBER = re.compile(r"(?<![\w.])[-+−]?\d*\.\d+")
NOT_RUN = "not run"
HERE, SIZE, VERDICT = "here", "n × seeds", "verdict"
KEYS = ("title", "scale", "studies")


@dataclass(frozen=True)
class PagePart:
    """The hand-written part of a page: `studies` by their names on the page; `first` is the text's first line."""

    path: Path
    title: str
    scale: str
    studies: Mapping[str, str]
    text: str
    first: int = 1


def read_page_part(path: Path) -> PagePart:
    """Return the part in a Markdown file, or for a study a part that shows all its tables.

    Raises:
        ExpoundError: a file that cannot be read, or a head with unknown keys.
    """
    if path.suffix != ".md":
        name = path.name.rpartition(":")[2].removesuffix(".py")
        return PagePart(path, "", "small", {name: str(path)}, f"{{{{facts}}}}\n\n{{{{{name}}}}}\n")
    try:
        before, head, text = path.read_text(encoding="utf-8").split("---\n", 2)
        given = yaml.safe_load(head)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ExpoundError(f"{path} is no page part: expected a head between two lines of ---") from error
    if before or not isinstance(given, dict):
        raise unknown(f"key in the head of {path}", "", KEYS)
    for key in given:
        check_choice(f"key in the head of {path}", key, KEYS)
    check_choice("scale", str(given.get("scale", "small")), SCALES)
    studies = {}
    for name, study in given.get("studies", {}).items():
        is_file = study.partition(":")[0].endswith(".py")
        studies[name] = str(path.parent / study) if is_file else study
    first = head.count("\n") + 3
    return PagePart(path, str(given.get("title", "")), str(given.get("scale", "small")), studies, text, first)


def fill_page(part: PagePart, results: Mapping[str, Results]) -> str:
    """Return the page in Markdown.

    In a table with a column `verdict`, a row with an unfinished figure gets the verdict "not tested (not run)".

    Args:
        part: the hand-written part.
        results: of each of its studies, by name.

    Raises:
        ExpoundError: an unknown placeholder, a number in a column `here` that was typed by hand, or a verdict that was;
            the message has file and line; or a difference of rows whose trainings differ in a setting that the line
            does not name, see `expound_papers.tables.comparable`.
    """
    filler, lines, columns = _PlaceholderFiller(results), list[str](), list[str]()
    for number, line in enumerate(part.text.split("\n"), part.first):
        cells = _split_cells(line)
        if not cells:
            columns = []
        elif not columns:
            columns = [cell.strip() for cell in cells]
        filler.sentence = PLACEHOLDER.sub(_name_rows, line)
        try:
            lines.append(_fill_row(cells, columns, filler) if cells else filler.fill(line)[0])
        except ExpoundError as error:
            raise ExpoundError(f"{part.path}:{number}: {error}") from error
    if part.title:
        made = f"<!-- Made by `expound study page {part.path.name}`: change that file, or run its studies. -->"
        lines = [f"# {part.title}", made, "", *lines]
    return "\n".join(lines)


def _name_rows(placeholder: re.Match[str]) -> str:
    """Return the rows that a placeholder names, the only part of it that tells a reader what is compared."""
    fields = placeholder[1].split("|")
    return fields[1] if len(fields) > 1 else ""


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
        raise ExpoundError(f"the figure {typed[0]} was typed by hand: in the column {HERE!r} figures are placeholders")
    texts, tests, is_complete = list[str](), list[tuple[Condition, Effect]](), True
    for cell in cells:
        text, made = filler.fill(cell)
        texts.append(text)
        tests += made or ()
        is_complete = is_complete and made is not None
    if VERDICT in named:
        is_heading = columns == [cell.strip() for cell in cells] or set("".join(cells)) <= set(" :-")
        if not is_complete:
            texts[named[VERDICT]] = f" {NOT_TESTED} ({NOT_RUN}) "
        elif SIZE in named and not is_heading:
            _fill_verdict(texts, named, tests)
    return f"|{'|'.join(texts)}|"


def _fill_verdict(texts: list[str], named: Mapping[str, int], tests: Sequence[tuple[Condition, Effect]]) -> None:
    """Write the verdict and the numbers of examples and seeds of a row of claims.

    Raises:
        ExpoundError: the row has a verdict that was typed by hand.
    """
    typed = texts[named[VERDICT]].strip()
    if not tests and not typed.startswith(NOT_TESTED):
        raise ExpoundError(f"a claim without a condition has the verdict {NOT_TESTED!r}, got {typed!r}")
    if tests and typed:
        raise ExpoundError(f"the verdict {typed!r} was typed by hand: of a claim with conditions it is computed")
    if not tests:
        return
    texts[named[VERDICT]] = f" {format_verdict(tests)} "
    texts[named[SIZE]] = f" {format_size([effect for _, effect in tests])} "


class _PlaceholderFiller:
    """Replaces placeholders by text. Each table is made once, since significance tests take seconds."""

    def __init__(self, results: Mapping[str, Results]) -> None:
        self.results = results
        self.made: dict[tuple[str, str], TableFigures] = {}
        self.sentence = ""

    def fill(self, text: str) -> tuple[str, list[tuple[Condition, Effect]] | None]:
        """Return the text with its placeholders filled in, and the tests in it; None if their runs are not finished."""
        is_complete, tests = True, list[tuple[Condition, Effect]]()

        def replace(placeholder: re.Match[str]) -> str:
            nonlocal is_complete
            fields = [field.strip() for field in placeholder[1].split("|")]
            condition = Condition.parse(fields[3]) if len(fields) == 4 else None
            if len(fields) > 2 and MINUS in fields[1]:
                self._require_fair(fields)
            if condition is None:
                value = self.value(fields)
            elif made := self._measure_claim(fields, condition):
                value = made[0]
                tests.append((condition, made[1]))
            else:
                value = None
            is_complete = is_complete and value is not None
            return NOT_RUN if value is None else value

        return PLACEHOLDER.sub(replace, text), tests if is_complete else None

    def _measure_claim(self, fields: list[str], condition: Condition) -> tuple[str, Effect] | None:
        """Return the effect of a placeholder with a condition, as text and as numbers; None before they are done."""
        name, table = self._split_name(fields[0])
        figures = self.results[name].study.figures
        if table in figures and table not in self.results[name].study.tables:
            # matplotlib, see _format_matrices
            from expound_papers.tables.figures import measure_correlation

            effect = measure_correlation(self.results[name], figures[table], fields[1])
            return (format_effect(effect, condition, "+.2f"), effect) if effect else None
        return self._find_table(fields[0]).measure_claim(fields[1], fields[2], condition)

    def _require_fair(self, fields: list[str]) -> None:
        """Raise ExpoundError if the trainings of two rows differ in a setting that the sentence does not name."""
        unnamed = self._find_table(fields[0]).list_unnamed_differences(fields[1], fields[2], self.sentence)
        if unnamed:
            settings = " and ".join(unnamed)
            raise ExpoundError(f"{fields[1]}: the trainings also differ in {settings}: say so, or compare other rows")

    def value(self, fields: list[str]) -> str | None:
        """Return the text for a placeholder; None if its runs are not finished."""
        if fields == ["facts"]:
            return format_run_facts(self.results)
        if fields == ["legend"]:
            return LEGEND
        name, table = self._split_name(fields[0])
        declared = self.results[name].study.tables
        if len(fields) == 1 and table in (figures := self.results[name].study.figures):
            return "\n\n".join(_format_matrices(self.results[name], figures[table])) or None
        if len(fields) == 1:
            texts = []
            for each in [table] if table else declared:
                made = self._table(name, each).table
                if made.rows:
                    texts.append(render_markdown(made).strip())
            return "\n\n".join(texts) or None
        if len(fields) not in (3, 4):
            raise ExpoundError(f"expected NAME:TABLE | ROW | COLUMN | FIELD, got {' | '.join(fields)}")
        return self._find_table(fields[0]).format_field(*fields[1:])

    def _split_name(self, field: str) -> tuple[str, str]:
        """Return the study and the table of NAME:TABLE; no table if it is not named."""
        name, _, table = field.partition(":")
        if name not in self.results:
            raise unknown("study of the page", name, self.results)
        return name, table

    def _find_table(self, field: str) -> TableFigures:
        """Return the table NAME:TABLE, or the first of the study NAME."""
        name, table = self._split_name(field)
        return self._table(name, table or next(iter(self.results[name].study.tables)))

    def _table(self, name: str, table: str) -> TableFigures:
        if (name, table) not in self.made:
            self.made[name, table] = TableFigures.from_results(self.results[name], table)
        return self.made[name, table]


def _format_matrices(results: Results, part: FigurePart) -> Iterator[str]:
    """Yield the matrices of a figure as pipe tables below their titles."""
    # Importing matplotlib takes a second, which most pages do not need.
    from expound_papers.tables.figures import make_agreement_matrices

    for matrix in make_agreement_matrices(results, part):
        rows = []
        for name, values in zip(matrix.rows, matrix.values, strict=True):
            rows.append([name, *map("{:.2f}".format, values)])
        yield f"**{matrix.title}**\n\n{Table(['', *matrix.columns], rows).to_markdown()}"
