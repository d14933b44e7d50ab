"""Requests of the OpenAI-compatible API: what they may be, and what is refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    Field,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from expound.errors import ExpoundError, unknown
from expound.explainers.cite_answer import CitedSpans, CitedUnit
from expound.models.generation.conversation import get_function, list_calls
from expound.serve.explore.question import MAX_TOKENS
from expound.serve.explore.service import Explorer

MAX_DOCUMENTS, MAX_ANSWERS, MAX_SPANS, MIN_TEMPERATURE = 256, 16, 256, 0.01
"""Most documents, answers and parts of one answer of a request; temperatures above 0 and below the least overflow."""
IGNORED = frozenset({"metadata", "prompt_cache_key", "safety_identifier", "service_tier", "user"})
"""Parameters of OpenAI's API that do not change the answer."""
NEUTRAL: dict[str, Any] = {
    "frequency_penalty": 0, "logit_bias": {}, "logprobs": False, "modalities": ["text"], "presence_penalty": 0,
    "response_format": {"type": "text"}, "store": False, "tool_choice": "none", "top_p": 1,
}  # fmt: skip
"""Parameters that are accepted with this value, which changes nothing, and refused with any other."""


SOURCES = "documents: give 'documents', parts of a message, or the results of tools after the user's message"
"""What is cited, as errors say it."""


class RequestError(ExpoundError):
    """A request that is refused: its HTTP status, the parameter that is wrong, and OpenAI's code for the error."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param, self.code, self.status = param, code, status


class Document(BaseModel, extra="forbid", strict=True):
    """A document that the answer may cite; as a part of a message it has the type "document"."""

    type: Literal["document"] = "document"
    name: str = Field("", validation_alias=AliasChoices("name", "title"))
    text: str
    url: str = ""


class TextPart(BaseModel, extra="forbid", strict=True):
    """A part of a message's text."""

    type: Literal["text"]
    text: str


Part = Annotated[TextPart | Document, Field(discriminator="type")]


def _read_content(value: Any, info: ValidationInfo) -> Any:
    """Return a message's content as a list of parts; a message that only calls tools has none."""
    if value is None and not info.data.get("tool_calls"):
        raise ValueError("Field required, except beside tool_calls")
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    return [] if value is None else value


class Message(BaseModel, strict=True):
    """A message of the chat. Further fields of an assistant's earlier message, such as annotations, are ignored."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    function_call: None = None
    name: str | None = None
    # After `tool_calls`, which decide whether it may be missing.
    content: Annotated[list[Part], BeforeValidator(_read_content)] = Field(None, validate_default=True)

    @property
    def text(self) -> str:
        """The text of the message, without documents."""
        return "\n".join(part.text for part in self.content if isinstance(part, TextPart))

    def to_row(self) -> dict[str, Any]:
        """Return the message as the library reads it; chat templates expect the arguments of tool calls as objects."""
        row: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": self.text}
        if self.role == "tool":
            row |= {"name": self.name, "tool_call_id": self.tool_call_id}
        row["tool_calls"] = copy.deepcopy(self.tool_calls)
        for call in list_calls(row):
            function: Any = get_function(call)
            if isinstance(function.get("arguments"), str):
                with suppress(ValueError):
                    function["arguments"] = json.loads(function["arguments"])
        return {name: value for name, value in row.items() if value is not None}


class CitationSettings(BaseModel, extra="forbid", strict=True):
    """How many sources each sentence gets, their size, and the method; an empty method is the default of the pages."""

    method: str = ""
    unit: CitedUnit = "source"
    k: int = Field(default=2, ge=0)


def _read_citations(value: Any) -> Any:
    """Return settings of citations: true means the default ones, false none."""
    if value is True:
        return {}
    return {"k": 0} if value is False else value


class CitingRequest(BaseModel, strict=True, allow_inf_nan=False):
    """What both requests have: a chat, and documents. `citations` may also be true, for the defaults, or false."""

    model: str
    messages: list[Message] = Field(min_length=1)
    tools: list[dict[str, Any]] | None = None
    documents: list[Document] | None = None
    citations: Annotated[CitationSettings | None, BeforeValidator(_read_citations)] = None

    def list_documents(self) -> list[Document]:
        """Return the request's documents, then its messages' documents; unnamed ones are called "source N"."""
        found = [*(self.documents or ())]
        for message in self.messages:
            found += [part for part in message.content if isinstance(part, Document)]
        return [each.model_copy(update={"name": each.name or f"source {n}"}) for n, each in enumerate(found, 1)]

    @property
    def has_sources(self) -> bool:
        """Whether there is something to cite: documents, or results of tools after the user's last message."""
        return bool(self.list_documents()) or (
            self.messages[-1].role == "tool" and bool(self.messages[-1].text.strip())
        )


def _check_spans(value: Any) -> Any:
    """Return the parts of an answer as they are; raise ValueError, which pydantic reports, for anything else."""
    pairs = value if isinstance(value, list) else ()
    are_pairs = all(isinstance(pair, list) and [type(end) for end in pair] == [int, int] for pair in pairs)
    if value in ("sentences", "fields") or (are_pairs and 0 < len(pairs) <= MAX_SPANS):
        return value
    raise ValueError(f"expected 'sentences', 'fields', or 1 to {MAX_SPANS} pairs [start, end] of whole numbers")


