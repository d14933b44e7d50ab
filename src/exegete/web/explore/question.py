"""The input and settings of an explorer page, as they stand in its address."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import urlencode

from exegete.errors import ExegeteError, unknown
from exegete.web.choice import validate_choice
from exegete.web.settings import Limits

LEVELS = ("word", "token")
PREDICTED = "predicted"


@dataclass(frozen=True)
class TextQuestion:
    """A text, a pair or a picture (its key), and how it shall be explained.

    `model` and `method` are names that the server gave, `target` a label or `predicted`.
    """

    model: str
    text: str = ""
    pair: str = ""
    picture: str = ""
    target: str = PREDICTED
    level: str = "word"
    method: tuple[str, ...] = ()

    @property
    def query(self) -> str:
        """The question as it stands in an address."""
        values = [(field.name, getattr(self, field.name)) for field in fields(self)]
        pairs = [(name, each) for name, value in values for each in (value if isinstance(value, tuple) else (value,))]
        return urlencode([(name, each) for name, each in pairs if each])

    def build_query(self, **changes: Any) -> str:
        """The query of this question with changes."""
        return replace(self, **changes).query


def parse_text_question(
    query: Mapping[str, Sequence[str]],
    models: Sequence[str],
    methods: Sequence[str],
    usual: Callable[[str], Sequence[str]],
    limits: Limits,
) -> TextQuestion:
    """The question of an address or form; `usual`: the methods of a model where none is named.

    Raises:
        ExegeteError: a text beyond the limits, names that the server does not have, or too many methods.
    """
    first = {name: values[0] for name, values in query.items() if values}
    for name in ("text", "pair"):
        if len(first.get(name, "")) > limits.text_length:
            raise ExegeteError(f"a text may have {limits.text_length:,} characters, this one has {len(first[name]):,}")
    model = validate_choice("model", first.get("model", ""), models)
    chosen = tuple(dict.fromkeys(query.get("method", ()))) or tuple(usual(model))
    for name in chosen:
        if name not in methods:
            raise unknown("method", name, methods)
    if len(chosen) > limits.methods:
        raise ExegeteError(f"at most {limits.methods} methods at once, got {len(chosen)}")
    return TextQuestion(
        model=model,
        text=_lines(first.get("text", "")),
        pair=_lines(first.get("pair", "")),
        picture=first.get("picture", "")[:64],
        target=first.get("target", "")[:200] or PREDICTED,
        level=validate_choice("level", first.get("level", ""), LEVELS),
        method=chosen,
    )


def _lines(text: str) -> str:
    """Forms send line ends as two characters."""
    return text.replace("\r\n", "\n")
