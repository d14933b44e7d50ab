"""Language models behind the chat's page: answers, where they come from, what they lose. Nothing here knows of HTTP."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from threading import Event
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from exegete.data.granularity import Granularity
from exegete.errors import ExegeteError
from exegete.explainers import Explainer
from exegete.explainers.generated import attribute_generated, list_units, resolve_unit
from exegete.explainers.plan import plan_work
from exegete.explainers.registry import default_method, explainer, make_titles, seed_params
from exegete.models import Batch
from exegete.models.generation.examples import prompt_to_row
from exegete.models.generation.model import GeneratingModel
from exegete.reports.generated import GeneratedAttribution
from exegete.studies.compare.compare import list_native_methods
from exegete.web.chat.question import ChatQuestion
from exegete.web.explore.progress import track_progress
from exegete.web.explore.queue import WorkQueue
from exegete.web.method_names import make_display_names
from exegete.web.settings import Limits

CACHE_SIZE = 256
ANSWERING = 0.3
"""The share of the progress that an answer takes, the explanation has the rest."""
Report = Callable[[float], None]
V = TypeVar("V")


class AnswerExplanation(NamedTuple):
    """The attribution of an answer, or why there is none; `own`: whether the model gave the answer itself."""

    attribution: GeneratedAttribution | None = None
    problem: str = ""
    own: bool = True
    seconds: float = 0.0


class ChatService:
    """Explains what models by name say on documents; what pages ask goes through `work`, one piece after the other.

    Args:
        models: language models, with an encoder or without.
        methods: specs as on the command line, beside every method that needs nothing but the model; what a request
            names is looked up among these, never made from its words.
        examples: rows of prompt or messages, sources and response to begin with.
        limits: see `Limits`.
        seed: of methods that have one.
        trained_methods: by model the spec of the method that it was trained for.
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
            raise ExegeteError("there is no model to explain: give one with --model")
        self.models, self.seed = dict(models), seed
        names = make_display_names((*(trained_methods or {}).values(), *methods, *list_native_methods()))
        for spec in names:
            explainer(spec)
        self.methods = {name: spec for spec, name in names.items()}
        self.configured_methods = [names[spec] for spec in methods]
        self.trained_methods = {model: names[spec] for model, spec in (trained_methods or {}).items()}
        self.titles = make_titles(self.methods)
        self.examples = [found for row in examples if (found := _asked(row)) is not None]
        self.work = WorkQueue(limits.queue_size, limits.work_seconds)
        self._made = dict[tuple[str, str], tuple[Explainer, Granularity]]()
        self._said = OrderedDict[ChatQuestion, dict[str, Any]]()
        self._kept = OrderedDict[ChatQuestion, AnswerExplanation]()

    def get_default_method(self, model: str) -> str:
        """The method a page begins with: what the model was trained for, else the server's first, else the best."""
        return self.trained_methods.get(model) or next(
            iter(self.configured_methods), default_method(self.models[model])
        )

    def has_chat_template(self, model: str) -> bool:
        """Whether a model reads chats; the others go on with a text."""
        return bool(getattr(self.models[model].tokenizer, "chat_template", None))

    def resolve_method(self, question: ChatQuestion) -> tuple[Explainer, Granularity]:
        """The method and the units it scores: those question for, else its own, else documents where there are some."""
        spec = self.methods[question.method]
        unit = question.unit or (explainer(spec).params.get("unit") if ":" in spec else None)
        unit = unit or ("source" if question.sources else "word")
        if (spec, unit) not in self._made:
            self._made[spec, unit] = resolve_unit(spec, cast(Granularity, unit), seed_params(spec, self.seed))
        return self._made[spec, unit]

    def make_example(self, question: ChatQuestion) -> dict[str, Any]:
        """The question as a row: messages where the model reads chats, else a prompt.

        Documents stand where the question says {sources} or {NAME} (or word for word), else where a chat template has a
        place for them, else before the question.
        """
        text, model = question.question, self.models[question.model]
        marks = [
            "{sources}",
            *(f"{{{name}}}" for name, _ in question.sources if name),
            *(t for _, t in question.sources),
        ]
        template = str(getattr(model.tokenizer, "chat_template", None) or "")
        if question.sources and "documents" not in template and not any(mark and mark in text for mark in marks):
            text = f"{{sources}}\n\n{text}"
        row: dict[str, Any] = {"sources": [{"name": name, "text": content} for name, content in question.sources]}
        answer = question.response
        if template:
            said = [{"role": "system", "content": question.system}] if question.system.strip() else []
            row["messages"] = [*said, {"role": "user", "content": text}]
        else:
            row["prompt"] = text
            answer = answer if model.is_encoder_decoder or text[-1:].isspace() or answer[:1].isspace() else f" {answer}"
        return row | ({"response": answer} if question.response.strip() else {})

    def explain(
        self, question: ChatQuestion, report: Report | None = None, stop: Event | None = None
    ) -> AnswerExplanation:
        """Where the answer comes from; what was answered lately is remembered.

        Raises:
            StoppedError: `stop` was set meanwhile.
        """
        if question not in self._kept:
            _remember(self._kept, question, self._explain(question, report or (lambda share: None), stop or Event()))
        return self._kept[question]

    def score_without(self, question: ChatQuestion, removed: Iterable[int], stop: Event | None = None) -> list[float]:
        """Log-probabilities of the whole answer and of its explained parts when the units of these numbers are gone.

        A text all of whose units are gone is removed as a whole.
        """
        item, model = self.explain(question, stop=stop).attribution, self.models[question.model]
        if item is None:
            return []
        row = self._answered(question, lambda share: None, stop or Event())
        with track_progress(model.embedding, lambda seen: None, stop or Event()):
            batch = model.encode([row])
            keep = ~_gone(batch, item, set(removed))
            table = model.predict_perturbed(batch, keep[None, None].to(batch.device))[0]
        spans = torch.tensor([(0, len(item.exchange.tokens)), *item.spans], device=batch.device)[:, None]
        return [float(model.task.log_probability(table, span)) for span in spans]

    def _explain(self, question: ChatQuestion, report: Report, stop: Event) -> AnswerExplanation:
        begun, model = time.perf_counter(), self.models[question.model]
        try:
            method, unit = self.resolve_method(question)
            row = self._answered(question, lambda share: report(ANSWERING * share), stop)
            total = plan_work(model, row, method, question.rows, unit, question.tokens).forward
            passes = partial(_in_all, report, total)
            with track_progress(model.embedding, passes, stop):
                (item,) = attribute_generated(model, [row], method, question.rows, unit)
            return AnswerExplanation(
                item, "", "response" not in self.make_example(question), time.perf_counter() - begun
            )
        except ExegeteError as error:
            return AnswerExplanation(problem=str(error))

    def _answered(self, question: ChatQuestion, report: Report, stop: Event) -> dict[str, Any]:
        """The row with an answer."""
        model, row = self.models[question.model], self.make_example(question)
        plain = ChatQuestion(
            question.model,
            "",
            question.question,
            question.sources,
            question.system,
            question.response,
            tokens=question.tokens,
        )
        if plain not in self._said:
            with track_progress(model.embedding, lambda seen: report(min(1.0, seen / question.tokens)), stop):
                _remember(self._said, plain, model.respond([row], question.tokens)[0])
        return self._said[plain]


