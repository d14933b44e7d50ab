"""Registries of parts by id, and specs: an id with parameters, as `log_odds?fraction=0.1&perturbation=mask`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from inspect import signature
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import unquote

from expound.errors import ExpoundError, shorten, unknown

T = TypeVar("T")
C = TypeVar("C")
BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_get_hints, _get_signature = cache(get_type_hints), cache(signature)


def parse_spec(spec: str) -> tuple[str, dict[str, str]]:
    """Return the name and the parameters, as text, of `name?a=1&b=2`; a parameter without a value is `true`.

    In a value, `%26` stands for an ampersand, and `%25` for a percent sign that two hexadecimal digits follow.
    """
    name, _, query = spec.partition("?")
    parameters = dict[str, str]()
    for part in query.split("&") if query else ():
        key, equals, value = part.partition("=")
        if not key:
            raise ExpoundError(f"{spec!r}: expected parameters as name?a=1&b=2, got {query!r}")
        parameters[key] = unquote(value) if equals else "true"
    return name, parameters


def split_ids(names: str) -> list[str]:
    """Split a comma-separated list into its specs.

    A comma after a question mark is part of a parameter's value unless a letter follows it.

    Raises:
        ExpoundError: the list is empty.
    """
    specs: list[str] = []
    for piece in names.split(","):
        part = piece.strip()
        # `a?fractions=0.1,0.2,b` is two specs: values of lists are numbers, ids begin with a letter
        if specs and "?" in specs[-1] and not part[:1].isalpha():
            specs[-1] += f",{part}"
        elif part:
            specs.append(part)
    if not specs:
        raise ExpoundError(f"expected ids between commas, got {names!r}")
    return specs


def parse_params(
    name: str, part: Callable[..., Any], given: dict[str, Any], fixed: Collection[str] = ()
) -> dict[str, Any]:
    """Check the names of parameters, and convert text values to the types that the part's annotations name.

    Text for a tuple is split at commas. Values that are no text are kept.

    Args:
        name: what errors call the part.
        part: a dataclass, or a function with annotated parameters.
        given: the parameters by name.
        fixed: parameters that a spec cannot set.

    Raises:
        ExpoundError: the part has no such parameter, or a value does not have its type.
    """
    hints = _get_hints(part)
    valid = [name for name in _get_signature(part).parameters if name not in fixed]
    for key in given:
        if key not in valid and not valid:
            raise ExpoundError(f"{name} takes no parameter, got {key!r}")
        if key not in valid:
            raise unknown(f"parameter of {name}", key, valid)
    return {key: _parse_value(f"{name}: {key}", value, hints[key]) for key, value in given.items()}


def read_fields(part: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by name, with values as they are; empty for another object."""
    if not is_dataclass(part):
        return {}
    return {field.name: getattr(part, field.name) for field in fields(part)}


def check_choices(part: Any) -> None:
    """Raise ExpoundError for an option that is not among the choices of its annotation.

    Options are the fields of a dataclass, or the arguments of another class, which are attributes of the same name.
    """
    annotated: Any = type(part) if is_dataclass(part) else type(part).__init__
    for name, choices in _read_choices(annotated).items():
        value = getattr(part, name, None)
        if isinstance(value, str) and value not in choices:
            raise unknown(name, value, choices)


# Every call makes its method anew, so the annotations of a class are read once.
@cache
def _read_choices(annotated: Any) -> dict[str, list[Any]]:
    """Return the choices of each option that has a Literal in its annotation."""
    choices = {name: _list_choices(hint) for name, hint in _get_hints(annotated).items()}
    return {name: names for name, names in choices.items() if names}


def _list_choices(hint: Any) -> list[Any]:
    """Return the values of a Literal, or of the Literals in a union."""
    options = (hint,) if get_origin(hint) is Literal else get_args(hint)
    return [choice for option in options if get_origin(option) is Literal for choice in get_args(option)]


def _parse_value(what: str, value: Any, hint: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    if not isinstance(value, str):
        return value
    if get_origin(hint) is tuple:
        return tuple(_parse_value(what, part, get_args(hint)[0]) for part in value.split(","))
    return _convert(what, value, hint)


def _convert(what: str, value: str, hint: Any) -> Any:
    """Convert text to a type or to one of a union: None, a choice of its Literal, a bool, or its remaining type."""
    choices = _list_choices(hint)
    types = (hint,) if get_origin(hint) is Literal else get_args(hint) or (hint,)
    if NoneType in types and value.lower() == "none":
        return None
    if value in choices:
        return value
    # before the other types, since bool("false") is True
    if bool in types:
        if value.lower() not in BOOLEANS:
            raise ExpoundError(f"{what}: expected true or false, got {value!r}")
        return BOOLEANS[value.lower()]
    remaining = [option for option in types if option is not NoneType and get_origin(option) is not Literal]
    if not remaining or (get_origin(remaining[0]) is tuple and not value[:1].isdigit()):
        raise unknown(f"value of {what}", value, choices)
    if get_origin(remaining[0]) is tuple:
        return _parse_value(what, value, remaining[0])
    try:
        return remaining[0](value)
    except ValueError:
        raise ExpoundError(f"{what}: expected {remaining[0].__name__}, got {value!r}") from None


class Registry(Mapping[str, T]):
    """The parts of one kind by id: native parts, and parts that installed packages add.

    A part is imported when its id is looked up, not when ids are listed. An unknown id raises ExpoundError with the
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
            raise ExpoundError(f"{self._describe(point)}: {error}") from error
        card = getattr(part, "card", None)
        if name not in self.native and card is not None and card.name != name:
            raise ExpoundError(
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

    def read(self, spec: str) -> tuple[T, str, dict[str, Any]]:
        """Return the part, the path (empty if there is none) and the parameters, as text, of `id:path?name=value`."""
        address, params = parse_spec(spec)
        name, _, path = address.partition(":")
        return self[name], path, dict(params)

    def make(self, spec: str, **params: Any) -> Any:
        """Create the part of a spec, `id` or `id?name=value&...`; `params` override the spec's parameters.

        Raises:
            ExpoundError: an unknown id or parameter, or a value that does not have its field's type.
        """
        name, spec_params = parse_spec(spec)
        part: Any = self[name]
        return part(**parse_params(name, part, spec_params | params))

    def card(self, name: str, kind: type[C]) -> C:
        """Return the card of a part, which is imported for it.

        Raises:
            ExpoundError: an unknown id, or an installed part that cannot be loaded or has no such card.
        """
        card = getattr(self[name], "card", None)
        if not isinstance(card, kind):
            raise ExpoundError(f"{self._describe(self._plugins[name])}: it has no `card: {kind.__name__}`")
        return card

    def cards(self, kind: type[C]) -> dict[str, C]:
        """Return the card of every part by id. Installed parts that cannot be loaded are left out, with a warning."""
        cards = {name: self.card(name, kind) for name in self.native}
        for name in self._plugins:
            try:
                cards[name] = self.card(name, kind)
            except ExpoundError as error:
                logging.getLogger(__name__).warning("%s", error)
        return cards

    def find_broken(self, kind: type = object) -> dict[str, str]:
        """Return by id why installed parts cannot be used: they cannot be loaded, or have no card of this kind."""
        reasons = {}
        for name in self._plugins:
            try:
                self.card(name, kind)
            except ExpoundError as error:
                reasons[name] = shorten(error)
        return reasons

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
