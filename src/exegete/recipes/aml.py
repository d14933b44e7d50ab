"""A model that learns which words another model's predictions need (AML)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from datasets import Dataset

from exegete.errors import ExegeteError
from exegete.explainers.attributive_masking.losses import Inverse, MaskWeights, Sparsity
from exegete.explainers.attributive_masking.modes import Mode
from exegete.explainers.attributive_masking.retokenization import Aggregation
from exegete.metrics import METRICS, PRESETS
from exegete.metrics import metric as metric_of
from exegete.metrics.presets import FLOORED
from exegete.recipes.base import Recipe
from exegete.recipes.explained_model import load_explained_model
from exegete.training import RunOptions, TrainResult
from exegete.training.loop.starting_model import Source
from exegete.training.masking.data import sample_stratified
from exegete.training.masking.run import train_masking
from exegete.training.masking.search import WeightSearch

SEARCH = "search"
TRIALS = 30
DEPARTURES = (
    "Validation rows are never training rows; the authors' IMDB validation set can overlap.",
    "y is encoded as the paper's sum over classes; the authors' code takes a mean, and never trains one class.",
    "Sparsity is a mean over the text's own tokens; the authors' code counts padding and special tokens.",
    "−log(1 − F) is taken from logits and needs no 1e-30.",
    "Refinement judges the map after its last step too.",
    "Trials are pruned by the median, in the metric's own direction.",
)


@dataclass(frozen=True, kw_only=True)
class AmlRecipe(Recipe):
    """Attributive masking (Barkan et al. 2024): trains G for a fine-tuned F, which stays as it is.

    `selection`: the metric that chooses the weights, the epoch and, at inference, the refined map. `weights`: None
    searches them first by `search`.
    """

    selection: str
    weights: MaskWeights | None
    forms: MaskWeights
    search: WeightSearch
    backbone: str | None = None
    choices: Mapping[str, Any] = field(default_factory=dict)
    train_rows: int | None = 1000
    dev_rows: int | None = 200

    def run(self, model: Source, train: Dataset, dev: Dataset, folder: Path, options: RunOptions) -> TrainResult:
        """Trains a masking model into a folder; see `train_masking`. The model is the one that is explained.

        Raises:
            ExegeteError: a model from scratch, or options that are about training the model itself.
        """
        resolve_options = self.resolve_options(options, model, train)
        explained = load_explained_model(self.name, model, resolve_options)
        shared: dict[str, Any] = {
            "backbone": self.backbone,
            "masking_settings": self.choices,
            "options": resolve_options,
        }
        weights = self.weights
        if weights is None:
            beside = folder.with_name(f"{folder.name}-{SEARCH}")
            weights = self.search.run(explained, train, dev, beside, self.selection, **shared)
        rows = (
            sample_stratified(train, self.train_rows, options.seed),
            sample_stratified(dev, self.dev_rows, options.seed),
        )
        return train_masking(explained, *rows, folder, selection=self.selection, weights=weights, **shared)


def aml(
    metric: Annotated[
        str, "What explanations shall be good by: any id of `exegete metrics`; with the paper's rounding unless given."
    ] = "aopc_comprehensiveness",
    backbone: Annotated[
        str | None, "The encoder that learns to mask. Default: the explained model's own weights, if it is one."
    ] = None,
    preservation_weight: Annotated[float | None, "λ_p; with --trials the λ that are not given are searched."] = None,
    sparsity_weight: Annotated[float | None, "λ_a."] = None,
    inverse_weight: Annotated[float | None, "λ_inv."] = None,
    trials: Annotated[
        int | None, "Search the weights first, in so many trials (the paper's: 30). Default: the weights as they are."
    ] = None,
    storage: Annotated[
        str | None, "URL of the search's storage, for several machines. Default: SQLite beside the output."
    ] = None,
    masking: Annotated[Mode, "What takes the place of masked tokens."] = "mask",
    predictor: Annotated[str | None, "The masked language model of --masking predicted."] = None,
    inverse_form: Annotated[Inverse, "Form of the inverse masking term."] = "log",
    sparsity_form: Annotated[Sparsity, "Form of the sparsity term."] = "bce",
    aggregation: Annotated[Aggregation, "Of scores where tokenizers differ."] = "max",
    train_rows: Annotated[int, "Examples to learn from, spread over the classes."] = 1000,
    dev_rows: Annotated[int, "Examples to choose on."] = 200,
) -> Recipe:
    """Train a model that masks what another model does not need, and so explains it in one pass (AML).

    --model is the fine-tuned classifier that is explained; it stays as it is. The result is an explainer:
    exegete compare --methods attributive_masking:OUTPUT, or attributive_masking:OUTPUT?refine_steps=10.

    Example: exegete train aml --model runs/sst --data sst:data/sst --metric aopc_comprehensiveness
    --output-dir runs/aml
    """
    forms = MaskWeights(inverse_form=inverse_form, sparsity_form=sparsity_form)
    given = {"preservation": preservation_weight, "sparsity": sparsity_weight, "inverse": inverse_weight}
    known: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if storage is not None and trials is None:
        raise ExegeteError("storage is for the search of the weights: say how many trials, for instance --trials 30")
    weights = replace(forms, **known) if trials is None or len(known) == len(given) else None
    return AmlRecipe(
        name="aml",
        paper="Barkan et al. 2024",
        selection=add_paper_rounding(metric),
        weights=weights,
        forms=forms,
        search=WeightSearch(trials=trials or TRIALS, storage=storage, weights=forms, fixed=known),
        backbone=backbone,
        choices={"mode": masking, "predictor": predictor, "aggregation": aggregation},
        train_rows=train_rows,
        dev_rows=dev_rows,
        departures=DEPARTURES,
    )


def add_paper_rounding(spec: str) -> str:
    """The metric's spec, with the paper's rounding and divisor where a bare id says nothing of them."""
    if "?" not in spec and spec in METRICS:
        params = PRESETS["aml"].get(spec, FLOORED.get(spec, {}))
        spec = spec + "".join(f"{'&' if n else '?'}{name}={value}" for n, (name, value) in enumerate(params.items()))
    metric_of(spec)
    return spec
