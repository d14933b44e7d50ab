"""A study's figures: the numbers, which `drawing` draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import spearmanr
from scipy.stats import t as student

from expound.errors import ExpoundError, check_choice
from expound.reports.figures.curves import Curve, plot_curves
from expound.reports.tables.leaderboard import Floats
from expound.reports.tables.significance import LEVEL, Effect
from expound_papers.runs.run_files import CURVES, LAYERS
from expound_papers.similarity import get_measure
from expound_papers.study.display import Axis, FigurePart
from expound_papers.study.parts import StudyRun, as_list
from expound_papers.tables.agreement import (
    Scores,
    agreement_between_explainers,
    agreement_between_models,
    agreement_between_seeds,
    read_scores,
)
from expound_papers.tables.coefficients import make_coefficient_matrices
from expound_papers.tables.drawing import Dots, Matrix, Panel, plot_heat_maps, plot_scatter, plot_strips
from expound_papers.tables.layout import RUN, select_figures
from expound_papers.tables.metric_agreement import make_metric_matrices
from expound_papers.tables.results import Results
from expound_papers.tables.sweeps import make_history_curves, make_sweep_curves
from expound_papers.tables.tables import make_study_table


def make_study_figure(results: Results, name: str) -> Figure:
    """Return one of the study's figures, with the runs that are finished so far.

    Raises:
        ExpoundError: an unknown figure, or one without finished runs.
    """
    declared = results.study.figures
    check_choice("figure", name, declared)
    return KINDS[declared[name].kind](results, declared[name])


def make_strips(results: Results, part: FigurePart) -> list[Panel]:
    """Return one panel per metric, dataset and explainer: the figures of all runs, by recipe."""
    frame = select_figures(results, part.metrics, part.where)
    panels = []
    for (metric, dataset, explainer), group in frame.groupby(["metric", "dataset", "explainer"], sort=False):
        by_recipe = {}
        for recipe in part.where.get("recipe", list(results.study.recipes)):
            runs = group[group["recipe"] == recipe].drop_duplicates(list(RUN))
            if len(runs):
                by_recipe[recipe] = runs["value"].to_numpy(dtype=np.float64)
        title = " / ".join(str(name) for name in (metric, dataset, explainer) if name)
        panels.append(Panel(title, by_recipe))
    return panels


def make_scatters(results: Results, part: FigurePart) -> list[list[Dots]]:
    """Return one panel per pair of x and y: one dot per run, or each recipe's mean with its standard deviation.

    With `between: explainers`, dots are grouped by explainer instead of by recipe.
    """
    group_by = "explainer" if part.between == "explainers" else "recipe"
    panels = []
    for y in as_list(part.y):
        for x in as_list(part.x):
            frame = _join_measurements(results, part, x, y)
            title = ""
            if not part.average and frame["x"].nunique() > 1 and frame["y"].nunique() > 1:
                title = f"Spearman ρ = {spearmanr(frame['x'], frame['y']).statistic:.2f}"
            series = []
            for name, group in frame.groupby(group_by, sort=False):
                series.append(_make_dots(str(name), group, x, y, title, average=part.average))
            panels.append(series)
    return panels


def measure_correlation(results: Results, part: FigurePart, name: str) -> Effect | None:
    """Return Spearman's ρ over the runs of a scatter between the x axis of this name and y; None before two seeds.

    Raises:
        ExpoundError: an unknown axis.
    """
    axes = {_axis_label(x): x for x in as_list(part.x)}
    check_choice("axis", name, axes)
    frame = _join_measurements(results, part, axes[name], as_list(part.y)[0])
    return correlate(frame) if frame["seed"].nunique() > 1 else None


def correlate(frame: pd.DataFrame) -> Effect:
    """Return Spearman's ρ of the columns `x` and `y`, jackknifed over seeds: runs of a seed share its data."""
    seeds, left_out = frame["seed"].unique(), []
    for seed in seeds:
        rest = frame[frame["seed"] != seed]
        left_out.append(spearmanr(rest["x"], rest["y"]).statistic)
    # The jackknife's variance is (n - 1)² / n times that of the values without one seed.
    deviation = np.std(left_out, ddof=1) * (len(seeds) - 1) / len(seeds) ** 0.5
    margin = float(student.ppf((1 + LEVEL) / 2, len(seeds) - 1) * deviation)
    return Effect(float(spearmanr(frame["x"], frame["y"]).statistic), margin, len(seeds), None, is_over_examples=False)


