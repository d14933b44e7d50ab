"""From a model and data to a trained model in a folder: the frame that every training method shares."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import transformers as hf
from datasets import Dataset

from exegete.data.provenance import data_digest, write_json
from exegete.errors import ExegeteError, unknown
from exegete.models import ExplainedModel, load
from exegete.models import encode as encoding
from exegete.models.digest import processor_digest, weights_digest
from exegete.objectives import CrossEntropy, Objective
from exegete.training.loop.batches import said_once
from exegete.training.loop.evaluation import HIGHER_IS_BETTER
from exegete.training.loop.run import HISTORY, Run
from exegete.training.loop.starting_model import (
    Source,
    as_numbered,
    is_new,
    label_names,
    require_labels,
    starting_model,
)
from exegete.training.loop.stop import StopAfterStep
from exegete.training.loop.trainer import ObjectiveTrainer

logger = logging.getLogger(__name__)

DEFAULTS: Mapping[str, Any] = {
    "num_train_epochs": 3,
    "learning_rate": 5e-5,
    "per_device_train_batch_size": 32,
    "per_device_eval_batch_size": 64,
    "warmup_steps": 0.06,
    "train_sampling_strategy": "group_by_length",
    "save_total_limit": 1,
    "load_best_model_at_end": True,
    "restore_callback_states_from_checkpoint": True,
    "logging_steps": 50,
    "report_to": "none",
    "disable_tqdm": False,
    "dataloader_pin_memory": False,
}
FROM_SCRATCH: Mapping[str, Any] = {"learning_rate": 1e-3, "num_train_epochs": 10}
IRRELEVANT = frozenset(
    {"output_dir", "logging_dir", "run_name", "disable_tqdm", "logging_steps", "report_to", "log_level", "use_cpu"}
    | {"dataloader_num_workers", "dataloader_pin_memory", "per_device_eval_batch_size", "save_total_limit", "seed"}
)


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

    @property
    def history(self) -> list[dict[str, Any]]:
        """Everything that a finished run logged, in order; infinite numbers are None."""
        found: list[dict[str, Any]] = json.loads((self.folder / HISTORY).read_text(encoding="utf-8"))["history"]
        return found


def train_baseline(model: Source, train: Dataset, dev: Dataset, output_dir: str | Path, **options: Any) -> TrainResult:
    """Ordinary fine-tuning, which every other method is compared with: `fine_tune` with the task's own loss alone."""
    return fine_tune(model, train, dev, output_dir, objectives=(CrossEntropy(),), **options)


def fine_tune(
    model: Source,
    train: Dataset,
    dev: Dataset,
    output_dir: str | Path,
    *,
    objectives: Sequence[Objective] | Callable[[ExplainedModel], Sequence[Objective]],
    processing_class: Any = None,
    arguments: Mapping[str, Any] | hf.TrainingArguments | None = None,
    early_stopping_patience: int | None = None,
    early_stopping_threshold: float = 0.0,
    max_length: int | None = None,
    masked_share: float = 0.0,
    head_rate: float = 1.0,
    seed: int = 0,
    resume: bool = True,
    overwrite: bool = False,
    trainer: type[ObjectiveTrainer] = ObjectiveTrainer,
) -> TrainResult:
    """Trains a model into a folder, from which `exegete.load` takes it.

    Evaluates every epoch (or every `eval_steps`), keeps the best model, goes on where a stopped or killed run of the
    same configuration stopped, and does not repeat a finished one. Beside the model lie the tokenizer or image
    processor, `metrics.json` (dev), `history.json` (everything that was logged) and `exegete_run.json` (the resolved
    configuration and versions).

    Args:
        model: see `starting_model`, as `processing_class` and `max_length`.
        train: rows in canonical form (texts, pairs, questions or images).
        dev: the same columns; the best model is chosen on it.
        output_dir: a folder of its own.
        objectives: the terms of the loss; or what makes them for the model that training starts from, which it may
            put adapters into.
        processing_class: tokenizer or image processor.
        arguments: the Trainer's arguments by name, on top of `DEFAULTS` (and `FROM_SCRATCH`); or an object, as it is.
            By name, `greater_is_better` follows from `metric_for_best_model`.
        early_stopping_patience: evaluations without improvement after which training stops.
        early_stopping_threshold: how much counts as an improvement.
        max_length: tokens that a text may have.
        masked_share: from 0 to 1, examples that lose random words in training, so that the model can be asked about
            inputs without some words.
        head_rate: the head's learning rate as a multiple of the encoder's.
        seed: what new weights, the order of the data and dropout depend on; wins over that of `arguments`.
        resume: go on from the newest whole checkpoint; otherwise start over.
        overwrite: replace what is in the folder, whatever it is.
        trainer: the loop.

    Raises:
        ExegeteError: unusable data, arguments or folder; a loss or gradient that is not a finite number.
    """
    _require_alike(train, dev)
    start = starting_model(model, train, processing_class, max_length=max_length, seed=seed)
    train, dev = as_numbered(start, train), as_numbered(start, dev)
    terms = objectives(start) if callable(objectives) else objectives
    best = next(iter(HIGHER_IS_BETTER[start.task.name]))
    usual = {**DEFAULTS, "metric_for_best_model": best, **(FROM_SCRATCH if is_new(model) else {})}
    args = _arguments(arguments, usual, Path(output_dir), trainer.directions(start.task.name, terms), seed)
    source = str(model) if isinstance(model, str | Path) else type(model).__name__
    settings: dict[str, Any] = {"trainer": trainer.__name__, "early_stopping_patience": early_stopping_patience}
    optional = {"masked_share": masked_share, "early_stopping_threshold": early_stopping_threshold}
    settings |= {name: value for name, value in optional.items() if value}
    rates = {} if head_rate == 1 else {"head_rate": head_rate}
    settings |= rates
    run = Run(Path(output_dir), settings | _resolved(start, source, train, dev, args, terms))
    done = run.finished() if resume and not overwrite else None
    if done is not None:
        logger.warning("%s holds the finished run of this configuration: nothing to do", run.folder)
        kept = load(run.folder, device=args.device, max_length=max_length)
        return TrainResult(run.folder, kept, done, reused=True)
    stop = StopAfterStep()
    callbacks: list[Any] = [stop]
    if early_stopping_patience is not None:
        callbacks.append(trainer.stopping(early_stopping_patience, early_stopping_threshold))
    data = {"train_dataset": train, "eval_dataset": dev}
    with run.writing(writes=args.should_save):
        with args.main_process_first(local=False):
            checkpoint = run.begin(resume=resume, overwrite=overwrite, writes=args.should_save)
        loop = trainer(start, args, terms, masked_share, callbacks=callbacks, **rates, **data)
        return _trained(loop, run, checkpoint, stop)


