"""Packages whose names are imported when they are first used."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package that imports a name as its `if TYPE_CHECKING:` block says.

    A name must not be that of a module of the package, which Python would find first.
    """
    loader = sys.modules[package].__spec__.loader  # type: ignore[union-attr]  # a package that runs has one
    tree = ast.parse(loader.get_source(package))  # type: ignore[union-attr]  # so do its parts
    where = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }

    def imported(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, original = where[name]
        value = getattr(import_module(module), original)
        setattr(sys.modules[package], name, value)
        return value

    return imported, lambda: sorted({*vars(sys.modules[package]), *where})
