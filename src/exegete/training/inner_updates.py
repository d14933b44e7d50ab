"""What an optimizer's next step would make of a gradient, as a function that has a derivative."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from exegete.errors import ExegeteError, unknown

Update: TypeAlias = Callable[[str, Tensor, Tensor], Tensor]
Settings: TypeAlias = Mapping[str, Any]
TINY = 1e-38


def update_of(optimizer: Any, weights: Mapping[str, Tensor]) -> Update:
    """(name, weight, gradient) ↦ the weight after the optimizer's next step; differentiable in the gradient.

    Rates, decay and moments are the optimizer's present ones, which stay as they are.

    Args:
        optimizer: SGD (also with momentum), Adam or AdamW, possibly wrapped by Accelerate.
        weights: those that the optimizer steps, by the names under which they will be asked for.

    Raises:
        ExegeteError: another kind of optimizer, or a weight that it does not step.
    """
    bare: Optimizer = getattr(optimizer, "optimizer", optimizer)
    kind = next((kind for kind in RULES if type(bare) is kind), None)
    if kind is None:
        raise unknown("inner optimizer", type(bare).__name__, [kind.__name__ for kind in RULES])
    groups = {id(weight): group for group in bare.param_groups for weight in group["params"]}
    if any(group.get(name) for group in bare.param_groups for name in ("amsgrad", "maximize", "nesterov")):
        raise ExegeteError("amsgrad, maximize and nesterov are not supported for a student's optimizer")
    foreign = next((name for name, weight in weights.items() if id(weight) not in groups), None)
    if foreign is not None:
        raise ExegeteError(f"the optimizer does not step {foreign}")
    kept = {name: (groups[id(weight)], bare.state.get(weight, {})) for name, weight in weights.items()}
    return lambda name, weight, gradient: RULES[kind](weight, gradient, *kept[name])


def _sgd(weight: Tensor, gradient: Tensor, group: Settings, state: Settings) -> Tensor:
    gradient = gradient + group["weight_decay"] * weight
    before = state.get("momentum_buffer")
    if group["momentum"] and before is not None:
        gradient = group["momentum"] * before + (1 - group["dampening"]) * gradient
    rate: float = group["lr"]
    return weight - rate * gradient


def _adam(weight: Tensor, gradient: Tensor, group: Settings, state: Settings) -> Tensor:
    gradient = gradient + group["weight_decay"] * weight
    return weight - _moved(gradient, group, state)


def _adamw(weight: Tensor, gradient: Tensor, group: Settings, state: Settings) -> Tensor:
    decay: float = group["lr"] * group["weight_decay"]
    return weight * (1 - decay) - _moved(gradient, group, state)


def _moved(gradient: Tensor, group: Settings, state: Settings) -> Tensor:
    """Adam's step; where nothing ever moved a weight, its second moment has no slope."""
    first, second = map(float, group["betas"])
    rate = float(group["lr"])
    count = float(state.get("step", 0)) + 1
    mean: Tensor = first * state.get("exp_avg", torch.zeros_like(gradient)) + (1 - first) * gradient
    square: Tensor = second * state.get("exp_avg_sq", torch.zeros_like(gradient)) + (1 - second) * gradient.square()
    scale = square.clamp(min=TINY).sqrt() / (1 - second**count) ** 0.5 + group["eps"]
    moved: Tensor = rate / (1 - first**count) * mean / scale
    return moved


RULES: dict[type[Optimizer], Callable[[Tensor, Tensor, Settings, Settings], Tensor]] = {
    SGD: _sgd,
    AdamW: _adamw,
    Adam: _adam,
}
