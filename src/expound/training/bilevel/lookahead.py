"""The gradient of a student's held-out loss through one step of its optimizer (SMaT, IvRA's simulatability)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.optim import SGD, Adam, AdamW, Optimizer

from expound.errors import ExpoundError, unknown
from expound.explainers.learned.learned_attention import LearnedAttention
from expound.models import Batch, Capture, ExplainedModel
from expound.models.passes.hooks import skip_unread_positions
from expound.models.state import preserve_random_state
from expound.objectives.base import task_losses

Settings: TypeAlias = Mapping[str, Any]
Rule: TypeAlias = Callable[[Tensor, Tensor, Settings, Settings], Tensor]
TINY = 1e-38


@dataclass(frozen=True)
class InnerOptimizer:
    """Computes a weight after an optimizer's next step from its name, value and gradient.

    `kept` has the settings of each weight's parameter group, and the weight's optimizer state, by the weight's name.
    """

    rule: Rule
    kept: Mapping[str, tuple[Settings, Settings]]

    def __call__(self, name: str, weight: Tensor, gradient: Tensor) -> Tensor:
        """Return the weight after the step, with a graph to the gradient."""
        return self.rule(weight, gradient, *self.kept[name])

    @torch.no_grad()
    def step(self, name: str, weight: Tensor, gradient: Tensor) -> Tensor:
        """Return the weight after the step, without a graph; the gradient may be overwritten."""
        group, state = self.kept[name]
        if self.rule is not _sgd_step:
            return self(name, weight, gradient)
        # SGD in place: θ' takes the gradient's memory, which saves a copy of all weights.
        share, buffer = _undampened_share(group, state), state.get("momentum_buffer")
        after = gradient.mul_(-group["lr"] * share).add_(weight, alpha=1 - group["lr"] * share * group["weight_decay"])
        if buffer is None:
            return after
        return after.add_(buffer, alpha=-group["lr"] * group["momentum"])

    @torch.no_grad()
    def backward(self, name: str, weight: Tensor, gradient: Tensor, slope: Tensor) -> Tensor:
        """Return the derivative by the gradient, given the one by the new weight, `slope`, which is overwritten."""
        group, state = self.kept[name]
        if self.rule is _sgd_step:
            return slope.mul_(-group["lr"] * _undampened_share(group, state))
        # Adam: θ' = θ − rate·mean/scale, so ∂θ'/∂g = −rate·((1 − β₁)/scale − mean·∂scale/∂g/scale²).
        if self.rule is _adam_step:
            gradient = _add_weight_decay(gradient, weight, group)
        moments = _update_moments(gradient, group, state)
        curved = moments.mean.mul_(gradient).div_(moments.root).div_(moments.scale).mul_(-moments.bend)
        return slope.mul_(curved.add_(1 - group["betas"][0]).div_(moments.scale)).mul_(-moments.rate)


def make_inner_optimizer(optimizer: Any, weights: Mapping[str, Tensor]) -> InnerOptimizer:
    """Return an optimizer's next step as a function of the gradient; the optimizer is not changed.

    Args:
        optimizer: SGD (also with momentum), Adam or AdamW, possibly wrapped by Accelerate.
        weights: the weights it updates, by the names that the function will be called with.

    Raises:
        ExpoundError: another type of optimizer, or a weight that it does not update.
    """
    # Accelerate keeps the optimizer inside its wrapper.
    bare: Optimizer = getattr(optimizer, "optimizer", optimizer)
    # Exact types only: a subclass may step in another way.
    rule = RULES.get(type(bare))
    if rule is None:
        raise unknown("inner optimizer", type(bare).__name__, [kind.__name__ for kind in RULES])
    groups, kept = dict[Tensor, Settings](), dict[str, tuple[Settings, Settings]]()
    for group in bare.param_groups:
        if group.get("amsgrad") or group.get("maximize") or group.get("nesterov"):
            raise ExpoundError("amsgrad, maximize and nesterov are not supported for a student's optimizer")
        groups |= dict.fromkeys(group["params"], group)
    for name, weight in weights.items():
        if weight not in groups:
            raise ExpoundError(f"the optimizer does not step {name}")
        kept[name] = (groups[weight], bare.state.get(weight, {}))
    return InnerOptimizer(rule, kept)


def _sgd_step(weight: Tensor, gradient: Tensor, group: Settings, state: Settings) -> Tensor:
    gradient = _undampened_share(group, state) * (gradient + group["weight_decay"] * weight)
    before = state.get("momentum_buffer")
    if group["momentum"] and before is not None:
        gradient = gradient + group["momentum"] * before
    rate: float = group["lr"]
    return weight - rate * gradient


def _undampened_share(group: Settings, state: Settings) -> float:
    """Return the share of a gradient that enters SGD's step, which is 1 without dampening."""
    # As in torch, the first step with momentum is not dampened.
    if not group["momentum"] or state.get("momentum_buffer") is None:
        return 1.0
    return 1.0 - float(group["dampening"])


