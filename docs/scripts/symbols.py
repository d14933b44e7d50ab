"""Equations as MathML, with what their symbols mean (`symbols.yaml`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from latex2mathml.converter import convert

SYMBOLS: Mapping[str, Any] = yaml.safe_load(Path(__file__).with_name("symbols.yaml").read_text(encoding="utf-8"))

BREAK = re.compile(r"(?<=,) \\; |(?= \+ \\lambda_)")
"""Where the line of an equation may break."""


def render_equation(folder: str, name: str, latex: str) -> str:
    """Return a part's equation and a line on its symbols, as HTML."""
    texts = [f"{_render(symbol)}: {_render_text(text)}" for symbol, text in list_symbols(folder, name, latex)]
    where = f'\n<p class="symbols">{"; ".join(texts)}.</p>' if texts else ""
    # Parts of an equation are formulas of their own, so that a phone can break the line between them.
    formulas = " ".join(f"<span>{_render(part, 'block')}</span>" for part in BREAK.split(latex))
    return f'<p class="equation">{formulas}</p>{where}'


def list_symbols(folder: str, name: str, latex: str) -> Iterator[tuple[str, str]]:
    """Yield the symbols of a part's equation with their meaning: those of the part, then shared ones that occur."""
    known = SYMBOLS[folder]
    own = known["parts"].get(name, [])
    yield from own
    defined = {symbol for symbol, _ in own}
    for symbol, text, pattern in known["shared"]:
        if symbol not in defined and re.search(pattern, latex):
            yield symbol, text


def _render(latex: str, display: str = "inline") -> str:
    """Return MathML. Few fonts have the set difference sign that LaTeX's becomes, so it is replaced by a common one."""
    return convert(latex, display=display).replace("&#x02216;", "∖").replace("&#x029F5;", "∖")


def _render_text(text: str) -> str:
    """Return a text with its formulas between dollar signs as MathML, and names between backticks as code."""
    parts = re.sub(r"`(.+?)`", r"<code>\1</code>", text).split("$")
    return "".join(_render(part) if number % 2 else part for number, part in enumerate(parts))
