"""What a study shows of its results: tables, figures, and comparisons of attributions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from expound.errors import ExpoundError, check_choice
from expound_papers.paper_table import Form
from expound_papers.similarity import get_measure
from expound_papers.study.parts import as_list

Names: TypeAlias = str | Sequence[str]
Filter: TypeAlias = Mapping[str, Names]
FIELDS = ("training", "model", "recipe", "dataset", "judgement", "explainer", "metric")
SHOWN = ("mean ± sd", "mean ± se", "median [25–75]", "mean", "mean [95 %]")
KINDS = ("seeds", "scatter", "curves", "layers", "sweep", "history", "heat", "coefficients", "agreement")


@dataclass(frozen=True)
class Significance:
    """A test whether rows differ from the row `against`, over examples, corrected for all tests of a table.

    `quartiles` is not a test: it marks rows that are better and whose interquartile range over seeds does not overlap
    with that of the row `against` (Fernandes et al. 2022).
    """

    against: str
    method: Literal["bootstrap", "permutation", "quartiles"] = "permutation"
    correction: Literal["holm", "bh", "none"] = "holm"
    level: float = 0.05
    resamples: int = 2000

    def __post_init__(self) -> None:
        check_choice("method", self.method, ("bootstrap", "permutation", "quartiles"))
        check_choice("correction", self.correction, ("holm", "bh", "none"))


def _set_lists(part: Any, *names: str) -> None:
    for name in names:
        object.__setattr__(part, name, as_list(getattr(part, name)))
    object.__setattr__(part, "where", {name: as_list(values) for name, values in part.where.items()})


@dataclass(frozen=True)
class TablePart:
    """A table: a figure for each row and column, mean over seeds with its spread.

    `rows` and `columns` are fields of a figure: training, model, recipe, dataset, judgement, explainer, metric. `where`
    keeps figures whose fields have one of the given values, in this order; other fields are in the order in which the
    study uses them first. `over`: fields to average over, in addition to seeds. `gain`: metric → the recipe, explainer,
    training or model whose mean its figures are shown relative to, as a gain in per cent (positive is better); other
    metrics are unchanged. `mean [95 %]` is for explainers by metrics: means over examples with bootstrap intervals,
    ties with the best marked.
    """

    caption: str
    rows: Names
    columns: Names
    metrics: Names
    where: Filter = field(default_factory=dict)
    over: Names = ()
    gain: Mapping[str, str] = field(default_factory=dict)
    show: Form = "mean ± sd"
    scale: float = 1.0
    decimals: int | None = None
    mark_best: bool = True
    significance: Significance | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _set_lists(self, "rows", "columns", "metrics", "over")
        for name in (*self.rows, *self.columns, *self.over, *self.where):
            check_choice("field", name, FIELDS)
        check_choice("form", self.show, SHOWN)
        if self.significance and (self.over or self.gain):
            raise ExpoundError(
                "figures over several fields, or relative to others, have no test: leave one of them out"
            )


@dataclass(frozen=True)
class ComparisonPart:
    """The similarity of a run's attributions to those of other runs, as a figure of each run.

    The attributions that each of the `judgements` kept are compared, example by example, with those of the same
    explainer for other seeds, or for the recipe `against`; the figure is the mean over examples and runs. `measure` is
    one of `expound_papers.similarity.MEASURES`, as `jaccard?share=0.25`.
    """

    judgements: Sequence[str]
    measure: str = "kendall"
    against: str | None = None

    def __post_init__(self) -> None:
        get_measure(self.measure)


@dataclass(frozen=True)
class Axis:
    """One figure of a run: a metric on a dataset, for an explainer; without a dataset, the figure on dev."""

    metric: str
    dataset: str | None = None
    explainer: str | None = None
    label: str = ""
    scale: float = 1.0


@dataclass(frozen=True)
class FigurePart:
    """A figure; its kind decides which fields are used.

    `seeds`: a dot per run, of `metrics` by recipe. `scatter`: a dot per run at `x` and `y`; with `average`, the mean
    and deviation of each recipe, or of each explainer with `between="explainers"`. `curves`: `metrics` over budgets.
    `layers`: plausibility by layer. `sweep`: `metrics` by a parameter or argument of the recipes, named by `over` as
    `parameters.weight`. `history`: `metrics` logged in training. `heat`: a `table` of the study as a heat map.
    `coefficients`: the head coefficients of learned explainers. `agreement`: a `measure` of the similarity of
    attributions: of one explainer between recipes or seeds; with `between="explainers"` of pairs of explainers; with
    `between="metrics"`, how similarly `metrics` rank explainers.
    """

    kind: str
    caption: str = ""
    metrics: Names = ()
    where: Filter = field(default_factory=dict)
    x: Axis | Sequence[Axis] = ()
    y: Axis | Sequence[Axis] = ()
    average: bool = False
    lines: Mapping[str, float] = field(default_factory=dict)
    against: str | None = None
    between: Literal["recipes", "explainers", "seeds", "metrics"] = "recipes"
    measure: str = "kendall"
    over: str = ""
    table: str = ""

    def __post_init__(self) -> None:
        _set_lists(self, "metrics", "x", "y")
        check_choice("kind", self.kind, KINDS)
        check_choice("between", self.between, ("recipes", "explainers", "seeds", "metrics"))
        for name in self.where:
            check_choice("field", name, FIELDS)
        get_measure(self.measure)
