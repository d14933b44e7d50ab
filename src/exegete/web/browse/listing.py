"""A result's examples, sorted, filtered and cut into pages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

import pandas as pd

from exegete.reports.attributions import Attribution
from exegete.web.browse.stored import Result
from exegete.web.choice import validate_choice

ONLY = ("all", "right", "wrong", "truncated")
SORTS = ("example", "metric", "disagreement", "probability", "tokens")
ORDERS = ("ascending", "descending")
PER_PAGE = 20


@dataclass(frozen=True)
class View:
    """The chosen view of a result: examples explained by `method` and judged by `metric`.

    `text`: what the example contains; `prediction`: what the model answered, empty for all; `only`: see `ONLY`.
    """

    method: str
    metric: str
    sort: str = "example"
    order: str = "ascending"
    text: str = ""
    prediction: str = ""
    only: str = "all"
    page: int = 1

    def build_link(self, **changes: Any) -> str:
        """The query of this view with changes; the first page unless one is named."""
        values = vars(replace(self, **({"page": 1} | changes)))
        return "?" + urlencode({name: value for name, value in values.items() if value not in ("", 1)})


@dataclass(frozen=True)
class ExampleRow:
    """An example in the list.

    `probability`: of the target; `value`: of the chosen metric; `item`: explained by the chosen method, where kept.
    """

    example: int
    text: str
    target: str
    prediction: str
    label: str | None
    probability: float
    tokens: int
    value: float
    disagreement: float
    item: Attribution | None


@dataclass(frozen=True)
class ExamplePage:
    """One page of a view: its lines, how many there are in all, and the number of pages."""

    lines: Sequence[ExampleRow]
    count: int
    pages: int


def parse_view(result: Result, query: Mapping[str, str]) -> View:
    """The view that an address asks for. Raises ExegeteError for names that the result does not have."""
    metrics = [card.name for card in result.comparison.cards]
    page = query.get("page", "1")
    return View(
        method=validate_choice("method", query.get("method", ""), result.leaderboard.rows),
        metric=validate_choice("metric", query.get("metric", ""), metrics),
        sort=validate_choice("sorting", query.get("sort", ""), SORTS),
        order=validate_choice("order", query.get("order", ""), ORDERS),
        only=validate_choice("choice", query.get("only", ""), ONLY),
        text=query.get("text", "")[:200],
        prediction=query.get("prediction", "")[:200],
        page=max(1, int(page)) if page.isdecimal() and len(page) < 9 else 1,
    )


def list_examples(result: Result, view: View) -> ExamplePage:
    """The lines of a view's page; examples without a value come last in either order."""
    frame = result.comparison.results
    mine = frame[frame["method"] == view.method]
    lines = [line for line in (_line(result, view, row) for row in mine.to_dict("records")) if _fits(line, view)]
    known = [line for line in lines if not math.isnan(_key(line, view.sort))]
    known.sort(key=lambda line: _key(line, view.sort), reverse=view.order == "descending")
    known += [line for line in lines if math.isnan(_key(line, view.sort))]
    start = (view.page - 1) * PER_PAGE
    return ExamplePage(known[start : start + PER_PAGE], len(known), max(1, math.ceil(len(known) / PER_PAGE)))


def get_example_values(result: Result, example: int) -> pd.DataFrame:
    """Methods × metrics of one example."""
    frame = result.comparison.results
    titles = {card.name: card.title for card in result.comparison.cards}
    found: pd.DataFrame = frame[frame["example"] == example].set_index("method")[list(titles)]
    return found.rename(columns=titles)


def _line(result: Result, view: View, row: Mapping[Any, Any]) -> ExampleRow:
    example = int(row["example"])
    item = result.attributions.get(example, {}).get(view.method)
    rows = result.comparison.examples
    given = rows[example] if example < len(rows) else {}
    texts = item.texts if item is not None else [given[name] for name in ("text", "text_pair") if name in given]
    return ExampleRow(
        example,
        " / ".join(texts),
        str(row["target"]),
        str(row["prediction"]),
        given.get("label_name"),
        float(row["probability"]),
        int(row["tokens"]),
        float(row[view.metric]),
        result.disagreement.get(example, math.nan),
        item,
    )


def _fits(line: ExampleRow, view: View) -> bool:
    if view.text.lower() not in line.text.lower() or view.prediction not in ("", line.prediction):
        return False
    if view.only in ("right", "wrong"):
        return line.label is not None and (line.label == line.prediction) == (view.only == "right")
    return view.only == "all" or (line.item is not None and line.item.truncated)


def _key(line: ExampleRow, sort: str) -> float:
    return float(line.value if sort == "metric" else getattr(line, sort))
