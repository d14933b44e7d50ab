"""Explains examples of any task: encodes them in batches, scores their parts, and describes the results."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from exegete.data.alignment import pool
from exegete.data.exchange import find_target_spans
from exegete.data.granularity import Granularity
from exegete.errors import ExegeteError
from exegete.explainers.assumptions import require_assumptions
from exegete.explainers.base import Explainer, TokenScores
from exegete.explainers.batches import as_sequence, make_batches, measure_pass, read_metadata, select_targets
from exegete.explainers.finite import require_finite
from exegete.explainers.gradients.forward_sums import is_forward_cheaper, sum_scores_forward
from exegete.explainers.learned.trained_citation import TrainedCitation
from exegete.explainers.registry import default_method, resolve_unit
from exegete.explainers.units import Units, list_units
from exegete.models import Batch, ExplainedModel
from exegete.models.generation.examples import prompt_to_row
from exegete.models.generation.model import GeneratingModel
from exegete.models.loading.load import ModelSource, load
from exegete.models.outputs import require_finite_logits
from exegete.models.passes.last_layer import skip_unread_positions
from exegete.models.windowed import WindowedModel
from exegete.reports.explanations import Explanation, Explanations
from exegete.reports.progress import progress_bar
from exegete.reports.records import Unit

logger = logging.getLogger(__name__)

TOKENS_PER_EXPLAINED_BATCH_ON_CPU = 256
"""The budget if one method explains a batch: a quarter of the memory, for a tenth more time."""
AVERAGE_LENGTH, MEASURED_PASSES = 32, 100
"""Content positions of an example, to compare the costs of methods; passes from which on the time is estimated."""
TOKEN_FAMILIES = ("attention", "gradients", "decomposition")
"""Families of methods that score every token, those of a response too."""


@overload
def attribute(
    model: ModelSource, examples: Any, method: str | Explainer | None = None, target: Any = "predicted", **options: Any
) -> Explanations: ...
@overload
def attribute(
    model: ModelSource,
    examples: Any,
    method: list[str] | list[Explainer] | list[str | Explainer],
    target: Any = "predicted",
    **options: Any,
) -> dict[str, Explanations]: ...
def attribute(
    model: ModelSource,
    examples: Any,
    method: str | Explainer | list[Any] | None = None,
    target: Any = "predicted",
    *,
    unit: Granularity | None = None,
    batch_size: int | None = None,
    show_progress: bool | None = None,
    allow_nan: bool = False,
    stride: int | None = None,
    attribute_target: bool = False,
    **params: Any,
) -> Explanations | dict[str, Explanations]:
    """Explain examples and return one explanation per example, in their order.

    Args:
        model: what to explain, from `exegete.load`, or what that takes: a folder, a pipeline, (model, tokenizer).
        examples: a text, a pair (text, text), an image, a row of canonical columns, several of those, or a dataset. For
            generated text: a prompt, which is read as it is, or a row with `messages`, read in the chat template, with
            or without its `response`; a `foil` is another response, whose scores are subtracted.
        method: an id of `exegete.list_methods()` or an explainer, by default `default_method`; a list gives a dict.
        target: "predicted", "label", a class index or name, or a list with one of those per example; a tuple
            (for, against) of two classes explains the difference of their outputs. For generated text: the response as
            a whole, its "sentences", "words" or "tokens", or spans (start, end) of its tokens.
        unit: what gets a score, `token`, `word`, `sentence`, `paragraph` or `source`; methods that remove input remove
            a whole unit.
        batch_size: examples per batch; default: as many as fit a token budget. Similar lengths share a batch.
        show_progress: show a progress bar on stderr; default: if the work takes longer than a second.
        allow_nan: continue if scores are not finite; a warning tells for how many examples.
        stride: read texts longer than the model's limit in windows that share `stride` tokens, see `WindowedModel`; a
            token's score is the mean over its windows, or what removing it does to the answer. Default: cut texts.
        attribute_target: for generated text, score the response's own earlier tokens too (`response_scores`).
            Methods that start from a baseline or add noise then do so there as well, which changes the prompt's scores.
        params: the method's parameters, as `n_steps=50`.

    Raises ExegeteError for an unknown method or parameter, an empty text, an answer of NaN, or scores not finite.
    """
    explained = load(model)
    if stride is not None:
        explained = WindowedModel(explained, stride)
    examples = explained.expand_examples(as_sequence(examples))
    if not len(examples):
        raise ExegeteError("the model tags nothing in these texts: say what by rows with 'text' and 'span'")
    is_generating = isinstance(explained, GeneratingModel)
    if attribute_target and not is_generating:
        raise ExegeteError("attribute_target is about generated text: load the model with task='generation'")
    chosen = default_method(explained) if method is None else method
    methods = chosen if isinstance(chosen, list) else [chosen]
    if not methods:
        raise ExegeteError("there is nothing to explain by: no method was given")
    explainers = [resolve_unit(spec, unit, dict(params), is_generating=is_generating) for spec in methods]
    # Methods without passes count as one, so that the bar moves.
    costs = [sum(single.passes(AVERAGE_LENGTH)) or 1.0 for single, _ in explainers]
    total = sum(costs) * len(examples)
    is_measured = total >= MEASURED_PASSES and not is_generating
    estimate = (lambda: total * measure_pass(explained, examples)) if is_measured else None
    description = "explaining"
    if explained.is_remote:
        # That module imports this one.
        from exegete.explainers.plan import forecast_requests  # noqa: PLC0415

        description = f"explaining ({forecast_requests(explained, examples, explainers, target)})"
        logger.info("%s", description)
    results = []
    with progress_bar(description, total, show_progress, estimate) as report:
        for (single, size), cost in zip(explainers, costs, strict=True):
            config = {"model": explained.config._name_or_path, "model_type": explained.config.model_type}
            config |= {"method": single.name, "params": single.params} | ({} if stride is None else {"stride": stride})
            if isinstance(explained, GeneratingModel):
                batches = _explain_responses(explained, examples, single, target, size, attribute_target)
            else:
                batches = _explain_batches(explained, examples, single, target, size, batch_size)
            results.append(Explanations(_collect(batches, explained, single, allow_nan, cost, report), config))
    if not isinstance(method, list):
        return results[0]
    names = [spec if isinstance(spec, str) else spec.name for spec in methods]
    if len(set(names)) < len(names):
        raise ExegeteError("two methods have one name: give them by id and parameters, as 'ID?NAME=VALUE'")
    return dict(zip(names, results, strict=True))


def _collect(
    batches: Iterator[list[Explanation]], model: ExplainedModel, method: Explainer, allow_nan: bool, cost: float,
    report: Callable[[float], None],
) -> list[Explanation]:  # fmt: skip
    """Return the explanations in the order of the examples; `report` is called with the cost of each finished batch."""
    explanations, broken = list[Explanation](), 0
    for batch in batches:
        rows = [item.scores if item.token_scores is None else item.token_scores for item in batch]
        nonfinite = [number for number, scores in enumerate(rows) if not np.isfinite(scores).all()]
        broken += len(nonfinite)
        if nonfinite and not allow_nan:
            numbers = [batch[number].index for number in nonfinite]
            require_finite(method, model, torch.full((len(numbers), 1), torch.nan), numbers)
        explanations += batch
        report(len(batch) * cost)
    if broken:
        logger.warning("%s: %d of %d examples have scores that are not finite", method.name, broken, len(explanations))
    return sorted(explanations, key=lambda item: item.index)


def _explain_batches(
    model: ExplainedModel, examples: Sequence[Any], method: Explainer, target: Any, unit: Granularity,
    batch_size: int | None,
) -> Iterator[list[Explanation]]:  # fmt: skip
    """Yield the explanations of each batch, by one target per example."""
    for indices in make_batches(model, examples, batch_size, TOKENS_PER_EXPLAINED_BATCH_ON_CPU):
        batch = model.encode([examples[index] for index in indices])
        targets, logits, scores = _score_batch(model, method, batch, select_targets(target, indices, len(examples)))
        explanations = describe_batch(model, method, batch, targets, logits, scores, indices)
        explanations = [replace(item, metadata=read_metadata(examples[item.index])) for item in explanations]
        # Images and token ids have no words.
        yield [item if unit == "word" else item.aggregate(unit) for item in explanations]


@torch.no_grad()
def _score_batch(
    model: ExplainedModel, method: Explainer, batch: Batch, target: Any
) -> tuple[Tensor, Tensor, TokenScores]:
    """Return the resolved target, the model's logits and the scores."""
    if method.returns_logits:
        scores = method.explain(model, batch, target)
        assert scores.logits is not None
        return model.resolve_target(batch, target, scores.logits), scores.logits, scores
    require_assumptions(method, model, batch)
    with model.evaluation_mode(), skip_unread_positions(model):
        logits = require_finite_logits(model(batch).logits)
    explained = model.resolve_target(batch, target, logits)
    return explained, logits, method.explain(model, batch, explained)


