"""Backward passes by rules other than the ordinary derivative: held norms, activations, attention; split products."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from expound.errors import ExpoundError, check_choice
from expound.models.families import Attention, Family, FeedForward
from expound.models.layers import activations
from expound.models.layers.architecture import (
    get_architecture,
    get_base_model,
    get_head_module,
    get_layers,
    get_module,
)
from expound.models.layers.head_activation import get_head_activation
from expound.models.layers.layer_parts import is_norm_layer, to_norm
from expound.models.layers.similarity import InnerProduct

SOFTMAX = frozenset({torch.softmax, Tensor.softmax, nn.functional.softmax})
Gate = Literal["value", "both", "free"]
AttentionRule = Literal["held", "shared", "free"]


@dataclass(frozen=True, slots=True)
class DerivativeRules:
    """The places where derivatives differ from the ordinary ones; `free` and False keep the ordinary derivative.

    Args:
        attention: `held`: probabilities are constants; `shared`: each factor of attention's two products gets half of
            the incoming gradient (values ½, queries and keys ¼), through the softmax's own derivative.
        gate: the product in gated feed-forwards: `value` holds the gate, `both` gives each factor half.
        norms: hold the scales of LayerNorm and RMSNorm; LayerNorm's mean stays free.
        activations: hold the slopes f(x)/x of activations, also of the head's.
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
        for name, choices in (("attention", AttentionRule), ("gate", Gate)):
            check_choice(name, getattr(self, name), get_args(choices))
        if self.temperature <= 0:
            raise ExpoundError(f"expected a temperature above 0, got {self.temperature}")

    @property
    def query_gradient(self) -> float | None:
        """The factor by which attention's rule multiplies the gradients of queries and keys; None if it is no factor.

        `shared` gives them a quarter: attention's output passes half of its gradient on, and this factor is the rest.
        """
        if self.temperature != 1:
            return None
        return {"held": 0.0, "shared": 0.5, "free": 1.0}[self.attention]


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
        if self.replay is None and not self.record:
            return _straight_through(value.detach(), source, factor)
        # Written with ordinary operations, because second derivatives have to pass through a replayed network.
        held, point = self.take(lambda: value), self.take(lambda: source)
        return value if self.record else held + factor * (source - point)

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


class _Softmax(TorchFunctionMode):
    """Applies attention's rule to every softmax, so that no family's attention has to be known."""

    def __init__(self, factors: HeldFactors, rules: DerivativeRules) -> None:
        super().__init__()
        self.factors, self.rules = factors, rules

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in SOFTMAX:
            return func(*args, **kwargs)
        if self.rules.attention == "held":
            return self.factors.take(lambda: func(*args, **kwargs))
        logits, *others = args
        weights, temperature = func(logits, *others, **kwargs), self.rules.temperature
        smooth = weights
        if temperature != 1:
            logits = logits / temperature
            # Masked logits are the lowest finite number, which a division by T < 1 turns into −∞.
            if temperature < 1:
                logits = logits.clamp(min=torch.finfo(logits.dtype).min)
            smooth = func(logits, *others, **kwargs)
        # The derivative of softmax(x / T) has a factor 1/T, which is multiplied away here.
        factor = temperature / 2 if self.rules.attention == "shared" else temperature
        return self.factors.straight_through(weights, smooth, factor)


