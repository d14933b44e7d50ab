"""Tasks: how a model's answer is read, and how it becomes the one number that is explained."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from typing import Any, ClassVar, Literal, Self, get_args

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from exegete.errors import ExegeteError, unknown
from exegete.models.batch import Batch
from exegete.models.response_positions import find_predicting_columns, find_response_positions, require_response

OutputKind = Literal["logit", "log_prob", "prob"]


class Task(ABC):
    """Reads logits from a Hugging Face output and turns a target into a score.

    `is_read_at_positions`: it is read at positions of the text, not where a head for the whole text reads.
    `output`: which number of the target gradients are taken of, and which one removal methods watch; None: the logit,
    and the probability.
    """

    name: ClassVar[str]
    target_dimensions: ClassVar[int] = 1
    has_contrasts: ClassVar[bool] = False
    is_read_at_positions: ClassVar[bool] = False
    output: OutputKind | None = None

    def with_output(self, output: OutputKind | None) -> Self:
        """The same task, explaining this number of a target; None changes nothing."""
        if output is None:
            return self
        if output not in get_args(OutputKind):
            raise unknown("output", output, get_args(OutputKind))
        other = copy(self)
        other.output = output
        return other

    def logits(self, output: Any, batch: Batch) -> Tensor:
        """[B, C] (spans: [B, 2, L])."""
        logits: Tensor = output.logits
        return logits

    def distribution(self, output: Any, batch: Batch) -> Tensor:
        """Scores of all choices, the last dimension: the logits; anything behind a response's end."""
        return self.logits(output, batch)

    @abstractmethod
    def probabilities(self, logits: Tensor) -> Tensor:
        """The probabilities, in the shape of the logits."""

    def predict(self, logits: Tensor, batch: Batch) -> Tensor:
        """The predicted target: [B] (spans: [B, 2])."""
        return logits.argmax(-1)

    def target_from_labels(self, labels: Tensor) -> Tensor:
        """The target that the batch's labels name."""
        return labels

    def parse_target(self, target: Any, batch: Batch, label_id: Callable[[Any], int]) -> Tensor:
        """[B], or contrasts [B, 2], from a label, a contrast (for, against), or a list with one for each example.

        Raises:
            ExegeteError: another number of targets than of examples; what is neither label nor contrast.
        """
        each = target if isinstance(target, list) else [target] * len(batch)
        if len(each) != len(batch):
            raise ExegeteError(f"expected one target or {len(batch)} (one an example), got {len(each)}")
        if not any(isinstance(value, tuple) for value in each):
            return torch.tensor([label_id(value) for value in each], device=batch.device)
        if not all(isinstance(value, tuple) and len(value) == 2 for value in each):
            raise ExegeteError(
                f"a contrast is a pair (for, against), one for each example or for all, got {target!r:.80}"
            )
        return torch.tensor([[label_id(value) for value in pair] for pair in each], device=batch.device)

    def check_target(self, target: Tensor, batch: Batch, outputs: int) -> Tensor:
        """The target, when it has a row for each example and names outputs that there are.

        Raises:
            ExegeteError: another shape, floating point numbers, no such output.
        """
        contrast = target.ndim == 2 and self.has_contrasts
        require_integers(target, [len(batch), 2] if contrast else [len(batch), 2][: self.target_dimensions])
        if ((target < 0) | (target >= outputs)).any():
            raise ExegeteError(f"expected targets from 0 to {outputs - 1}, got {target.flatten().tolist()}")
        return target

    def pick(self, values: Tensor, target: Tensor) -> Tensor:
        """The entry of `values` [..., B, C] at the target [B]: [..., B]; of a contrast [B, 2], first minus second."""
        if self.is_contrast(target):
            first, second = target.unbind(-1)
            return self.pick(values, first) - self.pick(values, second)
        return values.gather(-1, target.expand(values.shape[:-1]).unsqueeze(-1)).squeeze(-1)

    def is_contrast(self, target: Tensor) -> bool:
        """Whether the target is two outputs, of which the difference is asked."""
        return target.ndim > self.target_dimensions

    def logit(self, logits: Tensor, target: Tensor) -> Tensor:
        """The target's logit, from [..., B, C]: [..., B]."""
        return self.pick(logits, target)

    def score(self, logits: Tensor, target: Tensor) -> Tensor:
        """The number that is explained, from [..., B, C]: [..., B]."""
        if self.output == "prob":
            return self.probability(self.probabilities(logits), target)
        return self.log_probability(logits, target) if self.output == "log_prob" else self.logit(logits, target)

    def score_probabilities(self, probabilities: Tensor, target: Tensor) -> Tensor:
        """The number whose fall removal methods report, from [..., B, C]: [..., B].

        Raises:
            ExegeteError: the logit, which probabilities do not tell.
        """
        if self.output == "logit":
            raise ExegeteError("under removal only probabilities are known: choose output='prob' or 'log_prob'")
        if self.output == "log_prob" and self.is_contrast(target):
            return self.pick(probabilities.log(), target)
        found = self.probability(probabilities, target)
        return found.log() if self.output == "log_prob" else found

    def probability(self, probabilities: Tensor, target: Tensor) -> Tensor:
        """The target's probability, from [..., B, C]: [..., B]."""
        return self.pick(probabilities, target)

    def log_probability(self, logits: Tensor, target: Tensor) -> Tensor:
        """Its logarithm from logits [..., B, C], in float32 at least: [..., B]; what losses are made of."""
        return self.pick(F.log_softmax(_precise(logits), -1), target)


