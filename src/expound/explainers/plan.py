"""The cost of explaining, counted or measured in advance."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from torch import Tensor

from expound.data.spans import UnitName
from expound.errors import ExpoundError
from expound.explainers.backward_rules.rules import BackwardRules
from expound.explainers.base import Explainer, require_removal, resolve_unit
from expound.explainers.gradients.paths import is_forward_cheaper
from expound.explainers.single_pass import EmbeddingGradient, SinglePass, count_targets_per_pass
from expound.explainers.units import list_units
from expound.models import ExplainedModel
from expound.models.generation.examples import prompt_to_row, show_units
from expound.models.generation.model import GeneratingModel
from expound.models.passes.forward_mode import PASSES_PER_PART
from expound.reports.records import find_target_spans

AVERAGE_LENGTH, MEASURED_PASSES = 32, 100
"""Content positions of an example, to compare the costs of methods; passes from which on the time is estimated."""
TOKEN_FAMILIES = ("attention", "gradients", "decomposition")
"""Families of methods that score every token, those of a response too."""
TIMED_EXAMPLES = 16
"""Examples on which a pass is timed."""
DEFAULT_NEW_TOKENS = 64
"""Tokens that a response without a limit of the user's may have."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The cost of one explanation, at most.

    Attributes:
        method: its id.
        unit: what gets a score.
        prompt_tokens: tokens of the prompt.
        response_tokens: tokens of the given response, or the most that may be generated.
        units: number of units.
        rows: number of explained spans.
        forward: forward passes.
        backward: backward passes.
        way: how the passes are organized, in words.
        cost: approximate cost in forward passes of this length.
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
    cost: float

    @property
    def passes(self) -> str:
        """The forward and backward passes, in words."""
        backward = f" and {self.backward} backward" if self.backward else ""
        return f"{self.forward} forward{backward} pass{'es' if self.forward + self.backward > 1 else ''}"

    @property
    def tokens(self) -> int:
        """Return about how many tokens the passes read."""
        return round(self.cost * (self.prompt_tokens + self.response_tokens))

    def __str__(self) -> str:
        return (
            f"{self.method}: {self.prompt_tokens} + {self.response_tokens} tokens, {self.rows} rows × {self.units} "
            f"units ({self.unit}): at most {self.passes} ({self.way})"
        )


def require_token_scores(method: Explainer) -> None:
    """Raise ExpoundError for a method that scores only units of the prompt."""
    if method.card.family not in TOKEN_FAMILIES or "unit" in method.params:
        raise ExpoundError(
            f"{method.name} gives no scores to a response's own tokens: choose one of {', '.join(TOKEN_FAMILIES)}"
        )


def plan_work(
    model: ExplainedModel, row: Any, method: str | Explainer, target: Any, unit: UnitName | None,
    max_new_tokens: int, *, attribute_target: bool = False,
) -> Plan:  # fmt: skip
    """Return the cost of explaining an example, without running the model.

    A response that is still to be generated counts as one sentence of `max_new_tokens` tokens.

    Raises:
        ExpoundError: as explaining raises, for an example, a target, or a method without scores of response tokens.
    """
    method, unit = resolve_unit(model, method, unit, {})
    require_removal(method, model)
    if attribute_target:
        require_token_scores(method)
    has_response = "response" in prompt_to_row(row)
    batch = model.encode([show_units(add_placeholder_response(model, row, max_new_tokens), unit)])
    (exchange,) = batch.exchanges or ()
    count = len(exchange.tokens)
    # Words of a response that does not exist yet are unknown; each token may be one.
    if target == "words" and not has_response:
        target = "tokens"
    elif isinstance(target, str) and target.startswith("tool_") and not has_response:
        target = "response"
    rows = len(find_target_spans(exchange, target))
    units = len(list_units(batch, unit).units)
    is_simple = batch.region_of is None and not attribute_target
    by_units = is_simple and is_forward_cheaper(method, rows, units)
    targets_per_pass = count_targets_per_pass(batch.length)
    # Methods that remove input have a cost per unit, others per token.
    length = units if method.removes_input() else int(batch.content.sum())
    passes = method.passes(length)
    forward, backward, way = _organize_passes(method, passes, rows, units, targets_per_pass, by_units=by_units)
    repeats = (forward + backward) / max(sum(passes), 1)
    # One more forward pass reads the prediction's own probability.
    cost = method.cost(length) * repeats + 1
    sizes = (batch.length - count, count, units, rows)
    return Plan(method.name, unit, *sizes, int(forward) + 1, int(backward), way, cost)


