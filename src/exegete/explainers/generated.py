"""Explains what a model says: for parts of a response the words, sentences or sources of its prompt they come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from exegete.data.exchange import Exchange, Extent, checked_spans
from exegete.data.granularity import Granularity
from exegete.data.specs import split
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
"""Families of methods that give every token a score, those of a response, too."""


class Units(NamedTuple):
    """The U units of one example: their `names`, `spans` (text, start, end), and the number of each position's [L]."""

    names: tuple[str, ...]
    spans: tuple[tuple[int, int, int], ...]
    number: Tensor


def attribute_generated(
    model: GeneratingModel,
    rows: Sequence[Any],
    method: Explainer,
    target: Any,
    unit: Granularity,
    *,
    report: Callable[[int], None] = lambda count: None,
    allow_nan: bool = False,
    attribute_target: bool = False,
) -> list[GeneratedAttribution]:
    """An attribution for each example; what has no response is answered first.

    `target`: "response" (or "predicted"), "sentences", "words", "tokens", or spans (start, end) of response tokens.
    An example with a `foil`, another response, has one row: the whole response's scores minus those of the foil.
    `attribute_target`: the response's own tokens get scores, too, in `prefix`. `report` is called after each.

    Raises:
        ExegeteError: `attribute_target` of a method that gives scores to units of a prompt alone, or with a foil.
    """
    if attribute_target:
        require_token_scores(method)
    found = list[GeneratedAttribution]()
    for index, row in enumerate(rows):
        example = prompt_to_row(row)
        foil = example.pop("foil", None)
        if foil is None:
            found.append(
                _attribute_response(model, model.encode([example]), method, target, unit, index, attribute_target)
            )
        elif attribute_target:
            raise ExegeteError("a foil begins otherwise than the response: leave it or attribute_target out")
        else:
            found.append(_attribute_contrast(model, example, foil, method, unit, index))
        if not allow_nan:
            require_finite(method, model, torch.tensor(found[-1].scores), [index] * len(found[-1].scores))
        report(1)
    return found


def resolve_unit(
    method: str | Explainer, unit: Granularity | None, params: dict[str, Any]
) -> tuple[Explainer, Granularity]:
    """The method and the units it gives scores to: by removing them, or by adding up the scores of their tokens.

    Without a unit, it is the method's own, or words. Units are removed from the text unless the method says what takes
    their place.
    """
    if isinstance(method, str):
        name, given = split(method)
        if is_removal_method(EXPLAINERS[name.partition(":")[0]]) and "perturbation" not in given:
            params = {"perturbation": "remove"} | params
    chosen = explainer(method, **params)
    if "granularity" not in chosen.params:
        return chosen, unit or chosen.params.get("unit", "word")
    chosen = chosen if unit is None else set_unit(chosen, unit)
    return chosen, chosen.params["granularity"]


def set_unit(method: Explainer, unit: Granularity) -> Explainer:
    """The method with units of this size.

    Raises:
        ExegeteError: a method that has none.
    """
    if "granularity" not in method.params:
        raise ExegeteError(f"{method.name} removes no units: leave unit= out")
    return explainer(method.name, **method.params | {"granularity": unit})


def list_units(batch: Batch, unit: Granularity) -> Units:
    """The units of a batch of one example with alignment."""
    number, (alignment,), (exchange,) = (
        number_units(batch, unit)[0].cpu(),
        batch.alignments or (),
        batch.exchanges or (),
    )
    names, spans = [], []
    for wanted in range(int(number.max()) + 1):
        inside = [place for place, own in enumerate(number.tolist()) if own == wanted]
        extents = [span for place in inside if (span := alignment.spans[place]) is not None]
        text, start, end = extents[0][0], min(one[1] for one in extents), max(one[2] for one in extents)
        shown = exchange.names[text] if unit == "source" else alignment.texts[text][start:end]
        names.append(shown or alignment.tokens[inside[0]])
        spans.append((text, start, end))
    return Units(tuple(names), tuple(spans), number)


def _attribute_contrast(
    model: GeneratingModel, example: dict[str, Any], foil: Any, method: Explainer, unit: Granularity, index: int
) -> GeneratedAttribution:
    """Why this response and not the foil: each read after the prompt and its own beginning.

    Raises:
        ExegeteError: a method whose scores of a difference are no differences.
    """
    if not (method.signed and method.supports_contrasts):
        raise ExegeteError(f"{method.name} explains no difference of two responses: its scores have no sign")
    pair = [example, example | {"response": foil}]
    one, other = (_attribute_response(model, model.encode([each]), method, "response", unit, index) for each in pair)
    if one.units != other.units:
        raise ExegeteError(f"the prompt of example {index} is cut differently before response and foil: shorten it")
    return replace(
        one,
        scores=one.scores - other.scores,
        bounds=None,
        log_probs=one.log_probs - other.log_probs,
        params=one.params | {"foil": other.response},
    )


