"""`--control`: the same training without the recipe's terms, and the difference that they made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from expound.cli.shared.console import console, say
from expound.errors import ExpoundError

if TYPE_CHECKING:
    from datasets import Dataset

    from expound.recipes import Recipe
    from expound.training import RunOptions, TrainResult

JUDGED_ROWS = 200
ACCURACY_LOSS = 0.02


def require_effect(recipe: Recipe) -> None:
    """Raise ExpoundError for a recipe that has no control run."""
    if recipe.effect is None:
        raise ExpoundError(
            f"{recipe.name} has no control run: train a second model, for instance without explanations or with "
            "--explainer random, and compare the two metrics.json"
        )


def print_difference(
    recipe: Recipe,
    result: TrainResult,
    start: Any,
    train: Dataset,
    dev: Dataset,
    options: RunOptions,
    arguments: Mapping[str, Any],
) -> tuple[list[float], list[float]]:
    """Train the control beside the run's folder, and print the difference in the metric that the recipe exists for.

    Returns the values of that metric per row, of the run and of the control.

    Recipes that leave the model as it is have no control run: their explanation is compared with another method's.
    """
    assert recipe.effect is not None
    folder, effect = Path(result.output_dir), recipe.effect
    other = result
    if not recipe.keeps_model:
        beside = folder.with_name(f"{folder.name}-control")
        say(f"training the same steps without the terms, in {beside}")
        other = recipe.make_control().train(start, train, dev, beside, options, arguments=arguments)
        other.require_finished("the control's training")
    rows = dev.shuffle(seed=0).select(range(min(JUDGED_ROWS, len(dev))))
    after = judge(result.model, result, rows, effect.explainer, effect.metric)
    before = judge(other.model, other, rows, effect.control or effect.explainer, effect.metric)
    versus = f"{effect.control} of the same model" if recipe.keeps_model else "the control"
    console().print(describe_difference(effect.metric, after, before, versus), markup=False, highlight=False)
    if not recipe.keeps_model and "accuracy" in result.metrics:
        change = result.metrics["accuracy"] - other.metrics["accuracy"]
        console().print(f"accuracy: {result.metrics['accuracy']:.4f} against {other.metrics['accuracy']:.4f}")
        if change < -ACCURACY_LOSS:
            say("the terms cost accuracy: lower their weight, or train for more epochs")
    return after, before


def print_over_seeds(
    recipe: Recipe, results: Sequence[TrainResult], values: Sequence[tuple[list[float], list[float]]]
) -> None:
    """Print mean and standard deviation of each dev metric over seeds, and the difference to the control if it was run.

    `results`: a run per seed; `values`: what `print_difference` returned, per seed; empty without control runs.
    """
    import numpy as np

    from expound.reports.tables.significance import measure_effect, metric_summands

    console().print(f"over {len(results)} seeds, mean ± standard deviation:", markup=False, highlight=False)
    for name in results[0].metrics:
        values_of_seeds = [result.metrics[name] for result in results]
        known = [value for value in values_of_seeds if value is not None]
        if len(known) > 1:
            console().print(f"{name}: {np.mean(known):.4f} ± {np.std(known, ddof=1):.4f}")
    if not values:
        return
    assert recipe.effect is not None
    pairs = [(metric_summands(np.asarray(after)), metric_summands(np.asarray(before))) for after, before in values]
    effect = measure_effect(np.zeros(len(pairs)), pairs, 1.0)
    low, high = effect.center - effect.margin, effect.center + effect.margin
    verdict = "not told apart" if low <= 0 <= high else "told apart"
    console().print(
        f"{recipe.effect.metric} on {effect.examples} dev rows: {effect.center:+.4f} "
        f"(95 % over seeds and rows {low:+.4f} to {high:+.4f}), {verdict}",
        markup=False,
        highlight=False,
    )


def describe_difference(metric: str, after: Sequence[float], before: Sequence[float], versus: str) -> str:
    """Return the difference of two runs' values of the same examples, with its interval and p-value, as a sentence."""
    import numpy as np

    from expound.evaluation.compare.comparison import RESAMPLES, compute_change
    from expound.metrics import metric as metric_of
    from expound.reports.tables.leaderboard import LEVEL, draw_resamples

    resamples = draw_resamples(len(after), RESAMPLES, 0)
    change = compute_change(np.asarray(after, float), np.asarray(before, float), resamples)
    name, higher_is_better = metric_of(metric).name, metric_of(metric).card.higher_is_better
    verdict = "better" if (change["difference"] > 0) == higher_is_better else "worse"
    if change["p"] > LEVEL:
        verdict = "not told apart"
    return (
        f"{name} on {change['examples']} dev rows: {change['after']:.4f} against {change['before']:.4f} of {versus}: "
        f"{change['difference']:+.4f} (95 % {change['low']:+.4f} to {change['high']:+.4f}, p = {change['p']:.3g}), "
        f"{verdict}"
    )


def judge(model: Any, result: TrainResult, rows: Dataset, spec: str, metric: str) -> list[float]:
    """Return the metric's value for each row, explained by the method of a spec in which {run} is the run's folder."""
    import expound

    method = spec.replace("{run}", str(result.output_dir))
    compared = expound.compare(model, rows, {"explanation": method}, [metric], show_progress=False)
    column = compared.results.sort_values("example")[expound.metric(metric).name]
    values: list[float] = column.to_list()
    return values
