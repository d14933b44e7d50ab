"""Explains examples of any task: encodes them in batches, scores their parts, and describes the results."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace
from typing import Any, NamedTuple, cast, overload

import numpy as np
import torch
from torch import Tensor

from expound.data.alignment import pool
from expound.data.readers.columns import ColumnOptions
from expound.data.spans import Spans, UnitName
from expound.errors import ExpoundError
from expound.explainers.base import Explainer, TokenScores, require_assumptions, require_finite, resolve_unit
from expound.explainers.check_model import default_method
from expound.explainers.gradients.paths import DimensionwiseExplainer, explain_parts
from expound.explainers.learned.trained_citation import TrainedCitation
from expound.explainers.plan import (
    AVERAGE_LENGTH,
    MEASURED_PASSES,
    forecast_requests,
    measure_pass,
    require_token_scores,
)
from expound.explainers.units import Units, find_strongest_pairs, list_units, place_spans, read_spans, sum_units
from expound.models import Batch, ExplainedModel
from expound.models.batch import require_finite_logits
from expound.models.encoding.encode import make_batches, read_examples, read_metadata, select_targets
from expound.models.generation.examples import prompt_to_row, show_units
from expound.models.generation.model import GeneratingModel
from expound.models.loading.load import ModelSource, load
from expound.models.passes.hooks import skip_unread_positions
from expound.models.windowed import WindowedModel
from expound.reports.explanations import Explanation, Explanations
from expound.reports.highlighted.regions import describe_image
from expound.reports.records import Target, Unit, find_target_spans
from expound.reports.text import progress_bar

logger = logging.getLogger(__name__)

TOKENS_PER_EXPLAINED_BATCH_ON_CPU = 256
"""The budget if one method explains a batch: a quarter of the memory, for a tenth more time."""


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
    unit: UnitName | Spans | Sequence[Spans] | None = None,
    batch_size: int | None = None,
    show_progress: bool | None = None,
    allow_nan: bool = False,
    stride: int | None = None,
    attribute_target: bool = False,
    **params: Any,
) -> Explanations | dict[str, Explanations]:
    """Explain examples and return one explanation per example, in their order.

    Args:
        model: what to explain, from `expound.load`, or what that takes: a folder, a pipeline, (model, tokenizer).
        examples: a text, a pair (text, text), an image, a row of canonical columns, or several of those; or a table: a
            dataset, a data frame, a dict of lists, the path of a file, whose names of classes count. For generated
            text: a prompt, which is read as it is, or a row with `messages`, read in the chat template with the row's
            `tools` and `chat_template_kwargs`, with or without its `response` (or `completion`); a `foil` is another
            response, whose scores are subtracted.
        method: an id of `expound.list_methods()` or an explainer, by default `default_method`; a list gives a dict.
        target: "predicted", "label", a class index or name, or a list with one of those per example; a tuple
            (for, against) of two classes explains the difference of their outputs. For generated text: the response as
            a whole, its "sentences", "words" or "tokens", the "answer" after its thoughts, a "tool_call" (or
            "tool_name", "tool_arguments"), or spans (start, end) of its tokens.
        unit: what gets a score, `token`, `word`, `sentence`, `paragraph` or `source`, in a conversation also `message`,
            `tool_result` or `thought` (sentences of thoughts, those before the answer included); or per example a list
            of spans (start, end) of its characters, or (number of the text, start, end) in pairs and chats; methods
            that remove input remove a whole unit.
        batch_size: examples per batch; default: as many as fit a token budget. Similar lengths share a batch.
        show_progress: show a progress bar on stderr; default: if the work takes longer than a second.
        allow_nan: continue if scores are not finite; a warning tells for how many examples.
        stride: read texts longer than the model's limit in windows that share `stride` tokens, see `WindowedModel`; a
            token's score is the mean over its windows, or what removing it does to the prediction. Default: cut texts.
        attribute_target: for generated text, score the response's own earlier tokens too (`response_scores`).
            Methods that start from a baseline or add noise then do so there as well, which changes the prompt's scores.
        params: the method's parameters, as `n_steps=50`, and columns of a table, as `text_column="review"`; see
            `expound.train`.

    Raises ExpoundError for an unknown key of a row, an unknown method or parameter, an empty text, a prediction of
    NaN, or scores not finite.
    """
    explained = model if isinstance(model, ExplainedModel) else load(model)
    if stride is not None:
        explained = WindowedModel(explained, stride)
    columns = {field.name: params.pop(field.name) for field in fields(ColumnOptions) if field.name in params}
    examples = explained.expand_examples(read_examples(explained, examples, **columns))
    if not len(examples):
        raise ExpoundError("the model tags nothing in these texts: say what by rows with 'text' and 'span'")
    is_generating = isinstance(explained, GeneratingModel)
    if attribute_target and not is_generating:
        raise ExpoundError("attribute_target is about generated text: load the model with task='generation'")
    chosen = default_method(explained) if method is None else method
    methods = chosen if isinstance(chosen, list) else [chosen]
    if not methods:
        raise ExpoundError("there is nothing to explain by: no method was given")
    spans = None if unit is None or isinstance(unit, str) else read_spans(unit, len(examples))
    # Spans are what `Batch.unit_of` says, as sources are.
    name = "source" if spans else cast(UnitName | None, unit)
    explainers = [resolve_unit(explained, spec, name, params) for spec in methods]
    names = [spec if isinstance(spec, str) else spec.name for spec in methods]
    if len(set(names)) < len(names):
        raise ExpoundError("two methods have one name: give them by id and parameters, as 'ID?NAME=VALUE'")
    # Methods without passes count as one, so that the bar moves.
    costs = [sum(single.passes(AVERAGE_LENGTH)) or 1.0 for single, _ in explainers]
    # A span has at least one token, so tokens are the most units that there can be.
    planned = [(single, "token" if spans else size) for single, size in explainers]
    results = []
    with _track_progress(explained, examples, planned, target, sum(costs), show_progress) as report:
        for (single, size), cost in zip(explainers, costs, strict=True):
            units = spans or size
            batches = _explain_batches(explained, examples, single, target, units, batch_size, attribute_target)
            config = {"model": explained.config._name_or_path, "model_type": explained.config.model_type}
            config |= {"method": single.name, "params": single.params}
            if stride is not None:
                config["stride"] = stride
            results.append(Explanations(_collect(batches, explained, single, allow_nan, cost, report), config))
    if not isinstance(method, list):
        return results[0]
    return dict(zip(names, results, strict=True))


def _track_progress(
    model: ExplainedModel, examples: Sequence[Any], planned: Sequence[tuple[Explainer, Any]], target: Any, cost: float,
    show: bool | None,
) -> AbstractContextManager[Callable[[float], None]]:  # fmt: skip
    """Return a context of the function that is called with the cost of finished work; `cost`: of one example."""
    total, is_generating = cost * len(examples), isinstance(model, GeneratingModel)
    is_measured = total >= MEASURED_PASSES and not is_generating
    estimate = (lambda: total * measure_pass(model, examples)) if is_measured else None
    description = "explaining"
    if model.is_remote:
        description = f"explaining ({forecast_requests(model, examples, planned, target)})"
        logger.info("%s", description)
    # Without an estimate, the bar of a single step would say 0 % and vanish; prompts take long enough to say that much.
    if not (is_measured or is_generating or show or len(examples) * len(planned) > 1):
        return nullcontext(lambda done: None)
    return progress_bar(description, total, show, estimate)


def _collect(
    batches: Iterator[list[Explanation]], model: ExplainedModel, method: Explainer, allow_nan: bool, cost: float,
    report: Callable[[float], None],
) -> list[Explanation]:  # fmt: skip
    """Return the explanations in the order of the examples; `report` is called with the cost of each finished batch."""
    explanations, broken = list[Explanation](), list[int]()
    for batch in batches:
        for item in batch:
            scores = item.scores if item.token_scores is None else item.token_scores
            if not np.isfinite(scores).all():
                broken.append(item.index)
        if broken and not allow_nan:
            require_finite(method, model, torch.full((len(broken), 1), torch.nan), broken)
        explanations += batch
        report(len(batch) * cost)
    if broken:
        share = f"{len(broken)} of {len(explanations)}"
        logger.warning("%s: %s examples have scores that are not finite", method.name, share)
    return sorted(explanations, key=lambda item: item.index)


def _explain_batches(
    model: ExplainedModel, examples: Sequence[Any], method: Explainer, target: Any, unit: UnitName | list[Spans],
    batch_size: int | None, attribute_target: bool,
) -> Iterator[list[Explanation]]:  # fmt: skip
    """Yield the explanations of each batch: one target per example, or several of a response."""
    # Each response has targets of its own, so it is a batch of its own.
    batches: Iterable[list[int]] = ([index] for index in range(len(examples)))
    if not isinstance(model, GeneratingModel):
        batches = make_batches(model, examples, batch_size, TOKENS_PER_EXPLAINED_BATCH_ON_CPU)
    for indices in batches:
        rows = [examples[index] for index in indices]
        if isinstance(model, GeneratingModel):
            size = unit if isinstance(unit, str) else unit[indices[0]]
            described = [_explain_response(model, rows[0], indices[0], method, target, size, attribute_target)]
        else:
            batch, placed = model.encode(rows), list[Units]()
            if not isinstance(unit, str):
                placed = [place_spans(batch.select([row]), unit[index], index) for row, index in enumerate(indices)]
                batch = _set_units(batch, method, placed)
            explained = explain_batch(model, method, batch, [select_targets(target, indices, len(examples))])
            described = describe_batch(model, method, batch, explained, indices)
            if placed:
                described = list(map(_sum_by_span, described, batch.attended.cpu(), placed))
        items = []
        for row, item in zip(rows, described, strict=True):
            named = replace(item, metadata=item.metadata | read_metadata(row))
            if not isinstance(unit, str):
                own = {"unit": "span"} if "unit" in item.params and not method.card.learned else {}
                items.append(replace(named, params=item.params | own))
            else:
                # Images and token ids have no words.
                items.append(named if unit in ("word", item.unit) else named.aggregate(unit))
        yield items


def _set_units(batch: Batch, method: Explainer, placed: Sequence[Units]) -> Batch:
    """Return the batch with spans as its units, unless the method keeps the units that it was trained with."""
    if method.card.learned:
        return batch
    return replace(batch, unit_of=torch.stack([units.number for units in placed]).to(batch.device))


def _sum_by_span(item: Explanation, attended: Tensor, placed: Units) -> Explanation:
    """Return the explanation with the spans' sums of its tokens' scores."""
    assert item.token_scores is not None
    member = placed.number[attended].numpy()[:, None] == np.arange(len(placed.units))
    return item.with_units(placed.units, item.token_scores @ member, "span")


class ExplainedBatch(NamedTuple):
    """A batch explained by a method: the resolved `targets`, the model's `logits`, and the `scores` of each target."""

    targets: Sequence[Tensor]
    logits: Tensor
    scores: Sequence[TokenScores]


