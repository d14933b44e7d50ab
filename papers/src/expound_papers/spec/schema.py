"""The schema of a study file: its parts, their fields and defaults."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, NonNegativeInt, PositiveInt, model_validator

from expound.data.granularity import Granularity

Names = list[str] | None
SEED = "{seed}"


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _as_mapping(value: Any) -> Any:
    """Return a list of ids as a mapping from each id to itself."""
    return {each: each for each in value} if isinstance(value, list) else value


def _as_explainer_parts(value: Any) -> Any:
    """Return explainers as mappings; a spec alone is short for `{spec: SPEC}`."""
    named = _as_mapping(value)
    if not isinstance(named, dict):
        return named
    parts = dict(named)
    for key, part in named.items():
        if isinstance(part, str):
            parts[key] = {"spec": part}
    return parts


def _as_seeds(value: Any) -> Any:
    """Return a number N of seeds as the seeds 0 to N − 1."""
    # A bool is an int in Python.
    if isinstance(value, int) and not isinstance(value, bool):
        return list(range(value))
    return value


Several = Annotated[list[str], BeforeValidator(_as_list, json_schema_input_type=str | list[str])]
Specs = Annotated[dict[str, str], BeforeValidator(_as_mapping, json_schema_input_type=dict[str, str] | list[str])]
Seeds = Annotated[list[int], BeforeValidator(_as_seeds, json_schema_input_type=int | list[int]), Field(min_length=1)]


class Part(BaseModel):
    """A part of a study file; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", strict=False, frozen=True, allow_inf_nan=False)


class LongestPart(Part):
    """The maximum length of a text (both texts of a pair together) in one unit; tokens are those of `model`."""

    characters: PositiveInt | None = None
    words: PositiveInt | None = None
    tokens: PositiveInt | None = None
    model: str | None = None

    @model_validator(mode="after")
    def _one_unit(self) -> Self:
        if (self.characters, self.words, self.tokens).count(None) != 2:
            raise ValueError("expected one of characters, words and tokens")
        if (self.tokens is None) != (self.model is None):
            raise ValueError("expected a 'model' with tokens, and only with tokens")
        return self


class DatasetPart(Part):
    """One split of a dataset, with the arguments of `expound.load_data`.

    `longest` keeps texts up to a length, `rationales` keeps rows with marked evidence, `exclude` names datasets whose
    rows are removed. `rows: [START, END]` then takes the rows START to END − 1 of a permutation drawn by the seed, in
    the order of the file; `[0, N]` is the sample of `limit: N`.
    """

    spec: str
    split: str = "test"
    limit: int | None = Field(None, ge=1)
    rows: tuple[NonNegativeInt, PositiveInt] | None = None
    seed: int = 0
    options: dict[str, Any] = {}
    longest: LongestPart | None = None
    rationales: bool = False
    exclude: Several = []


class NoisyPart(Part):
    """A control: the best by a metric among an explanation and noisy copies of it, `maps` in all.

    `best_by` is the metric's spec; `spread` is the standard deviation of the noise, in standard deviations of the
    explanation's scores.
    """

    best_by: str
    maps: int = Field(11, ge=2)
    spread: float = Field(0.5, gt=0)


class ExplainerPart(Part):
    """An explainer by its spec, in which `{run}` is the folder of the judged run, or of the training run `run`."""

    spec: str
    run: str | None = None
    training: str | None = None
    model: str | None = None
    seed: int | None = None
    noisy: NoisyPart | None = None

    @property
    def source_run(self) -> RunPart | None:
        """The other run that learned the explainer; None for the judged run's own, or without one."""
        if self.run is None:
            return None
        return RunPart(run=self.run, training=self.training, model=self.model, seed=self.seed)


class TrainingPart(Part):
    """The datasets, by name, for training and for choosing checkpoints; a recipe's `arguments` override these."""

    train: str
    dev: str
    arguments: dict[str, Any] = {}


class PromptPart(Part):
    """The prompt of a causal model that classifies: it continues `template`, with the text for `{text}`, by a label."""

    template: str
    labels: dict[str, str] | list[str]


