"""Which derivatives are modified, and the factors that are held constant for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from expound.data.registry import check_choices
from expound.errors import ExpoundError

Gate = Literal["value", "both", "free"]
AttentionRule = Literal["held", "shared", "free"]


@dataclass(frozen=True, slots=True)
class DerivativeRules:
    """The places where derivatives differ from the ordinary ones; `free` and False keep the ordinary derivative.

    Args:
        attention: `held`: probabilities are constants; `shared`: each factor of attention's two products gets half of
            the incoming gradient (values ½, queries and keys ¼), through the softmax's own derivative.
        gate: products with a gate: `value` holds the gate, `both` gives each factor half. Other products of two tensors
            that depend on the input give each factor half, unless this is `free`.
        norms: hold the scales of norms, and denominators; LayerNorm's mean stays free.
        activations: hold the slopes f(x)/x of functions with f(0) = 0. Others, such as the decay of a recurrent state,
            are held as a whole if this or `norms` is true.
        temperature: T of the softmax whose derivative s_T ⊙ (g − ⟨g, s_T⟩) attention has, without the factor 1/T.

    Raises:
        ExpoundError: an unknown rule, or a temperature that is not positive.
    """

    attention: AttentionRule = "held"
    gate: Gate = "value"
    norms: bool = True
    activations: bool = True
    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_choices(self)
        if self.temperature <= 0:
            raise ExpoundError(f"expected a temperature above 0, got {self.temperature}")


LINEAR_RULES = DerivativeRules()
"""The rules that make the network linear at one input."""


@dataclass
class HeldFactors:
    """The factors that are held constant in a forward pass, in the order in which they are used.

    By default a factor is measured at its first use, and no derivative passes through it.

    Args:
        record: do not hold factors, but keep the factors of this ordinary pass with their graph.
        replay: hold factors that were kept before, so that derivatives with respect to the weights see how the
            factors depend on them.
        kept: the factors that were recorded.
    """

    record: bool = False
    replay: Iterator[Tensor] | None = None
    kept: list[Tensor] = field(default_factory=list)

    @property
    def is_plain(self) -> bool:
        """Whether factors are measured at their first use."""
        return self.replay is None and not self.record

    def take(self, measure: Callable[[], Tensor]) -> Tensor:
        """Return the next factor, measured now or replayed."""
        if self.replay is not None:
            return next(self.replay)
        if not self.record:
            with torch.no_grad():
                return measure().detach()
        self.kept.append(measure())
        return self.kept[-1]

    def straight_through(self, value: Tensor, source: Tensor, factor: float) -> Tensor:
        """Return `value` with `factor` times the derivative of `source`, a tensor of the same shape."""
        if self.is_plain:
            return _straight_through(value.detach(), source, factor)
        # Written with ordinary operations, because second derivatives have to pass through a replayed network.
        held, point = self.take(lambda: value), self.take(lambda: source)
        return value if self.record else held + factor * (source - point)

    def scale_gradient(self, x: Tensor, factor: float) -> Tensor:
        """Return an equal tensor through which gradients pass multiplied by the factor."""
        if factor == 0:
            return x.detach()
        return x if factor == 1 else self.straight_through(x, x, factor)

    def hold_slope(self, function: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Return function(x) = slope(x)·x with the slope held."""
        if self.is_plain:
            # The slope is computed in the backward pass only, which does not come here where a gate is held.
            return _hold_slope(x, function, slope)
        held = self.take(lambda: slope(x))
        return function(x) if self.record else x * held

    def share(
        self, multiply: Callable[[Tensor, Tensor], Tensor], one: Tensor, other: Tensor, share: float = 0.5
    ) -> Tensor:
        """Return the product of two tensors, the first of which gets this share of the incoming gradient."""
        if self.is_plain and share == 0.5:
            product = multiply(one, other)
            return self.straight_through(product, product, 0.5)
        if self.is_plain:
            return multiply(self.scale_gradient(one, share), self.scale_gradient(other, 1 - share))
        held_one, held_other = self.take(lambda: one), self.take(lambda: other)
        if self.record:
            return multiply(one, other)
        return multiply(held_one, other) * (1 - share) + multiply(one, held_other) * share

    def make_replay(self) -> HeldFactors:
        """Return factors for a second pass that is held at what this pass recorded."""
        return HeldFactors(replay=iter(self.kept))


class _StraightThrough(torch.autograd.Function):
    """The first tensor with a multiple of the second tensor's derivative, also under vmap and in forward mode."""

    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor, source: Tensor, factor: float) -> Tensor:
        # A function that returns an input itself would be taken for one that changes it in place.
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
        ctx.factor = inputs[2]

    @staticmethod
    def jvp(ctx: Any, value: Tensor, source: Tensor, factor: None) -> Tensor:
        slope: Tensor = source * ctx.factor
        return slope

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[None, Tensor, None]:
        return None, slope * ctx.factor, None


_straight_through: Callable[[Tensor, Tensor, float], Tensor] = _StraightThrough.apply


class _HoldSlope(torch.autograd.Function):
    """A function of each number alone, with a slope instead of its derivative, also under vmap and in forward mode."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, function: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]) -> Tensor:
        return function(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Any, Callable[[Tensor], Tensor]], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])
        ctx.slope = inputs[2]

    @staticmethod
    def jvp(ctx: Any, x: Tensor, function: None, slope: None) -> Tensor:
        held: Tensor = ctx.slope(ctx.saved_tensors[0])
        return x * held

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None]:
        return slope * ctx.slope(ctx.saved_tensors[0]), None, None


_hold_slope: Callable[..., Tensor] = _HoldSlope.apply
