"""The network made linear at one input: attention, norms' scales and activations' slopes are held where they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from exegete.errors import unknown
from exegete.models import activations
from exegete.models.architecture import architecture_of, head_part, layers, part
from exegete.models.layer_parts import is_norm, norm

SOFTMAX = frozenset({torch.softmax, Tensor.softmax, nn.functional.softmax})
Gate = Literal["value", "both"]


@dataclass
class Factors:
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

    def replayed(self) -> Factors:
        """For a second pass, held at what this one met."""
        return Factors(replay=iter(self.kept))


class _Softmax(TorchFunctionMode):
    """Attention probabilities are factors, taken where a softmax is computed, whatever the family."""

    def __init__(self, factors: Factors) -> None:
        super().__init__()
        self.factors = factors

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return self.factors.take(lambda: result) if func in SOFTMAX else result


@contextmanager
def frozen(model: PreTrainedModel, factors: Factors, gate: Gate = "value") -> Iterator[None]:
    """Inside the block the model answers as ever, but its derivatives are those of the network held at `factors`.

    The answer is then affine in the representations that enter any layer. Attention has to be computed with an explicit
    softmax (`Capture(differentiable_twice=True)`). Nothing of it is left on the model after the block.

    Args:
        model: of a family with an `Architecture`.
        factors: what to do with the factors.
        gate: in gated feed-forwards, `value` holds the gate and keeps the value linear; `both` gives each of the two
            half of the product (its derivatives with respect to the weights are not true ones).
    """
    if gate not in ("value", "both"):
        raise unknown("gate", gate, ("value", "both"))
    with ExitStack() as scope:
        for module in model.modules():
            if is_norm(module):
                scope.enter_context(module.register_forward_hook(_norm_hook(factors)))
        for layer in dict.fromkeys(layers(model)):
            _feed_forward(model, layer, factors, gate, scope)
        _head(model, factors, scope)
        scope.enter_context(_Softmax(factors))
        yield


def _norm_hook(factors: Factors) -> Callable[[nn.Module, Any, Tensor], Tensor | None]:
    def after(module: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
        numbers = norm(module)
        scale = factors.take(lambda: numbers.scale(inputs[0]))
        return None if factors.record else numbers.frozen(inputs[0], scale).to(output.dtype)

    return after


def _feed_forward(model: PreTrainedModel, layer: nn.Module, factors: Factors, gate: Gate, scope: ExitStack) -> None:
    found = architecture_of(model)
    activation = part(layer, found.activation)
    slope = activations.slope(activations.name_of(activation))
    whole = found.gated and gate == "value"

    def after(module: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
        if whole:
            held = factors.take(lambda: output)
            return None if factors.record else held
        steepness = factors.take(lambda: slope(inputs[0]))
        return None if factors.record else inputs[0] * steepness

    scope.enter_context(activation.register_forward_hook(after))
    if found.gated and not whole:
        out = part(layer, found.feed_forward[1])
        scope.enter_context(out.register_forward_pre_hook(lambda _, inputs: ((inputs[0] + inputs[0].detach()) / 2,)))


def _head(model: PreTrainedModel, factors: Factors, scope: ExitStack) -> None:
    """Holds the slope of the head's activation: its output is corrected where the next layer takes it."""
    head = architecture_of(model).head
    if head.dense is None:
        return
    slope = activations.slope(activations.head_activation(model.config, head.activation))
    dense: list[Tensor] = []

    def after(module: nn.Module, inputs: Any, output: Tensor) -> None:
        dense.append(output)

    def before(module: nn.Module, inputs: Any) -> Any:
        height = dense.pop()
        steepness = factors.take(lambda: slope(height))
        return None if factors.record else (height * steepness,)

    scope.enter_context(head_part(model, head.dense).register_forward_hook(after))
    scope.enter_context(head_part(model, head.norm or head.output).register_forward_pre_hook(before))
