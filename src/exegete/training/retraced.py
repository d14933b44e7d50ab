"""A forward-mode pass over what an ordinary pass has computed before: linear maps only add their tangents."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

Known: TypeAlias = tuple[int, Tensor]
"""Where a linear map's weight lies, and what the map gave."""


class Remembered(TorchFunctionMode):
    """Keeps what linear maps give inside the block, in the order of their calls."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs: deque[Known] = deque()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Calls it."""
        result = func(*args, **(kwargs or {}))
        if func is linear:
            self.outputs.append((_weight(*args, **(kwargs or {})).data_ptr(), result.detach()))
        return result


class Retraced(TorchFunctionMode):
    """Inside the block linear maps of dual numbers take their primal from an earlier pass, and forget it.

    The pass has to go the same way as that one, with the same weights, inputs and random numbers, so that a primal is
    what it would be if it were computed again; it may end earlier. Two products a map instead of three.

    Args:
        outputs: of the earlier pass; a map that is not next among them is computed as ever.
    """

    def __init__(self, outputs: Iterable[Known]) -> None:
        super().__init__()
        self.outputs = deque(outputs)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Calls it, or gives what it would."""
        given = kwargs or {}
        if func is not linear or not self.outputs or self._next() != _weight(*args, **given).data_ptr():
            return func(*args, **given)
        return _dual(self.outputs.popleft()[1], *args, **given)

    def _next(self) -> int:
        return self.outputs[0][0]


def _weight(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The weight of a linear map, without its tangent."""
    primal: Tensor = forward_ad.unpack_dual(weight).primal
    return primal


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
    dual: Tensor = forward_ad.make_dual(primal, tangent.to(primal.dtype))
    return dual
