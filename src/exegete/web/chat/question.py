"""The documents, question and settings of a chat page, as read from its form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain, zip_longest
from typing import get_args

from exegete.data.granularity import Granularity
from exegete.web.authentication import Form
from exegete.web.choice import validate_choice
from exegete.web.settings import MAX_DIGITS, Limits

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
    def key(self) -> str:
        """The id under which the server stores the question: a digest, so that equal questions are stored once."""
        return sha256(repr(self).encode("utf-8", "surrogatepass")).hexdigest()[:32]

    @property
    def size(self) -> int:
        """Characters of all texts together."""
        texts = (self.question, self.system, self.response, *chain.from_iterable(self.sources))
        return sum(map(len, texts))

    def find_problems(self, limits: Limits) -> dict[str, str]:
        """Return by field of the form why the question cannot be answered; empty if it can."""
        problems = {}
        if not self.question.strip():
            problems["question"] = "Ask a question."
        # One bound on the sum: the model reads all texts at once.
        if self.size > limits.text_length:
            problems["documents"] = (
                f"All texts together may have {limits.text_length:,} characters; these have {self.size:,}. "
                f"Shorten them by {self.size - limits.text_length:,}."
            )
        if not 1 <= self.tokens <= MAX_TOKENS:
            problems["tokens"] = f"An answer may have 1 to {MAX_TOKENS} tokens."
        return problems


def read_chat_question(
    form: Form, models: Sequence[str], methods: Sequence[str], default_method: Callable[[str], str]
) -> ChatQuestion:
    """Return the question in a form, given the names of the server's models and methods.

    The first model is the default; `default_method` returns the default method of a model. Texts of any length are
    read, and a number of tokens that is none as 0, see `ChatQuestion.find_problems`.

    Raises:
        ExegeteError: a name is unknown.
    """
    # Browsers send line ends of a textarea as CRLF; the spans of units would then differ from those of a file.
    first = {name: values[0].replace("\r\n", "\n") for name, values in form.items() if values}
    pairs = zip_longest(form.get("name", ()), form.get("text", ()), fillvalue="")
    sources = [(name.strip(), text.replace("\r\n", "\n")) for name, text in pairs if name.strip() or text.strip()]
    tokens = first.get("tokens", str(DEFAULT_TOKENS))
    model = validate_choice("model", first.get("model", ""), models)
    return ChatQuestion(
        model=model,
        method=validate_choice("method", first.get("method", "") or default_method(model), methods),
        question=first.get("question", ""),
        sources=tuple(sources),
        system=first.get("system", ""),
        response=first.get("response", ""),
        unit=validate_choice("unit", first.get("unit", ""), ("", *UNITS)),
        rows=validate_choice("rows of a response", first.get("rows", ""), ROWS),
        tokens=int(tokens) if tokens.isdecimal() and len(tokens) <= MAX_DIGITS else 0,
    )