class ModelPart(Part):
    """The model that training starts from: a folder, a hub name, or a size from scratch (`expound.training`).

    `{seed}` in `source` is replaced by the run's seed. `prompt`: a causal model that is not trained, for the recipe
    `none` and recipes that explain a model. `full_attention`: a model with sparse attention on long texts (BigBird) is
    explained with full attention.
    """

    source: str
    max_length: int | None = Field(None, ge=8)
    full_attention: bool = False
    prompt: PromptPart | None = None

    def source_for_seed(self, seed: int) -> str:
        """Return the source for the runs of a seed."""
        return self.source.replace(SEED, str(seed))


class RunPart(Part):
    """A reference to another run, as `{run: RECIPE}`: of the same training, model and seed, or the recipe's only ones.

    `training`, `model` and `seed` choose others; `path` is a folder inside the run's folder.
    """

    run: str
    training: str | None = None
    model: str | None = None
    seed: int | None = None
    path: str = ""


class RecipePart(Part):
    """A recipe by its id, with parameters of the method and arguments of the Trainer.

    With the id `none` the model is judged without training. Training starts from the grid's model, or from the
    `model` of another run. A parameter may be another run's folder (`{run: RECIPE}`), or a figure of other runs, as
    `{from: RECIPE, metric: NAME, times: 1.5}`: the mean over that recipe's seeds of the kept model's figure on dev, or
    with `of: train` of the lowest logged figure, times a factor. `options`: fields of `expound.training.RunOptions`,
    as `head_rate`, `masked_share` or `log_gradient_norms`. `trainings` and `models`: the parts of the grid that the
    recipe is run on; default: all.
    """

    recipe: str
    model: RunPart | None = None
    parameters: dict[str, Any] = {}
    arguments: dict[str, Any] = {}
    early_stopping_patience: int | None = Field(None, ge=1)
    options: dict[str, Any] = {}
    seeds: Seeds | None = None
    trainings: Names = None
    models: Names = None


class JudgementPart(Part):
    """An evaluation of every trained model on datasets: its performance, and metrics of its explanations.

    `recipes`, `trainings`, `models`: the runs that are judged; default: all. `model`: judge another run's model instead
    of the run's own, as when the run learned an explainer of it. `protocol` with its `options`: further figures of the
    model, see `expound_papers.protocols`. `limits`: explainer → number of examples it is judged on, for expensive
    explainers; a smaller sample is part of a larger one. `layers`: also judge each layer's scores by the metrics on
    rationales. `special_tokens`: metrics that use special tokens see their scores; otherwise these count as 0.
    `unit`: the units of generated text that are scored and removed; default: sources if all examples have sources,
    otherwise sentences.
    """

    datasets: Several
    explainers: Names = []
    metrics: Names = []
    recipes: Names = None
    trainings: Names = None
    models: Names = None
    model: RunPart | None = None
    protocol: str | None = None
    options: dict[str, Any] = {}
    limits: dict[str, PositiveInt] = {}
    target: str | int = "predicted"
    keep_attributions: bool = False
    layers: bool = False
    special_tokens: bool = False
    unit: Granularity | None = None


class Significance(Part):
    """A test whether rows differ from the row `against`, over examples, corrected for all tests of a table.

    `quartiles` is not a test: it marks rows that are better and whose interquartile range over seeds does not overlap
    with that of the row `against` (Fernandes et al. 2022).
    """

    against: str
    method: Literal["bootstrap", "permutation", "quartiles"] = "permutation"
    correction: Literal["holm", "bh", "none"] = "holm"
    level: float = Field(0.05, gt=0, lt=1)
    resamples: int = Field(2000, ge=100)


class TablePart(Part):
    """A table: a figure for each row and column, mean over seeds with its spread.

    `rows` and `columns` are fields of a figure: training, model, recipe, dataset, explainer, metric. `where` keeps
    figures whose fields have one of the given values. `over`: fields to average over, in addition to seeds.
    `gain`: metric → the recipe, explainer, training or model whose mean its figures are shown relative to, as a gain
    in per cent (positive is better); other metrics are unchanged. `mean [95 %]` is for explainers by metrics: means
    over examples with bootstrap intervals, ties with the best marked.
    """

    caption: str = ""
    rows: Several
    columns: Several
    metrics: Several
    where: dict[str, Several] = {}
    over: Several = []
    gain: dict[str, str] = {}
    show: Literal["mean ± sd", "mean ± se", "median [25–75]", "mean", "mean [95 %]"] = "mean ± sd"
    scale: float = 1.0
    decimals: int | None = Field(None, ge=0, le=8)
    mark_best: bool = True
    significance: Significance | None = None
    labels: dict[str, str] = {}


