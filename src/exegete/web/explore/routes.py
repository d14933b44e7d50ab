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
from exegete.web import authentication
from exegete.web.coefficients import has_coefficients, make_coefficient_heatmaps
from exegete.web.explore.progress import Report
from exegete.web.explore.question import LEVELS, TextQuestion, parse_text_question
from exegete.web.explore.service import EXAMPLE_PREFIX, Explorer, LabelScore, MethodResult
from exegete.web.explore.stream import Put, stream_events, throttle_progress
from exegete.web.pages import make_download, render_fragment, render_page
from exegete.web.pictures import encode_png
from exegete.web.site import get_site

router = APIRouter()
VISIBLE_BARS = 8
"""Labels that are shown before the rest is folded away."""


@router.get("/explore")
async def explore(request: Request) -> Response:
    """A question's form, and its answers when something is question; with `whole` they are there at once."""
    explorer, question = _asked(request)
    if not explorer.has_input(question):
        return await run_in_threadpool(_explored, request, explorer, question, Event())
    return await explorer.work.run(request, lambda stop: _explored(request, explorer, question, stop))


def _explored(request: Request, explorer: Explorer, question: TextQuestion, stop: Event) -> Response:
    answers, problem, cards = [], "", list[MethodResult]()
    if explorer.has_input(question):
        try:
            explorer.check_target(question)
            answers = explorer.predict_labels(question, stop=stop)
            if "whole" in request.query_params:
                cards = [explorer.explain(question, name, stop=stop) for name in question.method]
        except ExegeteError as error:
            problem = str(error)
    return render_page(
        request,
        "explore",
        status=422 if problem else 200,
        explorer=explorer,
        question=question,
        image=explorer.is_image_model(question.model),
        examples=bool(explorer.find_examples(question.model)),
        levels=LEVELS,
        labels=explorer.list_target_labels(question),
        bars=_bars(answers),
        problem=problem,
        cards=[_card(explorer, question, card) for card in cards],
        heads={name for name, method in explorer.methods.items() if has_coefficients(method)},
    )


@router.get("/explore/example")
def some_example(request: Request) -> Response:
    """Another of the server's examples."""
    explorer, question = _asked(request)
    fitting = explorer.find_examples(question.model)
    if not fitting:
        raise ExegeteError(f"this server has no examples for {question.model}: start it with --data")
    number = choice(fitting)  # noqa: S311  (no secret)
    row = explorer.examples[number]
    if "image" in row:
        return RedirectResponse(f"/explore?{question.build_query(picture=f'{EXAMPLE_PREFIX}{number}')}", 303)
    return RedirectResponse(f"/explore?{question.build_query(text=row['text'], pair=row.get('text_pair') or '')}", 303)


@router.get("/explore/stream")
async def stream(request: Request) -> Response:
    """The answers as they come: `progress` (method and share), `card` (method and HTML)."""
    explorer, question = _asked(request)
    lines = stream_events(explorer.work, partial(_tell, explorer, question))
    return StreamingResponse(lines, media_type="text/event-stream", headers={"x-accel-buffering": "no"})


def _tell(explorer: Explorer, question: TextQuestion, put: Put, stop: Event) -> None:
    for name in question.method:
        found = explorer.explain(question, name, _reporter(explorer, question, name, put), stop)
        put("card", {"method": name, "html": _card(explorer, question, found)})


def _reporter(explorer: Explorer, question: TextQuestion, name: str, put: Put) -> Report:
    told, total = throttle_progress(put, method=name), cache(partial(explorer.estimate_inputs, question, name))
    return lambda seen: told(seen / total())


@router.post("/explore/without")
async def without(request: Request, form: authentication.CheckedForm) -> Response:
    """The model's answers when some words (tokens, patches) are removed, as JSON."""
    explorer, question = _asked(request, form)
    removed = numbers(authentication.get_field(form, "removed"))
    found = await explorer.work.run(request, lambda stop: explorer.predict_labels(question, removed, stop))
    return JSONResponse([{"label": answer.label, "value": answer.value} for answer in found])


