"""The criterion of simulatability: a student learns from explanations to answer as the model does (IvRA's SIM)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from expound.errors import ExpoundError, check_choice
from expound.explainers.learned.interpretable_attention import InterpretableAttention
from expound.models import Batch, ExplainedModel
from expound.models.loading.digest import digest_weights
from expound.objectives import Criterion, TrainingStep
from expound.training.bilevel.inner_optimizers import make_inner_optimizer
from expound.training.bilevel.lookahead import LookaheadStep, Student, clip_factor, seeded_random_state

InnerOptimizerName = Literal["sgd", "adamw"]
HASH_MULTIPLIER = 0x9E3779B97F4A7C15 - 2**64
"""2^64 divided by the golden ratio, the odd multiplier of Fibonacci hashing, as a signed 64-bit integer."""


class SimulatingStudent(nn.Module):
    """A student with an optimizer of its own, whose weights require gradients inside `requiring_gradients` only.

    Weights that require none when it is made, as weights under adapters, are not trained.

    Args:
        model: a pretrained model that was not fine-tuned, with the tokenizer of the explained model.
        weight: β, the weight of the explanations in its loss; above 0.
        optimizer: `sgd` (without momentum) or `adamw` (without decay).
        special_tokens: whether its explanation r* includes special tokens, as the explanations it learns from do.

    Raises:
        ExpoundError: another optimizer, or a weight that is not above 0.
    """

    # The weights are frozen so that the Trainer's optimizer leaves them out; AdamW's moments are buffers, which
    # checkpoints save with the module.

    def __init__(
        self,
        model: ExplainedModel,
        weight: float = 1.0,
        optimizer: InnerOptimizerName = "sgd",
        special_tokens: bool = True,
    ) -> None:
        super().__init__()
        check_choice("student's optimizer", optimizer, get_args(InnerOptimizerName))
        if weight <= 0:
            raise ExpoundError(f"a student that learns from explanations weighs them by more than 0, got {weight}")
        own = InterpretableAttention.for_model(model, normalizer="softmax", special_tokens=special_tokens).to(
            model.device
        )
        network = Student(model, own, weight)
        self.trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
        self.network = network.requires_grad_(False)
        self.kind = optimizer
        self.moments = nn.ModuleList()
        if optimizer == "adamw":
            self.moments.extend(map(_AdamWState, self.trained))

    @contextmanager
    def requiring_gradients(self) -> Iterator[Student]:
        """Yield the student, whose weights require gradients inside the block."""
        for weight in self.trained:
            weight.requires_grad_(True)
        try:
            yield self.network
        finally:
            self.network.requires_grad_(False)

    def optimizer(self, rate: float) -> torch.optim.Optimizer:
        """Return the optimizer of the student's weights, with the state after its last step."""
        if self.kind == "sgd":
            return torch.optim.SGD(self.trained, lr=rate)
        optimizer = torch.optim.AdamW(self.trained, lr=rate, weight_decay=0.0)
        for weight, own in zip(self.trained, self.moments, strict=True):
            optimizer.state[weight] = dict(own.named_buffers())
        return optimizer


