"""Routes of the chat: questions, explanations of answers, log-probabilities without some units, exports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
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
from exegete.web.chat.question import MAX_TOKENS, ROWS, UNITS, ChatQuestion, read_chat_question
from exegete.web.chat.service import CACHE_SIZE, AnswerExplanation, ChatService
from exegete.web.explore.routes import parse_numbers
from exegete.web.explore.stream import SendEvent, stream_events, throttle_progress
from exegete.web.pages import make_download, render_fragment, render_page
from exegete.web.site import get_site

router = APIRouter()
NOTHING: Mapping[str, str] = {}


@router.get("/chat")
async def show_form(request: Request) -> Response:
    """Show an empty form."""
    chats, question = _read_request(request, {})
    return await _render_chat(request, chats, question)


@router.post("/chat")
async def ask(request: Request, form: authentication.CheckedForm) -> Response:
    """Store the question of a form and redirect to its page; show the form again if it cannot be answered."""
    chats, question = _read_request(request, form)
    problems = question.find_problems(get_site(request).limits)
    if problems:
        return await _render_chat(request, chats, question, problems=problems)
    chats.questions.add(question.key, question)
    # On a phone, the form fills more than a window: the page opens at the answer.
    return RedirectResponse(f"/chat/{question.key}#answer", 303)


@router.post("/chat/example")
async def show_example(request: Request, form: authentication.CheckedForm) -> Response:
    """Show the form with a random example of the server."""
    chats, question = _read_request(request, form)
    if not chats.examples:
        raise ExegeteError("this server has no examples: start it with --data")
    example = choice(chats.examples)  # noqa: S311  (no secret)
    texts = {name: getattr(example, name) for name in ("question", "sources", "system", "response")}
    return await _render_chat(request, chats, replace(question, **texts))


@router.post("/chat/costs")
async def show_costs(request: Request, form: authentication.CheckedForm) -> Response:
    """Show the methods that apply to a form's model and their costs for its question, on its page or as JSON."""
    chats, question = _read_request(request, form)
    problems, costs = question.find_problems(get_site(request).limits), dict[str, tuple[str, str]]()
    await chats.work.run(request, lambda stop: chats.try_methods(question.model, stop))
    if not problems:
        try:
            costs = await chats.work.run(request, lambda stop: chats.describe_costs(question, stop))
        except ExegeteError as error:
            problems = {"question": str(error)}
    if "text/html" in request.headers.get("accept", ""):
        return await _render_chat(request, chats, question, problems=problems, costs=costs)
    methods = []
    for name in chats.list_methods(question.model):
        passes, time = costs.get(name, ("", ""))
        methods.append({"name": name, "title": chats.titles[name], "passes": passes, "time": time})
    default = chats.get_default_method(question.model)
    return JSONResponse({"methods": methods, "default": default, "problem": " ".join(problems.values())})


@router.get("/chat/{key}")
async def show_answer(request: Request, key: str) -> Response:
    """Show a stored question and a place for its answer.

    The page's script then fills the place from the stream. With `whole` in the query, the page has the answer.
    """
    chats, question = _find_question(request, key)
    if "whole" not in request.query_params:
        return await _render_chat(request, chats, question, key)
    result = await chats.work.run(request, lambda stop: chats.explain(question, stop=stop))
    return await _render_chat(request, chats, question, key, card=_render_card(result))


async def _render_chat(
    request: Request,
    chats: ChatService,
    question: ChatQuestion,
    key: str = "",
    *,
    card: str = "",
    problems: Mapping[str, str] = NOTHING,
    costs: Mapping[str, tuple[str, str]] | None = None,
) -> Response:
    """Return the page of a question; `problems` are those of the form's fields, by name."""
    return await run_in_threadpool(
        render_page,
        request,
        "chat",
        status=422 if problems else 200,
        chats=chats,
        question=question,
        key=key,
        card=card,
        problems=problems,
        methods=chats.list_methods(question.model),
        costs=costs or {},
        units=UNITS,
        rows=ROWS,
        most=MAX_TOKENS,
    )


@router.get("/chat/{key}/stream")
async def stream_answer(request: Request, key: str) -> Response:
    """Stream the answer and its explanation as events: `text` and `progress` (share), then `card` (HTML)."""
    chats, question = _find_question(request, key)
    lines = stream_events(chats.work, partial(_send_answer, chats, question))
    return StreamingResponse(lines, media_type="text/event-stream", headers={"x-accel-buffering": "no"})


def _send_answer(chats: ChatService, question: ChatQuestion, send: SendEvent, stop: Event) -> None:
    result = chats.explain(question, throttle_progress(send), stop, lambda text: send("text", {"text": text}))
    send("card", {"html": _render_card(result)})


@router.post("/chat/{key}/without")
async def score_without_units(request: Request, key: str, form: authentication.CheckedForm) -> Response:
    """Return the log-probabilities of the answer and of its parts without some units, as JSON."""
    chats, question = _find_question(request, key)
    removed = parse_numbers(authentication.get_field(form, "removed"))
    return JSONResponse(await chats.work.run(request, lambda stop: chats.score_without(question, removed, stop)))


@router.get("/chat/{key}/export/{kind}")
async def export_answer(request: Request, key: str, kind: str) -> Response:
    """Return the attribution as a file: an HTML page or JSON."""
    chats, question = _find_question(request, key)
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


def _get_chats(request: Request) -> ChatService:
    chats = get_site(request).chats
    if chats is None:
        raise HTTPException(404)
    return chats


def _read_request(request: Request, form: authentication.Form) -> tuple[ChatService, ChatQuestion]:
    chats = _get_chats(request)
    return chats, read_chat_question(form, list(chats.models), list(chats.methods), chats.get_default_method)


def _find_question(request: Request, key: str) -> tuple[ChatService, ChatQuestion]:
    chats = _get_chats(request)
    question = chats.questions.get(key)
    if question is None:
        raise HTTPException(404, f"This question is no longer stored (the last {CACHE_SIZE} are): ask it again.")
    return chats, question
