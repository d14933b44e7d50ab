"""Models and methods behind the explorer's pages; nothing here knows of HTTP."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from threading import Event
from typing import Any, NamedTuple

import torch
from PIL import Image

from exegete.errors import ExegeteError, unknown
from exegete.explainers import attribute
from exegete.explainers.registry import default_method, make_seeded, make_titles
from exegete.metrics import metric
from exegete.models import Batch, ExplainedModel
from exegete.reports.attributions import Attribution
from exegete.studies.compare.compare import list_native_methods
from exegete.web.explore.progress import Report, track_progress
from exegete.web.explore.question import PREDICTED, TextQuestion
from exegete.web.explore.queue import WorkQueue
from exegete.web.method_names import make_display_names
from exegete.web.pictures import PictureStore, encode_png
from exegete.web.settings import Limits

SECOND_METHOD = "occlusion"
METRICS = ("aopc_comprehensiveness", "aopc_sufficiency")
CACHE_SIZE = 256
EXAMPLE_PREFIX = "example-"


class LabelScore(NamedTuple):
    """One thing the model can say, and how sure it is (a regression: its value)."""

    label: str
    value: float


@dataclass(frozen=True)
class MethodResult:
    """A method's answer to a question: an attribution and its figures, or an error message."""

    name: str
    attribution: Attribution | None = None
    problem: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0


