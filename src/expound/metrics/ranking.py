"""Ranking of positions by an attribution, and rounding of fractions of a text to whole numbers of units."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

import torch
from torch import Tensor

from expound.errors import ExpoundError
from expound.models import Batch

Rounding = Literal["floor", "ceil", "er"]


def ranks(scores: Tensor, candidates: Tensor) -> Tensor:
    """Return the rank of each candidate by decreasing score, from 0: [B, L].

    Equal scores keep their order of position; positions that are no candidates come last.
    """
    # −∞ would tie with masked positions, so candidates are at least the smallest finite number.
    finite = scores.double().clamp(min=torch.finfo(torch.float64).min)
    # A stable sort makes ties, such as those of sparse maps, independent of the device and the batch.
    order = finite.masked_fill(~candidates, -torch.inf).argsort(dim=1, descending=True, stable=True)
    places = torch.arange(scores.shape[1], device=scores.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, places)


def fractions_to_counts(count: Tensor, fractions: Sequence[float], rounding: Rounding = "ceil") -> Tensor:
    """Return how many units each of K fractions of `count` [B] is: [K, B].

    Args:
        count: how many units each text has.
        fractions: values in (0, 1].
        rounding: `floor` is ⌊n · k⌋, which may be 0 (AML); `ceil` is ⌈n · k⌉, at least 1 (FRESH, REGEX); `er` is
            ⌊n · k⌋, at least 1 (explanation regularization).

    Raises:
        ExpoundError: a fraction out of range.
    """
    # Integer arithmetic on exact fractions: 0.29 · 100 is 28.999999999999996 in floating point.
    exact = [Fraction(fraction).limit_denominator(1_000_000) for fraction in check_fractions(fractions)]
    numerators = torch.tensor([[fraction.numerator] for fraction in exact], device=count.device)
    denominators = torch.tensor([[fraction.denominator] for fraction in exact], device=count.device)
    if rounding == "ceil":
        return ((count * numerators + denominators - 1) // denominators).clamp(min=1)
    whole = count * numerators // denominators
    if rounding == "er":
        return whole.clamp(min=1)
    return whole


def top_fraction(attribution: Tensor, batch: Batch, fractions: Sequence[float], rounding: Rounding = "ceil") -> Tensor:
    """Return a mask [K, B, L] of the content positions with the highest scores, for each of K fractions.

    Scores [B, L] are compared with their sign; among equal scores the earlier position comes first. Fractions are of
    the content; with the rounding `er` they are of all real positions, special tokens included.
    """
    counted = batch.attended if rounding == "er" else batch.content
    size = fractions_to_counts(counted.sum(1), fractions, rounding)
    return (ranks(attribution, batch.content) < size[..., None]) & batch.content


def check_fractions(fractions: Sequence[float]) -> Sequence[float]:
    """Return the fractions. Raises ExpoundError if the list is empty or a fraction is outside (0, 1]."""
    if not len(fractions) or not all(0 < fraction <= 1 for fraction in fractions):
        raise ExpoundError(f"expected fractions of the input above 0 and up to 1, as 0.2 for 20 %, got {fractions}")
    return fractions
