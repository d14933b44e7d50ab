"""On every architecture of transformers, each method equals a slow reference or is refused in a sentence."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

import pytest

from sweep.own_models import CHANGES, FAMILIES
from sweep.own_references import COALITIONS, PATHS
from sweep.run_sweep import OWN_METHODS, sweep_model
from sweep.tiny_models import HEADS, list_types

SAMPLE = {
    "SequenceClassification": ("fnet", "eurobert", "doge", "ibert", "mobilebert"),
    "CausalLM": ("lfm2", "minimax", "roberta", "diffllama", "git", "hrm_text"),
    "Seq2SeqLM": ("t5",),
    "TokenClassification": ("convbert",),
    "MaskedLM": ("roberta", "funnel"),
    "ImageClassification": ("beit", "dinov2", "ijepa", "data2vec-vision", "swin", "siglip"),
}
"""Architectures of `make test`: one per way in which an assumption is broken."""
OWN_SAMPLE = ("max", "two layers", "extra norm", "dict", "attention", "adapter", "checkpointing")
"""Changes of one's own model in `make test`, each in one family; compiled models are refused."""
FIGURES = os.environ.get("EXPOUND_SWEEP")


def every_cell():
    for head in HEADS:
        for model_type in list_types(head):
            if FIGURES or model_type in SAMPLE[head]:
                yield pytest.param(head, model_type, marks=pytest.mark.sweep)


@pytest.mark.parametrize(("head", "model_type"), every_cell())
def test_each_method_is_exact_or_refused(head, model_type):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        findings = sweep_model(model_type, head)
    if FIGURES:
        with Path(FIGURES).open("a") as file:
            for each in findings:
                file.write(json.dumps({"type": model_type, "head": head, **each._asdict()}) + "\n")
    # The architectures of the sample are built; a whole sweep lists those that are not.
    allowed = ("exact", "refused", "not built") if FIGURES else ("exact", "refused")
    assert [each for each in findings if each.state not in allowed] == []


def every_change():
    for number, change in enumerate(CHANGES):
        for place, family in enumerate(FAMILIES):
            # transformers does not recompute layers that ALBERT shares.
            if (change, family) == ("checkpointing", "albert"):
                continue
            if FIGURES or (change in (*OWN_SAMPLE, "compiled") and place == number % len(FAMILIES)):
                yield pytest.param(change, family, marks=pytest.mark.sweep)


@pytest.mark.parametrize(("change", "model_type"), every_change())
def test_models_of_ones_own_are_exact_or_refused(change, model_type, monkeypatch):
    monkeypatch.delenv("TORCHDYNAMO_DISABLE")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        findings = sweep_model(model_type, "SequenceClassification", OWN_METHODS, change=CHANGES[change])
    assert [each for each in findings if each.state not in ("exact", "refused")] == []
    # Gradients, rules and removal need no knowledge of a model; compiled models are refused as a whole.
    for each in findings:
        needs_none = each.method in (*PATHS, *COALITIONS, "input_x_gradient", "occlusion", "cp_lrp", "attn_lrp", "gim")
        if needs_none or change == "compiled":
            assert (each.state == "exact") == (change != "compiled"), each
