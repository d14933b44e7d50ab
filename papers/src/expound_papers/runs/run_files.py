"""The files in the folder of a finished run, and the words of its configuration that name other runs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

FIGURES = "figures.json"
PREDICTIONS = "predictions.parquet"
RESULTS, CURVES = "results.parquet", "curves.parquet"
ATTRIBUTIONS, LAYERS = "attributions", "layers.parquet"
TRAINED, NOISY, OWN_RUN = "trained", "noisy", "{run}"
RUN_IN_SPEC = re.compile(r"\{run:([^{}]+)\}")
"""A reference in a metric's spec to the folder of a run, by its recipe."""


def read_numbers(path: Path) -> Iterator[tuple[str, float]]:
    """Yield the names and values of the numbers in a JSON file of figures; an undefined one, null, is NaN."""
    for name, value in json.loads(path.read_text(encoding="utf-8")).items():
        if value is None:
            yield name, math.nan
        elif isinstance(value, int | float):
            yield name, float(value)
