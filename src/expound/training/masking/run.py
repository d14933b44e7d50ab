"""Trains a masking model for a model into a folder."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset
from transformers import PreTrainedModel, TrainingArguments, set_seed

from expound.data.provenance import summarize_data, to_json_value
from expound.data.selection import TEXTS, exclude_examples
from expound.errors import ExpoundError
from expound.explainers.attributive_masking import AttributiveMasking
from expound.explainers.attributive_masking.losses import MaskWeights
from expound.metrics import Metric, metric
from expound.models import ExplainedModel
from expound.models.loading.digest import digest_processor, digest_weights
from expound.models.state import freeze_weights, keep_modes, preserve_random_state
from expound.objectives.masking import masking_objectives
from expound.training.loop.execute import StopAfterStep, TrainResult, execute
from expound.training.loop.lora import inject_lora
from expound.training.loop.options import DEFAULT_ARGUMENTS, RunOptions, get_changed_arguments, make_training_arguments
from expound.training.loop.run import TrainingRun
from expound.training.loop.trainer import ObjectiveTrainer
from expound.training.masking.module import FLAT, MASK_SPREAD, MaskingModule

logger = logging.getLogger(__name__)
DEFAULT_MASKING_ARGUMENTS: Mapping[str, Any] = {
    "num_train_epochs": 10,
    "learning_rate": 4e-5,
    "per_device_train_batch_size": 20,
    "warmup_steps": 0,
    "weight_decay": 0.01,
    "max_grad_norm": 0.0,
}
EVALUATION_INTERVAL = 0.32
"""Epochs between evaluations, as in the paper."""


def train_masking(
    model: ExplainedModel,
    train: Dataset,
    dev: Dataset,
    output_dir: str | Path,
    *,
    selection: str | Metric = "aopc_comprehensiveness",
    logged_metrics: tuple[str | Metric, ...] = (),
    weights: MaskWeights | None = None,
    backbone: str | PreTrainedModel | None = None,
    tokenizer: Any = None,
    masking_settings: Mapping[str, Any] | None = None,
    options: RunOptions | None = None,
    **overrides: Any,
) -> TrainResult:
    """Train a masking model for a model, to be loaded as `expound.explainer("attributive_masking:FOLDER")`.

    Evaluates every 0.32 epochs (or `eval_steps`), keeps the best state by the selection metric, resumes an interrupted
    run of the same configuration, and does not repeat a finished one. Examples of `train` whose texts are also in
    `dev` are left out.

    Args:
        model: the model to explain; its weights, mode and gradients are the same after the run.
        train: texts or pairs in canonical form; labels are not used.
        dev: examples with the same columns.
        output_dir: the run's folder.
        selection: the metric that chooses the best state.
        logged_metrics: metrics that are logged only.
        weights: λ of the three terms. Default: ½ each.
        backbone: see `AttributiveMasking.for_model`.
        tokenizer: tokenizer of a backbone that is given as a model.
        masking_settings: further settings, see `Settings`.
        options: see `RunOptions`; its arguments override the paper's (10 epochs, batches of 20, learning rate 4e-5, or
            8e-5 for decoders, no clipping).
        overrides: single options by name, which override `options`.

    Returns:
        The run; its `model` is the explained model.

    Raises:
        ExpoundError: masks that keep nothing or everything, see `MaskingModule`; unusable data, arguments or folder.
    """
    options = RunOptions.with_overrides(options, overrides)
    if options.max_length not in (None, model.max_length):
        model = model.with_max_length(options.max_length)
    judges = []
    for judge in (selection, *logged_metrics):
        judges.append(judge if isinstance(judge, Metric) else metric(judge))
    train, dev = select_texts(exclude_examples(train, dev)), select_texts(dev)
    if not len(train) or not len(dev):
        raise ExpoundError(
            f"expected training texts that are not among the dev texts, got {len(train)}, and {len(dev)} dev texts"
        )
    options = options.fill_defaults(default_arguments(model))
    args = make_masking_arguments(options, judges, len(train), Path(output_dir))
    settings: dict[str, Any] = {"metric": selection, "learning_rate": args.learning_rate, "nominal_steps": 20}
    if isinstance(selection, Metric):
        settings["metric"] = selection.name
    if model.is_decoder:
        settings["nominal_steps"] = 10
    if weights is not None:
        settings["weights"] = weights
    settings |= masking_settings or {}
    masking = make_masking_model(model, backbone, tokenizer, options.lora_params, settings, options.seed)
    run = TrainingRun(Path(output_dir), _resolve_config(model, masking, judges, train, dev, args, options))

    def make_trainer(stop: StopAfterStep) -> ObjectiveTrainer:
        data = {"train_dataset": train, "eval_dataset": dev, "callbacks": [stop, *options.callbacks]}
        return ObjectiveTrainer(MaskingModule(model, masking, judges), args, options, **data)

    with freeze_weights(model), keep_modes(model), preserve_random_state():
        result = execute(run, args, options, make_trainer, lambda: model)
    spread = result.metrics.get(MASK_SPREAD)
    if args.should_save and spread is not None and spread < FLAT:
        logger.warning(
            "the masks are nearly the same for all words of a text (they differ by %.3f), so they rank little: train "
            "for more epochs (--epochs), with a higher --learning-rate, or with another --sparsity-weight",
            spread,
        )
    return result


def make_masking_model(
    model: ExplainedModel,
    backbone: Any,
    tokenizer: Any,
    lora: Mapping[str, Any],
    settings: Mapping[str, Any],
    seed: int,
) -> AttributiveMasking:
    """Return a new masking model whose weights depend on the seed only; `lora`: adapters of its encoder, if any."""
    with preserve_random_state():
        set_seed(seed)
        masking = AttributiveMasking.for_model(model, backbone, tokenizer, **settings)
        if lora:
            inject_lora(masking.reader.model, **lora)
        return masking


def default_arguments(model: ExplainedModel) -> dict[str, Any]:
    """Return the paper's arguments for explaining a model; decoders have twice the learning rate."""
    rate = DEFAULT_MASKING_ARGUMENTS["learning_rate"]
    if model.is_decoder:
        rate *= 2
    return {**DEFAULT_MASKING_ARGUMENTS, "learning_rate": rate}


