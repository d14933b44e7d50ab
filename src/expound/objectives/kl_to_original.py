"""The divergence of the trained model's predictions from the predictions of the model before training."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from expound.errors import ExpoundError
from expound.models import Batch, Capture, ExplainedModel
from expound.models.batch import to_float32
from expound.objectives.base import Objective, TrainingStep

CAPTURE = Capture(distribution=True)


@dataclass(frozen=True)
class KlToOriginal(Objective):
    """KL(p_original ‖ p) of the predictions on whole inputs, in nats; mean over examples.

    The distributions are over classes; for spans it is the mean over start and end, for generated text the mean over
    the tokens of the response. The original is a frozen copy of the model before training, without dropout; for a model
    with adapters, the model with its adapters disabled.

    Args:
        weight: the factor of the term in the total loss.

    Raises:
        ExpoundError: a task without probabilities over choices, or a step outside of a training run.
    """

    weight: float = 1.0
    original: ExplainedModel | None = field(default=None, init=False, repr=False, compare=False)
    name: ClassVar[str] = "kl_to_original"
    equation: ClassVar[str] = r"\text{KL}(p_{\text{original}}(\cdot \mid x) \Vert p(\cdot \mid x))"
    use: ClassVar[str] = "Beside another term, so that the model still predicts as it did."
    avoid: ClassVar[str] = "Training from scratch; the original knows nothing."

    @property
    def capture(self) -> Capture:
        """The scores of all choices, over the vocabulary for generated text."""
        return CAPTURE

    def prepare(self, model: ExplainedModel) -> Self:
        """Return the objective with a frozen copy of the model; a model with adapters is used itself."""
        prepared = replace(self)
        # the weights under adapters do not change, which saves the memory of a copy
        has_adapters = hasattr(model.model, "disable_adapter")
        original = model if has_adapters else _copy_frozen(model)
        object.__setattr__(prepared, "original", original)
        return prepared

    def __call__(self, step: TrainingStep) -> Tensor:
        """Return the mean divergence over the batch, a scalar."""
        original, choices = self.original, step.outputs.distribution
        if not step.model.task.supports("one_choice"):
            raise ExpoundError(f"{self.name} compares probabilities of choices: a {step.model.task.name} has none")
        if original is None or choices is None:
            raise ExpoundError(
                f"{self.name} needs the model before training: objective.prepare(model) keeps it, and the pass its "
                "capture; expound.ExplanationTerms does both"
            )
        disable_adapter: Any = getattr(original.model, "disable_adapter", nullcontext)
        without_adapters: AbstractContextManager[None] = disable_adapter()
        with torch.no_grad(), original.to(step.batch.device).evaluation_mode(), without_adapters:
            before = _log_probabilities(cast(Tensor, original(step.batch, capture=CAPTURE).distribution))
        after = _log_probabilities(choices)
        # kl_div(q, p) is KL(p ‖ q): the original comes first in the divergence
        divergences = F.kl_div(after, before, log_target=True, reduction="none").sum(-1)
        return _mean_per_example(divergences, step.batch).mean()


def _copy_frozen(model: ExplainedModel) -> ExplainedModel:
    """Return a copy of the model whose weights have no gradient."""
    original = deepcopy(model).requires_grad_(False)
    for module in original.modules():
        # A `forward` that was replaced on the instance, as TRL and Accelerate do, still runs the model it was made for.
        # Accelerate's own hooks move weights between devices: they are copied correctly.
        if not hasattr(module, "_hf_hook"):
            vars(module).pop("forward", None)
    return original


def _log_probabilities(scores: Tensor) -> Tensor:
    return to_float32(scores).log_softmax(-1)


def _mean_per_example(values: Tensor, batch: Batch) -> Tensor:
    """Return the mean [B] over response tokens [B, R] or over start and end [B, 2]; values [B] are returned as such."""
    if batch.response is None:
        return values if values.ndim == 1 else values.mean(1)
    count = batch.response.sum(1, keepdim=True)
    real = torch.arange(values.shape[1], device=values.device) < count
    return values.masked_fill(~real, 0.0).sum(1) / count[:, 0]
