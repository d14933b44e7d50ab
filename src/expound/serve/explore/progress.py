"""Progress of an explanation, counted in model inputs, and a way to stop it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, get_ident
from typing import Any

from torch import Tensor, nn

CountCallback = Callable[[int], None]
"""Receives the number of inputs that the model has processed so far."""
ShareCallback = Callable[[float], None]
"""Receives the share of the work that is done, from 0 to 1."""


class StoppedError(Exception):
    """The work was stopped: its client has left, its time is up, or the server stops."""


@contextmanager
def track_progress(model: nn.Module, report: CountCallback, stop: Event) -> Iterator[None]:
    """Call `report` before each forward pass of the model by this thread inside the block.

    Raises:
        StoppedError: `stop` was set; raised at the next forward pass. The model is restored.
    """
    n_inputs, thread = 0, get_ident()

    def before_forward(_: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        nonlocal n_inputs
        if get_ident() != thread:
            return
        # A thread cannot be interrupted from outside; the forward pass is the one place that every method goes through.
        if stop.is_set():
            raise StoppedError
        report(n_inputs)
        candidates = [*args, named.get("input_ids"), named.get("inputs_embeds")]
        inputs: Any = next((value for value in candidates if value is not None), None)
        # A single token, as that of a baseline, has no dimension of inputs.
        is_single = inputs is None or (isinstance(inputs, Tensor) and not inputs.dim())
        n_inputs += 1 if is_single else len(inputs)

    hook = model.register_forward_pre_hook(before_forward, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()
