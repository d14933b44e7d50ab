"""From a model, texts and a metric to a masking model in a folder."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import EarlyStoppingCallback, PreTrainedModel, TrainerCallback, TrainingArguments, set_seed

from exegete.data.provenance import data_digest, plain, write_json
from exegete.data.selection import without
from exegete.errors import ExegeteError
from exegete.explainers.attributive_masking import AttributiveMasking
from exegete.explainers.attributive_masking.losses import Weights
from exegete.metrics import Metric, metric
from exegete.models import ExplainedModel
from exegete.models import encode as encoding
from exegete.models.digest import processor_digest, weights_digest
from exegete.models.preserve import unchanged_random_state, weights_fixed
from exegete.objectives.masking import masking_objectives
from exegete.training.loop.batches import said_once
from exegete.training.loop.fine_tune import DEFAULTS, IRRELEVANT, TrainResult, _arguments, _lasting
from exegete.training.loop.run import HISTORY, Run
from exegete.training.loop.stop import StopAfterStep
from exegete.training.masking.data import only_texts
from exegete.training.masking.trainer import MaskingTrainer

logger = logging.getLogger(__name__)

USUAL: Mapping[str, Any] = {
    "num_train_epochs": 10,
    "learning_rate": 4e-5,
    "per_device_train_batch_size": 20,
    "warmup_steps": 0,
    "weight_decay": 0.01,
    "max_grad_norm": 0.0,
}
EVALUATIONS = 0.32


def train_masking(
    model: ExplainedModel,
    train: Dataset,
    dev: Dataset,
    output_dir: str | Path,
    *,
    selection: str | Metric = "aopc_comprehensiveness",
    also: tuple[str | Metric, ...] = (),
    weights: Weights | None = None,
    backbone: str | PreTrainedModel | None = None,
    tokenizer: Any = None,
    choices: Mapping[str, Any] | None = None,
    arguments: Mapping[str, Any] | None = None,
    early_stopping_patience: int | None = None,
    seed: int = 0,
    resume: bool = True,
    overwrite: bool = False,
) -> TrainResult:
    """Trains a masking model for a model, from which `exegete.explainer("attributive_masking:FOLDER")` takes it.

    Judges it every 0.32 epochs (or `eval_steps`), keeps the state that the selection metric prefers, goes on where a
    stopped or killed run of the same configuration stopped, and does not repeat a finished one. Rows of `train` whose
    texts are in `dev` too are left out.

    Args:
        model: what is explained; its weights, mode and gradients are after the run what they were.
        train: texts or pairs in canonical form; labels are not looked at.
        dev: the same columns.
        output_dir: a folder of its own.
        selection: the metric that chooses.
        also: metrics that are only logged.
        weights: λ of the three terms; default: ½ each.
        backbone: see `AttributiveMasking.for_model`.
        tokenizer: of a backbone that is a model.
        choices: further settings, see `Settings`.
        arguments: the Trainer's, on top of the paper's (10 epochs, batches of 20, learning rate 4e-5, for
            decoders 8e-5, no clipping).
        early_stopping_patience: evaluations without improvement after which training stops.
        seed: what new weights, the order of the data and dropout depend on.
        resume: go on from the newest whole checkpoint; otherwise start over.
        overwrite: replace what is in the folder, whatever it is.

    Returns:
        The run; its `model` is the one that was explained.
    """
    judges = tuple(each if isinstance(each, Metric) else metric(each) for each in (selection, *also))
    train, dev = only_texts(without(train, dev)), only_texts(dev)
    if not len(train) or not len(dev):
        raise ExegeteError(f"there are {len(train)} texts to train on that are not among the {len(dev)} to choose on")
    args = masking_arguments({**usual(model), **(arguments or {})}, judges, len(train), Path(output_dir), seed)
    spec = selection if isinstance(selection, str) else selection.name
    settings = {
        "metric": spec,
        "learning_rate": args.learning_rate,
        "nominal_steps": 10 if model.is_decoder else 20,
        **({} if weights is None else {"weights": weights}),
        **(choices or {}),
    }
    masking = new_masking(model, backbone, tokenizer, settings, seed)
    run = Run(Path(output_dir), _resolved(model, masking, judges, train, dev, args, early_stopping_patience))
    done = run.finished() if resume and not overwrite else None
    if done is not None:
        logger.warning("%s holds the finished run of this configuration: nothing to do", run.folder)
        return TrainResult(run.folder, model, done, reused=True)
    stop = StopAfterStep()
    callbacks: list[TrainerCallback] = [stop]
    if early_stopping_patience is not None:
        callbacks.append(EarlyStoppingCallback(early_stopping_patience))
    with run.writing(writes=args.should_save), weights_fixed(model), unchanged_random_state():
        checkpoint = run.begin(resume=resume, overwrite=overwrite, writes=args.should_save)
        loop = MaskingTrainer(model, args, masking, judges, callbacks=callbacks, train_dataset=train, eval_dataset=dev)
        return _trained(loop, run, checkpoint, stop)


def new_masking(
    model: ExplainedModel, backbone: Any, tokenizer: Any, settings: Mapping[str, Any], seed: int
) -> AttributiveMasking:
    """A masking model whose new weights depend on the seed alone."""
    with unchanged_random_state():
        set_seed(seed)
        return AttributiveMasking.for_model(model, backbone, tokenizer, **settings)


def usual(model: ExplainedModel) -> dict[str, Any]:
    """The paper's arguments for explaining a model: decoders at twice the rate."""
    return {**USUAL, "learning_rate": (2 if model.is_decoder else 1) * USUAL["learning_rate"]}


