"""Recording and replacement of the inputs of chosen modules during a forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

Change = Callable[[int, Tensor], Tensor]


@contextmanager
def intercept_inputs(modules: Iterable[nn.Module], change: Change | None = None) -> Iterator[list[Tensor]]:
    """Yield a list of the modules' first arguments, in the order of their calls inside the block.

    Args:
        modules: the modules; one that occurs twice is watched once.
        change: a function from the number of the call and the argument to another argument; default: no change.
    """
    inputs: list[Tensor] = []

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # Families pass hidden states to their layers either by position or by name.
        value = args[0] if args else kwargs["hidden_states"]
        value = value if change is None else change(len(inputs), value)
        inputs.append(value)
        if args:
            return ((value, *args[1:]), kwargs)
        return args, kwargs | {"hidden_states": value}

    with ExitStack() as scope:
        for module in dict.fromkeys(modules):
            scope.enter_context(module.register_forward_pre_hook(record, with_kwargs=True))
        yield inputs
