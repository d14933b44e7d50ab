"""The chat's pages: documents and a question, where the answer comes from, and the answer without parts of them."""

from __future__ import annotations

from functools import partial
from random import choice
from threading import Event
from typing import Any

from fastapi import APIRouter, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, RedirectResponse, Response, StreamingResponse

from exegete.errors import ExegeteError
from exegete.reports.attributions import Attributions
from exegete.web import authentication
from exegete.web.chat.answer_view import build_answer_view
from exegete.web.chat.question import MOST_TOKENS, ROWS, UNITS, ChatQuestion, parse_chat_question
from exegete.web.chat.service import AnswerExplanation, ChatService
from exegete.web.explore.routes import numbers
from exegete.web.explore.stream import Put, stream_events, throttle_progress
from exegete.web.pages import make_download, render_fragment, render_page
from exegete.web.site import get_site

router = APIRouter()


@router.get("/chat")
async def chat(request: Request) -> Response:
    """The form, and a card that waits for its answer; with `whole` the answer is there at once."""
    chats, question = _asked(request)
    if not question.question.strip() or "whole" not in request.query_params:
        return await run_in_threadpool(_page, request, chats, question, "")
    answered = await chats.work.run(request, lambda stop: chats.explain(question, stop=stop))
    return await run_in_threadpool(_page, request, chats, question, _card(answered))


def _page(request: Request, chats: ChatService, question: ChatQuestion, card: str) -> Response:
    return render_page(
        request,
        "chat",
        chats=chats,
        question=question,
        card=card,
        units=UNITS,
        rows=ROWS,
        most=MOST_TOKENS,
        waits=bool(question.question.strip()) and not card,
    )


@router.get("/chat/example")
def some_example(request: Request) -> Response:
    """Another of the server's examples."""
    chats, question = _asked(request)
    if not chats.examples:
        raise ExegeteError("this server has no examples: start it with --data")
    found = choice(chats.examples)  # noqa: S311  (no secret)
    texts = {name: getattr(found, name) for name in ("question", "sources", "system", "response")}
    return RedirectResponse(f"/chat?{question.build_query(**texts)}", 303)


@router.get("/chat/stream")
async def stream(request: Request) -> Response:
    """The answer when it is there: `progress` (share), then `card` (HTML)."""
    chats, question = _asked(request)
    lines = stream_events(chats.work, partial(_tell, chats, question))
    return StreamingResponse(lines, media_type="text/event-stream", headers={"x-accel-buffering": "no"})


def _tell(chats: ChatService, question: ChatQuestion, put: Put, stop: Event) -> None:
    put("card", {"html": _card(chats.explain(question, throttle_progress(put), stop))})


@router.post("/chat/without")
async def without(request: Request, form: authentication.CheckedForm) -> Response:
    """Log-probabilities of the answer and its parts without some units, as JSON."""
    chats, question = _asked(request, form)
    removed = numbers(authentication.get_field(form, "removed"))
    return JSONResponse(await chats.work.run(request, lambda stop: chats.score_without(question, removed, stop)))


@router.get("/chat/export/{kind}")
async def export(request: Request, kind: str) -> Response:
    """The attribution as a page or as JSON."""
    chats, question = _asked(request)
    if kind not in ("html", "json"):
        raise HTTPException(404, "There are exports as html and json.")
    answered = await chats.work.run(request, lambda stop: chats.explain(question, stop=stop))
    if answered.attribution is None:
        raise ExegeteError(f"there is nothing to export: {answered.problem}")
    found: Attributions[Any] = Attributions([answered.attribution])
    if kind == "html":
        return make_download(found.to_html().encode(), "answer.html", "text/html; charset=utf-8")
    return make_download(found.to_json().encode(), "answer.json", "application/json")


def _card(answered: AnswerExplanation) -> str:
    view = None if answered.attribution is None else build_answer_view(answered.attribution)
    return render_fragment("chat_card", answered=answered, view=view)


def _asked(request: Request, form: authentication.Form | None = None) -> tuple[ChatService, ChatQuestion]:
    site = get_site(request)
    chats = site.chats
    if chats is None:
        raise HTTPException(404)
    query = request.query_params
    given = {name: query.getlist(name) for name in query} if form is None else form
    return chats, parse_chat_question(
        given, list(chats.models), list(chats.methods), chats.get_default_method, site.limits
    )
