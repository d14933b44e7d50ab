"""A dataset's labels in a model's own numbering."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from datasets import ClassLabel, Dataset

from exegete.errors import ExegeteError
from exegete.models.explained import ExplainedModel

GENERIC = re.compile(r"(?i)(label_?)?\d+")


def in_model_labels(model: ExplainedModel, data: Dataset) -> list[dict[str, Any]]:
    """The rows with `label` as the model numbers it; rows without labels, with values or spans as they are.

    Names are matched in any case; one that has no equal may be the beginning of the other, or begin with it (NEG,
    negative). Where either side has only numbers for names, the numbers count.

    Raises:
        ExegeteError: a label that the model does not know.
    """
    feature = data.features.get("label")
    rows: list[dict[str, Any]] = [dict(row) for row in data]
    if not isinstance(feature, ClassLabel) or model.task.name in ("regression", "span"):
        return rows
    numbers = label_map(feature.names, model.labels)
    used = {row["label"] for row in rows if row["label"] is not None}
    unknown = sorted(feature.names[number] for number in used if number not in numbers)
    if unknown:
        raise ExegeteError(
            f"the data has the label {unknown[0]!r}, which the model does not know; it knows: {', '.join(model.labels)}"
        )
    return [row if row["label"] is None else row | {"label": numbers[row["label"]]} for row in rows]


def label_map(names: list[str], known: tuple[str, ...]) -> Mapping[int, int]:
    """From the number of each name to the number of its like among the known ones; without those that have none."""
    if all(GENERIC.fullmatch(name) for name in names) or all(GENERIC.fullmatch(name) for name in known):
        return {number: number for number in range(min(len(names), len(known)))}
    found = {number: _likes(name, known) for number, name in enumerate(names)}
    return {number: alike[0] for number, alike in found.items() if len(alike) == 1}


def _likes(name: str, known: tuple[str, ...]) -> list[int]:
    """The numbers of the known names that are this one, else of those that begin like it."""
    name, others = name.strip().casefold(), [other.strip().casefold() for other in known]
    equal = [number for number, other in enumerate(others) if other == name]
    return equal or [number for number, other in enumerate(others) if _one_begins_the_other(name, other)]


def _one_begins_the_other(one: str, other: str) -> bool:
    return min(len(one), len(other)) >= 3 and (one.startswith(other) or other.startswith(one))
