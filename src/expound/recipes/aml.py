"""AML (attributive masking): a model that learns which words another model's predictions need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from datasets import Dataset

from expound.errors import ExpoundError
from expound.explainers.attributive_masking.losses import Inverse, MaskWeights, Sparsity
from expound.explainers.attributive_masking.modes import Mode, choose_mode
from expound.explainers.attributive_masking.retokenization import Aggregation
from expound.metrics import METRICS, PRESETS
from expound.metrics import metric as metric_of
from expound.metrics.presets import FLOORED
from expound.recipes.base import Effect, Recipe, load_explained_model
from expound.training import RunOptions, TrainResult
from expound.training.loop.starting_model import Source
from expound.training.masking.run import sample_stratified, train_masking
from expound.training.masking.search import WeightSearch

SEARCH = "search"
TRIALS = 30
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
    "Refinement (fAML) may change low-rank parts of the upper layers instead of all weights: rank and refine_layers.",
    "Masked words get no attention (omit), which was best in a trial; the paper's main results have [MASK] embeddings.",
    "Refinement judges the map after its last step too.",
    "Trials are pruned by the median, in the metric's own direction.",
)


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
        choices = {**self.choices, "mode": self.choices["mode"] or choose_mode(explained)}
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
        str | None, "Encoder that learns to mask. Default: the explained model, if it is an encoder."
    ] = None,
    preservation_weight: Annotated[float | None, "λ_p; with --trials, the λ that are not given are searched."] = None,
    sparsity_weight: Annotated[float | None, "λ_a. Default without a search: 0.1, the others 0.5."] = None,
    inverse_weight: Annotated[float | None, "λ_inv."] = None,
    trials: Annotated[
        int | None, "Search the weights first, in this number of trials (the paper's: 30). Default: no search."
    ] = None,
    storage: Annotated[
        str | None, "URL of the search's storage, for several machines. Default: SQLite beside the output folder."
    ] = None,
    masking: Annotated[
        Mode | None,
        "What replaces masked tokens. Default: omit (no attention to them), or mask for models that cannot omit.",
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

    --model is the fine-tuned classifier that is explained; it is not changed. The result is an explainer:
    expound compare --methods attributive_masking:OUTPUT, or attributive_masking:OUTPUT?refine_steps=10.

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


def add_paper_rounding(spec: str) -> str:
    """Return the metric's spec; a bare id gets the paper's rounding and divisor. ExpoundError if it is unknown."""
    if "?" not in spec and spec in METRICS:
        # the authors' code rounds the number of tokens down and divides AOPC by the number of fractions plus one
        params = PRESETS["aml"].get(spec, FLOORED.get(spec, {}))
        query = "&".join(f"{name}={value}" for name, value in params.items())
        spec = f"{spec}?{query}" if query else spec
    metric_of(spec)
    return spec
