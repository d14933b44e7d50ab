"""Explains generated text: scores units of the prompt (words, sentences, sources) for spans of the response."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from exegete.data.exchange import Exchange, Extent, check_spans
from exegete.data.granularity import Granularity
from exegete.data.specs import parse_spec
from exegete.errors import ExegeteError
from exegete.explainers.base import Explainer, require_finite
from exegete.explainers.gradients.forward_sums import is_forward_cheaper, sum_scores_forward
from exegete.explainers.learned.trained_citation import TrainedCitation
from exegete.explainers.registry import EXPLAINERS, explainer
from exegete.explainers.units import number_units
from exegete.models import Batch
from exegete.models.generation.examples import prompt_to_row
from exegete.models.generation.model import GeneratingModel
from exegete.models.outputs import require_finite_logits
from exegete.reports.generated import GeneratedAttribution

TOKEN_FAMILIES = ("attention", "gradients", "decomposition")
"""Families of methods that score every token, those of a response too."""


class Units(NamedTuple):
    """The U units of an example: `names`, `spans` (text, start, end), and the `number` [L] of each position's unit."""

    names: tuple[str, ...]
    spans: tuple[tuple[int, int, int], ...]
    number: Tensor


def attribute_generated(
    model: GeneratingModel,
    examples: Sequence[Any],
    method: Explainer,
    target: Any,
    unit: Granularity,
    *,
    report: Callable[[int], None] = lambda count: None,
    allow_nan: bool = False,
    attribute_target: bool = False,
) -> list[GeneratedAttribution]:
    """Return an attribution per example; responses that are not given are generated first.

    Args:
        model: the language model.
        examples: prompts with or without a `response`. An example with a `foil`, another response, gets one row: the
            scores of the whole response minus those of the foil.
        method: the explainer.
        target: "response" (or "predicted"), "sentences", "words", "tokens", or spans (start, end) of response tokens.
        unit: what gets a score.
        report: called with 1 after each example.
        allow_nan: see `attribute`.
        attribute_target: also score the response's own tokens, in `prefix`.

    Raises:
        ExegeteError: `attribute_target` with a foil, or of a method that scores only units of the prompt.
    """
    if attribute_target:
        require_token_scores(method)
    results = list[GeneratedAttribution]()
    for index, raw_example in enumerate(examples):
        example = prompt_to_row(raw_example)
        foil = example.pop("foil", None)
        if foil is None:
            batch = model.encode([example])
            result = _attribute_response(model, batch, method, target, unit, index, attribute_target)
        elif attribute_target:
            raise ExegeteError("a foil begins otherwise than the response: leave it or attribute_target out")
        else:
            result = _attribute_contrast(model, example, foil, method, unit, index)
        if not allow_nan:
            require_finite(method, model, torch.tensor(result.scores), [index] * len(result.scores))
        results.append(result)
        report(1)
    return results


def resolve_unit(
    method: str | Explainer, unit: Granularity | None, params: dict[str, Any]
) -> tuple[Explainer, Granularity]:
    """Return the explainer and the unit of its scores; default: the method's own unit, or words.

    Methods that remove input remove units of this size; the scores of others are summed over each unit's tokens.
    """
    if isinstance(method, str):
        name, options = parse_spec(method)
        # A mask token means nothing to most language models, so units are deleted unless the user chooses otherwise.
        if is_removal_method(EXPLAINERS[name.partition(":")[0]]) and "perturbation" not in options:
            params = {"perturbation": "remove"} | params
    resolved = explainer(method, **params)
    if "granularity" not in resolved.params:
        return resolved, unit or resolved.params.get("unit", "word")
    if unit is not None:
        resolved = set_unit(resolved, unit)
    return resolved, resolved.params["granularity"]


def set_unit(method: Explainer, unit: Granularity) -> Explainer:
    """Return the method with units of this size.

    Raises:
        ExegeteError: the method removes no units.
    """
    if "granularity" not in method.params:
        raise ExegeteError(f"{method.name} removes no units: leave unit= out")
    return explainer(method.name, **method.params | {"granularity": unit})


def list_units(batch: Batch, unit: Granularity) -> Units:
    """Return the units of a batch of one example with an alignment."""
    (alignment,), (exchange,) = batch.alignments or (), batch.exchanges or ()
    number = number_units(batch, unit)[0].cpu()
    positions: list[list[int]] = [[] for _ in range(int(number.max()) + 1)]
    for position, own in enumerate(number.tolist()):
        if own >= 0:
            positions[own].append(position)
    names, spans = [], []
    for inside in positions:
        extents = [span for span in (alignment.spans[position] for position in inside) if span is not None]
        text = extents[0][0]
        start, end = min(span[1] for span in extents), max(span[2] for span in extents)
        name = exchange.names[text] if unit == "source" else alignment.texts[text][start:end]
        # A token may cover no characters, as a piece of a byte sequence.
        names.append(name or alignment.tokens[inside[0]])
        spans.append((text, start, end))
    return Units(tuple(names), tuple(spans), number)