class Classification(Task):
    """One class out of C."""

    name = "classification"
    has_contrasts = True

    def probabilities(self, logits: Tensor) -> Tensor:
        """Softmax over the classes, in float32 at least."""
        return logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))


class MultiLabel(Task):
    """C labels, each on or off; the predicted target is the most likely one."""

    name = "multi_label"
    has_contrasts = True

    def probabilities(self, logits: Tensor) -> Tensor:
        """The sigmoid of every label's logit."""
        return _precise(logits).sigmoid()

    def log_probability(self, logits: Tensor, target: Tensor) -> Tensor:
        """That the target is on: [..., B]."""
        return self.pick(F.logsigmoid(_precise(logits)), target)


class Regression(Task):
    """A number; the target is output 0, and what other tasks call its probability is the number itself."""

    name = "regression"

    def probabilities(self, logits: Tensor) -> Tensor:
        """The values as they are."""
        return logits

    def target_from_labels(self, labels: Tensor) -> Tensor:
        """Output 0 for every example."""
        return torch.zeros_like(labels, dtype=torch.long)

    def predict(self, logits: Tensor, batch: Batch) -> Tensor:
        """Output 0 for every example."""
        return logits.new_zeros(len(logits), dtype=torch.long)

    def log_probability(self, logits: Tensor, target: Tensor) -> Tensor:
        """There is none: raises ExegeteError."""
        raise ExegeteError("a regression has no probability: what compares probabilities needs classes or spans")