def describe_batch(
    model: ExplainedModel, method: Explainer, batch: Batch, target: Tensor, logits: Tensor, scores: TokenScores,
    indices: Sequence[int],
) -> list[Explanation]:  # fmt: skip
    """Return a batch's scores as plain values, one explanation by words (or patches) per example, without padding."""
    explained = None
    # Methods that say what their scores miss of the output, or what of it belongs to no position, sum to the output.
    if scores.delta is not None or scores.bias is not None:
        explained = model.task.with_output(method.output).score(logits, target).tolist()
    targets = model.describe_targets(batch, target, logits, explained)
    predictions = model.describe_targets(batch, model.task.predict(logits, batch), logits)
    explanations = []
    for row, index in enumerate(indices):
        prediction = predictions[row]
        if model.task.name == "regression":
            prediction = prediction._replace(value=prediction.probability)
        explanations.append(
            Explanation(
                targets=(targets[row],),
                prediction=prediction,
                method=method.name,
                params=method.params,
                delta=None if scores.delta is None else float(scores.delta[row]),
                index=index,
                signed=method.signed,
                **_describe_positions(batch, row, scores),
            )
        )
    return explanations


def _describe_positions(batch: Batch, row: int, scores: TokenScores) -> dict[str, Any]:
    """Return an example's tokens and units with their scores, without padding, as fields of `Explanation`."""
    real = batch.attended[row].cpu()
    values = scores.scores[row].float().cpu()[real].numpy()
    special = ~batch.content[row].cpu()[real].numpy()
    pairs = None if scores.pairs is None else scores.pairs[row].double().cpu()[real][:, real].numpy()
    shared = {
        "token_scores": values[None],
        "special": special.tolist(),
        "layers": None if scores.layers is None else scores.layers[row].float().cpu()[:, real].numpy(),
    }
    if batch.alignments is None:
        tokens = [Unit(name) for name in _name_positions(batch, row, real)]
        return shared | {
            "unit": "token" if batch.image_shape is None else "patch",
            "units": [unit for unit, is_special in zip(tokens, special, strict=True) if not is_special],
            "scores": values[None, ~special],
            "tokens": tokens,
            "image_shape": batch.image_shape,
            "interactions": () if pairs is None else find_strongest_pairs(pairs[~special][:, ~special]),
        }
    alignment = batch.alignments[row]
    member = np.arange(len(alignment.words))[:, None] == np.asarray(alignment.word_of)
    return shared | {
        "unit": "word",
        "units": [Unit(word.text, word.side, word.start, word.end) for word in alignment.words],
        "scores": pool(values, alignment.word_of, len(alignment.words))[None],
        "tokens": [Unit(token, *(span or ())) for token, span in zip(alignment.tokens, alignment.spans, strict=True)],
        "interactions": () if pairs is None else find_strongest_pairs(member @ pairs @ member.T),
        "texts": alignment.texts,
        "truncated": alignment.truncated,
    }


