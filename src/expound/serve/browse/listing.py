"""The examples of a result, filtered, sorted and divided into pages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

import pandas as pd

from expound.reports.explanations import Explanation
from expound.serve.browse.stored import Result
from expound.serve.choice import validate_choice

ONLY = ("all", "right", "wrong", "truncated")
SORTS = ("example", "metric", "disagreement", "probability", "tokens")
ORDERS = ("ascending", "descending")
PER_PAGE = 20


@dataclass(frozen=True)
class View:
    """The method, metric, order and filters of a list of examples.

    Attributes:
        method: The method whose explanations are shown.
        metric: The metric whose values are shown.
        sort: The column to sort by, see `SORTS`.
        order: "ascending" or "descending".
        text: Text that an example must contain.
        prediction: The prediction that an example must have; empty: any.
        only: A filter, see `ONLY`.
        page: The number of the page, from 1.
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
        """Return the query of this view with some fields changed.

        It leads to the first page unless `page` is given: another filter has other pages.
        """
        values = vars(replace(self, **({"page": 1} | changes)))
        return "?" + urlencode({name: value for name, value in values.items() if value not in ("", 1)})


@dataclass(frozen=True)
class ExampleRow:
    """An example in the list, with the target's probability, the metric's value and the attribution if it was kept."""

    example: int
    text: str
    target: str
    prediction: str
    label: str | None
    probability: float
    tokens: int
    value: float
    disagreement: float
    item: Explanation | None


@dataclass(frozen=True)
class ExamplePage:
    """The examples on one page, the number of all examples of the view, and the number of pages."""

    rows: Sequence[ExampleRow]
    count: int
    pages: int


def parse_view(result: Result, query: Mapping[str, str]) -> View:
    """Return the view in the query of an address. Raises ExpoundError for a name that the result does not have."""
    metrics = [card.name for card in result.comparison.cards]
    return View(
        method=validate_choice("method", query.get("method", ""), result.leaderboard.rows),
        metric=validate_choice("metric", query.get("metric", ""), metrics),
        sort=validate_choice("sorting", query.get("sort", ""), SORTS),
        order=validate_choice("order", query.get("order", ""), ORDERS),
        only=validate_choice("choice", query.get("only", ""), ONLY),
        text=query.get("text", "")[:200],
        prediction=query.get("prediction", "")[:200],
        page=parse_page(query.get("page", "")),
    )


def parse_page(text: str) -> int:
    """Return the number of a page, or 1 if the text is no positive number of at most eight digits."""
    if not text.isdecimal() or len(text) > 8:
        return 1
    return max(1, int(text))


def list_examples(result: Result, view: View) -> ExamplePage:
    """Return the examples on the view's page; examples without a value come last in either order."""
    frame = result.comparison.results
    of_method = frame[frame["method"] == view.method]
    rows = [_make_row(result, view, record) for record in of_method.to_dict("records")]
    rows = [row for row in rows if _matches(row, view)]
    # NaN compares as false with everything: a sort over it would leave the list in no order at all.
    ranked = [row for row in rows if not math.isnan(_get_sort_value(row, view.sort))]
    ranked.sort(key=lambda row: _get_sort_value(row, view.sort), reverse=view.order == "descending")
    ranked += [row for row in rows if math.isnan(_get_sort_value(row, view.sort))]
    start = (view.page - 1) * PER_PAGE
    return ExamplePage(ranked[start : start + PER_PAGE], len(ranked), max(1, math.ceil(len(ranked) / PER_PAGE)))


def get_example_values(result: Result, example: int) -> pd.DataFrame:
    """Return the metrics of one example: a row per method, a column per metric, named by its title."""
    frame = result.comparison.results
    titles = {card.name: card.title for card in result.comparison.cards}
    values: pd.DataFrame = frame[frame["example"] == example].set_index("method")[list(titles)]
    return values.rename(columns=titles)


def _make_row(result: Result, view: View, record: Mapping[Any, Any]) -> ExampleRow:
    number = int(record["example"])
    item = result.attributions.get(number, {}).get(view.method)
    examples = result.comparison.examples
    # A run that kept no texts has results without examples.
    example = examples[number] if number < len(examples) else {}
    texts = item.texts if item is not None else [example[name] for name in ("text", "text_pair") if name in example]
    return ExampleRow(
        example=number,
        text=" / ".join(texts),
        target=str(record["target"]),
        prediction=str(record["prediction"]),
        label=example.get("label_name"),
        probability=float(record["probability"]),
        tokens=int(record["tokens"]),
        value=float(record[view.metric]),
        disagreement=result.disagreement.get(number, math.nan),
        item=item,
    )


def _matches(row: ExampleRow, view: View) -> bool:
    if view.text.lower() not in row.text.lower() or view.prediction not in ("", row.prediction):
        return False
    if view.only in ("right", "wrong"):
        return row.label is not None and (row.label == row.prediction) == (view.only == "right")
    return view.only == "all" or (row.item is not None and row.item.truncated)


def _get_sort_value(row: ExampleRow, sort: str) -> float:
    if sort == "metric":
        return float(row.value)
    return float(getattr(row, sort))
