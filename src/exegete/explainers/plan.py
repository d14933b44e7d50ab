"""The work of explaining one answer, counted before it is done."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

from exegete.data.granularity import Granularity
from exegete.explainers.backward_rules.rules import BackwardRules
from exegete.explainers.base import Explainer, SinglePass
from exegete.explainers.generated import find_target_spans, is_removal_method, list_units, require_token_scores
from exegete.explainers.gradients.embedding_gradient import EmbeddingGradient, count_targets_per_pass
from exegete.explainers.gradients.forward_sums import is_forward_cheaper
from exegete.models.generation.examples import prompt_to_row
from exegete.models.generation.model import GeneratingModel
from exegete.models.passes.forward_mode import PASSES_PER_PART


@dataclass(frozen=True, slots=True)
class Plan:
    """The work of one explanation: lengths, T explained spans, U units, passes at most, and the way that was chosen.

    `response_tokens` are those of the given response, or as many as may be generated. `way`: what is passed through the
    model, and how often.
    """

    method: str
    unit: str
    prompt_tokens: int
    response_tokens: int
    units: int
    rows: int
    forward: int
    backward: int
    way: str

    def __str__(self) -> str:
        passes = f"{self.forward} forward" + (f" and {self.backward} backward" if self.backward else "")
        return (
            f"{self.method}: {self.prompt_tokens} + {self.response_tokens} tokens, {self.rows} rows × {self.units} "
            f"units ({self.unit}): at most {passes} passes ({self.way})"
        )


def plan_work(
    model: GeneratingModel, row: Any, method: Explainer, target: Any, unit: Granularity, max_new_tokens: int,
    *, attribute_target: bool = False,
) -> Plan:  # fmt: skip
    """The work that an example would take, without doing it; sentences that are not there yet count as one.

    Raises:
        ExegeteError: as explaining does, for an example, a target, or a method that scores no response's tokens.
    """
    if attribute_target:
        require_token_scores(method)
    example = prompt_to_row(row)
    there = "response" in example
    batch = model.encode([example if there else example | {"response": [model.pad_id] * max_new_tokens}])
    (exchange,) = batch.exchanges or ()
    count = len(exchange.tokens)
    rows = len(find_target_spans(exchange, target if there or target != "words" else "tokens"))
    size = len(list_units(batch, unit).names)
    by_units = not attribute_target and is_forward_cheaper(method, rows, size)
    forward, backward, way = _count_passes(method, rows, size, count_targets_per_pass(batch.length), by_units=by_units)
    return Plan(
        method.name, unit, batch.length - count, count, size, rows, int(forward) + 1, int(backward), way
    )  # one more reads the answer's own probability


def _count_passes(
    method: Explainer, rows: int, units: int, together: int, *, by_units: bool
) -> tuple[float, float, str]:
    """Forward and backward passes, and the way; `together`: rows that a backward pass may serve."""
    forward, backward = method.passes(units)
    if by_units:
        return ceil(backward * (1 + PASSES_PER_PART * units)), 0, "derivatives forward from the units"
    if is_removal_method(type(method)):
        return forward, backward, "changed prompts, each once for all rows"
    if not isinstance(method, SinglePass | BackwardRules):
        return forward * rows, backward * rows, "row by row"
    at_once = min(together, rows) if isinstance(method, EmbeddingGradient) else 1
    if not backward:
        return forward, 0, "one pass for all rows"
    return (
        forward,
        backward * rows,
        f"back from {at_once} rows at a time" if at_once > 1 else "back from one row at a time",
    )