def find_strongest_pairs(pairs: NDArray[np.float64], most: int = 10) -> tuple[tuple[int, int, float], ...]:
    """Return the `most` pairs (i, j, value), i < j, of largest magnitude in a symmetric matrix, without zeros."""
    first, second = np.triu_indices(len(pairs), 1)
    values = pairs[first, second]
    order = np.argsort(-np.abs(values), kind="stable")[:most]
    return tuple((int(first[at]), int(second[at]), float(values[at])) for at in order if values[at])


def _name_positions(batch: Batch, row: int, real: Tensor) -> list[str]:
    """Return names for positions without text: patches of an image, or token ids."""
    if batch.image_shape is None:
        return [str(token) for token in batch.inputs["input_ids"][row].cpu()[real].tolist()]
    patches = prod(batch.image_shape)
    # Some vision models put register or distillation tokens between the class token and the patches.
    others = [f"token {number}" for number in range(1, int(real.sum()) - patches)]
    return ["class", *others, *(f"patch {number}" for number in range(patches))]


def _explain_responses(
    model: GeneratingModel, examples: Sequence[Any], method: Explainer, target: Any, unit: Granularity,
    attribute_target: bool,
) -> Iterator[list[Explanation]]:  # fmt: skip
    """Yield the explanation of each response, by several targets; responses that are not given are generated first.

    Raises:
        ExegeteError: `attribute_target` with a foil, or of a method that scores only units of the prompt.
    """
    if attribute_target:
        require_token_scores(method)
    for index, raw_example in enumerate(examples):
        example: dict[str, Any] = prompt_to_row(raw_example)
        foil = example.pop("foil", None)
        if foil is None:
            item = _explain_response(model, example, method, target, unit, attribute_target)
        elif attribute_target:
            raise ExegeteError("a foil begins otherwise than the response: leave it or attribute_target out")
        else:
            item = _explain_contrast(model, example, foil, method, unit, index)
        yield [replace(item, index=index, metadata=item.metadata | read_metadata(raw_example))]


