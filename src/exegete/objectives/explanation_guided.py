"""Attention that learns from an attribution of the same model."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, get_args

from torch import Tensor

from exegete.errors import ExegeteError, unknown
from exegete.explainers import Explainer
from exegete.explainers.attention.weights import select_readout_row
from exegete.explainers.base import describe_explainer
from exegete.explainers.gradients.integrated_gradients import IntegratedGradients
from exegete.models import Batch, Capture, Outputs
from exegete.objectives.base import LabelledObjective, TrainingStep
from exegete.objectives.teacher import (
    Aggregation,
    compute_importance,
    default_aggregation,
    select_least_important,
    set_aggregation,
    to_distribution,
)
from exegete.objectives.teacher_memory import TeacherMemory

Direction = Literal["attention", "teacher"]
DEFAULT_TEACHER = IntegratedGradients(n_steps=8, baselines="zero")
LAST = Capture(attentions=True, last_only=True)


@dataclass(frozen=True)
class ExplanationGuidedLoss(LabelledObjective):
    """KL(att(x) ‖ s) + KL(att(x̃) ‖ s), mean over examples (Li et al. 2023, REGEX, eq. 6 and 7).

    s: what the teacher says of the gold label on the clean input, without dropout and without a graph. x̃: x with the
    mask token in place of the least important content positions. att: the last layer's attention, mean over heads, from
    where the answer is read (an encoder's first position). All of them are distributions over content: neither special
    tokens nor padding have a share. Examples without a usable label do not count.

    Args:
        explainer: the teacher, any method; it need not be differentiable.
        mask_ratio: from 0 to 1; of l content positions max(1, ⌈mask_ratio · l⌉) are masked.
        weight: λ4.
        aggregation: of a position's embedding dimensions, `l2` (any method with an `aggregate`) or `mean` (see
            `compute_importance`). Default: `l2` for integrated_gradients, input_x_gradient and deep_lift, as in the
            paper, else `mean`.
        direction: what comes first in KL, the `attention` (the paper's order) or the `teacher`.
        share: see `Objective.share`.
        lifetime: epochs for which the teacher's answer about an example is kept; 0: it is asked anew in every step. An
            example comes once an epoch, so that the teacher costs less only from a lifetime of two epochs on.

    Raises:
        ExegeteError: a choice or a ratio out of range; images; several labels at once, of which none is the gold one.
    """

    explainer: Explainer = DEFAULT_TEACHER
    mask_ratio: float = 0.15
    weight: float = 0.01
    aggregation: Aggregation | None = None
    direction: Direction = "attention"
    share: float = 1.0
    lifetime: int = 0
    memory: TeacherMemory = field(default_factory=TeacherMemory, init=False, repr=False, compare=False)
    name: ClassVar[str] = "explanation_guided"
    exact_gradient: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 <= self.mask_ratio <= 1:
            raise ExegeteError(f"expected a mask ratio from 0 to 1, as 0.15 for 15 %, got {self.mask_ratio}")
        if self.aggregation_in_use not in get_args(Aggregation):
            raise unknown("aggregation", self.aggregation_in_use, get_args(Aggregation))
        set_aggregation(self.explainer, self.aggregation_in_use)
        if self.lifetime < 0:
            raise ExegeteError(f"a teacher's answer is kept for at least 0 epochs, got {self.lifetime}")
        if self.direction not in get_args(Direction):
            raise unknown("direction", self.direction, get_args(Direction))

    @property
    def aggregation_in_use(self) -> Aggregation:
        """The aggregation in use: the one given, or else the explainer's usual one."""
        return self.aggregation or default_aggregation(self.explainer)

    @property
    def capture(self) -> Capture:
        """Attention of the last layer."""
        return LAST

    @property
    def params(self) -> dict[str, Any]:
        """Its parameters and the teacher's."""
        own = {name: value for name, value in super().params.items() if name != "memory"}
        return own | {"explainer": describe_explainer(self.explainer), "aggregation": self.aggregation_in_use}

    @property
    def learned(self) -> TeacherMemory | None:
        """The memory of the teacher's scores, if they are kept over several epochs; else None."""
        return self.memory if self.lifetime else None

    def __call__(self, step: TrainingStep) -> Tensor:
        """Divergence of attention and teacher on whole and masked input, a scalar: a mean over labelled examples."""
        model, batch = step.model, step.batch
        target = self._get_gold_target(step)
        scores = self._ask_teacher(step, target)
        changed = _mask_tokens(batch, select_least_important(scores, batch.content, self.mask_ratio), model.mask_id)
        teacher = to_distribution(scores, batch.content)
        passes = (step.outputs, model(changed, capture=LAST))
        whole, cut = (self._compare(_attention_distribution(step, outputs, target), teacher) for outputs in passes)
        return self.mean_over_labelled(step, whole + cut)

    def _ask_teacher(self, step: TrainingStep, target: Tensor) -> Tensor:
        """[B, L] What the teacher says, now or some epochs ago."""

        def ask(batch: Batch, target: Tensor) -> Tensor:
            return compute_importance(self.explainer, step.model, batch, target, self.aggregation_in_use)

        if not self.lifetime or not step.context.training:
            return ask(step.batch, target)
        return self.memory.get_scores(step.batch, target, step.context.epoch, self.lifetime, ask)

    def _get_gold_target(self, step: TrainingStep) -> Tensor:
        if step.model.modality != "text":
            raise ExegeteError("explanation guided training masks words: it does not apply to images")
        if step.model.task.name == "multi_label":
            raise ExegeteError("with several labels at once there is no gold label that a teacher could explain")
        if step.model.task.name == "span" and step.labels is not None:
            return step.labels.clamp(min=0)
        return step.model.resolve_target(step.batch, "label")

    def _compare(self, attention: Tensor, teacher: Tensor) -> Tensor:
        """KL divergence [B] between the model's attention and the teacher's scores, in the chosen direction."""
        pair = (attention, teacher) if self.direction == "attention" else (teacher, attention)
        return _compute_kl(*pair)


def _mask_tokens(batch: Batch, lost: Tensor, mask_id: int) -> Batch:
    return replace(batch, inputs=batch.inputs | {"input_ids": batch.inputs["input_ids"].masked_fill(lost, mask_id)})


def _attention_distribution(step: TrainingStep, outputs: Outputs, target: Tensor) -> Tensor:
    """[B, L] The last layer's, a distribution over content."""
    row = select_readout_row(step.model, step.batch, outputs.attentions[-1].mean(1), target)
    return to_distribution(row, step.batch.content)


def _compute_kl(one: Tensor, other: Tensor) -> Tensor:
    """[B] KL(one ‖ other) of distributions that are 0 at the same positions, outside content."""
    outside = other <= 0
    ratio = one.masked_fill(outside, 1.0).log() - other.masked_fill(outside, 1.0).log()
    return (one * ratio).sum(1)
