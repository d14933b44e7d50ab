"""Records or changes the inputs of chosen modules during a forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

Change = Callable[[int, Tensor], Tensor]


@contextmanager
def intercept_inputs(modules: Iterable[nn.Module], change: Change | None = None) -> Iterator[list[Tensor]]:
    """Inside the block, the first argument of these modules at every call, in the order of the calls.

    Args:
        modules: a module may come twice; it is watched once.
        change: what becomes of the argument, from the number of the call and the argument; default: nothing.
    """
    seen: list[Tensor] = []

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        value = args[0] if args else kwargs["hidden_states"]
        value = value if change is None else change(len(seen), value)
        seen.append(value)
        return ((value, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": value})

    with ExitStack() as hooks:
        for module in dict.fromkeys(modules):
            hooks.enter_context(module.register_forward_pre_hook(before, with_kwargs=True))
        yield seen
