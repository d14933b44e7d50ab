"""Fine-tunes a model on data into a folder: the frame that every recipe shares."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

from datasets import Dataset
from torch import nn
from transformers import PreTrainedModel, TrainingArguments

from expound.data.provenance import summarize_data
from expound.errors import ExpoundError
from expound.models import ExplainedModel, load
from expound.models.layers.activations import HEAD_KEY, set_head_activation, shares_encoder_activation
from expound.models.layers.architecture import unwrap_adapter
from expound.models.layers.scalar_mix import add_scalar_mix
from expound.models.loading.checkpoint import digest_processor, digest_weights
from expound.objectives import CrossEntropy, Objective
from expound.training.loop.data import tokenize_responses
from expound.training.loop.evaluation import HIGHER_IS_BETTER
from expound.training.loop.lora import choose_weights, keep_model
from expound.training.loop.options import (
    DEFAULT_ARGUMENTS,
    FROM_SCRATCH_ARGUMENTS,
    RunOptions,
    get_changed_arguments,
    make_training_arguments,
)
from expound.training.loop.run import TrainingRun
from expound.training.loop.starting_model import (
    Source,
    align_labels,
    is_from_scratch,
    label_names,
    load_starting_model,
    require_labels,
)
from expound.training.loop.trainer import TrainResult, execute
from expound.training.loop.training_module import IDLE_SHARE, TrainingModule

logger = logging.getLogger(__name__)
OUTCOME_OPTIONS = (
    "early_stopping_patience",
    "early_stopping_threshold",
    "masked_share",
    "head_lr_multiplier",
    "head_dropout",
    "lora_rank",
    "lora_alpha",
    "lora_dropout",
    "lora_targets",
)
"""Options that change the outcome and are not among the Trainer's arguments."""
IDLE_EXPLANATIONS = 0.2
IDLE_COEFFICIENTS = 0.01
SHORTCUT = 0.1
"""Coefficients of attention that start at 1 and change by less than this rank words as before."""
"""Dev explanations above this share without order are reported."""


def train_baseline(model: Source, train: Dataset, dev: Dataset, output_dir: str | Path, **options: Any) -> TrainResult:
    """Fine-tune with the task's loss alone, the baseline of every other method; see `fine_tune`."""
    return fine_tune(model, train, dev, output_dir, objectives=(CrossEntropy(),), **options)


def fine_tune(
    model: Source,
    train: Dataset,
    dev: Dataset,
    output_dir: str | Path,
    *,
    objectives: Sequence[Objective] | Callable[[ExplainedModel], Sequence[Objective]],
    module: type[TrainingModule] = TrainingModule,
    options: RunOptions | None = None,
    **overrides: Any,
) -> TrainResult:
    """Train a model into a folder, from which `expound.load` reads it.

    Evaluates every epoch (or every `eval_steps`), keeps the best model, resumes an interrupted run of the same
    configuration, and does not repeat a finished one. The folder also gets the tokenizer or image processor,
    `metrics.json` (dev figures), `history.json` (everything that was logged) and `expound_run.json` (the resolved
    configuration and versions).

    Args:
        model: see `load_starting_model`.
        train: examples in canonical form (texts, pairs, questions, images, or prompts with responses).
        dev: the same columns; the best model is chosen on it.
        output_dir: the run's folder.
        objectives: the terms of the loss, or a function that makes them for the starting model, with its adapters.
        module: how the loss and the figures of evaluations are computed.
        options: see `RunOptions`; its arguments override `DEFAULT_ARGUMENTS` (and `FROM_SCRATCH_ARGUMENTS`);
            `greater_is_better` follows from `metric_for_best_model`. With `lora_rank` the folder gets the adapters
            alone, and a model that is passed as an object stays as it is. Adapters that a model has are continued.
        overrides: single options by name, which override `options`.

    Raises:
        ExpoundError: unusable data, arguments or folder; a loss or gradient that is not a finite number.
    """
    options = RunOptions.with_overrides(options, overrides)
    _require_same_columns(train, dev)
    if options.lora_rank and is_from_scratch(model):
        raise ExpoundError("adapters need pretrained weights: give a model, not a size or a configuration")
    with keep_model(model, copies=bool(options.lora_rank)) as source:
        return _fine_tune(source, train, dev, output_dir, objectives, module, options)