def describe_requests(plans: Sequence[Plan], responses: int = 0) -> str:
    """Return "at most N requests, about M tokens" of a server for all plans and `responses` generations."""
    requests = sum(plan.forward for plan in plans) + responses
    longest = max(plan.prompt_tokens + plan.response_tokens for plan in plans)
    tokens = sum(plan.tokens for plan in plans) + responses * longest
    return f"at most {requests:,} requests, about {tokens:,} tokens"


def forecast_requests(
    model: ExplainedModel, examples: Iterable[Any], methods: Sequence[tuple[Explainer, UnitName]], target: Any
) -> str:
    """Return how many requests and tokens it takes to explain examples by methods, with the units of their scores."""
    plans, responses = list[Plan](), 0
    for example in examples:
        row = prompt_to_row(example)
        # A foil is explained like a response.
        repeats = 2 if row.get("foil") is not None else 1
        for method, unit in methods:
            plans += [plan_work(model, row, method, target, unit, DEFAULT_NEW_TOKENS)] * repeats
        responses += "response" not in row
    return describe_requests(plans, responses)


def count_saved_bytes(model: ExplainedModel, row: Any) -> int:
    """Return the bytes besides weights that a forward pass of an example keeps for its backward pass."""
    batch = model.encode([row])
    stored = (*model.model.parameters(), *model.model.buffers())
    weights = {tensor.untyped_storage().data_ptr() for tensor in stored}
    # Tensors that share memory count once.
    saved: dict[int, int] = {}

    def save(value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return value

    with model.evaluation_mode(), torch.enable_grad():
        embeddings = model.embed(batch).detach().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(save, lambda value: value):
            model(batch, embeddings)
    return sum(saved.values())


def add_placeholder_response(model: ExplainedModel, row: Any, max_new_tokens: int) -> dict[str, Any]:
    """Return the example, with `max_new_tokens` padding tokens in place of a response that it lacks."""
    assert isinstance(model, GeneratingModel)
    return {"response": [model.pad_id] * max_new_tokens} | prompt_to_row(row)


def _organize_passes(
    method: Explainer, passes: tuple[float, float], rows: int, units: int, targets_per_pass: int, *, by_units: bool
) -> tuple[float, float, str]:
    """Return the forward and backward passes for all rows, given one row's, and how they are organized."""
    forward, backward = passes
    if by_units:
        return ceil(backward * (1 + PASSES_PER_PART * units)), 0, "derivatives forward from the units"
    if method.removes_input():
        return forward, backward, "changed prompts, each once for all rows"
    if not isinstance(method, SinglePass | BackwardRules):
        return forward * rows, backward * rows, "row by row"
    if not backward:
        return forward, 0, "one pass for all rows"
    if isinstance(method, EmbeddingGradient) and min(targets_per_pass, rows) > 1:
        return forward, backward * rows, f"back from {min(targets_per_pass, rows)} rows at a time"
    return forward, backward * rows, "back from one row at a time"


@torch.no_grad()
def measure_pass(model: ExplainedModel, examples: Sequence[Any]) -> float:
    """Return the seconds per example of a forward pass, measured on the first few examples.

    A server's answers are kept, so that only its first one is timed.
    """
    batch = model.encode([examples[index] for index in range(min(TIMED_EXAMPLES, len(examples)))])
    with model.evaluation_mode():
        # The first pass allocates memory and chooses kernels, so the second one is timed.
        if not model.is_remote:
            model(batch)
        begun = time.perf_counter()
        model(batch)
    return (time.perf_counter() - begun) / len(batch)
