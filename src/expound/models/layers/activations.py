"""Activation functions as the product of a slope and their input, f(x) = slope(x)·x, and the activation of a head."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from expound.errors import ExpoundError, check_choice

Slope = Callable[[Tensor], Tensor]
ELEMENTWISE = frozenset(
    [
        *("gelu", "relu", "relu6", "silu", "mish", "tanh", "sigmoid", "softplus", "logsigmoid", "elu", "celu", "selu"),
        *("leaky_relu", "hardtanh", "hardswish", "hardsigmoid", "softsign", "tanhshrink", "hardshrink", "softshrink"),
        *("exp", "exp2", "expm1", "log", "log1p", "sqrt", "rsqrt", "reciprocal", "pow", "square", "abs", "erf"),
        *("sin", "cos", "sinh", "cosh", "atan", "clamp", "clip", "clamp_min", "clamp_max", "__rpow__"),
    ]
)
"""Names of functions of each number alone; their other arguments are constants."""
SMALL = 1e-6
"""The number at which f(x)/x is taken for its limit at 0."""


def _tanh_gelu(x: Tensor) -> Tensor:
    return 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x.pow(3))))


def _tanh(x: Tensor) -> Tensor:
    """Return tanh(x)/x."""
    # Around 0 the quotient is 0/0 and loses all digits, so its Taylor series is used, also for derivatives.
    small = x.abs() < 1e-2
    # Each branch of `where` gets harmless values where the other one is chosen: 0·NaN in a gradient is NaN.
    away = torch.where(small, torch.ones_like(x), x)
    square = torch.where(small, x, torch.zeros_like(x)).pow(2)
    series = 1 + square * (-1 / 3 + square * (2 / 15 + square * (-17 / 315 + square * 62 / 2835)))
    return torch.where(small, series, torch.tanh(away) / away)


SLOPES: Mapping[str, Slope] = {
    "gelu": torch.special.ndtr,
    "gelu_python": torch.special.ndtr,
    "gelu_new": _tanh_gelu,
    "gelu_fast": _tanh_gelu,
    "gelu_accurate": _tanh_gelu,
    "gelu_pytorch_tanh": _tanh_gelu,
    "gelu_python_tanh": _tanh_gelu,
    "quick_gelu": lambda x: torch.sigmoid(1.702 * x),
    "silu": torch.sigmoid,
    "swish": torch.sigmoid,
    "relu": lambda x: (x > 0).to(x.dtype),
    "relu2": nn.functional.relu,
    "tanh": _tanh,
    "linear": torch.ones_like,
}


def zero_origin_slope(name: str) -> Slope:
    """Return the function f(x)/x of an activation by its transformers name, with its limit at 0.

    Raises:
        ExpoundError: an activation without a known slope.
    """
    check_choice("activation", name, SLOPES)
    return SLOPES[name]


def find_activation_name(module: nn.Module) -> str | None:
    """Return the transformers name of an activation module, or None if its slope has no formula here."""
    if isinstance(module, nn.GELU):
        return "gelu" if module.approximate == "none" else "gelu_pytorch_tanh"
    return next((name for name in SLOPES if type(module) is type(ACT2FN[name])), None)


def find_slope(function: Callable[[Tensor], Tensor], name: str, options: tuple[Any, ...]) -> Slope:
    """Return f(x)/x of a function of each number alone with f(0) = 0: by its formula if there is one, else measured."""
    if name == "gelu" and "tanh" in options:
        name = "gelu_pytorch_tanh"
    if name in SLOPES:
        return SLOPES[name]

    def divide(x: Tensor) -> Tensor:
        near = torch.where(x.abs() < SMALL, torch.full_like(x, SMALL), x)
        return function(near) / near

    return divide


def is_zero_at_zero(function: Callable[[Tensor], Tensor], name: str, options: tuple[Any, ...], like: Tensor) -> bool:
    """Return whether f(0) = 0; the answer is kept for functions whose other arguments are plain values."""
    if name in SLOPES:
        return True
    key = (name, repr(options)) if not any(isinstance(value, Tensor) for value in options) else None
    if key is None or key not in _ZERO_AT_ZERO:
        with torch.no_grad():
            is_zero = not bool(function(torch.zeros(1, dtype=like.dtype, device=like.device)).any())
        if key is None:
            return is_zero
        _ZERO_AT_ZERO[key] = is_zero
    return _ZERO_AT_ZERO[key]


_ZERO_AT_ZERO: dict[tuple[str, str], bool] = {}


def compute_tangent(name: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the tangent of an activation at x: its slope f'(x) and its height at zero f(x) − f'(x)·x."""
    with torch.enable_grad():
        point = x.detach().requires_grad_()
        value = zero_origin_slope(name)(point) * point
        (slope,) = torch.autograd.grad(value.sum(), point)
    return slope, value.detach() - slope * x


ENCODER_KEY = "hidden_act"
"""The configuration's entry for the encoder's activation."""
HEAD_KEY = "head_activation"
"""The entry that is saved with a model whose head has an activation of its own."""


def set_head_activation(model: PreTrainedModel, name: str | None) -> None:
    """Set the head's activation and save its name in the configuration; None restores the encoder's activation.

    Raises:
        ExpoundError: an activation without a known slope, or a head that does not share its encoder's.
    """
    if not shares_encoder_activation(model):
        raise ExpoundError(f"{type(model).__name__} has a head whose activation is its own: leave head_activation out")
    vars(model.config).pop(HEAD_KEY, None)
    config = model.config
    if name is not None:
        zero_origin_slope(name)
        # The head gets a configuration of its own: the encoder would change with a shared one.
        config = copy(config)
        setattr(config, ENCODER_KEY, name)
        setattr(model.config, HEAD_KEY, name)
    head: Any = model.classifier
    head.config = config


def shares_encoder_activation(model: PreTrainedModel) -> bool:
    """Return whether the head takes its activation from the encoder's entry of the configuration."""
    # Heads with a configuration of their own read the activation's name there in every pass.
    head = getattr(model, "classifier", None)
    return hasattr(getattr(head, "config", None), ENCODER_KEY)


def restore_head_activation(model: PreTrainedModel) -> PreTrainedModel:
    """Return a loaded model whose head has the activation that is saved in its configuration."""
    name = getattr(model.config, HEAD_KEY, None)
    if name is not None:
        set_head_activation(model, name)
    return model
