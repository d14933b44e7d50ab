"""The configuration of a training: a recipe's parameters and the Trainer's arguments, with all their defaults."""

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
from expound_papers.runs.run_files import TRAINED

if TYPE_CHECKING:
    from expound.recipes import Recipe

EXPLAINING = ("aml",)
"""The recipes that leave the model they start from unchanged."""
ADDED: Mapping[str, Mapping[str, Any]] = {
    "recipe": {"head_lr_multiplier": 1, "head_dropout": None},
    "aml": {"sparsity_warmup": 0},
    "ivra": {"perturbation": "mask"},
    "lime": {"num_features": None},
}
"""Parameters that recipes (all, or one), methods and metrics got after cells were finished, by id, with the value that
these cells have without naming it."""


def omit_added(name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters in the address of a cell: all but those that came later and have their value from before.

    Addresses hold all values, defaults too, so that a changed default is another address.
    """
    added = ADDED.get(name, {})
    return {key: value for key, value in parameters.items() if key not in added or added[key] != value}


def make_recipe(name: str, parameters: Mapping[str, Any]) -> Recipe:
    """Make a recipe with its parameters, to check them and to read its settings.

    Values that are not known before other runs are finished have placeholders: 1 for figures, the recipe's default or
    an empty text for folders.
    """
    known = dict(ADDED.get(name, {}))
    for key, value in parameters.items():
        if not isinstance(value, Mapping):
            known[key] = value
        elif "model" in value:
            known[key] = value.get("spec", "model")
        elif TRAINED in value:
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
    usual = dict(DEFAULT_ARGUMENTS) if made.uses_trainer_defaults else {}
    usual |= made.arguments
    if names_new_model(source):
        usual |= made.from_scratch
    usual |= arguments
    config = {
        "recipe": name,
        "parameters": omit_added(name, {**defaults, **parameters}),
        "arguments": {key: value for key, value in usual.items() if key not in IRRELEVANT_ARGUMENTS},
        "patience": made.patience,
        "threshold": made.threshold,
        "recipe_max_length": made.max_length,
        "head_lr_multiplier": made.head_lr_multiplier,
        "head_dropout": made.head_dropout,
    }
    return omit_added("recipe", config)