def _attribute_response(
    model: GeneratingModel, batch: Batch, method: Explainer, target: Any, unit: Granularity, index: int,
    attribute_target: bool = False,
) -> GeneratedAttribution:  # fmt: skip
    (exchange,), (alignment,) = batch.exchanges or (), batch.alignments or ()
    spans = find_target_spans(exchange, target)
    targets = torch.tensor(spans, device=batch.device)[:, None]
    with torch.no_grad(), model.evaluation_mode():
        table = require_finite_logits(model(batch).logits)
    log_probs = [float(model.task.log_probability(table, span)) for span in targets]
    found = list_units(batch, unit)
    if attribute_target:
        scores, prefix = _score_units_and_prefix(method, model, batch, targets, found)
    else:
        scores, prefix = _score_units(method, model, batch, targets, found), None
    return GeneratedAttribution(
        scores=scores,
        bounds=_compute_bounds(method, scores, spans, exchange, unit),
        prefix=prefix,
        units=found.names,
        unit_spans=found.spans,
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
    method: Explainer, model: GeneratingModel, batch: Batch, targets: Tensor, found: Units
) -> NDArray[np.float32]:
    """[T, U] Scores of the units, by whichever way takes fewer passes."""
    count = len(found.names)
    if is_forward_cheaper(method, len(targets), count):
        parts = found.number.to(batch.device) == torch.arange(count, device=batch.device)[:, None]
        sums = sum_scores_forward(method, model, batch, list(targets), parts[:, None])
        if sums is not None:
            carried: NDArray[np.float32] = sums[:, 0].cpu().numpy().astype(np.float32)
            return carried
    return _sum_by_unit(method.attribute_each(model, batch, targets)[:, 0].double().cpu(), found)


def _score_units_and_prefix(
    method: Explainer, model: GeneratingModel, batch: Batch, targets: Tensor, found: Units
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """[T, U] Scores of the units, and [T, R] of the response's tokens, NaN of what a span does not read."""
    assert batch.response is not None
    wide = replace(batch, content=batch.content | batch.response)
    scores = method.attribute_each(model, wide, targets)[:, 0].double().cpu()
    prefix: NDArray[np.float32] = scores[:, batch.response[0].cpu()].numpy().astype(np.float32)
    last_read = targets[:, 0, 1:].cpu().numpy() - 2
    prefix[np.arange(prefix.shape[1]) > last_read] = np.nan
    return _sum_by_unit(scores, found), prefix


def require_token_scores(method: Explainer) -> None:
    """Raises ExegeteError for a method that gives scores to units of a prompt alone."""
    if method.card.family not in TOKEN_FAMILIES or {"granularity", "unit"} & method.params.keys():
        raise ExegeteError(
            f"{method.name} gives no scores to a response's own tokens: choose one of {', '.join(TOKEN_FAMILIES)}"
        )


def _sum_by_unit(scores: Tensor, found: Units) -> NDArray[np.float32]:
    """[T, U] Sums of the scores [T, L] of each unit's tokens."""
    total = scores.new_zeros(len(scores), len(found.names) + 1)
    total.index_add_(1, torch.where(found.number < 0, len(found.names), found.number), scores)
    pooled: NDArray[np.float32] = total[:, :-1].numpy().astype(np.float32)
    return pooled


def _compute_bounds(
    method: Explainer, scores: NDArray[np.float32], spans: Sequence[Extent], exchange: Exchange, unit: Granularity
) -> NDArray[np.float32] | None:
    """[T, U] What a trained citation promises of whole sentences; NaN elsewhere, None from other methods."""
    found = method.lower_bounds(scores, unit) if isinstance(method, TrainedCitation) else None
    if found is not None:
        whole = set(exchange.spans("sentences"))
        found[[span not in whole for span in spans]] = np.nan
    return found


def find_target_spans(exchange: Exchange, target: Any) -> list[Extent]:
    """The explained spans of a response: rows by name, or spans as they are given."""
    if isinstance(target, str):
        return exchange.spans("response" if target == "predicted" else target)  # type: ignore[arg-type]
    return checked_spans(target, len(exchange.tokens))


def is_removal_method(kind: type[Explainer]) -> bool:
    """Whether a method asks for perturbed inputs, whose answers serve every target."""
    return "perturbation" in getattr(kind, "__dataclass_fields__", {})
