"""AML (attributive masking): a model that learns which words another model's predictions need."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from datasets import Dataset
from tqdm import tqdm
from transformers import PreTrainedModel

from expound.data.provenance import digest, digest_data, to_json_value
from expound.data.readers.exchanges import exclude_examples
from expound.errors import ExpoundError
from expound.explainers.attributive_masking import AttributiveMasking
from expound.explainers.attributive_masking.losses import Inverse, MaskWeights, Sparsity
from expound.explainers.attributive_masking.modes import Mode, choose_mode
from expound.explainers.attributive_masking.retokenization import Aggregation
from expound.explainers.plan import measure_pass
from expound.metrics import METRICS, PRESETS, Metric
from expound.metrics import metric as metric_of
from expound.metrics.presets import FLOORED
from expound.models import ExplainedModel
from expound.models.encoding import encode as encoding
from expound.models.loading.checkpoint import digest_processor, digest_weights
from expound.models.state import freeze_weights, preserve_random_state
from expound.recipes.base import Effect, Recipe, load_explained_model
from expound.recipes.search import claim_place, count_finished, open_study, run_trials
from expound.training import ObjectiveTrainer, RunOptions, TrainResult
from expound.training.loop.data import log_once
from expound.training.loop.starting_model import Source
from expound.training.masking import (
    MaskCollapseError,
    MaskingModule,
    PruningCallback,
    default_arguments,
    make_masking_arguments,
    make_masking_model,
    sample_stratified,
    select_texts,
    train_masking,
)

if TYPE_CHECKING:
    from optuna import Trial

logger = logging.getLogger(__name__)
SEARCH = "search"
TRIALS = 30
TERMS = ("preservation", "sparsity", "inverse")
PASSES_PER_STEP, PASSES_PER_EVALUATION = 9, 6
"""Forward passes of the explained model per example; a backward pass counts as two."""
SPARSITY_WEIGHT = 0.1
PAPER = {"masking": "mask"}
EQUATION = r"\text{CE}(F(x \odot a), F(x)) + \lambda_{inv} \ldots + \lambda_a \ldots"
USE = "Many texts, one pass each; any model, prompted ones too."
AVOID = "A handful of texts."
DEPARTURES = (
    "Validation rows are never training rows; the authors' IMDB validation set can overlap.",
    "y is encoded as the paper's sum over classes; the authors' code takes a mean, and never trains one class.",
    "Sparsity is a mean over the text's own tokens; the authors' code counts padding and special tokens.",
    "−log(1 − F) is taken from logits and needs no 1e-30.",
    "G starts from the fine-tuned F unless --backbone names another encoder; the paper's starts pretrained.",
    "The word embeddings of G are not trained.",
    "Refinement (fAML) may change low-rank parts of the upper layers only, with lora_rank and refine_layers.",
    "Masked words get no attention (omit), which was best in a trial; the paper's main results have [MASK] embeddings.",
    "Refinement judges the map after its last step too.",
    "Trials are pruned by the median, in the metric's own direction.",
)


@dataclass(frozen=True, kw_only=True)
class WeightSearch:
    """A search with TPE over λ_p, λ_a and λ_inv in [0, 1]: short trainings on part of the data, pruned at the median.

    See `run_trials`, also for a search that was interrupted; several processes or machines may share one storage.

    Args:
        trials: number of finished or pruned trials, over all processes.
        epochs: epochs per trial; the learning rate decays as for the number in `arguments` (10).
        train_rows: training examples per trial, in proportion to the classes.
        dev_rows: examples that each trial is evaluated on.
        storage: an Optuna storage URL. Default: an SQLite file in the folder.
        seed: seed of the sampler.
        weights: the forms of the terms; its λ are not used.
        fixed: λ that are not searched, by the name of their term.
    """

    trials: int = TRIALS
    epochs: float = 2
    train_rows: int | None = 450
    dev_rows: int | None = 200
    storage: str | None = None
    seed: int = 42
    weights: MaskWeights = field(default_factory=MaskWeights)
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.trials < 1 or self.epochs <= 0:
            raise ExpoundError(f"expected at least one trial of more than 0 epochs, got {self.trials} of {self.epochs}")

    def run(
        self,
        model: ExplainedModel,
        train: Dataset,
        dev: Dataset,
        output_dir: str | Path,
        selection: str | Metric,
        *,
        backbone: str | PreTrainedModel | None = None,
        tokenizer: Any = None,
        masking_settings: Mapping[str, Any] | None = None,
        options: RunOptions | None = None,
    ) -> MaskWeights:
        """Return the weights of the best trial by the metric. Arguments: see `train_masking`.

        Raises:
            ExpoundError: the storage cannot be opened, or the metric is undefined in all trials.
        """
        judge = selection if isinstance(selection, Metric) else metric_of(selection)
        train = select_texts(sample_stratified(exclude_examples(train, dev), self.train_rows, self.seed))
        dev = select_texts(sample_stratified(dev, self.dev_rows, self.seed))
        options, settings, folder = options or RunOptions(), dict(masking_settings or {}), Path(output_dir)
        # Another search on the same storage must not reuse these trials: all that a trial depends on but λ.
        facts = {
            "model": {"weights": digest_weights(model.model), **model.settings},
            "processors": [digest_processor(each) for each in (model.processing_class, tokenizer)],
            "data": [digest_data(train), digest_data(dev)],
            "metric": {judge.name: judge.params},
            "backbone": backbone if isinstance(backbone, str | None) else digest_weights(backbone),
            "settings": settings,
            "arguments": options.trainer_arguments,
            "search": [self.epochs, self.seed, self.fixed, options.lora_params],
            "forms": [self.weights.inverse_form, self.weights.sparsity_form, self.weights.sparsity_warmup],
        }
        folder.mkdir(parents=True, exist_ok=True)
        url = self.storage or f"sqlite:///{(folder / 'search.db').resolve()}"
        name = f"aml-{judge.name}-{digest(to_json_value(facts))}"
        study = open_study(url, name, higher_is_better=judge.card.higher_is_better)
        left = self.trials - count_finished(study)
        if left > 0:
            passes = left * self.epochs * (PASSES_PER_STEP * len(train) + PASSES_PER_EVALUATION * len(dev))
            logger.warning(
                "searching the weights of three terms: %d trials, about %s; the same call resumes them from %s",
                left, tqdm.format_interval(passes * measure_pass(model, list(train))), folder,
            )  # fmt: skip
        make_masking = partial(make_masking_model, model, backbone, tokenizer, options.lora_params)
        run_trials(study, self.trials, partial(self._train, model, train, dev, judge, make_masking, settings, options))
        try:
            return replace(self.weights, **self.fixed, **study.best_params)
        except ValueError as error:
            raise ExpoundError(
                f"no trial was finished: {judge.name} is undefined for these texts, or all diverged"
            ) from error

    def _train(
        self,
        model: ExplainedModel,
        train: Dataset,
        dev: Dataset,
        judge: Metric,
        make_masking: Callable[[Mapping[str, Any], int], AttributiveMasking],
        settings: Mapping[str, Any],
        options: RunOptions,
        trial: Trial,
    ) -> float | None:
        """Train one trial; return the metric after its last epoch, None if it is pruned or its masks collapse."""
        weights = replace(self.weights, **self.fixed, **suggest_weights(trial, self.seed, self.fixed))
        watch = PruningCallback(trial, f"eval_{judge.name}", self.epochs)
        with tempfile.TemporaryDirectory() as folder, freeze_weights(model), preserve_random_state():
            quiet = {"save_strategy": "no", "load_best_model_at_end": False, "disable_tqdm": True}
            arguments = {**options.trainer_arguments, **quiet}
            options = replace(options, arguments=arguments, seed=self.seed).fill_defaults(default_arguments(model))
            args = make_masking_arguments(options, [judge], len(train), Path(folder))
            masking = make_masking({**settings, "weights": weights}, self.seed)
            data = {"train_dataset": train, "eval_dataset": dev, "callbacks": [watch]}
            loop = ObjectiveTrainer(MaskingModule(model, masking, [judge]), args, **data)
            with model.evaluation_mode(), log_once(encoding.__name__):
                try:
                    loop.train()
                    return None if watch.pruned else float(loop.evaluate()[f"eval_{judge.name}"])
                except MaskCollapseError:
                    return None


def suggest_weights(trial: Trial, seed: int, fixed: Collection[str] = ()) -> dict[str, Any]:
    """Draw a trial's λ that are not fixed."""
    from optuna.samplers import TPESampler

    # A sampler that is seeded by the trial's place draws the same λ in a resumed search.
    trial.study.sampler = TPESampler(seed=seed + claim_place(trial))
    return {name: trial.suggest_float(name, 0.0, 1.0) for name in TERMS if name not in fixed}


