"""The input and settings of an explorer page, as read from its address."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import urlencode

from exegete.errors import ExegeteError, check_choice
from exegete.web.choice import validate_choice
from exegete.web.settings import Limits

LEVELS = ("word", "token")
PREDICTED = "predicted"


@dataclass(frozen=True)
class TextQuestion:
    """A text, pair of texts or picture to explain, and the settings of its explanation.

    Attributes:
        model: Name of a model of the server.
        text: The text, or the first text of a pair.
        pair: The second text, if any.
        picture: Key of a picture, for image models.
        target: A label, or "predicted".
        level: The unit that is scored and removed, see `LEVELS`.
        method: Names of methods of the server.
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
        """The question as the query of an address."""
        pairs: list[tuple[str, str]] = []
        for field in fields(self):
            value = getattr(self, field.name)
            values = value if isinstance(value, tuple) else (value,)
            pairs += [(field.name, item) for item in values if item]
        return urlencode(pairs)

    def build_query(self, **changes: Any) -> str:
        """Return the query of this question with some fields changed."""
        return replace(self, **changes).query


def parse_text_question(
    query: Mapping[str, Sequence[str]],
    models: Sequence[str],
    methods: Sequence[str],
    default_methods: Callable[[str], Sequence[str]],
    limits: Limits,
) -> TextQuestion:
    """Return the question in an address or form, given the names of the server's models and methods.

    The first model is the default; `default_methods` returns the default methods of a model.

    Raises:
        ExegeteError: a text is too long, a name is unknown, or there are too many methods.
    """
    first = {name: values[0] for name, values in query.items() if values}
    for name in ("text", "pair"):
        length = len(first.get(name, ""))
        if length > limits.text_length:
            raise ExegeteError(f"a text may have {limits.text_length:,} characters, this one has {length:,}")
    model = validate_choice("model", first.get("model", ""), models)
    chosen = tuple(dict.fromkeys(query.get("method", ()))) or tuple(default_methods(model))
    # A request only selects among the server's methods: a spec made from its words could name any file.
    for name in chosen:
        check_choice("method", name, methods)
    if len(chosen) > limits.methods:
        raise ExegeteError(f"expected at most {limits.methods} methods, got {len(chosen)}")
    return TextQuestion(
        model=model,
        text=_normalize_newlines(first.get("text", "")),
        pair=_normalize_newlines(first.get("pair", "")),
        picture=first.get("picture", "")[:64],
        target=first.get("target", "")[:200] or PREDICTED,
        level=validate_choice("level", first.get("level", ""), LEVELS),
        method=chosen,
    )


def _normalize_newlines(text: str) -> str:
    # Browsers send line ends of a textarea as CRLF; offsets and cached results would differ from the same text by link.
    return text.replace("\r\n", "\n")