def masking_arguments(
    given: Mapping[str, Any], judges: Sequence[Metric], rows: int, folder: Path, seed: int
) -> TrainingArguments:
    """The Trainer's arguments: what is given, on top of `USUAL`; the first metric chooses unless told otherwise."""
    chosen = {**USUAL, **given}
    together = chosen["per_device_train_batch_size"] * chosen.get("gradient_accumulation_steps", 1)
    steps = max(1, round(EVALUATIONS * -(-rows // together)))
    lower = dict.fromkeys(("loss", *(term.name for term in masking_objectives(Weights()))), False)
    directions = lower | {judge.name: judge.card.higher_is_better for judge in judges}
    defaults = {**DEFAULTS, "eval_steps": steps, "metric_for_best_model": judges[0].name}
    return _arguments(chosen, defaults, folder, directions, seed)


def _trained(loop: MaskingTrainer, run: Run, checkpoint: Path | None, stop: StopAfterStep) -> TrainResult:
    """Runs the loop to its end or to a signal."""
    begun, modes = time.monotonic(), {module: module.training for module in loop.explained.modules()}
    try:
        with said_once(encoding.__name__):
            with stop.listening():
                loop.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
            steps = loop.state.global_step
            if stop.stopped and steps < loop.state.max_steps:
                seconds = time.monotonic() - begun
                return TrainResult(run.folder, loop.explained, {}, steps, seconds, finished=False, signal=stop.signal)
            figures = loop.evaluate()
    finally:
        for module, mode in modes.items():
            module.training = mode
    metrics = {name.removeprefix("eval_"): value for name, value in figures.items() if _lasting(name)}
    unnamed = run.unnamed
    loop.save_model(str(unnamed))
    if loop.args.should_save:
        write_json(unnamed / HISTORY, {"history": loop.state.log_history})
        run.finish(unnamed, metrics)
    return TrainResult(run.folder, loop.explained, metrics, steps, time.monotonic() - begun)


def _resolved(
    model: ExplainedModel,
    masking: AttributiveMasking,
    judges: tuple[Metric, ...],
    train: Dataset,
    dev: Dataset,
    args: TrainingArguments,
    patience: int | None,
) -> dict[str, Any]:
    """All that the outcome depends on."""
    settled = args.to_dict()
    usual = TrainingArguments(output_dir=args.output_dir).to_dict()
    changed = {name: value for name, value in settled.items() if value != usual.get(name) and name not in IRRELEVANT}
    return {
        "trainer": MaskingTrainer.__name__,
        "model": {"source": model.config._name_or_path, "weights": weights_digest(model.model), **model.settings},
        "processors": [processor_digest(each.processing_class) for each in (model, masking.reader)],
        "backbone": weights_digest(masking.reader.model),
        "settings": plain(asdict(masking.settings)),
        "metrics": {judge.name: plain(judge.params) for judge in judges},
        "data": {
            name: {"rows": len(data), "digest": data_digest(data)} for name, data in (("train", train), ("dev", dev))
        },
        "early_stopping_patience": patience,
        "arguments": plain(changed),
        "seed": args.seed,
    }
