"""Attributions as the examples of a study: each with every method's explanation of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from exegete.data.marked import Marked
from exegete.explainers import attribute
from exegete.models import ExplainedModel
from exegete.reports.attributions import Attribution, Attributions
from exegete.studies.compare import seeded
from exegete.web.pictures import png
from exegete.web.study.tables import Item, StoredExplanation

USUAL = ("input_x_gradient", "integrated_gradients", "attention_all")


@dataclass(frozen=True)
class Case:
    """An example. `explanations` by method, all of one target; `label`: its name; `picture`: a PNG."""

    texts: tuple[str, ...]
    explanations: Mapping[str, Attribution] = field(default_factory=dict)
    label: str | None = None
    prediction: str | None = None
    picture: bytes | None = None
    marks: Mapping[str, tuple[tuple[int, int, int], ...]] = field(default_factory=dict)

    def to_item(self, number: int) -> Item:
        """The case as it is stored."""
        content = {"texts": list(self.texts), "label": self.label, "prediction": self.prediction}
        kept = [
            StoredExplanation(method=method, attribution=_plain(item)) for method, item in self.explanations.items()
        ]
        return Item(number=number, content=content, picture=self.picture, explanations=kept)


def cases(attributions: Iterable[Attribution], rows: Sequence[Mapping[str, Any]] = ()) -> list[Case]:
    """The examples of these attributions, in order; `rows` are the examples themselves, where they are known.

    Methods go by their id, or by id and parameters where one comes with several.
    """
    by_example: dict[int, dict[str, Attribution]] = {}
    given = list(attributions)
    names = _names(given)
    for item in given:
        by_example.setdefault(item.index, {})[names[_identity(item)]] = item
    return [_case(found, rows[index] if index < len(rows) else {}) for index, found in sorted(by_example.items())]


def explained(
    model: ExplainedModel, rows: Sequence[Mapping[str, Any]], methods: Sequence[str] = (), seed: int = 0
) -> list[Case]:
    """The rows as several methods explain the model's predictions; default: those of Fernandes et al. 2022, table 4.

    The learned explainer of that table needs a folder: give it among `methods`.
    """
    chosen = [seeded(spec, seed) for spec in methods or USUAL]
    found = [item for method in chosen for item in attribute(model, list(rows), method)]
    return cases(found, rows)


def marked_cases(examples: Sequence[Marked]) -> list[Case]:
    """Examples that people marked elsewhere."""
    return [
        Case(each.texts, label=None if each.label is None else str(each.label), marks=each.marks) for each in examples
    ]


def restored(explanation: StoredExplanation) -> Attribution:
    """The attribution that was stored."""
    return Attribution(**explanation.attribution)


def _plain(item: Attribution) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(Attributions([replace(item, layers=None)]).to_json())[0]
    return plain


def _identity(item: Attribution) -> tuple[str, str]:
    return item.method, json.dumps(item.params, sort_keys=True)


def _names(items: Iterable[Attribution]) -> dict[tuple[str, str], str]:
    found = dict.fromkeys(_identity(item) for item in items)
    count = Counter(method for method, _ in found)
    return {
        (method, params): method if count[method] == 1 else _spec(method, json.loads(params))
        for method, params in found
    }


def _spec(method: str, params: Mapping[str, Any]) -> str:
    return f"{method}?{'&'.join(f'{name}={value}' for name, value in params.items())}"


def _case(explanations: Mapping[str, Attribution], row: Mapping[str, Any]) -> Case:
    first = next(iter(explanations.values()))
    picture = row.get("image")
    return Case(
        first.texts,
        explanations,
        label=row.get("label_name"),
        prediction=first.prediction_label,
        picture=None if picture is None else png(picture),
    )
