"""Routes of the explorer: questions, results, outputs without some units, costs, pictures, exports, coefficients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from random import choice
from threading import Event
from typing import Any

from fastapi import APIRouter, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, RedirectResponse, Response, StreamingResponse

from expound.data.spans import CONVERSATION_UNITS
from expound.errors import ExpoundError
from expound.reports.explanations import Explanation, Explanations
from expound.reports.highlighted.highlight import highlight_explanation
from expound.reports.highlighted.picture import draw_picture
from expound.serve import authentication
from expound.serve.explore.question import MAX_TOKENS, PROMPT_UNITS, ROWS, UNITS, Question, read_question
from expound.serve.explore.queue import SendEvent, stream_events, throttle_progress
from expound.serve.explore.service import CACHE_SIZE, Explorer, MethodResult
from expound.serve.explore.tasks import OutputScore, list_targets, make_train_command, takes_images
from expound.serve.explore.view import arrange_bars, collect_row_values, cut_prompt, list_cited_parts
from expound.serve.heatmaps import has_coefficients, make_coefficient_heatmaps
from expound.serve.pages import make_download, render_fragment, render_page
from expound.serve.pictures import encode_png
from expound.serve.site import get_site

router = APIRouter()
NOTHING: Mapping[str, str] = {}
Fields = Mapping[str, list[str]]


@router.get("/explore")
async def show_explorer(request: Request) -> Response:
    """Show the form and, for a question, the model's output and places for the explanations.

    The page's script then fills the places from the stream. With `whole` in the query, the page has the explanations.
    The prompts of language models are answered at the address of a stored question only, and by the stream.
    """
    explorer, question = _read_request(request)
    is_prompt, is_whole = explorer.is_prompt(question), "whole" in request.query_params
    problems = question.find_problems(get_site(request).limits)
    is_asked = explorer.has_input(question) and is_prompt == ("key" in request.query_params)
    if problems or not is_asked or (is_prompt and not is_whole):
        # What needs no model does not wait behind the explanations of others.
        is_waiting = is_asked and not problems
        return await run_in_threadpool(_render_page, request, explorer, question, problems, is_asked=is_waiting)
    return await explorer.work.run(request, lambda stop: _render_answer(request, explorer, question, is_whole, stop))


def _render_answer(request: Request, explorer: Explorer, question: Question, is_whole: bool, stop: Event) -> Response:
    try:
        explorer.check_target(question)
        output = _render_output(explorer, question, explorer.predict(question, stop=stop), stop)
    except ExpoundError as error:
        return _render_page(request, explorer, question, {"question": str(error)})
    cards = []
    if is_whole:
        for name in question.method:
            cards.append(_render_card(explorer, question, explorer.explain(question, name, stop=stop)))
    return _render_page(request, explorer, question, output=output, cards=cards, is_asked=True)


def _render_page(
    request: Request, explorer: Explorer, question: Question, problems: Mapping[str, str] = NOTHING, **values: Any
) -> Response:
    """Return the page of a question; `problems`: what is wrong with the form's fields, by name."""
    model = explorer.models[question.model]
    is_prompt = explorer.is_prompt(question)
    has_chat_template = is_prompt and bool(getattr(model.tokenizer, "chat_template", None))
    units = UNITS
    if is_prompt:
        units = tuple(unit for unit in PROMPT_UNITS if has_chat_template or unit not in CONVERSATION_UNITS)
    return render_page(
        request,
        "explore",
        status=values.pop("status", 422 if problems else 200),
        explorer=explorer,
        question=question,
        query=explorer.make_query(question) if values.get("is_asked") else "",
        problems=problems,
        is_prompt=is_prompt,
        is_image=model.modality == "image",
        takes_images=takes_images(model),
        has_chat_template=has_chat_template,
        has_examples=bool(explorer.find_examples(question.model)),
        methods=explorer.list_methods(question.model),
        heads=[name for name, method in explorer.methods.items() if has_coefficients(method)],
        targets={} if "texts" in problems else list_targets(model, question),
        units=units,
        rows=ROWS,
        most=MAX_TOKENS,
        exports=_list_exports(explorer, question),
        train_command=make_train_command(model),
        **({"costs": {}, "output": "", "cards": (), "is_asked": False} | values),
    )


