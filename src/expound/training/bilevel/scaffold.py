"""The explanation term of a student's loss, and the teacher's explainer that may learn to teach (SMaT)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from expound.errors import ExpoundError
from expound.explainers import EXPLAINERS, Explainer, explainer
from expound.explainers.learned.learned_attention import LearnedAttention, softmax_over
from expound.explainers.learned.parameterized_attention import Layers, Normalizer, ParameterizedAttention
from expound.models import Capture, ExplainedModel
from expound.models.outputs import to_float32
from expound.objectives import Objective, TrainingStep
from expound.training.bilevel.lookahead import clip_factor
from expound.training.bilevel.meta_gradient import explanation_divergence
from expound.training.bilevel.teacher_outputs import TeacherBatch, TeacherOutputs
from expound.training.loop.run import vocabulary_digest

LEARNED, NONE = "learned", "none"
StudentExplainer = Literal["parameterized_attention", "interpretable_attention"]
STATIC: dict[str, Layers] = {"untrained": "all", "untrained_last": "last"}
TEMPERATURES = {"input_x_gradient": 0.1, "integrated_gradients": 0.5}
INTEGRATED: dict[str, Any] = {"n_steps": 10, "baselines": "zero"}
LAST = ("untrained_last", "attention_last")


class TeacherExplainer(nn.Module):
    """An explainer that learns to teach, with the state of its AdamW (β .9, .999, ε 1e-8, no decay) in buffers."""

    mean: Tensor
    square: Tensor
    count: Tensor

    def __init__(self, explainer: ParameterizedAttention) -> None:
        super().__init__()
        # Frozen outside of `requiring_gradients`, or the student's optimizer would step the coefficients, too.
        self.explainer = explainer.requires_grad_(False)
        self.register_buffer("mean", torch.zeros_like(explainer.coefficients))
        self.register_buffer("square", torch.zeros_like(explainer.coefficients))
        self.register_buffer("count", torch.tensor(0))

    @contextmanager
    def requiring_gradients(self) -> Iterator[Tensor]:
        """Yield the coefficients, which require gradients inside the block."""
        self.explainer.requires_grad_(True)
        try:
            yield self.explainer.coefficients
        finally:
            self.explainer.requires_grad_(False)

    @torch.no_grad()
    def step(self, gradient: Tensor, rate: float, max_norm: float) -> None:
        """Take one AdamW step along a gradient clipped to a norm."""
        gradient = gradient * clip_factor([gradient], max_norm)
        self.count += 1
        self.mean.lerp_(gradient, 0.1)
        self.square.lerp_(gradient.square(), 0.001)
        scale = (self.square / (1 - 0.999**self.count)).sqrt() + 1e-8
        self.explainer.coefficients.sub_(rate * self.mean / (1 - 0.9**self.count) / scale)


class Scaffold(nn.Module):
    """The modules learned beside the student: its explainer and, if it learns, the teacher's."""

    def __init__(self, student: LearnedAttention, teacher: ParameterizedAttention | None) -> None:
        super().__init__()
        self.student = student
        self.teacher = None if teacher is None else TeacherExplainer(teacher)

    def save(self, folder: Path) -> None:
        """Save each explainer in a folder of its own, for the id `parameterized_attention:PATH`."""
        self.student.save_pretrained(folder / "student_explainer")
        if self.teacher is not None:
            self.teacher.explainer.save_pretrained(folder / "teacher_explainer")