class Span(Task):
    """A span of tokens: start and end. Its logit is the sum of both logits, its probability their product."""

    name = "span"
    target_dimensions = 2
    is_read_at_positions = True
    longest = 30

    def logits(self, output: Any, batch: Batch) -> Tensor:
        """[B, 2, L]; padding gets the lowest number there is."""
        both = torch.stack([output.start_logits, output.end_logits], 1)
        return both.masked_fill(~batch.attended[:, None], torch.finfo(both.dtype).min)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Softmax over the positions, for start and end apart."""
        return logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))

    def predict(self, logits: Tensor, batch: Batch) -> Tensor:
        """[B, 2], the best start ≤ end of at most 30 tokens among the positions where an answer may lie."""
        may = batch.attended if batch.answerable is None else batch.answerable
        start, end = logits.float().masked_fill(~may[:, None], -torch.inf).unbind(1)
        length = start.shape[1]
        order = torch.ones(length, length, dtype=torch.bool, device=start.device)
        valid = order.triu() & order.tril(self.longest - 1)
        total = (start[:, :, None] + end[:, None, :]).masked_fill(~valid, -torch.inf)
        best = total.flatten(1).argmax(1)
        return torch.stack([best // length, best % length], 1)

    def parse_target(self, target: Any, batch: Batch, label_id: Callable[[Any], int]) -> Tensor:
        """[B, 2] from a span (start, end) counted without padding, or one for each example."""
        spans = torch.as_tensor(target, device=batch.device)
        return spans.expand(len(batch), 2) + batch.attended.long().argmax(1)[:, None]

    def check_target(self, target: Tensor, batch: Batch, outputs: int) -> Tensor:
        """The spans, when they lie within the batch."""
        return super().check_target(target, batch, batch.length)

    def pick(self, values: Tensor, target: Tensor) -> Tensor:
        """Start and end entries [..., B, 2] of [..., B, 2, L]."""
        return values.gather(-1, target.unsqueeze(-1).expand(*values.shape[:-1], 1)).squeeze(-1)

    def logit(self, logits: Tensor, target: Tensor) -> Tensor:
        """The start's logit plus the end's."""
        return self.pick(logits, target).sum(-1)

    def probability(self, probabilities: Tensor, target: Tensor) -> Tensor:
        """The start's probability times the end's."""
        return self.pick(probabilities, target).prod(-1)

    def log_probability(self, logits: Tensor, target: Tensor) -> Tensor:
        """The start's plus the end's: [..., B]."""
        return super().log_probability(logits, target).sum(-1)


class Generation(Task):
    """A span of response tokens, each given everything before it; its default output is the log-probability.

    What other tasks call logits is here a table [B, R, 2] of each response token's log-probability and logit (with
    foils [B, R, 3]: and the foil's logit), R the longest response, zeros behind a response's end: all that a score can
    be made of, without the vocabulary.
    """

    name = "generation"
    target_dimensions = 2
    output: OutputKind | None = "log_prob"

    def logits(self, output: Any, batch: Batch) -> Tensor:
        """[B, R, 2 or 3], in float32 at least."""
        full, ids, real = self.read(output, batch)
        found = [full.log_softmax(-1).gather(-1, ids), full.gather(-1, ids)]
        if batch.foil is not None:
            found.append(full.gather(-1, batch.foil[:, : ids.shape[1], None]))
        return torch.cat(found, -1) * real[..., None]

    def distribution(self, output: Any, batch: Batch) -> Tensor:
        """[B, R, V]."""
        return self.read(output, batch)[0]

    @staticmethod
    def read(output: Any, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [B, R, V] where each response token is predicted, its id [B, R, 1], and which are real [B, R]."""
        assert batch.response is not None
        positions, real = find_response_positions(batch.response)
        columns, full = find_predicting_columns(batch.response), output.logits
        read = positions - 1
        index = torch.searchsorted(columns, read) if full.shape[1] == len(columns) else read
        if full.shape[1] != index.shape[1] or not real.all():
            full = full[torch.arange(len(batch), device=batch.device)[:, None], index]
        return _precise(full), batch.inputs["input_ids"].gather(1, positions)[..., None], real

    def probabilities(self, logits: Tensor) -> Tensor:
        """The table itself."""
        return logits

    def predict(self, logits: Tensor, batch: Batch) -> Tensor:
        """[B, 2] The whole response."""
        assert batch.response is not None
        end = batch.response.sum(1)
        return torch.stack([torch.zeros_like(end), end], 1)

    def parse_target(self, target: Any, batch: Batch, label_id: Callable[[Any], int]) -> Tensor:
        """[B, 2] from one span or token for all responses, or a list with one for each."""
        each = target if isinstance(target, list) else [target] * len(batch)
        try:
            spans = [(int(one), int(one) + 1) if not isinstance(one, tuple | list) else one for one in each]
            return torch.as_tensor(spans, device=batch.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ExegeteError(
                "a target of generated text is a span (start, end) of response tokens or a token's number, "
                f"or a list of those, got {target!r:.80}"
            ) from error

    def check_target(self, target: Tensor, batch: Batch, outputs: int) -> Tensor:
        """The spans, when each lies within its response."""
        require_integers(target, [len(batch), 2])
        count = require_response(batch).sum(1)
        wrong = (target[:, 0] < 0) | (target[:, 0] >= target[:, 1]) | (target[:, 1] > count)
        if wrong.any():
            row = int(wrong.nonzero()[0])
            raise ExegeteError(
                f"expected a span start < end within the {int(count[row])} tokens of response {row}, "
                f"got {tuple(target[row].tolist())}"
            )
        return target

    def pick(self, values: Tensor, target: Tensor) -> Tensor:
        """Sums [..., B, k] of the table [..., B, R, k] over the span."""
        step = torch.arange(values.shape[-2], device=values.device)
        inside = (step >= target[:, :1]) & (step < target[:, 1:])
        return (values * inside[..., None]).sum(-2)

    def logit(self, logits: Tensor, target: Tensor) -> Tensor:
        """The sum of the tokens' logits; of their differences from the foils' where there are foils."""
        picked = self.pick(logits, target)
        return picked[..., 1] - picked[..., 2] if picked.shape[-1] > 2 else picked[..., 1]

    def probability(self, probabilities: Tensor, target: Tensor) -> Tensor:
        """The span's probability given what is before it."""
        return self.pick(probabilities, target)[..., 0].exp()

    def log_probability(self, logits: Tensor, target: Tensor) -> Tensor:
        """Its logarithm."""
        return self.pick(logits, target)[..., 0]

    def score(self, logits: Tensor, target: Tensor) -> Tensor:
        """The span's output; with foils minus that of the foils, each read on the response's own prefix."""
        picked = self.pick(logits, target)
        if self.output == "logit" or (self.output == "log_prob" and picked.shape[-1] > 2):
            return self.logit(logits, target)
        if self.output == "log_prob":
            return picked[..., 0]
        other = (picked[..., 0] - picked[..., 1] + picked[..., 2]).exp() if picked.shape[-1] > 2 else 0
        return picked[..., 0].exp() - other

    def score_probabilities(self, probabilities: Tensor, target: Tensor) -> Tensor:
        """The same number: nothing is lost under removal."""
        return self.score(probabilities, target)


def require_integers(target: Tensor, shape: list[int]) -> None:
    """Refuses a target of another shape, or of floating point numbers."""
    if list(target.shape) != shape or target.is_floating_point():
        raise ExegeteError(f"expected a target of integers {shape}, got {list(target.shape)} {target.dtype}")


def _precise(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


TASKS: dict[str, type[Task]] = {task.name: task for task in (Classification, MultiLabel, Regression, Span)}


def make_task(model: PreTrainedModel, name: str | None = None) -> Task:
    """The task of this name; default: what the model's head and configuration say.

    Raises:
        ExegeteError: an unknown task, or no head that can be explained.
    """
    if name is not None and name not in TASKS:
        raise unknown("task", name, TASKS)
    return TASKS[name or _named_by_head(model)]()


def _named_by_head(model: PreTrainedModel) -> str:
    name, config = type(model).__name__, model.config
    if name.endswith("ForQuestionAnswering"):
        return "span"
    if not name.endswith(("ForSequenceClassification", "ForImageClassification")):
        raise ExegeteError(
            f"{name} has no head to explain: expected …ForSequenceClassification, …ForQuestionAnswering "
            "or …ForImageClassification"
        )
    if config.problem_type == "multi_label_classification":
        return "multi_label"
    return "regression" if config.problem_type == "regression" or config.num_labels == 1 else "classification"