@router.post("/picture")
def upload(request: Request, form: authentication.CheckedForm, file: authentication.Upload) -> Response:
    """Takes a picture and goes to its page."""
    explorer, question = _asked(request, form)
    return RedirectResponse(f"/explore?{question.build_query(picture=explorer.pictures.add(file))}", 303)


@router.get("/explore/picture/{key}")
def shown_picture(request: Request, key: str) -> Response:
    """An uploaded image by its key, as PNG."""
    return Response(_asked(request)[0].read_picture(key), media_type="image/png")


@router.get("/explore/export/{kind}")
async def export(request: Request, kind: str) -> Response:
    """The answers as a page, as JSON or as a picture."""
    explorer, question = _asked(request)
    if kind not in ("html", "json", "png"):
        raise HTTPException(404, "There are exports as html, json and png.")
    return await explorer.work.run(request, lambda stop: _exported(explorer, question, kind, stop))


def _exported(explorer: Explorer, question: TextQuestion, kind: str, stop: Event) -> Response:
    answered = [explorer.explain(question, name, stop=stop) for name in question.method]
    items = [_levelled(question, answer.attribution) for answer in answered if answer.attribution is not None]
    if not items:
        raise ExegeteError("there is nothing to export: " + (answered[0].problem if answered else "ask something"))
    if kind == "png":
        return make_download(encode_png(drawn_picture(items)), "attributions.png", "image/png")
    found = Attributions(items)
    if kind == "html":
        return make_download(found.to_html().encode(), "attributions.html", "text/html; charset=utf-8")
    return make_download(found.to_json().encode(), "attributions.json", "application/json")


@router.get("/explore/heads/{name:path}")
def heads(request: Request, name: str) -> Response:
    """The page of coefficients that a learned explainer gives to attention heads."""
    method = _asked(request)[0].methods.get(name)
    if method is None or not has_coefficients(method):
        raise HTTPException(404, "There is no learned explainer of that name.")
    return render_page(request, "heads", methods={name: make_coefficient_heatmaps(method)}, back="/explore")


def _asked(request: Request, form: authentication.Form | None = None) -> tuple[Explorer, TextQuestion]:
    site = get_site(request)
    explorer = site.explorer
    if explorer is None:
        raise HTTPException(404)
    query = request.query_params
    given = {name: query.getlist(name) for name in query} if form is None else form
    return explorer, parse_text_question(
        given, list(explorer.models), list(explorer.methods), explorer.get_default_methods, site.limits
    )


def _levelled(question: TextQuestion, item: Attribution) -> Attribution:
    """The attribution by words, or by tokens."""
    return (
        item
        if question.level == "word"
        else replace(item, words=(), word_scores=item.word_scores[:0], word_spans=(), pairs=())
    )


def _card(explorer: Explorer, question: TextQuestion, answered: MethodResult) -> str:
    item = None if answered.attribution is None else _levelled(question, answered.attribution)
    return render_fragment(
        "explore_card", answered=answered, item=item, question=question, title=explorer.titles[answered.name]
    )


def _bars(answers: Sequence[LabelScore]) -> list[tuple[LabelScore, bool]]:
    """The answers, the best first where there are many; and whether each is shown at once."""
    if len(answers) <= VISIBLE_BARS:
        return [(answer, True) for answer in answers]
    ranked = sorted(answers, key=lambda answer: -answer.value)
    return [(answer, place < VISIBLE_BARS) for place, answer in enumerate(ranked)]


def numbers(text: str) -> list[int]:
    """The numbers between commas. Raises ExegeteError for anything else."""
    parts = [part for part in text.split(",") if part]
    if not all(part.isdecimal() and len(part) < 7 for part in parts):
        raise ExegeteError("expected the numbers of words between commas")
    return [int(part) for part in parts]