def make_budget_curves(results: Results, part: FigurePart) -> list[Curve]:
    """Return metrics over budgets by explainer (by recipe if there are several): mean and deviation over seeds."""
    frames = []
    for frame in _read_run_frames(results, part, CURVES):
        keys = ["recipe", "dataset", "seed", "explainer", "metric", "x"]
        frames.append(frame.groupby(keys)["value"].mean().reset_index())
    return _make_curves(results, part, frames, "x", lambda x: x * 100, "% of the input")


def make_layer_curves(results: Results, part: FigurePart) -> list[Curve]:
    """Return plausibility by layer: mean and standard deviation over seeds."""
    return _make_curves(results, part, _read_run_frames(results, part, LAYERS), "layer", lambda x: x, "layer")


def _read_run_frames(results: Results, part: FigurePart, name: str) -> list[pd.DataFrame]:
    """Return a file of each run that has it, with the run's recipe, dataset and seed."""
    frames = []
    for run in _select_runs(results, part):
        if results.store.has_file(run.cell.key, name):
            frame = results.name_explainers(run, results.store.read_frame(run.cell.key, name))
            frames.append(frame.assign(recipe=run.recipe, dataset=run.dataset, seed=run.seed))
    return frames


def make_agreement_matrices(results: Results, part: FigurePart) -> list[Matrix]:
    """Return matrices of the similarity of attributions.

    Between recipes: explainers × recipes, per dataset. Between explainers: per dataset and recipe. Between seeds: per
    dataset, recipe and explainer. Between metrics: see `make_metric_matrices`. With several judgements, trainings or
    models of a run, `where` has to choose one.
    """
    if part.between == "metrics":
        return make_metric_matrices(results, part)
    found: dict[str, dict[str, list[tuple[StudyRun, Scores]]]] = {}
    for run in _select_runs(results, part):
        if run.cell.config["keep_attributions"]:
            found.setdefault(run.dataset, {}).setdefault(run.recipe, []).append((run, read_scores(results.store, run)))
    if part.between == "recipes":
        return [_recipes_matrix(dataset, recipes, part) for dataset, recipes in found.items()]
    draw = _pairs_matrices if part.between == "explainers" else _seeds_matrices
    matrices: list[Matrix] = []
    for dataset, recipes in found.items():
        for recipe, models in recipes.items():
            matrices += draw(f"{dataset} / {recipe}", models, part)
    return matrices


def make_table_matrix(results: Results, part: FigurePart) -> Matrix:
    """Return a table's numbers as a matrix whose colors reach to the largest magnitude."""
    table = make_study_table(results, part.table)
    known = np.abs(table.center[np.isfinite(table.center)])
    return Matrix(table.title, table.rows, table.columns, table.center, float(known.max()) if known.size else 1.0)


def _join_measurements(results: Results, part: FigurePart, x: Axis, y: Axis) -> pd.DataFrame:
    """Return the runs (with `between: explainers`, their explainers) that have both measurements, `x` and `y`."""
    keys = [*RUN, "explainer"] if part.between == "explainers" else list(RUN)
    sides = []
    for name, axis in (("x", x), ("y", y)):
        where = dict(part.where)
        for field, value in (("dataset", axis.dataset), ("explainer", axis.explainer)):
            if value is not None:
                where[field] = [value]
        chosen = select_figures(results, [axis.metric], where).drop_duplicates(keys)
        sides.append(chosen[keys].assign(**{name: chosen["value"] * axis.scale}))
    return sides[0].merge(sides[1], on=keys).dropna()


def _make_dots(name: str, group: pd.DataFrame, x: Axis, y: Axis, title: str, *, average: bool) -> Dots:
    dots = group[["x", "y"]].to_numpy(dtype=np.float64)
    if not average:
        return Dots(name, dots[:, 0], dots[:, 1], None, None, _axis_label(x), _axis_label(y), title)
    mean = dots.mean(0, keepdims=True)
    error = dots.std(0, ddof=1, keepdims=True) if len(dots) > 1 else np.zeros_like(mean)
    return Dots(name, mean[:, 0], mean[:, 1], error[:, 0], error[:, 1], _axis_label(x), _axis_label(y), title)


def _axis_label(axis: Axis) -> str:
    return axis.label or " / ".join(filter(None, (axis.metric, axis.dataset, axis.explainer)))


