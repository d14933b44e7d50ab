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
from exegete.objectives.base import Step, usable
from exegete.objectives.explained import Explained

Score = Literal["mae", "mse", "bce", "kl"]
Normalisation = Literal["softmax", "none", "l2", "sum"]
ROLLOUT = AttentionRollout()
USUAL: dict[str, Normalisation] = {"attention_last": "softmax", "attention_rollout": "none"}
SCALE = 100.0
SMALLEST = 1e-7


@dataclass(frozen=True)
class ExplanationLoss(Explained):
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
            ("normalisation", self.how, NORMALISATIONS),
            ("target of guidance", self.target, ("label", "predicted")),
        ):
            if value not in valid:
                raise unknown(what, value, valid)

    @property
    def needs_rationale(self) -> bool:
        """It compares explanations with rationales."""
        return True

    @property
    def how(self) -> Normalisation:
        """The normalisation in use: the one given, or else the usual one of the explainer."""
        usual = USUAL.get(self.explainer.name, "l2" if self.explainer.signed else "sum")
        return self.normalisation or usual

    @property
    def shared(self) -> bool:
        """Whether the goal is a distribution over the marked positions."""
        return self.how != "l2" or self.score == "kl"

    @property
    def params(self) -> dict[str, Any]:
        """Its parameters and the method's."""
        return super().params | {"normalisation": self.how}

    def size(self, batch: Batch) -> Tensor:
        """The number [] of positions of the examples that count; with `kl` of those examples."""
        counting = self.counting(batch)
        if self.score == "kl":
            return counting.sum().float()
        return (batch.attended & counting[:, None]).sum().float()

    def counting(self, batch: Batch) -> Tensor:
        """Which examples count, [B] bool: those with a rationale and, if labels are explained, a usable label."""
        if self.shared:
            counting = marked(batch).any(1)
        else:
            counting = torch.zeros_like(batch.attended[:, 0]) if batch.has_rationale is None else batch.has_rationale
        if self.target == "label":
            counting = counting & usable(batch)
        return counting

    def __call__(self, step: Step) -> Tensor:
        """The distance between explanations and rationales, a scalar: a mean over what counts, see `size`."""
        batch = step.batch
        counted = batch.attended & self.counting(batch)[:, None]
        scores = NORMALISATIONS[self.how](self._scores(step), batch.attended)
        goal = marked(batch).to(scores.dtype)
        if self.shared:
            goal = goal / goal.sum(1, keepdim=True).clamp(min=1)
        if self.score == "kl":
            scores = _sum(scores, batch.attended)
        distances = DISTANCES[self.score](scores, goal).masked_fill(~counted, 0.0)
        return distances.sum() / self.size(batch).clamp(min=1)

    def _scores(self, step: Step) -> Tensor:
        """[B, L] in float32 at least, anything at padding."""
        model, batch = step.model, step.batch
        if self.target == "label" and model.task.name == "multi_label":
            raise ExegeteError("with several labels at once there is no gold target to guide: use target='predicted'")
        target = model.resolve_target(batch, self.target, step.outputs.logits).clamp(min=0)
        return self.attribution(step, target)


def marked(batch: Batch) -> Tensor:
    """[B, L] What people marked, as far as it can carry attribution; nothing where nobody looked."""
    return torch.zeros_like(batch.content) if batch.rationale_mask is None else batch.rationale_mask & batch.content


def _softmax(scores: Tensor, attended: Tensor) -> Tensor:
    return (SCALE * scores).masked_fill(~attended, -torch.inf).softmax(1)


def _none(scores: Tensor, attended: Tensor) -> Tensor:
    return scores


def _l2(scores: Tensor, attended: Tensor) -> Tensor:
    scores = scores.masked_fill(~attended, 0.0)
    return (scores / (scores.square().sum(1, keepdim=True) + 1e-24).sqrt()).abs()


def _sum(scores: Tensor, attended: Tensor) -> Tensor:
    sizes = scores.masked_fill(~attended, 0.0).abs()
    return sizes / sizes.sum(1, keepdim=True).clamp(min=1e-12)


def _binary_cross_entropy(scores: Tensor, goal: Tensor) -> Tensor:
    likely = scores.clamp(SMALLEST, 1 - SMALLEST)
    return -goal * likely.log() - (1 - goal) * (1 - likely).log()


def _divergence(scores: Tensor, goal: Tensor) -> Tensor:
    return torch.xlogy(goal, goal.clamp(min=SMALLEST)) - goal * scores.clamp(min=SMALLEST).log()


NORMALISATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "softmax": _softmax,
    "none": _none,
    "l2": _l2,
    "sum": _sum,
}
DISTANCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mae": lambda scores, goal: (scores - goal).abs(),
    "mse": lambda scores, goal: (scores - goal).square(),
    "bce": _binary_cross_entropy,
    "kl": _divergence,
}