def _fine_tune(
    model: Source,
    train: Dataset,
    dev: Dataset,
    output_dir: str | Path,
    objectives: Sequence[Objective] | Callable[[ExplainedModel], Sequence[Objective]],
    module: type[TrainingModule],
    options: RunOptions,
) -> TrainResult:
    """Train the model in place, or the copy that `fine_tune` made of it."""
    start = load_starting_model(
        model, train, options.processing_class, max_length=options.max_length, seed=options.seed
    )
    train = tokenize_responses(start, align_labels(start, train))
    dev = tokenize_responses(start, align_labels(start, dev))
    if options.scalar_mix:
        if options.lora_rank or not start.has_text_head:
            raise ExpoundError(
                "a scalar mix is trained with all weights, for heads that read a whole input: leave out lora_rank, or "
                "scalar_mix"
            )
        add_scalar_mix(start.model)
    choose_weights(start, options)
    terms = objectives(start) if callable(objectives) else objectives
    task = start.task.name
    defaults = {**DEFAULT_ARGUMENTS, "metric_for_best_model": next(iter(HIGHER_IS_BETTER[task]))}
    if is_from_scratch(model):
        defaults |= FROM_SCRATCH_ARGUMENTS
    args = make_training_arguments(options, defaults, Path(output_dir), module.higher_is_better(task, terms))
    source = str(model) if isinstance(model, str | Path) else type(model).__name__
    given = {name: getattr(options, name) for name in OUTCOME_OPTIONS}
    settings = {"module": module.__name__} | {name: value for name, value in given.items() if value is not None}
    # Only heads that would use the encoder's activation are changed; for others the option has no effect.
    activation = options.head_activation if shares_encoder_activation(start.model) else None
    if activation is not None:
        settings["head_activation"] = activation
    run = TrainingRun(Path(output_dir), settings | _resolve_config(start, source, train, dev, args, terms))
    load_options: dict[str, Any] = {"device": args.device, "max_length": options.max_length}
    # A language model's files do not tell whether its responses are explained or a prompted classification.
    if start.task.is_generated:
        load_options["task"] = task

    with head_dropout(start.model, options.head_dropout), head_activation(start.model, activation):
        result = execute(
            run, args, options,
            lambda: module(start, terms, options.masked_share), (train, dev), lambda: load(run.folder, **load_options),
        )  # fmt: skip
    if args.should_save:
        _warn_if_nothing_learned(result, dev)
        if result.finished:
            for message in find_idle_terms(result.history, terms):
                logger.warning(message)
    return result


@contextmanager
def head_dropout(model: PreTrainedModel, share: float | None) -> Iterator[None]:
    """Set the dropout outside the model's encoder to `share` inside the block; None keeps it."""
    previous: dict[nn.Dropout, float] = {}
    if share is not None:
        encoder = set(unwrap_adapter(model).base_model.modules())
        for module in model.modules():
            if isinstance(module, nn.Dropout) and module not in encoder:
                previous[module], module.p = module.p, share
    try:
        yield
    finally:
        for module, dropout in previous.items():
            module.p = dropout


@contextmanager
def head_activation(model: PreTrainedModel, name: str | None) -> Iterator[None]:
    """Use this activation in the head inside the block, and in checkpoints saved there; None keeps its own."""
    if name is None:
        yield
        return
    model = unwrap_adapter(model)
    previous = getattr(model.config, HEAD_KEY, None)
    set_head_activation(model, name)
    try:
        yield
    finally:
        set_head_activation(model, previous)


def _warn_if_nothing_learned(result: TrainResult, dev: Dataset) -> None:
    """Warn of a classifier that is right no more often than the most frequent class of the dev split."""
    if not result.model.task.supports("classes") or "accuracy" not in result.metrics:
        return
    labels = Counter(dev["label"][:])
    share = max(labels.values()) / len(dev)
    # With a single class there is nothing to tell apart.
    if len(labels) > 1 and result.metrics["accuracy"] <= share:
        logger.warning(
            "the model learned nothing: its accuracy on the dev split, %.4f, is no higher than the share of the most "
            "frequent class, %.4f. Try more epochs (--epochs) or a higher learning rate (--learning-rate)",
            result.metrics["accuracy"], share,
        )  # fmt: skip


