"""The trained model shall still answer as the one that training began with."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from exegete.errors import ExegeteError
from exegete.models import Batch, Capture, ExplainedModel
from exegete.objectives.base import Objective, TrainingStep

CAPTURE = Capture(distribution=True)


@dataclass(frozen=True)
class KlToOriginal(Objective):
    """KL(p_original ‖ p) of the answers to whole inputs, in nats; mean over examples.

    Over classes; of start and end, or of all tokens of a response over the vocabulary, the mean. The original is a copy
    that stays as it is, without dropout; of a model with adapters the model without them.

    Args:
        weight: of the term in the sum.

    Raises:
        ExegeteError: a task without probabilities over choices; a step outside of training, where nothing is original.
    """

    weight: float = 1.0
    original: ExplainedModel | None = field(default=None, init=False, repr=False, compare=False)
    name: ClassVar[str] = "kl_to_original"

    @property
    def params(self) -> dict[str, Any]:
        """The weight."""
        return {"weight": self.weight}

    @property
    def capture(self) -> Capture:
        """The scores of all choices."""
        return CAPTURE

    def prepare(self, model: ExplainedModel) -> Self:
        """The objective with a copy of the model, or with itself where it has adapters."""
        made = replace(self)
        kept = model if hasattr(model.model, "disable_adapter") else deepcopy(model).requires_grad_(False)
        object.__setattr__(made, "original", kept)
        return made

    def __call__(self, step: TrainingStep) -> Tensor:
        """The divergence, a scalar: a mean over the batch."""
        original, choices = self.original, step.outputs.distribution
        if original is None or choices is None or step.model.task.name in ("regression", "multi_label"):
            raise ExegeteError(f"{self.name} compares the probabilities of choices in a training, and there are none")
        adapted: Any = getattr(original.model, "disable_adapter", nullcontext)
        without: AbstractContextManager[None] = adapted()
        with torch.no_grad(), original.to(step.batch.device).evaluation_mode(), without:
            before = _log_probabilities(cast(Tensor, original(step.batch, capture=CAPTURE).distribution))
        after = _log_probabilities(choices)
        each = F.kl_div(after, before, log_target=True, reduction="none").sum(-1)
        return _mean_per_example(each, step.batch).mean()


def _log_probabilities(scores: Tensor) -> Tensor:
    return scores.to(torch.promote_types(scores.dtype, torch.float32)).log_softmax(-1)


def _mean_per_example(each: Tensor, batch: Batch) -> Tensor:
    """[B] Means over the tokens of each response, [B, R]; over start and end, [B, 2]; or as it is."""
    if batch.response is None:
        return each if each.ndim == 1 else each.mean(1)
    count = batch.response.sum(1, keepdim=True)
    real = torch.arange(each.shape[1], device=each.device) < count
    return each.masked_fill(~real, 0.0).sum(1) / count[:, 0]
