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
ADDED: Mapping[str, Mapping[str, Any]] = {"aml": {"sparsity_warmup": 0}}
"""Parameters that recipes got after cells were finished, with the value that those cells have without naming it."""


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
            known[key] = "model"
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
    if made.head_lr_multiplier != 1:
        config["head_lr_multiplier"] = made.head_lr_multiplier
    if made.head_dropout is not None:
        config["head_dropout"] = made.head_dropout
    return config
