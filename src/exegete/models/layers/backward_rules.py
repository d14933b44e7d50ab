"""Backward passes by other rules than the derivative's: held norms, activations and attention, products shared out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from exegete.errors import ExegeteError, unknown
from exegete.models.families import Attention, Family, FeedForward
from exegete.models.layers import activations
from exegete.models.layers.architecture import get_architecture, get_head_module, get_layers, get_module
from exegete.models.layers.head_activation import get_head_activation
from exegete.models.layers.layer_parts import is_norm_layer, to_norm
from exegete.models.layers.similarity import InnerProduct

SOFTMAX = frozenset({torch.softmax, Tensor.softmax, nn.functional.softmax})
Gate = Literal["value", "both", "free"]
AttentionRule = Literal["held", "shared", "free"]


@dataclass(frozen=True, slots=True)
class DerivativeRules:
    """Where derivatives depart from the ordinary ones; `free` and False leave a part its own.

    Args:
        attention: `held`, probabilities are constants; `shared`, either factor of its two products gets half of what
            comes back (values ½, queries and keys ¼), through the softmax's own derivative.
        gate: the product in gated feed-forwards: `value` holds the gate, `both` gives either factor half.
        norms: hold the scales of LayerNorm and RMSNorm; LayerNorm's mean stays free.
        activations: hold the slopes f(x)/x of activations, those of the head too.
        temperature: T of the softmax whose derivative s_T ⊙ (g − ⟨g, s_T⟩) attention has, without the factor 1/T.
    """

    attention: AttentionRule = "held"
    gate: Gate = "value"
    norms: bool = True
    activations: bool = True
    temperature: float = 1.0

    def __post_init__(self) -> None:
        for name, kinds in (("attention", AttentionRule), ("gate", Gate)):
            if getattr(self, name) not in get_args(kinds):
                raise unknown(name, getattr(self, name), get_args(kinds))
        if self.temperature <= 0:
            raise ExegeteError(f"expected a temperature above 0, got {self.temperature}")


LINEAR_RULES = DerivativeRules()
"""The network made linear at one input."""


@dataclass
class HeldFactors:
    """The factors held constant in a forward pass, in the order in which they are met.

    By default each factor is measured where it is met, and no derivative goes through it. `record`: nothing is held,
    but the factors of this ordinary pass are kept, with their graph. `replay`: the network is held at factors kept
    before, so that derivatives with respect to the weights see how the factors depend on them.
    """

    record: bool = False
    replay: Iterator[Tensor] | None = None
    kept: list[Tensor] = field(default_factory=list)

    def take(self, measure: Callable[[], Tensor]) -> Tensor:
        """The next factor, measured here or replayed."""
        if self.replay is not None:
            return next(self.replay)
        if not self.record:
            with torch.no_grad():
                return measure().detach()
        self.kept.append(measure())
        return self.kept[-1]

    def straight_through(self, value: Tensor, source: Tensor, factor: float) -> Tensor:
        """`value`, with `factor` times the derivative of `source`, which has its shape."""
        if self.replay is None and not self.record:
            return _straight_through(value.detach(), source, factor)
        held, point = self.take(lambda: value), self.take(lambda: source)
        return value if self.record else held + factor * (source - point)

    def replayed(self) -> HeldFactors:
        """For a second pass, held at what this one met."""
        return HeldFactors(replay=iter(self.kept))


class _StraightThrough(torch.autograd.Function):
    """A value with a multiple of another tensor's derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor, source: Tensor, factor: float) -> Tensor:
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
    """Attention's rule, applied where a softmax is computed, whatever the family."""

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
            if temperature < 1:  # masked logits stay numbers
                logits = logits.clamp(min=torch.finfo(logits.dtype).min)
            smooth = func(logits, *others, **kwargs)
        return self.factors.straight_through(
            weights, smooth, temperature / 2 if self.rules.attention == "shared" else temperature
        )


