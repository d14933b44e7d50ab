"""Hierarchical removal: groups of units are removed, and the strongest are halved until single units are removed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from expound.data.spans import UnitName
from expound.explainers.units import number_units
from expound.models import Batch

MeasureEffects = Callable[[Sequence[range]], Tensor]
"""Returns the effects [T, G] of removing each of G groups of units, given as ranges of their numbers, on T targets."""


def search_tree(measure: MeasureEffects, parents: Sequence[int], budget: int) -> Tensor:
    """Return effects [T, U] of U units on T targets, from the removal of at most `budget` groups of units.

    A third of the budget goes to groups of about the same size, the rest to halves of the groups with the largest
    effects (of any target, relative to the target's largest). Only the smaller half is removed: the other one has what
    is left of the group's effect, unless it is a single unit. The units of a group that was not halved share its effect
    equally; units that were removed alone have their own.

    Args:
        measure: removes groups.
        parents: [U] the number of the larger unit (the paragraph) that each unit belongs to; groups are cut there
            first.
        budget: the most groups that are removed, at least 2.
    """
    if len(parents) <= budget:
        return measure([range(unit, unit + 1) for unit in range(len(parents))])
    groups = divide(range(len(parents)), parents, max(2, budget // 3))
    effects = dict(zip(groups, measure(groups).unbind(1), strict=True))
    left = budget - len(groups)
    while chosen := choose_groups(effects, left):
        removed: list[range] = []
        for group in chosen:
            larger, smaller = halve(group, parents)
            removed += [smaller] if len(larger) > 1 else [larger, smaller]
        found = dict(zip(removed, measure(removed).unbind(1), strict=True))
        left -= len(removed)
        for group in chosen:
            larger, smaller = halve(group, parents)
            effects[smaller] = found[smaller]
            effects[larger] = found.get(larger, effects.pop(group) - found[smaller])
    shares: list[Tensor] = []
    for group in sorted(effects, key=lambda group: group.start):
        shares += [effects[group] / len(group)] * len(group)
    return torch.stack(shares, 1)


def choose_groups(effects: Mapping[range, Tensor], left: int) -> list[range]:
    """Return the groups to halve next, the one with the largest effect [T] first; none if no budget is left for one.

    The others have at least a quarter of its effect: groups are halved together where possible, since each round reads
    the whole input again.
    """
    groups, values = list(effects), torch.stack(list(effects.values()), 1).abs()
    largest = values.amax(1, keepdim=True).clamp(min=torch.finfo(values.dtype).tiny)
    strength = (values / largest).amax(0)
    chosen: list[range] = []
    size, least = 0, -torch.inf
    for number in strength.argsort(descending=True, stable=True).tolist():
        if len(groups[number]) < 2:
            continue
        size += 1 if len(groups[number]) > 2 else 2
        if size > left or float(strength[number]) < least:
            break
        if not chosen:
            least = float(strength[number]) / 4
        chosen.append(groups[number])
    return chosen


def halve(group: range, parents: Sequence[int]) -> tuple[range, range]:
    """Return the two halves of a group of several units, the one with more units first."""
    first, second = divide(group, parents, 2)
    return (first, second) if len(first) >= len(second) else (second, first)


def divide(group: range, parents: Sequence[int], most: int) -> list[range]:
    """Return at most `most` adjacent parts of a group: its larger units if it has several, else its units."""
    pieces: list[list[int]] = [list(own) for _, own in groupby(group, key=lambda unit: parents[unit])]
    if len(pieces) < 2:
        pieces = [[unit] for unit in group]
    parts: list[range] = []
    for numbers in np.array_split(np.arange(len(pieces)), min(most, len(pieces))):
        parts.append(range(pieces[numbers[0]][0], pieces[numbers[-1]][-1] + 1))
    return parts


def find_parents(batch: Batch, unit: UnitName, number: Tensor) -> list[int]:
    """Return the number of the paragraph (of a paragraph: the source) of each unit of a batch of one example.

    Units of token ids, sources and spans have no larger unit: all have the number 0.
    """
    # An example without content has one unit, which is empty.
    count = max(int(number.max()), 0) + 1
    if batch.alignments is None or unit == "source":
        return [0] * count
    larger = number_units(batch, "source" if unit == "paragraph" else "paragraph")[0]
    inside = number >= 0
    found = larger.new_zeros(count).scatter_reduce_(0, number[inside], larger[inside], "amin", include_self=False)
    parents: list[int] = found.tolist()
    return parents