def find_idle_terms(history: Sequence[Mapping[str, Any]], objectives: Sequence[Objective]) -> Iterator[str]:
    """Yield a sentence for each term that did not move the model, or whose explanations rank words as before, or equal.

    A term is idle if its weighted gradient is below 1 % of the task's, as a mean over the probed steps, or if its dev
    value changed by less than 1 % over three or more evaluations.
    """
    task, *others = objectives
    full = _mean_logged(history, f"{task.name}_gradient_norm")
    for term in others:
        own = _mean_logged(history, f"{term.name}_gradient_norm")
        if full and own is not None and term.weight and own < IDLE_SHARE * full:
            yield (
                f"{term.name} did not move the model: its gradient is {own / full:.2%} of that of {task.name}. "
                f"{term.remedy}"
            )
            continue
        values = [entry[f"eval_{term.name}"] for entry in history if f"eval_{term.name}" in entry]
        if len(values) > 2 and abs(values[-1] - values[0]) < IDLE_SHARE * abs(values[0]):
            yield f"{term.name} did not change on dev: {values[0]:.4g} first, {values[-1]:.4g} last. {term.remedy}"
    changes = [entry["eval_coefficient_change"] for entry in history if "eval_coefficient_change" in entry]
    if changes and changes[-1] < IDLE_COEFFICIENTS:
        yield (
            f"the coefficients of the explanation did not move: they changed by at most {changes[-1]:.2g} from 1, so "
            "that words rank nearly as with untrained ones. Raise --lr-multiplier (try 100 to 300), or train longer"
        )
    last = next((entry for entry in reversed(history) if "eval_random_comprehensiveness_replaced" in entry), None)
    if last is not None:
        replaced, removed = (float(last[f"eval_random_comprehensiveness_{name}"]) for name in ("replaced", "removed"))
        if replaced > removed + SHORTCUT:
            yield (
                f"the model loses its prediction at any word that is replaced: random scores have comprehensiveness "
                f"{replaced:.2f} by replacement, {removed:.2f} by removal. Judge explanations by removal, and train "
                "with --perturbation attend or mixture, or fewer steps"
            )
    constant = _mean_logged(history, "eval_constant_explanations")
    if constant is not None and constant > IDLE_EXPLANATIONS:
        yield (
            f"{constant:.0%} of the dev explanations have equal scores for all words, which rank nothing: try the "
            "normalizer softmax, or a lower learning rate"
        )


def _mean_logged(history: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [entry[name] for entry in history if name in entry]
    return fmean(values) if values else None


def _require_same_columns(train: Dataset, dev: Dataset) -> None:
    require_labels(train)
    require_labels(dev)
    if label_names(train) != label_names(dev):
        raise ExpoundError(f"train and dev have different labels: {label_names(train)} and {label_names(dev)}")
    missing = {"text", "text_pair", "image", "answer", "response"} & (set(train.column_names) ^ set(dev.column_names))
    if missing:
        raise ExpoundError(f"only one of train and dev has the column {', '.join(sorted(missing))}")


def _resolve_config(
    model: ExplainedModel,
    source: str,
    train: Dataset,
    dev: Dataset,
    args: TrainingArguments,
    objectives: Sequence[Objective],
) -> dict[str, Any]:
    """Return everything that the outcome depends on, for the run's record."""
    return {
        "model": {"source": source, "kind": type(model.model).__name__, "weights": digest_weights(model.model)},
        "processor": digest_processor(model.processing_class),
        "max_length": model.max_length,
        "labels": list(model.labels),
        "data": {
            "train": {"source": train.info.description} | summarize_data(train),
            "dev": {"source": dev.info.description} | summarize_data(dev),
        },
        "objectives": {objective.name: objective.params for objective in objectives},
        "arguments": get_changed_arguments(args),
        "seed": args.seed,
    }