@dataclass(frozen=True, kw_only=True)
class AmlRecipe(Recipe):
    """Attributive masking (Barkan et al. 2024): a masking model G is trained for a fine-tuned model F that is fixed.

    `selection`: the metric that chooses the weights, the epoch and, at inference, the refined map. `weights`: the
    weights of the terms; None: `search` finds them first.
    """

    keeps_model: ClassVar[bool] = True

    selection: str
    weights: MaskWeights | None
    forms: MaskWeights
    search: WeightSearch
    backbone: str | None = None
    choices: Mapping[str, Any] = field(default_factory=dict)
    train_rows: int | None = 1000
    dev_rows: int | None = 200

    def run(self, model: Source, train: Dataset, dev: Dataset, folder: Path, options: RunOptions) -> TrainResult:
        """Train a masking model, see `train_masking`; `model` is the model that is explained.

        Raises:
            ExpoundError: a model from scratch, or options that are about training the model itself.
        """
        resolved = self.resolve_options(options, model, train)
        explained = load_explained_model(self.name, model, resolved)
        mode = self.choices["mode"]
        if mode is None:
            # Local attention shows in long texts only.
            mode = choose_mode(explained, explained.encode([max(select_texts(train), key=count_characters)]))
        choices = {**self.choices, "mode": mode}
        shared: dict[str, Any] = {"backbone": self.backbone, "masking_settings": choices, "options": resolved}
        weights = self.weights
        if weights is None:
            beside = folder.with_name(f"{folder.name}-{SEARCH}")
            weights = self.search.run(explained, train, dev, beside, self.selection, **shared)
        # §4.5 trains on 1,000 and selects on 200 examples, with the classes in their proportions
        train = sample_stratified(train, self.train_rows, options.seed)
        dev = sample_stratified(dev, self.dev_rows, options.seed)
        return train_masking(explained, train, dev, folder, selection=self.selection, weights=weights, **shared)


