"""The schema of a study file: its parts, their fields and defaults."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, NonNegativeInt, PositiveInt, model_validator

from exegete.data.granularity import Granularity

Names = list[str] | None
SEED = "{seed}"


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _as_mapping(value: Any) -> Any:
    """A list of ids as a mapping from each id to itself."""
    return {each: each for each in value} if isinstance(value, list) else value


def _as_explainer_parts(value: Any) -> Any:
    """Explainers with each spec alone as the mapping that it is short for."""
    named = _as_mapping(value)
    if not isinstance(named, dict):
        return named
    return {key: {"spec": each} if isinstance(each, str) else each for key, each in named.items()}


def _as_seeds(value: Any) -> Any:
    """A number of seeds as the seeds 0 to that number."""
    return list(range(value)) if isinstance(value, int) and not isinstance(value, bool) else value


Several = Annotated[list[str], BeforeValidator(_as_list, json_schema_input_type=str | list[str])]
Specs = Annotated[dict[str, str], BeforeValidator(_as_mapping, json_schema_input_type=dict[str, str] | list[str])]
Seeds = Annotated[list[int], BeforeValidator(_as_seeds, json_schema_input_type=int | list[int]), Field(min_length=1)]


class Part(BaseModel):
    """A part of a file; a key that it does not know is an error."""

    model_config = ConfigDict(extra="forbid", strict=False, frozen=True, allow_inf_nan=False)


class LongestPart(Part):
    """The length of the longest text (both texts of a pair together) in one unit; tokens are a `model`'s by name."""

    characters: PositiveInt | None = None
    words: PositiveInt | None = None
    tokens: PositiveInt | None = None
    model: str | None = None

    @model_validator(mode="after")
    def _one_unit(self) -> Self:
        if sum(each is not None for each in (self.characters, self.words, self.tokens)) != 1:
            raise ValueError("expected one of characters, words and tokens")
        if (self.tokens is None) != (self.model is None):
            raise ValueError("tokens, and nothing else, are counted by a 'model'")
        return self


class DatasetPart(Part):
    """One split of a dataset: what `exegete.load_data` takes.

    `longest`: rows of at most so many characters, words or tokens; `rationales`: rows with some evidence marked;
    `exclude`: names of datasets whose rows have no part in this one. Of what is left, `rows: [START, END]` takes a
    part: in an order that the seed draws those from START to before END, back in the order of the file; `[0, N]` is
    what a `limit` of N draws.
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
    """A control of choosing: of `maps` copies of an explanation, all but one with noise, the one that a metric likes.

    `best_by` is the metric's spec; `spread` the noise's standard deviation in those of the explanation's own scores.
    """

    best_by: str
    maps: int = Field(11, ge=2)
    spread: float = Field(0.5, gt=0)


class ExplainerPart(Part):
    """An explainer by its spec, in which `{run}` is a run's folder: the judged run's, or of the `run` that is named."""

    spec: str
    run: str | None = None
    training: str | None = None
    model: str | None = None
    seed: int | None = None
    noisy: NoisyPart | None = None

    @property
    def source_run(self) -> RunPart | None:
        """The other run that the explainer was learned in."""
        if self.run is None:
            return None
        return RunPart(run=self.run, training=self.training, model=self.model, seed=self.seed)


class TrainingPart(Part):
    """The datasets, by name, that runs are trained and chosen on; `arguments`: as a recipe's, which win."""

    train: str
    dev: str
    arguments: dict[str, Any] = {}


class PromptPart(Part):
    """How a causal model classifies: by continuing `template`, in which `{text}` stands for the text, with a label."""

    template: str
    labels: dict[str, str] | list[str]


class ModelPart(Part):
    """Where training starts: a folder, a hub name, or a size from scratch; see `exegete.training.starting_model`.

    `{seed}` in the `source` is the run's seed: each has a model of its own.
    `prompt`: a causal model that stays as it is, for the recipes `none` and those that explain a model.
    `full_attention`: a model whose attention is sparse on long texts (BigBird) is explained with all of it.
    """

    source: str
    max_length: int | None = Field(None, ge=8)
    full_attention: bool = False
    prompt: PromptPart | None = None

    def source_for_seed(self, seed: int) -> str:
        """The source for the runs of a seed."""
        return self.source.replace(SEED, str(seed))


class RunPart(Part):
    """Another run, as `{run: RECIPE}`: of the same training, model and seed, or of the only one that its recipe has.

    `training`, `model` and `seed` name another one; `path` is a folder inside the run's.
    """

    run: str
    training: str | None = None
    model: str | None = None
    seed: int | None = None
    path: str = ""


