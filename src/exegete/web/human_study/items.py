"""Attributions as the examples of a study: each with every method's explanation of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from exegete.data.granularity import Granularity
from exegete.data.marked import MarkedExample
from exegete.errors import ExegeteError
from exegete.explainers import attribute
from exegete.explainers.registry import add_seed, make_seeded
from exegete.models import ExplainedModel
from exegete.models.generation.model import GeneratingModel
from exegete.reports.attributions import Attribution, Attributions
from exegete.reports.generated import GeneratedAttribution
from exegete.studies.compare.comparison import Comparison
from exegete.web.human_study.blinding import AnyAttribution
from exegete.web.human_study.sources import get_prompt_texts
from exegete.web.human_study.tables import Item, StoredExplanation
from exegete.web.names import shown
from exegete.web.pictures import png

DEFAULT_METHODS = ("input_x_gradient", "integrated_gradients", "attention_all")
DEFAULT_GENERATION_METHODS = ("input_x_gradient", "attn_lrp", "occlusion")


@dataclass(frozen=True)
class ChangedVersion:
    """A changed version of an example: its texts, the model's answer, and words with what stands in their place."""

    texts: tuple[str, ...]
    prediction: str
    edits: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class StudyItem:
    """An example. `explanations` by method, all of one target; `label`: its name; `picture`: a PNG.

    Of a generated answer `texts` are what was asked, and `prediction` is the answer.
    """

    texts: tuple[str, ...]
    explanations: Mapping[str, AnyAttribution] = field(default_factory=dict)
    label: str | None = None
    prediction: str | None = None
    picture: bytes | None = None
    marks: Mapping[str, tuple[tuple[int, int, int], ...]] = field(default_factory=dict)
    changed: ChangedVersion | None = None

    def to_item(self, number: int) -> Item:
        """The case as it is stored."""
        content: dict[str, Any] = {"texts": list(self.texts), "label": self.label, "prediction": self.prediction}
        if self.changed is not None:
            content["changed"] = asdict(self.changed)
        kept = [
            StoredExplanation(method=method, attribution=_to_plain_values(item))
            for method, item in self.explanations.items()
        ]
        return Item(number=number, content=content, picture=self.picture, explanations=kept)


def make_items(
    explanations: Iterable[tuple[str, AnyAttribution]], rows: Sequence[Mapping[str, Any]] = ()
) -> list[StudyItem]:
    """The examples of what methods, by their specs, say of them; `rows` are the examples, where they are known."""
    by_example: dict[int, dict[str, AnyAttribution]] = {}
    given = list(explanations)
    names = shown(dict.fromkeys(method for method, _ in given))
    for method, item in given:
        by_example.setdefault(item.index, {})[names[method]] = item
    return [_make_item(found, rows[index] if index < len(rows) else {}) for index, found in sorted(by_example.items())]


def explain_items(
    model: ExplainedModel, rows: Sequence[Mapping[str, Any]], methods: Sequence[str] = (), seed: int = 0
) -> list[StudyItem]:
    """The rows as several methods explain the model's predictions; default: those of Fernandes et al. 2022, table 4.

    The learned explainer of that table needs a folder: give it among `methods`. Of a model that generates, its answers
    are explained by the sources, where every row has some, else by sentences of the prompt.
    """
    unit: Granularity | None = None
    if isinstance(model, GeneratingModel):
        rows = model.respond(list(rows))
        unit = "source" if all(row.get("sources") for row in rows) else "sentence"
    found = (
        (spec, item)
        for spec in methods or (DEFAULT_METHODS if unit is None else DEFAULT_GENERATION_METHODS)
        for item in attribute(model, list(rows), add_seed(spec, seed), unit=unit)
    )
    return make_items(found, rows)


