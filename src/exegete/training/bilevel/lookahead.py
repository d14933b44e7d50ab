"""A student's step, differentiated at the explanation that shaped it: the mechanics of SMaT and of IvRA's SIM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call

from exegete.errors import unknown
from exegete.explainers.learned.learned_attention import LearnedAttention
from exegete.models import Batch, Capture, ExplainedModel
from exegete.models.passes.last_layer import skip_unread_positions
from exegete.models.state import preserve_random_state
from exegete.objectives.cross_entropy import task_losses
from exegete.training.bilevel.inner_optimizers import InnerOptimizer
from exegete.training.bilevel.meta_gradient import explanation_divergence, meta_gradient
from exegete.training.bilevel.replayed_pass import RecordedPass, ReplayedPass
from exegete.training.bilevel.used_embeddings import UsedEmbeddings

Mode = Literal["forward", "unrolled"]
Part = Literal["loss", "simulation", "explanation"]


class Student(nn.Module):
    """A model and the explainer of its own that it learns with, as one function of their weights.

    Its calls are what `torch.func.functional_call` needs to hand other weights over: see `loss`, `simulation` and
    `explanation`. Labels of batches are the teacher's answers.

    Args:
        model: the student, in training mode where dropout shall be drawn.
        explainer: e_S, an explainer with coefficients on the student's attention.
        weight: β, of the explanation in the student's loss; 0 leaves it out.
    """

    def __init__(self, model: ExplainedModel, explainer: LearnedAttention, weight: float) -> None:
        super().__init__()
        self.explained, self.explainer, self.weight = model, explainer, weight

    def forward(self, part: Part, *arguments: Any) -> Tensor:
        """One of the methods below, by name."""
        result: Tensor = getattr(self, part)(*arguments)
        return result

    def loss(self, batch: Batch, teacher_explanation: Tensor | None = None) -> Tensor:
        """L_student = L_sim + β·KL(e_T ‖ e_S) (eq. 3), a mean over the batch; `teacher_explanation` [B, L]: e_T."""
        if teacher_explanation is None or not self.weight:
            return self.simulation(batch)
        with skip_unread_positions(self.explained):
            outputs = self.explained(batch, capture=self._capture())
        explanation = self._explain_outputs(batch, outputs)
        return mean_task_loss(self.explained, batch, outputs.logits) + self.weight * explanation_divergence(
            teacher_explanation, explanation
        )

    def simulation(self, batch: Batch) -> Tensor:
        """L_sim alone: the task's loss at the teacher's answers (eq. 1), a mean over the batch."""
        with skip_unread_positions(self.explained):
            return mean_task_loss(self.explained, batch, self.explained(batch).logits)

    def explanation(self, batch: Batch) -> Tensor:
        """e_S [B, L]; the pass ends with the last layer's queries and keys."""
        return self._explain_outputs(batch, self.explained(batch, capture=self._capture(heads_only=True)))

    def trainable_weights(self) -> dict[str, Tensor]:
        """Everything that a step changes, by name."""
        return {name: weight for name, weight in self.named_parameters() if weight.requires_grad}

    def _capture(self, heads_only: bool = False) -> Capture:
        return Capture(heads=True, differentiable_twice=True, heads_only=heads_only)

    def _explain_outputs(self, batch: Batch, outputs: Any) -> Tensor:
        no_target = torch.zeros(len(batch), dtype=torch.long, device=batch.device)
        return self.explainer.scores_from_outputs(self.explained, batch, outputs, no_target, keep_graph=True)


def mean_task_loss(model: ExplainedModel, batch: Batch, logits: Tensor) -> Tensor:
    """The task's loss at the batch's labels, a mean over the examples that have a usable one."""
    losses, counted = task_losses(model, batch, logits)
    return (losses * counted).sum() / counted.sum().clamp(min=1)


