"""Puts the figures of an attack into a page: `python tests/attack/table.py FIGURES.jsonl PAGE.md`."""

from __future__ import annotations

import datetime
import json
import sys
from collections import Counter
from pathlib import Path

BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"


def make_table(lines, day):
    """A Markdown table with a row for each attack: its targets, cases, outcomes and CPU time."""
    rows = ["| attack | on | cases | what came of them | CPU s |", "| --- | --- | --: | --- | --: |"]
    for attack in dict.fromkeys(line["attack"] for line in lines):
        of_attack = [line for line in lines if line["attack"] == attack]
        counts = Counter()
        for line in of_attack:
            counts.update({name: value for name, value in line.items() if isinstance(value, int | float)})
        seconds, cases = counts.pop("seconds"), counts.pop("cases")
        came = ", ".join(f"{value:,} {name}" for name, value in counts.items()) or "as promised"
        on = ", ".join(dict.fromkeys(line["what"] for line in of_attack))
        rows.append(f"| {attack} | {on} | {cases:,} | {came} | {seconds:,.0f} |")
    total = sum(line["cases"] for line in lines)
    intro = f"{total:,} cases, the last of them on {day}. Counted are attacks that ended without a failure."
    return "\n".join([intro, "", *rows])


def insert_text(page, text):
    """The page with the text between its two marks of figures."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    figures, page = map(Path, sys.argv[1:])
    lines = [json.loads(line) for line in figures.read_text(encoding="utf-8").splitlines()]
    day = datetime.datetime.fromtimestamp(figures.stat().st_mtime, datetime.UTC).date()
    page.write_text(insert_text(page.read_text(encoding="utf-8"), make_table(lines, day)), encoding="utf-8")
