"""Progress bars that talk to stderr only."""

from __future__ import annotations

import sys
from typing import Any

from transformers import ProgressCallback


class Progress(ProgressCallback):
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
