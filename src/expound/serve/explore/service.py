"""Models and methods behind the explore pages, independent of HTTP."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from io import BytesIO
from threading import Event
from typing import Any, cast

import torch
from PIL import Image

from expound.data.spans import UnitName
from expound.errors import ExpoundError, check_choice
from expound.evaluation.compare.choice import list_native_methods
from expound.explainers import Explainer, attribute
from expound.explainers.base import require_assumptions, resolve_unit
from expound.explainers.check_model import default_method
from expound.explainers.plan import add_placeholder_response, measure_pass, plan_work
from expound.explainers.registry import add_seed, explainer, make_titles
from expound.metrics import metric
from expound.models import ExplainedModel
from expound.models.generation.examples import prompt_to_row, show_units
from expound.models.generation.model import GeneratingModel
from expound.models.hugging_face import MODEL_ERRORS
from expound.reports.explanations import Explanation
from expound.reports.highlighted.pieces import Piece
from expound.reports.text import format_duration
from expound.serve.explore import tasks
from expound.serve.explore.question import PREDICTED, Question
from expound.serve.explore.queue import SendText, ShareCallback, TextFollower, WorkQueue, track_progress
from expound.serve.explore.tasks import OutputScore, is_generating
from expound.serve.method_names import make_display_names
from expound.serve.pictures import encode_png, open_picture
from expound.serve.settings import Limits, RecentItems

logger = logging.getLogger(__name__)
SECOND_METHOD = "occlusion"
METRICS = ("aopc_comprehensiveness", "aopc_sufficiency")
CACHE_SIZE, MAX_PICTURES = 256, 64
PROBE_SECONDS = 10.0
"""Time after which trying methods pauses, so that questions do not wait long behind it."""


@dataclass(frozen=True)
class MethodResult:
    """The result of one method: an attribution and its metrics by title, or an error message in `problem`."""

    name: str
    attribution: Explanation | None = None
    problem: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0


class _EnoughError(Exception):
    """A method has begun to explain the model, which is enough to know that it can."""


def ignore(_: Any) -> None:
    """Drop progress or text that has no reader."""


class Explorer:
    """Runs and explains single inputs with several models, of any task, and methods.

    Methods that run a model must be called through the queue `work`, which runs one task at a time.

    Args:
        models: The models by name.
        methods: Specs of methods, as on the command line, offered besides the methods that need only the model.
        examples: Examples that the pages offer; for language models with a prompt or messages, and perhaps a response.
        limits: Bounds on requests.
        seed: Random seed of the methods that have one.
        trained_methods: By language model, the spec of the method that the model was trained for.
    """

    def __init__(
        self,
        models: Mapping[str, ExplainedModel],
        methods: Sequence[str] = (),
        examples: Sequence[Mapping[str, Any]] = (),
        limits: Limits = Limits(),  # noqa: B008  (frozen)
        seed: int = 0,
        trained_methods: Mapping[str, str] | None = None,
    ) -> None:
        if not models:
            raise ExpoundError("expected a model to explain: give one with --model")
        trained_methods = trained_methods or {}
        self.models, self.examples, self.seed = dict(models), examples, seed
        names = make_display_names((*trained_methods.values(), *methods, *list_native_methods()))
        self.specs = {name: spec for spec, name in names.items()}
        # Methods are made once, here: a request names one of them and never a file to load.
        first = next(iter(self.models.values()))
        self.methods = {name: explainer(add_seed(spec, seed), first) for spec, name in names.items()}
        self.configured_methods = [names[spec] for spec in methods]
        self.trained_methods = {model: names[spec] for model, spec in trained_methods.items()}
        self.titles = make_titles(self.specs)
        self.metrics = [metric(name) for name in METRICS]
        self.limits, self.pictures = limits, RecentItems[str, bytes](MAX_PICTURES)
        self.work = WorkQueue(limits.queue_size, limits.work_seconds)
        self.questions = RecentItems[str, Question](CACHE_SIZE)
        self._responses = RecentItems[Question, dict[str, Any]](CACHE_SIZE)
        self._results = RecentItems[tuple[Question, str], MethodResult](CACHE_SIZE)
        self._examples = dict[str, list[Question]]()
        self._explainers = dict[tuple[str, str, str], tuple[Explainer, UnitName]]()
        self._applies = dict[tuple[str, str], bool]()
        self._pass_seconds = dict[tuple[str, int], float]()

    @property
    def language_models(self) -> dict[str, GeneratingModel]:
        """The models that answer by a text of their own."""
        return {name: cast(GeneratingModel, model) for name, model in self.models.items() if is_generating(model)}

    def is_prompt(self, question: Question) -> bool:
        """Return whether the question is for a language model."""
        return is_generating(self.models[question.model])

    def get_default_methods(self, model: str) -> list[str]:
        """Return the methods chosen for this server, else the model's best method and occlusion.

        A language model has one, as it takes longer: the one it was trained for, the first chosen, or its best.
        """
        if model in self.trained_methods:
            return [self.trained_methods[model]]
        best = default_method(self.models[model])
        if is_generating(self.models[model]):
            return self.configured_methods[:1] or [best]
        return self.configured_methods or list(dict.fromkeys([best, SECOND_METHOD]))

    def find_examples(self, model: str) -> list[Question]:
        """Return the examples that suit a model."""
        # Kept, since a data set can have a hundred thousand rows and every page asks whether there are examples.
        if model not in self._examples:
            found = []
            for index, row in enumerate(self.examples):
                found.append(tasks.example_to_question(model, self.models[model], index, row))
            self._examples[model] = [question for question in found if question is not None]
        return self._examples[model]

    def has_input(self, question: Question) -> bool:
        """Return whether the question has a text or picture to explain."""
        if self.models[question.model].modality == "image":
            return bool(question.picture)
        return bool(question.text.strip())

    def make_query(self, question: Question) -> str:
        """Return the query of a question's address; a prompt, whose texts may be long, is stored and has its key."""
        if not self.is_prompt(question):
            return question.query
        self.questions.add(question.key, question)
        return f"key={question.key}"

    def make_example(self, question: Question) -> Any:
        """Return the question's text, pair of texts, image or prompt, as `attribute` takes it."""
        model, picture = self.models[question.model], None
        if question.picture and (model.modality == "image" or tasks.takes_images(model)):
            picture = Image.open(BytesIO(self.read_picture(question.picture)))
        return tasks.make_example(model, question, picture)

    def add_picture(self, content: bytes) -> str:
        """Store a picture and return its key. Raises ExpoundError if it cannot be read or is too large."""
        picture = encode_png(open_picture(content, self.limits))
        # Of the re-encoded pixels: metadata of the upload is dropped, and equal pictures are stored once.
        key = sha256(picture).hexdigest()[:32]
        self.pictures.add(key, picture)
        return key

    def read_picture(self, key: str) -> bytes:
        """Return an uploaded picture or the picture of an example as PNG. Raises ExpoundError if it is not stored."""
        # Keys are compared as text: `int` raises for thousands of digits, and reads "٣" and "03" as 3.
        for index, example in enumerate(self.examples):
            if key == f"{tasks.EXAMPLE_PREFIX}{index}" and "image" in example:
                return encode_png(example["image"])
        picture = self.pictures.get(key)
        if picture is None:
            raise ExpoundError(f"this picture is no longer stored (the last {MAX_PICTURES} are): upload it again")
        return picture

    def check_target(self, question: Question) -> str:
        """Return what `attribute` explains. Raises ExpoundError if the model has no such label."""
        model = self.models[question.model]
        if is_generating(model):
            return question.rows
        check_choice("target", question.target, tasks.list_targets(model, question))
        # The stretch of a tagged text is a part of the example; its predicted tag is explained.
        return PREDICTED if model.task.tags_spans else question.target

    def resolve_unit(self, question: Question) -> UnitName:
        """Return the unit that is scored and removed.

        It is the one in the question; else, for a prompt, the one the first method was trained with, or documents, or
        words if there are no documents; else words.
        """
        if question.unit or not self.is_prompt(question):
            return cast(UnitName, question.unit or "word")
        for name in question.method[:1]:
            if ":" in name and self.methods[name].params.get("unit"):
                return cast(UnitName, self.methods[name].params["unit"])
        return "source" if question.sources else "word"

    def resolve_method(self, question: Question, name: str) -> tuple[Explainer, UnitName]:
        """Return a method that scores units of a prompt, and the unit."""
        spec, unit = add_seed(self.specs[name], self.seed), self.resolve_unit(question)
        key = question.model, name, unit
        if key not in self._explainers:
            self._explainers[key] = resolve_unit(self.models[question.model], spec, unit, {})
        return self._explainers[key]

    def predict(
        self,
        question: Question,
        removed: Iterable[int] = (),
        stop: Event | None = None,
        write: SendText = ignore,
    ) -> list[OutputScore]:
        """Return the model's output for the question without the removed units; see `tasks.score_outputs`.

        `write` receives the words of an answer as they are generated.

        Raises:
            ExpoundError: the question cannot be encoded.
            StoppedError: `stop` was set.
        """
        stop, model = stop or Event(), self.models[question.model]
        example = self._complete_example(question, stop, write)
        with model.cache_perturbed(), track_progress(model.embedding, ignore, stop):
            batch = model.encode([example])
            keep = ~tasks.find_removed_positions(batch, self.resolve_unit(question), removed)
            output = model.predict_perturbed(batch, keep[None, None])[0]
            return tasks.score_outputs(model, batch, output, question)

    def cut_answer(self, question: Question, stop: Event | None = None) -> list[Piece]:
        """Return the parts of a generated answer; empty for other tasks."""
        model = self.models[question.model]
        if not is_generating(model):
            return []
        return tasks.cut_answer(model.encode([self._complete_example(question, stop or Event())]), question)

    def explain(
        self, question: Question, name: str, report: ShareCallback = ignore, stop: Event | None = None
    ) -> MethodResult:
        """Return one method's explanation; the last results are cached. `report` receives the share that is done.

        Raises:
            StoppedError: `stop` was set.
        """
        # The unit of other inputs only changes how a result is shown, so it is not part of the key.
        key = replace(question, method=(), unit=self.resolve_unit(question) if self.is_prompt(question) else ""), name
        cached = self._results.get(key)
        return cached or self._results.add(key, self._explain(question, name, report, stop or Event()))

    def _explain(self, question: Question, name: str, report: ShareCallback, stop: Event) -> MethodResult:
        model, method, unit = self.models[question.model], self.methods[name], None
        try:
            target = self.check_target(question)
            example = self._complete_example(question, stop)
            # Units of a function's texts are deleted, and an untrained method is made for each model.
            if model.black_box_reason or "untrained" in self.specs[name]:
                method = self.resolve_method(question, name)[0]
            if is_generating(model):
                method, unit = self.resolve_method(question, name)
                total: float = plan_work(model, example, method, target, unit, question.tokens).forward
            else:
                total = method.passes(int(model.encode([example]).content.sum()))[0]

            def report_inputs(n_inputs: int) -> None:
                # The number is an estimate: adaptive methods can run more inputs.
                report(min(1.0, n_inputs / max(1.0, total)))

            start = time.perf_counter()
            # The embedding is called once per pass whichever way a method runs the model, and before the costly layers.
            with model.cache_perturbed(), track_progress(model.embedding, report_inputs, stop):
                item = attribute(model, [example], method, target, unit=unit, show_progress=False)[0]
                # Measured before the metrics, which need many passes of their own.
                seconds = time.perf_counter() - start
                figures = {} if is_generating(model) else self._evaluate(model, example, item)
            return MethodResult(name, item, figures=figures, seconds=seconds)
        except ExpoundError as error:
            # One method that does not support the model must not hide the results of the others.
            return MethodResult(name, problem=str(error))

    def _evaluate(self, model: ExplainedModel, example: Any, item: Explanation) -> dict[str, float]:
        """Return the faithfulness of an attribution on its example, by the metric's title."""
        batch = model.encode([example])
        scores = torch.tensor(item.token_scores, device=batch.device)
        target = model.resolve_target(batch, item.target.value if model.task.reads_context else [item.target.value])
        figures = {}
        for evaluator in self.metrics:
            if evaluator.supports(model):
                values = evaluator.evaluate(model, batch, scores, target)[evaluator.name]
                figures[evaluator.card.title] = float(values[0])
        return figures

    def _complete_example(self, question: Question, stop: Event, write: SendText = ignore) -> Any:
        """Return the question's example; a prompt shows its units, and has the model's answer if it lacks one."""
        example = self.make_example(question)
        if not self.is_prompt(question):
            return example
        row = prompt_to_row(example)
        if "response" not in row:
            row = self._responses.get(question.input) or self._generate(question, row, stop, write)
        return show_units(row, self.resolve_unit(question))

    def _generate(self, question: Question, row: Any, stop: Event, write: SendText) -> dict[str, Any]:
        """Return a prompt with the answer that the model generates, which is cached."""
        model = self.language_models[question.model]
        follower = TextFollower(model.tokenizer, write)
        with track_progress(model.embedding, ignore, stop):
            (answered,) = model.respond([row], question.tokens, stopping_criteria=[follower])
        return self._responses.add(question.input, answered)

    def has_answer(self, question: Question) -> bool:
        """Return whether the question brings the answer along, as a text or as the last message."""
        return "response" in prompt_to_row(self.make_example(question))

    def list_methods(self, model: str) -> list[str]:
        """Return the methods that apply to a model; methods that have not been tried yet are included."""
        names = [name for name in self.methods if self._applies.get((model, name), True)]
        if self.models[model].black_box_reason:
            possible = list_native_methods(black_box=True)
            names = [name for name in names if self.methods[name].name in possible]
        return names

    def try_methods(self, model: str, stop: Event | None = None) -> None:
        """Find out which methods apply to a language model; each is tried once, on a prompt of a few tokens.

        A call ends after about `PROBE_SECONDS`; the next one goes on.

        Raises:
            StoppedError: `stop` was set.
        """
        end = time.perf_counter() + PROBE_SECONDS
        for name in self.methods:
            if (model, name) not in self._applies and time.perf_counter() < end:
                self._applies[model, name] = self._can_explain(model, name, stop or Event())

    def _can_explain(self, model: str, name: str, stop: Event) -> bool:
        if self.methods[name].removes_input():
            # They only run the model, and their first pass tells no more than that.
            return True
        question = Question(model, "a", method=(name,), sources=(("a", "a"),), response="a")
        explained, example = self.models[model], self.make_example(question)

        def stop_after_first_pass(n_inputs: int) -> None:
            # One pass for the answer's own probability, one for the method.
            if n_inputs > 1:
                raise _EnoughError

        try:
            method, unit = self.resolve_method(question, name)
            with track_progress(explained.embedding, ignore, stop):
                require_assumptions(method, explained, explained.encode([example]))
            with track_progress(explained.embedding, stop_after_first_pass, stop):
                attribute(explained, [example], method, "response", unit=unit, show_progress=False)
        except _EnoughError:
            return True
        except (ExpoundError, *MODEL_ERRORS) as error:
            logger.info("%s is not offered for %s: %s", name, model, error)
            return False
        return True

    def describe_costs(self, question: Question, stop: Event | None = None) -> dict[str, tuple[str, str]]:
        """Return the passes and the time of each method that applies for a prompt, as `--dry-run` tells them.

        Raises:
            ExpoundError: the question cannot be encoded, for example because a document has no place in it.
            StoppedError: `stop` was set.
        """
        stop, model = stop or Event(), self.language_models[question.model]
        example = self._responses.get(question.input) or self.make_example(question)
        costs = {}
        for name in self.list_methods(question.model):
            method, unit = self.resolve_method(replace(question, method=(name,)), name)
            plan = plan_work(model, example, method, question.rows, unit, question.tokens)
            tokens = plan.prompt_tokens + plan.response_tokens
            # Lengths within a factor of 2 share a measurement: typing a word must not run the model again.
            measured = (question.model, tokens.bit_length())
            if measured not in self._pass_seconds:
                with track_progress(model.embedding, ignore, stop):
                    seconds = measure_pass(model, [add_placeholder_response(model, example, question.tokens)])
                self._pass_seconds[measured] = seconds / tokens
            seconds = self._pass_seconds[measured] * tokens * plan.cost
            costs[name] = plan.passes, format_duration(seconds)
        return costs
