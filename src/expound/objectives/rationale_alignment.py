"""Explanation regularization: the distance of attributions from human rationales."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from expound.errors import ExpoundError
from expound.explainers import Explainer
from expound.explainers.attention.weights import AttentionRollout
from expound.models import Batch
from expound.objectives.base import AttributionObjective, TrainingStep, has_usable_label

Distance = Literal["mae", "mse", "bce", "kl"]
Scale = Literal["example", "position"]
Normalization = Literal["softmax", "none", "l2", "sum"]
ROLLOUT = AttentionRollout()
PAPER_NORMALIZATIONS: dict[str, Normalization] = {"attention_last": "softmax", "attention_rollout": "none"}
SOFTMAX_SCALE = 100.0
MIN_PROBABILITY = 1e-7
MIN_NORM = 1e-12


@dataclass(frozen=True)
class RationaleAlignment(AttributionObjective):
    """The distance of normalized attributions from rationales (Ferreira et al. 2024, §3; Joshi et al. 2022).

    The distances of all positions but padding are summed over an example, and averaged over the examples that count:
    `mae` is twice the total variation distance of two distributions, from 0 to 2 at any length. Special tokens are
    positions without rationale. A `SinglePass` explainer uses the step's own forward pass, with its dropout; other
    explainers run their own passes, without dropout.

    The rationale is a distribution over its positions for most normalizations, and an example without any rationale
    position (or with all of them cut off by truncation) does not count. For `l2` the rationale is 0 or 1 at each
    position, and every example that an annotator looked at counts.

    Args:
        explainer: any differentiable explainer.
        distance: the distance of an attribution e from a rationale t at each position: `mae` |e − t|, `mse` (e − t)²,
            `bce` binary cross-entropy, `kl` KL(t ‖ e).
        weight: λ, the factor of the term in the total loss.
        target: explain the gold `label` or the `predicted` one.
        normalization: `sum`: magnitudes divided by their sum; `softmax` of 100 times the scores; `none`; `l2`:
            magnitudes divided by their L2 norm. Default: `sum`; with the scale `position` as in the paper (`softmax`
            for `attention_last`, `none` for `attention_rollout`, `l2` for signed explainers, else `sum`).
        scale: `example`, or `position`: the mean over all positions, as in the paper. It shrinks as the text grows: by
            the factor L for an attribution that sums to 1.

    Raises:
        ExpoundError: an explainer that is not differentiable, an unknown choice, a weight below 0, or a gold target for
            a task without one.
    """

    explainer: Explainer = ROLLOUT
    distance: Distance = "mae"
    weight: float = 1.0
    target: Literal["label", "predicted"] = "label"
    normalization: Normalization | None = None
    scale: Scale = "example"
    remedy: ClassVar[str] = "Raise --weight, or leave out --scale position, whose loss shrinks as texts grow"
    name: ClassVar[str] = "rationale_alignment"
    equation: ClassVar[str] = r"d(e(x), t), \; d \in \{ \text{MAE}, \text{MSE}, \text{BCE}, \text{KL} \}"
    use: ClassVar[str] = "The data has human rationales, and attributions should follow them."
    avoid: ClassVar[str] = "Rationales are noisy or of another task; the model then follows them, too."

    @property
    def needs_rationale(self) -> bool:
        """True: explanations are compared with rationales."""
        return True

    @property
    def normalization_in_use(self) -> Normalization:
        """The given normalization, or else the default for the explainer."""
        usual: Normalization = "sum"
        if self.scale == "position":
            usual = PAPER_NORMALIZATIONS.get(self.explainer.name, "l2" if self.explainer.signed else "sum")
        return self.normalization or usual

    @property
    def compares_distributions(self) -> bool:
        """Whether the rationale is a distribution over its positions; otherwise it is 0 or 1 at each position."""
        return self.normalization_in_use != "l2" or self.distance == "kl"

    @property
    def params(self) -> dict[str, Any]:
        """The parameters, with the normalization in use and the explainer's parameters."""
        return super().params | {"normalization": self.normalization_in_use}

    def size(self, batch: Batch) -> Tensor:
        """Return the number [] of examples that count; with the scale `position`, the number of their positions."""
        counted = self.select_examples(batch)
        if self.scale == "example" or self.distance == "kl":
            return counted.sum().float()
        # special tokens are counted too: the paper's loss values (.03) and bounds are relative to this number
        return (batch.attended & counted[:, None]).sum().float()

    def select_examples(self, batch: Batch) -> Tensor:
        """Return which examples count [B] bool: they have a rationale and, if labels are explained, a usable label."""
        if self.compares_distributions:
            counted = get_rationale_mask(batch).any(1)
        elif batch.has_rationale is None:
            counted = torch.zeros_like(batch.attended[:, 0])
        else:
            counted = batch.has_rationale
        if self.target == "label":
            counted = counted & has_usable_label(batch)
        return counted

    def __call__(self, step: TrainingStep) -> Tensor:
        """Return the distance between explanations and rationales, a scalar: a mean over what counts, see `size`."""
        batch = step.batch
        counted = batch.attended & self.select_examples(batch)[:, None]
        scores = NORMALIZATIONS[self.normalization_in_use](self._explain(step), batch.attended)
        rationale = get_rationale_mask(batch).to(scores.dtype)
        if self.compares_distributions:
            # §3: the target of attention is t = e / Σe, that of input × gradient the mask itself
            rationale = rationale / rationale.sum(1, keepdim=True).clamp(min=1)
        if self.distance == "kl":
            scores = _normalize_sum(scores, batch.attended)
        distances = DISTANCES[self.distance](scores, rationale).masked_fill(~counted, 0.0)
        return distances.sum() / self.size(batch).clamp(min=1)

    def _explain(self, step: TrainingStep) -> Tensor:
        model, batch = step.model, step.batch
        if self.target == "label" and not model.task.supports("one_target"):
            raise ExpoundError("with several labels at once there is no gold target to guide: use target='predicted'")
        target = model.resolve_target(batch, self.target, step.outputs.logits).clamp(min=0)
        return self.compute_attribution(step, target)


