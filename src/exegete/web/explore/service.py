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
from exegete.web.explore.progress import Report, counted
from exegete.web.explore.question import PREDICTED, Question
from exegete.web.explore.queue import WorkQueue
from exegete.web.names import shown
from exegete.web.pictures import Pictures, png
from exegete.web.settings import Limits

SECOND_LOOK = "occlusion"
JUDGES = ("aopc_comprehensiveness", "aopc_sufficiency")
REMEMBERED = 256
EXAMPLE = "example-"


class Answer(NamedTuple):
    """One thing the model can say, and how sure it is (a regression: its value)."""

    label: str
    value: float


@dataclass(frozen=True)
class Answered:
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
        names = shown((*methods, *list_native_methods()))
        self.methods = {name: make_seeded(spec, seed) for spec, name in names.items()}
        self.chosen = [names[spec] for spec in methods]
        self.titles = make_titles(self.methods)
        self.judges = [metric(name) for name in JUDGES]
        self.pictures = Pictures(limits)
        self.work = WorkQueue(limits.waiting, limits.seconds)
        self._kept = OrderedDict[tuple[str, ...], Answered]()

    def usual(self, model: str) -> list[str]:
        """The methods a page begins with: those chosen for this server, else the model's best and a second look."""
        return self.chosen or [default_method(self.models[model]), SECOND_LOOK]

    def takes_images(self, model: str) -> bool:
        """Whether a model reads pictures; the others read texts."""
        return self.models[model].modality == "image"

    def fitting(self, model: str) -> list[int]:
        """The numbers of the examples that a model reads."""
        return [place for place, row in enumerate(self.examples) if ("image" in row) == self.takes_images(model)]

    def is_asked(self, asked: Question) -> bool:
        """Whether there is anything to explain."""
        return bool(asked.picture if self.takes_images(asked.model) else asked.text.strip())

    def example(self, asked: Question) -> Any:
        """The question's input, as `attribute` takes it: a text, a pair of texts or an image."""
        if self.takes_images(asked.model):
            return Image.open(BytesIO(self.picture(asked.picture)))
        return (asked.text, asked.pair) if asked.pair.strip() else asked.text

    def picture(self, key: str) -> bytes:
        """A PNG: uploaded, or one of the examples."""
        pictures = {f"{EXAMPLE}{place}": row["image"] for place, row in enumerate(self.examples) if "image" in row}
        return png(pictures[key]) if key in pictures else self.pictures.get(key)

    def labels(self, asked: Question) -> list[str]:
        """Labels to explain besides the prediction: none if the model has one output, or answers with spans."""
        model = self.models[asked.model]
        return list(model.labels) if model.task.name in ("classification", "multi_label") else []

    def target(self, asked: Question) -> str:
        """The target to explain. Raises ExegeteError if the model has no such label."""
        valid = (PREDICTED, *self.labels(asked))
        if asked.target not in valid:
            raise unknown("target", asked.target, valid)
        return asked.target

    def answers(self, asked: Question, removed: Sequence[int] = (), stop: Event | None = None) -> list[Answer]:
        """The model's answers with the words (tokens, patches) of these numbers removed."""
        model = self.models[asked.model]
        with model.cache_perturbed(), counted(model, lambda _: None, stop or Event()):
            batch = model.encode([self.example(asked)])
            unit = batch.word_of if asked.level == "word" else _numbered(batch)
            gone = torch.isin(unit, torch.tensor(sorted(removed), dtype=torch.long, device=batch.device))
            probabilities = model.predict_perturbed(batch, (~gone | ~batch.content)[None])[0]
            if model.task.name == "span":
                target = model.predict(batch)
                found = attribute(model, self.example(asked), "random").to_pandas()["prediction_label"][0]
                return [Answer(str(found), float(model.task.probability(probabilities, target)[0]))]
        names = model.labels if probabilities.shape[1] > 1 or model.task.name != "regression" else ("value",)
        return [Answer(name, value) for name, value in zip(names, probabilities[0].tolist(), strict=True)]

    def total(self, asked: Question, name: str) -> float:
        """About how many inputs the model will read for a method."""
        model = self.models[asked.model]
        length = int(model.encode([self.example(asked)]).content.sum())
        return max(1.0, self.methods[name].passes(length)[0])

    def explain(self, asked: Question, name: str, report: Report | None = None, stop: Event | None = None) -> Answered:
        """One method's answer; what was answered lately is remembered.

        Raises:
            StoppedError: `stop` was set meanwhile.
        """
        key = (asked.model, asked.text, asked.pair, asked.picture, asked.target, name)
        if key not in self._kept:
            found = self._explain(asked, name, report or (lambda _: None), stop or Event())
            self._kept[key] = found
            while len(self._kept) > REMEMBERED:
                self._kept.popitem(last=False)
            return found
        return self._kept[key]

    def _explain(self, asked: Question, name: str, report: Report, stop: Event) -> Answered:
        model, method = self.models[asked.model], self.methods[name]
        with model.cache_perturbed():
            begun = time.perf_counter()
            try:
                with counted(model, report, stop):
                    example = self.example(asked)
                    item = attribute(model, example, method, self.target(asked))[0]
                    seconds = time.perf_counter() - begun
                    return Answered(name, item, figures=self._judged(model, example, item), seconds=seconds)
            except ExegeteError as error:
                return Answered(name, problem=str(error))

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