@torch.no_grad()
def explain_batch(
    model: ExplainedModel, method: Explainer, batch: Batch, targets: Sequence[Any], logits: Tensor | None = None, *,
    special_tokens: bool = False, parts: Tensor | None = None,
) -> ExplainedBatch:  # fmt: skip
    """Explain `targets`, each for all examples, and return them with the model's prediction.

    `logits`: the batch's logits, if they are known already; `special_tokens`: see `Explainer.explain`; `parts` [L]: the
    part of each position of one example, −1 without, if only sums over parts are wanted.
    """
    if logits is None and not method.returns_logits:
        require_assumptions(method, model, batch)
        with model.evaluation_mode(), skip_unread_positions(model, batch):
            logits = require_finite_logits(model(batch).logits)
    if logits is not None:
        targets = [model.resolve_target(batch, target, logits) for target in targets]
    scores = None
    if parts is not None and isinstance(method, DimensionwiseExplainer):
        scores = explain_parts(method, model, batch, targets, parts)
    if scores is None:
        scores = method.explain_each(model, batch, targets, special_tokens=special_tokens)
    if logits is None:
        logits = scores[0].logits
        assert logits is not None
        targets = [model.resolve_target(batch, target, logits) for target in targets]
    return ExplainedBatch(targets, logits, scores)


