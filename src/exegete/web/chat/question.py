"""The documents, question and settings of a chat page, as read from its address."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import zip_longest
from typing import Any, get_args
from urllib.parse import urlencode

from exegete.data.granularity import Granularity
from exegete.errors import ExegeteError
from exegete.web.choice import validate_choice
from exegete.web.settings import Limits

ROWS = ("sentences", "words", "tokens")
UNITS = get_args(Granularity)
DEFAULT_TOKENS, MAX_TOKENS = 64, 512
"""The default and the largest limit on the tokens of an answer."""


@dataclass(frozen=True)
class ChatQuestion:
    """A question about named documents, and the settings of its explanation.

    Attributes:
        model: Name of a model of the server.
        method: Name of a method of the server.
        question: The user's message.
        sources: Name and text of each document.
        system: Instructions, for models with a chat template.
        response: The answer to explain; empty: the model generates it.
        unit: The unit of the prompt that is scored and removed; empty: see `ChatService.resolve_method`.
        rows: The parts of the answer that are explained, see `ROWS`.
        tokens: Largest number of generated tokens.
    """

    model: str
    method: str
    question: str = ""
    sources: tuple[tuple[str, str], ...] = ()
    system: str = ""
    response: str = ""
    unit: str = ""
    rows: str = ROWS[0]
    tokens: int = DEFAULT_TOKENS

    @property
    def query(self) -> str:
        """The question as the query of an address."""
        settings = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "sources"}
        pairs = [(name, value) for name, value in settings.items() if value]
        # Empty names and texts are kept: documents are read as the n-th name with the n-th text.
        for name, text in self.sources:
            pairs += [("name", name), ("text", text)]
        return urlencode(pairs)

    def build_query(self, **changes: Any) -> str:
        """Return the query of this question with some fields changed."""
        return replace(self, **changes).query


def parse_chat_question(
    query: Mapping[str, Sequence[str]],
    models: Sequence[str],
    methods: Sequence[str],
    default_method: Callable[[str], str],
    limits: Limits,
) -> ChatQuestion:
    """Return the question in an address or form, given the names of the server's models and methods.

    The first model is the default; `default_method` returns the default method of a model.

    Raises:
        ExegeteError: the texts are too long, a name is unknown, or the number of tokens is invalid.
    """
    # Browsers send line ends of a textarea as CRLF; the spans of units would then differ from those of a link.
    first = {name: values[0].replace("\r\n", "\n") for name, values in query.items() if values}
    pairs = zip_longest(query.get("name", ()), query.get("text", ()), fillvalue="")
    sources = [(name.strip(), text.replace("\r\n", "\n")) for name, text in pairs if name.strip() or text.strip()]
    texts = [first.get(name, "") for name in ("question", "system", "response")]
    # One bound on the sum: the model reads all texts at once.
    size = sum(map(len, texts)) + sum(len(name) + len(text) for name, text in sources)
    if size > limits.text_length:
        raise ExegeteError(f"all texts together may have {limits.text_length:,} characters, these have {size:,}")
    tokens = first.get("tokens", str(DEFAULT_TOKENS))
    if not (tokens.isdecimal() and len(tokens) < 5 and 1 <= int(tokens) <= MAX_TOKENS):
        raise ExegeteError(f"an answer may have 1 to {MAX_TOKENS} tokens, not {tokens[:20]!r}")
    model = validate_choice("model", first.get("model", ""), models)
    return ChatQuestion(
        model=model,
        method=validate_choice("method", first.get("method", "") or default_method(model), methods),
        question=texts[0],
        sources=tuple(sources),
        system=texts[1],
        response=texts[2],
        unit=validate_choice("unit", first.get("unit", ""), ("", *UNITS)),
        rows=validate_choice("rows of a response", first.get("rows", ""), ROWS),
        tokens=int(tokens),
    )
