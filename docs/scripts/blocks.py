"""The reference's examples: every public name has one, and all of them run."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

REFERENCE = Path(__file__).parents[1] / "reference"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def missing() -> Iterator[str]:
    """A sentence for every public name of a package that its page does not show with an example, or the reverse."""
    for file in sorted(REFERENCE.glob("*.md")):
        text = file.read_text(encoding="utf-8")
        package = text.splitlines()[0].lstrip("# ")
        parts = re.split(rf"^::: {re.escape(package)}\.(\w+)$", text, flags=re.MULTILINE)[1:]
        shown = dict(zip(parts[::2], parts[1::2], strict=True))
        for name in set(import_module(package).__all__) ^ shown.keys():
            yield f"{file.name}: {package}.{name} is public and not shown, or the reverse"
        yield from (f"{file.name}: {name} has no example" for name, rest in shown.items() if not BLOCK.search(rest))


def run(folder: Path) -> None:
    """Runs the blocks of each page, in order and in one namespace, inside the folder. A block that fails ends it."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in sorted(REFERENCE.glob("*.md")):
        names: dict[str, object] = {"__name__": file.stem}
        with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
            for block in BLOCK.finditer(file.read_text(encoding="utf-8")):
                line = file.read_text(encoding="utf-8")[: block.start(1)].count("\n")
                tree = ast.increment_lineno(ast.parse(block[1]), line)
                exec(compile(tree, os.fspath(file), "exec"), names)  # noqa: S102  # pages of ours