@dataclass(frozen=True)
class Scaffolding(Objective):
    """KL(e_T ‖ e_S) of the teacher's and the student's explanations (Fernandes et al. 2022, eq. 2 and 3).

    The term is 0 for a batch without the teacher's explanations, as in evaluation.

    Args:
        method: the teacher's explainer by name.
        teacher_outputs: the teacher's explanation of every training example; for a learned explainer, every head's
            logits, which its coefficients mix.
        teacher: the teacher's coefficients, if they are learned.
        weight: β.
        normalizer: how both explainers normalize their coefficients.
        student_explainer: the student's explainer by id; IvRA's students have `interpretable_attention`.
        used_layers: whether `parameterized_attention` of the student mixes the heads of `all` layers or of the `last`.
        special_tokens: whether the student's explainer scores special tokens, as the teacher's does.
        lookahead: whether the meta-gradient is taken through a further step of the student on the same batch (eq. 8),
            or through the step that the student takes itself, whose gradients exist already.
        interval: number of inner steps per outer step.
        rate: the outer learning rate.
        max_norm: clipping norm of the outer gradient.
        source: digest of the teacher and its explainer, for a run's record.
        vocabulary: digest of the teacher's vocabulary; None for images.
        scaffold: the explainers, made by `prepare`.
    """

    method: str
    teacher_outputs: TeacherOutputs
    teacher: ParameterizedAttention | None = None
    weight: float = 5.0
    normalizer: Normalizer = "sparsemax"
    student_explainer: StudentExplainer = "parameterized_attention"
    used_layers: Layers = "all"
    special_tokens: bool = True
    lookahead: bool = True
    interval: int = 1
    rate: float = 5e-4
    max_norm: float = 5.0
    source: str = ""
    vocabulary: str | None = None
    scaffold: Scaffold | None = None
    name: ClassVar[str] = "scaffolding"

    @property
    def without_lookahead(self) -> bool:
        """Whether the teacher's explainer learns through the student's own steps."""
        return self.teacher is not None and not self.lookahead

    def prepare(self, model: ExplainedModel) -> Self:
        """Return the term with a new explainer for a student, and a copy of the teacher's.

        Raises:
            ExpoundError: the student has another vocabulary.
        """
        # e_T and e_S are compared position by position, which needs the same tokens.
        if vocabulary_digest(model.processing_class) != self.vocabulary:
            raise ExpoundError(
                "teacher and student have different vocabularies, so the student cannot learn from the teacher's "
                "explanations: give both the same tokenizer, or train the student without any (explainer none)"
            )
        kind: Any = EXPLAINERS[self.student_explainer]
        settings: dict[str, Any] = {"normalizer": self.normalizer, "special_tokens": self.special_tokens}
        if kind is ParameterizedAttention:
            settings["used_layers"] = self.used_layers
        own = kind.for_model(model, **settings)
        return replace(self, scaffold=Scaffold(own, deepcopy(self.teacher)))

    @property
    def capture(self) -> Capture:
        """Queries and keys of the attention heads, which the explainers read."""
        return Capture(heads=True, differentiable_twice=self.without_lookahead)

    @property
    def learned(self) -> nn.Module | None:
        """The explainers of student and teacher, which are trained and saved with the student."""
        return self.scaffold

    @property
    def learned_teacher(self) -> TeacherExplainer | None:
        """The teacher's explainer that learns to teach, if it does."""
        return None if self.scaffold is None else self.scaffold.teacher

    @property
    def params(self) -> dict[str, Any]:
        """The settings, without the learned weights."""
        names = ["method", "weight", "normalizer", "student_explainer", "used_layers", "special_tokens", "source"]
        if self.teacher is not None:
            names += ["lookahead", "interval", "rate", "max_norm"]
        return {name: getattr(self, name) for name in names}

    def __call__(self, step: TrainingStep) -> Tensor:
        """Compute KL(e_T ‖ e_S), a scalar; 0 for a batch without the teacher's explanations."""
        batch = step.batch
        if not isinstance(batch, TeacherBatch) or batch.teacher_explanation is None or self.scaffold is None:
            return step.outputs.logits.new_zeros(())
        no_target = torch.zeros(len(batch), dtype=torch.long, device=batch.device)
        (student,) = self.scaffold.student.compute(step.model, batch, [no_target], step.outputs)
        return explanation_divergence(batch.teacher_explanation, student.scores)

    def explain_rows(self, rows: Tensor, attended: Tensor) -> Tensor:
        """Return the teacher's explanations e_T [B, L] of training examples, with a graph to trainable coefficients."""
        outputs = self.teacher_outputs.read(rows, attended)
        teacher = self.learned_teacher
        if teacher is None:
            return outputs[:, 0]
        by_layer: Tensor = outputs.unflatten(1, teacher.explainer.coefficients.shape)
        return teacher.explainer.mix_heads(by_layer, attended)


def make_static_explainer(name: str, teacher: ExplainedModel, normalizer: Normalizer = "sparsemax") -> Explainer:
    """Return a teacher's explainer that does not learn to teach.

    `untrained` and `untrained_last` are the mean over the heads of all layers or of the last one. All other names are
    registry ids, such as `parameterized_attention:PATH` for a learned explainer.
    """
    # SMaT's code takes 10 steps from a zero baseline for integrated gradients; parameters in the id override this.
    if name in STATIC:
        return ParameterizedAttention.for_model(teacher, STATIC[name], normalizer)
    if name.partition("?")[0] == "integrated_gradients":
        return explainer(name, **{key: value for key, value in INTEGRATED.items() if f"{key}=" not in name})
    return explainer(name, model=teacher)


def normalize_scores(method: Explainer, scores: Tensor, attended: Tensor) -> Tensor:
    """Return scores [B, L] as distributions over real positions.

    Signed scores go through a softmax, unsigned scores are divided by their sum. All scores of 0 give a uniform
    distribution. `LearnedAttention` gives distributions already.
    """
    scores = to_float32(scores).masked_fill(~attended, 0.0)
    if isinstance(method, LearnedAttention):
        return scores
    # The temperatures are those of the authors' code; the paper has none.
    if method.signed:
        return softmax_over(scores / TEMPERATURES.get(method.name, 0.5), attended)
    total = scores.sum(1, keepdim=True)
    uniform = attended / attended.sum(1, keepdim=True)
    return torch.where(total > 0, scores / total.clamp(min=torch.finfo(scores.dtype).tiny), uniform)


def default_weight(method: Explainer) -> float:
    """Return β: 5 for attention and other unsigned methods, 0.2 for signed ones, such as gradients (SMaT, §5)."""
    return 0.2 if method.signed else 5.0


def require_single_process(accumulation: int, processes: int, masked_share: float) -> None:
    """Raise ExpoundError for settings with which the lookahead step would differ from the student's steps."""
    if accumulation > 1 or processes > 1 or masked_share:
        raise ExpoundError(
            "a teacher's explainer is learned from whole steps in one process: set gradient_accumulation_steps to 1, "
            "masked_share to 0, and start one process"
        )