def _select_runs(results: Results, part: FigurePart) -> list[StudyRun]:
    # Explainers and metrics are chosen within a run.
    selected = results.find_runs()
    for name, values in part.where.items():
        if name not in ("explainer", "metric"):
            selected = [run for run in selected if getattr(run, name) in values]
    return selected


def _make_curves(
    results: Results,
    part: FigurePart,
    frames: Sequence[pd.DataFrame],
    over: str,
    scaled: Callable[[Floats], Floats],
    label: str,
) -> list[Curve]:
    if not frames:
        return []
    frame, study = pd.concat(frames, ignore_index=True), results.study
    by_recipe, by_dataset = frame["recipe"].nunique() > 1, frame["dataset"].nunique() > 1
    curves = []
    for metric in part.metrics:
        for explainer in part.where.get("explainer", list(study.explainers)):
            mine = frame[(frame["metric"] == study.metrics[metric]) & (frame["explainer"] == explainer)]
            for (dataset, recipe), group in mine.groupby(["dataset", "recipe"], sort=False):
                grid = group.groupby(over)["value"].agg(["mean", "std"]).fillna(0.0)
                series, title = explainer, metric
                if by_recipe:
                    series, title = str(recipe), f"{metric} / {explainer}"
                if by_dataset:
                    title += f" / {dataset}"
                mean, spread = grid["mean"].to_numpy(), grid["std"].to_numpy()
                x = scaled(grid.index.to_numpy(dtype=np.float64))
                curves.append(Curve(series, title, x, mean, mean - spread, mean + spread, label))
    return curves


def _recipes_matrix(dataset: str, recipes: dict[str, list[tuple[StudyRun, Scores]]], part: FigurePart) -> Matrix:
    against = part.against or next(iter(recipes))
    if against not in recipes:
        raise ExpoundError(f"agreement: no finished runs of {against!r} on {dataset}")
    models = {}
    for name, runs in recipes.items():
        models[name] = [model_scores for _, model_scores in runs]
    how = get_measure(part.measure)
    columns = {}
    for name, each in models.items():
        columns[f"{against} / {name}"] = agreement_between_models(models[against], each, how)
    values = pd.DataFrame(columns)
    return Matrix(f"{_measure_title(part)}, {dataset}", list(values.index), list(columns), values.to_numpy())


def _pairs_matrices(title: str, models: list[tuple[StudyRun, Scores]], part: FigurePart) -> list[Matrix]:
    model_scores = [scores for _, scores in models]
    names, taus = list(model_scores[0]), agreement_between_explainers(model_scores, get_measure(part.measure))
    values = np.full((len(names), len(names)), np.nan)
    for (one, other), tau in taus.items():
        row, column = names.index(one), names.index(other)
        values[row, column] = values[column, row] = tau
    return [Matrix(f"{_measure_title(part)}, {title}", names, names, values)]


def _seeds_matrices(title: str, models: list[tuple[StudyRun, Scores]], part: FigurePart) -> list[Matrix]:
    """Return one matrix of similarity between seeds per explainer."""
    names = [f"seed {run.seed}" for run, _ in models]
    model_scores = [scores for _, scores in models]
    explainers = part.where.get("explainer", list(model_scores[0]))
    how = get_measure(part.measure)
    matrices = []
    for each in explainers:
        if each in model_scores[0]:
            similarities = agreement_between_seeds(model_scores, each, how)
            matrices.append(Matrix(f"{_measure_title(part)}, {title} / {each}", names, names, similarities))
    return matrices


def _measure_title(part: FigurePart) -> str:
    return "Kendall τ" if part.measure == "kendall" else part.measure


KINDS: dict[str, Callable[[Results, FigurePart], Figure]] = {
    "seeds": lambda results, part: plot_strips(make_strips(results, part)),
    "scatter": lambda results, part: plot_scatter(make_scatters(results, part), part.lines),
    "curves": lambda results, part: plot_curves(make_budget_curves(results, part)),
    "layers": lambda results, part: plot_curves(make_layer_curves(results, part)),
    "coefficients": lambda results, part: plot_heat_maps(make_coefficient_matrices(results, part)),
    "sweep": lambda results, part: plot_curves(make_sweep_curves(results, part)),
    "history": lambda results, part: plot_curves(make_history_curves(results, part)),
    "heat": lambda results, part: plot_heat_maps([make_table_matrix(results, part)]),
    "agreement": lambda results, part: plot_heat_maps(make_agreement_matrices(results, part)),
}
