"""The library's modules, a name at a time: checks and estimates ask classes and functions without heavy imports.

An outline of a module evaluates a name from the module's file when it is first asked for, and an import of the module
when something uses it. What needs torch still imports it; what does not, as fields, defaults and checks of values,
never does.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from importlib import import_module
from importlib.resources import files
from types import new_class
from typing import Any

LIGHT = ("exegete.data", "exegete.errors", "exegete.lazy")
"""Rooms of the library whose modules are imported as they are."""
CHEAP = {*sys.stdlib_module_names, "numpy", "exegete"}
"""Packages whose classes outlines inherit from and annotations name; those of others are left out."""
_wanted = [False]


def wanted() -> bool:
    """Whether registries shall give outlines, see `outlined`."""
    return _wanted[-1]


@contextmanager
def outlined() -> Iterator[None]:
    """Registries give outlines of native parts: for looking at parameters, not for work on models."""
    _wanted.append(True)
    try:
        yield
    finally:
        _wanted.pop()


def signature(called: Callable[..., Any]) -> inspect.Signature:
    """A function's signature with its annotations evaluated; that of an outline, too."""
    found = inspect.signature(called, eval_str=True)
    hints = vars(called).get("hints", dict)()
    every = [each.replace(annotation=hints.get(name, each.annotation)) for name, each in found.parameters.items()]
    return found.replace(parameters=every)


@cache
def outline(module: str) -> Outline:
    """The outline of a native module, made once."""
    return Outline(module)


class Outline(dict[str, Any]):
    """A module's names."""

    def __init__(self, module: str) -> None:
        super().__init__()
        path = files("exegete").joinpath(*module.split(".")[1:])
        file = path.joinpath("__init__.py") if path.is_dir() else files("exegete").joinpath(f"{path}.py")
        self.nodes: dict[str, ast.expr | ast.ClassDef | ast.FunctionDef] = {}
        self.imports: dict[str, tuple[str, str]] = {}
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                self.imports |= {each.asname or each.name: (str(node.module), each.name) for each in node.names}
            if isinstance(node, ast.Import):
                self.imports |= {each.asname or each.name: (each.name, "") for each in node.names}
        for node in tree.body:
            self.nodes |= dict(_assigned(node))
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                self.nodes[node.name] = node

    def __missing__(self, name: str) -> Any:
        if name in self.imports:
            self[name] = self._imported(*self.imports[name])
        else:
            node = self.nodes[name]
            if isinstance(node, ast.ClassDef):
                self[name] = self._class(node)
            elif isinstance(node, ast.FunctionDef):
                self[name] = self._function(node)
            else:
                self[name] = self._value(node)
        return self[name]

    def _imported(self, module: str, name: str) -> Any:
        if module.partition(".")[0] != "exegete" or module.startswith(LIGHT) or module.endswith(".registry"):
            return getattr(import_module(module), name) if name else import_module(module)
        return outline(module)[name]

    def _value(self, node: ast.expr, *, hint: bool = False) -> Any:
        """An expression's value; in a hint, what is not cheap is Any."""
        names = {name: Any if hint and not self._is_cheap(name) else self[name] for name in self._own(node)}
        return eval(compile(ast.Expression(node), "<outline>", "eval"), names)  # noqa: S307  # a file of ours

    def _class(self, node: ast.ClassDef) -> type:
        """The class with those of its bases that are cheap; without one, it is made of anything and does nothing."""
        bases = [base for base in node.bases if self._cheap(base)]
        body: dict[str, Any] = {"__module__": __name__, "__annotations__": {}}
        for each in node.body:
            if isinstance(each, ast.AnnAssign):
                body["__annotations__"][ast.unparse(each.target)] = self._value(each.annotation, hint=True)
            if isinstance(each, ast.FunctionDef) and (each.name != "__init__" or len(bases) == len(node.bases)):
                body[each.name] = self._function(each)
            body |= {name: self._value(value) for name, value in _assigned(each)}
        if len(bases) < len(node.bases):
            body["__init__"] = lambda *_, **__: None
        made: Any = new_class(node.name, tuple(map(self._value, bases)), {}, lambda space: _fill(space, body))
        for decorator in node.decorator_list:
            made = self._value(decorator)(made)
        for each in body.values():
            getattr(getattr(each, "fget", each), "names", {})["__class__"] = made
        return made  # type: ignore[no-any-return]

    def _function(self, node: ast.FunctionDef) -> Any:
        """The function; the names in it are looked up when it is first called."""
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        hints = {each.arg: each.annotation for each in arguments if each.annotation is not None}
        for each in (*arguments, *filter(None, (node.args.vararg, node.args.kwarg))):
            each.annotation = None
        lines = [_Body(arguments).visit(line) for line in node.body]
        plain, used = ast.FunctionDef(node.name, node.args, lines, [], None), self._own(*lines)
        defaults = [each for each in (*node.args.defaults, *node.args.kw_defaults) if each is not None]
        names = {name: self[name] for name in self._own(*defaults)}
        exec(compile(ast.fix_missing_locations(ast.Module([plain], [])), "<outline>", "exec"), names)  # noqa: S102
        made: Callable[..., Any] = names[node.name]

        @wraps(made)
        def called(*args: Any, **kwargs: Any) -> Any:
            names.update({name: self[name] for name in used - names.keys()})
            return made(*args, **kwargs)

        vars(called).update(
            names=names, hints=lambda: {name: self._value(hint, hint=True) for name, hint in hints.items()}
        )
        whole: Any = called
        for decorator in reversed(node.decorator_list):
            if ast.unparse(decorator) != "abstractmethod" and self._cheap(decorator):
                whole = self._value(decorator)(whole)
        return whole

    def _own(self, *nodes: ast.AST) -> set[str]:
        """The module's names among those in a tree."""
        used = {each.id for node in nodes for each in ast.walk(node) if isinstance(each, ast.Name)}
        return used & (self.imports.keys() | self.nodes.keys())

    def _is_cheap(self, name: str) -> bool:
        return self.imports.get(name, ("exegete", ""))[0].partition(".")[0] in CHEAP

    def _cheap(self, node: ast.expr) -> bool:
        return all(map(self._is_cheap, self._own(node)))


class _Body(ast.NodeTransformer):
    """A function's lines without annotations; `super()` works outside the class, whose name is `__class__` there."""

    def __init__(self, arguments: list[ast.arg]) -> None:
        self.own = arguments[0].arg if arguments else ""

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.returns = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:  # ast's own name
        self.generic_visit(node)
        node.annotation = ast.copy_location(ast.Constant(None), node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if ast.unparse(node) != "super()":
            return node
        return ast.parse(f"super(globals()['__class__'], {self.own})", mode="eval").body


def _fill(space: dict[str, Any], body: dict[str, Any]) -> None:
    for name, value in body.items():
        space[name] = value


def _assigned(node: ast.AST) -> list[tuple[str, ast.expr]]:
    """The names that a line gives a value to."""
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        return [(ast.unparse(node.target), node.value)]
    if not isinstance(node, ast.Assign):
        return []
    if isinstance(node.targets[0], ast.Tuple):
        parts = [ast.Subscript(node.value, ast.Constant(at), ast.Load()) for at in range(len(node.targets[0].elts))]
        pairs = zip(map(ast.unparse, node.targets[0].elts), parts, strict=True)
        return [(name, ast.fix_missing_locations(ast.copy_location(part, node))) for name, part in pairs]
    return [(ast.unparse(each), node.value) for each in node.targets]
