"""Pictures on the pages of objectives and recipes: short runs on made-up reviews."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import curve
import examples

import expound
from expound.objectives import OBJECTIVES, CrossEntropy, Objective, objective
from expound.recipes import RECIPES
from expound.reports.highlighted.highlight import render_fragment
from expound.training import fine_tune

History: TypeAlias = Sequence[Mapping[str, Any]]

ROWS, DEV = 80, 24
ARGUMENTS = {
    "num_train_epochs": 4,
    "learning_rate": 2e-3,
    "lr_scheduler_type": "constant",
    "per_device_train_batch_size": 16,
    "eval_strategy": "steps",
    "eval_steps": 4,
    "logging_steps": 4,
    "save_strategy": "no",
    "load_best_model_at_end": False,
    "use_cpu": True,
    "disable_tqdm": True,
}
"""Arguments of every run: 20 steps, evaluated on held-out reviews."""
OTHER_ARGUMENTS = {
    "at2": {"max_steps": 200, "use_cpu": True, "disable_tqdm": True},
    # At the rate of the others, masks soon keep nothing on some processors.
    "aml": ARGUMENTS | {"learning_rate": 5e-4},
}
"""Arguments of recipes that need others."""
METHODS = {
    **dict.fromkeys(("er_joint", "er_constrained", "er_bound", "regex"), "attention_last"),
    "rrr": "saliency",
    "extractor": "rationale_extractor:{}",
    "smat": "parameterized_attention:{}/teacher_explainer",
    "ivra": "interpretable_attention:{}/interpretable_attention",
    "aml": "attributive_masking:{}",
    "cite": "decompx_linear",
    "at2": "attention_to_source:{}",
}
"""The method that explains the review on a page; {} is the run's folder."""
HIDDEN_METRICS = (
    "loss",
    "f1_macro",
    "feasible_cross_entropy",
    "criterion",
    "runtime",
    "per_second",
    "preparation_time",
)


def reviews() -> tuple[Any, Any]:
    """Return train and dev examples with rationales."""
    return expound.load_data("generated", "train", limit=ROWS), expound.load_data("generated", "dev", limit=DEV)


def objectives(start: Path, folder: Path) -> dict[str, str]:
    """Return a chart per objective: its value on held-out reviews, trained with weight 1 and with weight 0."""
    others = [
        objective(f"{name}?weight=0") for name in OBJECTIVES.native if name not in ("cross_entropy", "constraint")
    ]
    unweighted = _train(start, folder / "watched", others)
    return {name: _draw_objective(name, unweighted, start, folder / name) for name in OBJECTIVES.native}


def _draw_objective(name: str, unweighted: History, start: Path, folder: Path) -> str:
    if name == "cross_entropy":
        return f"<p>{name} on held-out reviews:</p>" + curve.draw_chart({"": _values(unweighted, name)}, name)
    # A constraint has a multiplier instead of a weight, and is logged as the term that it bounds.
    term, label = (objective(name), "bounded") if name == "constraint" else (objective(f"{name}?weight=1"), "weight 1")
    lines = {label: _values(_train(start, folder, [term]), term.name), "weight 0": _values(unweighted, term.name)}
    return f"<p>{term.name} on held-out reviews, {label} and with weight 0:</p>" + curve.draw_chart(lines, term.name)


def _train(start: Path, folder: Path, terms: Sequence[Objective]) -> History:
    """Return the log of a run with these terms added to cross-entropy."""
    run = fine_tune(start, *reviews(), folder, objectives=lambda _: [CrossEntropy(), *terms], arguments=ARGUMENTS)
    return run.history


def _values(entries: History, name: str) -> list[tuple[float, float]]:
    return [(entry["step"], entry[f"eval_{name}"]) for entry in entries if f"eval_{name}" in entry]


def recipes(start: Path, folder: Path) -> dict[str, str]:
    """Return the curves of a short run per recipe, and a review explained before and after it."""
    return {name: _draw_recipe(name, start, folder / name) for name in RECIPES.native}


def _draw_recipe(name: str, start: Path, folder: Path) -> str:
    params = dict(examples.RECIPE_PARAMETERS.get(name, {}))
    if "teacher" in params:
        params["teacher"] = str(start)
    source, arguments = ("tiny" if "teacher" in params else start), OTHER_ARGUMENTS.get(name, ARGUMENTS)
    result = RECIPES[name](**params).train(source, *reviews(), folder, arguments=arguments, processing_class=start)
    terms = [key.removeprefix("eval_") for key in result.history[-1] if key.startswith("eval_")]
    charts = [(term, _values(result.history, term)) for term in terms if not term.endswith(HIDDEN_METRICS)]
    curves = "".join(f"<p>{term}</p>{curve.draw_chart({'': values}, term)}" for term, values in charts)
    figures = ", ".join(f"{key} <strong>{value:.3f}</strong>" for key, value in result.metrics.items())
    heading = "<p>On held-out reviews, during training:</p>" if curves else f"<p>{figures}</p>"
    return heading + curves + (_draw_explanations(METHODS[name], start, folder) if name in METHODS else "")


def _draw_explanations(method: str, start: Path, folder: Path) -> str:
    """Return one review explained by the run's explainer; a trained model is also shown before training."""
    row, before = expound.load_data("generated", "test", limit=1, seed=3), expound.load(start, device="cpu")
    if "{}" in method:
        return render_fragment(expound.attribute(before, row, method=method.format(folder)))
    models = (before, expound.load(folder, device="cpu"))
    shown = [render_fragment(expound.attribute(model, row, method=method)) for model in models]
    return f"<p>{method} before:</p>{shown[0]}<p>and after:</p>{shown[1]}"
