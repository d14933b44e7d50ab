"""Outlines say what the parts themselves say, and import nothing heavy for it."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import exegete
import part_facts
from exegete.data.outline import outline, outlined, signature
from exegete.errors import ExegeteError
from exegete.explainers import EXPLAINERS, explainer
from exegete.metrics import metric
from exegete.recipes import RECIPES


def test_outlines_have_the_facts_of_the_parts_without_their_imports():
    environment = os.environ | {"PYTHONPATH": str(Path(exegete.__file__).parents[1])}
    script = [sys.executable, part_facts.__file__]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == part_facts.facts()


@pytest.mark.parametrize(
    ("look", "message"),
    [
        (lambda: explainer("integrated_gradients?rule=simpson"), "gausslegendre"),
        (lambda: explainer("kernel_shap?n_samples=few"), "n_samples"),
        (lambda: metric("sufficiency?k=2"), "above 0 and up to 1"),
        (lambda: metric("aopc_sufficiency?divisor=two"), "divisor"),
        (lambda: RECIPES["er_constrained"]("alti"), "no bound for alti"),
        (lambda: RECIPES["er_joint"]("lime"), "differentiable"),
        (lambda: RECIPES["er_joint"](weight=-1.0), "at least 0"),
        (lambda: RECIPES["ivra"]("comprehensive"), "unknown criterion 'comprehensive'"),
        (lambda: RECIPES["custom"]("entropy"), "unknown objective"),
    ],
)
def test_outlines_check_as_the_parts_do(look, message):
    with outlined(), pytest.raises(ExegeteError, match=message) as outlines:
        look()
    with pytest.raises(ExegeteError, match=message) as parts:
        look()
    assert str(outlines.value) == str(parts.value)


@pytest.mark.parametrize("name", RECIPES.native)
def test_a_signature_is_the_functions_own(name):
    with outlined():
        found = signature(RECIPES[name])
    own = inspect.signature(RECIPES[name], eval_str=True)
    assert {key: each.annotation for key, each in found.parameters.items()} == {
        key: each.annotation for key, each in own.parameters.items()
    }


def test_outlines_end_with_the_block_and_are_no_parts():
    with outlined():
        assert EXPLAINERS["saliency"] is outline("exegete.explainers.gradients.saliency")["Saliency"]
    assert EXPLAINERS["saliency"].__module__ == "exegete.explainers.gradients.saliency"
    with pytest.raises(KeyError):
        outline("exegete.explainers.gradients.saliency")["nothing"]
