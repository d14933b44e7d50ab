"""What parts scored, as the tables of docs/results have it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

RESULTS = Path(__file__).parents[1] / "results"
SHOWN = 5
"""Columns of a row."""
NAMED = 4
"""Methods that are named as the best of a column."""
TABLE = re.compile(r"(?:^\*\*(?P<caption>[^*\n]+)\*\*\n\n)?(?P<rows>(?:^\|.*\n)+)", re.MULTILINE)
INTERVALS = "Means, with 95 % intervals where there are brackets; bold: best, or not told apart from the best."
SHORT = {"Comp": "Comprehensiveness", "Suff": "Sufficiency", "LO": "Log-odds"}
"""What a paper's tables call a metric."""
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
    """A section of a results page: its page's title, what that was judged on, its own title, where it is, its text."""

    page: str
    judged: str
    title: str
    where: str
    body: str


def told(names: Collection[str], page: str | None, long: Mapping[str, str]) -> str:
    """Markdown: for each results page the figures of the part (names in lower case), then where else it is named.

    `page`: the results page of a training method. `long`: names of metrics in full, by what tables call them.
    """
    shown: dict[tuple[str, str], list[str]] = {}
    others = [f"[{title}](../results/{page}.md)" for title in [_title_of(page)] if page]
    for section in sections():
        figures = next(_figures(section.body, names, SHORT | dict(long)), "")
        if figures:
            line = f"- [{section.title}](../results/{section.where}): {figures}"
            shown.setdefault((section.page, section.judged), []).append(line)
        elif any(f"`{name}`" in section.body for name in names):
            others.append(f"[{section.title}](../results/{section.where})")
    parts = [INTERVALS] if shown else []
    for (title, judged), lines in shown.items():
        parts += [f"**{title}**" + (f" (texts: {judged})" if judged else ""), "\n".join(lines)]
    return "\n\n".join([*parts, f"{'Also named' if shown else 'Named'} in: {', '.join(others)}."] if others else parts)


def _title_of(page: str | None) -> str:
    return next((each.page for each in sections() if each.where.startswith(f"{page}.md")), "")


def _figures(body: str, names: Collection[str], long: Mapping[str, str]) -> Iterator[str]:
    """The part's row in a table of the section, or the best of the column that is the part's."""
    for table in TABLE.finditer(body):
        lines = table["rows"].splitlines()
        head, _, *rows = ([cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in lines)
        head = [_spoken(cell, long) for cell in head]
        for row in rows:
            if row[0].strip("`* ").lower() in names:
                said = ", ".join(f"{above} {cell}" for above, cell in list(zip(head, row, strict=False))[1 : SHOWN + 1])
                yield f"{table['caption']}: {said}" if table["caption"] and "τ" in table["caption"] else said
        for at, above in enumerate(head):
            best = [row[0].strip("`") for row in rows if len(row) > at and row[at].startswith("**")]
            if above.strip("↑↓ `").lower() in names and best:
                more = f" and {len(best) - NAMED} more" if len(best) > NAMED else ""
                yield f"best or tied with it: {', '.join(best[:NAMED])}{more}"


def _spoken(cell: str, long: Mapping[str, str]) -> str:
    """A column's heading with the metric's name in full."""
    *before, last = cell.split(" / ")
    name, arrow = re.fullmatch(r"(.*?)( [↑↓])?", last).groups(default="")  # type: ignore[union-attr]  # always matches
    return " / ".join([*before, long.get(name, name) + arrow])


@cache
def sections() -> list[Section]:
    """Every section of the results pages."""
    from markdown.extensions.toc import slugify

    made = []
    for file in sorted(RESULTS.glob("*.md")):
        text = file.read_text(encoding="utf-8")
        name, *parts = re.split(r"^#+ ", text, flags=re.MULTILINE)[1:]
        page = name.splitlines()[0]
        judged = re.search(r"^\| judged on \| (.*?) \|$", text, re.MULTILINE)
        used: dict[str, int] = {slugify(page, "-"): 0}
        for part in parts:
            heading, _, body = part.partition("\n")
            title = heading.replace("`", "").strip()
            anchor = slugify(title, "-")
            used[anchor] = used.get(anchor, -1) + 1
            anchor += f"_{used[anchor]}" if used[anchor] else ""
            made.append(Section(page, judged[1] if judged else "", title, f"{file.name}#{anchor}", body))
    return made