@router.post("/explore")
async def ask(request: Request, form: authentication.CheckedForm) -> Response:
    """Redirect to the address of a form's question; show the form again if it cannot be answered."""
    explorer, question = _read_request(request, form)
    problems = question.find_problems(get_site(request).limits, needs_text=explorer.is_prompt(question))
    if problems:
        return await run_in_threadpool(_render_page, request, explorer, question, problems)
    # On a phone, the form fills more than a window: the page opens at the answer.
    return RedirectResponse(f"/explore?{explorer.make_query(question)}#answer", 303)


@router.post("/explore/example")
async def show_example(request: Request, form: authentication.CheckedForm) -> Response:
    """Redirect to a random example of the server; show a prompt in the form, since its answer takes longer."""
    explorer, question = _read_request(request, form)
    examples = explorer.find_examples(question.model)
    if not examples:
        raise ExpoundError(f"this server has no examples for {question.model}: start it with --data")
    example = choice(examples)  # noqa: S311  (no secret)
    question = replace(example, method=question.method, unit=question.unit, rows=question.rows, tokens=question.tokens)
    if explorer.is_prompt(question):
        return await run_in_threadpool(_render_page, request, explorer, question)
    return RedirectResponse(f"/explore?{question.query}#answer", 303)


@router.post("/explore/costs")
async def show_costs(request: Request, form: authentication.CheckedForm) -> Response:
    """Show the form with the methods that apply to a language model and their costs for a prompt."""
    explorer, question = _read_request(request, form)
    problems = question.find_problems(get_site(request).limits, needs_text=explorer.is_prompt(question))
    costs = dict[str, tuple[str, str]]()
    if explorer.is_prompt(question):
        await explorer.work.run(request, lambda stop: explorer.try_methods(question.model, stop))
        try:
            if not problems:
                costs = await explorer.work.run(request, lambda stop: explorer.describe_costs(question, stop))
        except ExpoundError as error:
            problems = {"text": str(error)}
    applicable = tuple(name for name in question.method if name in explorer.list_methods(question.model))
    question = replace(question, method=applicable or tuple(explorer.get_default_methods(question.model)))
    return await run_in_threadpool(_render_page, request, explorer, question, problems, costs=costs, status=200)


@router.get("/explore/stream")
async def stream_results(request: Request) -> Response:
    """Stream the results as events.

    For a prompt, `text` (words of the answer) and `output` (HTML); per method `progress` (method and share), then
    `card` (method and HTML).
    """
    explorer, question = _read_request(request, is_valid=True)
    lines = stream_events(explorer.work, partial(_send_results, explorer, question))
    # nginx would otherwise collect the events and deliver them when the stream ends.
    return StreamingResponse(lines, media_type="text/event-stream", headers={"x-accel-buffering": "no"})


def _send_results(explorer: Explorer, question: Question, send: SendEvent, stop: Event) -> None:
    if explorer.is_prompt(question):
        scores = explorer.predict(question, stop=stop, write=lambda text: send("text", {"text": text}))
        send("output", {"html": _render_output(explorer, question, scores, stop)})
    for name in question.method:
        result = explorer.explain(question, name, throttle_progress(send, method=name), stop)
        send("card", {"method": name, "html": _render_card(explorer, question, result)})


@router.post("/explore/without")
async def predict_without_units(request: Request, form: authentication.CheckedForm) -> Response:
    """Return the model's output without some words (tokens, patches, documents), as JSON."""
    explorer, question = _read_request(request, form, is_valid=True)
    removed = parse_numbers(authentication.get_field(form, "removed"))
    scores = await explorer.work.run(request, lambda stop: explorer.predict(question, removed, stop))
    return JSONResponse([score.to_dict() for score in scores])


@router.post("/picture")
def upload_picture(request: Request, form: authentication.CheckedForm, file: authentication.Upload) -> Response:
    """Store an uploaded picture, and redirect to its page, or show it in the form of a prompt."""
    explorer, question = _read_request(request, form)
    question = replace(question, picture=explorer.add_picture(file))
    # A prompt is not asked before it is complete: its form is shown again.
    if explorer.is_prompt(question):
        return _render_page(request, explorer, question)
    return RedirectResponse(f"/explore?{question.query}#answer", 303)


@router.get("/explore/picture/{key}")
def serve_picture(request: Request, key: str) -> Response:
    """Serve a picture as PNG."""
    return Response(_get_explorer(request).read_picture(key), media_type="image/png")


@router.get("/explore/export/{kind}")
async def export_results(request: Request, kind: str) -> Response:
    """Return the explanations as a file: an HTML page, JSON or, without a prompt, a picture."""
    explorer, question = _read_request(request, is_valid=True)
    kinds = _list_exports(explorer, question)
    if kind not in kinds:
        raise HTTPException(404, f"Exports are available as {' and '.join(kinds)}.")
    return await explorer.work.run(request, lambda stop: _make_export(explorer, question, kind, stop))


