"""A forward-mode pass that takes the outputs of linear maps from an earlier ordinary pass."""

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
    """The memory address of a linear map's weight, and the map's output."""

    weight: int
    output: Tensor


class RecordedDropout(NamedTuple):
    """The noise that dropout multiplied by, and the random state after drawing it."""

    noise: Tensor
    after: Tensor


class RecordedPass(TorchFunctionMode):
    """Records the outputs of linear maps and the noise of dropout (on the CPU) inside the block, in call order."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs: deque[RecordedOutput] = deque()
        self.dropped: deque[RecordedDropout] = deque()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the function, and record dropout's noise and the outputs of linear maps."""
        kwargs = kwargs or {}
        rate = _dropout_rate(*args, **kwargs) if func is dropout else 0.0
        if rate:
            # torch's dropout does not return its noise: draw it in the same way, from the same generator.
            inputs: Tensor = args[0] if args else kwargs["input"]
            noise = torch.empty_like(inputs).bernoulli_(1 - rate).div_(1 - rate)
            self.dropped.append(RecordedDropout(noise, torch.get_rng_state()))
            return inputs * noise
        result = func(*args, **kwargs)
        if func is linear:
            self.outputs.append(RecordedOutput(_weight(*args, **kwargs).data_ptr(), result.detach()))
        return result


class ReplayedPass(TorchFunctionMode):
    """Takes the primal outputs of linear maps and the noise of dropout inside the block from an earlier pass.

    The pass must repeat the recorded one, with the same weights, inputs and random numbers; it may end earlier. Each
    linear map then costs two matrix products instead of three. A map that was not recorded next is computed as usual.
    Recordings are released once they are used.
    """

    def __init__(self, before: RecordedPass) -> None:
        super().__init__()
        self.outputs, self.dropped = before.outputs, before.dropped

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the function, or compute its output from the recording."""
        kwargs = kwargs or {}
        # The address identifies the map: a dual number's primal shares the memory of the weight.
        if func is linear and self.outputs and self.outputs[0].weight == _weight(*args, **kwargs).data_ptr():
            return _linear_dual(self.outputs.popleft().output, *args, **kwargs)
        if func is dropout and self.dropped and _dropout_rate(*args, **kwargs):
            noise, after = self.dropped.popleft()
            # Whatever draws next must see the generator as if dropout had drawn.
            torch.set_rng_state(after)
            return (args[0] if args else kwargs["input"]) * noise
        return func(*args, **kwargs)


def _weight(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the weight of a linear map, without its tangent."""
    primal: Tensor = forward_ad.unpack_dual(weight).primal
    return primal


def _dropout_rate(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> float:
    """Return the rate of a dropout whose noise can be recorded, else 0."""
    # Other devices draw the noise inside fused kernels, from which it cannot be reproduced.
    is_recordable = training and not inplace and 0 < p < 1 and input.device.type == "cpu" and input.numel()
    return p if is_recordable else 0.0


def _linear_dual(primal: Tensor, inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the output with the tangent ẋ·Wᵀ + x·Ẇᵀ + ḃ, or without one if no input has a tangent."""
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
    """Add inputs·weightᵀ in place."""
    # `addmm_` is not autocast: use the precision that autocast chose for the other product.
    inputs, weight = inputs.to(total.dtype), weight.to(total.dtype)
    total.view(-1, total.shape[-1]).addmm_(inputs.reshape(-1, inputs.shape[-1]), weight.t())
    return total
