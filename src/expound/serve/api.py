"""An OpenAI-compatible API: chat completions of a local model, with citations of the documents in the request."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from threading import Event
from typing import Annotated, Any, Literal, NamedTuple
from uuid import uuid4

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import AliasChoices, BaseModel, BeforeValidator, Field, ValidationError
from starlette.requests import ClientDisconnect

from expound.errors import ExpoundError, unknown
from expound.explainers import attribute
from expound.models.generation.examples import count_prompt_tokens
from expound.models.generation.model import GeneratingModel
from expound.serve.authentication import check_secret
from expound.serve.busy import BusyError
from expound.serve.explore.progress import track_progress
from expound.serve.explore.question import MAX_TOKENS, Question
from expound.serve.explore.queue import POLL_SECONDS
from expound.serve.explore.service import Explorer, ignore
from expound.serve.explore.stream import SendLine, stream_lines
from expound.serve.explore.text_follower import TextFollower
from expound.serve.site import get_site

PREFIX = "/v1/"
MAX_DOCUMENTS, MIN_TEMPERATURE = 256, 0.01
"""Most documents of a request; temperatures between 0 and the smallest one would overflow."""
IGNORED = frozenset({"metadata", "prompt_cache_key", "safety_identifier", "service_tier", "user"})
"""Parameters of OpenAI's API that do not change the answer."""
NEUTRAL: dict[str, Any] = {
    "frequency_penalty": 0, "logit_bias": {}, "logprobs": False, "modalities": ["text"], "presence_penalty": 0,
    "response_format": {"type": "text"}, "store": False, "tool_choice": "none", "tools": [], "top_p": 1,
}  # fmt: skip
"""Parameters that are accepted with this value, which changes nothing, and refused with any other."""
SendDelta = Callable[[dict[str, Any]], None]
"""Receives the parts of the assistant's message as they are known."""


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


class Message(BaseModel, strict=True):
    """A message of the chat. Further fields of an assistant's earlier message, such as annotations, are ignored."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        list[Part], BeforeValidator(lambda v: [{"type": "text", "text": v}] if isinstance(v, str) else v)
    ]
    tool_calls: None = None
    function_call: None = None

    @property
    def text(self) -> str:
        """The text of the message, without documents."""
        return "\n".join(part.text for part in self.content if isinstance(part, TextPart))


class CitationSettings(BaseModel, extra="forbid", strict=True):
    """How many sources each sentence gets, and the method that finds them; empty: the default of the pages."""

    method: str = ""
    k: int = Field(default=2, ge=0)


def _read_citations(value: Any) -> Any:
    """Return settings of citations: true means the default ones, false none."""
    if value is True:
        return {}
    return {"k": 0} if value is False else value


class ChatRequest(BaseModel, extra="allow", strict=True, allow_inf_nan=False):
    """The body of a request for a chat completion. `citations` may also be true, for the defaults, or false."""

    model: str
    messages: list[Message] = Field(min_length=1)
    documents: list[Document] | None = None
    citations: Annotated[CitationSettings | None, BeforeValidator(_read_citations)] = None
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

    def list_documents(self) -> list[Document]:
        """Return the request's documents, then its messages' documents; unnamed ones are called "source N"."""
        found = [*(self.documents or ())]
        for message in self.messages:
            found += [part for part in message.content if isinstance(part, Document)]
        return [each.model_copy(update={"name": each.name or f"source {n}"}) for n, each in enumerate(found, 1)]


class Answer(NamedTuple):
    """The text of an answer, its annotations (None: not requested), and why and after how many tokens it ended."""

    text: str
    annotations: list[dict[str, Any]] | None
    finish_reason: str
    usage: dict[str, int]


def require_token(request: Request) -> None:
    """Raise RequestError (401) unless the request has the API's token; a dependency of all routes."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not check_secret(request, token.strip(), get_site(request).api_token):
        raise RequestError("expected the server's API token as Bearer token", code="invalid_api_key", status=401)


router = APIRouter(prefix=PREFIX.rstrip("/"), dependencies=[Depends(require_token)])


@router.get("/models")
def list_models(request: Request) -> Response:
    """Return the models of the server."""
    constant = {"object": "model", "created": 0, "owned_by": "expound"}
    return JSONResponse(
        {"object": "list", "data": [{"id": name} | constant for name in _get_explorer(request).language_models]}
    )