def make_masking_arguments(options: RunOptions, judges: Sequence[Metric], rows: int, folder: Path) -> TrainingArguments:
    """Return the Trainer's arguments: the options' on top of the defaults. By default the first metric chooses.

    Raises:
        ExpoundError: options that change the explained model; else as `make_training_arguments`.
    """
    options.forbid_model_options(allows_lora=True)
    chosen = {**DEFAULT_MASKING_ARGUMENTS, **options.arguments}
    together = chosen["per_device_train_batch_size"] * chosen.get("gradient_accumulation_steps", 1)
    steps = max(1, round(EVALUATION_INTERVAL * -(-rows // together)))
    lower = dict.fromkeys(("loss", *(term.name for term in masking_objectives(MaskWeights()))), False)
    higher_is_better = lower | {judge.name: judge.card.higher_is_better for judge in judges}
    defaults = {
        **DEFAULT_ARGUMENTS,
        **DEFAULT_MASKING_ARGUMENTS,
        "eval_steps": steps,
        "metric_for_best_model": judges[0].name,
    }
    return make_training_arguments(options, defaults, folder, higher_is_better)


def _resolve_config(
    model: ExplainedModel,
    masking: AttributiveMasking,
    judges: Sequence[Metric],
    train: Dataset,
    dev: Dataset,
    args: TrainingArguments,
    options: RunOptions,
) -> dict[str, Any]:
    """Return everything that the outcome depends on, for the run's record."""
    return {
        "module": MaskingModule.__name__,
        "model": {"source": model.config._name_or_path, "weights": digest_weights(model.model), **model.settings},
        "processors": [digest_processor(each.processing_class) for each in (model, masking.reader)],
        "backbone": digest_weights(masking.reader.model),
        "settings": to_json_value(asdict(masking.settings)),
        "metrics": {judge.name: to_json_value(judge.params) for judge in judges},
        "data": {"train": summarize_data(train), "dev": summarize_data(dev)},
        "lora": options.lora_params,
        "early_stopping_patience": options.early_stopping_patience,
        "arguments": to_json_value(get_changed_arguments(args)),
        "seed": args.seed,
    }


def sample_stratified(data: Dataset, count: int | None, seed: int) -> Dataset:
    """Return a random sample of at most `count` examples, in proportion to the classes, in the data's order.

    Raises:
        ExpoundError: a count below 1.
    """
    if count is None or count >= len(data):
        return data
    if count < 1:
        raise ExpoundError(f"expected a sample of at least one row, got {count}")
    order = np.random.default_rng(seed).permutation(len(data))
    if not isinstance(data.features.get("label"), ClassLabel):
        return data.select(np.sort(order[:count]))
    # Each example gets its relative rank within its class. The `count` lowest ranks have every class in proportion.
    labels = np.asarray(data["label"][:])[order]
    place = np.zeros(len(order))
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        place[own] = (np.arange(len(own)) + 0.5) / len(own)
    return data.select(np.sort(order[np.argsort(place, kind="stable")[:count]]))


def select_texts(data: Dataset) -> Dataset:
    """Return the data with its text columns only."""
    names = [name for name in TEXTS if name in data.column_names]
    if not names:
        raise ExpoundError(f"a masking model reads texts; the data has the columns {', '.join(data.column_names)}")
    return data.select_columns(names)
