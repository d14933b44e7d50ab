"""Lazy packages: their public names are imported on first use."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package whose names are imported when they are first used.

    The names and their modules are the imports in the package's `if TYPE_CHECKING:` block. A name must differ from the
    package's modules, because Python finds a module first. `from PACKAGE import MODULE` in the block makes a module
    available as an attribute.
    """
    loader = sys.modules[package].__spec__.loader  # type: ignore[union-attr]  # a package that runs has one
    tree = ast.parse(loader.get_source(package))  # type: ignore[union-attr]  # and its loader has the source
    origins: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                origins[alias.asname or alias.name] = (node.module, alias.name)

    def import_name(name: str) -> Any:
        if name not in origins:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, original = origins[name]
        if module == package:
            return import_module(f"{package}.{original}")
        value = getattr(import_module(module), original)
        # stored in the package, so that Python does not call this function for the name again
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *origins})

    return import_name, list_names
