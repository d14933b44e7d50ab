"""A student learns answers and explanations of a frozen teacher, whose explainer may learn to teach (SMaT)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from exegete.errors import ExegeteError
from exegete.explainers import EXPLAINERS, Explainer, explainer
from exegete.explainers.learned.learned_attention import LearnedAttention, softmax_over
from exegete.explainers.learned.parameterised_attention import Layers, Normaliser, ParameterisedAttention
from exegete.explainers.learned.untrained import UntrainedExplainer
from exegete.models import Capture, ExplainedModel
from exegete.objectives import Objective, TrainingStep
from exegete.training.bilevel.lookahead import clip_factor
from exegete.training.bilevel.meta_gradient import explanation_divergence
from exegete.training.bilevel.teacher_outputs import TeacherBatch, TeacherOutputs
from exegete.training.loop.run import vocabulary_digest

LEARNED, NONE = "learned", "none"
StudentExplainer = Literal["parameterised_attention", "interpretable_attention"]
STATIC: dict[str, Layers] = {"untrained": "all", "untrained_last": "last"}
TEMPERATURES = {"input_x_gradient": 0.1, "integrated_gradients": 0.5}
INTEGRATED = {"n_steps": 10, "baselines": "zero"}
LAST = ("untrained_last", "attention_last")


class TeacherExplainer(nn.Module):
    """An explainer that learns to teach, and the state of its own AdamW (β 0.9 and 0.999, ε 1e-8, no decay) in buffers.

    Its coefficients want no gradient but inside `requiring_gradients`: no optimizer of the student knows them.
    """

    mean: Tensor
    square: Tensor
    count: Tensor

    def __init__(self, explainer: ParameterisedAttention) -> None:
        super().__init__()
        self.explainer = explainer.requires_grad_(False)
        self.register_buffer("mean", torch.zeros_like(explainer.coefficients))
        self.register_buffer("square", torch.zeros_like(explainer.coefficients))
        self.register_buffer("count", torch.tensor(0))

    @contextmanager
    def requiring_gradients(self) -> Iterator[Tensor]:
        """The coefficients, which take part in graphs inside the block."""
        self.explainer.requires_grad_(True)
        try:
            yield self.explainer.coefficients
        finally:
            self.explainer.requires_grad_(False)

    @torch.no_grad()
    def step(self, gradient: Tensor, rate: float, max_norm: float) -> None:
        """One step downhill along a gradient clipped to a norm."""
        gradient = gradient * clip_factor([gradient], max_norm)
        self.count += 1
        self.mean.lerp_(gradient, 0.1)
        self.square.lerp_(gradient.square(), 0.001)
        scale = (self.square / (1 - 0.999**self.count)).sqrt() + 1e-8
        self.explainer.coefficients.sub_(rate * self.mean / (1 - 0.9**self.count) / scale)


class Scaffold(nn.Module):
    """The modules learned beside the student: its explainer and, if it learns, the teacher's."""

    def __init__(self, student: LearnedAttention, teacher: ParameterisedAttention | None) -> None:
        super().__init__()
        self.student = student
        self.teacher = None if teacher is None else TeacherExplainer(teacher)

    def save(self, folder: Path) -> None:
        """Both explainers in folders of their own: `parameterised_attention:PATH` takes them."""
        self.student.save_pretrained(folder / "student_explainer")
        if self.teacher is not None:
            self.teacher.explainer.save_pretrained(folder / "teacher_explainer")


