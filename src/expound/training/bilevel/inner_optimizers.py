"""The next step of an optimizer as a differentiable function of the gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from expound.errors import ExpoundError, unknown

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
