"""A forward-mode pass over what an ordinary pass has computed before: linear maps only add their tangents."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode


class Remembered(TorchFunctionMode):
    """Keeps what linear maps give inside the block, in the order of their calls."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs: deque[Tensor] = deque()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Calls it."""
        result = func(*args, **(kwargs or {}))
        if func is linear:
            self.outputs.append(result.detach())
        return result


class Retraced(TorchFunctionMode):
    """Inside the block linear maps of dual numbers take their primal from an earlier pass, and forget it.

    The pass has to be that one's beginning: the same weights, inputs and random numbers, so that a primal is what it
    would be if it were computed again. Two products a map instead of three.

    Args:
        outputs: of the earlier pass; where there are no more, maps are computed as ever.
    """

    def __init__(self, outputs: Iterable[Tensor]) -> None:
        super().__init__()
        self.outputs = deque(outputs)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Calls it, or gives what it would."""
        if func is not linear or not self.outputs:
            return func(*args, **(kwargs or {}))
        return _dual(self.outputs.popleft(), *args, **(kwargs or {}))


def _dual(primal: Tensor, inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The output with the tangent ẋ·Wᵀ + x·Ẇᵀ + ḃ; without one where nothing has a tangent."""
    (x, dx), (w, dw) = forward_ad.unpack_dual(inputs), forward_ad.unpack_dual(weight)
    shift = None if bias is None else forward_ad.unpack_dual(bias).tangent
    parts = []
    if dx is not None:
        parts.append(linear(dx, w))
    if dw is not None:
        parts.append(linear(x, dw, shift))
    elif shift is not None:
        parts.append(shift.expand_as(primal))
    if not parts:
        return primal
    tangent = parts[0] if len(parts) == 1 else parts[0].add_(parts[1])
    return forward_ad.make_dual(primal, tangent.to(primal.dtype))