def make_follow_up_items(
    models: Mapping[str, ExplainedModel], rows: Sequence[Mapping[str, Any]], method: str = "", seed: int = 0
) -> list[StudyItem]:
    """The rows of which all models say the same, as one method explains each: old and new, compared blind.

    Raises ExegeteError where the models agree on no row.
    """
    explainer = make_seeded(method or DEFAULT_METHODS[0], seed)
    said = {name: list(attribute(model, list(rows), explainer)) for name, model in models.items()}
    same = [len({_get_model_answer(item) for item in items}) == 1 for items in zip(*said.values(), strict=True)]
    if not any(same):
        raise ExegeteError(
            f"the models {', '.join(models)} agree on none of {len(rows)} examples: none can be compared"
        )
    kept = ((name, item) for name, items in said.items() for item, agree in zip(items, same, strict=True) if agree)
    return make_items(kept, rows)


def select_comparison_items(comparison: Comparison, limit: int) -> list[StudyItem]:
    """At most so many examples of a comparison, evenly spaced, explained by the methods of its table."""
    explanations = zip(comparison.results["method"], comparison.attributions, strict=True)
    return _space_evenly(make_items(explanations, comparison.examples), limit)


def select_saved_items(explanations: Sequence[AnyAttribution], limit: int) -> list[StudyItem]:
    """At most so many of the examples that saved explanations are of, evenly spaced.

    Raises ExegeteError for explanations of one number that are of two examples, twice by one method, or of images.
    """
    texts: dict[int, tuple[str, ...]] = {}
    settings: dict[str, list[dict[str, Any]]] = {}
    named, seen = list[tuple[str, AnyAttribution]](), set[tuple[int, str]]()
    for item in explanations:
        if isinstance(item, Attribution) and item.image_shape:
            raise ExegeteError("saved explanations have no pictures: make this study of --model and --data")
        read = (item.prompt, item.response) if isinstance(item, GeneratedAttribution) else item.texts
        if texts.setdefault(item.index, read) != read:
            raise ExegeteError(f"saved explanations of example {item.index} are of two different texts")
        known = settings.setdefault(item.method, [])
        known += [] if item.params in known else [item.params]
        number = known.index(item.params) + 1
        name = item.method if number == 1 else f"{item.method} {number}"
        if (item.index, name) in seen:
            raise ExegeteError(f"example {item.index} was saved twice as {name} explains it")
        seen.add((item.index, name))
        named.append((name, item))
    return _space_evenly(make_items(named), limit)


def _space_evenly(found: list[StudyItem], limit: int) -> list[StudyItem]:
    count = min(limit, len(found))
    return [found[place * len(found) // count] for place in range(count)]


def make_marked_items(examples: Sequence[MarkedExample]) -> list[StudyItem]:
    """Examples that people marked elsewhere."""
    return [
        StudyItem(each.texts, label=None if each.label is None else str(each.label), marks=each.marks)
        for each in examples
    ]


def restore_explanation(explanation: StoredExplanation) -> AnyAttribution:
    """The attribution that was stored."""
    kept = explanation.attribution
    if "response" in kept:
        return GeneratedAttribution.from_row(kept | {"params": json.dumps(kept["params"])})
    return Attribution(**kept)


def _get_model_answer(item: AnyAttribution) -> str:
    return item.response if isinstance(item, GeneratedAttribution) else item.prediction_label


def _to_plain_values(item: AnyAttribution) -> dict[str, Any]:
    bare = replace(item, layers=None) if isinstance(item, Attribution) else item
    plain: dict[str, Any] = json.loads(Attributions([bare]).to_json())[0]
    return plain


def _make_item(explanations: Mapping[str, AnyAttribution], row: Mapping[str, Any]) -> StudyItem:
    first = next(iter(explanations.values()))
    if isinstance(first, GeneratedAttribution):
        return StudyItem(get_prompt_texts(first.exchange), explanations, prediction=first.response)
    picture = row.get("image")
    return StudyItem(
        first.texts,
        explanations,
        label=row.get("label_name"),
        prediction=first.prediction_label,
        picture=None if picture is None else png(picture),
    )
