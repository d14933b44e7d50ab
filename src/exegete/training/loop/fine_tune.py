"""From a model and data to a trained model in a folder: the frame that every training method shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import TrainingArguments

from exegete.data.provenance import digest_data
from exegete.errors import ExegeteError
from exegete.models import ExplainedModel, load
from exegete.models.layers.head_activation import shares_encoder_activation
from exegete.models.loading.digest import digest_processor, digest_weights
from exegete.objectives import CrossEntropy, Objective
from exegete.training.loop.data import tokenize_responses
from exegete.training.loop.evaluation import HIGHER_IS_BETTER
from exegete.training.loop.execute import StopAfterStep, TrainResult, execute
from exegete.training.loop.head import head_activation, head_dropout
from exegete.training.loop.options import (
    DEFAULT_ARGUMENTS,
    FROM_SCRATCH_ARGUMENTS,
    RunOptions,
    get_changed_arguments,
    make_training_arguments,
)
from exegete.training.loop.run import TrainingRun
from exegete.training.loop.starting_model import (
    Source,
    align_labels,
    is_from_scratch,
    label_names,
    load_starting_model,
    require_labels,
)
from exegete.training.loop.trainer import ObjectiveTrainer


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
    trainer: type[ObjectiveTrainer] = ObjectiveTrainer,
    options: RunOptions | None = None,
    **given: Any,
) -> TrainResult:
    """Trains a model into a folder, from which `exegete.load` takes it.

    Evaluates every epoch (or every `eval_steps`), keeps the best model, goes on where a stopped or killed run of the
    same configuration stopped, and does not repeat a finished one. Beside the model lie the tokenizer or image
    processor, `metrics.json` (dev), `history.json` (everything that was logged) and `exegete_run.json` (the resolved
    configuration and versions).

    Args:
        model: see `load_starting_model`.
        train: rows in canonical form (texts, pairs, questions, images, or prompts with responses).
        dev: the same columns; the best model is chosen on it.
        output_dir: a folder of its own.
        objectives: the terms of the loss; or what makes them for the model that training starts from, which it may
            put adapters into.
        trainer: the loop.
        options: see `RunOptions`; its arguments come on top of `DEFAULT_ARGUMENTS` (and `FROM_SCRATCH_ARGUMENTS`), and
            `greater_is_better` follows from `metric_for_best_model`.
        given: single options by name, on top of these.

    Raises:
        ExegeteError: unusable data, arguments or folder; a loss or gradient that is not a finite number.
    """
    options = RunOptions.with_overrides(options, given)
    _require_same_columns(train, dev)
    start = load_starting_model(
        model, train, options.processing_class, max_length=options.max_length, seed=options.seed
    )
    train, dev = (tokenize_responses(start, align_labels(start, data)) for data in (train, dev))
    terms = objectives(start) if callable(objectives) else objectives
    best = next(iter(HIGHER_IS_BETTER[start.task.name]))
    usual = {
        **DEFAULT_ARGUMENTS,
        "metric_for_best_model": best,
        **(FROM_SCRATCH_ARGUMENTS if is_from_scratch(model) else {}),
    }
    args = make_training_arguments(options, usual, Path(output_dir), trainer.higher_is_better(start.task.name, terms))
    source = str(model) if isinstance(model, str | Path) else type(model).__name__
    settings = {"trainer": trainer.__name__, **_record_options(options)}
    activation = options.head_activation if shares_encoder_activation(start.model) else None
    settings |= {} if activation is None else {"head_activation": activation}
    run = TrainingRun(Path(output_dir), settings | _resolve_config(start, source, train, dev, args, terms))
    kept: dict[str, Any] = {"device": args.device, "max_length": options.max_length}
    kept |= {"task": start.task.name} if start.task.name == "generation" else {}

    def loop(stop: StopAfterStep) -> ObjectiveTrainer:
        data = {"train_dataset": train, "eval_dataset": dev}
        return trainer(start, args, terms, options=options, callbacks=[stop], **data)

    with head_dropout(start.model, options.head_dropout), head_activation(start.model, activation):
        return execute(run, args, options, loop, lambda: load(run.folder, **kept))


def _record_options(options: RunOptions) -> dict[str, Any]:
    """The options that the outcome depends on, beside those that stand elsewhere in a run's configuration."""
    settings: dict[str, Any] = {"early_stopping_patience": options.early_stopping_patience}
    settings |= {"masked_share": options.masked_share} if options.masked_share else {}
    settings |= {"head_rate": options.head_rate} if options.head_rate not in (None, 1) else {}
    settings |= {} if options.head_dropout is None else {"head_dropout": options.head_dropout}
    threshold = options.early_stopping_threshold
    return settings | ({"early_stopping_threshold": threshold} if threshold else {})


def _require_same_columns(train: Dataset, dev: Dataset) -> None:
    require_labels(train)
    require_labels(dev)
    if label_names(train) != label_names(dev):
        raise ExegeteError(f"train and dev have different labels: {label_names(train)} and {label_names(dev)}")
    missing = {"text", "text_pair", "image", "answer", "response"} & (set(train.column_names) ^ set(dev.column_names))
    if missing:
        raise ExegeteError(f"only one of train and dev has the column {', '.join(sorted(missing))}")


def _resolve_config(
    model: ExplainedModel,
    source: str,
    train: Dataset,
    dev: Dataset,
    args: TrainingArguments,
    objectives: Sequence[Objective],
) -> dict[str, Any]:
    """All that the outcome depends on."""
    return {
        "model": {"source": source, "kind": type(model.model).__name__, "weights": digest_weights(model.model)},
        "processor": digest_processor(model.processing_class),
        "max_length": model.max_length,
        "labels": list(model.labels),
        "data": {
            name: {"source": data.info.description, "rows": len(data), "digest": digest_data(data)}
            for name, data in (("train", train), ("dev", dev))
        },
        "objectives": {objective.name: objective.params for objective in objectives},
        "arguments": get_changed_arguments(args),
        "seed": args.seed,
    }