class _AdamWState(nn.Module):
    """The state of AdamW for one weight, under torch's names."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("step", torch.tensor(0.0))
        self.register_buffer("exp_avg", torch.zeros_like(weight))
        self.register_buffer("exp_avg_sq", torch.zeros_like(weight))


@dataclass(frozen=True)
class Simulatability(Criterion):
    """A student's loss on held-out examples, after a step that explanations shape (IvRA, eq. 7, 14 and 15).

    In every training step the student first takes an inner step on CE(S(x), ỹ) + β·KL(r ‖ r*), where x are the
    batch's inner examples and ỹ the model's predictions. A lookahead step leads on to θ', and the term is
    CE(S_θ'(x'), ỹ') on the held-out examples x', see `select_held_out`. Its gradient reaches the explanations through
    the lookahead step, see `LookaheadStep`. In evaluation the term is the student's CE on the whole batch.

    Args:
        explainer: see `Criterion`, as for `weight` and `lr_multiplier`.
        student: the student; the recipe makes one for the run.
        rate: learning rate of the student's optimizer.
        max_norm: clipping norm of the student's gradients.
        held_out: the share of examples in the outer loss.
        outer_divergence: whether the outer loss also has β·KL(r' ‖ r*') at θ', as IvRA prints it; SMaT's has not.
            With it explanations also become more like the student's own.
    """

    # Equation 7 prints the cross-entropy without its minus sign.

    student: SimulatingStudent | None = field(default=None, kw_only=True, repr=False)
    rate: float = 5e-3
    max_norm: float = 5.0
    held_out: float = 0.5
    outer_divergence: bool = False
    name: ClassVar[str] = "simulatability"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.held_out < 1:
            raise ExpoundError(f"expected a held-out share between 0 and 1, got {self.held_out}")
        if self.rate <= 0:
            raise ExpoundError(f"expected a learning rate of the student above 0, got {self.rate}")

    @property
    def companion(self) -> SimulatingStudent:
        """The student, which the criterion trains by itself."""
        if self.student is None:
            raise ExpoundError("simulatability needs a student: train it by the recipe ivra, with --student")
        return self.student

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of the criterion, and the student's starting point."""
        student = self.companion.network
        own = {"optimizer": self.companion.kind, "special_tokens": student.explainer.params["special_tokens"]}
        start = {"model": student.explained.config.model_type, "weights": digest_weights(student.explained.model)}
        return super().params | {"student": start | {"weight": student.weight} | own}

    def __call__(self, step: TrainingStep) -> Tensor:
        """Compute the student's loss, a scalar; in training on held-out examples, after its inner step."""
        batch = label_with_predictions(step.model, step.batch, step.outputs.logits)
        if not step.context.training:
            with self.companion.network.explained.evaluation_mode():
                return self.companion.network("simulation", batch)  # type: ignore[no-any-return]
        if step.context.rank:
            raise ExpoundError("a student learns in one process: start one")
        explained = self.explain_prediction(step).masked_fill(~batch.attended, 0.0)
        held_out = select_held_out(batch, self.held_out)
        # Without inner or held-out examples the term is 0, but keeps the graph that a backward pass needs.
        if held_out.all() or not held_out.any():
            return explained.sum() * 0
        inner, outer = (batch.select(rows.nonzero().flatten()) for rows in (~held_out, held_out))
        teacher_explanation, judged = explained[~held_out], explained[held_out]
        own = judged.detach().requires_grad_() if self.outer_divergence else None
        gradient, loss = self._teach_student(step, inner, teacher_explanation.detach(), outer, own)
        through = (teacher_explanation * gradient).sum()
        if own is not None:
            assert own.grad is not None
            through = through + (judged * own.grad).sum()
        # The value of the loss, with the gradient of `through`.
        return loss + through - through.detach()

    def _teach_student(
        self, step: TrainingStep, inner: Batch, teacher_explanation: Tensor, outer: Batch, own: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Take the student's step; return the outer gradient [B, L] and loss after one more, a lookahead step.

        `own` are the explanations of the held-out examples, if they are part of the loss, see `LookaheadStep.gradient`.
        """
        seeds = [step.generator(f"student's {what}").initial_seed() for what in ("step", "lookahead")]
        with torch.enable_grad(), self.companion.requiring_gradients() as student:
            weights, optimizer = student.trainable_weights(), self.companion.optimizer(self.rate)
            with seeded_random_state(seeds[0]):
                loss = student("loss", inner, teacher_explanation)
            found = torch.autograd.grad(loss, list(weights.values()), materialize_grads=True)
            factor = clip_factor(found, self.max_norm)
            for weight, slope in zip(weights.values(), found, strict=True):
                weight.grad = slope.mul_(factor)
            optimizer.step()
            optimizer.zero_grad()
            lookahead = LookaheadStep(student, make_inner_optimizer(optimizer, weights), max_norm=self.max_norm)
            return lookahead.gradient(inner, teacher_explanation, outer, seeds[1], own)


def select_held_out(batch: Batch, share: float) -> Tensor:
    """Return which examples of a batch are held out from the student [B], bool: about that share of all.

    The choice is a hash of an example's tokens, so that the student never learns from a held-out example in any epoch.
    """
    # Pixels are hashed by their bits. Padding is left out, since its length differs from batch to batch.
    inputs = next(iter(batch.inputs.values())).flatten(1)
    tokens = inputs.float().view(torch.int32).long() if inputs.is_floating_point() else inputs
    real = batch.attended
    if tokens.shape != batch.attended.shape:
        real = torch.ones_like(tokens, dtype=torch.bool)
    powers = torch.full_like(tokens, HASH_MULTIPLIER).masked_fill(~real, 1).cumprod(1)
    mixed = (powers * (tokens + 1) * real).sum(1)
    # Two rounds of xor-shift and multiply, as in splitmix64, spread the sum over the upper bits that are compared.
    for shift in (33, 29):
        mixed = (mixed ^ (mixed >> shift)) * HASH_MULTIPLIER
    return (mixed >> 40) & 0xFFFFFF < share * 2**24


def label_with_predictions(model: ExplainedModel, batch: Batch, logits: Tensor) -> Batch:
    """Return the batch with the model's own predictions as labels."""
    if not model.task.supports("one_target"):
        raise ExpoundError("students learn one class, a value or a span per example, not several labels at once")
    if model.task.predicts_number:
        return replace(batch, labels=logits.detach().squeeze(-1))
    return replace(batch, labels=model.resolve_target(batch, "predicted", logits))
