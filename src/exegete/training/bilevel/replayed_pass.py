"""A forward-mode pass over what an ordinary pass has computed before: linear maps only add their tangents."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.functional import dropout, linear
from torch.overrides import TorchFunctionMode


class RecordedOutput(NamedTuple):
    """Where a linear map's weight lies, and what the map gave."""

    weight: int
    output: Tensor


class RecordedDropout(NamedTuple):
    """The noise that dropout multiplied by, and the random state after it was drawn."""

    noise: Tensor
    after: Tensor


class RecordedPass(TorchFunctionMode):
    """Keeps what linear maps give inside the block and what dropout draws (on the CPU), in the order of their calls."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs: deque[RecordedOutput] = deque()
        self.dropped: deque[RecordedDropout] = deque()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Calls the function, and records dropout's noise and the output of linear maps."""
        given = kwargs or {}
        if func is dropout and (share := _dropout_rate(*args, **given)):
            inputs: Tensor = args[0] if args else given["input"]
            noise = torch.empty_like(inputs).bernoulli_(1 - share).div_(1 - share)
            self.dropped.append(RecordedDropout(noise, torch.get_rng_state()))
            return inputs * noise
        result = func(*args, **given)
        if func is linear:
            self.outputs.append(RecordedOutput(_weight(*args, **given).data_ptr(), result.detach()))
        return result


class ReplayedPass(TorchFunctionMode):
    """Inside the block linear maps of dual numbers take their primal from an earlier pass, and dropout what it drew.

    What is taken is forgotten. The pass has to go the same way as that one, with the same weights, inputs and random
    numbers, so that a primal is what it would be if it were computed again; it may end earlier. Two products a map
    instead of three. A map that is not next among the earlier ones is computed as ever.
    """

    def __init__(self, before: RecordedPass) -> None:
        super().__init__()
        self.outputs, self.dropped = before.outputs, before.dropped

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Calls it, or gives what it would."""
        given = kwargs or {}
        if func is linear and self.outputs and self.outputs[0].weight == _weight(*args, **given).data_ptr():
            return _linear_dual(self.outputs.popleft().output, *args, **given)
        if func is dropout and self.dropped and _dropout_rate(*args, **given):
            noise, after = self.dropped.popleft()
            torch.set_rng_state(after)
            return (args[0] if args else given["input"]) * noise
        return func(*args, **given)


def _weight(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The weight of a linear map, without its tangent."""
    primal: Tensor = forward_ad.unpack_dual(weight).primal
    return primal


def _dropout_rate(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> float:
    """The rate of a dropout whose noise is drawn on the CPU, else 0: other devices draw in kernels of their own."""
    usual = training and not inplace and 0 < p < 1 and input.device.type == "cpu" and input.numel()
    return p if usual else 0.0


def _linear_dual(primal: Tensor, inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The output with the tangent ẋ·Wᵀ + x·Ẇᵀ + ḃ; without one where nothing has a tangent."""
    (x, dx), (w, dw) = forward_ad.unpack_dual(inputs), forward_ad.unpack_dual(weight)
    shift = None if bias is None else forward_ad.unpack_dual(bias).tangent
    tangent = None
    if dw is not None:
        tangent = linear(x, dw, shift)
    elif shift is not None:
        tangent = shift.expand_as(primal).contiguous()
    if dx is not None:
        tangent = linear(dx, w) if tangent is None else _add_product(tangent, dx, w)
    if tangent is None:
        return primal
    dual: Tensor = forward_ad.make_dual(primal, tangent.to(primal.dtype))
    return dual


def _add_product(total: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
    """Adds inputs·weightᵀ in place, in the precision that autocast chose for the other product."""
    inputs, weight = inputs.to(total.dtype), weight.to(total.dtype)
    total.view(-1, total.shape[-1]).addmm_(inputs.reshape(-1, inputs.shape[-1]), weight.t())
    return total
