"""Routes of stored results: tables, examples, coefficients, figures of studies, and written reports."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import HTMLResponse, Response

from expound.errors import check_choice
from expound.reports.highlighted import colors
from expound.reports.highlighted.highlight import format_number
from expound.reports.table import Cell, Table
from expound.reports.tables.board_table import make_board_table
from expound.serve.browse.corpus import render_corpus
from expound.serve.browse.listing import ONLY, ORDERS, SORTS, get_example_values, list_examples, parse_view
from expound.serve.browse.stored import Result
from expound.serve.heatmaps import has_coefficients, make_coefficient_heatmaps, make_layer_heatmap
from expound.serve.pages import render_page
from expound.serve.pictures import encode_png
from expound.serve.site import get_site

router = APIRouter(prefix="/browse")
# Reports are files with inline scripts, and a folder of results may come from somebody else. The sandbox gives the page
# an origin of its own, so that its scripts cannot act as the signed-in admin.
REPORT_POLICY = (
    "sandbox allow-scripts allow-popups; default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# A study can have a hundred thousand figures; browsers become slow with tables of that size.
MAX_ROWS = 500


@router.get("")
def show_results(request: Request) -> Response:
    """List all results."""
    return render_page(request, "browse_results", results=get_site(request).results.values())


@router.get("/{name}")
def show_result(request: Request, name: str) -> Response:
    """Show a result: the table of methods and metrics, the agreement of the methods, and the examples."""
    result = _get_result(request, name)
    if result.is_study:
        return _render_study(request, result)
    if result.is_corpus:
        return render_corpus(request, result)
    view = parse_view(result, request.query_params)
    board = result.leaderboard
    return render_page(
        request,
        "browse_result",
        result=result,
        board=board,
        table=make_board_table(board, "Method"),
        links={name: f"{view.build_link(method=name)}#examples" for name in board.rows},
        agreement=_make_agreement_table(result) if result.has_attributions and len(result.methods) > 1 else None,
        view=view,
        listing=list_examples(result, view),
        predictions=sorted(set(map(str, result.comparison.results["prediction"]))),
        sorts=SORTS,
        orders=ORDERS,
        only=ONLY,
        labelled=any("label_name" in row for row in result.comparison.examples),
    )


@router.get("/{name}/examples/{example}")
def show_example(request: Request, name: str, example: int) -> Response:
    """Show one example, explained by each method."""
    result = _get_result(request, name)
    if result.is_study or result.is_corpus or example not in set(result.comparison.results["example"]):
        raise HTTPException(404, "This result does not have this example.")
    rows = result.comparison.examples
    row = rows[example] if example < len(rows) else {}
    return render_page(
        request,
        "browse_example",
        result=result,
        example=example,
        row=row,
        items=result.attributions.get(example, {}),
        values=get_example_values(result, example),
        disagreement=result.disagreement.get(example),
        layer_map=make_layer_heatmap,
        view=parse_view(result, request.query_params),
        last=int(result.comparison.results["example"].max()),
    )


@router.get("/{name}/examples/{example}/picture")
def serve_picture(request: Request, name: str, example: int) -> Response:
    """Serve the image of an example as PNG."""
    result = _get_result(request, name)
    rows = [] if result.is_corpus else result.comparison.examples
    if not 0 <= example < len(rows) or "image" not in rows[example]:
        raise HTTPException(404, "This example has no picture.")
    return Response(encode_png(rows[example]["image"]), media_type="image/png")


@router.get("/{name}/heads")
def show_coefficients(request: Request, name: str) -> Response:
    """Show the coefficients that the result's learned explainers give to attention heads."""
    result = _get_result(request, name)
    if result.is_study or result.is_corpus or not result.learned_methods:
        raise HTTPException(404, "This result has no learned explainer.")
    methods = {}
    for method in result.learned_methods:
        explainer = result.load_explainer(method)
        if has_coefficients(explainer):
            methods[method] = make_coefficient_heatmaps(explainer)
    return render_page(request, "heads", methods=methods, back=f"/browse/{name}")


@router.get("/{name}/report")
def serve_report(request: Request, name: str) -> Response:
    """Serve the report that was written with the result, in a sandbox."""
    path = _get_result(request, name).report_path
    if path is None:
        raise HTTPException(404, "This result has no report.")
    return HTMLResponse(path.read_text(encoding="utf-8"), headers={"content-security-policy": REPORT_POLICY})


def _make_agreement_table(result: Result) -> Table:
    """Return the mean τ between each two methods as coloured cells."""
    titles, rows = [result.titles[name] for name in result.methods], list[list[Cell]]()
    for title, taus in zip(titles, result.agreement.tolist(), strict=True):
        row = [Cell(title)]
        for other, tau in zip(titles, taus, strict=True):
            shade = colors.level_to_css_class(colors.score_to_level(tau, 1.0), signed=True)
            row.append(Cell(format_number(tau), tip=f"{title} and {other}", shade=shade))
        row[len(rows) + 1] = Cell("·")
        rows.append(row)
    return Table(["", *titles], rows)


def _render_study(request: Request, result: Result) -> Response:
    """Return the page of a study's figures, filtered by the fields in the query."""
    frame = result.figures
    fields = [name for name in ("training", "model", "recipe", "dataset", "explainer", "metric") if name in frame]
    chosen = {name: request.query_params.get(name, "") for name in fields}
    for name, value in chosen.items():
        if value:
            frame = frame[frame[name].astype(str) == value]
    choices = {name: sorted(set(result.figures[name].astype(str))) for name in fields}
    rows = list[list[Cell]]()
    for values in frame.head(MAX_ROWS).itertuples(index=False):
        texts = [format_number(value) if isinstance(value, float) else str(value) for value in values]
        rows.append([Cell(text, value=value) for text, value in zip(texts, values, strict=True)])
    table = Table(list(map(str, frame.columns)), rows, texts=len(frame.columns))
    return render_page(
        request, "browse_study", result=result, table=table, count=len(frame), choices=choices, chosen=chosen
    )


def _get_result(request: Request, name: str) -> Result:
    results = get_site(request).results
    check_choice("result", name, results)
    return results[name]
