"""How far attributions are from what people marked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from exegete.errors import ExegeteError, unknown
from exegete.explainers import Explainer
from exegete.explainers.attention.weights import AttentionRollout
from exegete.models import Batch
from exegete.objectives.attribution_objective import AttributionObjective
from exegete.objectives.base import TrainingStep, has_usable_label

Score = Literal["mae", "mse", "bce", "kl"]
Normalisation = Literal["softmax", "none", "l2", "sum"]
ROLLOUT = AttentionRollout()
PAPER_NORMALISATIONS: dict[str, Normalisation] = {"attention_last": "softmax", "attention_rollout": "none"}
SOFTMAX_SCALE = 100.0
MIN_PROBABILITY = 1e-7


@dataclass(frozen=True)
class ExplanationLoss(AttributionObjective):
    """Distance of the guided attributions from rationales (Ferreira et al. 2024, §3; Joshi et al. 2022).

    Over all positions but padding: special tokens are unmarked ones. A method that needs one forward pass takes the
    step's own, with its dropout; the others make their own passes, without dropout.

    The sum of the distances is divided by the number of positions of the examples that count, with `kl` by the number
    of those examples. It is 0 where none counts.

    Args:
        explainer: any differentiable method.
        score: `mae` |e − t|, `mse` (e − t)², `bce` binary cross-entropy, `kl` KL(t ‖ e).
        weight: λ.
        target: explain the gold `label` or the `predicted` one.
        normalisation: `softmax` of 100 times the scores; `none`; `l2`: divided by their L2 norm, then magnitudes;
            `sum`: magnitudes divided by their sum. Default: as in the paper (`softmax` for `attention_last`, `none` for
            `attention_rollout`, `l2` for signed methods), `sum` for other unsigned ones.

    The goal t is 1 at marked positions where scores are normalised by `l2`: every example that somebody looked at
    counts. Else t shares 1 equally among the marked positions, and examples without any (also: with all of them cut
    off) do not count.

    Raises:
        ExegeteError: a method that is not differentiable, an unknown choice, a weight below 0, or a gold target where
            there is none.
    """

    explainer: Explainer = ROLLOUT
    score: Score = "mae"
    weight: float = 1.0
    target: Literal["label", "predicted"] = "label"
    normalisation: Normalisation | None = None
    name: ClassVar[str] = "explanation"

    def __post_init__(self) -> None:
        super().__post_init__()
        for what, value, valid in (
            ("score", self.score, DISTANCES),
            ("normalisation", self.normalisation_in_use, NORMALISATIONS),
            ("target of guidance", self.target, ("label", "predicted")),
        ):
            if value not in valid:
                raise unknown(what, value, valid)

    @property
    def needs_rationale(self) -> bool:
        """It compares explanations with rationales."""
        return True

    @property
    def normalisation_in_use(self) -> Normalisation:
        """The normalisation in use: the one given, or else the usual one of the explainer."""
        usual = PAPER_NORMALISATIONS.get(self.explainer.name, "l2" if self.explainer.signed else "sum")
        return self.normalisation or usual

    @property
    def compares_distributions(self) -> bool:
        """Whether the goal is a distribution over the marked positions."""
        return self.normalisation_in_use != "l2" or self.score == "kl"

    @property
    def params(self) -> dict[str, Any]:
        """Its parameters and the method's."""
        return super().params | {"normalisation": self.normalisation_in_use}

    def size(self, batch: Batch) -> Tensor:
        """The number [] of positions of the examples that count; with `kl` of those examples."""
        counting = self.select_examples(batch)
        if self.score == "kl":
            return counting.sum().float()
        return (batch.attended & counting[:, None]).sum().float()

    def select_examples(self, batch: Batch) -> Tensor:
        """Which examples count, [B] bool: those with a rationale and, if labels are explained, a usable label."""
        if self.compares_distributions:
            counting = get_rationale_mask(batch).any(1)
        else:
            counting = torch.zeros_like(batch.attended[:, 0]) if batch.has_rationale is None else batch.has_rationale
        if self.target == "label":
            counting = counting & has_usable_label(batch)
        return counting

    def __call__(self, step: TrainingStep) -> Tensor:
        """The distance between explanations and rationales, a scalar: a mean over what counts, see `size`."""
        batch = step.batch
        counted = batch.attended & self.select_examples(batch)[:, None]
        scores = NORMALISATIONS[self.normalisation_in_use](self._explain(step), batch.attended)
        goal = get_rationale_mask(batch).to(scores.dtype)
        if self.compares_distributions:
            goal = goal / goal.sum(1, keepdim=True).clamp(min=1)
        if self.score == "kl":
            scores = _normalise_sum(scores, batch.attended)
        distances = DISTANCES[self.score](scores, goal).masked_fill(~counted, 0.0)
        return distances.sum() / self.size(batch).clamp(min=1)

    def _explain(self, step: TrainingStep) -> Tensor:
        """[B, L] in float32 at least, anything at padding."""
        model, batch = step.model, step.batch
        if self.target == "label" and model.task.name == "multi_label":
            raise ExegeteError("with several labels at once there is no gold target to guide: use target='predicted'")
        target = model.resolve_target(batch, self.target, step.outputs.logits).clamp(min=0)
        return self.compute_attribution(step, target)


def get_rationale_mask(batch: Batch) -> Tensor:
    """[B, L] What people marked, as far as it can carry attribution; nothing where nobody looked."""
    return torch.zeros_like(batch.content) if batch.rationale_mask is None else batch.rationale_mask & batch.content


def _normalise_softmax(scores: Tensor, attended: Tensor) -> Tensor:
    return (SOFTMAX_SCALE * scores).masked_fill(~attended, -torch.inf).softmax(1)


def _keep_scores(scores: Tensor, attended: Tensor) -> Tensor:
    return scores


def _normalise_l2(scores: Tensor, attended: Tensor) -> Tensor:
    scores = scores.masked_fill(~attended, 0.0)
    return (scores / (scores.square().sum(1, keepdim=True) + 1e-24).sqrt()).abs()


def _normalise_sum(scores: Tensor, attended: Tensor) -> Tensor:
    sizes = scores.masked_fill(~attended, 0.0).abs()
    return sizes / sizes.sum(1, keepdim=True).clamp(min=1e-12)


def _binary_cross_entropy(scores: Tensor, goal: Tensor) -> Tensor:
    likely = scores.clamp(MIN_PROBABILITY, 1 - MIN_PROBABILITY)
    return -goal * likely.log() - (1 - goal) * (1 - likely).log()


def _pointwise_kl(scores: Tensor, goal: Tensor) -> Tensor:
    return torch.xlogy(goal, goal.clamp(min=MIN_PROBABILITY)) - goal * scores.clamp(min=MIN_PROBABILITY).log()


NORMALISATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "softmax": _normalise_softmax,
    "none": _keep_scores,
    "l2": _normalise_l2,
    "sum": _normalise_sum,
}
DISTANCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mae": lambda scores, goal: (scores - goal).abs(),
    "mse": lambda scores, goal: (scores - goal).square(),
    "bce": _binary_cross_entropy,
    "kl": _pointwise_kl,
}
