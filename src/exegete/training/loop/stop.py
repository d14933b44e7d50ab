"""Stopping a run from outside with nothing lost."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import TrainerCallback

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopAfterStep(TrainerCallback):
    """On SIGTERM or SIGINT: finish the step, save, stop. A second signal has its usual effect.

    A stop at the last step of an epoch waits for the epoch's evaluation, so that the resumed run is the unbroken one.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.stopped = False
        self._over: bool | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Inside the block the signals are caught (in the main thread, the only one that can)."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in SIGNALS}

        def ask(number: int, frame: Any) -> None:
            self.signal = number
            logger.warning("%s: stopping after this step", signal.Signals(number).name)
            _handle(before)

        _handle(dict.fromkeys(SIGNALS, ask))
        try:
            yield
        finally:
            _handle(before)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stops here if any process was asked to."""
        if not self._agreed(args.device):
            return
        self.stopped = True
        if args.save_total_limit == 1 and state.global_step < state.max_steps:
            args.save_total_limit = 2  # of one alone the Trainer keeps the best at the end, and not where it stopped
        if not _whole(state.epoch):
            control.should_save = True

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A broken-off epoch is not evaluated, and saved already; a whole one is saved after its evaluation."""
        if not self.stopped:
            return
        control.should_save = _whole(state.epoch)
        if not control.should_save:
            control.should_evaluate = control.should_log = False
        elif self._over is not None:
            control.should_training_stop = self._over

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The stop comes after its checkpoint, which says no more than whether the training was over by itself."""
        if self.stopped:
            self._over, control.should_training_stop = control.should_training_stop, True

    def _agreed(self, device: torch.device) -> bool:
        asked = self.signal is not None
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return asked
        everyone = torch.tensor(int(asked), device=device)
        torch.distributed.all_reduce(everyone, torch.distributed.ReduceOp.MAX)
        return bool(everyone.item())


def _handle(handlers: dict[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _whole(epoch: float) -> bool:
    return float(epoch).is_integer()