def _trained(loop: ObjectiveTrainer, run: Run, checkpoint: Path | None, stop: StopAfterStep) -> TrainResult:
    """Runs the loop to its end or to a signal."""
    begun = time.monotonic()
    with said_once(encoding.__name__):
        with stop.listening():
            loop.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
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
        write_json(unnamed / HISTORY, {"history": loop.state.log_history})
        run.finish(unnamed, metrics)
    return TrainResult(run.folder, loop.explained, metrics, steps, seconds)


def _lasting(name: str) -> bool:
    """Whether a figure is about the model rather than the machine."""
    return name.startswith("eval_") and not name.endswith(("_runtime", "_per_second", "_preparation_time"))


def _arguments(
    given: Any, usual: Mapping[str, Any], folder: Path, directions: Mapping[str, bool], seed: int
) -> hf.TrainingArguments:
    """`directions`: of every figure that may choose the best model, whether higher is better."""
    if isinstance(given, hf.TrainingArguments):
        given = copy(given)
        given.output_dir, given.seed = str(folder), seed
        _higher_is_better(given.metric_for_best_model, directions)
        return given
    chosen = {**usual, **(given or {})}
    often = "steps" if "eval_steps" in chosen else "epoch"
    higher = _higher_is_better(chosen["metric_for_best_model"], directions)
    defaults = {"eval_strategy": often, "save_strategy": often, "greater_is_better": higher}
    if "eval_steps" in chosen:
        defaults["save_steps"] = chosen["eval_steps"]
    try:
        return hf.TrainingArguments(**(defaults | chosen | {"output_dir": str(folder), "seed": seed}))
    except (TypeError, ValueError) as error:
        raise ExegeteError(f"unusable training arguments: {str(error).splitlines()[0]}") from error


def _higher_is_better(best: str | None, directions: Mapping[str, bool]) -> bool:
    name = (best or "loss").removeprefix("eval_")
    if name not in directions:
        raise unknown("figure to choose the best model by", name, directions)
    return directions[name]


def _require_alike(train: Dataset, dev: Dataset) -> None:
    require_labels(train)
    require_labels(dev)
    if label_names(train) != label_names(dev):
        raise ExegeteError(f"train and dev have different labels: {label_names(train)} and {label_names(dev)}")
    missing = {"text", "text_pair", "image", "answer"} & (set(train.column_names) ^ set(dev.column_names))
    if missing:
        raise ExegeteError(f"only one of train and dev has the column {', '.join(sorted(missing))}")


def _resolved(
    model: ExplainedModel,
    source: str,
    train: Dataset,
    dev: Dataset,
    args: hf.TrainingArguments,
    objectives: Sequence[Objective],
) -> dict[str, Any]:
    """All that the outcome depends on."""
    usual = {field.name: field.default for field in fields(args)}
    changed = {name: value for name, value in args.to_dict().items() if value != usual.get(name)}
    return {
        "model": {"source": source, "kind": type(model.model).__name__, "weights": weights_digest(model.model)},
        "processor": processor_digest(model.processing_class),
        "max_length": model.max_length,
        "labels": list(model.labels),
        "data": {
            name: {"source": data.info.description, "rows": len(data), "digest": data_digest(data)}
            for name, data in (("train", train), ("dev", dev))
        },
        "objectives": {objective.name: objective.params for objective in objectives},
        "arguments": {name: value for name, value in changed.items() if name not in IRRELEVANT},
        "seed": args.seed,
    }
