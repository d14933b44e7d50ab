"""Documents, a question and the settings of a chat's page, as they stand in its address."""

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
TOKENS, MOST_TOKENS = 64, 512
"""Tokens of an answer where nothing says how many, and at most."""


@dataclass(frozen=True)
class ChatQuestion:
    """A question on named documents, the answer to explain (none: the model's own), and how.

    `model` and `method` are names that the server gave; `unit` "" is the usual one; `rows` are the
    parts of the answer that are explained; `tokens`: of an answer at most.
    """

    model: str
    method: str
    question: str = ""
    sources: tuple[tuple[str, str], ...] = ()
    system: str = ""
    response: str = ""
    unit: str = ""
    rows: str = ROWS[0]
    tokens: int = TOKENS

    @property
    def query(self) -> str:
        """The question as it stands in an address."""
        plain = [(each.name, getattr(self, each.name)) for each in fields(self) if each.name != "sources"]
        documents = [pair for name, text in self.sources for pair in (("name", name), ("text", text))]
        return urlencode([(name, value) for name, value in plain if value] + documents)

    def build_query(self, **changes: Any) -> str:
        """The query of this question with changes."""
        return replace(self, **changes).query


def parse_chat_question(
    query: Mapping[str, Sequence[str]],
    models: Sequence[str],
    methods: Sequence[str],
    usual: Callable[[str], str],
    limits: Limits,
) -> ChatQuestion:
    """The question of an address or form; `usual`: the method of a model where none is named.

    Raises:
        ExegeteError: texts beyond the limits, or names that the server does not have.
    """
    first = {name: values[0].replace("\r\n", "\n") for name, values in query.items() if values}
    pairs = zip_longest(query.get("name", ()), query.get("text", ()), fillvalue="")
    sources = [(name.strip(), text.replace("\r\n", "\n")) for name, text in pairs if name.strip() or text.strip()]
    texts = [first.get(name, "") for name in ("question", "system", "response")]
    if (size := sum(map(len, [*texts, *(part for pair in sources for part in pair)]))) > limits.text_length:
        raise ExegeteError(f"all texts together may have {limits.text_length:,} characters, these have {size:,}")
    tokens = first.get("tokens", str(TOKENS))
    if not (tokens.isdecimal() and len(tokens) < 5 and 1 <= int(tokens) <= MOST_TOKENS):
        raise ExegeteError(f"an answer may have 1 to {MOST_TOKENS} tokens, not {tokens[:20]!r}")
    model = validate_choice("model", first.get("model", ""), models)
    return ChatQuestion(
        model=model,
        method=validate_choice("method", first.get("method", "") or usual(model), methods),
        question=texts[0],
        sources=tuple(sources),
        system=texts[1],
        response=texts[2],
        unit=validate_choice("unit", first.get("unit", ""), ("", *UNITS)),
        rows=validate_choice("rows of a response", first.get("rows", ""), ROWS),
        tokens=int(tokens),
    )
