"""One run in its folder: taken as it is when finished, gone on with when stopped, else from its beginning."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from exegete.data.hub import push
from exegete.data.provenance import write_json
from exegete.errors import Stopped
from exegete.models import ExplainedModel
from exegete.models.encoding import encode as encoding
from exegete.reports.hub_card import format_hub_card
from exegete.training.loop.batches import log_once
from exegete.training.loop.checkpoints import last_step
from exegete.training.loop.options import RunOptions
from exegete.training.loop.run import HISTORY, Run
from exegete.training.loop.stop import StopAfterStep
from exegete.training.loop.trainer import ObjectiveTrainer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainResult:
    """The result of a training run: the best model and its figures.

    `model`: the best one, in evaluation mode, as it lies in `folder`. `metrics`: its figures on the dev split.
    `finished` is False after a stop by a signal: the same call goes on. `reused`: it was there already.
    """

    folder: Path
    model: ExplainedModel
    metrics: Mapping[str, Any]
    steps: int = 0
    seconds: float = 0.0
    finished: bool = True
    reused: bool = False
    signal: int | None = None

    def require_finished(self, training: str) -> None:
        """Raises Stopped where a signal came; `training`: the words for it."""
        if not self.finished:
            raise Stopped(f"{training} was stopped: the same call goes on from there", self.signal)

    @property
    def history(self) -> list[dict[str, Any]]:
        """Everything that a finished run logged, in order; infinite numbers are None."""
        found: list[dict[str, Any]] = json.loads((self.folder / HISTORY).read_text(encoding="utf-8"))["history"]
        return found

    def push_to_hub(self, repo_id: str, *, private: bool = False, token: str | None = None) -> str:
        """Pushes the folder, with a card, to a repository of the hub; returns its address. See `exegete push`."""
        return push(self.folder, repo_id, format_hub_card(self.folder, repo_id), private=private, token=token)


def execute(
    run: Run,
    args: TrainingArguments,
    options: RunOptions,
    make_loop: Callable[[StopAfterStep], ObjectiveTrainer],
    finished_model: Callable[[], ExplainedModel],
) -> TrainResult:
    """Runs the loop to its end or to a signal; does not repeat a finished run of the same configuration.

    Args:
        run: the folder and what the outcome depends on.
        args: the Trainer's.
        options: whether to go on with what is there, or to replace it.
        make_loop: the loop, with this callback among its own; it has not begun.
        finished_model: the model of a run that was finished before.
    """
    done = run.finished() if options.resume and not options.overwrite else None
    if done is not None:
        logger.warning("%s holds the finished run of this configuration: nothing to do", run.folder)
        return TrainResult(run.folder, finished_model(), done, reused=True)
    stop = StopAfterStep()
    with run.writing(writes=args.should_save):
        with args.main_process_first(local=False):
            checkpoint = run.begin(resume=options.resume, overwrite=options.overwrite, writes=args.should_save)
        return _trained(make_loop(stop), run, checkpoint, stop)


def _trained(loop: ObjectiveTrainer, run: Run, checkpoint: Path | None, stop: StopAfterStep) -> TrainResult:
    begun = time.monotonic()
    with log_once(encoding.__name__):
        with stop.listening():
            _train(loop, checkpoint)
        loop.explained.eval()
        steps = loop.state.global_step
        if stop.stopped and steps < loop.state.max_steps:
            return TrainResult(
                run.folder, loop.explained, {}, steps, time.monotonic() - begun, finished=False, signal=stop.signal
            )
        loop.conclude()
        figures = loop.evaluate()
    seconds = time.monotonic() - begun
    metrics = {name.removeprefix("eval_"): value for name, value in figures.items() if _lasting(name)}
    unnamed = run.unnamed
    loop.save_model(str(unnamed))
    if loop.args.should_save:
        # the Trainer's summary is about its last call, which began where a stopped one had come to
        logged = [entry for entry in loop.state.log_history if "train_runtime" not in entry]
        write_json(unnamed / HISTORY, {"history": logged})
        run.finish(unnamed, metrics)
    return TrainResult(run.folder, loop.explained, metrics, steps, seconds)


def _train(loop: ObjectiveTrainer, checkpoint: Path | None) -> None:
    """To the end; no step follows a checkpoint with which early stopping ended the training."""
    if checkpoint is None:
        loop.train()
        return
    whole, end = loop.args, last_step(checkpoint)
    loop.args = copy(whole)
    loop.args.eval_on_start = False
    if end is not None:
        loop.args.max_steps = end
    loop.train(resume_from_checkpoint=str(checkpoint))
    loop.args = whole


def _lasting(name: str) -> bool:
    """Whether a figure is about the model rather than the machine."""
    return name.startswith("eval_") and not name.endswith(("_runtime", "_per_second", "_preparation_time"))
