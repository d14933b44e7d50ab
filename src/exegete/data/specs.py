"""Names with parameters in one string, as `aopc_comprehensiveness?budgets=0.1,0.2&how=mask`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from functools import cache
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl

from exegete.errors import ExegeteError, unknown

BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def parse_spec(spec: str) -> tuple[str, dict[str, str]]:
    """The name and its parameters as text, from `name?a=1&b=2`; one without a value is `true`."""
    name, _, query = spec.partition("?")
    query = "&".join(part if "=" in part or not part else f"{part}=true" for part in query.split("&"))
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise ExegeteError(f"{spec!r}: expected parameters as name?a=1&b=2, got {query!r}") from None
    return name, dict(pairs)


def split_ids(names: str) -> list[str]:
    """Specs between commas; a comma inside parameters (after ?) belongs to them as long as no id follows.

    Raises:
        ExegeteError: there is no id.
    """
    found: list[str] = []
    for part in (piece.strip() for piece in names.split(",")):
        if found and "?" in found[-1] and not part[:1].isalpha():
            found[-1] += f",{part}"
        elif part:
            found.append(part)
    if not found:
        raise ExegeteError(f"expected ids between commas, got {names!r}")
    return found


def parse_params(name: str, cls: type, given: dict[str, Any], fixed: Collection[str] = ()) -> dict[str, Any]:
    """Checked names, and values that came as text in the type of the dataclass's field; lists are split at commas.

    `name` is what errors call the class. `fixed`: fields that no spec sets.

    Raises:
        ExegeteError: a parameter that the class does not have, or a value that is none of its field's type.
    """
    hints = _get_hints(cls)
    valid = [field.name for field in fields(cls) if field.init and field.name not in fixed]
    wrong = next((key for key in given if key not in valid), None)
    if wrong is not None and not valid:
        raise ExegeteError(f"{name} takes no parameter, got {wrong!r}")
    if wrong is not None:
        raise unknown(f"parameter of {name}", wrong, valid)
    return {key: _parse_value(f"{name}: {key}", value, hints[key]) for key, value in given.items()}


@cache
def _get_hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _parse_value(what: str, value: Any, hint: Any) -> Any:
    if not isinstance(value, str):
        return tuple(value) if isinstance(value, list) else value
    if get_origin(hint) is tuple:
        return tuple(_parse_value(what, part, get_args(hint)[0]) for part in value.split(","))
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise unknown(what, value, get_args(hint))
        return value
    return _convert(what, value, hint)


def _convert(what: str, value: str, hint: Any) -> Any:
    kinds = get_args(hint) or (hint,)
    if NoneType in kinds and value.lower() == "none":
        return None
    choices = [choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    if value in choices:
        return value
    if bool in kinds:
        if value.lower() not in BOOLEANS:
            raise ExegeteError(f"{what}: expected true or false, got {value!r}")
        return BOOLEANS[value.lower()]
    kind = next((kind for kind in kinds if kind is not NoneType and get_origin(kind) is not Literal), None)
    if kind is None:
        raise unknown(what, value, choices)
    try:
        return kind(value)
    except ValueError:
        raise ExegeteError(f"{what}: expected {kind.__name__}, got {value!r}") from None
