"""The interface of tasks: how logits are read from a model's output, and which number of them is explained."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from typing import Any, ClassVar, Literal, Self, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from expound.errors import ExpoundError, check_choice
from expound.models.batch import Batch
from expound.models.outputs import to_float32

OutputKind = Literal["logit", "log_prob", "prob"]
Property = Literal["decisions", "one_target", "one_choice", "labels", "classes"]
"""Properties of answers: a decision that can flip; one target at a time; a choice among exclusive ones; named labels;
exactly one class of the whole input.
"""


class Task(ABC):
    """A task: it reads logits from a Hugging Face output and computes the score of a target.

    `is_read_at_positions`: the answer is read at positions of the text, not where a head for the whole text reads.
    `predicts_number`: the answer is a number, which has no probability. `is_generated`: the answer is a text.
    `reads_context`: the text is a question, which is never cut, and the answer a part of its context.
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
    properties: ClassVar[frozenset[Property]] = frozenset({"decisions", "one_target", "one_choice"})
    output: OutputKind | None = None

    def supports(self, *properties: Property) -> bool:
        """Return whether the task's answers have all of these properties, see `Property`."""
        return self.properties.issuperset(properties)

    def with_output(self, output: OutputKind | None) -> Self:
        """Return the task with another number of the target explained; None: the task itself.

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
        """Return the number [..., B] that gradients explain, from logits [..., B, C]."""
        if self.output == "prob":
            return self.probability(self.probabilities(logits), target)
        if self.output == "log_prob":
            return self.log_probability(logits, target)
        return self.logit(logits, target)

    def score_removal(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the number [..., B] whose drop removal methods report, from logits: `output`, or the probability."""
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
        """Return the log-probabilities of the choices, in the last dimension, of each distribution in the answer."""
        return F.log_softmax(logits, -1)

    def make_row(self, text: str, tokenizer: Any) -> dict[str, Any]:
        """Return a text as an example of the task, on which a model can be tried."""
        return {"text": text}

    def losses(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the loss of each example [B], in float32 or higher: the cross-entropy at its label.

        Raises:
            ExpoundError: the batch has no labels.
        """
        return F.cross_entropy(to_float32(logits), require_labels(batch), reduction="none")

    def shift(self, target: Tensor, start: int | Tensor) -> Tensor:
        """Return the target for a batch without the first `start` columns, which only targets of columns count."""
        return target

    def count_tokens(self, target: Tensor) -> Tensor:
        """Return the number of tokens that a target consists of: [B]."""
        return torch.ones(len(target), dtype=torch.long, device=target.device)

    def select_positions(self, logits: Tensor, kept: Tensor) -> Tensor:
        """Return the logits of an input cut to the positions `kept` [L]; most tasks have none per position."""
        return logits

    def pad_positions(self, logits: Tensor, before: int, after: int) -> Tensor:
        """Return the logits of an input with so many more positions, where no answer begins or ends."""
        return logits


def require_labels(batch: Batch) -> Tensor:
    """Return the labels of the batch; raise ExpoundError if it has none."""
    if batch.labels is None:
        raise ExpoundError("training and its evaluation need labeled examples: the rows have no label (or no answer)")
    return batch.labels


def require_integers(target: Tensor, shape: list[int]) -> None:
    """Raise ExpoundError for a target of another shape, or of floating point numbers."""
    if list(target.shape) != shape or target.is_floating_point():
        raise ExpoundError(f"expected a target of integers {shape}, got {list(target.shape)} {target.dtype}")
