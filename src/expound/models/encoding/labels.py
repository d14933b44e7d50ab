"""Renumbering of a dataset's labels to a model's own ids."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from expound.errors import ExpoundError
from expound.models.hugging_face import HuggingFaceModel, find_equal_names

if TYPE_CHECKING:
    from datasets import Dataset

TRUTH = {"false": "0", "true": "1"}
"""The numbers of labels that are booleans."""
NUMBER = re.compile(r"(?i)(?:label_?)?(\d{1,9})")


def renumber_labels(model: HuggingFaceModel, data: Dataset) -> list[dict[str, Any]]:
    """Return the rows with labels renumbered to the model's `id2label`; missing labels, values and spans unchanged.

    Names are matched in any case. One may be the beginning of the other (NEG, negative), unless there is an equal name.
    If no name is known, numbers count, whether or not the data has all of them: those that the model's names begin
    with, else 0 and LABEL_0 are its first class, or 1 is, if the numbers run from 1 to the number of its classes. A
    model whose names are numbers takes as many names in their order.

    Raises:
        ExpoundError: a label that the model does not have.
    """
    return list(map(make_renumbering(model, data.features), data))


def make_renumbering(
    model: HuggingFaceModel, features: Mapping[str, Any]
) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Return a function that renumbers the label of one row of a dataset, see `renumber_labels`."""
    names = getattr(features.get("label"), "names", None)
    if names is None or model.task.predicts_number or model.task.reads_context:
        return dict
    numbers = match_labels(names, model.labels)

    def renumber(row: Mapping[str, Any]) -> dict[str, Any]:
        label = row["label"]
        if label is None:
            return dict(row)
        if label not in numbers:
            raise ExpoundError(
                f"the data has the label {names[label]!r}, which the model does not know; "
                f"it knows: {', '.join(model.labels)}"
            )
        return {**row, "label": numbers[label]}

    return renumber


def match_labels(names: Sequence[str], known: Sequence[str]) -> Mapping[int, int]:
    """Return the index of the known name that matches each name, by the name's index; names without one are absent."""
    by_name: dict[int, int] = {}
    for number, name in enumerate(names):
        matches = _find_matches(name, known)
        # Two matches are ambiguous, as of "neutral" with "neutral-positive" and "neutral-negative".
        if len(matches) == 1:
            by_name[number] = matches[0]
    if by_name:
        return by_name
    numbers, size, is_complete = _parse_numbers(names), len(known), len(names) == len(known)
    known_numbers = _parse_numbers([name.partition(" ")[0] for name in known])
    # Numbers of the model's names ("1 star"), from 0, or from 1.
    for order in (known_numbers, range(size), range(1, size + 1) if is_complete else ()):
        if numbers and set(numbers) <= set(order):
            return {place: order.index(number) for place, number in enumerate(numbers)}
    # A model that was trained without names has LABEL_0, LABEL_1, …
    if is_complete and _parse_numbers(known):
        return {place: place for place in range(size)}
    return {}


def _parse_numbers(names: Sequence[str]) -> list[int]:
    """Return the names' numbers, such as 3 for LABEL_3; an empty list unless all names are numbers."""
    numbers: list[int] = []
    for name in names:
        match = NUMBER.fullmatch(TRUTH.get(name.strip().casefold(), name.strip()))
        if match is None:
            return []
        numbers.append(int(match[1]))
    return numbers


def _find_matches(name: str, known: Sequence[str]) -> list[int]:
    """Return the indices of the known names that equal the name, else of the names that share a beginning with it.

    Of two names that share a beginning, one is the whole beginning of the other.
    """
    equal = find_equal_names(name, known)
    name, others = name.strip().casefold(), [other.strip().casefold() for other in known]
    if equal or NUMBER.fullmatch(name):
        return equal
    matches: list[int] = []
    for number, other in enumerate(others):
        # Shorter beginnings match by chance.
        is_long_enough = min(len(name), len(other)) >= 3
        if is_long_enough and (name.startswith(other) or other.startswith(name)):
            matches.append(number)
    return matches
