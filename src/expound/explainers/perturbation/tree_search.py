"""Hierarchical removal: groups of units are removed, and the strongest are divided until single units are removed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from expound.data.spans import UnitName
from expound.explainers.units import number_units
from expound.models import Batch

MOST_PARTS = 4
"""Parts that a group of units is divided into, at most: to find one unit of n, f parts at a time take f log_f n."""

MeasureEffects = Callable[[Sequence[range]], Tensor]
"""Returns the effects [T, G] of removing each of G groups of units, given as ranges of their numbers, on T targets."""


def search_tree(measure: MeasureEffects, parents: Sequence[int], budget: int) -> Tensor:
    """Return effects [T, U] of U units on T targets, from the removal of at most `budget` groups of units.

    A third of the budget goes to groups of about the same size, the rest to the parts of the groups with the largest
    effects (of any target, relative to the target's largest). The units of a group that was not divided share its
    effect equally; units that were removed alone have their own.

    Args:
        measure: removes groups.
        parents: [U] the number of the larger unit (the paragraph) that each unit belongs to; groups are cut there
            first.
        budget: the most groups that are removed, at least 2.
    """
    if len(parents) <= budget:
        return measure([range(unit, unit + 1) for unit in range(len(parents))])
    groups = divide(range(len(parents)), parents, max(2, budget // 3))
    effects, left = measure(groups), budget - len(groups)
    while left > 1:
        chosen = choose_groups(groups, effects, left)
        if not chosen:
            break
        parts: list[range] = []
        for group in chosen:
            parts += divide(group, parents, min(MOST_PARTS, left))
        kept = [number for number, group in enumerate(groups) if group not in chosen]
        effects = torch.cat([effects[:, kept], measure(parts)], 1)
        groups, left = [groups[number] for number in kept] + parts, left - len(parts)
    shares = effects.new_zeros(len(effects), len(parents))
    for number, group in enumerate(groups):
        shares[:, group.start : group.stop] = effects[:, number, None] / len(group)
    return shares


def choose_groups(groups: Sequence[range], effects: Tensor, left: int) -> list[range]:
    """Return the groups to divide next, the one with the largest effect [T, G] first; none if all are single units.

    The others have at least half of its effect, and their parts take at most half of the removals that are `left`:
    later choices know more, but each of them reads the whole input again.
    """
    largest = effects.abs().amax(1, keepdim=True).clamp(min=torch.finfo(effects.dtype).tiny)
    strength = (effects / largest).amax(0)
    chosen: list[range] = []
    size, least = 0, -torch.inf
    for number in strength.argsort(descending=True, stable=True).tolist():
        own = min(len(groups[number]), MOST_PARTS)
        if own < 2:
            continue
        if chosen and (float(strength[number]) < least or size + own > left // 2):
            break
        if not chosen:
            least = float(strength[number]) / 2
        chosen.append(groups[number])
        size += own
    return chosen


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
