"""Specs: a part's id and its parameters in one string, as `aopc_comprehensiveness?budgets=0.1,0.2&how=mask`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import fields, is_dataclass
from functools import cache
from inspect import signature
from itertools import chain
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl

from exegete.errors import ExegeteError, check_choice, unknown

BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_get_hints = cache(get_type_hints)


def parse_spec(spec: str) -> tuple[str, dict[str, str]]:
    """Return the name and the parameters, as text, of `name?a=1&b=2`; a parameter without a value is `true`."""
    name, _, query = spec.partition("?")
    parts = []
    for part in query.split("&"):
        is_flag = part and "=" not in part
        parts.append(f"{part}=true" if is_flag else part)
    query = "&".join(parts)
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise ExegeteError(f"{spec!r}: expected parameters as name?a=1&b=2, got {query!r}") from None
    return name, dict(pairs)


def split_ids(names: str) -> list[str]:
    """Split a comma-separated list into its specs.

    A comma after a question mark is part of a parameter's value unless a letter follows it.

    Raises:
        ExegeteError: the list is empty.
    """
    specs: list[str] = []
    for piece in names.split(","):
        part = piece.strip()
        # `a?budgets=0.1,0.2,b` is two specs: values of lists are numbers, ids begin with a letter
        if specs and "?" in specs[-1] and not part[:1].isalpha():
            specs[-1] += f",{part}"
        elif part:
            specs.append(part)
    if not specs:
        raise ExegeteError(f"expected ids between commas, got {names!r}")
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
        ExegeteError: the part has no such parameter, or a value does not have its type.
    """
    hints = _get_hints(part)
    valid = [name for name in signature(part).parameters if name not in fixed]
    for key in given:
        if key not in valid and not valid:
            raise ExegeteError(f"{name} takes no parameter, got {key!r}")
        check_choice(f"parameter of {name}", key, valid)
    return {key: _parse_value(f"{name}: {key}", value, hints[key]) for key, value in given.items()}


def read_fields(part: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by name, with values as they are; empty for another object."""
    if not is_dataclass(part):
        return {}
    return {field.name: getattr(part, field.name) for field in fields(part)}


def _parse_value(what: str, value: Any, hint: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    if not isinstance(value, str):
        return value
    if get_origin(hint) is tuple:
        return tuple(_parse_value(what, part, get_args(hint)[0]) for part in value.split(","))
    if get_origin(hint) is Literal:
        check_choice(what, value, get_args(hint))
        return value
    return _convert(what, value, hint)


def _convert(what: str, value: str, hint: Any) -> Any:
    """Convert text to a type or to one of a union: None, a choice of its Literal, a bool, or its remaining type."""
    types = get_args(hint) or (hint,)
    if NoneType in types and value.lower() == "none":
        return None
    literals = [option for option in types if get_origin(option) is Literal]
    choices = list(chain.from_iterable(map(get_args, literals)))
    if value in choices:
        return value
    # before the other types, since bool("false") is True
    if bool in types:
        if value.lower() not in BOOLEANS:
            raise ExegeteError(f"{what}: expected true or false, got {value!r}")
        return BOOLEANS[value.lower()]
    remaining = [option for option in types if option is not NoneType and option not in literals]
    if not remaining or (get_origin(remaining[0]) is tuple and not value[:1].isdigit()):
        raise unknown(what, value, choices)
    if get_origin(remaining[0]) is tuple:
        return _parse_value(what, value, remaining[0])
    try:
        return remaining[0](value)
    except ValueError:
        raise ExegeteError(f"{what}: expected {remaining[0].__name__}, got {value!r}") from None
