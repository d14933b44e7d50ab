"""Facts read from the library's own source files, so that lists and help texts import no torch."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

C = TypeVar("C")

PACKAGE = Path(__file__).parents[1]


@cache
def read_source(module: str) -> Source:
    """Return the parsed source file of a module; each file is parsed once."""
    return Source(module)


class Source:
    """The parsed source file of one of the library's modules, whose facts are read without importing it."""

    def __init__(self, module: str) -> None:
        # found by its path, since looking for the module itself would import the packages that it lies in
        path = PACKAGE.joinpath(*module.split(".")[1:])
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        self.module = module
        self.definitions: dict[str, ast.ClassDef | ast.FunctionDef] = {}
        self.constants: dict[str, ast.expr] = {}
        self.imports: dict[str, tuple[str, str]] = {}
        for node in tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                self.definitions[node.name] = node
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.constants[node.targets[0].id] = node.value
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self.imports[alias.asname or alias.name] = (str(node.module), alias.name)

    def card(self, class_name: str, card_class: type[C]) -> C:
        """Return the card of a class, built from the keyword arguments of its `card = ...` line.

        Raises:
            TypeError: the class has no such line, or an argument that is no literal.
        """
        for node in self.definitions[class_name].body:
            if not isinstance(node, ast.AnnAssign) or ast.unparse(node.target) != "card":
                continue
            if isinstance(node.value, ast.Call):
                try:
                    values = {str(word.arg): ast.literal_eval(word.value) for word in node.value.keywords}
                    return card_class(**values)
                except (TypeError, ValueError):
                    break
        raise TypeError(
            f"{self.module}:{class_name} has no card that can be read from its file: "
            f"write `card: ClassVar = {card_class.__name__}(name=..., ...)` with literal values only"
        )

    def constant(self, name: str, default: Any = None) -> Any:
        """Return the value of a constant or type alias of the module, or the default if the name is unknown."""
        if name in self.constants:
            return self._evaluate(self.constants[name])
        if name not in self.imports:
            return default
        module, original = self.imports[name]
        # constants of our own modules are read too, since the module that defines a choice may import torch
        if module.startswith("expound."):
            return read_source(module).constant(original)
        return getattr(import_module(module), original)

    def function(self, name: str) -> Callable[..., Any]:
        """Return a function with the docstring and signature of one of the module, annotations evaluated, but no body.

        Raises KeyError if the module defines no such function.
        """
        node = self.definitions[name]
        assert isinstance(node, ast.FunctionDef)
        body: list[ast.stmt] = [ast.Expr(ast.Constant(ast.get_docstring(node) or ""))]
        stub = ast.fix_missing_locations(ast.Module([ast.FunctionDef(name, node.args, body, [], None)], []))
        namespace = self._names_in(node.args)
        exec(compile(stub, self.module, "exec", dont_inherit=True), namespace)  # noqa: S102  # the library's own file
        function: Callable[..., Any] = namespace[name]
        return function

    def _evaluate(self, node: ast.expr) -> Any:
        code = compile(ast.fix_missing_locations(ast.Expression(node)), self.module, "eval", dont_inherit=True)
        return eval(code, self._names_in(node))  # noqa: S307  # the library's own file

    def _names_in(self, tree: ast.AST) -> dict[str, Any]:
        """Return the values of the module's names that occur in a syntax tree."""
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        return {name: self.constant(name) for name in names & (self.constants.keys() | self.imports.keys())}
