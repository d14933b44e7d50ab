"""Progress bars that talk to stderr only, and a word when steps take too long."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

from transformers import ProgressCallback, TrainerCallback

logger = logging.getLogger(__name__)


class ProgressBar(ProgressCallback):
    """The Trainer's bars; the loss stands beside the bar, an evaluation gets a line of its own."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Shows the logged loss in the bar, and prints an evaluation's figures."""
        if self.training_bar is None or logs is None:
            return
        if "loss" in logs:
            self.training_bar.set_postfix(loss=f"{float(logs['loss']):.4f}")
        evaluated = {name.removeprefix("eval_"): value for name, value in logs.items() if name.startswith("eval_")}
        shown = [f"{name} {value:.4f}" for name, value in evaluated.items() if name not in HIDDEN]
        if shown:
            self.training_bar.write(f"epoch {logs.get('epoch', 0):.2f}: {', '.join(shown)}", file=sys.stderr)


HIDDEN = {"runtime", "samples_per_second", "steps_per_second", "model_preparation_time"}


class SlowStepWarning(TrainerCallback):
    """Says once when steps take ten times as long as the fastest one: another process keeps the machine busy."""

    def __init__(self) -> None:
        self.begun, self.fastest, self.slow, self.told = 0.0, float("inf"), 0, False

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Looks at the clock."""
        self.begun = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Compares the step with the fastest; one slow step alone is none."""
        took = time.monotonic() - self.begun
        self.fastest = min(self.fastest, took)
        self.slow = self.slow + 1 if took > TOO_LONG * self.fastest and took > NOTICEABLE else 0
        if self.slow >= IN_A_ROW and not self.told:
            self.told = True
            logger.warning(
                "a step takes %.2g s, the fastest took %.2g s: is the machine busy? --threads 1 may help",
                took, self.fastest,
            )  # fmt: skip


TOO_LONG, IN_A_ROW, NOTICEABLE = 10.0, 3, 0.2
"""How many times the fastest step's time is too long, for how many steps, and from how many seconds on."""