@contextmanager
def apply_backward_rules(
    model: PreTrainedModel, factors: HeldFactors, rules: DerivativeRules = LINEAR_RULES
) -> Iterator[None]:
    """Inside the block the model answers as ever, but its derivatives follow the rules.

    With `LINEAR_RULES` the answer is affine in the representations that enter any layer. Attention has to be computed
    with an explicit softmax (`Capture(differentiable_twice=True)`). Nothing of it is left on the model after the block.

    Args:
        model: of a family with a record.
        factors: what to do with the numbers that are held.
        rules: where derivatives depart from the ordinary ones.
    """
    found = get_architecture(model)
    with ExitStack() as scope:
        for module in model.modules() if rules.norms else ():
            if is_norm_layer(module):
                scope.enter_context(module.register_forward_hook(_norm_hook(factors)))
        for module in model.modules():
            if isinstance(module, InnerProduct):
                scope.enter_context(module.register_forward_pre_hook(_halving_hook(factors)))
        for layer, attentions, wide in _halves(model, found):
            _activation(wide, layer, factors, rules, scope)
            products = [each.output for each in attentions] if rules.attention == "shared" else []
            products += [wide.out] if wide.is_gated and rules.gate == "both" else []
            for path in products:
                scope.enter_context(get_module(layer, path).register_forward_pre_hook(_halving_hook(factors)))
        if rules.activations:
            _head(model, factors, scope)
        if rules.attention != "free" or rules.temperature != 1:
            scope.enter_context(_Softmax(factors, rules))
        yield


def _halves(model: PreTrainedModel, found: Family) -> Iterator[tuple[nn.Module, tuple[Attention, ...], FeedForward]]:
    """Every layer with its attentions and its feed-forward."""
    after = found.decoder
    decoding = () if after is None else tuple(get_module(model.base_model, after.layers).children())
    for layer in dict.fromkeys(get_layers(model)):
        if after is not None and layer in decoding:
            yield layer, (after.attention, after.cross), after.feed_forward
        else:
            yield layer, (found.attention,), found.feed_forward


def _halving_hook(factors: HeldFactors) -> Callable[[nn.Module, Any], tuple[Tensor, ...]]:
    return lambda _, inputs: (factors.straight_through(inputs[0], inputs[0], 0.5), *inputs[1:])


def _norm_hook(factors: HeldFactors) -> Callable[[nn.Module, Any, Tensor], Tensor | None]:
    def after(module: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
        numbers = to_norm(module)
        scale = factors.take(lambda: numbers.scale(inputs[0]))
        return None if factors.record else numbers.frozen(inputs[0], scale).to(output.dtype)

    return after


def _activation(
    found: FeedForward, layer: nn.Module, factors: HeldFactors, rules: DerivativeRules, scope: ExitStack
) -> None:
    """The activation of the feed-forward, held at its slope, or as a whole where it is a gate that is held."""
    whole = found.is_gated and rules.gate == "value"
    if not (whole or rules.activations):
        return
    activation = get_module(layer, found.activation)
    slope = activations.get_slope(activations.get_activation_name(activation))

    def after(module: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
        held = factors.take(lambda: output if whole else slope(inputs[0]))
        if factors.record:
            return None
        return held if whole else inputs[0] * held

    scope.enter_context(activation.register_forward_hook(after))


def _head(model: PreTrainedModel, factors: HeldFactors, scope: ExitStack) -> None:
    """Holds the slope of the head's activation: its output is corrected where the next layer takes it."""
    head = get_architecture(model).head
    if head.dense is None:
        return
    slope = activations.get_slope(get_head_activation(model))
    dense: list[Tensor] = []

    def after(module: nn.Module, inputs: Any, output: Tensor) -> None:
        dense.append(output)

    def before(module: nn.Module, inputs: Any) -> Any:
        height = dense.pop()
        steepness = factors.take(lambda: slope(height))
        return None if factors.record else (height * steepness,)

    scope.enter_context(get_head_module(model, head.dense).register_forward_hook(after))
    scope.enter_context(get_head_module(model, head.norm or head.output).register_forward_pre_hook(before))
