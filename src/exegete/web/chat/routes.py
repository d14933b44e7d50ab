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
from exegete.web import guard
from exegete.web.chat.drawing import drawing
from exegete.web.chat.question import MOST_TOKENS, ROWS, UNITS, Question, question
from exegete.web.chat.service import Answered, Chats
from exegete.web.explore.routes import numbers
from exegete.web.explore.stream import Put, events, in_steps
from exegete.web.pages import download, fragment, page
from exegete.web.site import site_of

router = APIRouter()


@router.get("/chat")
async def chat(request: Request) -> Response:
    """The form, and a card that waits for its answer; with `whole` the answer is there at once."""
    chats, asked = _asked(request)
    if not asked.question.strip() or "whole" not in request.query_params:
        return await run_in_threadpool(_page, request, chats, asked, "")
    answered = await chats.work.answer(request, lambda stop: chats.explain(asked, stop=stop))
    return await run_in_threadpool(_page, request, chats, asked, _card(answered))


def _page(request: Request, chats: Chats, asked: Question, card: str) -> Response:
    return page(
        request,
        "chat",
        chats=chats,
        asked=asked,
        card=card,
        units=UNITS,
        rows=ROWS,
        most=MOST_TOKENS,
        waits=bool(asked.question.strip()) and not card,
    )


@router.get("/chat/example")
def some_example(request: Request) -> Response:
    """Another of the server's examples."""
    chats, asked = _asked(request)
    if not chats.examples:
        raise ExegeteError("this server has no examples: start it with --data")
    found = choice(chats.examples)  # noqa: S311  (no secret)
    texts = {name: getattr(found, name) for name in ("question", "sources", "system", "response")}
    return RedirectResponse(f"/chat?{asked.link(**texts)}", 303)


@router.get("/chat/stream")
async def stream(request: Request) -> Response:
    """The answer when it is there: `progress` (share), then `card` (HTML)."""
    chats, asked = _asked(request)
    lines = events(chats.work, partial(_tell, chats, asked))
    return StreamingResponse(lines, media_type="text/event-stream", headers={"x-accel-buffering": "no"})


def _tell(chats: Chats, asked: Question, put: Put, stop: Event) -> None:
    put("card", {"html": _card(chats.explain(asked, in_steps(put), stop))})


@router.post("/chat/without")
async def without(request: Request, form: guard.CheckedForm) -> Response:
    """Log-probabilities of the answer and its parts without some units, as JSON."""
    chats, asked = _asked(request, form)
    removed = numbers(guard.one(form, "removed"))
    return JSONResponse(await chats.work.answer(request, lambda stop: chats.without(asked, removed, stop)))


@router.get("/chat/export/{kind}")
async def export(request: Request, kind: str) -> Response:
    """The attribution as a page or as JSON."""
    chats, asked = _asked(request)
    if kind not in ("html", "json"):
        raise HTTPException(404, "There are exports as html and json.")
    answered = await chats.work.answer(request, lambda stop: chats.explain(asked, stop=stop))
    if answered.attribution is None:
        raise ExegeteError(f"there is nothing to export: {answered.problem}")
    found: Attributions[Any] = Attributions([answered.attribution])
    if kind == "html":
        return download(found.to_html().encode(), "answer.html", "text/html; charset=utf-8")
    return download(found.to_json().encode(), "answer.json", "application/json")


def _card(answered: Answered) -> str:
    drawn = None if answered.attribution is None else drawing(answered.attribution)
    return fragment("chat_card", answered=answered, drawing=drawn)


def _asked(request: Request, form: guard.Form | None = None) -> tuple[Chats, Question]:
    site = site_of(request)
    chats = site.chats
    if chats is None:
        raise HTTPException(404)
    query = request.query_params
    given = {name: query.getlist(name) for name in query} if form is None else form
    return chats, question(given, list(chats.models), list(chats.methods), chats.usual, site.limits)
