"""The end of `expound train`: what the training changed, measured, and the commands to go on with."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from expound.cli.shared.console import console, say
from expound.cli.train.control import describe_difference, judge
from expound.data.hub import CONFIG, read_explainer_name, read_json_object
from expound.errors import ExpoundError

if TYPE_CHECKING:
    from datasets import Dataset

    from expound.recipes import Recipe
    from expound.training import RunOptions, TrainResult

JUDGED_ROWS = 64
"""Few enough that judging costs little beside the training; `--control` judges more."""


def print_change(recipe: Recipe, result: TrainResult, start: str, dev: Dataset, options: RunOptions) -> None:
    """Print what the run changed in the metric that the recipe exists for, if both models have it."""
    from expound.recipes.base import load_explained_model

    effect = recipe.effect
    if effect is None or result.model.task.is_generated:
        return
    before, method, versus = result.model, effect.control, f"{effect.control} of the same model"
    if method is None:
        # A model from scratch or without a trained head has no explanations to compare with.
        try:
            before = load_explained_model(recipe.name, start, options)
        except ExpoundError:
            return
        if before.labels != result.model.labels:
            return
        method, versus = effect.explainer, "the model before training"
    rows = dev.shuffle(seed=0).select(range(min(JUDGED_ROWS, len(dev))))
    after_values = judge(result.model, result, rows, effect.explainer, effect.metric)
    before_values = judge(before, result, rows, method, effect.metric)
    sentence = describe_difference(effect.metric, after_values, before_values, versus)
    console().print(f"what {recipe.name} is for: {sentence}", markup=False, highlight=False, soft_wrap=True)


def say_next_commands(
    recipe: Recipe, result: TrainResult, start: str, data: Sequence[str], prompt: Mapping[str, str | None]
) -> None:
    """Say how to look at the run's explanations, and how to judge them.

    `start`: the model that the run began with; `data`: the options of the data to judge on; `prompt`: the options of a
    prompted model.
    """
    folder = Path(result.output_dir)
    saved = find_saved_explainers(folder)
    model = start if recipe.keeps_model else str(folder)
    methods = saved[:1] or ([] if recipe.effect is None else [recipe.effect.explainer.replace("{run}", str(folder))])
    shared = ["--model", model]
    for option, text in prompt.items():
        shared += [] if text is None else [option, text]
    if result.model.task.is_generated:
        shared += ["--task", "generation"]
    say("next:")
    _say_command("explain", "TEXT", *shared, *(["--methods", methods[0]] if methods else []))
    judged = ["compare", *shared, *data]
    if recipe.keeps_model or not _is_classifier(start):
        _say_command(*judged, "--methods", ",".join([*(methods or ["integrated_gradients", "occlusion"]), "random"]))
    else:
        # The new model's own explainer cannot explain the old one, so the two are compared by a method of both.
        common = "integrated_gradients" if saved or not methods else methods[0]
        _say_command(*judged, "--against", start, "--methods", common)


def find_saved_explainers(folder: Path) -> list[str]:
    """Return the specs of the explainers that are saved in a run's folder or in folders of it."""
    specs = []
    for place in (folder, *sorted(path.parent for path in folder.glob(f"*/{CONFIG}"))):
        name = read_explainer_name(place)
        # The student's explainer is for the student alone; the teacher's is what was learned.
        if name and place.name != "student_explainer":
            specs.append(f"{name}:{place}" if place.name != name else f"{name}:{folder}")
    return specs


def _say_command(*words: str) -> None:
    say(f"  expound {shlex.join(words)}")


def _is_classifier(start: str) -> bool:
    """Return whether a folder holds a model with a trained head, which can be compared with the new one."""
    config = read_json_object(Path(start).expanduser() / CONFIG)
    return any("Classification" in name for name in config.get("architectures") or ())
