"""Trains a masking model for a model (Barkan et al. 2024, AML, eq. 4 to 7)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import ClassLabel, Dataset
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel, TrainerCallback, TrainingArguments, set_seed

from expound.data.provenance import summarize_data, to_json_value
from expound.data.readers.exchanges import TEXTS, exclude_examples
from expound.errors import ExpoundError
from expound.explainers.attributive_masking import AttributiveMasking, losses
from expound.explainers.attributive_masking.losses import MaskWeights
from expound.explainers.learned.base import WEIGHTS
from expound.metrics import Metric, metric
from expound.models import Batch, ExplainedModel, Outputs
from expound.models.batch import require_finite_logits
from expound.models.loading.checkpoint import digest_processor, digest_weights
from expound.models.passes.hooks import skip_unread_positions
from expound.models.state import freeze_weights, keep_modes, preserve_random_state
from expound.objectives import StepContext
from expound.objectives.base import Objective, TrainingStep
from expound.training.loop.lora import inject_lora, merge_lora
from expound.training.loop.options import DEFAULT_ARGUMENTS, RunOptions, get_changed_arguments, make_training_arguments
from expound.training.loop.run import TrainingRun
from expound.training.loop.trainer import TrainResult, execute
from expound.training.loop.training_module import TrainingModule, stack_terms


@dataclass(frozen=True, kw_only=True)
class MaskingStep(TrainingStep):
    """A training step of a masking model G; `model` is the explained model F, `outputs` is its pass on whole inputs.

    `answer` [B, C]: probabilities of F on whole inputs, without a graph. `scores` [B, L']: the share of each token that
    the mask keeps, in the tokens of G; `own_content` [B, L']: which of them are content. `kept` and `without` [B, C]:
    logits of F under the mask and under the inverse mask.
    """

    answer: Tensor
    scores: Tensor
    own_content: Tensor
    kept: Tensor
    without: Tensor


@dataclass(frozen=True)
class MaskTerm(Objective):
    """One of the three losses of a masking model (eq. 4): `loss` returns its values [B], the term is their mean."""

    name: str = ""
    weight: float = 0.5
    loss: Callable[[MaskingStep], Tensor] | None = field(default=None, repr=False)

    def __call__(self, step: TrainingStep) -> Tensor:
        """Return the mean over the examples, a scalar."""
        if not isinstance(step, MaskingStep) or self.loss is None:
            raise ExpoundError(f"{self.name} trains a model that masks another one's input: train it by the recipe aml")
        return self.loss(step).mean()


def masking_objectives(weights: MaskWeights) -> tuple[MaskTerm, ...]:
    """Return the three terms of eq. 4 with these weights; those of weight 0, too, whose values are logged."""

    def measure_sparsity(step: MaskingStep) -> Tensor:
        # the authors' code also counts padding and special tokens, so that λ_a depends on the padding
        values = losses.sparsity(step.scores, step.own_content, weights.sparsity_form)
        is_warming_up = step.context.training and step.context.number < weights.sparsity_warmup
        return values * (step.context.number / weights.sparsity_warmup) if is_warming_up else values

    def measure_inverse(step: MaskingStep) -> Tensor:
        return losses.inverse(step.without, step.answer, weights.inverse_form)

    return (
        MaskTerm(
            "prediction_preservation", weights.preservation, lambda step: losses.preservation(step.kept, step.answer)
        ),
        MaskTerm("mask_sparsity", weights.sparsity, measure_sparsity),
        MaskTerm("inverse_masking", weights.inverse, measure_inverse),
    )


MEAN_MASK, COLLAPSE = "mean_mask", 0.02
"""The dev figure of the share that masks keep; a run stops below this value, and later above 1 minus this value."""
MASK_SPREAD, FLAT = "mask_spread", 0.05
"""The dev figure of the difference between an example's highest and lowest mask; below FLAT it ranks nothing."""


class MaskCollapseError(ExpoundError):
    """Masks that are all 0, or all 1."""


class MaskingModule(TrainingModule):
    """A masking model that is trained on the predictions of the model it explains; labels are not used.

    The explained model stays frozen and in evaluation mode. Evaluations have a figure for each metric of the maps,
    `mean_mask`, the share that masks keep, and `mask_spread`, by how much an example's masks differ. Masks that keep
    nothing stop the run, and so do masks that keep everything in its second half. Files have the masking model only.

    Args:
        explained: the model to explain, a text classifier. Its weights must not require gradients (see
            `freeze_weights`), so that the optimizer leaves them out.
        masking: the masking model to train.
        metrics: the metrics of an evaluation, each logged under its name.
    """

    def __init__(self, explained: ExplainedModel, masking: AttributiveMasking, metrics: Sequence[Metric]) -> None:
        super().__init__(explained, masking_objectives(masking.settings.weights))
        if not metrics:
            raise ExpoundError("a masking model is chosen by a metric: give at least one")
        self.masking, self.metrics = masking, tuple(metrics)

    def get_trained_model(self) -> Any:
        """Return the masking model's backbone."""
        masking: Any = nn.Module.__getattr__(self, "masking")
        return masking.reader.model

    def train(self, mode: bool = True) -> MaskingModule:
        """Set the mode of the masking model only."""
        super().train(mode)
        self.explained.train(False)
        return self

    def compute_terms(
        self, batch: Batch, context: StepContext, observed: Outputs | None = None, own_loss: Tensor | None = None
    ) -> dict[str, Any]:
        """Return the terms [number of objectives], the explained model's logits, and the maps over its tokens."""
        model, masking = self.explained, self.masking
        with torch.no_grad():
            outputs = model(batch)
            answer = model.task.probabilities(require_finite_logits(outputs.logits))
        reading = masking.retokenize(model, batch)
        own = masking(reading, answer)
        scores = masking.map_scores(reading, own)
        generator = context.generator("masking", batch.device)
        drawn = torch.rand(batch.content.shape, generator=generator, device=batch.device)
        reference = masking.masking.reference(model, batch, drawn)
        # Both the masked input and its inverse are read in one pass of twice the batch.
        doubled = None if reference is None else reference.repeat(2, 1, 1)
        with skip_unread_positions(model, batch):
            twice, both = batch.select([*range(len(batch))] * 2), torch.cat([scores, 1 - scores])
            kept, without = masking.masking.logits(model, twice, both, doubled).chunk(2)
        step = MaskingStep(
            model, batch, outputs, context,
            answer=answer, scores=own, own_content=reading.own.content, kept=kept, without=without,
        )  # fmt: skip
        terms = [objective(step) for objective in self.objectives]
        return stack_terms(terms) | {"logits": outputs.logits, "scores": scores}

    @torch.no_grad()
    def predict(self, batch: Batch, outputs: Mapping[str, Any]) -> Tensor:
        """Return every metric's values, the share that each mask keeps, and its spread [B, number of metrics + 2]."""
        target = self.explained.task.predict(outputs["logits"], batch)
        scores, values = outputs["scores"], []
        with self.explained.cache_perturbed():
            for metric in self.metrics:
                values.append(metric.evaluate(self.explained, batch, scores, target)[metric.name])
        highest, lowest = (scores.masked_fill(~batch.content, edge) for edge in (-torch.inf, torch.inf))
        values += [scores.sum(1) / batch.content.sum(1), highest.amax(1) - lowest.amin(1)]
        return torch.stack([each.double() for each in values], 1)

    def score(self, predicted: Any, dataset: Any, batch_size: int) -> dict[str, float]:
        """Return each metric's mean over the examples for which it is defined, `mean_mask` and `mask_spread`."""
        means = torch.from_numpy(predicted).nanmean(0).tolist()
        self._require_no_collapse(means[-2])
        return dict(zip([*(metric.name for metric in self.metrics), MEAN_MASK, MASK_SPREAD], means, strict=True))

    def _require_no_collapse(self, mean: float) -> None:
        """Raise MaskCollapseError if the masks keep nothing, or in the second half of the run everything."""
        # Near 0 the gradients of all terms vanish, and masks stay there. Near 1 that of sparsity (`bce`) does not, and
        # many masks that keep nearly everything at first keep less later.
        is_first_half = self.context.number <= self.n_steps / 2
        if COLLAPSE < mean < 1 - COLLAPSE or (mean > COLLAPSE and is_first_half):
            return
        kept, weight = ("nothing", "lower") if mean <= COLLAPSE else ("everything", "raise")
        raise MaskCollapseError(
            f"the masks collapsed at step {self.context.number}: they keep {kept} (mean {mean:.3f}). "
            f"{weight.capitalize()} --sparsity-weight, lower --learning-rate, or use --masking omit"
        )

    def finalize(self) -> bool:
        """Merge the adapters of the masking model, if it has any; it is saved as a whole."""
        has_adapters = any(".lora_" in name for name, _ in self.masking.named_parameters())
        return has_adapters and merge_lora(self.masking.reader.model)

    def save(self, folder: Path, state_dict: Mapping[str, Tensor] | None = None) -> None:
        """Save the masking model."""
        self.masking.save_pretrained(folder)

    def load(self, folder: Path) -> None:
        """Load the masking model's weights."""
        self.masking.load_state_dict(load_file(folder / WEIGHTS))


class PruningCallback(TrainerCallback):
    """Reports each evaluation to an Optuna trial, which ends after its epochs, or when its study prunes it."""

    def __init__(self, trial: Any, name: str, epochs: float) -> None:
        self.trial, self.name, self.epochs, self.pruned = trial, name, epochs, False

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
        """Report the metric to the study, and stop if it prunes the trial."""
        # The evaluation after the last epoch is the trial's value.
        if state.epoch >= self.epochs or self.pruned:
            return
        self.trial.report(metrics[self.name], state.global_step)
        if self.trial.should_prune():
            self.pruned = control.should_training_stop = True

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End the trial after its last epoch, without another evaluation."""
        if state.epoch >= self.epochs:
            control.should_training_stop = True
            control.should_evaluate = False


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
        ExpoundError: masks that keep no token or all, see `MaskingModule`; unusable data, arguments or folder.
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

    with freeze_weights(model), keep_modes(model), preserve_random_state():
        make_module = partial(MaskingModule, model, masking, judges)
        result = execute(run, args, options, make_module, (train, dev), lambda: model)
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
