"""What parts scored, as the tables of docs/results have it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

RESULTS = Path(__file__).parents[1] / "results"
SHOWN = 5
"""Columns of a row."""


class Section(NamedTuple):
    """A section of a results page: its page's title and its own, where it is, its text."""

    page: str
    title: str
    where: str
    body: str


def told(names: Collection[str], page: str | None) -> str:
    """Markdown: the sections that name the part (in lower case), with its row, or the best of its column."""
    found = [f"- [{page_title}](../results/{page}.md)" for page_title in [_title_of(page)] if page]
    for section in sections():
        figures = next(_figures(section.body, names), "")
        if figures or any(f"`{name}`" in section.body for name in names):
            link = f"- [{section.page}: {section.title}](../results/{section.where})"
            found.append(f"{link}: {figures}" if figures else link)
    return "\n".join(found)


def _title_of(page: str | None) -> str:
    return next((each.page for each in sections() if each.where.startswith(f"{page}.md")), "")


def _figures(body: str, names: Collection[str]) -> Iterator[str]:
    for table in re.findall(r"(?:^\|.*\n)+", body, flags=re.MULTILINE):
        head, _, *rows = ([cell.strip() for cell in line.strip("| ").split(" | ")] for line in table.splitlines())
        for row in rows:
            if row[0].strip("`* ").lower() in names:
                yield ", ".join(f"{above} {cell}" for above, cell in list(zip(head, row, strict=False))[1 : SHOWN + 1])
        for at, above in enumerate(head):
            if above.strip("↑↓ `").lower() in names:
                best = next((row for row in rows if len(row) > at and row[at].startswith("**")), None)
                yield f"best in this column is {best[0]}, {best[at]}" if best else "a column"


@cache
def sections() -> list[Section]:
    """Every section of the results pages."""
    from markdown.extensions.toc import slugify

    made = []
    for file in sorted(RESULTS.glob("*.md")):
        name, *parts = re.split(r"^#+ ", file.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
        page = name.splitlines()[0]
        used: dict[str, int] = {slugify(page, "-"): 0}
        for part in parts:
            heading, _, body = part.partition("\n")
            title = heading.replace("`", "").strip()
            anchor = slugify(title, "-")
            used[anchor] = used.get(anchor, -1) + 1
            anchor += f"_{used[anchor]}" if used[anchor] else ""
            made.append(Section(page, title, f"{file.name}#{anchor}", body))
    return made
