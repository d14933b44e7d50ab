"""Examples of a study, each with the explanations by all methods, made from attributions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from expound.data.readers.marked import MarkedExample
from expound.data.spans import UnitName
from expound.errors import ExpoundError
from expound.evaluation.compare.comparison import Comparison
from expound.explainers import attribute
from expound.explainers.registry import add_seed
from expound.models import ExplainedModel
from expound.models.generation.model import GeneratingModel
from expound.reports.explanations import Explanation
from expound.reports.records import Exchange
from expound.serve.method_names import make_display_names
from expound.serve.pictures import encode_png
from expound_people.tables import Item, StoredExplanation

# Fernandes et al. 2022, table 4, without their learned explainer, which needs a folder.
DEFAULT_METHODS = ("input_x_gradient", "integrated_gradients", "attention_all")
DEFAULT_GENERATION_METHODS = ("input_x_gradient", "attn_lrp", "occlusion")


@dataclass(frozen=True)
class ChangedVersion:
    """A changed version of an example: its texts, the model's answer, and the edits as (old, new or no) words."""

    texts: tuple[str, ...]
    prediction: str
    edits: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class StudyItem:
    """An example of a study before it is stored.

    `explanations`: by method, all of the same target; `label`: the name of the true class; `picture`: a PNG; `marks`:
    by annotator. For a generated answer, `texts` are the prompt without its sources and `prediction` is the answer.
    """

    texts: tuple[str, ...]
    explanations: Mapping[str, Explanation] = field(default_factory=dict)
    label: str | None = None
    prediction: str | None = None
    picture: bytes | None = None
    marks: Mapping[str, tuple[tuple[int, int, int], ...]] = field(default_factory=dict)
    changed: ChangedVersion | None = None

    def to_item(self, number: int) -> Item:
        """Return the database row of the example, as number `number` of its project."""
        content: dict[str, Any] = {"texts": list(self.texts), "label": self.label, "prediction": self.prediction}
        if self.changed is not None:
            content["changed"] = asdict(self.changed)
        stored = []
        for method, item in self.explanations.items():
            # Scores by layer are never shown to annotators, and would multiply the size of the database.
            stored.append(StoredExplanation(method=method, attribution=replace(item, layers=None).to_dict()))
        return Item(number=number, content=content, picture=self.picture, explanations=stored)


def make_items(
    explanations: Iterable[tuple[str, Explanation]], rows: Sequence[Mapping[str, Any]] = ()
) -> list[StudyItem]:
    """Group (spec of the method, attribution) pairs by example; `rows` are the examples, if they are known."""
    by_example: dict[int, dict[str, Explanation]] = {}
    pairs = list(explanations)
    names = make_display_names(dict.fromkeys(method for method, _ in pairs))
    for method, item in pairs:
        by_example.setdefault(item.index, {})[names[method]] = item
    items = []
    for index, by_method in sorted(by_example.items()):
        items.append(_make_item(by_method, rows[index] if index < len(rows) else {}))
    return items


def explain_items(
    model: ExplainedModel, rows: Sequence[Mapping[str, Any]], methods: Sequence[str] = (), seed: int = 0
) -> list[StudyItem]:
    """Explain the model's predictions for some rows by several methods; default: `DEFAULT_METHODS`.

    Answers of a generating model are explained by the sources if every row has some, else by sentences of the prompt.
    """
    unit: UnitName | None = None
    default = DEFAULT_METHODS
    if isinstance(model, GeneratingModel):
        rows = model.respond(list(rows))
        unit = "source" if all(row.get("sources") for row in rows) else "sentence"
        default = DEFAULT_GENERATION_METHODS
    explanations = []
    for spec in methods or default:
        for item in attribute(model, list(rows), add_seed(spec, seed), unit=unit):
            explanations.append((spec, item))
    return make_items(explanations, rows)