class ComparisonPart(Part):
    """The similarity of a run's attributions to those of other runs, as a figure of each run.

    The attributions that a `judgement` kept are compared, example by example, with those of the same explainer for
    other seeds, or for the recipe `against`; the figure is the mean over examples and runs. `measure` is one
    of `expound_papers.similarity.MEASURES`, as `jaccard?share=0.25`.
    """

    judgement: str
    measure: str = "kendall"
    against: str | None = None


class Axis(Part):
    """One figure of a run: a metric on a dataset, for an explainer; without a dataset, the figure on dev."""

    metric: str
    dataset: str | None = None
    explainer: str | None = None
    label: str = ""
    scale: float = 1.0


class FigurePart(Part):
    """A figure; its kind decides which fields are used.

    `seeds`: a dot per run, of `metrics` by recipe. `scatter`: a dot per run at `x` and `y`; with `average`, the mean
    and deviation of each recipe, or of each explainer with `between: explainers`. `curves`: `metrics` over budgets.
    `layers`: plausibility by layer. `sweep`: `metrics` by a parameter or argument of the recipes, named by `over` as
    `parameters.weight`. `history`: `metrics` logged in training. `heat`: a `table` of this file as a heat map.
    `coefficients`: the head coefficients of learned explainers. `agreement`: a `measure` of the similarity of
    attributions: of one explainer between recipes or seeds; with `between: explainers` of pairs of explainers; with
    `between: metrics`, how similarly `metrics` rank explainers.
    """

    kind: Literal["seeds", "scatter", "curves", "layers", "sweep", "history", "heat", "coefficients", "agreement"]
    caption: str = ""
    metrics: Several = []
    where: dict[str, Several] = {}
    x: list[Axis] = []
    y: list[Axis] = []
    average: bool = False
    lines: dict[str, float] = {}
    against: str | None = None
    between: Literal["recipes", "explainers", "seeds", "metrics"] = "recipes"
    measure: str = "kendall"
    over: str = ""
    table: str = ""


Explainers = Annotated[
    dict[str, ExplainerPart],
    BeforeValidator(_as_explainer_parts, json_schema_input_type=dict[str, ExplainerPart | str] | list[str]),
]


class StudyFile(Part):
    """A study: a grid of runs, their judgements, and the tables and figures of the results.

    `preset: paper`: what the file does not state about recipes has the paper's values; default: those of a short run.
    In a metric's spec, `{run:RECIPE}` is replaced by the folder of another run, as `f_fidelity?copy={run:Copy}`.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    title: str = ""
    paper: str = ""
    notes: str = ""
    datasets: dict[str, DatasetPart]
    training: dict[str, TrainingPart] = {}
    models: dict[str, ModelPart] = Field(min_length=1)
    recipes: dict[str, RecipePart] = Field(min_length=1)
    seeds: Seeds = [0]
    preset: Literal["paper"] | None = None
    arguments: dict[str, Any] = {}
    explainers: Explainers = {}
    metrics: Specs = {}
    judgements: dict[str, JudgementPart] = {}
    comparisons: dict[str, ComparisonPart] = {}
    tables: dict[str, TablePart] = {}
    figures: dict[str, FigurePart] = {}


def make_json_schema() -> dict[str, Any]:
    """Return the JSON Schema of study files, for editors."""
    # No key is required, as a file that this one `extends` may have it, and null removes an entry of that file.
    found = StudyFile.model_json_schema()
    for part in (found, *found["$defs"].values()):
        part.pop("required", None)
        for field in part["properties"].values():
            for choice in (field, *field.get("anyOf", ())):
                entries = choice.get("additionalProperties")
                if isinstance(entries, dict):
                    choice["additionalProperties"] = {"anyOf": [entries, {"type": "null"}]}
    scale = {"type": "object", "description": "Changes at this scale; null removes a part."}
    scales = {"type": "object", "additionalProperties": scale}
    base = {"type": "string", "description": "The file that this one is merged onto."}
    found["properties"] |= {"extends": base, "scales": scales}
    return found