def aml(
    metric: Annotated[
        str,
        "Metric that explanations are trained for; any id of `expound metrics`, with the paper's rounding by default.",
    ] = "aopc_comprehensiveness",
    backbone: Annotated[
        str | None,
        "Encoder that learns to mask. Default: the explained model, if it is an encoder.",
    ] = None,
    preservation_weight: Annotated[
        float | None, "λ_p, weight of the prediction on the kept words. With --trials, weights not given are searched."
    ] = None,
    sparsity_weight: Annotated[
        float | None, "λ_a, weight of the share of kept words. Default without a search: 0.1, the others 0.5."
    ] = None,
    inverse_weight: Annotated[float | None, "λ_inv, weight of the prediction on the words left out."] = None,
    trials: Annotated[
        int | None, "Search the weights first, in this number of trials (the paper's: 30). Default: no search."
    ] = None,
    storage: Annotated[
        str | None, "URL of the search's storage, for several machines. Default: SQLite beside the output folder."
    ] = None,
    masking: Annotated[
        Mode | None,
        "What replaces masked tokens. Default: omit (no attention to them), or mask where attention takes no weights.",
    ] = None,
    predictor: Annotated[str | None, "Masked language model of --masking predicted."] = None,
    inverse_form: Annotated[Inverse, "Form of the inverse masking term."] = "log",
    sparsity_form: Annotated[Sparsity, "Form of the sparsity term."] = "bce",
    sparsity_warmup: Annotated[
        int, "Steps over which λ_a grows from 0, for large λ_a: with .5 masks can drop all words at once.", {"min": 0}
    ] = 0,
    aggregation: Annotated[Aggregation, "Aggregation of scores if the tokenizers differ."] = "max",
    train_rows: Annotated[int, "Number of training examples, in the proportions of the classes."] = 1000,
    dev_rows: Annotated[int, "Number of dev examples that choose weights and epoch."] = 200,
) -> Recipe:
    """Train a model that masks the words another model does not need, and so explains it in one pass (AML).

    --model is the fine-tuned classifier that is explained; it is not changed. A language model is a classifier with
    --template and --labels, and needs --backbone. The result is an explainer: expound compare --methods
    attributive_masking:OUTPUT, or attributive_masking:OUTPUT?refine_steps=10.

    With the defaults, masks of MiniLM have an A-C of .27 on SST and .30 on SNLI, and refined ones .31 and .35, against
    .28 and .29 of DecompX (100 examples, six seeds). A masking model is for one metric: --trials 30 searches the
    weights of the terms for it, as the paper does, and ends bad trials early.

    In one pass masks fall short elsewhere. From 800 film reviews of 256 tokens, two epochs in batches of 8 give .21
    against .40 of decompx_linear, and .39 refined (MiniLM, 40 reviews, three seeds): refine there, or use
    decompx_linear. On a prompted language model they have .09, refined .13, against .17 of lime and .05 of random words
    (SmolLM2, 240 sentences to train on, 40 judged, one seed): use lime there. For a Llama of four layers that was
    trained on SST alone, with MiniLM as --backbone, they have .09 after half of the default steps (200 dev sentences),
    against .35 of decompx_linear and .04 of random words (200 test sentences, one seed): use decompx_linear there.

    Example: expound train aml --model runs/sst --data sst:data/sst --metric aopc_comprehensiveness
    --output-dir runs/aml
    """
    forms = MaskWeights(inverse_form=inverse_form, sparsity_form=sparsity_form, sparsity_warmup=sparsity_warmup)
    params = {"preservation": preservation_weight, "sparsity": sparsity_weight, "inverse": inverse_weight}
    given: dict[str, Any] = {name: value for name, value in params.items() if value is not None}
    if storage is not None and trials is None:
        raise ExpoundError(
            "storage is for the search of the weights: set the number of trials, for instance --trials 30"
        )
    needs_search = trials is not None and len(given) < len(params)
    weights = None if needs_search else replace(forms, **{"sparsity": SPARSITY_WEIGHT, **given})
    return AmlRecipe(
        name="aml",
        paper="Barkan et al. 2024",
        selection=add_paper_rounding(metric),
        weights=weights,
        forms=forms,
        search=WeightSearch(trials=trials or TRIALS, storage=storage, weights=forms, fixed=given),
        backbone=backbone,
        arguments={
            "learning_rate": 2e-4,
            "num_train_epochs": 4,
            "per_device_train_batch_size": 16,
            "warmup_steps": 0.1,
        },
        paper_arguments={},
        choices={"mode": masking, "predictor": predictor, "aggregation": aggregation},
        train_rows=train_rows,
        dev_rows=dev_rows,
        effect=Effect(add_paper_rounding(metric), "attributive_masking:{run}", "decompx_linear"),
        departures=DEPARTURES,
    )


def count_characters(texts: Mapping[str, str]) -> int:
    """Return the number of characters of a text or pair."""
    return sum(map(len, texts.values()))


def add_paper_rounding(spec: str) -> str:
    """Return the metric's spec; a bare id gets the paper's rounding and divisor. ExpoundError if it is unknown."""
    if "?" not in spec and spec in METRICS:
        # the authors' code rounds the number of tokens down and divides AOPC by the number of fractions plus one
        params = PRESETS["aml"].get(spec, FLOORED.get(spec, {}))
        query = "&".join(f"{name}={value}" for name, value in params.items())
        spec = f"{spec}?{query}" if query else spec
    metric_of(spec)
    return spec
