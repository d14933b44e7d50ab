"""Scores as coloured cells: layers by positions, heads by layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from exegete.reports.attributions import Attribution
from exegete.reports.highlighted import colors


class HeatmapCell(NamedTuple):
    """A number and the class of its colour."""

    value: float
    color: str


class Heatmap(NamedTuple):
    """Named rows and columns of cells."""

    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[HeatmapCell]]]


def make_layer_heatmap(item: Attribution) -> Heatmap:
    """The scores of each layer, the last one first; special tokens are left out. Layers may differ in their scale."""
    kept = [place for place, special in enumerate(item.special) if not special]
    layers = item.layers if item.layers is not None else item.scores[None]
    names = [str(number) for number in range(len(layers), 0, -1)]
    return make_heatmap(
        names, [item.tokens[place] for place in kept], layers[::-1, kept], signed=item.signed, by_row=True
    )


def make_heatmap(
    rows: Sequence[str], columns: Sequence[str], values: ArrayLike, *, signed: bool, by_row: bool = False
) -> Heatmap:
    """Values [R, C], the strongest one of all, or of each row, in the strongest shade."""
    array = np.asarray(values, dtype=np.float64)
    top = np.max(np.abs(array), axis=1 if by_row else None, keepdims=True, initial=0.0, where=np.isfinite(array))
    cells = [
        [
            HeatmapCell(
                float(value), colors.level_to_css_class(colors.score_to_level(float(value), float(most)), signed=signed)
            )
            for value in line
        ]
        for line, (most,) in zip(array, np.broadcast_to(top, (len(array), 1)), strict=True)
    ]
    return Heatmap(columns, list(zip(rows, cells, strict=True)))
