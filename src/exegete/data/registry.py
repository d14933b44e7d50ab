"""The registry of one kind of parts: an id a line, what installed packages add, cards that need no import."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from exegete.data.source import read_source
from exegete.data.specs import parse_params, parse_spec
from exegete.errors import ExegeteError, shorten, unknown

T = TypeVar("T")
C = TypeVar("C")


class Registry(Mapping[str, T]):
    """Parts of one kind by id; a part is imported when it is looked up, never for its id.

    `what` is what errors call a part. `group` is the entry point group in which installed packages name parts of
    their own; they replace no native one. `native` says where in `package` (by default named as the group) ours are:
    id → `module:name`.

    Looking up raises ExegeteError for an unknown id, with the valid ones and the closest.
    """

    def __init__(self, what: str, group: str, native: Mapping[str, str], package: str = "") -> None:
        self.what, self.group, package = what, group, package or group
        self.native = {name: EntryPoint(name, f"{package}.{where}", group) for name, where in native.items()}

    def __getitem__(self, name: str) -> T:
        point = self.native.get(name) or self._plugins.get(name)
        if point is None:
            raise unknown(self.what, name, self)
        try:
            part: T = point.load()
        except Exception as error:
            if name in self.native:
                raise
            raise ExegeteError(f"{self._describe(point)}: {error}") from error
        card = getattr(part, "card", None)
        if name not in self.native and card is not None and card.name != name:
            raise ExegeteError(
                f"{self._describe(point)}: the package calls it {name}, its card {card.name}: make them one"
            )
        return part

    def find_broken(self, kind: type = object) -> dict[str, str]:
        """By id, the parts of installed packages without a card of this kind or not loadable; a line says why."""
        found = {}
        for name in self._plugins:
            try:
                self._load_card(name, kind)
            except ExegeteError as error:
                found[name] = shorten(error)
        return found

    def _load_card(self, name: str, kind: type[C]) -> C:
        card = getattr(self[name], "card", None)
        if not isinstance(card, kind):
            raise ExegeteError(f"{self._describe(self._plugins[name])}: it has no `card: {kind.__name__}`")
        return card

    def _describe(self, point: EntryPoint) -> str:
        return f"the {self.what} {point.name!r} of an installed package ({point.value})"

    def __iter__(self) -> Iterator[str]:
        return iter({**self.native, **self._plugins})

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in self.native or name in self._plugins

    def get(self, name: str, default: Any = None) -> Any:
        """The part, or the default where there is none of the name."""
        if name not in self:
            return default
        return self[name]

    def make(self, spec: str, **params: Any) -> Any:
        """The part of a spec, `id` or `id?name=value&...`, called with the parameters; `params` come on top.

        Raises:
            ExegeteError: an unknown id or parameter, or a value that is none of its field's type.
        """
        name, given = parse_spec(spec)
        part: Any = self[name]
        return part(**parse_params(name, part, given | params))

    def card(self, name: str, kind: type[C]) -> C:
        """Return the card of a part. That of a native part is read from its source file, without importing the part.

        Raises:
            ExegeteError: an unknown id, or an installed part that cannot be loaded or has no such card.
            TypeError: the card of a native part is not written as literals.
        """
        point = self.native.get(name)
        if point is None:
            return self._load_card(name, kind)
        return read_source(point.module).card(point.attr, kind)

    def cards(self, kind: type[C]) -> dict[str, C]:
        """Every part's card by id. Native ones are read from their files, so that a list imports nothing heavy.

        A package whose part cannot be loaded is left out, with a warning.
        """
        found = {name: self.card(name, kind) for name in self.native}
        for name in self._plugins:
            try:
                found[name] = self._load_card(name, kind)
            except ExegeteError as error:
                logging.getLogger(__name__).warning("%s", error)
        return found

    @property
    def _plugins(self) -> dict[str, EntryPoint]:
        return {name: point for name, point in find_installed(self.group).items() if name not in self.native}


@cache
def find_installed(group: str) -> dict[str, EntryPoint]:
    """The parts that packages add to a group, by id; looked for once a process."""
    return {point.name: point for point in entry_points(group=group)}
