"""Recipes of a study: checks of their parameters, and the configuration that the outcome of a training depends on."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from expound.errors import ExpoundError, check_choice
from expound.recipes import RECIPES
from expound.recipes.registry import paper_parameters, use_preset
from expound.training.loop.options import DEFAULT_ARGUMENTS, IRRELEVANT_ARGUMENTS, names_new_model
from expound_papers.spec.run_ref import MODEL, RUN, TRAINED, find_run_parts

if TYPE_CHECKING:
    from expound.recipes import Recipe

NONE, EXPLAINING = "none", ("aml",)
"""The id of no training; and the recipes that leave the model they start from unchanged."""
ADDED: Mapping[str, Mapping[str, Any]] = {"aml": {"sparsity_warmup": 0}}
"""Parameters that recipes got after cells were finished, with the value that those cells have without naming it."""
OPTIONS_OF_RUNS = ("masked_share", "head_rate", "head_dropout", "early_stopping_threshold", "log_gradient_norms")
FROM, OPTIONS = "from", {"from", "metric", "of", "times"}


def check_recipe(name: str, parameters: Mapping[str, Any], declared: Mapping[str, Any]) -> None:
    """Raise ExpoundError for an unknown recipe or parameter, or for a value from an undeclared recipe."""
    for part in find_run_parts(parameters).values():
        check_choice("recipe", part.run, declared)
    check_choice("recipe", name, [*RECIPES, NONE])
    for key, value in find_values_from_runs(parameters).items():
        if set(value) - OPTIONS or not isinstance(value.get("metric"), str) or value.get("of") not in (None, "train"):
            expected = "{from: RECIPE, metric: NAME, of: train, times: NUMBER} (of and times as needed)"
            raise ExpoundError(f"{key}: expected {expected}, got {dict(value)}")
        check_choice("recipe", str(value[FROM]), declared)
    if name != NONE:
        make_recipe(name, parameters)
    elif parameters:
        raise ExpoundError(f"the recipe none has no parameters, got {', '.join(parameters)}")


def check_run_options(options: Mapping[str, Any]) -> None:
    """Raise ExpoundError for an option of a run that a study cannot set under `options`."""
    for name in options:
        check_choice("option of a run", name, OPTIONS_OF_RUNS)


def find_values_from_runs(parameters: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the parameters whose value is a figure of other runs, as `{from: RECIPE, metric: NAME}`."""
    return {key: value for key, value in parameters.items() if isinstance(value, Mapping) and FROM in value}


def make_recipe(name: str, parameters: Mapping[str, Any]) -> Recipe:
    """Make a recipe with its parameters, to check them and to read its settings.

    Values that are not known before other runs are finished have placeholders: 1 for figures, the recipe's default or
    an empty text for folders.
    """
    known = dict(ADDED.get(name, {}))
    for key, value in parameters.items():
        if not isinstance(value, Mapping):
            known[key] = value
        elif MODEL in value:
            known[key] = MODEL
        elif not {RUN, TRAINED}.isdisjoint(value):
            # Recipes look into a folder only when they train, so the placeholder need not exist.
            known[key] = ""
            declared = inspect.signature(RECIPES[name]).parameters.get(key)
            if declared is not None and declared.default is not declared.empty:
                known[key] = declared.default
        else:
            known[key] = 1.0
    return _make_cached(name, json.dumps(known, sort_keys=True))


@cache
def _make_cached(name: str, parameters: str) -> Recipe:
    factory, given = RECIPES[name], json.loads(parameters)
    valid = inspect.signature(factory).parameters
    for key in given:
        check_choice(f"parameter of {name}", key, valid)
    try:
        return factory(**given)
    except TypeError as error:
        raise ExpoundError(f"{name}: unusable parameters: {error}") from error


def resolve_config(
    name: str, parameters: Mapping[str, Any], arguments: Mapping[str, Any], source: str, preset: str | None = None
) -> dict[str, Any]:
    """Return a recipe's parameters and the Trainer's arguments, with all defaults that the outcome depends on."""
    if preset is not None:
        parameters = {**paper_parameters(name), **parameters}
    made = use_preset(make_recipe(name, parameters), preset)
    defaults = {key: each.default for key, each in inspect.signature(RECIPES[name]).parameters.items()}
    every, added = {**defaults, **parameters}, ADDED.get(name, {}).items()
    usual = dict(DEFAULT_ARGUMENTS) if made.uses_trainer_defaults else {}
    usual |= made.arguments
    if names_new_model(source):
        usual |= made.from_scratch
    usual |= arguments
    config = {
        "recipe": name,
        "parameters": {key: value for key, value in every.items() if (key, value) not in added},
        "arguments": {key: value for key, value in usual.items() if key not in IRRELEVANT_ARGUMENTS},
        "patience": made.patience,
        "threshold": made.threshold,
        "recipe_max_length": made.max_length,
    }
    # Left out at their defaults, as cells from before these settings existed have keys without them.
    if made.head_rate != 1:
        config["head_rate"] = made.head_rate
    if made.head_dropout is not None:
        config["head_dropout"] = made.head_dropout
    return config