def _attribute_contrast(
    model: GeneratingModel, example: dict[str, Any], foil: Any, method: Explainer, unit: Granularity, index: int
) -> GeneratedAttribution:
    """Explain the response rather than the foil, each read after the prompt and its own beginning.

    Raises:
        ExegeteError: a method whose scores of a difference are not differences of scores.
    """
    if not (method.signed and method.supports_contrasts):
        raise ExegeteError(f"{method.name} explains no difference of two responses: its scores have no sign")
    foil_example = example | {"response": foil}
    response = _attribute_response(model, model.encode([example]), method, "response", unit, index)
    other = _attribute_response(model, model.encode([foil_example]), method, "response", unit, index)
    if response.units != other.units:
        raise ExegeteError(f"the prompt of example {index} is cut differently before response and foil: shorten it")
    return replace(
        response,
        scores=response.scores - other.scores,
        bounds=None,
        log_probs=response.log_probs - other.log_probs,
        params=response.params | {"foil": other.response},
    )


def _attribute_response(
    model: GeneratingModel, batch: Batch, method: Explainer, target: Any, unit: Granularity, index: int,
    attribute_target: bool = False,
) -> GeneratedAttribution:  # fmt: skip
    """Explain spans of the response of a batch of one example."""
    (exchange,), (alignment,) = batch.exchanges or (), batch.alignments or ()
    spans = find_target_spans(exchange, target)
    targets = torch.tensor(spans, device=batch.device)[:, None]
    with torch.no_grad(), model.evaluation_mode():
        table = require_finite_logits(model(batch).logits)
    log_probs = [float(model.task.log_probability(table, span)) for span in targets]
    units = list_units(batch, unit)
    if attribute_target:
        scores, prefix = _score_units_and_prefix(method, model, batch, targets, units)
    else:
        scores, prefix = _score_units(method, model, batch, targets, units), None
    return GeneratedAttribution(
        scores=scores,
        bounds=_compute_bounds(method, scores, spans, exchange, unit),
        prefix=prefix,
        units=units.names,
        unit_spans=units.spans,
        spans=tuple(spans),
        log_probs=np.array(log_probs, np.float32),
        exchange=exchange,
        unit=unit,
        method=method.name,
        params=method.params,
        index=index,
        signed=method.signed,
        truncated=alignment.truncated,
    )


def _score_units(
    method: Explainer, model: GeneratingModel, batch: Batch, targets: Tensor, units: Units
) -> NDArray[np.float32]:
    """Return scores [T, U] of the units, computed in whichever direction takes fewer passes."""
    count = len(units.names)
    if is_forward_cheaper(method, len(targets), count):
        parts = units.number.to(batch.device) == torch.arange(count, device=batch.device)[:, None]
        sums = sum_scores_forward(method, model, batch, list(targets), parts[:, None])
        if sums is not None:
            scores: NDArray[np.float32] = sums[:, 0].cpu().numpy().astype(np.float32)
            return scores
    return _sum_by_unit(method.attribute_each(model, batch, targets)[:, 0].double().cpu(), units)


def _score_units_and_prefix(
    method: Explainer, model: GeneratingModel, batch: Batch, targets: Tensor, units: Units
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return scores [T, U] of the units and [T, R] of the response's tokens, NaN for tokens that a span cannot see."""
    assert batch.response is not None
    wide = replace(batch, content=batch.content | batch.response)
    scores = method.attribute_each(model, wide, targets)[:, 0].double().cpu()
    prefix: NDArray[np.float32] = scores[:, batch.response[0].cpu()].numpy().astype(np.float32)
    # Token t is predicted at position t − 1, so a span that ends before `end` reads up to token end − 2.
    last_read = targets[:, 0, 1:].cpu().numpy() - 2
    prefix[np.arange(prefix.shape[1]) > last_read] = np.nan
    return _sum_by_unit(scores, units), prefix


def require_token_scores(method: Explainer) -> None:
    """Raise ExegeteError for a method that scores only units of the prompt."""
    if method.card.family not in TOKEN_FAMILIES or {"granularity", "unit"} & method.params.keys():
        raise ExegeteError(
            f"{method.name} gives no scores to a response's own tokens: choose one of {', '.join(TOKEN_FAMILIES)}"
        )


def _sum_by_unit(scores: Tensor, units: Units) -> NDArray[np.float32]:
    """Return sums [T, U] of the scores [T, L] of each unit's tokens."""
    # Positions without a unit go to an extra column, which is dropped.
    total = scores.new_zeros(len(scores), len(units.names) + 1)
    total.index_add_(1, torch.where(units.number < 0, len(units.names), units.number), scores)
    sums: NDArray[np.float32] = total[:, :-1].numpy().astype(np.float32)
    return sums


def _compute_bounds(
    method: Explainer, scores: NDArray[np.float32], spans: Sequence[Extent], exchange: Exchange, unit: Granularity
) -> NDArray[np.float32] | None:
    """Return lower bounds [T, U] from a trained citation, NaN for spans that are no whole sentences; else None."""
    bounds = method.lower_bounds(scores, unit) if isinstance(method, TrainedCitation) else None
    if bounds is not None:
        # The bounds were calibrated on sentences, so they hold for nothing else.
        sentences = set(exchange.spans("sentences"))
        bounds[[span not in sentences for span in spans]] = np.nan
    return bounds


def find_target_spans(exchange: Exchange, target: Any) -> list[Extent]:
    """Return the spans of a response to explain, given their kind ("sentences", "words", …) or the spans themselves."""
    if isinstance(target, str):
        return exchange.spans("response" if target == "predicted" else target)  # type: ignore[arg-type]
    return check_spans(target, len(exchange.tokens))


def is_removal_method(explainer_class: type[Explainer]) -> bool:
    """Return whether a method runs perturbed inputs, whose answers serve every target."""
    return "perturbation" in getattr(explainer_class, "__dataclass_fields__", {})
