"""REGEX's explanation guided training: attention follows an attribution of the same model."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from expound.errors import ExpoundError
from expound.explainers import Explainer
from expound.explainers.attention.weights import select_readout_row
from expound.explainers.base import describe_explainer
from expound.explainers.gradients.deep_lift import DeepLift
from expound.explainers.gradients.input_x_gradient import InputXGradient
from expound.explainers.gradients.integrated_gradients import IntegratedGradients
from expound.explainers.gradients.paths import DimensionwiseExplainer
from expound.models import Batch, Capture, ExplainedModel
from expound.models.batch import to_float32
from expound.objectives.base import LabeledObjective, TrainingStep
from expound.objectives.teacher_memory import TeacherMemory

Direction = Literal["attention", "teacher"]
DEFAULT_TEACHER = IntegratedGradients(n_steps=8, baselines="zero")
LAST = Capture(attentions=True, last_only=True)


@dataclass(frozen=True)
class ExplanationGuidedLoss(LabeledObjective):
    """KL(att(x) ‖ s) + KL(att(x̃) ‖ s), mean over examples (Li et al. 2023, REGEX, eq. 6 and 7).

    s: the teacher's attribution of the gold label on the unmasked input, without dropout and without a graph. x̃: x
    with the mask token in place of the least important content positions. att: the last layer's attention from the
    position where the prediction is read (an encoder's first one), mean over heads. All three are distributions over
    content: special tokens and padding have no share, unless `special_tokens` gives the former one. Examples without
    a usable label do not count.

    Args:
        explainer: the teacher, any explainer; it need not be differentiable.
        mask_fraction: from 0 to 1; of l content positions max(1, ⌈mask_fraction · l⌉) are masked.
        weight: λ4, the factor of the term in the total loss.
        aggregate: of a position's embedding dimensions, `l2` (any explainer with an `aggregate`) or `mean` (see
            `compute_importance`). Default: `l2` for integrated_gradients, input_x_gradient and deep_lift, as in the
            paper, else `mean`.
        direction: the first argument of KL, the `attention` (the paper's order) or the `teacher`.
        batch_fraction: see `Objective.batch_fraction`.
        lifetime: epochs for which the teacher's scores of an example are kept; 0: they are computed in every step. An
            example occurs once per epoch, so only lifetimes from 2 on save time.
        special_tokens: whether attention to special tokens is part of att. The teacher gives them nothing, so that the
            term moves their attention to content.

    Raises:
        ExpoundError: a choice or a fraction out of range, images, or a task with several labels at once.
    """

    explainer: Explainer = DEFAULT_TEACHER
    mask_fraction: float = 0.15
    weight: float = 0.01
    aggregate: Aggregation | None = None
    direction: Direction = "attention"
    batch_fraction: float = 1.0
    lifetime: int = 0
    special_tokens: bool = False
    memory: TeacherMemory = field(default_factory=TeacherMemory, init=False, repr=False, compare=False)
    name: ClassVar[str] = "explanation_guided"
    exact_gradient: ClassVar[bool] = False
    equation: ClassVar[str] = r"\text{KL}(\text{att}(x) \Vert s) + \text{KL}(\text{att}(\tilde{x}) \Vert s)"
    use: ClassVar[str] = "Attention should follow an attribution, without rationales of people."
    avoid: ClassVar[str] = "The teacher's attributions are at chance on your model; compare first."

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.mask_fraction <= 1:
            raise ExpoundError(f"expected a mask fraction from 0 to 1, as 0.15 for 15 %, got {self.mask_fraction}")
        set_aggregation(self.explainer, self.aggregate_in_use)
        if self.lifetime < 0:
            raise ExpoundError(f"a teacher's prediction is kept for at least 0 epochs, got {self.lifetime}")

    @property
    def aggregate_in_use(self) -> Aggregation:
        """The given aggregation, or else the default for the explainer."""
        return self.aggregate or default_aggregation(self.explainer)

    @property
    def capture(self) -> Capture:
        """Attention of the last layer."""
        return LAST

    @property
    def params(self) -> dict[str, Any]:
        """The parameters, with the aggregation in use and the teacher's parameters."""
        own = {"explainer": describe_explainer(self.explainer), "aggregate": self.aggregate_in_use}
        return super().params | own

    @property
    def learned(self) -> TeacherMemory | None:
        """The memory of the teacher's scores, if they are kept over several epochs; else None."""
        return self.memory if self.lifetime else None

    def __call__(self, step: TrainingStep) -> Tensor:
        """Return the divergence of attention from the teacher, a scalar: a mean over labeled examples."""
        model, batch = step.model, step.batch
        target = self._get_gold_target(step)
        scores = self._ask_teacher(step, target)
        least_important = select_least_important(scores, batch.content, self.mask_fraction)
        masked_ids = batch.inputs["input_ids"].masked_fill(least_important, model.mask_id)
        masked_outputs = model(replace(batch, inputs=batch.inputs | {"input_ids": masked_ids}), capture=LAST)
        places = batch.attended if self.special_tokens else batch.content
        teacher, divergence = to_distribution(scores, places), torch.zeros((), device=batch.device)
        # eq. 7: the masked input is compared with the scores of the unmasked one
        for outputs in (step.outputs, masked_outputs):
            row = select_readout_row(model, batch, outputs.attentions[-1].mean(1), target)
            divergence = divergence + self._compare(to_distribution(row, places), teacher)
        return self.mean_over_labeled(step, divergence)

    def _ask_teacher(self, step: TrainingStep, target: Tensor) -> Tensor:
        """Return the teacher's scores [B, L], computed now or taken from the memory."""

        def ask(batch: Batch, target: Tensor) -> Tensor:
            return compute_importance(self.explainer, step.model, batch, target, self.aggregate_in_use)

        # evaluation shows the model as it is now, whatever training remembers
        if not self.lifetime or not step.context.training:
            return ask(step.batch, target)
        return self.memory.get_scores(step.batch, target, step.context.epoch, self.lifetime, ask)

    def _get_gold_target(self, step: TrainingStep) -> Tensor:
        if step.model.modality != "text":
            raise ExpoundError("explanation guided training masks words: it does not apply to images")
        if not step.model.task.supports("one_target"):
            raise ExpoundError("with several labels at once there is no gold label that a teacher could explain")
        if step.model.task.reads_context and step.labels is not None:
            return step.labels.clamp(min=0)
        return step.model.resolve_target(step.batch, "label")

    def _compare(self, attention: Tensor, teacher: Tensor) -> Tensor:
        """Return the KL divergence [B] of attention and teacher in the chosen direction."""
        if self.direction == "attention":
            return _compute_kl(attention, teacher)
        return _compute_kl(teacher, attention)


def _compute_kl(p: Tensor, q: Tensor) -> Tensor:
    """Return KL(p ‖ q) [B] of distributions that are 0 at the same positions, outside content."""
    outside = q <= 0
    # log 1 = 0 there: masking 0 · log 0 afterwards would leave NaN in the gradient
    log_ratio = p.masked_fill(outside, 1.0).log() - q.masked_fill(outside, 1.0).log()
    return (p * log_ratio).sum(1)


Aggregation = Literal["l2", "mean"]
MIN_PROBABILITY = 1e-8


def default_aggregation(explainer: Explainer) -> Aggregation:
    """Return `l2` for the paper's teachers (integrated gradients, input × gradient, DeepLift), else `mean`."""
    # adaptive points are not among the paper's teachers
    has_fixed_steps = type(explainer) is IntegratedGradients and explainer.n_steps != "auto"
    if (has_fixed_steps or type(explainer) in (InputXGradient, DeepLift)) and explainer.signed:
        return "l2"
    return "mean"


def set_aggregation(explainer: Explainer, aggregate: Aggregation) -> Explainer:
    """Return the explainer with this aggregation. Raises ExpoundError for `l2` of an explainer without dimensions."""
    if aggregate == "mean":
        return explainer
    if not isinstance(explainer, DimensionwiseExplainer):
        raise ExpoundError(f"{explainer.name} has one score a position, no norm over dimensions: use 'mean'")
    return replace(explainer, aggregate="l2")


def compute_importance(
    explainer: Explainer, model: ExplainedModel, batch: Batch, target: Tensor, aggregate: Aggregation
) -> Tensor:
    """Return importances [B, L], at least 0 and 0 outside content, computed without a graph and without dropout.

    `l2`: the L2 norm of the contributions of a position's embedding dimensions; `mean`: the magnitude of the
    explainer's own score, which is their mean up to a constant factor.

    Raises:
        ExpoundError: `l2` of an explainer that has one score per position.
    """
    teacher = set_aggregation(explainer, aggregate)
    with torch.no_grad(), model.evaluation_mode():
        target = model.resolve_target(batch, target)
        scores = teacher.compute(model.with_output(teacher.output), batch, [target])[0].scores.abs()
    return scores.masked_fill(~batch.content, 0.0)


def select_least_important(scores: Tensor, content: Tensor, fraction: float) -> Tensor:
    """Return the max(1, ⌈fraction · l⌉) lowest of each example's l content scores [B, L]; of equal ones the first."""
    count = content.sum(1, keepdim=True)
    # without the subtraction 0.07 · 100 = 7.000000000000001 would be rounded up to 8
    size = (fraction * count.double() - 1e-9).ceil().clamp(min=1)
    order = scores.masked_fill(~content, torch.inf).argsort(dim=1, stable=True)
    return (order.argsort(dim=1) < size) & content


def to_distribution(scores: Tensor, content: Tensor) -> Tensor:
    """Return scores of at least 0, normalized to sum to 1 over content [B, L]; uniform if all scores are 0."""
    scores = to_float32(scores).masked_fill(~content, 0.0)
    shares = scores / scores.sum(1, keepdim=True).clamp(min=torch.finfo(scores.dtype).tiny)
    # eq. 6: the constant keeps the logarithms of KL finite
    shares = (shares + MIN_PROBABILITY).masked_fill(~content, 0.0)
    return shares / shares.sum(1, keepdim=True).clamp(min=MIN_PROBABILITY)