def _in_all(report: Report, total: float, seen: int) -> None:
    """Reports the share of an explanation's passes, after its answer's."""
    report(ANSWERING + (1 - ANSWERING) * min(1.0, seen / total))


def _gone(batch: Batch, item: GeneratedAttribution, removed: set[int]) -> Tensor:
    """[L] Positions of the removed units, and of texts of which nothing stays."""
    number = list_units(batch, cast(Granularity, item.unit)).number
    (alignment,) = batch.alignments or ()
    text = torch.tensor([-1 if span is None else span[0] for span in alignment.spans])
    texts = torch.nn.functional.pad(text, (len(number) - len(text), 0), value=-1)
    left = {text for unit, (text, _, _) in enumerate(item.unit_spans) if unit not in removed}
    whole = {text for text, _, _ in item.unit_spans} - left
    of_units, of_texts = (torch.tensor(sorted(each), dtype=torch.long) for each in (removed, whole))
    return torch.isin(number, of_units) | torch.isin(texts, of_texts)


def _asked(row: Mapping[str, Any]) -> ChatQuestion | None:
    """What a row asks, without model and method; None for chats of several turns, which the page has no place for."""
    example = prompt_to_row(row)
    messages = example.get("messages") or [{"role": "user", "content": example.get("prompt")}]
    *before, last = messages
    if last.get("role") != "user" or any(each.get("role") != "system" for each in before) or len(before) > 1:
        return None
    sources = example.get("sources") or {}
    named = sources.items() if isinstance(sources, Mapping) else [(each["name"], each["text"]) for each in sources]
    answer = example.get("response")
    return ChatQuestion(
        "", "", str(last["content"]), tuple(named), str(before[0]["content"]) if before else "",
        answer if isinstance(answer, str) else "",
    )  # fmt: skip


def _remember(kept: OrderedDict[ChatQuestion, V], question: ChatQuestion, found: V) -> None:
    kept[question] = found
    while len(kept) > CACHE_SIZE:
        kept.popitem(last=False)