def _adam_step(weight: Tensor, gradient: Tensor, group: Settings, state: Settings) -> Tensor:
    mean, scale, rate = _update_moments(_add_weight_decay(gradient, weight, group), group, state)[:3]
    return torch.addcdiv(weight, mean, scale, value=-rate)


def _adamw_step(weight: Tensor, gradient: Tensor, group: Settings, state: Settings) -> Tensor:
    mean, scale, rate = _update_moments(gradient, group, state)[:3]
    return torch.addcdiv(weight * (1 - group["lr"] * group["weight_decay"]), mean, scale, value=-rate)


def _add_weight_decay(gradient: Tensor, weight: Tensor, group: Settings) -> Tensor:
    if not group["weight_decay"]:
        return gradient
    return gradient.add(weight, alpha=group["weight_decay"])


class AdamMoments(NamedTuple):
    """The parts of Adam's step rate · mean / scale; by the gradient, `scale` has the slope bend · gradient / root."""

    mean: Tensor
    scale: Tensor
    rate: float
    root: Tensor
    bend: float


def _update_moments(gradient: Tensor, group: Settings, state: Settings) -> AdamMoments:
    """Return the moments after a gradient."""
    first, second = map(float, group["betas"])
    count = float(state.get("step", 0)) + 1
    mean, square = gradient * (1 - first), gradient.square().mul_(1 - second)
    if state:
        mean, square = mean.add_(state["exp_avg"], alpha=first), square.add_(state["exp_avg_sq"], alpha=second)
    # The square root has an infinite slope at 0, which an unused weight's second moment is.
    root, whole = square.clamp(min=TINY).sqrt_(), (1 - second**count) ** 0.5
    scale = (root / whole).add_(group["eps"])
    return AdamMoments(mean, scale, float(group["lr"]) / (1 - first**count), root, (1 - second) / whole)


RULES: dict[type[Optimizer], Rule] = {SGD: _sgd_step, AdamW: _adamw_step, Adam: _adam_step}


SMALLEST = 1e-7


def explanation_divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """Compute KL(teacher ‖ student) of explanations [B, L], the explanation term of SMaT's student (eq. 3).

    Explanations are distributions over positions. The divergence is a sum over positions and a mean over examples.
    """
    return (teacher * (_clipped_log(teacher) - _clipped_log(student))).sum(-1).mean()


def meta_gradient(
    teacher: Tensor,
    coefficients: Sequence[Tensor],
    student: Callable[[Mapping[str, Tensor]], Tensor],
    weights: Mapping[str, Tensor],
    slopes: Mapping[str, Tensor],
    step: float,
) -> tuple[Tensor, ...]:
    """Return the outer loss's gradient at the teacher's coefficients, through one inner step of SGD (eq. 8 and 9).

    The coefficients act on the inner step θ' = θ − η ∇_θ (L_sim + β·KL(e_T ‖ e_S(θ))) through e_T alone, so
    ∂L_outer/∂φ_T = η β ∂/∂φ_T mean_b Σ_m e_T,m D_m, where D is the derivative of log e_S at θ along
    ∇_θ' L_outer: one forward-mode pass, no graph through the inner step and no second backward pass.

    Args:
        teacher: e_T [B, L], with a graph to `coefficients`.
        coefficients: φ_T.
        student: computes e_S [B, L] from weights by name, with the same dropout as the inner step. Its operations
            need forward-mode derivatives: use a pass with `Capture(differentiable_twice=True)`.
        weights: θ, the weights that the inner step changes.
        slopes: ∇_θ' L_outer, by the same names.
        step: η·β, times the factor of gradient clipping, which is treated as a constant.

    Raises:
        ExpoundError: the names differ, or the explanation does not depend on the weights.
    """
    if weights.keys() != slopes.keys():
        differing = ", ".join(sorted(weights.keys() ^ slopes.keys()))
        raise ExpoundError(f"expected one slope for each of the student's weights; without partner: {differing}")
    # Only e_T has a graph here; D is a constant for φ_T, as θ does not depend on it.
    change = _directional_derivative(student, weights, slopes)
    return torch.autograd.grad(step * (teacher * change).sum(-1).mean(), list(coefficients))


