"""Escaping of text for terminals and LaTeX, and tables of texts as Markdown, LaTeX (booktabs) and CSV."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Sequence

_LATEX = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "–": "--",
    "…": r"\,\ldots{}\,",
    # After \\ or \begin{tabular}, LaTeX would read a bracket as an optional argument.
    "[": "{[}",
    "]": "{]}",
}


def replace_control_characters(text: str) -> str:
    """Return the text with control characters replaced by U+FFFD; line breaks and tabs stay."""
    # Escape sequences in a data set could otherwise recolour the terminal or move its cursor.
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "\ufffd", text)


def escape_latex(text: str) -> str:
    """Return LaTeX that typesets the text literally, on one line."""
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))


def format_markdown_lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a pipe table; all columns but the first are aligned to the right."""
    lines = []
    for cells in (head, ["---", *["---:"] * (len(head) - 1)], *rows):
        # A line break or an unescaped bar in a name would break the table.
        texts = [" ".join(cell.split()).replace("|", r"\|") for cell in cells]
        lines.append(f"| {' | '.join(texts)} |")
    return lines


def format_latex_table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str, label: str) -> str:
    """Return a `table` environment. `head`, `caption` and `label` are plain text, the cells of `rows` are LaTeX."""
    lines = [r"\begin{table}", r"\centering", rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}", r"\toprule"]
    lines += [" & ".join(map(escape_latex, head)) + r" \\", r"\midrule"]
    for cells in rows:
        lines.append(" & ".join(cells) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    if caption:
        lines.append(rf"\caption{{{escape_symbols(caption)}}}")
    if label:
        lines.append(rf"\label{{{label}}}")
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def escape_symbols(text: str) -> str:
    """Return LaTeX that typesets the text literally, with its signs ± and †."""
    return escape_latex(text).replace("±", r"$\pm$").replace("†", r"$^\dagger$")


def format_csv(head: Sequence[str], rows: Iterable[Sequence[str | float | int]]) -> str:
    """Return comma-separated values; floats have all their digits, and NaN is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    for row in rows:
        fields = []
        for value in row:
            if isinstance(value, float) and math.isnan(value):
                fields.append("")
            else:
                # repr gives the shortest digits that read back as the same number.
                fields.append(value if isinstance(value, str) else repr(value))
        writer.writerow(fields)
    return out.getvalue()