@router.post("/chat/completions")
async def complete_chat(request: Request) -> Response:
    """Answer the last message of a chat, as one object or as a stream of server-sent events."""
    explorer = _get_explorer(request)
    asked = parse_request(await request.body(), explorer, get_site(request).limits.text_length)
    head = {"id": f"chatcmpl-{uuid4().hex}", "created": int(time.time()), "model": asked.model}
    if not asked.stream:
        answer = await explorer.work.run(request, lambda stop: answer_chat(explorer, asked, ignore, stop))
        message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
        if answer.annotations is not None:
            message["annotations"] = answer.annotations
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": answer.finish_reason}
        return JSONResponse(head | {"object": "chat.completion", "choices": [choice], "usage": answer.usage})
    lines = stream_lines(
        explorer.work, partial(_send_chunks, explorer, asked, head | {"object": "chat.completion.chunk"})
    )
    # The first line is awaited, so that a request that fails before it is answered by an error's status.
    first = asyncio.ensure_future(anext(lines))
    while not (await asyncio.wait([first], timeout=POLL_SECONDS))[0]:
        if await request.is_disconnected():
            first.cancel()
            raise ClientDisconnect
    headers = {"x-accel-buffering": "no"}
    return StreamingResponse(_end_stream(first.result(), lines), media_type="text/event-stream", headers=headers)


def _send_chunks(explorer: Explorer, asked: ChatRequest, head: dict[str, Any], send: SendLine, stop: Event) -> None:
    def send_choice(delta: dict[str, Any], finish_reason: str | None = None) -> None:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        send(_format_data(head | {"choices": [choice]}))

    answer = answer_chat(explorer, asked, send_choice, stop)
    send_choice({}, answer.finish_reason)
    if (asked.stream_options or {}).get("include_usage"):
        send(_format_data(head | {"choices": [], "usage": answer.usage}))


async def _end_stream(first: str, lines: AsyncIterator[str]) -> AsyncIterator[str]:
    yield first
    try:
        async for line in lines:
            yield line
    # The status has been sent. Other errors break the connection and go to the server's log.
    except ExpoundError as error:
        yield _format_data({"error": _describe_error(400, str(error))})
    except BusyError as error:
        yield _format_data({"error": _describe_error(503, str(error))})
    else:
        yield "data: [DONE]\n\n"


def _format_data(value: Any) -> str:
    return f"data: {json.dumps(value)}\n\n"


def parse_request(body: bytes, explorer: Explorer, text_length: int) -> ChatRequest:
    """Return the request in a body of JSON, whose texts may have `text_length` characters together.

    Raises:
        RequestError: a malformed body, an unknown model or method, a parameter or a chat that is not supported.
    """
    try:
        asked = ChatRequest.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        param = ".".join(map(str, first["loc"]))
        raise RequestError(f"{param or 'the body'}: {first['msg']}", param or None) from None
    for name, value in (asked.model_extra or {}).items():
        if name not in IGNORED and value is not None and not (name in NEUTRAL and value == NEUTRAL[name]):
            raise RequestError(f"the parameter {name!r} is not supported", name, "unsupported_parameter")
    if asked.model not in explorer.language_models:
        raise RequestError(
            str(unknown("model", asked.model, explorer.language_models)), "model", "model_not_found", 404
        )
    settings = asked.citations or CitationSettings()
    if settings.method not in ("", *explorer.methods):
        raise RequestError(str(unknown("method", settings.method, explorer.methods)), "citations.method")
    if 0 < (asked.temperature or 0) < MIN_TEMPERATURE:
        raise RequestError(f"temperature: expected 0, or {MIN_TEMPERATURE} to 2", "temperature")
    _check_texts(asked, text_length)
    return asked


def _check_texts(asked: ChatRequest, text_length: int) -> None:
    """Raise RequestError for too many or too long texts, for citations without documents, and without a question."""
    documents = asked.list_documents()
    if asked.messages[-1].role != "user":
        raise RequestError("expected the user's message at the end of the messages", "messages")
    if asked.citations and asked.citations.k and not documents:
        raise RequestError("citations need documents: give them as 'documents' or as parts of a message", "citations")
    if len(documents) > MAX_DOCUMENTS:
        raise RequestError(f"a request may have {MAX_DOCUMENTS} documents, this one has {len(documents)}", "documents")
    texts = [message.text for message in asked.messages]
    for document in documents:
        texts += [document.name, document.text, document.url]
    size = sum(map(len, texts))
    if size > text_length:
        message = f"all texts together may have {text_length:,} characters, these have {size:,}"
        raise RequestError(message, "messages", "string_above_max_length")


