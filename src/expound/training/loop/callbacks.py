"""Callbacks of a training run: progress bars, warnings about slow steps, early stopping, and a stop by a signal."""

from __future__ import annotations

import logging
import math
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from tqdm import tqdm
from transformers import ProgressCallback, TrainerCallback

from expound.objectives import CrossEntropy

logger = logging.getLogger(__name__)


class ProgressBar(ProgressCallback):
    """The Trainer's progress bars, with the loss in the bar and one line per evaluation."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Show the logged loss in the bar, and print an evaluation's figures."""
        if self.training_bar is None or logs is None:
            return
        if "loss" in logs:
            self.training_bar.set_postfix(loss=f"{float(logs['loss']):.4f}")
        # stdout belongs to a command's results; writing past the bar would also tear it.
        if line := _describe_evaluation(logs):
            self.training_bar.write(line, file=sys.stderr)


class EvaluationLog(TrainerCallback):
    """One line per evaluation, for output without a moving bar: a log or a pipe."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Log an evaluation's figures."""
        if state.is_world_process_zero and (line := _describe_evaluation(logs or {})):
            logger.warning(line)


def _describe_evaluation(logs: Mapping[str, Any]) -> str:
    """Return an evaluation's figures in one line, empty for the logs of a step."""
    shown = []
    for name, value in logs.items():
        if name.startswith("eval_") and name.removeprefix("eval_") not in HIDDEN:
            shown.append(f"{name.removeprefix('eval_')} {value:.4f}")
    return f"epoch {logs.get('epoch', 0):.2f}: {', '.join(shown)}" if shown else ""


HIDDEN = {"runtime", "samples_per_second", "steps_per_second", "model_preparation_time"}


class SlowStepWarning(TrainerCallback):
    """Warns once if several steps in a row take ten times as long as the fastest: the machine may be overloaded."""

    def __init__(self) -> None:
        self.started, self.fastest, self.n_slow, self.has_warned = 0.0, float("inf"), 0, False

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Note the time."""
        self.started = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Compare the step's time with the fastest step's."""
        seconds = time.monotonic() - self.started
        self.fastest = min(self.fastest, seconds)
        # A single slow step is normal: an evaluation or a checkpoint comes before it.
        is_slow = seconds > SLOW_FACTOR * self.fastest and seconds > SLOW_SECONDS
        self.n_slow = self.n_slow + 1 if is_slow else 0
        if self.n_slow >= SLOW_STEPS and not self.has_warned:
            self.has_warned = True
            logger.warning(
                "a step takes %.2g s, the fastest took %.2g s: is the machine busy? --threads 1 may help",
                seconds, self.fastest,
            )  # fmt: skip


class Forecast(TrainerCallback):
    """Writes once, after the first steps, how long the training will take."""

    def __init__(self) -> None:
        self.started, self.n_steps = 0.0, 0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Measure the steps after the first one, which also warms up."""
        self.n_steps += 1
        if self.n_steps == 1:
            self.started = time.monotonic()
        if self.n_steps != FORECAST_STEPS or state.max_steps - state.global_step < FORECAST_STEPS:
            return
        seconds = (time.monotonic() - self.started) / (FORECAST_STEPS - 1)
        left = tqdm.format_interval(seconds * (state.max_steps - state.global_step))
        logger.warning("a step takes %.2g s: %s left for the other steps, and the evaluations", seconds, left)


FORECAST_STEPS = 4
SLOW_FACTOR, SLOW_STEPS, SLOW_SECONDS = 10.0, 3, 0.2
"""A warning needs this many steps in a row that take this many times the fastest step's time, and these seconds."""


SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopAfterStep(TrainerCallback):
    """Stops training on SIGTERM or SIGINT after the current step, with a checkpoint. A second signal stops at once.

    A stop at the last step of an epoch waits for the epoch's evaluation, so that the resumed run equals an
    uninterrupted one.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.stopped = False
        self._training_was_over: bool | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Catch the signals inside the block."""
        # Python allows signal handlers in the main thread only.
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = {number: signal.getsignal(number) for number in SIGNALS}

        def request_stop(number: int, frame: Any) -> None:
            self.signal = number
            logger.warning("%s: stopping after this step", signal.Signals(number).name)
            _set_handlers(previous)

        _set_handlers(dict.fromkeys(SIGNALS, request_stop))
        try:
            yield
        finally:
            _set_handlers(previous)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Ask for a checkpoint after this step if any process received a signal."""
        if not self._is_stop_requested(args.device):
            return
        self.stopped = True
        # With a limit of 1 the Trainer would keep the best checkpoint and delete the one to resume from.
        if args.save_total_limit == 1 and state.global_step < state.max_steps:
            args.save_total_limit = 2
        if not _is_whole(state.epoch):
            control.should_save = True

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Skip the evaluation of an interrupted epoch; save a complete epoch after its evaluation."""
        if not self.stopped:
            return
        # An interrupted epoch was saved by `on_step_end`; the Trainer fires this event for it, too.
        control.should_save = _is_whole(state.epoch)
        if not control.should_save:
            control.should_evaluate = control.should_log = False
        elif self._training_was_over is not None:
            control.should_training_stop = self._training_was_over

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop the training once its checkpoint is written."""
        # The checkpoint stores `should_training_stop`, from which a resumed run learns whether early stopping had
        # ended the training. So the flag may be set for a signal only after the checkpoint is written.
        if self.stopped:
            self._training_was_over, control.should_training_stop = control.should_training_stop, True

    def _is_stop_requested(self, device: torch.device) -> bool:
        requested = self.signal is not None
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return requested
        # A signal may reach one process only; if the others continued, they would wait for it in the next step.
        any_process = torch.tensor(int(requested), device=device)
        torch.distributed.all_reduce(any_process, torch.distributed.ReduceOp.MAX)
        return bool(any_process.item())


def _set_handlers(handlers: dict[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _is_whole(epoch: float) -> bool:
    return float(epoch).is_integer()


class FeasibleStopping(TrainerCallback):
    """Early stopping by the dev cross-entropy; the first feasible epoch restarts the count with half the patience."""

    # The callback has no state: it counts in the Trainer's history, which a resumed run has, too.

    def __init__(self, patience: int) -> None:
        self.patience = patience

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop training when the evaluations so far have used up the patience."""
        pairs = []
        for entry in state.log_history:
            if "eval_feasible" in entry:
                pairs.append((bool(entry["eval_feasible"]), entry[f"eval_{CrossEntropy.name}"]))
        if is_patience_exhausted(pairs, self.patience):
            control.should_training_stop = True


def is_patience_exhausted(evaluations: Iterable[tuple[bool, float]], patience: int) -> bool:
    """Return whether patience has run out after these (feasible, cross-entropy) pairs."""
    best, waited, was_feasible = math.inf, 0, False
    for feasible, value in evaluations:
        is_first = feasible and not was_feasible
        was_feasible = was_feasible or feasible
        # Infeasible epochs often have a lower cross-entropy: the first feasible one becomes the new best.
        if is_first or value < best:
            best, waited = value, 0
        else:
            waited += 1
    if was_feasible:
        patience = max(1, patience // 2)
    return waited >= patience
