"""Check that every public name has an example in the reference, and run the examples."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import FunctionType, ModuleType

import expound
from expound.explainers import EXPLAINERS
from expound.metrics import METRICS

REFERENCE = Path(__file__).parents[1] / "reference"
PARTS = {point.attr for registry in (EXPLAINERS, METRICS) for point in registry.native.values()}
"""Classes of methods and metrics; `parts.py` makes their pages."""
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def find_missing(folder: Path = REFERENCE) -> Iterator[str]:
    """Yield a sentence for every public name without a page, example or text, and for every name that is not public."""
    pages = {text.splitlines()[0].lstrip("# "): text for text in map(_text, sorted(folder.glob("*.md")))}
    for package in sorted(_public() | pages.keys()):
        parts = re.split(rf"^::: {re.escape(package)}\.(\w+)$", pages.get(package, ""), flags=re.MULTILINE)[1:]
        shown = dict(zip(parts[::2], parts[1::2], strict=True))
        public = import_module(package)
        # packages of the library are attributes of the package, with pages of their own
        names = {name for name in public.__all__ if not isinstance(getattr(public, name), ModuleType)} - PARTS
        yield from (f"{package}.{name} is public and on no page" for name in sorted(names - shown.keys()))
        yield from (f"{package}.{name} is on a page and not public" for name in sorted(shown.keys() - names))
        yield from (f"{package}.{name} has no example" for name, rest in shown.items() if not BLOCK.search(rest))
        yield from (f"{package}.{name} has no text" for name in sorted(names) if not _has_text(package, name))


def _public() -> set[str]:
    """Return the library and its packages that list their public names."""
    rooms = (f"expound.{room.name}" for room in iter_modules(expound.__path__) if room.ispkg)
    return {"expound", *(room for room in rooms if getattr(import_module(room), "__all__", ()))}


def _has_text(package: str, name: str) -> bool:
    value = getattr(import_module(package), name)
    return bool(value.__doc__) or not isinstance(value, type | FunctionType)


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def run(folder: Path) -> None:
    """Run the blocks of each page in order, in one namespace and inside the folder, until one fails."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in sorted(REFERENCE.glob("*.md")):
        names: dict[str, object] = {"__name__": file.stem}
        with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
            for block in BLOCK.finditer(file.read_text(encoding="utf-8")):
                line = file.read_text(encoding="utf-8")[: block.start(1)].count("\n")
                tree = ast.increment_lineno(ast.parse(block[1]), line)
                exec(compile(tree, os.fspath(file), "exec", dont_inherit=True), names)  # noqa: S102  # pages of ours