def describe_batch(
    model: ExplainedModel, method: Explainer, batch: Batch, explained: ExplainedBatch, indices: Sequence[int]
) -> list[Explanation]:
    """Return a batch's scores as plain values, one explanation by words (or patches) per example, without padding."""
    (target,), logits, (scores,) = explained
    outputs = None
    # Methods that say what their scores miss of the output, or what of it belongs to no position, sum to the output.
    if scores.convergence_delta is not None or scores.bias is not None:
        outputs = model.task.with_output(method.output).score(logits, target).tolist()
    targets = model.describe_targets(batch, target, logits, outputs)
    predictions = model.describe_predictions(batch, logits)
    explanations = []
    for row, index in enumerate(indices):
        real = batch.attended[row].cpu()
        values = scores.scores[row].float().cpu()[real].numpy()
        special = ~batch.content[row].cpu()[real].numpy()
        fields: dict[str, Any] = {"prediction": predictions[row], "image_shape": batch.image_shape, "index": index}
        if batch.alignments is None:
            tokens = [Unit(name) for name in batch.name_positions(row)]
            fields["unit"] = "token" if batch.image_shape is None else "patch"
            fields["units"] = [unit for unit, is_special in zip(tokens, special, strict=True) if not is_special]
            fields["scores"] = values[None, ~special]
            member = np.eye(len(special))[~special]
        else:
            alignment = batch.alignments[row]
            tokens = [Unit(token, *(span or ())) for token, span in zip(alignment.tokens, alignment.spans, strict=True)]
            fields |= {"unit": "word", "texts": alignment.texts, "truncated": alignment.truncated}
            fields["units"] = [Unit(word.text, word.segment, word.start, word.end) for word in alignment.words]
            fields["scores"] = pool(values, alignment.word_of, len(alignment.words))[None]
            member = np.arange(len(alignment.words))[:, None] == np.asarray(alignment.word_of)
        fields["rest"] = [values[~special].sum(dtype=np.float64) - fields["scores"].sum(dtype=np.float64)]
        if scores.special is not None:
            fields["rest"][0] += float(scores.special[row])
        if scores.bias is not None:
            fields["bias"] = float(scores.bias[row])
        if scores.convergence_delta is not None:
            fields["convergence_delta"] = float(scores.convergence_delta[row])
        if scores.layers is not None:
            fields["layers"] = scores.layers[row].float().cpu()[:, real].numpy()
        if scores.pairs is not None:
            pairs = scores.pairs[row].double().cpu()[real][:, real].numpy()
            fields["interactions"] = find_strongest_pairs(member @ pairs @ member.T)
        fields |= {"tokens": tokens, "token_scores": values[None], "special": special.tolist()}
        explanations.append(_describe(method, (targets[row],), **fields))
    return explanations


