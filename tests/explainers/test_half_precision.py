"""How far scores in half precision and with weights in 8 or 4 bits are from exact ones: docs/precision.md's table.

EXPOUND_PRECISION=FILE writes the table there.
"""

from __future__ import annotations

import os
import re
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau

import expound
import families
from expound import ExpoundError
from expound.models.layers.layer_parts import to_affine
from small import NATIVE, make_explainer, small

PAGE = Path(__file__).parents[2] / "docs" / "precision.md"
BOUNDS = {"1 %": 0.01, "5 %": 0.05, "20 %": 0.2, "more": np.inf}
TYPES = ("bfloat16", "float16", "8bit", "4bit")


@cache
def models(dtype):
    """One tiny model in double precision and in less; its weights are the same numbers in both."""
    exact = small("bert", dtype=torch.float32)
    exact.model.to(torch.bfloat16).to(torch.float16).float()
    with tempfile.TemporaryDirectory() as folder:
        exact.model.save_pretrained(folder)
        families.tokenizer("bert").save_pretrained(folder)
        less = expound.load(folder, device="cpu", dtype=dtype)
    for name, layer in exact.model.named_modules():
        if isinstance(layer, torch.nn.Linear):
            layer.weight.data = to_affine(less.model.get_submodule(name)).weight.clone()
    exact.model.double()
    return exact, less


@torch.no_grad()
def compare_precisions(method, dtype):
    """Σ|difference| / Σ|score| and the mean of Kendall's τ over texts, or None if the method refuses."""
    exact, half = models(dtype)
    batch = exact.encode(families.SENTENCES[:3])
    target = exact.resolve_target(batch)
    expected = make_explainer(method).attribute(exact, batch, target).double()
    try:
        found = make_explainer(method).attribute(half, batch, target).double()
    except ExpoundError:
        return None
    orders = [kendalltau(a[c], b[c]).statistic for a, b, c in zip(expected, found, batch.content, strict=True)]
    return float((found - expected).abs().sum() / expected.abs().sum()), float(np.mean(orders))


def category(error):
    return next(name for name, bound in BOUNDS.items() if error <= bound)


def row(method):
    cells = []
    for dtype in TYPES:
        found = compare_precisions(method, dtype)
        cells += ["refused", ""] if found is None else [category(found[0]), f"{found[1]:.1f}"]
    return f"| `{method}` | {' | '.join(cells)} |"


def read_table():
    """The page's rows by method: the bound and τ for every type."""
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    parts = {name: cells.split(" | ") for name, cells in rows}
    return {name: list(zip(cells[::2], cells[1::2], strict=True)) for name, cells in parts.items()}


def test_the_page_lists_every_method():
    if file := os.environ.get("EXPOUND_PRECISION"):
        Path(file).write_text("\n".join(row(method) for method in NATIVE) + "\n")
    assert list(read_table()) == NATIVE


@pytest.mark.parametrize(("method", "dtypes"), families.rotate(NATIVE, [TYPES[::2], TYPES[1::2]]))
def test_scores_are_as_near_as_the_page_says(method, dtypes):
    known = dict(zip(TYPES, read_table()[method], strict=True))
    for dtype in dtypes:
        bound, order = known[dtype]
        found = compare_precisions(method, dtype)
        if bound == "refused":
            assert found is None
        else:
            assert found is not None
            assert found[0] <= 2 * BOUNDS[bound]
            assert abs(found[1] - float(order)) <= 0.35