def _list_exports(explorer: Explorer, question: Question) -> tuple[str, ...]:
    return ("html", "json") if explorer.is_prompt(question) else ("html", "json", "png")


def _make_export(explorer: Explorer, question: Question, kind: str, stop: Event) -> Response:
    results = [explorer.explain(question, name, stop=stop) for name in question.method]
    items = [_select_unit(question, result.attribution) for result in results if result.attribution is not None]
    if not items:
        raise ExpoundError(f"there is nothing to export: {results[0].problem}")
    if kind == "png":
        return make_download(encode_png(draw_picture(items)), "explanations.png", "image/png")
    explanations = Explanations(items)
    if kind == "html":
        return make_download(explanations.to_html().encode(), "explanations.html", "text/html; charset=utf-8")
    return make_download(explanations.to_json().encode(), "explanations.json", "application/json")


@router.get("/explore/heads/{name:path}")
def show_coefficients(request: Request, name: str) -> Response:
    """Show the coefficients that a learned explainer gives to attention heads."""
    method = _get_explorer(request).methods.get(name)
    if method is None or not has_coefficients(method):
        raise HTTPException(404, "No learned explainer has this name.")
    return render_page(request, "heads", methods={name: make_coefficient_heatmaps(method)}, back="/explore")


def _get_explorer(request: Request) -> Explorer:
    explorer = get_site(request).explorer
    if explorer is None:
        raise HTTPException(404)
    return explorer


def _read_request(request: Request, form: Fields | None = None, *, is_valid: bool = False) -> tuple[Explorer, Question]:
    """Return the explorer and the question in a form or address, or the stored question whose key it has.

    Raises:
        ExpoundError: a name is unknown; with `is_valid`, also if the texts are too long.
        HTTPException: (404) the question is no longer stored.
    """
    explorer = _get_explorer(request)
    fields = form
    if fields is None:
        fields = {name: request.query_params.getlist(name) for name in request.query_params}
    key, limits = authentication.get_field(fields, "key"), get_site(request).limits
    question = explorer.questions.get(key)
    if key and question is None:
        raise HTTPException(404, f"This question is no longer stored (the last {CACHE_SIZE} are): ask it again.")
    if question is None:
        models, methods = list(explorer.models), list(explorer.methods)
        question = read_question(fields, models, methods, explorer.get_default_methods, limits)
    problems = question.find_problems(limits)
    if is_valid and problems:
        raise ExpoundError(" ".join(problems.values()))
    return explorer, question


def _select_unit(question: Question, item: Explanation) -> Explanation:
    """Return the explanation of a text by the question's unit, of an image by patches, of a prompt as it is."""
    if question.unit in ("", "word") or item.exchange is not None or not item.texts:
        return item
    return item.aggregate(question.unit)


def _render_output(explorer: Explorer, question: Question, scores: list[OutputScore], stop: Event) -> str:
    return render_fragment(
        "explore_output",
        bars=arrange_bars(scores),
        outputs=[score.to_dict() for score in scores],
        pieces=explorer.cut_answer(question, stop),
        is_given=explorer.is_prompt(question) and explorer.has_answer(question),
    )


def _render_card(explorer: Explorer, question: Question, result: MethodResult) -> str:
    values: dict[str, Any] = {"result": result, "title": explorer.titles[result.name], "item": None, "cited": ()}
    if result.attribution is not None:
        drawing = highlight_explanation(_select_unit(question, result.attribution))
        values |= {"item": drawing.item, "drawing": drawing, "sections": cut_prompt(drawing), "rows": None}
        if drawing.item.exchange:
            values |= {"rows": collect_row_values(drawing), "cited": list_cited_parts(drawing.item, question)}
        values |= {"picture": f"/explore/picture/{question.picture}"}
        model = explorer.models[question.model]
        values["labels"] = model.labels if make_train_command(model) else ()
    return render_fragment("explore_card", **values)


def parse_numbers(text: str) -> list[int]:
    """Return the numbers in a text of comma-separated numbers. Raises ExpoundError for any other text."""
    parts = [part for part in text.split(",") if part]
    if not all(part.isdecimal() and len(part) < 7 for part in parts):
        raise ExpoundError("expected numbers of words, separated by commas")
    return [int(part) for part in parts]
