"""YAML documents that know the line of each value, so that errors can name it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from expound.errors import ExpoundError
from expound_people.tables import is_storable

LARGEST, DEEPEST = 10_000, 50
"""The most values of a document, and how deep they may be nested."""
Place = tuple[str | int, ...]
"""The keys and indices that lead to a value."""


class _Loader(yaml.SafeLoader):
    """Reads scalars as YAML 1.2 does: `on` and `no` are strings, and `3e-5` is a number."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a value. Raises MarkedYAMLError for one that is nested too deep."""
        # PyYAML composes recursively: thousands of brackets would overflow the stack.
        if self.depth > DEEPEST:
            raise yaml.MarkedYAMLError(problem=f"nested more than {DEEPEST} deep", problem_mark=self.get_mark())
        self.depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


# PyYAML reads YAML 1.1, where `no` is false and `1e-5` a text: booleans and floats get the rules of YAML 1.2 instead.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in forms if not tag.endswith((":bool", ":float"))]
    for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|false|False)$"), list("tTfF"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:(?:\d+\.\d*|\.\d+)(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+|\.(?:inf|nan))$"),
    list("-+.0123456789"),
)


@dataclass(frozen=True)
class YamlDocument:
    """A YAML document: `value` has plain Python values, `root` the nodes that know their lines."""

    value: Any
    root: yaml.Node
    path: Path

    def line_of(self, place: Place) -> str:
        """Return FILE:LINE of a place, or of the innermost known place around it; unknown keys are skipped."""
        node = begin = self.root
        for part in map(str, place):
            entries: list[tuple[str, yaml.Node, yaml.Node]] = []
            if isinstance(node, yaml.MappingNode):
                entries = [(key.value, key, inner) for key, inner in node.value]
            elif isinstance(node, yaml.SequenceNode):
                entries = [(str(index), inner, inner) for index, inner in enumerate(node.value)]
            # A mapping's own keys come after those that it merges (<<), and replace them.
            for name, first, inner in entries:
                if name == part:
                    node, begin = inner, first
        return f"{self.path}:{begin.start_mark.line + 1}"


def parse_yaml(text: str, path: Path) -> YamlDocument:
    """Parse a document; `path` is the name for errors. Raises ExpoundError for text that is not YAML, with the line."""
    try:
        return _load_document(_Loader(text), path)
    except yaml.YAMLError as error:
        place = str(path)
        if mark := getattr(error, "problem_mark", None):
            place += f":{mark.line + 1}"
        raise ExpoundError(f"{place}: no YAML: {getattr(error, 'problem', None) or error}") from error


def _load_document(loader: _Loader, path: Path) -> YamlDocument:
    node = loader.get_single_node()
    if node is None:
        raise ExpoundError(f"{path} is empty: expected a protocol")
    _check_nodes(node, path)
    try:
        return YamlDocument(loader.construct_document(node), node, path)
    except ValueError as error:
        raise ExpoundError(f"{path}: no YAML: {error}") from error


def _check_nodes(root: yaml.Node, path: Path) -> None:
    """Raise ExpoundError for equal keys, texts that cannot be stored, and too many or too deep values."""
    # Called before merge keys (<<) are resolved: afterwards, a mapping that overrides a merged key has it twice.
    # Aliases are expanded value by value: nine lines of aliases can expand to a billion values.
    count, pending = 0, [(root, 0, 0)]
    while pending:
        node, depth, above = pending.pop()
        # What an alias refers to stands on an earlier line than the alias.
        line = max(above, node.start_mark.line + 1)
        count += 1
        if count > LARGEST or depth > DEEPEST:
            raise ExpoundError(
                f"{path}:{line}: its aliases written out, a protocol has at most {LARGEST:,} values, {DEEPEST} deep, "
                "and none contains itself"
            )
        inner: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            _require_unique_keys(node, path)
            inner = list(chain.from_iterable(node.value))
        elif isinstance(node, yaml.SequenceNode):
            inner = node.value
        elif not is_storable(node.value):
            raise ExpoundError(f"{path}:{line}: a text has a character that cannot be stored")
        pending += [(part, depth + 1, line) for part in reversed(inner)]


def _require_unique_keys(node: yaml.MappingNode, path: Path) -> None:
    # PyYAML keeps the last of equal keys without a word.
    seen = set()
    for key, _ in node.value:
        name = getattr(key, "value", None)
        if not isinstance(name, str):
            raise ExpoundError(f"{path}:{key.start_mark.line + 1}: expected a word or number as a key")
        if name in seen and name != "<<":
            raise ExpoundError(f"{path}:{key.start_mark.line + 1}: the key {name!r} comes twice")
        seen.add(name)
