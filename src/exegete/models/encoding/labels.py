"""A dataset's labels in a model's own numbering."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from exegete.errors import ExegeteError
from exegete.models.explained import ExplainedModel

if TYPE_CHECKING:
    from datasets import Dataset

NUMBER = re.compile(r"(?i)(?:label_?)?(\d{1,9})")


def renumber_labels(model: ExplainedModel, data: Dataset) -> list[dict[str, Any]]:
    """The rows with `label` as the model numbers it; rows without labels, with values or spans as they are.

    Names are matched in any case; one may be the beginning of the other (NEG, negative) unless there is the very same.
    Where no name is known, numbers count, whether or not the data has all of them: those that the model's names begin
    with, else 0 and LABEL_0 are its first class; 1 is, where they run from 1 to as many as it has. A model with
    numbers for names takes as many names in their order.

    Raises:
        ExegeteError: a label that the model does not know.
    """
    return list(map(make_renumbering(model, data.features), data))


def make_renumbering(
    model: ExplainedModel, features: Mapping[str, Any]
) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Makes the function that gives a row of a dataset its label as the model numbers it, see `renumber_labels`."""
    names = getattr(features.get("label"), "names", None)
    if names is None or model.task.name in ("regression", "span"):
        return dict
    numbers = match_labels(names, model.labels)

    def renumbered(row: Mapping[str, Any]) -> dict[str, Any]:
        label = row["label"]
        if label is not None and label not in numbers:
            raise ExegeteError(
                f"the data has the label {names[label]!r}, which the model does not know; "
                f"it knows: {', '.join(model.labels)}"
            )
        return dict(row) if label is None else {**row, "label": numbers[label]}

    return renumbered


def match_labels(names: Sequence[str], known: Sequence[str]) -> Mapping[int, int]:
    """From the number of each name to the number of its like among the known ones; without those that have none."""
    found = {number: _alike(name, known) for number, name in enumerate(names)}
    by_name = {number: alike[0] for number, alike in found.items() if len(alike) == 1}
    if by_name:
        return by_name
    numbers, size, as_many = _numbers(names), len(known), len(names) == len(known)
    theirs = _numbers([name.partition(" ")[0] for name in known])
    for order in (theirs, range(size), range(1, size + 1) if as_many else ()):
        if numbers and set(numbers) <= set(order):
            return {place: order.index(number) for place, number in enumerate(numbers)}
    return {place: place for place in range(size)} if as_many and _numbers(known) else {}


def _numbers(names: Sequence[str]) -> list[int]:
    """Their numbers, 3 of LABEL_3; none unless all are numbers."""
    found = [NUMBER.fullmatch(name.strip()) for name in names]
    return [int(match[1]) for match in found if match] if all(found) else []


def _alike(name: str, known: Sequence[str]) -> list[int]:
    """The numbers of the known ones that are the name, else of those that begin with it or that it begins with."""
    one, others = name.strip().casefold(), [other.strip().casefold() for other in known]
    same = [number for number, other in enumerate(others) if other == one]
    if same or NUMBER.fullmatch(one):
        return same
    return [
        number
        for number, other in enumerate(others)
        if min(len(one), len(other)) >= 3 and (one.startswith(other) or other.startswith(one))
    ]
