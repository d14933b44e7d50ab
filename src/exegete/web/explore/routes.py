"""Routes of the explorer: explanations, predictions without some units, pictures, exports, coefficients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from random import choice
from threading import Event

from fastapi import APIRouter, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, RedirectResponse, Response, StreamingResponse

from exegete.errors import ExegeteError
from exegete.reports.explanations import Explanation, Explanations
from exegete.reports.highlighted.picture import draw_picture
from exegete.web import authentication
from exegete.web.coefficients import has_coefficients, make_coefficient_heatmaps
from exegete.web.explore.progress import CountCallback
from exegete.web.explore.question import LEVELS, TextQuestion, parse_text_question
from exegete.web.explore.service import EXAMPLE_PREFIX, Explorer, LabelScore, MethodResult
from exegete.web.explore.stream import SendEvent, stream_events, throttle_progress
from exegete.web.pages import make_download, render_fragment, render_page
from exegete.web.pictures import encode_png
from exegete.web.site import get_site

router = APIRouter()
VISIBLE_BARS = 8
"""Number of labels that are visible before the user asks for all."""


@router.get("/explore")
async def show_explorer(request: Request) -> Response:
    """Show the form and, for an input, the prediction and places for the explanations.

    The page's script then fills the places from the stream. With `whole` in the query, the page has the explanations.
    """
    explorer, question = _parse_request(request)
    if not explorer.has_input(question):
        # An empty form needs no model, so it does not wait behind the explanations of others.
        return await run_in_threadpool(_render_explorer, request, explorer, question, Event())
    return await explorer.work.run(request, lambda stop: _render_explorer(request, explorer, question, stop))


def _render_explorer(request: Request, explorer: Explorer, question: TextQuestion, stop: Event) -> Response:
    labels, problem, cards = [], "", list[MethodResult]()
    if explorer.has_input(question):
        try:
            explorer.check_target(question)
            labels = explorer.predict_labels(question, stop=stop)
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
        bars=_select_bars(labels),
        problem=problem,
        cards=[_render_card(explorer, question, card) for card in cards],
        heads={name for name, method in explorer.methods.items() if has_coefficients(method)},
    )


@router.get("/explore/example")
def redirect_to_example(request: Request) -> Response:
    """Redirect to the explorer with a random example of the server."""
    explorer, question = _parse_request(request)
    indices = explorer.find_examples(question.model)
    if not indices:
        raise ExegeteError(f"this server has no examples for {question.model}: start it with --data")
    index = choice(indices)  # noqa: S311  (no secret)
    example = explorer.examples[index]
    if "image" in example:
        query = question.build_query(picture=f"{EXAMPLE_PREFIX}{index}")
    else:
        query = question.build_query(text=example["text"], pair=example.get("text_pair") or "")
    return RedirectResponse(f"/explore?{query}", 303)


@router.get("/explore/stream")
async def stream_results(request: Request) -> Response:
    """Stream the explanations as events: `progress` (method and share), then `card` (method and HTML), per method."""
    explorer, question = _parse_request(request)
    lines = stream_events(explorer.work, partial(_send_results, explorer, question))
    # nginx would otherwise collect the events and deliver them when the stream ends.
    return StreamingResponse(lines, media_type="text/event-stream", headers={"x-accel-buffering": "no"})


def _send_results(explorer: Explorer, question: TextQuestion, send: SendEvent, stop: Event) -> None:
    for name in question.method:
        result = explorer.explain(question, name, _make_reporter(explorer, question, name, send), stop)
        send("card", {"method": name, "html": _render_card(explorer, question, result)})


def _make_reporter(explorer: Explorer, question: TextQuestion, name: str, send: SendEvent) -> CountCallback:
    report_share = throttle_progress(send, method=name)
    # Estimated at the first pass: a cached result needs none, and an invalid input fails in `explain` with its message.
    estimate = cache(partial(explorer.estimate_inputs, question, name))
    return lambda n_inputs: report_share(n_inputs / estimate())


@router.post("/explore/without")
async def predict_without_units(request: Request, form: authentication.CheckedForm) -> Response:
    """Return the prediction without some words (tokens, patches), as JSON."""
    explorer, question = _parse_request(request, form)
    removed = parse_numbers(authentication.get_field(form, "removed"))
    labels = await explorer.work.run(request, lambda stop: explorer.predict_labels(question, removed, stop))
    return JSONResponse([{"label": each.label, "value": each.value} for each in labels])


@router.post("/picture")
def upload_picture(request: Request, form: authentication.CheckedForm, file: authentication.Upload) -> Response:
    """Store an uploaded picture and redirect to its page."""
    explorer, question = _parse_request(request, form)
    return RedirectResponse(f"/explore?{question.build_query(picture=explorer.pictures.add(file))}", 303)


@router.get("/explore/picture/{key}")
def serve_picture(request: Request, key: str) -> Response:
    """Serve a picture as PNG."""
    return Response(_parse_request(request)[0].read_picture(key), media_type="image/png")


@router.get("/explore/export/{kind}")
async def export_results(request: Request, kind: str) -> Response:
    """Return the explanations as a file: an HTML page, JSON or a picture."""
    explorer, question = _parse_request(request)
    if kind not in ("html", "json", "png"):
        raise HTTPException(404, "Exports are available as html, json and png.")
    return await explorer.work.run(request, lambda stop: _make_export(explorer, question, kind, stop))


def _make_export(explorer: Explorer, question: TextQuestion, kind: str, stop: Event) -> Response:
    results = [explorer.explain(question, name, stop=stop) for name in question.method]
    items = [_select_level(question, result.attribution) for result in results if result.attribution is not None]
    if not items:
        raise ExegeteError(f"there is nothing to export: {results[0].problem if results else 'choose a method'}")
    if kind == "png":
        return make_download(encode_png(draw_picture(items)), "explanations.png", "image/png")
    explanations = Explanations(items)
    if kind == "html":
        return make_download(explanations.to_html().encode(), "explanations.html", "text/html; charset=utf-8")
    return make_download(explanations.to_json().encode(), "explanations.json", "application/json")


@router.get("/explore/heads/{name:path}")
def show_coefficients(request: Request, name: str) -> Response:
    """Show the coefficients that a learned explainer gives to attention heads."""
    method = _parse_request(request)[0].methods.get(name)
    if method is None or not has_coefficients(method):
        raise HTTPException(404, "No learned explainer has this name.")
    return render_page(request, "heads", methods={name: make_coefficient_heatmaps(method)}, back="/explore")


def _parse_request(request: Request, form: authentication.Form | None = None) -> tuple[Explorer, TextQuestion]:
    site = get_site(request)
    explorer = site.explorer
    if explorer is None:
        raise HTTPException(404)
    query = form
    if query is None:
        query = {name: request.query_params.getlist(name) for name in request.query_params}
    models, methods = list(explorer.models), list(explorer.methods)
    return explorer, parse_text_question(query, models, methods, explorer.get_default_methods, site.limits)


def _select_level(question: TextQuestion, item: Explanation) -> Explanation:
    """Return the explanation by words, or by tokens; that of an image by patches."""
    if question.level == "token" and item.texts:
        return item.aggregate("token")
    return item


def _render_card(explorer: Explorer, question: TextQuestion, result: MethodResult) -> str:
    item = None if result.attribution is None else _select_level(question, result.attribution)
    title = explorer.titles[result.name]
    return render_fragment("explore_card", result=result, item=item, question=question, title=title)


def _select_bars(labels: Sequence[LabelScore]) -> list[tuple[LabelScore, bool]]:
    """Return each label and whether its bar is visible at first. If not all are, the labels are sorted by value."""
    if len(labels) <= VISIBLE_BARS:
        return [(label, True) for label in labels]
    ranked = sorted(labels, key=lambda label: -label.value)
    return [(label, rank < VISIBLE_BARS) for rank, label in enumerate(ranked)]


def parse_numbers(text: str) -> list[int]:
    """Return the numbers in a text of comma-separated numbers. Raises ExegeteError for any other text."""
    parts = [part for part in text.split(",") if part]
    if not all(part.isdecimal() and len(part) < 7 for part in parts):
        raise ExegeteError("expected numbers of words, separated by commas")
    return [int(part) for part in parts]
