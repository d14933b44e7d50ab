"""Backward passes by rules other than the ordinary derivative, and the proof that they explain a whole answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from math import isqrt
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from expound.models.batch import Batch, Capture
from expound.models.layers.architecture import get_embedding
from expound.models.layers.held_factors import LINEAR_RULES, DerivativeRules, HeldFactors
from expound.models.layers.layer_parts import is_norm_layer
from expound.models.layers.operations import Explained, OperationRules, is_activation, mark_input
from expound.models.state import replace_forward


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
    embedding, marking = get_embedding(model), ExitStack()

    def begin(module: nn.Module, inputs: Any) -> None:
        # Registered per pass, as the layer's last hook: another one may put other embeddings in place of its own.
        marking.enter_context(embedding.register_forward_hook(mark))

    def mark(module: nn.Module, inputs: Any, output: Any) -> None:
        # Later calls of a pass are no words: GPT-2 looks up token types in the same layer.
        if isinstance(output, Tensor):
            marking.close()
            mark_input(output)

    with ExitStack() as scope, marking:
        scope.enter_context(model.register_forward_pre_hook(begin))
        for module in model.modules():
            if is_activation(module):
                # It counts as one function, however many operations it has.
                run = partial(operations.run_activation, module, module.forward)
                scope.enter_context(replace_forward(module, run))
            elif not rules.norms and is_norm_layer(module):
                scope.enter_context(_leave_alone(module, operations))
        scope.enter_context(operations)
        yield


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


CAPTURE = Capture(differentiable_twice=True)


def prove_rules(model: Any, batch: Batch, answer: Tensor, rules: DerivativeRules, tolerance: float) -> str:
    """Return which function the rules do not explain, or an empty string.

    Under rules the prediction z is a sum of products ⟨x, ∂z/∂x⟩ over the input embeddings and everything that is added
    on the way (biases, positions, token types), if and only if no function that is not linear kept its own derivative.
    With `attention="shared"` the same is asked of attention's logits, and all softmaxes are held.

    Args:
        model: an explained model, in evaluation mode and with fixed weights.
        batch: one example.
        answer: the model's own logits, without rules.
        rules: the rules.
        tolerance: the share of the sum of all magnitudes that counts as rounding.
    """
    with torch.enable_grad():
        embeddings, explained, logits = _run(model, batch, rules, keep_outputs=False)
        target = model.resolve_target(batch, None, logits.detach())
        score = model.task.logit(logits, target).sum()
        plain = float(model.task.logit(answer.to(logits.dtype), target).sum())
        missing, size = _measure_rest(_project(explained, score), embeddings, explained)
        own = float(score.detach())
        if abs(own - plain) > tolerance * max(size, abs(plain)):
            return f"a pass under its rules gives {own:.6g} where the model gives {plain:.6g}"
        if missing <= tolerance * size:
            return ""
        return _describe_first(model, batch, rules, tolerance, missing / size)


def _run(model: Any, batch: Batch, rules: DerivativeRules, *, keep_outputs: bool) -> tuple[Tensor, Explained, Tensor]:
    """Return the embeddings of a pass under rules, what it has to explain, and its logits."""
    embeddings = mark_input(model.embed(batch).detach().requires_grad_())
    explained = Explained(keep_outputs)
    with apply_backward_rules(model.model, HeldFactors(), rules, explained), ExitStack() as scope:
        if keep_outputs:
            for name, module in model.model.named_modules():
                scope.enter_context(_follow_calls(name, module, explained))
        logits = model.run_pass(batch, embeddings, CAPTURE).logits
    return embeddings, explained, logits


def _follow_calls(name: str, module: nn.Module, explained: Explained) -> ExitStack:
    """Keep the name of the innermost module that runs."""

    def begin(module: nn.Module, inputs: Any) -> None:
        explained.modules.append(name)

    def end(module: nn.Module, inputs: Any, output: Any) -> None:
        explained.modules.pop()

    scope = ExitStack()
    scope.enter_context(module.register_forward_pre_hook(begin))
    scope.enter_context(module.register_forward_hook(end))
    return scope


def _project(explained: Explained, score: Tensor) -> Tensor:
    """Return the score plus a projection of attention's logits, without the logits of masked positions."""
    for logits in explained.attention_logits:
        seen = logits.detach().softmax(-1) > 0
        score = score + logits.masked_fill(~seen, 0).sum()
    return score


def _measure_rest(value: Tensor, embeddings: Tensor, explained: Explained) -> tuple[float, float]:
    """Return what of a value is not explained, and the sum of all magnitudes."""
    points = [embeddings, *explained.constants]
    slopes = torch.autograd.grad(value, points, allow_unused=True, retain_graph=True)
    rest, size = value.detach().double(), value.detach().double().abs()
    for point, slope in zip(points, slopes, strict=True):
        if slope is not None:
            # The lowest number of a mask times a slope of 0 is 0, also if the number is −∞.
            share = torch.where(slope == 0, 0, point.detach().double() * slope.double())
            rest, size = rest - share.sum(), size + share.abs().sum()
    return float(rest.abs()), float(size)


def _describe_first(model: Any, batch: Batch, rules: DerivativeRules, tolerance: float, share: float) -> str:
    """Return the name of the first function whose result is not explained, and of its module."""
    embeddings, explained, _ = _run(model, batch, rules, keep_outputs=True)

    def is_explained(output: Tensor) -> bool:
        weights = torch.linspace(1, 2, output.numel(), dtype=output.dtype, device=output.device).view_as(output)
        finite = torch.where(output.detach().abs() < torch.finfo(output.dtype).max / 2, weights, 0)
        missing, size = _measure_rest((torch.where(finite == 0, 0, output) * finite).sum(), embeddings, explained)
        return missing <= tolerance * size

    outputs = explained.outputs
    first = _find_first([output for _, _, output in outputs], is_explained)
    if first is None:
        return f"{share:.1%} of its prediction comes from functions that its rules do not explain"
    module, name, _ = outputs[first]
    return f"the rules do not explain what {name!r} computes in {module or 'the model'} ({share:.1%} of the prediction)"


def _find_first(outputs: Sequence[Tensor], is_explained: Any) -> int | None:
    """Return the index of the first output that is not explained, by steps, since each test takes a backward pass."""
    step = max(1, isqrt(len(outputs)))
    for stop in range(step, len(outputs) + step, step):
        if not is_explained(outputs[min(stop, len(outputs)) - 1]):
            for index in range(stop - step, min(stop, len(outputs))):
                if not is_explained(outputs[index]):
                    return index
    return None
