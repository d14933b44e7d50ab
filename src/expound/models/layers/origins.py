"""Where a tensor of a pass comes from: whether it depends on the input, and by which kind of function."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor

NORMS = frozenset({"layer_norm", "rms_norm", "group_norm", "normalize"})
KEEPS_NUMBERS = frozenset(
    [
        *("add", "sub", "mul", "div", "neg", "__rsub__", "__add__", "__radd__", "clone", "contiguous", "to", "float"),
        *("double", "half", "bfloat16", "type", "type_as", "view", "reshape", "unsqueeze", "squeeze", "flatten"),
        *("dropout", "masked_fill", "transpose", "permute", "add_", "mul_", "div_"),
    ]
)
"""Functions whose result at a place depends on the operands at that place alone."""
RESTARTING = frozenset({"linear", "addmm", "conv1d", "conv2d", *NORMS})
"""Functions with weights, behind which factors are counted anew."""
MIXING = RESTARTING | {"matmul", "bmm", "mm", "einsum"}
"""Functions that mix numbers, so that their result is no activation any more."""


class Origin:
    """What a tensor that depends on the input was computed from.

    Args:
        root: the origin of the tensor of which this one is a function of each number alone; None: it is its own.
        kind: `gate`, the output of an activation; `product`, of two tensors that depend on the input; or empty.
        degree: the number of factors that depend on the input, whose product it is.
    """

    __slots__ = ("degree", "kind", "root")

    def __init__(self, root: Origin | None = None, kind: str = "", degree: int = 1) -> None:
        self.root = self if root is None else root
        self.kind = kind
        self.degree = degree


def mark_input(tensor: Tensor) -> Tensor:
    """Mark a tensor as the input of the network, on which the operands of rules depend."""
    tensor._expound_origin = Origin()  # type: ignore[attr-defined]
    return tensor


def list_tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among arguments, also those in lists."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from (x for x in value if isinstance(x, Tensor))


def copy_origin(target: Tensor, source: Any) -> Tensor:
    """Return a tensor with the origin of another one, if that has any."""
    origin = getattr(source, "_expound_origin", None)
    if origin is not None:
        target._expound_origin = origin  # type: ignore[attr-defined]
    return target


def join_origins(name: str, origins: Sequence[Origin]) -> Origin:
    """Return the origin of what a function without a rule makes of its operands."""
    first = origins[0]
    degree = max(origin.degree for origin in origins)
    if name in MIXING:
        return Origin(None, "", 1 if name in RESTARTING else degree)
    if len(origins) == 1:
        return first if name in KEEPS_NUMBERS else Origin(None, first.kind, degree)
    kinds = {origin.kind for origin in origins}
    if name in KEEPS_NUMBERS and all(origin.root is first.root for origin in origins):
        return Origin(first.root, "gate" if "gate" in kinds else "", degree)
    return Origin(None, "product" if "product" in kinds else "", degree)
