"""Check the built site: every local link, picture and anchor exists, and no page loads a file from another host."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Names(HTMLParser):
    """Ids of a page, what it links to, and what it loads."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """See HTMLParser."""
        attributes = {name: value or "" for name, value in attrs}
        self.ids.update(attributes[name] for name in ("id", "name") if name in attributes)
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        loaded = attributes.get("src") or (
            attributes.get("href") if tag == "link" and attributes.get("rel") != "canonical" else None
        )
        if loaded:
            self.loads.append(loaded)


def find_broken(site: Path) -> Iterator[str]:
    """Yield a sentence for every link that leads nowhere, and for everything loaded from another host."""
    for file in sorted(site.rglob("*.html")):
        page = _read(file)
        for target in page.loads:
            if urlsplit(target).netloc:
                yield f"{file.relative_to(site)}: loads {target}"
        for target in (*page.links, *page.loads):
            if (reason := _check_target(file, target, site)) and file.name != "404.html":
                yield f"{file.relative_to(site)}: {reason}"


def _check_target(file: Path, target: str, site: Path) -> str | None:
    parts = urlsplit(target)
    if parts.scheme or parts.netloc or target.startswith("#__") or not (parts.path or parts.fragment):
        return None
    destination = file if not parts.path else _resolve(file, unquote(parts.path), site)
    if destination is None or not destination.exists():
        return f"{target} does not exist"
    if parts.fragment and destination.suffix == ".html" and unquote(parts.fragment) not in _read(destination).ids:
        return f"{target}: no such anchor"
    return None


def _resolve(file: Path, path: str, site: Path) -> Path | None:
    destination = (site / path.lstrip("/")) if path.startswith("/") else (file.parent / path)
    return destination / "index.html" if destination.is_dir() else destination


@cache
def _read(file: Path) -> Names:
    names = Names()
    names.feed(file.read_text(encoding="utf-8"))
    return names