@torch.no_grad()
def _directional_derivative(
    student: Callable[[Mapping[str, Tensor]], Tensor], weights: Mapping[str, Tensor], slopes: Mapping[str, Tensor]
) -> Tensor:
    """Return the derivative [B, L] of the student's log-explanation along a direction of its weights, `slopes`."""
    with forward_ad.dual_level():
        duals = {name: forward_ad.make_dual(weight.detach(), slopes[name]) for name, weight in weights.items()}
        tangent: Tensor | None = forward_ad.unpack_dual(_clipped_log(student(duals))).tangent
    if tangent is None:
        raise ExpoundError("the student's explanation does not depend on the weights that the inner step changes")
    return tangent


def _clipped_log(probabilities: Tensor) -> Tensor:
    # A sparse explanation has zeros. Below the clip a student's probability gets no gradient, and none is infinite.
    return probabilities.clamp(SMALLEST, 1 - SMALLEST).log()


Part = Literal["loss", "simulation", "explanation", "differentiate"]


class Student(nn.Module):
    """A student model and its explainer, as one function of their weights.

    The labels of its batches are the teacher's predictions.

    Args:
        model: the student; in training mode its dropout is active.
        explainer: e_S, an explainer with coefficients on the student's attention.
        weight: β, the weight of the explanation in the student's loss; 0 leaves it out.
    """

    def __init__(self, model: ExplainedModel, explainer: LearnedAttention, weight: float) -> None:
        super().__init__()
        self.explained, self.explainer, self.weight = model, explainer, weight

    def forward(self, part: Part, *arguments: Any) -> Any:
        """Call one of the methods below by name."""
        # `torch.func.functional_call` replaces weights during a call of `forward` only.
        return getattr(self, part)(*arguments)

    def differentiate(self, inputs: Sequence[Tensor], part: Part, *arguments: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return a loss [], without a graph, and its gradients at the inputs."""
        # In one call: a backward pass runs checkpointed layers again, with the weights of this call.
        loss = getattr(self, part)(*arguments)
        return loss.detach(), torch.autograd.grad(loss, inputs, materialize_grads=True)

    def loss(self, batch: Batch, teacher_explanation: Tensor | None = None) -> Tensor:
        """Return the batch's mean of L_sim + β · KL(e_T ‖ e_S) (eq. 3): the loss, and the distance of the explanations.

        `teacher_explanation` is e_T [B, L]; without it the loss is L_sim.
        """
        if teacher_explanation is None or not self.weight:
            return self.simulation(batch)
        with skip_unread_positions(self.explained, batch):
            outputs = self.explained(batch, capture=self._capture())
        explanation = self._explain_outputs(batch, outputs)
        return mean_task_loss(self.explained, batch, outputs.logits) + self.weight * explanation_divergence(
            teacher_explanation, explanation
        )

    def simulation(self, batch: Batch) -> Tensor:
        """Return L_sim (eq. 1): the student's mean loss over the batch, with the teacher's predictions as labels."""
        with skip_unread_positions(self.explained, batch):
            return mean_task_loss(self.explained, batch, self.explained(batch).logits)

    def explanation(self, batch: Batch) -> Tensor:
        """Return the student's explanation e_S [B, L]."""
        # `heads_only` ends the pass at the last layer's queries and keys, which is all that e_S depends on.
        return self._explain_outputs(batch, self.explained(batch, capture=self._capture(heads_only=True)))

    def trainable_weights(self) -> dict[str, Tensor]:
        """Return the weights that a step changes, by name."""
        return {name: weight for name, weight in self.named_parameters() if weight.requires_grad}

    def _capture(self, heads_only: bool = False) -> Capture:
        return Capture(heads=True, differentiable_twice=True, heads_only=heads_only)

    def _explain_outputs(self, batch: Batch, outputs: Any) -> Tensor:
        # Learned attention explains no particular output, so any target will do.
        no_target = torch.zeros(len(batch), dtype=torch.long, device=batch.device)
        return self.explainer.compute(self.explained, batch, [no_target], outputs)[0].scores


def mean_task_loss(model: ExplainedModel, batch: Batch, logits: Tensor) -> Tensor:
    """Compute the task's loss at the batch's labels, a mean over the examples with a usable label."""
    losses, counted = task_losses(model, batch, logits)
    return (losses * counted).sum() / counted.sum().clamp(min=1)


@dataclass(frozen=True)
class LookaheadStep:
    """Differentiates the held-out loss through one step of the student, without applying it (SMaT, eq. 8 and 9).

    The step leads from the weights θ to θ' = update(θ, c·∇_θ L_student(x)). The teacher's explanation e_T of x acts on
    the outer loss L_sim(θ', x_v) through this step only. c is the factor of gradient clipping, treated as a constant.
    One forward-mode pass is taken, and no graph is kept through the step.

    Args:
        student: in the mode in which its steps are taken; it is not changed.
        update: computes θ' from θ and a gradient, see `make_inner_optimizer`.
        max_norm: norm at which the gradients are clipped; None: no clipping.
    """

    student: Student
    update: InnerOptimizer
    max_norm: float | None = None

    @torch.enable_grad()
    def gradient(
        self,
        batch: Batch,
        teacher_explanation: Tensor,
        held_out: Batch,
        seed: int,
        explained: Tensor | None = None,
        gradients: Mapping[str, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the gradient ∂L_sim(x_v)/∂e_T [B, L] and the loss L_sim(x_v), both without a graph.

        To continue to the explainer's parameters, call `teacher_explanation.backward(gradient)`, or add
        (teacher_explanation · gradient).sum() to a loss.

        Args:
            batch: x, with the teacher's predictions as labels.
            teacher_explanation: e_T [B, L], a distribution over real positions; its graph is not used.
            held_out: x_v, with the teacher's predictions as labels.
            seed: seed of the student's dropout in its step; the global random state is not changed.
            explained: e_T of x_v [B, L], a leaf. If given, the loss is L_student(x_v), and the leaf's `.grad` is set.
            gradients: ∇_θ L_student(x) by name, if a backward pass with this seed has computed it; it is not changed.
        """
        teacher_explanation = teacher_explanation.detach().requires_grad_()
        weights = self.student.trainable_weights()
        if gradients is None:
            left = self._inner_gradients(batch, teacher_explanation.detach(), seed, weights)
        else:
            left = dict(gradients)
        # The clipping norm is over all gradients, the explainer's included; L_sim depends on the model's only.
        factor = clip_factor(list(left.values()), self.max_norm)
        used = [name for name in left if explained is not None or not name.startswith("explainer.")]
        weights = {name: weights[name] for name in used}
        # Popping frees each gradient as soon as it is used: at most two copies of the weights exist at a time.
        scaled = {name: left.pop(name) * factor for name in weights}
        left.clear()
        after = {name: self.update.step(name, weight, scaled[name]) for name, weight in weights.items()}
        outer_gradients, loss = self._outer_gradients(after, held_out, explained)
        del after
        # From ∂L/∂θ' to ∂L/∂(gradient of the step): the chain rule through the optimizer alone.
        directions = {}
        for name, weight in weights.items():
            directions[name] = self.update.backward(name, weight, scaled.pop(name), outer_gradients.pop(name))
        # e_T enters the step's gradient as −c·β·∇_θ mean_b Σ_l e_T,l · log e_S,l: the sign and factors of the KL term.
        scale = float(-factor * self.student.weight)

        def explain(weights: Mapping[str, Tensor]) -> Tensor:
            with seeded_random_state(seed):
                result: Tensor = functional_call(self.student, dict(weights), ("explanation", batch))
            return result

        # With e_T itself as the "coefficients", the meta-gradient is the gradient at the explanation.
        (slope,) = meta_gradient(teacher_explanation, [teacher_explanation], explain, weights, directions, scale)
        return slope, loss

    def _inner_gradients(
        self, batch: Batch, teacher_explanation: Tensor, seed: int, weights: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return the gradients of the student's loss by name."""
        with seeded_random_state(seed):
            _, found = self.student("differentiate", list(weights.values()), "loss", batch, teacher_explanation)
        return dict(zip(weights, found, strict=True))

    def _outer_gradients(
        self, weights: Mapping[str, Tensor], held_out: Batch, explained: Tensor | None
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Return the gradients of the outer loss at the given weights by name, and that loss; see `gradient`."""
        leaves = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
        inputs = list(leaves.values())
        arguments: tuple[Any, ...] = ("simulation", held_out)
        if explained is not None:
            inputs, arguments = [*inputs, explained], ("loss", held_out, explained)
        # The outer loss is measured without dropout, as the student is tested.
        with self.student.explained.evaluation_mode():
            loss, found = functional_call(self.student, leaves, ("differentiate", inputs, *arguments))
        if explained is not None:
            explained.grad = found[-1]
        return dict(zip(leaves, found, strict=False)), loss


def clip_factor(gradients: Any, max_norm: float | None) -> Tensor:
    """Return the factor by which `clip_grad_norm_` multiplies gradients, a scalar without a graph."""
    # As in the Trainer, a norm of 0 or None turns clipping off.
    if not max_norm:
        return torch.ones((), device=gradients[0].device)
    # The same 1e-6 as in torch's clipping, or a step would not be the optimizer's own to the last bit.
    norm = torch.nn.utils.get_total_norm([gradient.detach() for gradient in gradients])
    return (max_norm / (norm + 1e-6)).clamp(max=1.0)


@contextmanager
def seeded_random_state(seed: int) -> Iterator[None]:
    """Seed the global random generators inside the block, and restore their state afterwards."""
    with preserve_random_state():
        torch.manual_seed(seed)
        yield