@contextmanager
def apply_backward_rules(
    model: PreTrainedModel, factors: HeldFactors, rules: DerivativeRules = LINEAR_RULES
) -> Iterator[None]:
    """Let derivatives follow the rules inside the block; the model's answers stay the same.

    With `LINEAR_RULES` the answer is affine in the representations that enter any layer. Attention has to be computed
    with an explicit softmax (`Capture(differentiable_twice=True)`).

    Args:
        model: of a family with a record.
        factors: how the held numbers are obtained.
        rules: the rules.
    """
    family = get_architecture(model)
    with ExitStack() as scope:
        for module in model.modules():
            if rules.norms and is_norm_layer(module):
                scope.enter_context(module.register_forward_hook(_make_norm_hook(factors)))
            if isinstance(module, InnerProduct):
                scope.enter_context(module.register_forward_pre_hook(_make_halving_hook(factors)))
        for layer, attentions, feed_forward in _list_halves(model, family):
            _hold_activation(feed_forward, layer, factors, rules, scope)
            products = []
            if rules.attention == "shared":
                products = [attention.output for attention in attentions]
            if feed_forward.is_gated and rules.gate == "both":
                products.append(feed_forward.out)
            # The projection behind a product is the first module that sees it.
            for path in products:
                scope.enter_context(get_module(layer, path).register_forward_pre_hook(_make_halving_hook(factors)))
        if rules.activations:
            _hold_head_activation(model, factors, scope)
        if rules.attention != "free" or rules.temperature != 1:
            scope.enter_context(_Softmax(factors, rules))
        yield


def _list_halves(
    model: PreTrainedModel, family: Family
) -> Iterator[tuple[nn.Module, tuple[Attention, ...], FeedForward]]:
    """Yield every layer with its attentions and its feed-forward."""
    decoder = family.decoder
    decoding = () if decoder is None else tuple(get_module(get_base_model(model), decoder.layers).children())
    # A layer that runs many times (ALBERT) gets its hooks once.
    for layer in dict.fromkeys(get_layers(model)):
        if decoder is not None and layer in decoding:
            yield layer, (decoder.attention, decoder.cross), decoder.feed_forward
        else:
            yield layer, (family.attention,), family.feed_forward


def _make_halving_hook(factors: HeldFactors) -> Callable[[nn.Module, Any], tuple[Tensor, ...]]:
    return lambda _, inputs: (factors.straight_through(inputs[0], inputs[0], 0.5), *inputs[1:])


def _make_norm_hook(factors: HeldFactors) -> Callable[[nn.Module, Any, Tensor], Tensor | None]:
    def hold_scale(module: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
        norm = to_norm(module)
        scale = factors.take(lambda: norm.scale(inputs[0]))
        if factors.record:
            return None
        return norm.apply_with_scale(inputs[0], scale).to(output.dtype)

    return hold_scale


def _hold_activation(
    feed_forward: FeedForward, layer: nn.Module, factors: HeldFactors, rules: DerivativeRules, scope: ExitStack
) -> None:
    """Hold the activation at its slope f(x)/x; an activation that is a held gate as a whole."""
    is_held_gate = feed_forward.is_gated and rules.gate == "value"
    if not (is_held_gate or rules.activations):
        return
    activation = get_module(layer, feed_forward.activation)
    slope = activations.zero_origin_slope(activations.get_activation_name(activation))

    def hold(module: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
        held = factors.take(lambda: output if is_held_gate else slope(inputs[0]))
        if factors.record:
            return None
        return held if is_held_gate else inputs[0] * held

    scope.enter_context(activation.register_forward_hook(hold))


def _hold_head_activation(model: PreTrainedModel, factors: HeldFactors, scope: ExitStack) -> None:
    """Hold the slope of the head's activation."""
    head = get_architecture(model).head
    if head.dense is None:
        return
    slope = activations.zero_origin_slope(get_head_activation(model))
    heights: list[Tensor] = []

    def record_height(module: nn.Module, inputs: Any, output: Tensor) -> None:
        heights.append(output)

    def replace_activation(module: nn.Module, inputs: Any) -> Any:
        height = heights.pop()
        held = factors.take(lambda: slope(height))
        return None if factors.record else (height * held,)

    # Many heads call their activation as a function, without a module that takes a hook. So its input is recorded
    # after the dense layer, and its output replaced before the next module.
    scope.enter_context(get_head_module(model, head.dense).register_forward_hook(record_height))
    after = get_head_module(model, head.norm or head.output)
    scope.enter_context(after.register_forward_pre_hook(replace_activation))
