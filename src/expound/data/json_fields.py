"""The values of a JSON text and the characters that they take in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from expound.errors import ExpoundError

TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
"""A string, a sign, or a number or word, in JSON that was parsed before."""


class JsonField(NamedTuple):
    """A value at a JSON pointer (RFC 6901), as `/items/0/price`: characters [start, end), of a text without quotes."""

    pointer: str
    start: int
    end: int


def find_json_fields(text: str) -> list[JsonField]:
    """Return the numbers, texts and words of the JSON object or list in a text, which may have other text around it.

    Raises:
        ExpoundError: the text holds no JSON object or list with a value.
    """
    begin = min((place for sign in "{[" if (place := text.find(sign)) >= 0), default=len(text))
    end = 1 + max(text.rfind("}"), text.rfind("]"))
    try:
        json.loads(text[begin:end])
    except (ValueError, RecursionError) as error:
        raise ExpoundError(f"expected a JSON object or list in the answer, got {text!r:.80} ({error})") from error
    fields = list(_find_values(text, begin, end))
    if not fields:
        raise ExpoundError(f"the JSON in the answer has no value: {text!r:.80}")
    return fields


def _find_values(text: str, begin: int, end: int) -> Iterator[JsonField]:
    """Yield the values of the valid JSON in these characters."""
    # The key or the number of the value that is read, at each level; the key of an object is None until it is read.
    path: list[str | int | None] = []
    for match in TOKEN.finditer(text, begin, end):
        sign = match[0]
        if sign in "{[":
            path.append(None if sign == "{" else 0)
        elif sign in "}]":
            path.pop()
        elif sign == ",":
            last = path[-1]
            path[-1] = last + 1 if isinstance(last, int) else None
        elif path[-1] is None:
            path[-1] = json.loads(sign)
        elif sign != ":":
            is_text = sign[0] == '"' and len(sign) > 2
            keys = [str(key).replace("~", "~0").replace("/", "~1") for key in path]
            yield JsonField("".join(f"/{key}" for key in keys), match.start() + is_text, match.end() - is_text)
