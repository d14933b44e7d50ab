"""DeepLIFT's Rescale rule in any network: a second pass whose derivatives are finite slopes to a recorded first one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from expound.errors import ExpoundError
from expound.models.batch import to_float32
from expound.models.layers.activations import ELEMENTWISE
from expound.models.layers.held_factors import HeldFactors
from expound.models.layers.layer_parts import Norm, is_norm_layer, to_norm

PRODUCTS = ("mul", "multiply", "matmul", "bmm", "einsum")
QUOTIENTS = ("div", "divide", "true_divide")
ACTIVATION_MODULES = ("transformers.activations", "torch.nn.modules.activation")
SERIES_STEP = 1e-2
"""The difference of logarithms below which the logarithmic mean is computed by its series, to 1e-17."""
NO_ACTIVATIONS = (nn.MultiheadAttention, nn.Softmax, nn.Softmin, nn.Softmax2d, nn.LogSoftmax)


class RescaleRule(TorchFunctionMode):
    """Records the operands of a pass at the baseline, then runs a pass at the input with finite slopes as derivatives.

    With y₀ = f(u₀) at the baseline, the derivative m of every function is chosen so that m·(u − u₀) = y − y₀, hence the
    contributions ⟨m, E − E₀⟩ sum to f(E) − f(E₀) (Shrikumar et al. 2017):

    - a function of one number: (y − y₀) / (u − u₀); its derivative in the middle where u ≈ u₀;
    - a product a·b: the mean of both orders, (b + b₀)/2 for a and (a + a₀)/2 for b, as in DeepSHAP;
    - a quotient, LayerNorm and RMSNorm: the same of numerator = y · denominator;
    - softmax: diag(l) − l lᵀ/Σl, its Jacobian with the logarithmic mean l of y and y₀ in the place of y.

    Sums and projections are linear, and keep their derivatives, as do functions that are not known here.

    Args:
        model: its activation modules and norms count as one function each.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self.recorded: deque[Tensor] = deque()
        self.is_recording = True
        self.is_inside_module = False

    @contextmanager
    def record(self) -> Iterator[None]:
        """Record the operands of what is computed inside the block, at the baseline."""
        self.is_recording = True
        with torch.no_grad(), self._apply():
            yield

    @contextmanager
    def replay(self) -> Iterator[None]:
        """Let derivatives inside the block be the slopes to what was recorded.

        Raises:
            ExpoundError: the model does not compute the same at both points, as where experts are chosen by the input.
        """
        self.is_recording = False
        with torch.enable_grad(), self._apply():
            yield
        if self.recorded:
            raise _different_operations_error()

    @contextmanager
    def _apply(self) -> Iterator[None]:
        with ExitStack() as scope:
            for module in self.model.modules():
                surrogate = self._find_module_rule(module)
                if surrogate is not None:
                    scope.enter_context(module.register_forward_pre_hook(self._enter_module))
                    scope.enter_context(module.register_forward_hook(partial(self._leave_module, surrogate)))
            scope.enter_context(self)
            yield

    def _find_module_rule(self, module: nn.Module) -> Callable[[Tensor, Tensor], Tensor] | None:
        """Return the rule of a module that counts as one function, however many operations it consists of."""
        if type(module).__module__ in ACTIVATION_MODULES and not isinstance(module, NO_ACTIVATIONS):
            return partial(_rescale, module.forward)
        if is_norm_layer(module):
            return partial(_rescale_norm, to_norm(module))
        return None

    def _enter_module(self, module: nn.Module, inputs: Any) -> None:
        self.is_inside_module = True

    def _leave_module(self, surrogate: Callable[..., Tensor], module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        replaced = self._use_slopes(output, inputs[:1], surrogate)
        self.is_inside_module = False
        return replaced

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        value = func(*args, **kwargs)
        operands = [x for x in args if isinstance(x, Tensor) and x.is_floating_point()]
        if self.is_inside_module or not operands:
            return value
        name = getattr(func, "__name__", "")
        if name in PRODUCTS and len(operands) == 2:
            equation = [x for x in args if isinstance(x, str)]
            return self._use_slopes(value, operands, lambda *factors: _share(func, equation, *factors))
        if name in QUOTIENTS and len(operands) == 2:
            return self._use_slopes(value, operands, _share_quotient)
        if name in ELEMENTWISE:
            return self._use_slopes(
                value, operands[:1], lambda x, x0: _rescale(lambda at: func(at, *args[1:], **kwargs), x, x0)
            )
        if name in ("softmax", "log_softmax", "logsumexp"):
            dim = kwargs["dim"] if "dim" in kwargs else args[1]
            return self._use_slopes(value, operands[:1], lambda x, x0: _rescale_softmax(name, x, x0, dim))
        return value

    def _use_slopes(self, value: Tensor, operands: Sequence[Tensor], surrogate: Callable[..., Tensor]) -> Tensor:
        """Record the operands, or return the value with the derivative of the surrogate of operands and baselines."""
        if self.is_recording:
            self.recorded.extend(operands)
            return value
        if len(self.recorded) < len(operands):
            raise _different_operations_error()
        baselines = [self.recorded.popleft() for _ in operands]
        if any(baseline.shape != operand.shape for baseline, operand in zip(baselines, operands, strict=True)):
            raise _different_operations_error()
        return HeldFactors().straight_through(value, surrogate(*operands, *baselines).to(value.dtype), 1.0)


def _different_operations_error() -> ExpoundError:
    return ExpoundError(
        "expected a model that computes the same at input and baseline, but this one chooses its parts by the input: "
        "use deep_lift?rule=captum or integrated_gradients"
    )


def _rescale(function: Callable[[Tensor], Tensor], x: Tensor, x0: Tensor) -> Tensor:
    """Return x times the slope of a function of one number between x0 and x."""
    point, point0 = to_float32(x.detach()), to_float32(x0)
    step = point - point0
    # The quotient loses digits as the step shrinks, the derivative in the middle is wrong by its square.
    is_small = step.abs() < torch.finfo(point.dtype).eps ** (1 / 3)
    with torch.enable_grad():
        middle = ((point + point0) / 2).requires_grad_()
        (derivative,) = torch.autograd.grad(function(middle).sum(), middle)
    quotient = (function(point) - function(point0)) / torch.where(is_small, torch.ones_like(step), step)
    return x * torch.where(is_small, derivative, quotient)


def _share(
    product: Callable[..., Tensor], equation: Sequence[str], a: Tensor, b: Tensor, a0: Tensor, b0: Tensor
) -> Tensor:
    """Return a surrogate with the finite slopes of a·b: by a at the mean of b and b₀, by b at the mean of a and a₀."""
    return product(*equation, a, (b.detach() + b0) / 2) + product(*equation, (a.detach() + a0) / 2, b)


def _share_quotient(a: Tensor, b: Tensor, a0: Tensor, b0: Tensor) -> Tensor:
    """Return a surrogate with the finite slopes of y = a/b that follow from the slopes of a = y·b."""
    point = b.detach()
    return (a - (a.detach() / point + a0 / b0) / 2 * b) * 2 / (point + b0)


def _rescale_norm(norm: Norm, x: Tensor, x0: Tensor) -> Tensor:
    """Return a surrogate with the finite slopes of a norm: its Jacobian at the means of input, deviation and output.

    As c = y·σ for the centered input c, (c − c₀) = σ̄ (y − y₀) + ȳ (σ − σ₀), and σ² is a mean of squares. The product
    c·(1/σ) would be exact too, but its slopes grow without bound as the baseline's σ₀ approaches 0.
    """
    unweighted = replace(norm, weight=None, bias=None)
    point, point0 = to_float32(x.detach()), to_float32(x0)
    deviation = (1 / norm.scale(point) + 1 / norm.scale(point0)) / 2
    output = (unweighted(point) + unweighted(point0)) / 2
    centered, middle = unweighted.apply_without_scale(x), unweighted.apply_without_scale((point + point0) / 2)
    slopes = (centered - output * (middle * centered).mean(-1, keepdim=True) / deviation) / deviation
    return slopes if norm.weight is None else slopes * norm.weight.detach()


def _rescale_softmax(name: str, x: Tensor, x0: Tensor, dim: int) -> Tensor:
    """Return a surrogate with the finite slopes of `softmax`, `log_softmax` or `logsumexp`, whichever `name` says."""
    log_p, log_p0 = (to_float32(at).log_softmax(dim) for at in (x.detach(), x0))
    step, total = log_p - log_p0, log_p.exp() + log_p0.exp()
    is_small = step.abs() < SERIES_STEP
    quotient = (log_p.exp() - log_p0.exp()) / torch.where(is_small, torch.ones_like(step), step)
    series = ((log_p + log_p0) / 2).exp() * (1 + step.square() / 24 + step.pow(4) / 1920)
    # Where both are 0 the logits are masked, perhaps by −∞.
    means = torch.where(total > 0, torch.where(is_small, series, quotient), torch.zeros_like(total))
    # Since Σ means·Δ log p = Σ Δp = 0, these weights are exact for the logarithm of the sum.
    weights = means / means.sum(dim, keepdim=True)
    log_sum = (weights * x).sum(dim, keepdim=True)
    if name == "logsumexp":
        return log_sum
    return x - log_sum if name == "log_softmax" else means * (x - log_sum)
