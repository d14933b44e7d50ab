"""The explorer's pages: a question and its answers, live deletion, pictures, exports, heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from random import choice
from threading import Event

from fastapi import APIRouter, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, RedirectResponse, Response, StreamingResponse

from exegete.errors import ExegeteError
from exegete.reports.attributions import Attribution, Attributions
from exegete.reports.highlighted.picture import draw_picture as drawn_picture
from exegete.web import guard
from exegete.web.coefficients import coefficients, learns
from exegete.web.explore.progress import Report
from exegete.web.explore.question import LEVELS, Question, question
from exegete.web.explore.service import EXAMPLE, Answer, Answered, Explorer
from exegete.web.explore.stream import Put, events, in_steps
from exegete.web.pages import download, fragment, page
from exegete.web.pictures import png
from exegete.web.site import site_of

router = APIRouter()
BARS = 8
"""Labels that are shown before the rest is folded away."""


@router.get("/explore")
async def explore(request: Request) -> Response:
    """A question's form, and its answers when something is asked; with `whole` they are there at once."""
    explorer, asked = _asked(request)
    if not explorer.is_asked(asked):
        return await run_in_threadpool(_explored, request, explorer, asked, Event())
    return await explorer.work.answer(request, lambda stop: _explored(request, explorer, asked, stop))


def _explored(request: Request, explorer: Explorer, asked: Question, stop: Event) -> Response:
    answers, problem, cards = [], "", list[Answered]()
    if explorer.is_asked(asked):
        try:
            explorer.target(asked)
            answers = explorer.answers(asked, stop=stop)
            if "whole" in request.query_params:
                cards = [explorer.explain(asked, name, stop=stop) for name in asked.method]
        except ExegeteError as error:
            problem = str(error)
    return page(
        request,
        "explore",
        status=422 if problem else 200,
        explorer=explorer,
        asked=asked,
        image=explorer.takes_images(asked.model),
        examples=bool(explorer.fitting(asked.model)),
        levels=LEVELS,
        labels=explorer.labels(asked),
        bars=_bars(answers),
        problem=problem,
        cards=[_card(explorer, asked, card) for card in cards],
        heads={name for name, method in explorer.methods.items() if learns(method)},
    )


@router.get("/explore/example")
def some_example(request: Request) -> Response:
    """Another of the server's examples."""
    explorer, asked = _asked(request)
    fitting = explorer.fitting(asked.model)
    if not fitting:
        raise ExegeteError(f"this server has no examples for {asked.model}: start it with --data")
    number = choice(fitting)  # noqa: S311  (no secret)
    row = explorer.examples[number]
    if "image" in row:
        return RedirectResponse(f"/explore?{asked.link(picture=f'{EXAMPLE}{number}')}", 303)
    return RedirectResponse(f"/explore?{asked.link(text=row['text'], pair=row.get('text_pair') or '')}", 303)


@router.get("/explore/stream")
async def stream(request: Request) -> Response:
    """The answers as they come: `progress` (method and share), `card` (method and HTML)."""
    explorer, asked = _asked(request)
    lines = events(explorer.work, partial(_tell, explorer, asked))
    return StreamingResponse(lines, media_type="text/event-stream", headers={"x-accel-buffering": "no"})


def _tell(explorer: Explorer, asked: Question, put: Put, stop: Event) -> None:
    for name in asked.method:
        found = explorer.explain(asked, name, _reporter(explorer, asked, name, put), stop)
        put("card", {"method": name, "html": _card(explorer, asked, found)})


def _reporter(explorer: Explorer, asked: Question, name: str, put: Put) -> Report:
    told, total = in_steps(put, method=name), cache(partial(explorer.total, asked, name))
    return lambda seen: told(seen / total())


