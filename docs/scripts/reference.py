"""Split the reference into a page per public name, each with all of the code that its example needs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import NamedTuple

import blocks

_IDS = {"expound", "tiny", "generated", "train", "dev", "random", "occlusion", "print"}
"""Words of calls that are no files."""
NAME = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)


class Entry(NamedTuple):
    """A public name: its full name, the path of its page, its Markdown, and the code of its example."""

    name: str
    path: str
    text: str
    code: str


def entries(file: Path) -> list[Entry]:
    """Return the names of a file of the reference, in its order."""
    parts = NAME.split(file.read_text(encoding="utf-8"))
    code, found = "".join(blocks.BLOCK.findall(parts[0])), []
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        own = "".join(blocks.BLOCK.findall(text))
        short = name.rpartition(".")[2]
        # Some file systems do not tell `explainer` from `Explainer`.
        page = short if short.islower() else f"{short.lower()}_class"
        found.append(Entry(name, f"reference/{file.stem}/{page}.md", text, find_needed(code, own) + own))
        code += own
    return found


def find_needed(earlier: str, code: str) -> str:
    """Return the earlier statements that bind names, or write files, which the code uses directly or by each other."""
    used = _find_words(ast.parse(code))
    needed = list[str]()
    for statement in reversed(ast.parse(earlier).body):
        if not used.isdisjoint(_find_results(statement)):
            used |= _find_words(statement)
            needed.insert(0, ast.get_source_segment(earlier, statement) or "")
    return "\n".join([*needed, ""]) if needed else ""


def _find_words(tree: ast.AST) -> set[str]:
    """Return the names and strings in a piece of code."""
    nodes = list(ast.walk(tree))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names | {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def _find_results(statement: ast.stmt) -> set[str]:
    """Return the names that a statement binds, and the strings of a call that may write the file of that name."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
    if isinstance(statement, ast.ClassDef | ast.FunctionDef):
        return {statement.name}
    names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    call = getattr(statement, "value", None)
    if isinstance(call, ast.Call) and (isinstance(statement, ast.Expr) or "train" in ast.unparse(call.func)):
        constants = (node.value for node in ast.walk(call) if isinstance(node, ast.Constant))
        names |= {value for value in constants if isinstance(value, str)} - _IDS
    return names


def pages() -> Iterator[tuple[str, str]]:
    """Yield a page per name, as its path and Markdown."""
    for file in sorted(blocks.REFERENCE.glob("*.md")):
        for entry in entries(file):
            options = blocks.BLOCK.split(entry.text)[0].strip("\n")
            example = f"## Example\n\n```python\n{entry.code.strip()}\n```\n"
            yield entry.path, f"# {entry.name}\n\n::: {entry.name}\n{options}\n\n{example}"


def index(file: Path) -> str:
    """Return the page of a package: its introduction, and its names with their first sentences."""
    introduction = NAME.split(file.read_text(encoding="utf-8"))[0]
    introduction = blocks.BLOCK.sub("", introduction).strip()
    rows = [
        f"| [`{each.name}`]({file.stem}/{Path(each.path).name}) | {_first_line(each.name)} |" for each in entries(file)
    ]
    return "\n".join([introduction, "", "| | |", "| --- | --- |", *rows, ""])


def _first_line(name: str) -> str:
    package, _, attribute = name.rpartition(".")
    value = getattr(import_module(package), attribute)
    text = value.__doc__ if isinstance(value, type | FunctionType) else ""
    return (text or "").strip().partition("\n")[0].replace("|", "\\|").replace("<", "&lt;")
