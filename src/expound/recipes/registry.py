"""The registry of recipes by their id."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from expound.data.registry import Registry, parse_spec
from expound.errors import ExpoundError, unknown

if TYPE_CHECKING:
    import pandas as pd

    from expound.recipes.base import Recipe, RecipeFactory

RECIPES: Registry[RecipeFactory] = Registry(
    "recipe",
    "expound.recipes",
    {
        "baseline": "baseline:baseline",
        "lora": "lora:lora",
        "er_joint": "er_joint:er_joint",
        "er_constrained": "er_constrained:er_constrained",
        "er_bound": "er_bound:er_bound",
        "rrr": "rrr:rrr",
        "extractor": "extractor:extractor",
        "fresh": "fresh:fresh",
        "roar": "roar:roar",
        "random_labels": "random_labels:random_labels",
        "regex": "regex:regex",
        "smat": "smat:smat",
        "ivra": "ivra:ivra",
        "aml": "aml:aml",
        "at2": "at2:at2",
        "cite": "cite:cite",
        "custom": "custom:custom",
    },
)
PRESETS = ("paper",)
GUIDES = {"attention": "attention_last", "rollout": "attention_rollout", "ixg": "input_x_gradient"}
"""Short names of explainers that explanation regularization guides."""


def paper_parameters(name: str) -> Mapping[str, Any]:
    """Return the paper's values of parameters with other defaults, the constant `PAPER` of the recipe's module."""
    values: Mapping[str, Any] = getattr(inspect.getmodule(RECIPES[name]), "PAPER", {})
    return values


def use_preset(made: Recipe, preset: str | None) -> Recipe:
    """Return the recipe, with the paper's training arguments if the preset is `paper`. ExpoundError for others."""
    if preset not in (None, *PRESETS):
        raise unknown("preset", preset, PRESETS)
    if preset is None or made.paper_arguments is None:
        return made
    return replace(made, arguments=made.paper_arguments)


def recipe(spec: str | Recipe, *, preset: str | None = None, **params: Any) -> Recipe:
    """Return the recipe of an id with these parameters, as `recipe("er_joint", explainer="alti", weight=10.0)`.

    Args:
        spec: an id, or an id with parameters, as `er_joint?explainer=alti&weight=10`; a `Recipe` is returned unchanged.
        preset: `paper`: the paper's values for parameters that are not given, and for the training arguments. Default:
            values for short runs on small data.
        params: parameters of the recipe, see the options of `expound train ID --help`; they override the spec's.

    Raises:
        ExpoundError: an unknown id, parameter or preset, or a value of the wrong type.
    """
    if not isinstance(spec, str):
        if params:
            raise ExpoundError(f"{spec.name} is a Recipe already: pass {', '.join(params)} when you create it")
        return use_preset(spec, preset)
    if preset is not None:
        name, given = parse_spec(spec)
        params = {**paper_parameters(name), **given, **params}
    return use_preset(RECIPES.make(spec, **params), preset)


def list_recipes() -> pd.DataFrame:
    """Return a table of the recipes: id, paper, parameters and what each one does."""
    import pandas as pd

    rows = []
    for name, factory in RECIPES.items():
        row = {"name": name, "paper": factory().paper, "parameters": ", ".join(inspect.signature(factory).parameters)}
        summary = inspect.getdoc(factory) or ""
        rows.append({**row, "summary": " ".join(summary.split("\n\n")[0].split())})
    return pd.DataFrame(rows)