@dataclass(frozen=True)
class LookaheadStep:
    """The student's next step, looked through but never taken (Fernandes et al. 2022, eq. 8 and 9).

    From its present weights θ the student would go to θ' = update(θ, c·∇_θ L_student(x)); c is what clipping scales
    gradients by, taken as a constant. The teacher's explanation e_T of x acts on L_sim(θ', x_v) through that step only.

    Args:
        student: in the mode its steps are taken in; nothing of it changes.
        update: θ' of θ and a gradient, see `inner_updates.make_inner_optimizer`.
        mode: `forward`: one forward-mode pass, no graph through the step; `unrolled`: double backward, which is the
            same but for rounding and takes more memory.
        max_norm: the gradients' norm at which they are clipped; None: never.
    """

    student: Student
    update: InnerOptimizer
    mode: Mode = "forward"
    max_norm: float | None = None

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise unknown("meta-gradient", self.mode, get_args(Mode))

    def gradient(
        self, batch: Batch, teacher_explanation: Tensor, held_out: Batch, seed: int, explained: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """∂L_sim(x_v)/∂e_T [B, L], and that loss; both without a graph.

        The gradient goes on from there by an ordinary backward pass: `teacher_explanation.backward(gradient)`,
        or as a term of a larger loss: (teacher_explanation · gradient).sum().

        Args:
            batch: x, with the teacher's answers as labels.
            teacher_explanation: e_T [B, L], a distribution over real positions; its graph is not looked at.
            held_out: x_v, with the teacher's answers.
            seed: what the student's dropout in its step depends on; the global random state stays what it is.
            explained: e_T of x_v [B, L], a leaf: the loss is then L_student(x_v) with it, and its gradient is left in
                its `.grad`.
        """
        teacher_explanation = teacher_explanation.detach().requires_grad_()
        with torch.enable_grad():
            return getattr(self, f"_{self.mode}")(batch, teacher_explanation, _OuterLoss(held_out, explained), seed)  # type: ignore[no-any-return]

    def gradient_after_backward(
        self, batch: Batch, teacher_explanation: Tensor, held_out: Batch, seed: int, before: RecordedPass
    ) -> tuple[Tensor, Tensor]:
        """As `gradient` in forward mode, through a step that is about to be taken: its gradients lie in `.grad`.

        What the student's own backward pass has left there is not computed again, nor changed.

        Args:
            batch: x, which the gradients are of, see `gradient`.
            teacher_explanation: e_T [B, L].
            held_out: x_v.
            seed: what the pass that the gradients are of has drawn its dropout with, see `seeded_random_state`.
            before: what that pass left, with `Capture.differentiable_twice`.
        """
        rows = UsedEmbeddings(self.student.explained, batch, held_out)
        everything = {
            name: weight for name, weight in self.student.trainable_weights().items() if weight.grad is not None
        }
        gradients = rows.gradients(everything)
        factor = clip_factor(list(gradients.values()), self.max_norm)
        weights, update = rows.select(everything, self.update)
        weights = _model_weights(weights)
        step = _InnerStep(weights, update, {name: gradients[name] * factor for name in weights}, factor, before)
        with torch.enable_grad(), rows.use_rows_in_lookup():
            return self._differentiate_step(
                step, batch, teacher_explanation.detach().requires_grad_(), _OuterLoss(held_out), seed
            )

    def _forward(
        self, batch: Batch, teacher_explanation: Tensor, outer: _OuterLoss, seed: int
    ) -> tuple[Tensor, Tensor]:
        rows = UsedEmbeddings(self.student.explained, batch, outer.batch)
        weights, update = rows.select(self.student.trainable_weights(), self.update)
        with rows.use_rows_in_lookup():
            with RecordedPass() as before:
                gradients, factor = self._inner_gradients(batch, teacher_explanation.detach(), seed, weights)
            weights, whole = outer.relevant_weights(weights), bool(factor == 1)
            scaled = {name: gradients.pop(name) if whole else gradients.pop(name).mul_(factor) for name in weights}
            return self._differentiate_step(
                _InnerStep(weights, update, scaled, factor, before), batch, teacher_explanation, outer, seed
            )

    def _differentiate_step(
        self, step: _InnerStep, batch: Batch, teacher_explanation: Tensor, outer: _OuterLoss, seed: int
    ) -> tuple[Tensor, Tensor]:
        """From a step, whose gradients are used up, to the gradient at the explanation."""
        weights, update, scaled, factor, before = step
        after = {name: update.step(name, weight, scaled[name]) for name, weight in weights.items()}
        uphill, loss = self._outer_gradients(after, outer)
        del after
        slopes = {
            name: update.backward(name, weight, scaled.pop(name), uphill.pop(name)) for name, weight in weights.items()
        }
        with ReplayedPass(before):
            return self._gradient_at_explanation(
                batch, teacher_explanation, weights, slopes, seed, -factor * self.student.weight
            ), loss

    def _unrolled(
        self, batch: Batch, teacher_explanation: Tensor, outer: _OuterLoss, seed: int
    ) -> tuple[Tensor, Tensor]:
        weights = self.student.trainable_weights()
        gradients, factor = self._inner_gradients(batch, teacher_explanation, seed, weights, graph=True)
        weights = outer.relevant_weights(weights)
        after = {name: self.update(name, weight.detach(), factor * gradients[name]) for name, weight in weights.items()}
        with self.student.explained.evaluation_mode():
            loss = functional_call(self.student, after, outer.call_arguments)
        found = torch.autograd.grad(loss, [teacher_explanation, *outer.leaves], materialize_grads=True)
        outer.store_gradients(found[1:])
        return found[0], loss.detach()

    def _inner_gradients(
        self,
        batch: Batch,
        teacher_explanation: Tensor,
        seed: int,
        weights: Mapping[str, Tensor],
        graph: bool = False,
    ) -> tuple[dict[str, Tensor], Tensor]:
        """The gradients of the student's loss at its weights by name, and what clipping scales them by."""
        with seeded_random_state(seed):
            loss = functional_call(self.student, dict(weights), ("loss", batch, teacher_explanation))
        found = torch.autograd.grad(loss, list(weights.values()), create_graph=graph, materialize_grads=True)
        return dict(zip(weights, found, strict=True)), clip_factor(found, self.max_norm)

    def _outer_gradients(self, weights: Mapping[str, Tensor], outer: _OuterLoss) -> tuple[dict[str, Tensor], Tensor]:
        """The outer loss's gradients at weights, without dropout, by name, and that loss."""
        leaves = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
        with self.student.explained.evaluation_mode():
            loss = functional_call(self.student, leaves, outer.call_arguments)
        found = torch.autograd.grad(loss, [*leaves.values(), *outer.leaves], materialize_grads=True)
        outer.store_gradients(found[len(leaves) :])
        return dict(zip(leaves, found[: len(leaves)], strict=True)), loss.detach()

    def _gradient_at_explanation(
        self,
        batch: Batch,
        teacher_explanation: Tensor,
        weights: Mapping[str, Tensor],
        slopes: Mapping[str, Tensor],
        seed: int,
        scale: Tensor | float,
    ) -> Tensor:
        """The mean over the batch of `scale` times the derivative of log e_S along the slopes: [B, L]."""

        def explained(weights: Mapping[str, Tensor]) -> Tensor:
            with seeded_random_state(seed):
                result: Tensor = functional_call(self.student, dict(weights), ("explanation", batch))
            return result

        (found,) = meta_gradient(teacher_explanation, [teacher_explanation], explained, weights, slopes, float(scale))
        return found


class _OuterLoss(NamedTuple):
    """Held-out data the student is judged on after its step: x_v, and its e_T if that is part of the loss."""

    batch: Batch
    explained: Tensor | None = None

    @property
    def call_arguments(self) -> tuple[Any, ...]:
        """The student's method and its arguments."""
        return ("simulation", self.batch) if self.explained is None else ("loss", self.batch, self.explained)

    @property
    def leaves(self) -> list[Tensor]:
        """The tensors that need a gradient: e_T of x_v, if it is part of the loss."""
        return [] if self.explained is None else [self.explained]

    def store_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Leaves the gradients where they belong."""
        for value, gradient in zip(self.leaves, gradients, strict=True):
            value.grad = gradient

    def relevant_weights(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Those that the loss depends on."""
        return _model_weights(weights) if self.explained is None else dict(weights)


class _InnerStep(NamedTuple):
    """A step that is looked through: its weights, what it makes of them, their gradients, clipped by a factor.

    `before`: what the pass left that the gradients are of.
    """

    weights: Mapping[str, Tensor]
    update: InnerOptimizer
    scaled: dict[str, Tensor]
    factor: Tensor
    before: RecordedPass


def _model_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those that answers depend on: all but the explainer's."""
    return {name: weight for name, weight in weights.items() if not name.startswith("explainer.")}


def clip_factor(gradients: Any, max_norm: float | None) -> Tensor:
    """The factor by which `clip_grad_norm_` multiplies gradients; a scalar without a graph."""
    if not max_norm:
        return torch.ones((), device=gradients[0].device)
    norm = torch.nn.utils.get_total_norm([gradient.detach() for gradient in gradients])
    return (max_norm / (norm + 1e-6)).clamp(max=1.0)


@contextmanager
def seeded_random_state(seed: int) -> Iterator[None]:
    """Inside the block what is drawn from the global generators depends on the seed alone; they are restored after."""
    with preserve_random_state():
        torch.manual_seed(seed)
        yield