class Explorer:
    """Answers questions on models by name; what pages ask goes through `work`, one piece after the other.

    Args:
        models: what can be explained.
        methods: specs as on the command line, beside every method that needs nothing but the model; what a request
            names is looked up among these, never made from its words.
        examples: rows of canonical columns to begin with.
        limits: see `Limits`.
        seed: of methods that have one.
    """

    def __init__(
        self,
        models: Mapping[str, ExplainedModel],
        methods: Sequence[str] = (),
        examples: Sequence[Mapping[str, Any]] = (),
        limits: Limits = Limits(),  # noqa: B008  (frozen)
        seed: int = 0,
    ) -> None:
        if not models:
            raise ExegeteError("there is no model to explain: give one with --model")
        self.models, self.examples = dict(models), examples
        names = make_display_names((*methods, *list_native_methods()))
        self.methods = {name: make_seeded(spec, seed) for spec, name in names.items()}
        self.configured_methods = [names[spec] for spec in methods]
        self.titles = make_titles(self.methods)
        self.judges = [metric(name) for name in METRICS]
        self.pictures = PictureStore(limits)
        self.work = WorkQueue(limits.queue_size, limits.work_seconds)
        self._kept = OrderedDict[tuple[str, ...], MethodResult]()

    def get_default_methods(self, model: str) -> list[str]:
        """The methods a page begins with: those chosen for this server, else the model's best and a second look."""
        return self.configured_methods or [default_method(self.models[model]), SECOND_METHOD]

    def is_image_model(self, model: str) -> bool:
        """Whether a model reads pictures; the others read texts."""
        return self.models[model].modality == "image"

    def find_examples(self, model: str) -> list[int]:
        """The numbers of the examples that a model reads."""
        return [place for place, row in enumerate(self.examples) if ("image" in row) == self.is_image_model(model)]

    def has_input(self, question: TextQuestion) -> bool:
        """Whether there is anything to explain."""
        return bool(question.picture if self.is_image_model(question.model) else question.text.strip())

    def make_example(self, question: TextQuestion) -> Any:
        """The question's input, as `attribute` takes it: a text, a pair of texts or an image."""
        if self.is_image_model(question.model):
            return Image.open(BytesIO(self.read_picture(question.picture)))
        return (question.text, question.pair) if question.pair.strip() else question.text

    def read_picture(self, key: str) -> bytes:
        """A PNG: uploaded, or one of the examples."""
        pictures = {
            f"{EXAMPLE_PREFIX}{place}": row["image"] for place, row in enumerate(self.examples) if "image" in row
        }
        return encode_png(pictures[key]) if key in pictures else self.pictures.get(key)

    def list_target_labels(self, question: TextQuestion) -> list[str]:
        """Labels to explain besides the prediction: none if the model has one output, or answers with spans."""
        model = self.models[question.model]
        return list(model.labels) if model.task.name in ("classification", "multi_label") else []

    def check_target(self, question: TextQuestion) -> str:
        """The target to explain. Raises ExegeteError if the model has no such label."""
        valid = (PREDICTED, *self.list_target_labels(question))
        if question.target not in valid:
            raise unknown("target", question.target, valid)
        return question.target

    def predict_labels(
        self, question: TextQuestion, removed: Sequence[int] = (), stop: Event | None = None
    ) -> list[LabelScore]:
        """The model's answers with the words (tokens, patches) of these numbers removed."""
        model = self.models[question.model]
        with model.cache_perturbed(), track_progress(model, lambda _: None, stop or Event()):
            batch = model.encode([self.make_example(question)])
            unit = batch.word_of if question.level == "word" else _numbered(batch)
            gone = torch.isin(unit, torch.tensor(sorted(removed), dtype=torch.long, device=batch.device))
            probabilities = model.predict_perturbed(batch, (~gone | ~batch.content)[None])[0]
            if model.task.name == "span":
                target = model.predict(batch)
                found = attribute(model, self.make_example(question), "random").to_pandas()["prediction_label"][0]
                return [LabelScore(str(found), float(model.task.probability(probabilities, target)[0]))]
        names = model.labels if probabilities.shape[1] > 1 or model.task.name != "regression" else ("value",)
        return [LabelScore(name, value) for name, value in zip(names, probabilities[0].tolist(), strict=True)]

    def estimate_inputs(self, question: TextQuestion, name: str) -> float:
        """About how many inputs the model will read for a method."""
        model = self.models[question.model]
        length = int(model.encode([self.make_example(question)]).content.sum())
        return max(1.0, self.methods[name].passes(length)[0])

    def explain(
        self, question: TextQuestion, name: str, report: Report | None = None, stop: Event | None = None
    ) -> MethodResult:
        """One method's answer; what was answered lately is remembered.

        Raises:
            StoppedError: `stop` was set meanwhile.
        """
        key = (question.model, question.text, question.pair, question.picture, question.target, name)
        if key not in self._kept:
            found = self._explain(question, name, report or (lambda _: None), stop or Event())
            self._kept[key] = found
            while len(self._kept) > CACHE_SIZE:
                self._kept.popitem(last=False)
            return found
        return self._kept[key]

    def _explain(self, question: TextQuestion, name: str, report: Report, stop: Event) -> MethodResult:
        model, method = self.models[question.model], self.methods[name]
        with model.cache_perturbed():
            begun = time.perf_counter()
            try:
                with track_progress(model, report, stop):
                    example = self.make_example(question)
                    item = attribute(model, example, method, self.check_target(question))[0]
                    seconds = time.perf_counter() - begun
                    return MethodResult(name, item, figures=self._judged(model, example, item), seconds=seconds)
            except ExegeteError as error:
                return MethodResult(name, problem=str(error))

    def _judged(self, model: ExplainedModel, example: Any, item: Attribution) -> dict[str, float]:
        """Faithfulness figures of an attribution on this input, by metric."""
        batch = model.encode([example])
        scores = torch.tensor(item.scores, device=batch.device)[None]
        target = model.resolve_target(batch, [item.target] if model.task.name != "span" else item.target)
        return {
            judge.card.title: float(judge.evaluate(model, batch, scores, target)[judge.name][0])
            for judge in self.judges
            if judge.supports(model)
        }


def _numbered(batch: Batch) -> torch.Tensor:
    """[1, L] The number of each content position, -1 elsewhere."""
    return torch.where(batch.content, batch.content.long().cumsum(1) - 1, -1)
