"""The input of an explore page and the settings of its explanations, as read from an address or a form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import zip_longest
from typing import get_args
from urllib.parse import urlencode

from expound.data.spans import UnitName
from expound.errors import ExpoundError, check_choice
from expound.serve.settings import MAX_DIGITS, Limits

UNITS = ("word", "token")
"""The units of a text; empty, or one of `PROMPT_UNITS`, for a prompt."""
PROMPT_UNITS = ("", *get_args(UnitName))
ROWS = ("sentences", "words", "tokens", "answer", "tool_call")
PREDICTED = "predicted"
DEFAULT_TOKENS, MAX_TOKENS = 64, 512
"""The default and the largest limit on the tokens of an answer."""


@dataclass(frozen=True)
class Question:
    """An input of a model, and the settings of its explanations.

    Attributes:
        model: Name of a model of the server.
        text: The text, the first text of a pair, the user's message, or a conversation as a JSON list of messages.
        pair: The second text, if any.
        picture: Key of a picture, for image models and prompts with an image.
        target: What is explained: a label, a tagged stretch "start-end", or "predicted".
        unit: The unit that is scored and removed; empty: words of a text, see `Explorer.resolve_unit` for a prompt.
        method: Names of methods of the server.
        sources: Name and text of each document of a prompt.
        system: Instructions, for models with a chat template.
        response: The answer to explain; empty: the model generates it.
        rows: The parts of the answer that are explained, see `ROWS`.
        tokens: Largest number of generated tokens.
    """

    model: str
    text: str = ""
    pair: str = ""
    picture: str = ""
    target: str = PREDICTED
    unit: str = ""
    method: tuple[str, ...] = ()
    sources: tuple[tuple[str, str], ...] = ()
    system: str = ""
    response: str = ""
    rows: str = ROWS[0]
    tokens: int = DEFAULT_TOKENS

    @property
    def query(self) -> str:
        """The question as the query of an address; prompts have an address by their `key` instead."""
        pairs = [(name, getattr(self, name)) for name in ("model", "text", "pair", "picture", "target", "unit")]
        pairs += [("method", name) for name in self.method]
        return urlencode([(name, value) for name, value in pairs if value])

    @property
    def key(self) -> str:
        """The id under which the server stores the question: a digest, so that equal questions are stored once."""
        return sha256(repr(self).encode("utf-8", "surrogatepass")).hexdigest()[:32]

    @property
    def input(self) -> Question:
        """The question without the settings on which the model's answer does not depend."""
        return replace(self, target=PREDICTED, unit="", method=(), rows=ROWS[0])

    @property
    def size(self) -> int:
        """Characters of all texts together."""
        size = len(self.text) + len(self.pair) + len(self.system) + len(self.response)
        for name, text in self.sources:
            size += len(name) + len(text)
        return size

    def find_problems(self, limits: Limits, *, needs_text: bool = False) -> dict[str, str]:
        """Return by field of the form why the question cannot be answered; empty if it can."""
        problems = {}
        # Without a text, the form of another model only shows the fields of that model.
        if needs_text and not self.text.strip():
            problems["text"] = "Ask a question."
        # One bound on the sum: the model reads all texts at once.
        if self.size > limits.text_length:
            problems["texts"] = (
                f"All texts together may have {limits.text_length:,} characters; these have {self.size:,}. "
                f"Shorten them by {self.size - limits.text_length:,}."
            )
        if not 1 <= self.tokens <= MAX_TOKENS:
            problems["tokens"] = f"An answer may have 1 to {MAX_TOKENS} tokens."
        return problems


def read_question(
    fields: Mapping[str, Sequence[str]],
    models: Sequence[str],
    methods: Sequence[str],
    default_methods: Callable[[str], Sequence[str]],
    limits: Limits = Limits(),  # noqa: B008  (frozen)
) -> Question:
    """Return the question in an address or form, given the names of the server's models and methods.

    The first model is the default; `default_methods` returns the default methods of a model. Texts of any length are
    read, and a number of tokens that is none as 0, see `Question.find_problems`.

    Raises:
        ExpoundError: a name is unknown, or there are too many methods.
    """
    # Browsers send line ends of a textarea as CRLF; offsets and cached results would differ from the same text by link.
    first = {name: values[0].replace("\r\n", "\n") for name, values in fields.items() if values}
    sources = []
    for name, text in zip_longest(fields.get("name", ()), fields.get("document", ()), fillvalue=""):
        if name.strip() or text.strip():
            sources.append((name.strip(), text.replace("\r\n", "\n")))
    model = _validate_choice("model", first.get("model", ""), models)
    chosen = tuple(dict.fromkeys(filter(None, fields.get("method", ())))) or tuple(default_methods(model))
    # A request only selects among the server's methods: a spec made from its words could name any file.
    for name in chosen:
        check_choice("method", name, methods)
    if len(chosen) > limits.methods:
        raise ExpoundError(f"expected at most {limits.methods} methods, got {len(chosen)}")
    tokens = first.get("tokens", str(DEFAULT_TOKENS))
    return Question(
        model=model,
        text=first.get("text", ""),
        pair=first.get("pair", ""),
        picture=first.get("picture", "")[:64],
        target=first.get("target", "")[:200] or PREDICTED,
        unit=_validate_choice("unit", first.get("unit", ""), PROMPT_UNITS),
        method=chosen,
        sources=tuple(sources),
        system=first.get("system", ""),
        response=first.get("response", ""),
        rows=_validate_choice("rows of a response", first.get("rows", ""), ROWS),
        tokens=int(tokens) if tokens.isdecimal() and len(tokens) <= MAX_DIGITS else 0,
    )


def _validate_choice(field: str, value: str, valid: Sequence[str]) -> str:
    """Return the value, or the first valid one if it is empty. Raises ExpoundError for any other value."""
    if not value:
        return valid[0]
    check_choice(field, value, valid)
    return value