def _explain_response(
    model: GeneratingModel, example: Any, index: int, method: Explainer, target: Any, unit: UnitName | Spans,
    attribute_target: bool,
) -> Explanation:  # fmt: skip
    """Explain spans of the response of one example, or the response rather than its foil.

    Raises:
        ExpoundError: `attribute_target` with a foil, or of a method that scores only units of the prompt; a foil for a
            method whose scores of a difference are not differences of scores.
    """
    if attribute_target:
        require_token_scores(method)
    row = prompt_to_row(example)
    foil = row.pop("foil", None)
    if foil is None:
        return _explain_spans(model, row, index, method, target, unit, attribute_target)
    if attribute_target:
        raise ExpoundError("a foil begins otherwise than the response: leave it or attribute_target out")
    if not (method.signed and method.supports_contrasts):
        raise ExpoundError(f"{method.name} explains no difference of two responses: its scores have no sign")
    # Each is read after the prompt and its own beginning.
    response = _explain_spans(model, row, index, method, "response", unit, False)
    other = _explain_spans(model, row | {"response": foil}, index, method, "response", unit, False)
    if response.units != other.units:
        raise ExpoundError(f"the prompt of example {index} is cut differently before response and foil: shorten it")
    log_prob = (response.target.log_prob or 0.0) - (other.target.log_prob or 0.0)
    return replace(
        response,
        targets=(response.target._replace(log_prob=log_prob),),
        scores=response.scores - other.scores,
        rest=None if response.rest is None or other.rest is None else response.rest - other.rest,
        bounds=None,
        params=response.params | {"foil": other.response},
    )


