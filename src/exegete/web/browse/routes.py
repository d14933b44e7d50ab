"""The pages of results: the table, its examples, one example, a study's figures, and the report as it was written."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import HTMLResponse, Response

from exegete.errors import unknown
from exegete.reports.highlighted import colors
from exegete.reports.tables.cells import make_cells
from exegete.web.browse.corpus import corpus_page
from exegete.web.browse.listing import ONLY, ORDERS, SORTS, get_example_values, list_examples, parse_view
from exegete.web.browse.stored import Result
from exegete.web.coefficients import has_coefficients, make_coefficient_heatmaps
from exegete.web.heatmaps import make_layer_heatmap
from exegete.web.pages import render_page
from exegete.web.pictures import encode_png
from exegete.web.site import get_site

router = APIRouter(prefix="/browse")
REPORT_POLICY = (
    "sandbox allow-scripts allow-popups; default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
ROWS = 500


@router.get("")
def results(request: Request) -> Response:
    """The page that lists all results."""
    return render_page(request, "browse_results", results=get_site(request).results.values())


@router.get("/{name}")
def result(request: Request, name: str) -> Response:
    """A result: its table, where methods agree, and its examples."""
    found = _found(request, name)
    if found.is_study:
        return _study(request, found)
    if found.is_corpus:
        return corpus_page(request, found)
    view = parse_view(found, request.query_params)
    board = found.leaderboard
    return render_page(
        request,
        "browse_result",
        result=found,
        board=board,
        cells=make_cells(board),
        agreement=found.agreement if found.has_attributions and len(found.methods) > 1 else None,
        shade=lambda tau: colors.level_to_css_class(colors.score_to_level(tau, 1.0), signed=True),
        view=view,
        listing=list_examples(found, view),
        predictions=sorted(set(map(str, found.comparison.results["prediction"]))),
        sorts=SORTS,
        orders=ORDERS,
        only=ONLY,
        labelled=any("label_name" in row for row in found.comparison.examples),
    )


@router.get("/{name}/examples/{example}")
def example(request: Request, name: str, example: int) -> Response:
    """One example by every method."""
    found = _found(request, name)
    if found.is_study or found.is_corpus or example not in set(found.comparison.results["example"]):
        raise HTTPException(404, "This result has no such example.")
    rows = found.comparison.examples
    row = rows[example] if example < len(rows) else {}
    return render_page(
        request,
        "browse_example",
        result=found,
        example=example,
        row=row,
        items=found.attributions.get(example, {}),
        values=get_example_values(found, example),
        disagreement=found.disagreement.get(example),
        layer_map=make_layer_heatmap,
        view=parse_view(found, request.query_params),
        last=int(found.comparison.results["example"].max()),
    )


@router.get("/{name}/examples/{example}/picture")
def picture(request: Request, name: str, example: int) -> Response:
    """The image of an example, as PNG."""
    found = _found(request, name)
    rows = [] if found.is_corpus else found.comparison.examples
    if not 0 <= example < len(rows) or "image" not in rows[example]:
        raise HTTPException(404, "This example has no picture.")
    return Response(encode_png(rows[example]["image"]), media_type="image/png")


@router.get("/{name}/heads")
def heads(request: Request, name: str) -> Response:
    """The page of coefficients that the result's learned explainers give to attention heads."""
    found = _found(request, name)
    if found.is_study or found.is_corpus or not found.learned_methods:
        raise HTTPException(404, "This result has no learned explainer.")
    methods = {
        each: make_coefficient_heatmaps(found.load_explainer(each))
        for each in found.learned_methods
        if has_coefficients(found.load_explainer(each))
    }
    return render_page(request, "heads", methods=methods, back=f"/browse/{name}")


@router.get("/{name}/report")
def report(request: Request, name: str) -> Response:
    """The page that was written with the result, in a sandbox of its own."""
    path = _found(request, name).report_path
    if path is None:
        raise HTTPException(404, "This result has no report.")
    return HTMLResponse(path.read_text(encoding="utf-8"), headers={"content-security-policy": REPORT_POLICY})


def _study(request: Request, found: Result) -> Response:
    """A study's figures, those that match."""
    frame = found.figures
    fields = [name for name in ("training", "model", "recipe", "dataset", "explainer", "metric") if name in frame]
    chosen = {name: request.query_params.get(name, "") for name in fields}
    for name, value in chosen.items():
        if value:
            frame = frame[frame[name].astype(str) == value]
    choices = {name: sorted(set(found.figures[name].astype(str))) for name in fields}
    shown = frame.head(ROWS)
    return render_page(
        request, "browse_study", result=found, shown=shown, count=len(frame), choices=choices, chosen=chosen
    )


def _found(request: Request, name: str) -> Result:
    results = get_site(request).results
    if name not in results:
        raise unknown("result", name, results)
    return results[name]
