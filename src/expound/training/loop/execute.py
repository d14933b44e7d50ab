"""Executes one training run in its folder: reuses a finished run, resumes an interrupted one, or starts anew."""

from __future__ import annotations

import json
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainingArguments

from expound.data.hub import push
from expound.data.provenance import write_json
from expound.errors import Stopped
from expound.models import ExplainedModel
from expound.models.encoding import encode as encoding
from expound.reports.hub_card import format_hub_card
from expound.training.loop.data import log_once
from expound.training.loop.options import RunOptions
from expound.training.loop.run import HISTORY, TrainingRun, read_final_step
from expound.training.loop.trainer import ObjectiveTrainer

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True)
class TrainResult:
    """The result of a training run: the best model and its figures.

    `model`: the best model, in evaluation mode, as saved in `output_dir`. `metrics`: its figures on the dev split.
    `finished`: False after a stop by a signal; the same call resumes the run. `reused`: whether the run was finished
    before this call.
    """

    output_dir: Path
    model: ExplainedModel
    metrics: Mapping[str, Any]
    steps: int = 0
    seconds: float = 0.0
    finished: bool = True
    reused: bool = False
    signal: int | None = None

    def require_finished(self, training: str) -> None:
        """Raise Stopped if a signal stopped the run; `training` names it in the message."""
        if not self.finished:
            raise Stopped(f"{training} was stopped: the same call resumes it", self.signal)

    @property
    def history(self) -> list[dict[str, Any]]:
        """Everything that a finished run logged, in order; infinite numbers are None."""
        history: list[dict[str, Any]] = json.loads((self.output_dir / HISTORY).read_text(encoding="utf-8"))["history"]
        return history

    def push_to_hub(self, repo_id: str, *, private: bool = False, token: str | None = None) -> str:
        """Push the folder, with a model card, to a repository of the hub and return its URL. See `expound push`."""
        return push(self.output_dir, repo_id, format_hub_card(self.output_dir, repo_id), private=private, token=token)


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


def execute(
    run: TrainingRun,
    args: TrainingArguments,
    options: RunOptions,
    make_trainer: Callable[[StopAfterStep], ObjectiveTrainer],
    load_finished: Callable[[], ExplainedModel],
) -> TrainResult:
    """Train to the end or to a signal; a finished run of the same configuration is not repeated.

    Args:
        run: the folder and the configuration that the outcome depends on.
        args: the Trainer's arguments.
        options: whether to resume or to replace what the folder holds.
        make_trainer: makes the trainer, with the given callback among its own; called before the first step.
        load_finished: loads the model of a run that was finished before.
    """
    metrics = run.finished_metrics() if options.resume and not options.overwrite else None
    if metrics is not None:
        logger.warning("%s holds the finished run of this configuration: nothing to do", run.folder)
        return TrainResult(run.folder, load_finished(), metrics, reused=True)
    stop = StopAfterStep()
    with run.writing(writes=args.should_save):
        # The main process clears the folder before the others look for a checkpoint in it.
        with args.main_process_first(local=False):
            checkpoint = run.begin(resume=options.resume, overwrite=options.overwrite, writes=args.should_save)
        return _train_and_save(make_trainer(stop), run, checkpoint, stop)


def _train_and_save(
    trainer: ObjectiveTrainer, run: TrainingRun, checkpoint: Path | None, stop: StopAfterStep
) -> TrainResult:
    started, model = time.monotonic(), trainer.module.explained
    with log_once(encoding.__name__):
        with stop.listening():
            _train(trainer, checkpoint)
        model.eval()
        steps = trainer.state.global_step
        if stop.stopped and steps < trainer.state.max_steps:
            seconds = time.monotonic() - started
            return TrainResult(run.folder, model, {}, steps, seconds, finished=False, signal=stop.signal)
        figures = trainer.evaluate_finished()
    seconds = time.monotonic() - started
    metrics = {}
    for name, value in figures.items():
        # The others are about the machine, as the seconds of the evaluation.
        if name.startswith("eval_") and not name.endswith(("_runtime", "_per_second", "_preparation_time")):
            metrics[name.removeprefix("eval_")] = value
    staging = run.empty_staging_folder()
    trainer.save_model(str(staging))
    if trainer.args.should_save:
        # The Trainer's summary covers its last call only, which may have begun at a checkpoint.
        history = [entry for entry in trainer.state.log_history if "train_runtime" not in entry]
        write_json(staging / HISTORY, {"history": history})
        run.finish(staging, metrics)
    return TrainResult(run.folder, model, metrics, steps, seconds)


def _train(trainer: ObjectiveTrainer, checkpoint: Path | None) -> None:
    """Train to the end, from a checkpoint if there is one."""
    if checkpoint is None:
        trainer.train()
        return
    original_args, final_step = trainer.args, read_final_step(checkpoint)
    trainer.args = copy(original_args)
    trainer.args.eval_on_start = False
    # If early stopping ended the training with this checkpoint, no step may follow. The Trainer would take one, since
    # it clears the restored stop flag when training begins.
    if final_step is not None:
        trainer.args.max_steps = final_step
    trainer.train(resume_from_checkpoint=str(checkpoint))
    trainer.args = original_args