def make_follow_up_items(
    models: Mapping[str, ExplainedModel], rows: Sequence[Mapping[str, Any]], method: str = "", seed: int = 0
) -> list[StudyItem]:
    """Explain rows by one method for several models, to compare an old and a new model blind.

    Raises ExpoundError if the models agree on no row.
    """
    spec = add_seed(method or DEFAULT_METHODS[0], seed)
    by_model = {name: list(attribute(model, list(rows), spec)) for name, model in models.items()}
    # Explanations of different answers would tell the models apart, so only rows with the same answer are kept.
    kept: list[tuple[str, Explanation]] = []
    for items in zip(*by_model.values(), strict=True):
        if len({_get_model_answer(item) for item in items}) == 1:
            kept.extend(zip(by_model, items, strict=True))
    if not kept:
        names = ", ".join(models)
        raise ExpoundError(f"the models {names} agree on none of {len(rows)} examples: none can be compared")
    return make_items(kept, rows)


def select_comparison_items(comparison: Comparison, limit: int) -> list[StudyItem]:
    """Return at most `limit` evenly spaced examples of a comparison, explained by the methods of its table."""
    explanations = zip(comparison.results["method"], comparison.attributions, strict=True)
    return _space_evenly(make_items(explanations, comparison.examples), limit)


def select_saved_items(explanations: Sequence[Explanation], limit: int) -> list[StudyItem]:
    """Return at most `limit` evenly spaced examples of saved explanations.

    Raises ExpoundError if explanations with the same index are of different texts or twice by the same method, and for
    explanations of images.
    """
    texts: dict[int, tuple[str, ...]] = {}
    settings: dict[str, list[dict[str, Any]]] = {}
    named, seen = list[tuple[str, Explanation]](), set[tuple[int, str]]()
    for item in explanations:
        if item.image_shape:
            raise ExpoundError("saved explanations have no pictures: make this study of --model and --data")
        read = item.texts if item.exchange is None else (item.exchange.prompt, item.response)
        if texts.setdefault(item.index, read) != read:
            raise ExpoundError(f"saved explanations of example {item.index} are about two different texts")
        # One method with several parameters counts as several methods: they are numbered in order of appearance.
        known = settings.setdefault(item.method, [])
        if item.params not in known:
            known.append(item.params)
        number = known.index(item.params) + 1
        name = item.method if number == 1 else f"{item.method} {number}"
        if (item.index, name) in seen:
            raise ExpoundError(f"example {item.index} has two saved explanations by {name}")
        seen.add((item.index, name))
        named.append((name, item))
    return _space_evenly(make_items(named), limit)


def _space_evenly(items: list[StudyItem], limit: int) -> list[StudyItem]:
    # Datasets are often sorted by class, so the first items would not be representative.
    count = min(limit, len(items))
    return [items[number * len(items) // count] for number in range(count)]


def make_marked_items(examples: Sequence[MarkedExample]) -> list[StudyItem]:
    """Return the items of examples that were marked with other tools."""
    labels = [None if example.label is None else str(example.label) for example in examples]
    pairs = zip(examples, labels, strict=True)
    return [StudyItem(example.texts, label=label, marks=example.marks) for example, label in pairs]


def restore_explanation(explanation: StoredExplanation) -> Explanation:
    """Return the attribution of a database row."""
    return Explanation.from_row(explanation.attribution)


def _get_model_answer(item: Explanation) -> str:
    return item.response if item.prediction is None else item.prediction.text


def _get_prompt_texts(exchange: Exchange) -> tuple[str, ...]:
    """Return the texts of the prompt that are not sources; all texts if the prompt has no sources."""
    has_question = not all(exchange.is_source)
    texts = []
    for place, is_source in zip(exchange.places, exchange.is_source, strict=True):
        text = exchange.prompt[slice(*place)].strip()
        if text and not (is_source and has_question):
            texts.append(text)
    return tuple(texts)


def _make_item(explanations: Mapping[str, Explanation], row: Mapping[str, Any]) -> StudyItem:
    first = next(iter(explanations.values()))
    if first.exchange is not None:
        return StudyItem(_get_prompt_texts(first.exchange), explanations, prediction=first.response)
    picture = None if row.get("image") is None else encode_png(row["image"])
    return StudyItem(first.texts, explanations, row.get("label_name"), _get_model_answer(first), picture)
