"""How far a method is, counted in the inputs its model has read; and a way to stop it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from typing import Any

from torch import nn

Report = Callable[[int], None]


class StoppedError(Exception):
    """Nobody waits for the answer any more."""


@contextmanager
def track_progress(model: nn.Module, report: Report, stop: Event) -> Iterator[None]:
    """Inside the block `report` is told, before each forward pass, how many inputs have gone through the model.

    Raises:
        StoppedError: when `stop` is set, at the next pass; the model is left as it came.
    """
    seen = 0

    def before(_: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        nonlocal seen
        if stop.is_set():
            raise StoppedError
        report(seen)
        given = [*args, named.get("input_ids"), named.get("inputs_embeds")]
        seen += next((len(each) for each in given if each is not None), 1)

    hook = model.register_forward_pre_hook(before, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()