def _explain_response(
    model: GeneratingModel, example: Mapping[str, Any], method: Explainer, target: Any, unit: Granularity,
    attribute_target: bool,
) -> Explanation:  # fmt: skip
    """Explain spans of the response of one example."""
    batch = model.encode([example])
    (exchange,), (alignment,) = batch.exchanges or (), batch.alignments or ()
    spans, units = find_target_spans(exchange, target), list_units(batch, unit)
    targets = torch.tensor(spans, device=batch.device)[:, None]
    with torch.no_grad(), model.evaluation_mode():
        table = require_finite_logits(model(batch).logits)
    described = [model.describe_targets(batch, span, table)[0] for span in targets]
    scores, response_scores = _score_units(method, model, batch, targets, units, attribute_target)
    bounds = method.lower_bounds(scores, unit) if isinstance(method, TrainedCitation) else None
    if bounds is not None:
        # The bounds were calibrated on sentences, so they hold for nothing else.
        sentences = set(exchange.spans("sentences"))
        bounds[[span not in sentences for span in spans]] = np.nan
    repeated, metadata = len(exchange.spans("sentences")) - len(spans), dict[str, Any]()
    if target == "sentences" and repeated:
        (whole,) = model.describe_targets(batch, model.task.predict(table, batch), table)
        metadata = {"repeated_sentences": repeated, "response_log_prob": whole.log_prob}
    return Explanation(
        targets=tuple(described),
        units=units.units,
        scores=scores,
        unit=unit,
        method=method.name,
        texts=alignment.texts,
        params=method.params,
        signed=method.signed,
        truncated=alignment.truncated,
        bounds=bounds,
        exchange=exchange,
        response_scores=response_scores,
        metadata=metadata,
    )


def _score_units(
    method: Explainer, model: GeneratingModel, batch: Batch, targets: Tensor, units: Units, attribute_target: bool
) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
    """Return scores [T, U] of the units and, if asked for, [T, R] of the response's tokens, NaN for unseen ones.

    They are computed in whichever direction takes fewer passes.
    """
    count = len(units.units)
    if not attribute_target and is_forward_cheaper(method, len(targets), count):
        parts = units.number.to(batch.device) == torch.arange(count, device=batch.device)[:, None]
        sums = sum_scores_forward(method, model, batch, list(targets), parts[:, None])
        if sums is not None:
            return sums[:, 0].cpu().numpy().astype(np.float32), None
    assert batch.response is not None
    wide = replace(batch, content=batch.content | batch.response) if attribute_target else batch
    scores = method.attribute_each(model, wide, targets)[:, 0].double().cpu()
    # Positions without a unit go to an extra column, which is dropped.
    total = scores.new_zeros(len(scores), count + 1)
    total.index_add_(1, torch.where(units.number < 0, count, units.number), scores)
    by_unit: NDArray[np.float32] = total[:, :-1].numpy().astype(np.float32)
    if not attribute_target:
        return by_unit, None
    own: NDArray[np.float32] = scores[:, batch.response[0].cpu()].numpy().astype(np.float32)
    # Token t is predicted at position t − 1, so a span that ends before `end` reads up to token end − 2.
    last_read = targets[:, 0, 1:].cpu().numpy() - 2
    own[np.arange(own.shape[1]) > last_read] = np.nan
    return by_unit, own


def _explain_contrast(
    model: GeneratingModel, example: dict[str, Any], foil: Any, method: Explainer, unit: Granularity, index: int
) -> Explanation:
    """Explain the response rather than the foil, each read after the prompt and its own beginning.

    Raises:
        ExegeteError: a method whose scores of a difference are not differences of scores.
    """
    if not (method.signed and method.supports_contrasts):
        raise ExegeteError(f"{method.name} explains no difference of two responses: its scores have no sign")
    response, other = (
        _explain_response(model, example | change, method, "response", unit, False)
        for change in ({}, {"response": foil})
    )
    if response.units != other.units:
        raise ExegeteError(f"the prompt of example {index} is cut differently before response and foil: shorten it")
    log_prob = (response.target.log_prob or 0.0) - (other.target.log_prob or 0.0)
    return replace(
        response,
        targets=(response.target._replace(log_prob=log_prob),),
        scores=response.scores - other.scores,
        bounds=None,
        params=response.params | {"foil": other.response},
    )


def require_token_scores(method: Explainer) -> None:
    """Raise ExegeteError for a method that scores only units of the prompt."""
    if method.card.family not in TOKEN_FAMILIES or {"granularity", "unit"} & method.params.keys():
        raise ExegeteError(
            f"{method.name} gives no scores to a response's own tokens: choose one of {', '.join(TOKEN_FAMILIES)}"
        )
