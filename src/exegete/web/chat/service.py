"""Language models behind the chat's pages: their answers and explanations, independent of HTTP."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from threading import Event
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from exegete.data.granularity import Granularity
from exegete.data.sentences import find_text_of_tokens
from exegete.errors import ExegeteError
from exegete.explainers import Explainer, attribute
from exegete.explainers.assumptions import require_assumptions
from exegete.explainers.plan import add_placeholder_response, measure_pass, plan_work
from exegete.explainers.registry import (
    default_method,
    explainer,
    is_removal_method,
    make_titles,
    resolve_unit,
    seed_params,
)
from exegete.explainers.units import list_units
from exegete.models import Batch
from exegete.models.checks import MODEL_ERRORS
from exegete.models.generation.examples import prompt_to_row
from exegete.models.generation.model import GeneratingModel
from exegete.reports.explanations import Explanation
from exegete.studies.compare.compare import list_native_methods
from exegete.studies.runs.estimate import format_duration
from exegete.web.chat.question import ROWS, ChatQuestion
from exegete.web.chat.text_follower import SendText, TextFollower
from exegete.web.explore.progress import ShareCallback, track_progress
from exegete.web.explore.queue import WorkQueue
from exegete.web.method_names import make_display_names
from exegete.web.recent import RecentItems
from exegete.web.settings import Limits

logger = logging.getLogger(__name__)
CACHE_SIZE = 256
RESPONSE_SHARE = 0.3
"""Share of the progress bar for the generation of the answer; the rest is for its explanation."""
PROBE_SECONDS = 10.0
"""Time after which trying methods pauses, so that questions do not wait long behind it."""


class AnswerExplanation(NamedTuple):
    """The attribution of an answer, or an error message; `is_generated`: the model wrote the answer, not the user."""

    attribution: Explanation | None = None
    problem: str = ""
    is_generated: bool = True
    seconds: float = 0.0


class _EnoughError(Exception):
    """A method has begun to explain the model, which is enough to know that it can."""


class ChatService:
    """Generates and explains answers of several language models.

    Methods that run a model must be called through the queue `work`, which runs one task at a time.

    Args:
        models: The models by name: decoders or encoder-decoders.
        methods: Specs of methods, as on the command line, offered besides the methods that need only the model.
        examples: Examples that the pages offer, with a prompt or messages, sources and perhaps a response.
        limits: Bounds on requests.
        seed: Random seed of the methods that have one.
        trained_methods: By model, the spec of the method that the model was trained for.
    """

    def __init__(
        self,
        models: Mapping[str, GeneratingModel],
        methods: Sequence[str] = (),
        examples: Sequence[Mapping[str, Any]] = (),
        limits: Limits = Limits(),  # noqa: B008  (frozen)
        seed: int = 0,
        trained_methods: Mapping[str, str] | None = None,
    ) -> None:
        if not models:
            raise ExegeteError("expected a model to explain: give one with --model")
        trained_methods = trained_methods or {}
        self.models, self.seed = dict(models), seed
        names = make_display_names((*trained_methods.values(), *methods, *list_native_methods()))
        # Methods are made when their unit is known; an invalid spec is an error at the start nevertheless.
        for spec in names:
            explainer(spec)
        self.methods = {name: spec for spec, name in names.items()}
        self.configured_methods = [names[spec] for spec in methods]
        self.trained_methods = {model: names[spec] for model, spec in trained_methods.items()}
        self.titles = make_titles(self.methods)
        questions = [_make_question(example) for example in examples]
        self.examples = [question for question in questions if question is not None]
        self.work = WorkQueue(limits.queue_size, limits.work_seconds)
        self._explainers = dict[tuple[str, str], tuple[Explainer, Granularity]]()
        self._applies = dict[tuple[str, str], bool]()
        self._pass_seconds = dict[tuple[str, int], float]()
        self.questions = RecentItems[str, ChatQuestion](CACHE_SIZE)
        self._responses = RecentItems[ChatQuestion, dict[str, Any]](CACHE_SIZE)
        self._explanations = RecentItems[ChatQuestion, AnswerExplanation](CACHE_SIZE)

    def get_default_method(self, model: str) -> str:
        """Return the method the model was trained for, else the first one chosen for the server, else the best."""
        if model in self.trained_methods:
            return self.trained_methods[model]
        if self.configured_methods:
            return self.configured_methods[0]
        return default_method(self.models[model])

    def has_chat_template(self, model: str) -> bool:
        """Return whether a model reads messages; other models continue a plain prompt."""
        return bool(getattr(self.models[model].tokenizer, "chat_template", None))

    def resolve_method(self, question: ChatQuestion) -> tuple[Explainer, Granularity]:
        """Return the method and the unit it scores.

        The unit is the one in the question, else the one a saved method was trained with, else documents, or words if
        the question has no documents.
        """
        spec = self.methods[question.method]
        unit = question.unit or (explainer(spec).params.get("unit") if ":" in spec else None)
        unit = unit or ("source" if question.sources else "word")
        if (spec, unit) not in self._explainers:
            params = seed_params(spec, self.seed)
            self._explainers[spec, unit] = resolve_unit(spec, cast(Granularity, unit), params)
        return self._explainers[spec, unit]

    def make_example(self, question: ChatQuestion) -> dict[str, Any]:
        """Return the question as an example: messages for models with a chat template, else a prompt.

        Documents replace {sources} or {NAME} in the question. If it has neither and does not quote a document, they
        are left to a chat template that takes documents, else put before the question.
        """
        text, model = question.question, self.models[question.model]
        marks = ["{sources}", *(f"{{{name}}}" for name, _ in question.sources if name)]
        marks += [document for _, document in question.sources if document]
        template = str(getattr(model.tokenizer, "chat_template", None) or "")
        if question.sources and "documents" not in template and not any(mark in text for mark in marks):
            text = f"{{sources}}\n\n{text}"
        example: dict[str, Any] = {"sources": [{"name": name, "text": content} for name, content in question.sources]}
        answer = question.response
        if template:
            system = []
            if question.system.strip():
                system = [{"role": "system", "content": question.system}]
            example["messages"] = [*system, {"role": "user", "content": text}]
        else:
            example["prompt"] = text
            # A decoder continues the prompt: "why?because" would be tokenized unlike anything the model has seen.
            if not (model.is_encoder_decoder or text[-1:].isspace() or answer[:1].isspace()):
                answer = f" {answer}"
        if question.response.strip():
            example["response"] = answer
        return example

    def list_methods(self, model: str) -> list[str]:
        """Return the methods that apply to a model; those that have not been tried are among them."""
        return [name for name in self.methods if self._applies.get((model, name), True)]

    def try_methods(self, model: str, stop: Event | None = None) -> None:
        """Find out which methods apply to a model; each is tried once, on a prompt of a few tokens.

        A call ends after about `PROBE_SECONDS`; the next one goes on.

        Raises:
            StoppedError: `stop` was set.
        """
        end = time.perf_counter() + PROBE_SECONDS
        for name in self.methods:
            if (model, name) not in self._applies and time.perf_counter() < end:
                self._applies[model, name] = self._can_explain(model, name, stop or Event())

    def _can_explain(self, model: str, name: str, stop: Event) -> bool:
        if is_removal_method(type(explainer(self.methods[name]))):
            # They only run the model, and their first pass tells no more than that.
            return True
        question = ChatQuestion(model, name, "a", (("a", "a"),), response="a")
        explained, example = self.models[model], self.make_example(question)

        def stop_after_first_pass(n_inputs: int) -> None:
            # One pass for the answer's own probability, one for the method.
            if n_inputs > 1:
                raise _EnoughError

        try:
            method, unit = self.resolve_method(question)
            with track_progress(explained.embedding, lambda n_inputs: None, stop):
                require_assumptions(method, explained, explained.encode([example]))
            with track_progress(explained.embedding, stop_after_first_pass, stop):
                attribute(explained, [example], method, "response", unit=unit, show_progress=False)
        except _EnoughError:
            return True
        except (ExegeteError, *MODEL_ERRORS) as error:
            logger.info("%s is not offered for %s: %s", name, model, error)
            return False
        return True

    def describe_costs(self, question: ChatQuestion, stop: Event | None = None) -> dict[str, tuple[str, str]]:
        """Return the passes and the time of each method that applies for the question, as `--dry-run` tells them.

        Raises:
            ExegeteError: the question cannot be encoded, for example because a document has no place in it.
            StoppedError: `stop` was set.
        """
        stop, model = stop or Event(), self.models[question.model]
        example = self._responses.get(_without_method(question)) or self.make_example(question)
        costs = {}
        for name in self.list_methods(question.model):
            method, unit = self.resolve_method(replace(question, method=name))
            plan = plan_work(model, example, method, question.rows, unit, question.tokens)
            tokens = plan.prompt_tokens + plan.response_tokens
            # Lengths within a factor of 2 share a measurement: typing a word must not run the model again.
            measured = (question.model, tokens.bit_length())
            if measured not in self._pass_seconds:
                with track_progress(model.embedding, lambda n_inputs: None, stop):
                    seconds = measure_pass(model, [add_placeholder_response(model, example, question.tokens)])
                self._pass_seconds[measured] = seconds / tokens
            seconds = self._pass_seconds[measured] * tokens * plan.cost
            costs[name] = plan.passes, format_duration(seconds)
        return costs

    def explain(
        self,
        question: ChatQuestion,
        report: ShareCallback | None = None,
        stop: Event | None = None,
        write: SendText | None = None,
    ) -> AnswerExplanation:
        """Return the explanation of the answer; the last results are cached.

        `report` receives the share of the work that is done, `write` the words of the answer as they are generated.

        Raises:
            StoppedError: `stop` was set.
        """
        nothing: Callable[[Any], None] = lambda _: None  # noqa: E731
        cached = self._explanations.get(question)
        return cached or self._explanations.add(
            question, self._explain(question, report or nothing, stop or Event(), write or nothing)
        )

    def score_without(self, question: ChatQuestion, removed: Iterable[int], stop: Event | None = None) -> list[float]:
        """Return the log-probabilities [T + 1] of the answer and its T explained parts without the removed units.

        A text whose units are all removed is removed as a whole, with the space between them.
        """
        item, model = self.explain(question, stop=stop).attribution, self.models[question.model]
        if item is None or item.exchange is None:
            return []
        example = self._add_response(question, lambda share: None, stop or Event(), lambda text: None)
        with track_progress(model.embedding, lambda n_inputs: None, stop or Event()):
            batch = model.encode([example])
            keep = ~_find_removed_positions(batch, item, set(removed))
            table = model.predict_perturbed(batch, keep[None, None].to(batch.device))[0]
        spans = torch.tensor(
            [(0, len(item.exchange.tokens)), *(target.value for target in item.targets)], device=batch.device
        )[:, None]
        return [float(model.task.log_probability(table, span)) for span in spans]

    def _explain(
        self, question: ChatQuestion, report: ShareCallback, stop: Event, write: SendText
    ) -> AnswerExplanation:
        start, model = time.perf_counter(), self.models[question.model]
        try:
            is_generated = "response" not in self.make_example(question)
            method, unit = self.resolve_method(question)
            example = self._add_response(question, lambda share: report(RESPONSE_SHARE * share), stop, write)
            total = plan_work(model, example, method, question.rows, unit, question.tokens).forward

            def report_inputs(n_inputs: int) -> None:
                # The plan is an estimate: adaptive methods can run more inputs.
                share = min(1.0, n_inputs / total)
                report(RESPONSE_SHARE + (1 - RESPONSE_SHARE) * share)

            # The embedding is called once per pass whichever way a method runs the model, and before the costly layers.
            with track_progress(model.embedding, report_inputs, stop):
                item = attribute(model, [example], method, question.rows, unit=unit, show_progress=False)[0]
            return AnswerExplanation(item, "", is_generated, time.perf_counter() - start)
        except ExegeteError as error:
            return AnswerExplanation(problem=str(error))

    def _add_response(
        self, question: ChatQuestion, report: ShareCallback, stop: Event, write: SendText
    ) -> dict[str, Any]:
        """Return the question's example with the answer, which the model generates if the question has no answer."""
        model, example, key = self.models[question.model], self.make_example(question), _without_method(question)
        cached = self._responses.get(key)
        if cached is not None:
            return cached
        with track_progress(model.embedding, lambda n_inputs: report(min(1.0, n_inputs / question.tokens)), stop):
            follower = TextFollower(model.tokenizer, write)
            return self._responses.add(key, model.respond([example], question.tokens, stopping_criteria=[follower])[0])


