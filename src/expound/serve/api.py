"""An OpenAI-compatible API: chat completions of a local model, with citations of the documents in the request."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from threading import Event
from typing import Any, NamedTuple
from uuid import uuid4

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.requests import ClientDisconnect

from expound.errors import ExpoundError
from expound.explainers.cite_answer import CitedSpans, cite
from expound.models.generation.examples import count_prompt_tokens
from expound.models.generation.model import GeneratingModel
from expound.serve.api_requests import (
    ChatRequest,
    CitationSettings,
    CitingRequest,
    RequestError,
    parse_attribution_request,
    parse_request,
)
from expound.serve.authentication import check_secret
from expound.serve.explore.question import MAX_TOKENS, Question
from expound.serve.explore.queue import POLL_SECONDS, SendLine, TextFollower, stream_lines, track_progress
from expound.serve.explore.service import Explorer, ignore
from expound.serve.settings import BusyError
from expound.serve.site import get_site

PREFIX = "/v1/"
SendDelta = Callable[[dict[str, Any]], None]
"""Receives the parts of the assistant's message as they are known."""


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


@router.post("/attributions")
async def cite_answers(request: Request) -> Response:
    """Return the sources of answers that the request brings along, as annotations of each answer."""
    explorer = _get_explorer(request)
    asked = parse_attribution_request(await request.body(), explorer, get_site(request).limits.text_length)

    def annotate(stop: Event) -> list[list[dict[str, Any]]]:
        row = _make_row(explorer.language_models[asked.model], asked)
        return [
            _annotate(explorer, asked, row | {"response": answer.text}, stop, answer.spans) for answer in asked.answer
        ]

    data = []
    for index, found in enumerate(await explorer.work.run(request, annotate)):
        data.append({"object": "attribution", "index": index, "annotations": found})
    return JSONResponse({"object": "list", "model": asked.model, "data": data})


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


def answer_chat(explorer: Explorer, asked: ChatRequest, send: SendDelta, stop: Event) -> Answer:
    """Return the answer to a request, and send the parts of its message: role, pieces of text, annotations.

    Raises:
        ExpoundError: prompt and answer are too long for the model, or the method does not support it.
        StoppedError: `stop` was set.
    """
    model = explorer.language_models[asked.model]
    row = _make_row(model, asked)
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
    if asked.has_sources and (asked.citations is None or asked.citations.k):
        if follower.is_stopped:
            # A token that begins in the answer and ends in the stop sequence is left out.
            row["response"] = [ids[n] for n in range(len(ids)) if len(follower.decode(ids[: n + 1])) <= len(text)]
        annotations = []
        if text.strip() and row["response"]:
            annotations = _annotate(explorer, asked, row, stop)
        send({"annotations": annotations})
    reason = "stop" if ids[-1] in end_ids or follower.is_stopped else "length"
    return Answer(text, annotations, reason, usage)


def _make_row(model: GeneratingModel, asked: CitingRequest) -> dict[str, Any]:
    """Return the request as an example of the library. Raises RequestError for a chat that the model cannot read."""
    # Braces in the texts of a request are not places of documents.
    row: dict[str, Any] = {"literal": True, "tools": asked.tools}
    row["sources"] = [{"name": document.name, "text": document.text} for document in asked.list_documents()]
    if getattr(model.tokenizer, "chat_template", None):
        return row | {"messages": [message.to_row() for message in asked.messages]}
    if len(asked.messages) > 1:
        raise RequestError("the model has no chat template: it continues one message of the user", "messages")
    return row | {"prompt": asked.messages[0].text}


def _annotate(
    explorer: Explorer, asked: CitingRequest, row: dict[str, Any], stop: Event, spans: CitedSpans = "sentences"
) -> list[dict[str, Any]]:
    """Return the best sources of each part of the answer, in the form of OpenAI's URL citations."""
    model, documents = explorer.language_models[asked.model], asked.list_documents()
    settings = asked.citations or CitationSettings()
    method = settings.method or explorer.get_default_methods(asked.model)[0]
    question = Question(asked.model, method=(method,), sources=tuple((each.name, "") for each in documents))
    explainer, _ = explorer.resolve_method(question, method)
    with track_progress(model.embedding, ignore, stop):
        citations = cite(model, row, explainer, spans=spans, unit=settings.unit, k=settings.k)
    annotations = []
    for citation in citations:
        start, end = citation.span
        for (name, score), cited in zip(citation.sources, citation.places, strict=True):
            # Without documents, the results of tools are cited.
            title, url, number = name, "", "message_index"
            if documents:
                title, url, number = documents[cited.segment].name, documents[cited.segment].url, "index"
            place = {"start_index": start, "end_index": end, "title": title, "url": url}
            facts: dict[str, Any] = {
                number: cited.segment, "start_char_index": cited.start, "end_char_index": cited.end,
                "score": score, "method": method, "lower_bound": citation.lower_bounds.get(name),
            }  # fmt: skip
            if citation.field:
                facts["field"] = citation.field
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
