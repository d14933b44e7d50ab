"""A class read from its file: fields, defaults, card and passes, without what its module imports."""

from __future__ import annotations

import ast
from dataclasses import fields
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import Any, ClassVar

LIGHT = ("exegete.data.", "exegete.errors")
"""Modules of the library that are imported as they are."""


class Outlined:
    """The base of all outlines: what a part with its parameters says of itself."""

    card: ClassVar[Any]

    @property
    def name(self) -> str:
        """The id of the part."""
        return str(self.card.name)

    @property
    def params(self) -> dict[str, Any]:
        """The parameters by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]


@cache
def outline(module: str) -> Names:
    """The names of a native module, read from its file once."""
    return Names(module)


class Names(dict[str, Any]):
    """A module's names, each evaluated when it is asked for; classes are outlines.

    An outline has the class's fields, plain attributes and `passes`, and of its bases those of the library.
    """

    def __init__(self, module: str) -> None:
        super().__init__()
        path = files("exegete").joinpath(*module.split(".")[1:])
        file = path.joinpath("__init__.py") if path.is_dir() else path.parent.joinpath(f"{path.name}.py")  # type: ignore[attr-defined]
        self.nodes: dict[str, ast.AST] = {}
        self.imports: dict[str, tuple[str, str]] = {}
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                self.imports |= {each.asname or each.name: (str(node.module), each.name) for each in node.names}
            elif isinstance(node, ast.Module):
                self.nodes |= {each.name: each for each in node.body if isinstance(each, ast.ClassDef)}
                self.nodes |= {name: value for each in node.body for name, value in _assigned(each)}

    def __missing__(self, name: str) -> Any:
        if name in self.imports:
            module, original = self.imports[name]
            ours = module.startswith("exegete") and not module.startswith(LIGHT)
            value = outline(module)[original] if ours else getattr(import_module(module), original)
        else:
            node = self.nodes[name]
            value = self._class(node) if isinstance(node, ast.ClassDef) else self._value(node)
        self[name] = value
        return value

    def _value(self, node: ast.AST) -> Any:
        assert isinstance(node, ast.expr)
        return eval(compile(ast.Expression(node), "<outline>", "eval"), {}, self)  # noqa: S307  # our own source

    def _class(self, node: ast.ClassDef) -> type:
        body: dict[str, Any] = {"__annotations__": {}, "__module__": __name__}
        for each in node.body:
            if isinstance(each, ast.AnnAssign) and node.decorator_list:
                body["__annotations__"][ast.unparse(each.target)] = self._value(each.annotation)
            if isinstance(each, ast.FunctionDef) and each.name == "passes":
                body[each.name] = self._method(each)
            body |= {name: self._value(value) for name, value in _assigned(each)}
        bases = [self._value(base) for base in node.bases if self._kept(base)]
        made = type(node.name, (*bases, Outlined), body)
        for decorator in node.decorator_list:
            made = self._value(decorator)(made)
        return made

    def _method(self, node: ast.FunctionDef) -> Any:
        node.returns, node.args.args = None, [ast.arg(each.arg) for each in node.args.args]
        used = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        found = {name: self[name] for name in used if name in self.imports or name in self.nodes}
        exec(compile(ast.fix_missing_locations(ast.Module([node], [])), "<outline>", "exec"), found)  # noqa: S102
        return found[node.name]

    def _kept(self, base: ast.expr) -> bool:
        """Whether a base is of the library."""
        name = ast.unparse(base)
        return name in self.nodes or self.imports.get(name, ("",))[0].startswith("exegete")


def _assigned(node: ast.AST) -> list[tuple[str, ast.expr]]:
    """The names that a line gives a value to."""
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        return [(ast.unparse(node.target), node.value)]
    return [(ast.unparse(each), node.value) for each in node.targets] if isinstance(node, ast.Assign) else []
