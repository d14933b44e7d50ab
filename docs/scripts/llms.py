"""Write llms.txt, a summary of the site for language models (https://llmstxt.org)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

FIRST = 3
"""Number of paragraphs taken from the README."""


def text(root: Path, site: Path, nav: list[Any]) -> str:
    """Return the file: the first paragraphs of the README, then every page of the built site by section."""
    readme = (root / "README.md").read_text(encoding="utf-8").split("\n\n")
    about = [part for part in readme[1 : 1 + FIRST] if not part.startswith("!")]
    lines = ["# expound", "> " + about[0].strip("*"), *about[1:]]
    for section in nav:
        ((title, pages),) = section.items()
        entries = [f"- [{_title(site / address)}]({address})" for address in map(_address, _flatten(pages))]
        lines.append(f"## {title}\n\n" + "\n".join(entries))
    return "\n\n".join(lines) + "\n"


def _flatten(pages: Any) -> Iterator[str]:
    for each in pages:
        if isinstance(each, str):
            yield each
        else:
            for inner in each.values():
                yield from _flatten(inner)


def _address(page: str) -> str:
    return f"{page.removesuffix('.md')}/".removesuffix("index/") or "./"


def _title(folder: Path) -> str:
    """Return the first heading of the page in a folder."""
    found = re.search(r"<h1[^>]*>(.*?)<", (folder / "index.html").read_text(encoding="utf-8"), re.DOTALL)
    return unescape(found[1]).strip() if found else folder.name
