"""Progress bars on stderr, and a warning about slow steps."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from typing import Any

from tqdm import tqdm
from transformers import ProgressCallback, TrainerCallback

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
