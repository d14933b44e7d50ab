"""A parameter's name has one meaning and one type in all methods, metrics, objectives and recipes."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import is_dataclass
from inspect import signature
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import pytest

from expound.errors import ExpoundError
from expound.explainers import EXPLAINERS, Explainer, explainer
from expound.metrics.registry import METRICS, metric
from expound.objectives import OBJECTIVES, objective
from expound.recipes import RECIPES
from expound.training import Simulatability
from readme_blocks import ROOT

KINDS = {bool: "yes or no", int: "integer", float: "number", str: "text"}
ROW = re.compile(r"^\| `(\w+)` \| ([^|]+) \| [^|]+ \|$", re.MULTILINE)


def kind_of(hint: Any) -> str:
    """Return the kind of a parameter's values, in the words of the page's table."""
    if get_origin(hint) is Annotated:
        return kind_of(get_args(hint)[0])
    if get_origin(hint) is Literal:
        return "choice"
    if get_origin(hint) is tuple:
        return "numbers"
    kinds = {kind_of(each) for each in get_args(hint) if each is not NoneType} if get_args(hint) else set()
    # A spec stands for the object that it names, and a word for a computed number.
    for first in ("object", "explainer", "integer", "number", "choice"):
        if first in kinds:
            return first
    if isinstance(hint, type) and issubclass(hint, Explainer):
        return "explainer"
    return kinds.pop() if len(kinds) == 1 else KINDS.get(hint, "object")


def test_a_name_has_one_meaning_and_one_type():
    """The meaning is what the page says; a part that means something else by the name takes another one."""
    found = defaultdict(set)
    parts = [registry[name] for registry in (EXPLAINERS, METRICS, OBJECTIVES, RECIPES) for name in registry.native]
    # A criterion that needs a student is no objective of the registry, but has a spec in ivra.
    for part in [*parts, Simulatability]:
        # Modules declare their parameters in `__init__`, dataclasses as fields.
        source = part if not isinstance(part, type) or is_dataclass(part) else part.__init__
        hints = get_type_hints(source, include_extras=True)
        for parameter in signature(part).parameters.values():
            # What has no default is not set in a spec: saved explainers are rebuilt from it.
            if parameter.default is not parameter.empty:
                is_explainer = parameter.name == "explainer"
                found[parameter.name].add("explainer" if is_explainer else kind_of(hints[parameter.name]))
    page = dict(ROW.findall((ROOT / "docs" / "parameters.md").read_text(encoding="utf-8")))
    assert {name: kinds for name, kinds in found.items() if len(kinds) > 1} == {}
    assert page == {name: kinds.pop() for name, kinds in found.items()}


def test_a_choice_that_does_not_exist_is_refused_when_a_method_or_metric_is_made():
    refused = set()
    for registry in (EXPLAINERS, METRICS):
        for name, part in registry.items():
            required = {"method": explainer("random")} if name == "citation" else {}
            hints = get_type_hints(part) if is_dataclass(part) else {}
            for parameter in signature(part).parameters:
                choices = {each for each in get_args(hints.get(parameter)) if isinstance(each, str)}
                for option in get_args(hints.get(parameter)):
                    choices.update(get_args(option) if get_origin(option) is Literal else ())
                if choices:
                    expected = f"unknown {parameter} 'zzz'. Valid choices: {', '.join(sorted(choices))}"
                    with pytest.raises(ExpoundError, match=re.escape(expected)):
                        part(**required, **{parameter: "zzz"})
                    refused.add(f"{name}?{parameter}")
    assert {"decompx?bias", "saliency?aggregate", "integrated_gradients?baselines", "lds?perturbation"} < refused


def test_the_name_of_another_part_or_library_is_answered_with_this_parts_name():
    for spec, name in (
        ("occlusion?how=mask", "perturbation"),
        ("occlusion?granularity=word", "unit"),
        ("context_cite?n_masks=8", "n_samples"),
        ("integrated_gradients?steps=8", "n_steps"),
        ("smooth_grad?noise=0.2", "stdevs"),
    ):
        with pytest.raises(ExpoundError, match=f"Did you mean '{name}'"):
            explainer(spec)
    for spec, name in (("aopc_comprehensiveness?budgets=0.1", "fractions"), ("auc", "rationale_auc")):
        with pytest.raises(ExpoundError, match=f"Did you mean '{name}'"):
            metric(spec)
    for spec, name in (("constraint?decay=0.9", "multiplier_decay"), ("explanation", "rationale_alignment")):
        with pytest.raises(ExpoundError, match=f"Did you mean '{name}'"):
            objective(spec)
