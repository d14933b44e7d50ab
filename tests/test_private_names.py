"""A name with an underscore belongs to its module: no other module imports or reads it."""

from __future__ import annotations

import ast
from pathlib import Path

SRC = Path(__file__).parents[1] / "src"


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def find_borrowed_names(source):
    """Yields line and name of every private name that a module takes from another module of this package."""
    tree, ours = ast.parse(source), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "expound":
            ours |= {alias.asname or alias.name for alias in node.names}
            yield from ((node.lineno, alias.name) for alias in node.names if is_private(alias.name))
        if isinstance(node, ast.Import):
            ours |= {alias.asname for alias in node.names if alias.asname and alias.name.startswith("expound.")}
    for node in ast.walk(tree):
        of = node.value.id if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) else ""
        if of in ours and of.islower() and is_private(node.attr):
            yield node.lineno, f"{of}.{node.attr}"


def test_no_module_takes_a_private_name_of_another():
    found = {str(path): list(find_borrowed_names(path.read_text(encoding="utf-8"))) for path in SRC.rglob("*.py")}
    assert len(found) > 100
    assert {path: names for path, names in found.items() if names} == {}


def test_such_names_are_found():
    lines = "from expound.a import _b\nfrom expound import c\nc._d()\nself._e\nfrom os import _exit\nc.__doc__"
    assert list(find_borrowed_names(lines)) == [(1, "_b"), (3, "c._d")]