def _without_method(question: ChatQuestion) -> ChatQuestion:
    """Return the question without its method, unit and rows, on which the answer does not depend."""
    return replace(question, method="", unit="", rows=ROWS[0])


def _find_removed_positions(batch: Batch, item: Explanation, removed: set[int]) -> Tensor:
    """Return the positions [L] of the removed units, and of the texts whose units are all removed."""
    number = list_units(batch, cast(Granularity, item.unit)).number
    (alignment,) = batch.alignments or ()
    text = torch.tensor(find_text_of_tokens(alignment))
    # Alignments have no padding; decoders are padded on the left.
    texts = torch.nn.functional.pad(text, (len(number) - len(text), 0), value=-1)
    remaining = {unit.side for number, unit in enumerate(item.units) if number not in removed}
    # Otherwise spaces and line ends between the units of a removed document would stay in the prompt.
    removed_texts = {unit.side for unit in item.units} - remaining
    is_removed = torch.isin(number, torch.tensor(sorted(removed), dtype=torch.long))
    return is_removed | torch.isin(texts, torch.tensor(sorted(removed_texts), dtype=torch.long))


def _make_question(row: Mapping[str, Any]) -> ChatQuestion | None:
    """Return the question of an example, without model and method, or None for chats of several turns."""
    example = prompt_to_row(row)
    messages = example.get("messages") or [{"role": "user", "content": example.get("prompt")}]
    *system, last = messages
    # The form has one field for instructions and one for the question.
    if last.get("role") != "user" or len(system) > 1 or any(message.get("role") != "system" for message in system):
        return None
    sources = example.get("sources") or {}
    if isinstance(sources, Mapping):
        documents = tuple(sources.items())
    else:
        documents = tuple((source["name"], source["text"]) for source in sources)
    answer = example.get("response")
    return ChatQuestion(
        model="",
        method="",
        question=str(last["content"]),
        sources=documents,
        system=str(system[0]["content"]) if system else "",
        response=answer if isinstance(answer, str) else "",
    )