def _explain_spans(
    model: GeneratingModel, row: Mapping[str, Any], index: int, method: Explainer, target: Any, unit: UnitName | Spans,
    attribute_target: bool,
) -> Explanation:  # fmt: skip
    """Explain spans of the response of one example."""
    batch = model.encode([show_units(row, unit)])
    (exchange,), (alignment,) = batch.exchanges or (), batch.alignments or ()
    spans, name = find_target_spans(exchange, target), unit if isinstance(unit, str) else "span"
    units = list_units(batch, unit) if isinstance(unit, str) else place_spans(batch, unit, index)
    if not isinstance(unit, str):
        batch = _set_units(batch, method, [units])
    targets = torch.tensor(spans, device=batch.device)[:, None]
    with torch.no_grad(), model.evaluation_mode():
        logits = require_finite_logits(model(batch).logits)
    response = batch.response
    assert response is not None
    if attribute_target:
        batch = replace(batch, content=batch.content | response)
    parts = None if attribute_target else units.number.to(batch.device)
    with model.cache_perturbed():
        explained = explain_batch(model, method, batch, list(targets), logits, parts=parts)
    found = torch.stack([each.scores[0] for each in explained.scores]).double().cpu()
    (scores, rest), own = sum_units(found, batch.removable[0].cpu(), units), None
    if attribute_target:
        own = found[:, response[0].cpu()].numpy().astype(np.float32)
        # Token t is predicted at position t − 1, so a span that ends before `end` reads up to token end − 2.
        own[np.arange(own.shape[1]) > np.array(spans)[:, 1:] - 2] = np.nan
    bounds = method.lower_bounds(scores, name) if isinstance(method, TrainedCitation) else None
    sentences, metadata = exchange.spans("sentences"), dict[str, Any]()
    if bounds is not None:
        # The bounds were calibrated on sentences, so they hold for nothing else.
        bounds[[span not in sentences for span in spans]] = np.nan
    if target == "sentences" and len(sentences) > len(spans):
        (whole,) = model.describe_predictions(batch, logits)
        metadata = {"repeated_sentences": len(sentences) - len(spans), "response_log_prob": whole.log_prob}
    about = {"texts": alignment.texts, "truncated": alignment.truncated, "exchange": exchange, "index": index}
    scored = {"units": units.units, "scores": scores, "rest": rest, "bounds": bounds, "response_scores": own}
    described = tuple(model.describe_targets(batch, span, logits)[0] for span in targets)
    if batch.images is not None:
        metadata["images"] = _describe_images(batch)
    return _describe(method, described, unit=name, metadata=metadata, **about, **scored)


def _describe_images(batch: Batch) -> list[Any]:
    """Return the images of one prompt with their regions as JSON values, for drawings."""
    (exchange,), (alignment,) = batch.exchanges or (), batch.alignments or ()
    (images,), (regions,), described = batch.images or (), batch.regions or (), list[Any]()
    segments = [segment for segment, kind in enumerate(exchange.kinds) if kind == "image"]
    for number, (segment, image) in enumerate(zip(segments, images, strict=True)):
        extents = [(word.start, word.end) for word in alignment.words if word.segment == segment]
        masks = [region.mask for region in regions if region.image == number]
        described.append(describe_image(image, segment, extents, masks))
    return described


def _describe(method: Explainer, targets: tuple[Target, ...], **fields: Any) -> Explanation:
    """Return the explanation of these targets by a method."""
    return Explanation(targets, method=method.name, params=method.params, signed=method.signed, **fields)