def get_rationale_mask(batch: Batch) -> Tensor:
    """Return the rationale mask [B, L] at content positions; False for examples without an annotated rationale."""
    if batch.rationale_mask is None:
        return torch.zeros_like(batch.content)
    return batch.rationale_mask & batch.content


def _normalize_softmax(scores: Tensor, attended: Tensor) -> Tensor:
    # attention weights are close to each other: without the factor 100 their softmax is nearly uniform
    return (SOFTMAX_SCALE * scores).masked_fill(~attended, -torch.inf).softmax(1)


def _normalize_l2(scores: Tensor, attended: Tensor) -> Tensor:
    scores = scores.masked_fill(~attended, 0.0)
    # MIN_NORM² inside the root: the derivative of a root is infinite at 0
    return (scores / (scores.square().sum(1, keepdim=True) + MIN_NORM**2).sqrt()).abs()


def _normalize_sum(scores: Tensor, attended: Tensor) -> Tensor:
    magnitudes = scores.masked_fill(~attended, 0.0).abs()
    return magnitudes / magnitudes.sum(1, keepdim=True).clamp(min=MIN_NORM)


def _binary_cross_entropy(scores: Tensor, rationale: Tensor) -> Tensor:
    probability = scores.clamp(MIN_PROBABILITY, 1 - MIN_PROBABILITY)
    return -rationale * probability.log() - (1 - rationale) * (1 - probability).log()


def _pointwise_kl(scores: Tensor, rationale: Tensor) -> Tensor:
    # xlogy is 0 at 0 · log 0, so positions without rationale contribute nothing
    entropy = torch.xlogy(rationale, rationale.clamp(min=MIN_PROBABILITY))
    return entropy - rationale * scores.clamp(min=MIN_PROBABILITY).log()


NORMALIZATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "softmax": _normalize_softmax,
    "none": lambda scores, attended: scores,
    "l2": _normalize_l2,
    "sum": _normalize_sum,
}
DISTANCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mae": lambda scores, rationale: (scores - rationale).abs(),
    "mse": lambda scores, rationale: (scores - rationale).square(),
    "bce": _binary_cross_entropy,
    "kl": _pointwise_kl,
}