@dataclass(frozen=True)
class Scaffolding(Objective):
    """KL(e_T ‖ e_S) of the teacher's explanations and the student's (Fernandes et al. 2022, eq. 2 and 3).

    Batches that are no `TeacherBatch`, as in evaluation, have none of it: 0.

    Args:
        method: the teacher's explainer by name.
        teacher_outputs: what it says of every row of the training data; what is learned is mixed of every head's
            logits.
        teacher: the teacher's coefficients, where they are learned.
        weight: β.
        normaliser: of the coefficients of both explainers.
        own: the student's explainer by id; `interpretable_attention` is that of students of IvRA.
        layers: whether the student's explainer looks at the heads of `all` layers or of the `last`; IvRA's at all.
        special_tokens: whether the student's explainer has a score for them, as the teacher's.
        lookahead: whether it is taken through a further step of the student on the same batch (eq. 8), or through the
            very one that the student takes, whose gradients are there.
        interval: inner steps for each outer one.
        rate: the outer learning rate.
        max_norm: of the outer gradient.
        source: what identifies the teacher and what its explainer starts from, for the record of a run.
        vocabulary: the digest of the teacher's; None for images.
        scaffold: made by `prepare_for`.
    """

    method: str
    teacher_outputs: TeacherOutputs
    teacher: ParameterisedAttention | None = None
    weight: float = 5.0
    normaliser: Normaliser = "sparsemax"
    student_explainer: StudentExplainer = "parameterised_attention"
    layers: Layers = "all"
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
        """Whether the teacher's explainer learns from the student's own steps."""
        return self.teacher is not None and not self.lookahead

    def prepare_for(self, student: ExplainedModel) -> Scaffolding:
        """With explainers for a student, and a teacher's of its own.

        Raises:
            ExegeteError: the student has another vocabulary, so that positions mean something else.
        """
        if vocabulary_digest(student.processing_class) != self.vocabulary:
            raise ExegeteError(
                "teacher and student have different vocabularies, so the student cannot learn from the teacher's "
                "explanations: give both the same tokenizer, or train the student without any (explainer none)"
            )
        kind: Any = EXPLAINERS[self.student_explainer]
        settings = {"layers": self.layers} if kind is ParameterisedAttention else {}
        own = kind.for_model(student, normaliser=self.normaliser, special_tokens=self.special_tokens, **settings)
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
    def params(self) -> dict[str, Any]:
        """All but what is learned."""
        names = ("method", "weight", "normaliser", "student_explainer", "layers", "special_tokens", "source")
        outer = ("lookahead", "interval", "rate", "max_norm") if self.teacher is not None else ()
        return {name: getattr(self, name) for name in (*names, *outer)}

    def __call__(self, step: TrainingStep) -> Tensor:
        """The divergence KL(e_T ‖ e_S), a scalar; 0 for a batch without the teacher's explanations."""
        batch = step.batch
        if not isinstance(batch, TeacherBatch) or batch.teacher_explanation is None or self.scaffold is None:
            return step.outputs.logits.new_zeros(())
        no_target = torch.zeros(len(batch), dtype=torch.long, device=batch.device)
        student = self.scaffold.student.scores_from_outputs(step.model, batch, step.outputs, no_target, keep_graph=True)
        return explanation_divergence(batch.teacher_explanation, student)

    def explain_rows(self, rows: Tensor, attended: Tensor) -> Tensor:
        """e_T [B, L] of rows of the training data; with a graph to the teacher's coefficients if they ask for one."""
        said = self.teacher_outputs.read(rows, attended)
        teacher = None if self.scaffold is None else self.scaffold.teacher
        if teacher is None:
            return said[:, 0]
        by_layer: Tensor = said.unflatten(1, teacher.explainer.coefficients.shape)
        return teacher.explainer.mix_heads(by_layer, attended)


def make_static_explainer(name: str, teacher: ExplainedModel, normaliser: Normaliser = "sparsemax") -> Explainer:
    """A teacher's explainer that does not learn to teach.

    `untrained` and `untrained_last`: `parameterised_attention` untrained, the mean over the heads of all layers or of
    the last; else any registry id, such as `parameterised_attention:PATH` for one that was learned. Integrated
    gradients have 10 points and start at zero embeddings unless the id says more.
    """
    if name in STATIC:
        return ParameterisedAttention.for_model(teacher, STATIC[name], normaliser)
    if name.partition("?")[0] == "integrated_gradients":
        return explainer(name, **{key: value for key, value in INTEGRATED.items() if f"{key}=" not in name})
    found = explainer(name)
    return found.for_model(teacher) if isinstance(found, UntrainedExplainer) else found


def normalize_scores(method: Explainer, scores: Tensor, attended: Tensor) -> Tensor:
    """Scores [B, L] as distributions over real positions.

    Those of `LearnedAttention` are ones. Signed scores: a softmax, of input × gradient divided by 0.1, of others by 0.5
    (values of the authors' code). Unsigned ones: divided by their sum; evenly spread where all are 0.
    """
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32)).masked_fill(~attended, 0.0)
    if isinstance(method, LearnedAttention):
        return scores
    if method.signed:
        return softmax_over(scores / TEMPERATURES.get(method.name, 0.5), attended)
    total = scores.sum(1, keepdim=True)
    even = attended / attended.sum(1, keepdim=True)
    return torch.where(total > 0, scores / total.clamp(min=torch.finfo(scores.dtype).tiny), even)


def default_weight(method: Explainer) -> float:
    """β: 5 for attention and other unsigned methods, 0.2 for signed ones (§5)."""
    return 0.2 if method.signed else 5.0


def require_single_process(accumulation: int, processes: int, masked_share: float) -> None:
    """Raises ExegeteError for ways of training in which the lookahead step would not be the student's own."""
    if accumulation > 1 or processes > 1 or masked_share:
        raise ExegeteError(
            "a teacher's explainer is learned from whole steps in one process: set gradient_accumulation_steps to 1, "
            "masked_share to 0, and start one process"
        )
