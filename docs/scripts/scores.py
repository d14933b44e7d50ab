"""Figures of single parts, read from the tables in papers/results."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

RESULTS = Path(__file__).parents[2] / "papers" / "results"
SHOWN = 5
"""Number of columns of a row that are repeated."""
NAMED = 4
"""Number of methods that are named as the best of a column."""
TABLE = re.compile(r"(?:^\*\*(?P<caption>[^*\n]+)\*\*\n\n)?(?P<rows>(?:^\|.*\n)+)", re.MULTILINE)
INTERVALS = (
    "Means; brackets hold 95 % intervals. Bold: the best, or not distinguishable from the best. †: differs "
    "significantly from the table's reference, which the linked section names."
)
SHORT = {"Comp": "Comprehensiveness", "Suff": "Sufficiency", "LO": "Log-odds"}
"""Full names of metrics, by their names in tables of papers."""
METRICS = {
    "A-C": "aopc_comprehensiveness",
    "A-S": "aopc_sufficiency",
    "NAOPC-C": "naopc_comprehensiveness",
    "NAOPC-S": "naopc_sufficiency",
    "soft-C": "soft_comprehensiveness",
    "soft-S": "soft_sufficiency",
}
"""Ids of metrics by their short names in the tables of results."""


class Section(NamedTuple):
    """A section of a results page: the page's title and data, the section's title, address and text."""

    page: str
    judged_on: str
    title: str
    address: str
    body: str


def figures_of(names: Collection[str], page: str | None, full_names: Mapping[str, str]) -> str:
    """Return Markdown with a part's figures on each results page, then links to other sections that name the part.

    Args:
        names: what tables call the part, in lower case.
        page: the results page of a recipe.
        full_names: full names of metrics, by their short names in tables.
    """
    figures_by_page: dict[tuple[str, str], list[str]] = {}
    others = [f"[{title}](../results/{page}.md)" for title in [_title_of(page)] if page]
    for section in sections():
        figures = next(_figures(section.body, names, SHORT | dict(full_names)), "")
        if figures:
            line = f"- [{section.title}](../results/{section.address}): {figures}"
            figures_by_page.setdefault((section.page, section.judged_on), []).append(line)
        elif any(f"`{name}`" in section.body for name in names):
            others.append(f"[{section.title}](../results/{section.address})")
    parts = [INTERVALS] if figures_by_page else []
    for (title, judged_on), lines in figures_by_page.items():
        parts += [f"**{title}**" + (f" (texts: {judged_on})" if judged_on else ""), "\n".join(lines)]
    return "\n\n".join(
        [*parts, f"{'Also named' if figures_by_page else 'Named'} in: {', '.join(others)}."] if others else parts
    )


def _title_of(page: str | None) -> str:
    return next((section.page for section in sections() if section.address.startswith(f"{page}.md")), "")


def _figures(body: str, names: Collection[str], full_names: Mapping[str, str]) -> Iterator[str]:
    """Yield the part's row of each table, and the best methods of the part's column."""
    for table in TABLE.finditer(body):
        lines = table["rows"].splitlines()
        head, _, *rows = ([cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in lines)
        head = [_expand_heading(cell, full_names) for cell in head]
        for row in rows:
            if row[0].strip("`* ").lower() in names:
                values = ", ".join(
                    f"{heading} {cell}" for heading, cell in list(zip(head, row, strict=False))[1 : SHOWN + 1]
                )
                yield f"{table['caption']}: {values}" if table["caption"] and "τ" in table["caption"] else values
        for column, heading in enumerate(head):
            best = [row[0].strip("`") for row in rows if len(row) > column and row[column].startswith("**")]
            if heading.strip("↑↓ `").lower() in names and best:
                more = f" and {len(best) - NAMED} more" if len(best) > NAMED else ""
                yield f"best or tied with it: {', '.join(best[:NAMED])}{more}"


def _expand_heading(cell: str, full_names: Mapping[str, str]) -> str:
    """Return a column's heading with the metric's full name."""
    *before, last = cell.split(" / ")
    name, arrow = re.fullmatch(r"(.*?)( [↑↓])?", last).groups(default="")  # type: ignore[union-attr]  # always matches
    return " / ".join([*before, full_names.get(name, name) + arrow])


@cache
def sections() -> list[Section]:
    """Return every section of the results pages."""
    from markdown.extensions.toc import slugify

    all_sections = []
    for file in sorted(RESULTS.glob("*.md")):
        text = file.read_text(encoding="utf-8")
        name, *parts = re.split(r"^#+ ", text, flags=re.MULTILINE)[1:]
        page = name.splitlines()[0]
        judged_on = re.search(r"^\| judged on \| (.*?) \|$", text, re.MULTILINE)
        used: dict[str, int] = {slugify(page, "-"): 0}
        for part in parts:
            heading, _, body = part.partition("\n")
            title = heading.replace("`", "").strip()
            anchor = slugify(title, "-")
            used[anchor] = used.get(anchor, -1) + 1
            anchor += f"_{used[anchor]}" if used[anchor] else ""
            all_sections.append(Section(page, judged_on[1] if judged_on else "", title, f"{file.name}#{anchor}", body))
    return all_sections