class RecipePart(Part):
    """A training method by its id with what this study changes: the method's parameters, the Trainer's arguments.

    The id `none` trains nothing: the model is judged as it is. Training starts from the grid's model, or from the
    `model` of another run. A parameter may be another run's folder (`{run: RECIPE}`), or a figure of other runs, as
    `{from: RECIPE, metric: NAME, times: 1.5}`: the mean over that recipe's seeds of the kept model's figure on dev, or
    with `of: train` of the lowest one that was logged in training; times a factor. `options`: others of
    `exegete.training.RunOptions`, as `head_rate`, `masked_share` or `log_gradient_norms`. `trainings` and `models`:
    those of the grid that the recipe is for; all where not given.
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
    """An evaluation of every trained model: its performance on datasets, and its explanations' metrics there.

    `recipes`, `trainings`, `models`: whose runs are asked; all where not given. `model`: another run's model is judged
    in place of the run's own, as where a run learned an explainer of it. `protocol` with its `options`: what else is
    found out about the model, see `exegete.studies.protocols`. `limits`: explainer → the number of examples that
    it is judged on where all cost too much; a smaller draw is part of a larger one. `layers`: also judge each layer's
    scores by the metrics on rationales, for explainers that have them. `special_tokens`: what explainers give to
    special tokens is judged too, by metrics that look at them; else it counts as 0. `unit`: of generated text, what
    methods score and metrics remove; default: sources where all examples have some, else sentences.
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
    """Which differences to a row are more than chance, over examples, after correction for all of a table's tests.

    `quartiles` is no test: it marks the rows that are better and whose range over seeds from the first to the third
    quartile does not meet that of the row `against` (Fernandes et al. 2022).
    """

    against: str
    method: Literal["bootstrap", "permutation", "quartiles"] = "permutation"
    correction: Literal["holm", "bh", "none"] = "holm"
    level: float = Field(0.05, gt=0, lt=1)
    resamples: int = Field(2000, ge=100)


class TablePart(Part):
    """A table: a figure for each row and column, mean over seeds with its spread.

    `rows` and `columns` are fields of a figure: training, model, recipe, dataset, explainer, metric. `where` keeps
    those whose fields have one of the values given. `over`: fields that a figure is the mean over, beside seeds.
    `gain`: metric → the recipe, explainer, training or model that its figures are shown relative to, as a gain in
    per cent of that one's mean over seeds (positive is better); metrics that are not named stay as they are.
    `mean [95 %]` is over examples, of explainers by metrics: intervals by a bootstrap, ties with the best marked.
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
    """How alike a run's attributions are to those of other runs: a figure of each run, by its name.

    A run's kept attributions of a `judgement` are compared example by example with those of the same explainer on the
    other seeds, or on the runs of the recipe `against`; the figure is the mean over examples and runs. `measure` is one
    of `exegete.studies.similarity.MEASURES`, as `jaccard?share=0.25`.
    """

    judgement: str
    measure: str = "kendall"
    against: str | None = None


class Axis(Part):
    """One measurement of a run: a metric, and on which dataset and by which explainer; without these on dev."""

    metric: str
    dataset: str | None = None
    explainer: str | None = None
    label: str = ""
    scale: float = 1.0


class FigurePart(Part):
    """A picture. Which fields matter depends on its kind.

    `seeds`: a dot a run of `metrics` by recipe. `scatter`: a dot a run at `x` and `y`; with `average`, a recipe's mean
    with its deviation. `curves`: `metrics` over budgets. `layers`: plausibility layer by layer. `sweep`: `metrics` by a
    parameter or argument of the recipes, named by `over` as `parameters.weight`. `history`: `metrics` as they were
    logged in training. `heat`: a `table` of this file as a heat map. `coefficients`: what learned explainers weigh
    heads by. `agreement`: a `measure` of attributions: of the same explainer between recipes or seeds, or with
    `between: explainers` of pairs of explainers; with `between: metrics` how alike `metrics` rank the explainers.
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
    """A grid of runs, what is asked of each, and what is made of the answers.

    In a metric's spec `{run:RECIPE}` is the folder of another run, as `f_fidelity?copy={run:Copy}`.
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
    arguments: dict[str, Any] = {}
    explainers: Explainers = {}
    metrics: Specs = {}
    judgements: dict[str, JudgementPart] = {}
    comparisons: dict[str, ComparisonPart] = {}
    tables: dict[str, TablePart] = {}
    figures: dict[str, FigurePart] = {}


def make_json_schema() -> dict[str, Any]:
    """The JSON Schema of a file, for editors.

    No key is required, since what a file `extends` can hold the others; an entry that is null takes one of it away.
    """
    found = StudyFile.model_json_schema()
    for part in (found, *found["$defs"].values()):
        part.pop("required", None)
        for field in part["properties"].values():
            for choice in (field, *field.get("anyOf", ())):
                entries = choice.get("additionalProperties")
                if isinstance(entries, dict):
                    choice["additionalProperties"] = {"anyOf": [entries, {"type": "null"}]}
    scale = {"type": "object", "description": "What a scale changes; null takes a part away."}
    scales = {"type": "object", "additionalProperties": scale}
    found["properties"] |= {"extends": {"type": "string", "description": "The file below this one."}, "scales": scales}
    return found
