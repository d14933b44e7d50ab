"""A registry maps the ids of one kind of part to classes or functions, and imports each part when it is looked up."""

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
    """The parts of one kind by id: native ones, and those that installed packages add.

    A part is imported when its id is looked up, not when ids are listed. An unknown id raises ExegeteError with the
    valid ids and the closest one.

    Args:
        noun: what errors call a part, such as "method".
        group: entry point group in which installed packages name their parts. They cannot replace a native part.
        native: the library's own parts, id → `module:name`, with modules relative to `package`.
        package: default: the name of the group.
    """

    def __init__(self, noun: str, group: str, native: Mapping[str, str], package: str = "") -> None:
        self.noun, self.group, package = noun, group, package or group
        self.native = {name: EntryPoint(name, f"{package}.{address}", group) for name, address in native.items()}

    def __getitem__(self, name: str) -> T:
        point = self.native.get(name) or self._plugins.get(name)
        if point is None:
            raise unknown(self.noun, name, self)
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

    def __iter__(self) -> Iterator[str]:
        return iter({**self.native, **self._plugins})

    def __len__(self) -> int:
        return len({**self.native, **self._plugins})

    def __contains__(self, name: object) -> bool:
        return name in self.native or name in self._plugins

    def get(self, name: str, default: Any = None) -> Any:
        """Return the part of this id, or the default if the id is unknown."""
        if name not in self:
            return default
        return self[name]

    def make(self, spec: str, **params: Any) -> Any:
        """Create the part of a spec, `id` or `id?name=value&...`; `params` override the spec's parameters.

        Raises:
            ExegeteError: an unknown id or parameter, or a value that does not have its field's type.
        """
        name, spec_params = parse_spec(spec)
        part: Any = self[name]
        return part(**parse_params(name, part, spec_params | params))

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
        """Return the card of every part by id; native parts are not imported for it.

        Installed parts that cannot be loaded are left out, with a warning.
        """
        cards = {name: self.card(name, kind) for name in self.native}
        for name in self._plugins:
            try:
                cards[name] = self._load_card(name, kind)
            except ExegeteError as error:
                logging.getLogger(__name__).warning("%s", error)
        return cards

    def find_broken(self, kind: type = object) -> dict[str, str]:
        """Return by id why installed parts cannot be used: they cannot be loaded, or have no card of this kind."""
        reasons = {}
        for name in self._plugins:
            try:
                self._load_card(name, kind)
            except ExegeteError as error:
                reasons[name] = shorten(error)
        return reasons

    def _load_card(self, name: str, kind: type[C]) -> C:
        card = getattr(self[name], "card", None)
        if not isinstance(card, kind):
            raise ExegeteError(f"{self._describe(self._plugins[name])}: it has no `card: {kind.__name__}`")
        return card

    def _describe(self, point: EntryPoint) -> str:
        return f"the {self.noun} {point.name!r} of an installed package ({point.value})"

    @property
    def _plugins(self) -> dict[str, EntryPoint]:
        return {name: point for name, point in find_installed(self.group).items() if name not in self.native}


# reading the metadata of all installed packages takes a tenth of a second, so each group is searched once per process
@cache
def find_installed(group: str) -> dict[str, EntryPoint]:
    """Return the parts that installed packages add to an entry point group, by id."""
    return {point.name: point for point in entry_points(group=group)}
