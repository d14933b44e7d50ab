"""Routes of the chat: explanations of answers, log-probabilities without some units, exports."""

from __future__ import annotations

from functools import partial
from random import choice
from threading import Event

from fastapi import APIRouter, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, RedirectResponse, Response, StreamingResponse

from exegete.errors import ExegeteError
from exegete.reports.explanations import Explanations
from exegete.web import authentication
from exegete.web.chat.answer_view import build_answer_view
from exegete.web.chat.question import MAX_TOKENS, ROWS, UNITS, ChatQuestion, parse_chat_question
from exegete.web.chat.service import AnswerExplanation, ChatService
from exegete.web.explore.routes import parse_numbers
from exegete.web.explore.stream import SendEvent, stream_events, throttle_progress
from exegete.web.pages import make_download, render_fragment, render_page
from exegete.web.site import get_site

router = APIRouter()


@router.get("/chat")
async def show_chat(request: Request) -> Response:
    """Show the form and, for a question, a place for the answer.

    The page's script then fills the place from the stream. With `whole` in the query, the page has the answer.
    """
    chats, question = _parse_request(request)
    if not question.question.strip() or "whole" not in request.query_params:
        return await run_in_threadpool(_render_chat, request, chats, question, "")
    result = await chats.work.run(request, lambda stop: chats.explain(question, stop=stop))
    return await run_in_threadpool(_render_chat, request, chats, question, _render_card(result))


def _render_chat(request: Request, chats: ChatService, question: ChatQuestion, card: str) -> Response:
    return render_page(
        request,
        "chat",
        chats=chats,
        question=question,
        card=card,
        units=UNITS,
        rows=ROWS,
        most=MAX_TOKENS,
        waits=bool(question.question.strip()) and not card,
    )


@router.get("/chat/example")
def redirect_to_example(request: Request) -> Response:
    """Redirect to the chat with a random example of the server."""
    chats, question = _parse_request(request)
    if not chats.examples:
        raise ExegeteError("this server has no examples: start it with --data")
    example = choice(chats.examples)  # noqa: S311  (no secret)
    texts = {name: getattr(example, name) for name in ("question", "sources", "system", "response")}
    return RedirectResponse(f"/chat?{question.build_query(**texts)}", 303)


@router.get("/chat/stream")
async def stream_answer(request: Request) -> Response:
    """Stream the answer and its explanation as events: `progress` (share), then `card` (HTML)."""
    chats, question = _parse_request(request)
    lines = stream_events(chats.work, partial(_send_answer, chats, question))
    return StreamingResponse(lines, media_type="text/event-stream", headers={"x-accel-buffering": "no"})


def _send_answer(chats: ChatService, question: ChatQuestion, send: SendEvent, stop: Event) -> None:
    result = chats.explain(question, throttle_progress(send), stop)
    send("card", {"html": _render_card(result)})


@router.post("/chat/without")
async def score_without_units(request: Request, form: authentication.CheckedForm) -> Response:
    """Return the log-probabilities of the answer and of its parts without some units, as JSON."""
    chats, question = _parse_request(request, form)
    removed = parse_numbers(authentication.get_field(form, "removed"))
    return JSONResponse(await chats.work.run(request, lambda stop: chats.score_without(question, removed, stop)))


@router.get("/chat/export/{kind}")
async def export_answer(request: Request, kind: str) -> Response:
    """Return the attribution as a file: an HTML page or JSON."""
    chats, question = _parse_request(request)
    if kind not in ("html", "json"):
        raise HTTPException(404, "Exports are available as html and json.")
    result = await chats.work.run(request, lambda stop: chats.explain(question, stop=stop))
    if result.attribution is None:
        raise ExegeteError(f"there is nothing to export: {result.problem}")
    explanations = Explanations([result.attribution])
    if kind == "html":
        return make_download(explanations.to_html().encode(), "answer.html", "text/html; charset=utf-8")
    return make_download(explanations.to_json().encode(), "answer.json", "application/json")


def _render_card(result: AnswerExplanation) -> str:
    view = None if result.attribution is None else build_answer_view(result.attribution)
    return render_fragment("chat_card", result=result, view=view)


def _parse_request(request: Request, form: authentication.Form | None = None) -> tuple[ChatService, ChatQuestion]:
    site = get_site(request)
    chats = site.chats
    if chats is None:
        raise HTTPException(404)
    query = form
    if query is None:
        query = {name: request.query_params.getlist(name) for name in request.query_params}
    models, methods = list(chats.models), list(chats.methods)
    return chats, parse_chat_question(query, models, methods, chats.get_default_method, site.limits)
