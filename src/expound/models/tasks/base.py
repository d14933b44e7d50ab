"""Tasks: how logits are read, which number of them is explained, and what else differs by task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, ClassVar, Literal, Self, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from expound.errors import ExpoundError, check_choice
from expound.models.batch import Batch, find_predicting_columns, find_response_positions, require_response, to_float32

TEXT = "A short text, by which a model is tried."
OutputKind = Literal["logit", "log_prob", "prob"]
Property = Literal["decisions", "one_target", "one_choice", "labels", "classes"]
"""Properties of predictions: a decision that can flip; one target at a time; a choice among exclusive ones; named
labels; exactly one class of the whole input.
"""


class Task(ABC):
    """A task: it reads logits from a Hugging Face output and computes the score of a target.

    `is_read_at_positions`: the prediction is read at positions of the text, not where a head for the whole text reads.
    `predicts_number`: the answer is a number, which has no probability. `is_generated`: the answer is a text.
    `reads_context`: the text is a question, which is never cut, and the answer a part of its context.
    `tags_spans`: the answers are tags, and each stretch of the text that gets one is an example.
    `sample`: an example on which a model of the task can be tried.
    `output`: the number of the target whose gradients are taken, and whose changes removal methods report; None means
    the logit for gradients and the probability for removal.
    """

    name: ClassVar[str]
    target_dimensions: ClassVar[int] = 1
    has_contrasts: ClassVar[bool] = False
    is_read_at_positions: ClassVar[bool] = False
    predicts_number: ClassVar[bool] = False
    is_generated: ClassVar[bool] = False
    reads_context: ClassVar[bool] = False
    tags_spans: ClassVar[bool] = False
    properties: ClassVar[frozenset[Property]] = frozenset({"decisions", "one_target", "one_choice"})
    sample: ClassVar[Mapping[str, Any]] = {"text": TEXT}
    output: OutputKind | None = None

    def supports(self, *properties: Property) -> bool:
        """Return whether the task's predictions have all of these properties, see `Property`."""
        return self.properties.issuperset(properties)

    def with_output(self, output: OutputKind | None) -> Self:
        """Return the task explained in this output (logit, log_prob, prob); None: the task itself.

        Raises:
            ExpoundError: an unknown output.
        """
        if output is None:
            return self
        check_choice("output", output, get_args(OutputKind))
        other = copy(self)
        other.output = output
        return other

    def logits(self, output: Any, batch: Batch) -> Tensor:
        """Return the logits [B, C] (spans: [B, 2, L]) of a Hugging Face output."""
        logits: Tensor = output.logits
        return logits

    def distribution(self, output: Any, batch: Batch) -> Tensor:
        """Return the scores of all choices in the last dimension; undefined after the end of a response."""
        return self.logits(output, batch)

    @abstractmethod
    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the probabilities in the shape of the logits."""

    def predict(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the predicted target [B] (spans: [B, 2])."""
        return logits.argmax(-1)

    def target_from_labels(self, labels: Tensor) -> Tensor:
        """Return the target that belongs to the batch's labels."""
        return labels

    def parse_target(self, target: Any, batch: Batch, label_id: Callable[[Any], int]) -> Tensor:
        """Return targets [B], or contrasts [B, 2], of a label, a pair (for, against), or a list with one per example.

        Raises:
            ExpoundError: another number of targets than of examples; neither label nor contrast.
        """
        targets = target if isinstance(target, list) else [target] * len(batch)
        if len(targets) != len(batch):
            raise ExpoundError(f"expected one target or {len(batch)} (one per example), got {len(targets)}")
        if not any(isinstance(value, tuple) for value in targets):
            return torch.tensor([label_id(value) for value in targets], device=batch.device)
        if not all(isinstance(value, tuple) and len(value) == 2 for value in targets):
            raise ExpoundError(
                f"a contrast is a pair (for, against), one for each example or for all, got {target!r:.80}"
            )
        pairs = [(label_id(one), label_id(other)) for one, other in targets]
        return torch.tensor(pairs, device=batch.device)

    def check_target(self, target: Tensor, batch: Batch, outputs: int) -> Tensor:
        """Return the target.

        Raises:
            ExpoundError: another shape than one row per example, floating point numbers, or no such output.
        """
        is_contrast = target.ndim == 2 and self.has_contrasts
        shape = [len(batch)]
        if is_contrast or self.target_dimensions == 2:
            shape.append(2)
        require_integers(target, shape)
        if ((target < 0) | (target >= outputs)).any():
            raise ExpoundError(f"expected targets from 0 to {outputs - 1}, got {target.flatten().tolist()}")
        return target

    def pick(self, values: Tensor, target: Tensor) -> Tensor:
        """Return the entries [..., B] of `values` [..., B, C] at the target [B]; of a contrast, first minus second."""
        if self.is_contrast(target):
            first, second = target.unbind(-1)
            return self.pick(values, first) - self.pick(values, second)
        return values.gather(-1, target.expand(values.shape[:-1]).unsqueeze(-1)).squeeze(-1)

    def is_contrast(self, target: Tensor) -> bool:
        """Return whether the target is a pair of outputs whose difference is explained."""
        return target.ndim > self.target_dimensions

    def logit(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the target's logit [..., B] from logits [..., B, C]."""
        return self.pick(logits, target)

    def score(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the output [..., B] that gradients explain, from logits [..., B, C]."""
        if self.output == "prob":
            return self.probability(self.probabilities(logits), target)
        if self.output == "log_prob":
            return self.log_probability(logits, target)
        return self.logit(logits, target)

    def score_removal(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the output [..., B] whose drop removal methods report, from logits: `output`, or the probability."""
        if self.output is None:
            return self.probability(self.probabilities(logits), target)
        return self.score(logits, target)

    def probability(self, probabilities: Tensor, target: Tensor) -> Tensor:
        """Return the target's probability [..., B] from probabilities [..., B, C]."""
        return self.pick(probabilities, target)

    def log_probability(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the target's log-probability [..., B] from logits [..., B, C], in float32 at least."""
        return self.pick(F.log_softmax(to_float32(logits), -1), target)

    def log_distributions(self, logits: Tensor) -> Tensor:
        """Return the log-probabilities of the choices, in the last dimension, for each distribution of a prediction."""
        return F.log_softmax(logits, -1)

    def losses(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the loss of each example [B], in float32 or higher: the cross-entropy at its label.

        Raises:
            ExpoundError: the batch has no labels.
        """
        return F.cross_entropy(to_float32(logits), require_labels(batch), reduction="none")

    def shift(self, target: Tensor, start: int | Tensor) -> Tensor:
        """Return the target for a batch whose first `start` columns are cut off; only spans of columns change."""
        return target

    def count_tokens(self, target: Tensor) -> Tensor:
        """Return the number of tokens that a target consists of: [B]."""
        return torch.ones(len(target), dtype=torch.long, device=target.device)

    def select_positions(self, logits: Tensor, kept: Tensor) -> Tensor:
        """Return the logits of an input cut to the positions `kept` [L]; unchanged unless there is one per position."""
        return logits


class Classification(Task):
    """Classification into one of C classes."""

    name = "classification"
    has_contrasts = True
    properties: ClassVar = Task.properties | {"labels", "classes"}

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the softmax over the classes, in float32 at least."""
        return logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))


class MultiLabel(Task):
    """Classification with C labels, each on or off; the predicted target is the most likely label."""

    name = "multi_label"
    has_contrasts = True
    properties: ClassVar = frozenset({"decisions", "labels"})

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the sigmoid of every label's logit."""
        return to_float32(logits).sigmoid()

    def log_probability(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the log-probability [..., B] that the target is on."""
        # logsigmoid, since the logarithm of a sigmoid is −∞ for small logits.
        return self.pick(F.logsigmoid(to_float32(logits)), target)

    def log_distributions(self, logits: Tensor) -> Tensor:
        """Return the log-probabilities [..., C, 2] that each label is on and off."""
        # log σ(z) and log σ(−z) = log(1 − σ(z)), without a logarithm of 0.
        return F.logsigmoid(torch.stack([logits, -logits], -1))

    def losses(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the mean binary cross-entropy over the labels [B]."""
        logits = to_float32(logits)
        labels = require_labels(batch).to(logits.dtype)
        return F.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(1)


class Regression(Task):
    """Prediction of a number. The target is output 0, and its "probability" is the number itself."""

    name = "regression"
    predicts_number = True
    properties: ClassVar = frozenset({"one_target"})

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the values unchanged."""
        return logits

    def target_from_labels(self, labels: Tensor) -> Tensor:
        """Return output 0 for every example."""
        return torch.zeros_like(labels, dtype=torch.long)

    def predict(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return output 0 for every example."""
        return logits.new_zeros(len(logits), dtype=torch.long)

    def log_probability(self, logits: Tensor, target: Tensor) -> Tensor:
        """Raise ExpoundError: a number has no probability."""
        raise ExpoundError("a regression has no probability: what compares probabilities needs classes or spans")

    def losses(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the squared error [B]."""
        values = to_float32(logits).squeeze(-1)
        return (values - require_labels(batch).to(values.dtype)).square()


class Span(Task):
    """A span of tokens, from start to end; its logit is the sum of both logits, its probability their product."""

    name = "span"
    target_dimensions = 2
    is_read_at_positions = True
    reads_context = True
    longest = 30
    sample: ClassVar = {"text": TEXT, "text_pair": "It is about a model."}

    def logits(self, output: Any, batch: Batch) -> Tensor:
        """Return the logits [B, 2, L] of starts and ends; padding gets the lowest finite number."""
        # Not −∞: 0·∞ in a gradient or a difference would be NaN.
        both = torch.stack([output.start_logits, output.end_logits], 1)
        return both.masked_fill(~batch.attended[:, None], torch.finfo(both.dtype).min)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the softmax over the positions, separately for start and end."""
        return logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))

    def predict(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the best span [B, 2] of at most 30 tokens, start ≤ end, among the possible positions of answers."""
        allowed = batch.attended if batch.answerable is None else batch.answerable
        start, end = logits.float().masked_fill(~allowed[:, None], -torch.inf).unbind(1)
        length = start.shape[1]
        pairs = torch.ones(length, length, dtype=torch.bool, device=start.device)
        # The limit of 30 tokens is that of BERT's run_squad.py.
        valid = pairs.triu() & pairs.tril(self.longest - 1)
        total = (start[:, :, None] + end[:, None, :]).masked_fill(~valid, -torch.inf)
        best = total.flatten(1).argmax(1)
        return torch.stack([best // length, best % length], 1)

    def parse_target(self, target: Any, batch: Batch, label_id: Callable[[Any], int]) -> Tensor:
        """Return spans [B, 2] from one span (start, end) counted without padding, or one per example."""
        spans = torch.as_tensor(target, device=batch.device)
        # The first real position differs between left-padded rows.
        return spans.expand(len(batch), 2) + batch.attended.long().argmax(1)[:, None]

    def check_target(self, target: Tensor, batch: Batch, outputs: int) -> Tensor:
        """Return the spans; raise ExpoundError unless they lie within the batch."""
        return super().check_target(target, batch, batch.length)

    def pick(self, values: Tensor, target: Tensor) -> Tensor:
        """Return the start and end entries [..., B, 2] of `values` [..., B, 2, L]."""
        return values.gather(-1, target.unsqueeze(-1).expand(*values.shape[:-1], 1)).squeeze(-1)

    def logit(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the start's logit plus the end's."""
        return self.pick(logits, target).sum(-1)

    def probability(self, probabilities: Tensor, target: Tensor) -> Tensor:
        """Return the start's probability times the end's."""
        return self.pick(probabilities, target).prod(-1)

    def log_probability(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the sum of both log-probabilities, [..., B]."""
        return super().log_probability(logits, target).sum(-1)

    def losses(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the mean of the cross-entropies of start and end [B]; 0 if the answer was cut off (label −1)."""
        labels = require_labels(batch)
        # cross_entropy expects the classes, here the positions, in dimension 1.
        losses = F.cross_entropy(to_float32(logits).transpose(1, 2), labels.clamp(min=0), reduction="none")
        return losses.mean(1).masked_fill(~(labels >= 0).all(1), 0.0)

    def shift(self, target: Tensor, start: int | Tensor) -> Tensor:
        """Return the span counted from the column `start`, a number or one per example [B, 1]."""
        return target - start

    def select_positions(self, logits: Tensor, kept: Tensor) -> Tensor:
        """Return the logits of the positions `kept` [L]."""
        return logits[..., kept]


def require_labels(batch: Batch) -> Tensor:
    """Return the labels of the batch; raise ExpoundError if it has none."""
    if batch.labels is None:
        raise ExpoundError("training and its evaluation need labeled examples: the rows have no label (or no answer)")
    return batch.labels


def require_integers(target: Tensor, shape: list[int]) -> None:
    """Raise ExpoundError for a target of another shape, or of floating point numbers."""
    if list(target.shape) != shape or target.is_floating_point():
        raise ExpoundError(f"expected a target of integers {shape}, got {list(target.shape)} {target.dtype}")


LOGITS_AT_ONCE = 2**23
"""The most logits that are turned into probabilities at a time: 32 MB in float32."""


class Generation(Task):
    """A span of response tokens, each predicted from everything before it; explained by its log-probability.

    Its "logits" are a table [B, R, 2] of each response token's log-probability and logit, or [B, R, 3] with the foil's
    logit, zero after a response's end. All scores are computed from it; it takes no memory for the vocabulary.
    """

    name = "generation"
    target_dimensions = 2
    is_read_at_positions = True
    is_generated = True
    sample: ClassVar = {"prompt": TEXT, "response": " It is short."}
    properties: ClassVar = frozenset({"one_target", "one_choice"})
    output: OutputKind | None = "log_prob"

    def logits(self, output: Any, batch: Batch) -> Tensor:
        """Return the table [B, R, 2 or 3], in float32 at least."""
        full, ids, real = self.read_logits(output, batch)
        chosen = ids if batch.foil is None else torch.cat([ids, batch.foil[:, : ids.shape[1], None]], -1)
        tables = []
        # A few tokens at a time: the logits of a long response over a large vocabulary are the largest tensor by far.
        count = max(1, LOGITS_AT_ONCE // (full.shape[0] * full.shape[2]))
        for few, own in zip(full.split(count, 1), chosen.split(count, 1), strict=True):
            part = to_float32(few)
            tables.append(torch.cat([part.log_softmax(-1).gather(-1, own[..., :1]), part.gather(-1, own)], -1))
        return torch.cat(tables, 1) * real[..., None]

    def distribution(self, output: Any, batch: Batch) -> Tensor:
        """Return the logits over the vocabulary, [B, R, V]."""
        return to_float32(self.read_logits(output, batch)[0])

    @staticmethod
    def read_logits(output: Any, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits [B, R, V] at the prediction of each response token, its id [B, R, 1], and a mask [B, R]."""
        assert batch.response is not None
        positions, real = find_response_positions(batch.response)
        columns, full = find_predicting_columns(batch.response), output.logits
        index = positions - 1
        # Models that take `logits_to_keep` return the predicting columns only, others all positions.
        if full.shape[1] == len(columns):
            index = torch.searchsorted(columns, index)
        # In the usual case, one response length without padding, no copy over the vocabulary is made.
        if full.shape[1] != index.shape[1] or not real.all():
            full = full[torch.arange(len(batch), device=batch.device)[:, None], index]
        return full, batch.inputs["input_ids"].gather(1, positions)[..., None], real

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the table itself."""
        return logits

    def predict(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the span [B, 2] of the whole response."""
        assert batch.response is not None
        end = batch.response.sum(1)
        return torch.stack([torch.zeros_like(end), end], 1)

    def parse_target(self, target: Any, batch: Batch, label_id: Callable[[Any], int]) -> Tensor:
        """Return spans [B, 2] from one span or token number for all responses, or a list with one per response."""
        targets = target if isinstance(target, list) else [target] * len(batch)
        try:
            spans = []
            for span in targets:
                spans.append(span if isinstance(span, tuple | list) else (int(span), int(span) + 1))
            return torch.as_tensor(spans, device=batch.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ExpoundError(
                "a target of generated text is a span (start, end) of response tokens or a token's number, "
                f"or a list of those, got {target!r:.80}"
            ) from error

    def check_target(self, target: Tensor, batch: Batch, outputs: int) -> Tensor:
        """Return the spans; raise ExpoundError unless each lies within its response."""
        require_integers(target, [len(batch), 2])
        count = require_response(batch).sum(1)
        wrong = (target[:, 0] < 0) | (target[:, 0] >= target[:, 1]) | (target[:, 1] > count)
        if wrong.any():
            row = int(wrong.nonzero()[0])
            raise ExpoundError(
                f"expected a span start < end within the {int(count[row])} tokens of response {row}, "
                f"got {tuple(target[row].tolist())}"
            )
        return target

    def pick(self, values: Tensor, target: Tensor) -> Tensor:
        """Return the sums [..., B, k] of the table [..., B, R, k] over the span."""
        step = torch.arange(values.shape[-2], device=values.device)
        inside = (step >= target[:, :1]) & (step < target[:, 1:])
        return (values * inside[..., None]).sum(-2)

    def logit(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the sum of the span's logits, minus the foils' logits if there are foils."""
        picked = self.pick(logits, target)
        if picked.shape[-1] > 2:
            return picked[..., 1] - picked[..., 2]
        return picked[..., 1]

    def probability(self, probabilities: Tensor, target: Tensor) -> Tensor:
        """Return the span's probability, given everything before it."""
        return self.pick(probabilities, target)[..., 0].exp()

    def log_probability(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the span's log-probability, given everything before it."""
        return self.pick(logits, target)[..., 0]

    def score(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the span's output, minus the foil's output if there is one; both continue the same prefix."""
        picked = self.pick(logits, target)
        has_foils = picked.shape[-1] > 2
        # The normalizer of a position cancels out, so log-probabilities differ by as much as logits.
        if self.output == "logit" or (self.output == "log_prob" and has_foils):
            return self.logit(logits, target)
        if self.output == "log_prob":
            return picked[..., 0]
        if not has_foils:
            return picked[..., 0].exp()
        # log p(foil) = log p(token) − logit(token) + logit(foil).
        return picked[..., 0].exp() - (picked[..., 0] - picked[..., 1] + picked[..., 2]).exp()

    def losses(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the mean −log p of the response's tokens [B]; the whole response is the label."""
        whole = self.predict(logits, batch)
        return -self.log_probability(logits, whole) / self.count_tokens(whole)

    def count_tokens(self, target: Tensor) -> Tensor:
        """Return the number of response tokens in each span."""
        return target[:, 1] - target[:, 0]
