"""What checks and estimates of studies ask of every native part that needs no folder; a script prints it as JSON."""

from __future__ import annotations

import inspect
import json
import sys

from exegete.data.outline import outlined
from exegete.explainers.registry import EXPLAINERS, explainer
from exegete.metrics.registry import METRICS, metric
from exegete.recipes.registry import RECIPES

HEAVY = {"torch", "transformers", "datasets", "captum", "sklearn", "scipy", "pandas", "accelerate", "optuna"}
RECIPE = ("name", "paper", "departures", "patience", "threshold", "max_length", "head_rate", "arguments")


def facts():
    found = {}
    for name in EXPLAINERS.native:
        if not EXPLAINERS.outline(name).card.learned:
            made = explainer(name)
            found[name] = [made.name, made.params, made.differentiable, [made.passes(length) for length in (1, 9, 80)]]
    for name in METRICS.native:
        made = metric(name)
        found[name] = [made.name, made.params, str(made.card), getattr(made, "budgets", None)]
    for name in RECIPES.native:
        made, parameters = RECIPES[name](), inspect.signature(RECIPES[name]).parameters
        found[name] = [getattr(made, each) for each in RECIPE]
        found[name] += [dict(made.from_scratch), {key: each.default for key, each in parameters.items()}]
    return json.loads(json.dumps(found))


if __name__ == "__main__":
    with outlined():
        found = facts()
    assert not HEAVY & sys.modules.keys(), HEAVY & sys.modules.keys()
    json.dump(found, sys.stdout)