def answer_chat(explorer: Explorer, asked: ChatRequest, send: SendDelta, stop: Event) -> Answer:
    """Return the answer to a request, and send the parts of its message: role, pieces of text, annotations.

    Raises:
        ExpoundError: prompt and answer are too long for the model, or the method does not support it.
        StoppedError: `stop` was set.
    """
    model = explorer.language_models[asked.model]
    row, documents = _make_row(model, asked), asked.list_documents()
    prompt_tokens = count_prompt_tokens(model, row)
    max_tokens = asked.max_completion_tokens or asked.max_tokens
    room = model.max_length - (len(model.decoder_start_ids) if model.is_encoder_decoder else prompt_tokens)
    # A longer prompt would be cut, and the answer would silently miss a part of the documents.
    if prompt_tokens > model.max_prompt_length(max_tokens or 1):
        message = f"the model reads {model.max_length} tokens: {prompt_tokens} of the prompt leave {max(0, room)}"
        raise RequestError(message, "messages", "context_length_exceeded")
    send({"role": "assistant", "content": ""})
    follower = TextFollower(model.tokenizer, lambda text: send({"content": text}), asked.stop or ())
    seed = secrets.randbits(32) if asked.seed is None else asked.seed
    with track_progress(model.embedding, ignore, stop):
        (row,) = model.respond(
            [row], max_tokens or min(MAX_TOKENS, room), asked.temperature or 0.0, seed,
            allow_empty=True, stopping_criteria=[follower],
        )  # fmt: skip
    ids = row["response"]
    text = follower.finish(ids)
    end_ids = model.generator.generation_config.eos_token_id
    if not isinstance(end_ids, list):
        end_ids = [end_ids]
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": len(ids), "total_tokens": prompt_tokens + len(ids)}
    annotations = None
    if documents and (asked.citations is None or asked.citations.k):
        if follower.is_stopped:
            # A token that begins in the answer and ends in the stop sequence is left out.
            row["response"] = [ids[n] for n in range(len(ids)) if len(follower.decode(ids[: n + 1])) <= len(text)]
        annotations = []
        if text.strip() and row["response"]:
            annotations = _annotate(explorer, asked, row, documents, stop)
        send({"annotations": annotations})
    reason = "length"
    if ids[-1] in end_ids or follower.is_stopped:
        reason = "stop"
    return Answer(text, annotations, reason, usage)


def _make_row(model: GeneratingModel, asked: ChatRequest) -> dict[str, Any]:
    """Return the request as an example of the library. Raises RequestError for a chat that the model cannot read."""
    # Braces in the texts of a request are not places of documents.
    row: dict[str, Any] = {"literal": True}
    row["sources"] = [{"name": document.name, "text": document.text} for document in asked.list_documents()]
    if getattr(model.tokenizer, "chat_template", None):
        row["messages"] = []
        for message in asked.messages:
            role = "system" if message.role == "developer" else message.role
            row["messages"].append({"role": role, "content": message.text})
        return row
    if len(asked.messages) > 1:
        raise RequestError("the model has no chat template: it continues one message of the user", "messages")
    return row | {"prompt": asked.messages[0].text}


def _annotate(
    explorer: Explorer, asked: ChatRequest, row: dict[str, Any], documents: Sequence[Document], stop: Event
) -> list[dict[str, Any]]:
    """Return the best sources of each sentence of the answer, in the form of OpenAI's URL citations."""
    model = explorer.language_models[asked.model]
    settings = asked.citations or CitationSettings()
    method = settings.method or explorer.get_default_methods(asked.model)[0]
    names = [document.name for document in documents]
    question = Question(asked.model, method=(method,), sources=tuple((name, "") for name in names))
    explainer, unit = explorer.resolve_method(question, method)
    with track_progress(model.embedding, ignore, stop):
        item = attribute(model, [row], explainer, "sentences", unit=unit, show_progress=False)[0]
    assert item.exchange is not None
    sentences = item.aggregate("source", "sentences").targets
    annotations = []
    for target, citation in zip(sentences, item.citations(settings.k), strict=True):
        assert isinstance(target.value, tuple)
        start, end = item.exchange.extent(target.value)
        for name, score in citation.sources:
            index = names.index(name)
            place = {"start_index": start, "end_index": end, "title": name, "url": documents[index].url}
            facts = {"index": index, "score": score, "method": method, "lower_bound": citation.lower_bounds.get(name)}
            annotations.append({"type": "url_citation", "url_citation": place} | facts)
    return annotations


def make_error_response(status: int, message: str, param: str | None = None, code: str | None = None) -> JSONResponse:
    """Return an error in the form of OpenAI's API; an invalid request (422 of the pages) has the status 400."""
    if status == 422:
        status = 400
    headers = {"www-authenticate": "Bearer"} if status == 401 else None
    return JSONResponse({"error": _describe_error(status, message, param, code)}, status, headers)


def handle_request_error(request: Request, error: Exception) -> Response:
    """Return the response to a refused request."""
    assert isinstance(error, RequestError)
    return make_error_response(error.status, str(error), error.param, error.code)


def _describe_error(status: int, message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"message": message, "type": kind, "param": param, "code": code}


def _get_explorer(request: Request) -> Explorer:
    explorer = get_site(request).explorer
    assert explorer is not None, "the API is served only with language models"
    return explorer
