"""Models and methods behind the explorer's pages, independent of HTTP."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from threading import Event
from typing import Any, NamedTuple

import torch
from PIL import Image

from exegete.errors import ExegeteError, check_choice
from exegete.explainers import attribute, number_units
from exegete.explainers.registry import default_method, make_seeded, make_titles
from exegete.metrics import metric
from exegete.models import ExplainedModel
from exegete.reports.explanations import Explanation
from exegete.studies.compare.compare import list_native_methods
from exegete.web.explore.progress import CountCallback, track_progress
from exegete.web.explore.question import PREDICTED, TextQuestion
from exegete.web.explore.queue import WorkQueue
from exegete.web.method_names import make_display_names
from exegete.web.pictures import PictureStore, encode_png
from exegete.web.recent import RecentItems
from exegete.web.settings import Limits

SECOND_METHOD = "occlusion"
METRICS = ("aopc_comprehensiveness", "aopc_sufficiency")
CACHE_SIZE = 256
EXAMPLE_PREFIX = "example-"


class LabelScore(NamedTuple):
    """A label with its probability, or the value of a regression."""

    label: str
    value: float


@dataclass(frozen=True)
class MethodResult:
    """The result of one method: an attribution and its metrics by title, or an error message in `problem`."""

    name: str
    attribution: Explanation | None = None
    problem: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0


class Explorer:
    """Predicts and explains single inputs with several models and methods.

    Methods that run a model must be called through the queue `work`, which runs one task at a time.

    Args:
        models: The models by name.
        methods: Specs of methods, as on the command line, offered besides the methods that need only the model.
        examples: Examples that the pages offer.
        limits: Bounds on requests.
        seed: Random seed of the methods that have one.
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
            raise ExegeteError("expected a model to explain: give one with --model")
        self.models, self.examples = dict(models), examples
        names = make_display_names((*methods, *list_native_methods()))
        # Methods are made once, here: a request names one of them and never a file to load.
        self.methods = {name: make_seeded(spec, seed) for spec, name in names.items()}
        self.configured_methods = [names[spec] for spec in methods]
        self.titles = make_titles(self.methods)
        self.metrics = [metric(name) for name in METRICS]
        self.pictures = PictureStore(limits)
        self.work = WorkQueue(limits.queue_size, limits.work_seconds)
        self._cache = RecentItems[tuple[str, ...], MethodResult](CACHE_SIZE)

    def get_default_methods(self, model: str) -> list[str]:
        """Return the methods chosen for this server, else the model's best method and occlusion."""
        return self.configured_methods or [default_method(self.models[model]), SECOND_METHOD]

    def is_image_model(self, model: str) -> bool:
        """Return whether a model takes pictures instead of texts."""
        return self.models[model].modality == "image"

    def find_examples(self, model: str) -> list[int]:
        """Return the indices of the examples that suit a model: pictures for image models, texts for others."""
        is_image = self.is_image_model(model)
        return [index for index, example in enumerate(self.examples) if ("image" in example) == is_image]

    def has_input(self, question: TextQuestion) -> bool:
        """Return whether the question has a text or picture to explain."""
        return bool(question.picture if self.is_image_model(question.model) else question.text.strip())

    def make_example(self, question: TextQuestion) -> Any:
        """Return the question's text, pair of texts or image, as `attribute` takes it."""
        if self.is_image_model(question.model):
            return Image.open(BytesIO(self.read_picture(question.picture)))
        if question.pair.strip():
            return question.text, question.pair
        return question.text

    def read_picture(self, key: str) -> bytes:
        """Return an uploaded picture or the picture of an example as PNG. Raises ExegeteError if it is not stored."""
        # Keys are compared as text: `int` raises for thousands of digits, and reads "٣" and "03" as 3.
        for index, example in enumerate(self.examples):
            if key == f"{EXAMPLE_PREFIX}{index}" and "image" in example:
                return encode_png(example["image"])
        return self.pictures.get(key)

    def list_target_labels(self, question: TextQuestion) -> list[str]:
        """Return the labels that can be explained; empty for models with one output and for extracted answers."""
        model = self.models[question.model]
        if model.task.name not in ("classification", "multi_label"):
            return []
        return list(model.labels)

    def check_target(self, question: TextQuestion) -> str:
        """Return the question's target. Raises ExegeteError if the model has no such label."""
        valid = (PREDICTED, *self.list_target_labels(question))
        check_choice("target", question.target, valid)
        return question.target

    def predict_labels(
        self, question: TextQuestion, removed: Sequence[int] = (), stop: Event | None = None
    ) -> list[LabelScore]:
        """Return the model's prediction for the question without the removed units.

        Args:
            question: The question; its level decides whether units are words or tokens (or patches of a picture).
            removed: Numbers of the removed units.
            stop: Stops the work when it is set.

        Raises:
            StoppedError: `stop` was set.
        """
        model = self.models[question.model]
        with model.cache_perturbed(), track_progress(model, lambda _: None, stop or Event()):
            batch = model.encode([self.make_example(question)])
            unit = batch.word_of if question.level == "word" else number_units(batch, "token")
            is_removed = torch.isin(unit, torch.tensor(sorted(removed), dtype=torch.long, device=batch.device))
            # Positions without content (special tokens, padding) have the number -1 and always stay.
            probabilities = model.predict_perturbed(batch, (~is_removed | ~batch.content)[None])[0]
            if model.task.name == "span":
                # Thousands of spans are possible answers: only the one of the full input is followed.
                with torch.no_grad(), model.evaluation_mode():
                    logits = model(batch).logits
                target = model.task.predict(logits, batch)
                answer = model.describe_targets(batch, target, logits)[0].text
                return [LabelScore(answer, float(model.task.probability(probabilities, target)[0]))]
        has_labels = probabilities.shape[1] > 1 or model.task.name != "regression"
        names = model.labels if has_labels else ("value",)
        return [LabelScore(name, value) for name, value in zip(names, probabilities[0].tolist(), strict=True)]

    def estimate_inputs(self, question: TextQuestion, name: str) -> float:
        """Return the approximate number of inputs that a method runs through the model."""
        model = self.models[question.model]
        length = int(model.encode([self.make_example(question)]).content.sum())
        return max(1.0, self.methods[name].passes(length)[0])

    def explain(
        self, question: TextQuestion, name: str, report: CountCallback | None = None, stop: Event | None = None
    ) -> MethodResult:
        """Return one method's explanation; the last results are cached.

        Raises:
            StoppedError: `stop` was set.
        """
        # The level only changes how a result is shown, so it is not part of the key.
        key = (question.model, question.text, question.pair, question.picture, question.target, name)
        cached = self._cache.get(key)
        return cached or self._cache.add(
            key, self._explain(question, name, report or (lambda _: None), stop or Event())
        )

    def _explain(self, question: TextQuestion, name: str, report: CountCallback, stop: Event) -> MethodResult:
        model, method = self.models[question.model], self.methods[name]
        with model.cache_perturbed():
            start = time.perf_counter()
            try:
                with track_progress(model, report, stop):
                    example = self.make_example(question)
                    item = attribute(model, example, method, self.check_target(question))[0]
                    # Measured before the metrics, which need many passes of their own.
                    seconds = time.perf_counter() - start
                    return MethodResult(name, item, figures=self._evaluate(model, example, item), seconds=seconds)
            except ExegeteError as error:
                # One method that does not support the model must not hide the results of the others.
                return MethodResult(name, problem=str(error))

    def _evaluate(self, model: ExplainedModel, example: Any, item: Explanation) -> dict[str, float]:
        """Return the faithfulness of an attribution on its example, by the metric's title."""
        batch = model.encode([example])
        scores = torch.tensor(item.token_scores, device=batch.device)
        target = model.resolve_target(batch, [item.target.value] if model.task.name != "span" else item.target.value)
        figures = {}
        for evaluator in self.metrics:
            if evaluator.supports(model):
                values = evaluator.evaluate(model, batch, scores, target)[evaluator.name]
                figures[evaluator.card.title] = float(values[0])
        return figures