class GivenAnswer(BaseModel, extra="forbid", strict=True):
    """An answer to cite, by any author, and its parts: sentences, fields of JSON, or characters [start, end)."""

    text: Annotated[str, Field(min_length=1)]
    spans: Annotated[CitedSpans, PlainValidator(_check_spans)] = "sentences"


def _list_answers(value: Any) -> Any:
    """Return one answer or several, texts or objects, as a list of objects."""
    answers = value if isinstance(value, list) else [value]
    return [{"text": answer} if isinstance(answer, str) else answer for answer in answers]


class AttributionRequest(CitingRequest, extra="forbid"):
    """The body of a request for the sources of answers. `question` stands for one message of the user."""

    answer: Annotated[list[GivenAnswer], BeforeValidator(_list_answers), Field(min_length=1, max_length=MAX_ANSWERS)]

    @model_validator(mode="before")
    @classmethod
    def _read_question(cls, value: Any) -> Any:
        if isinstance(value, dict) and "question" in value and "messages" not in value:
            messages = [{"role": "user", "content": value["question"]}]
            return {name: each for name, each in value.items() if name != "question"} | {"messages": messages}
        return value


class ChatRequest(CitingRequest, extra="allow"):
    """The body of a request for a chat completion."""

    max_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    temperature: float | None = Field(None, ge=0, le=2)
    seed: int | None = Field(None, ge=0, lt=1 << 63)
    stop: Annotated[
        list[Annotated[str, Field(min_length=1)]] | None, BeforeValidator(lambda v: [v] if isinstance(v, str) else v)
    ] = Field(None, max_length=4)
    n: Literal[1] | None = None
    stream: bool | None = None
    stream_options: dict[str, bool] | None = None


Asked = TypeVar("Asked", bound=CitingRequest)


def parse_request(body: bytes, explorer: Explorer, text_length: int) -> ChatRequest:
    """Return the request in a body of JSON, whose texts may have `text_length` characters together.

    Raises:
        RequestError: a malformed body, an unknown model or method, a parameter or a chat that is not supported.
    """
    asked = _validate(ChatRequest, body)
    if asked.tools and (asked.model_extra or {}).get("tool_choice") != "none":
        problem = "answers are text, without calls: send tool_choice='none' together with 'tools'"
        raise RequestError(problem, "tool_choice", "unsupported_parameter")
    for name, value in (asked.model_extra or {}).items():
        if name not in IGNORED and value is not None and not (name in NEUTRAL and value == NEUTRAL[name]):
            raise RequestError(f"the parameter {name!r} is not supported", name, "unsupported_parameter")
    _check_citing(asked, explorer, text_length)
    if 0 < (asked.temperature or 0) < MIN_TEMPERATURE:
        raise RequestError(f"temperature: expected 0, or {MIN_TEMPERATURE} to 2", "temperature")
    return asked


def parse_attribution_request(body: bytes, explorer: Explorer, text_length: int) -> AttributionRequest:
    """Return the request for attributions in a body of JSON; errors are those of `parse_request`."""
    asked = _validate(AttributionRequest, body)
    _check_citing(asked, explorer, text_length, [answer.text for answer in asked.answer])
    if not asked.has_sources:
        raise RequestError(f"attributions need {SOURCES}", "documents")
    return asked


def _validate(kind: type[Asked], body: bytes) -> Asked:
    """Return the request in a body of JSON; raise RequestError for one that is malformed."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        param = ".".join(map(str, first["loc"]))
        raise RequestError(f"{param or 'the body'}: {first['msg']}", param or None) from None


def _check_citing(asked: CitingRequest, explorer: Explorer, text_length: int, answers: Sequence[str] = ()) -> None:
    """Raise RequestError for an unknown model or method, and for what `answers` and other texts may not be.

    Those are too many or too long texts, citations without documents, and messages without a question.
    """
    if asked.model not in explorer.language_models:
        raise RequestError(
            str(unknown("model", asked.model, explorer.language_models)), "model", "model_not_found", 404
        )
    settings = asked.citations or CitationSettings()
    if settings.method not in ("", *explorer.methods):
        raise RequestError(str(unknown("method", settings.method, explorer.methods)), "citations.method")
    documents = asked.list_documents()
    if asked.messages[-1].role not in ("user", "tool"):
        raise RequestError("expected the user's message at the end of the messages, or a tool's", "messages")
    if asked.citations and asked.citations.k and not asked.has_sources:
        raise RequestError(f"citations need {SOURCES}", "citations")
    if len(documents) > MAX_DOCUMENTS:
        raise RequestError(f"a request may have {MAX_DOCUMENTS} documents, this one has {len(documents)}", "documents")
    texts = [*answers, json.dumps(asked.tools or "")]
    for message in asked.messages:
        texts += [message.text, json.dumps(message.tool_calls or "")]
    for document in documents:
        texts += [document.name, document.text, document.url]
    size = sum(map(len, texts))
    if size > text_length:
        problem = f"all texts together may have {text_length:,} characters, these have {size:,}"
        raise RequestError(problem, "messages", "string_above_max_length")
