"""Which positions an attribution puts first."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, get_args

import torch
from torch import Tensor

from exegete.errors import ExegeteError, unknown
from exegete.models import Batch

Rounding = Literal["floor", "ceil", "er"]


def ranks(scores: Tensor, candidates: Tensor) -> Tensor:
    """[B, L] The place of each candidate by falling score, from 0; equal scores keep their order of position.

    What is no candidate comes after all candidates.
    """
    finite = scores.double().clamp(min=torch.finfo(torch.float64).min)
    order = finite.masked_fill(~candidates, -torch.inf).argsort(dim=1, descending=True, stable=True)
    places = torch.arange(scores.shape[1], device=scores.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, places)


def fractions_to_counts(count: Tensor, fractions: Sequence[float], rounding: Rounding = "ceil") -> Tensor:
    """[K, B] How many each fraction of `count` [B] is, computed without rounding error.

    `floor`: ⌊n·k⌋, which may be none (AML). `ceil`: at least one, ⌈n·k⌉ (FRESH, REGEX). `er`: at least one, ⌊n·k⌋.
    """
    if rounding not in get_args(Rounding):
        raise unknown("rounding", rounding, get_args(Rounding))
    exact = [Fraction(fraction).limit_denominator(1_000_000) for fraction in check_fractions(fractions)]
    above = torch.tensor([[part.numerator] for part in exact], device=count.device)
    below = torch.tensor([[part.denominator] for part in exact], device=count.device)
    if rounding == "ceil":
        return ((count * above + below - 1) // below).clamp(min=1)
    return (count * above // below).clamp(min=1 if rounding == "er" else 0)


def top_fraction(attribution: Tensor, batch: Batch, fractions: Sequence[float], rounding: Rounding = "ceil") -> Tensor:
    """[K, B, L] bool: the content positions with the highest scores, as many as `fractions_to_counts` says.

    The fractions are of the content; with `er` of all positions, special tokens included, as explanation regularisation
    counts. Scores are compared with their sign. Among equal scores the earlier position comes first.
    """
    counted = batch.attended if rounding == "er" else batch.content
    size = fractions_to_counts(counted.sum(1), fractions, rounding)
    return (ranks(attribution, batch.content) < size[..., None]) & batch.content


def check_fractions(fractions: Sequence[float]) -> Sequence[float]:
    """The fractions, unless there are none or one lies outside (0, 1]."""
    if not len(fractions) or not all(0 < fraction <= 1 for fraction in fractions):
        raise ExegeteError(f"expected fractions of the input above 0 and up to 1, as 0.2 for 20 %, got {fractions}")
    return fractions
