"""Passes whose values are the model's own and whose derivatives follow published rules, by operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from sweep.held import CONSTANT, ZERO_AT_ZERO


def pass_on(value: Tensor, line: Tensor) -> Tensor:
    """The value, with the derivative of a line."""
    return value.detach() + line - line.detach()


class _Rules(TorchFunctionMode):
    """Hands each function of what depends on the input to the method of its kind; weights must have no gradient."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func.__name__
        depends = [isinstance(x, Tensor) and x.requires_grad for x in args]

        def function(x: Tensor) -> Tensor:
            return func(x, *args[1:], **kwargs)

        if not any(depends):
            return func(*args, **kwargs)
        if name == "softmax":
            return self.soften(function, args[0], args[1] if len(args) > 1 else kwargs["dim"])
        if name in CONSTANT:
            return self.follow_constant(function, args[0])
        if name in ZERO_AT_ZERO:
            return self.follow_activation(function, args[0])
        if name in ("rms_norm", "layer_norm"):
            x = args[0] - args[0].mean(-1, keepdim=True) if name == "layer_norm" else args[0]
            bias = kwargs.get("bias")
            return self.normalize(x, kwargs["eps"]) * kwargs["weight"] + (0 if bias is None else bias)
        if name in ("mul", "matmul", "bmm") and all(depends[:2]):
            return self.multiply(func, *args)
        if name == "div" and len(depends) > 1 and depends[1]:
            return self.divide(*args)
        return func(*args, **kwargs)


class Relevance(_Rules):
    """Derivatives of AttnLRP (slopes held, the softmax's own Jacobian), or of GIM (own slopes, a warmer softmax)."""

    def __init__(self, *, holds_slopes: bool, temperature: float = 1.0) -> None:
        super().__init__()
        self.holds_slopes, self.temperature = holds_slopes, temperature

    def soften(self, function: Callable[[Tensor], Tensor], x: Tensor, dim: int) -> Tensor:
        # Attention has heads; the softmax of a pooling is held.
        if x.ndim < 4:
            return function(x).detach()
        weights = (x.detach() / self.temperature).softmax(dim).to(x.dtype)
        return pass_on(function(x), weights * (x - (weights * x).sum(dim, keepdim=True)))

    def follow_constant(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        return function(x).detach()

    def follow_activation(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        value = function(x)
        if not self.holds_slopes:
            return value
        return pass_on(value, x * torch.where(x == 0, 0, value / x).detach())

    def normalize(self, x: Tensor, eps: float) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt().detach()

    def multiply(self, func: Any, one: Tensor, other: Tensor) -> Tensor:
        product = func(one, other)
        return pass_on(product, product / 2)

    def divide(self, one: Tensor, other: Tensor) -> Tensor:
        return one / other.detach()


def _average(x: Tensor) -> Tensor:
    """The mean of the input's and the baseline's half of a batch, for both halves."""
    one, other = x.detach().chunk(2)
    return ((one + other) / 2).repeat(2, *[1] * (x.ndim - 1))


class Rescaled(_Rules):
    """DeepLIFT's Rescale rule on a batch of the input and the baseline: slopes between both instead of derivatives."""

    def soften(self, function: Callable[[Tensor], Tensor], x: Tensor, dim: int) -> Tensor:
        one, other = (half.double().log_softmax(dim) for half in x.detach().chunk(2))
        step = one - other
        # The logarithmic mean of two equal numbers is that number.
        is_small = step.abs() < 1e-6
        means = torch.where(is_small, ((one + other) / 2).exp(), (one.exp() - other.exp()) / step)
        means = means.nan_to_num(0.0).repeat(2, *[1] * (x.ndim - 1)).to(x.dtype)
        share = means / means.sum(dim, keepdim=True)
        return pass_on(function(x), means * (x - (share * x).sum(dim, keepdim=True)))

    def follow_constant(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        return self.follow_activation(function, x)

    def follow_activation(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        middle = _average(x).requires_grad_()
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(function(middle).sum(), middle)
        one, other = x.detach().chunk(2)
        rise = (function(one) - function(other)) / (one - other)
        whole = torch.where((one - other).abs() < 1e-6, slope.chunk(2)[0], rise).repeat(2, *[1] * (x.ndim - 1))
        return pass_on(function(x), x * whole)

    def normalize(self, x: Tensor, eps: float) -> Tensor:
        scale = (x.detach().square().mean(-1, keepdim=True) + eps).sqrt()
        value, deviation, middle = x.detach() / scale, _average(scale), _average(x)
        # c = y σ and σ² = mean c² + ε: the finite rise of y follows from those of c and σ.
        line = (x - _average(value) * (middle * x).mean(-1, keepdim=True) / deviation) / deviation
        return pass_on(value, line)

    def multiply(self, func: Any, one: Tensor, other: Tensor) -> Tensor:
        return pass_on(func(one, other), func(one, _average(other)) + func(_average(one), other))

    def divide(self, one: Tensor, other: Tensor) -> Tensor:
        value = one.detach() / other.detach()
        return pass_on(value, (one - _average(value) * other) / _average(other))
