"""Backward passes by rules other than the ordinary derivative: held norms, activations, attention; split products."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from expound.models.layers.architecture import get_embedding
from expound.models.layers.held_factors import LINEAR_RULES, DerivativeRules, HeldFactors
from expound.models.layers.layer_parts import is_norm_layer
from expound.models.layers.operations import Explained, OperationRules, is_activation
from expound.models.layers.origins import mark_input


@contextmanager
def apply_backward_rules(
    model: PreTrainedModel,
    factors: HeldFactors,
    rules: DerivativeRules = LINEAR_RULES,
    explained: Explained | None = None,
) -> Iterator[None]:
    """Let derivatives follow the rules inside the block; the model's predictions stay the same.

    With `LINEAR_RULES` the prediction is affine in the representations that enter any layer, if every function between
    is known (see `prove_rules`). Attention has to be computed by torch's functions
    (`Capture(differentiable_twice=True)`).

    Args:
        model: any Hugging Face model.
        factors: how the held factors are obtained.
        rules: the rules.
        explained: filled with what a proof needs.
    """
    is_frozen = not any(weight.requires_grad for weight in model.parameters())
    operations = OperationRules(factors, rules, is_frozen=is_frozen, explained=explained)

    def mark(module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            mark_input(output)

    with ExitStack() as scope:
        scope.enter_context(get_embedding(model).register_forward_hook(mark))
        for module in model.modules():
            if is_activation(module):
                scope.enter_context(_count_as_one(module, operations))
            elif not rules.norms and is_norm_layer(module):
                scope.enter_context(_leave_alone(module, operations))
        scope.enter_context(operations)
        yield


@contextmanager
def _count_as_one(module: Any, operations: OperationRules) -> Iterator[None]:
    """Let an activation count as one function, however many operations it has."""
    own, before = module.forward, module.__dict__.get("forward")
    module.forward = lambda x: operations.run_activation(module, own, x)
    try:
        yield
    finally:
        if before is None:
            del module.__dict__["forward"]
        else:
            # Accelerate's hooks also replace `forward` on the instance.
            module.forward = before


@contextmanager
def _leave_alone(module: nn.Module, operations: OperationRules) -> Iterator[None]:
    """Let everything inside a module keep its derivative."""

    def begin(module: nn.Module, inputs: Any) -> None:
        operations.is_muted = True

    def end(module: nn.Module, inputs: Any, output: Tensor) -> None:
        operations.is_muted = False
        mark_input(output)

    with module.register_forward_pre_hook(begin), module.register_forward_hook(end):
        yield