@router.post("/explore/without")
async def without(request: Request, form: guard.CheckedForm) -> Response:
    """The model's answers when some words (tokens, patches) are removed, as JSON."""
    explorer, asked = _asked(request, form)
    removed = numbers(guard.one(form, "removed"))
    found = await explorer.work.answer(request, lambda stop: explorer.answers(asked, removed, stop))
    return JSONResponse([{"label": answer.label, "value": answer.value} for answer in found])


@router.post("/picture")
def upload(request: Request, form: guard.CheckedForm, file: guard.Upload) -> Response:
    """Takes a picture and goes to its page."""
    explorer, asked = _asked(request, form)
    return RedirectResponse(f"/explore?{asked.link(picture=explorer.pictures.add(file))}", 303)


@router.get("/explore/picture/{key}")
def shown_picture(request: Request, key: str) -> Response:
    """An uploaded image by its key, as PNG."""
    return Response(_asked(request)[0].picture(key), media_type="image/png")


@router.get("/explore/export/{kind}")
async def export(request: Request, kind: str) -> Response:
    """The answers as a page, as JSON or as a picture."""
    explorer, asked = _asked(request)
    if kind not in ("html", "json", "png"):
        raise HTTPException(404, "There are exports as html, json and png.")
    return await explorer.work.answer(request, lambda stop: _exported(explorer, asked, kind, stop))


def _exported(explorer: Explorer, asked: Question, kind: str, stop: Event) -> Response:
    answered = [explorer.explain(asked, name, stop=stop) for name in asked.method]
    items = [_levelled(asked, answer.attribution) for answer in answered if answer.attribution is not None]
    if not items:
        raise ExegeteError("there is nothing to export: " + (answered[0].problem if answered else "ask something"))
    if kind == "png":
        return download(png(drawn_picture(items)), "attributions.png", "image/png")
    found = Attributions(items)
    if kind == "html":
        return download(found.to_html().encode(), "attributions.html", "text/html; charset=utf-8")
    return download(found.to_json().encode(), "attributions.json", "application/json")


@router.get("/explore/heads/{name:path}")
def heads(request: Request, name: str) -> Response:
    """The page of coefficients that a learned explainer gives to attention heads."""
    method = _asked(request)[0].methods.get(name)
    if method is None or not learns(method):
        raise HTTPException(404, "There is no learned explainer of that name.")
    return page(request, "heads", methods={name: coefficients(method)}, back="/explore")


def _asked(request: Request, form: guard.Form | None = None) -> tuple[Explorer, Question]:
    site = site_of(request)
    explorer = site.explorer
    if explorer is None:
        raise HTTPException(404)
    query = request.query_params
    given = {name: query.getlist(name) for name in query} if form is None else form
    return explorer, question(given, list(explorer.models), list(explorer.methods), explorer.usual, site.limits)


def _levelled(asked: Question, item: Attribution) -> Attribution:
    """The attribution by words, or by tokens."""
    return (
        item
        if asked.level == "word"
        else replace(item, words=(), word_scores=item.word_scores[:0], word_spans=(), pairs=())
    )


def _card(explorer: Explorer, asked: Question, answered: Answered) -> str:
    item = None if answered.attribution is None else _levelled(asked, answered.attribution)
    return fragment("explore_card", answered=answered, item=item, asked=asked, title=explorer.titles[answered.name])


def _bars(answers: Sequence[Answer]) -> list[tuple[Answer, bool]]:
    """The answers, the best first where there are many; and whether each is shown at once."""
    if len(answers) <= BARS:
        return [(answer, True) for answer in answers]
    ranked = sorted(answers, key=lambda answer: -answer.value)
    return [(answer, place < BARS) for place, answer in enumerate(ranked)]


def numbers(text: str) -> list[int]:
    """The numbers between commas. Raises ExegeteError for anything else."""
    parts = [part for part in text.split(",") if part]
    if not all(part.isdecimal() and len(part) < 7 for part in parts):
        raise ExegeteError("expected the numbers of words between commas")
    return [int(part) for part in parts]
