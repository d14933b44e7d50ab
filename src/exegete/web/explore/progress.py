"""How far a method is, counted in the inputs its model has read; and a way to stop it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from typing import Any

from exegete.models import Batch, ExplainedModel

Report = Callable[[int], None]


class StoppedError(Exception):
    """Nobody waits for the answer any more."""


@contextmanager
def counted(model: ExplainedModel, report: Report, stop: Event) -> Iterator[None]:
    """Inside the block `report` is told, before each forward pass, how many inputs have gone through the model.

    Raises:
        StoppedError: when `stop` is set, at the next pass; the model is left as it came.
    """
    seen = 0

    def before(_: Any, args: tuple[Any, ...]) -> None:
        nonlocal seen
        if stop.is_set():
            raise StoppedError
        report(seen)
        seen += len(args[0]) if args and isinstance(args[0], Batch) else 1

    hook = model.register_forward_pre_hook(before)
    try:
        yield
    finally:
        hook.remove()
