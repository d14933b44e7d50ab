"""Explains texts and other examples in batches, and describes their attributions."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from exegete.data.alignment import pool
from exegete.data.granularity import Granularity
from exegete.errors import ExegeteError
from exegete.explainers.base import Explainer, Explanation, find_nonfinite, require_finite
from exegete.explainers.generated import attribute_generated, resolve_unit, set_unit
from exegete.explainers.registry import default_method, explainer
from exegete.heap import give_back
from exegete.models import Batch, ExplainedModel
from exegete.models.encoding.encode import example_to_row
from exegete.models.generation.model import GeneratingModel
from exegete.models.outputs import require_finite_logits
from exegete.models.passes.last_layer import skip_unread_positions
from exegete.models.windowed import WindowedModel
from exegete.reports.attributions import Attribution, Attributions
from exegete.reports.progress import progress_bar

logger = logging.getLogger(__name__)

TOKENS_PER_BATCH = 4096
TOKENS_PER_BATCH_ON_CPU = 1024
"""Tokens a batch there: more are slower, and take memory in proportion."""
TOKENS_PER_EXPLAINED_BATCH_ON_CPU = 256
"""Where a batch is explained by one method and done with: a quarter of the memory, for a tenth more time."""
BATCHES_BETWEEN_TRIMS = 2
"""Batches after which a CPU's freed memory is given back."""
AVERAGE_LENGTH = 32
"""Content positions of an example, where only the sizes of methods' work are compared."""
TIMED_EXAMPLES = 16
"""Examples that the time of a pass is measured on."""
MEASURED_PASSES = 100
"""Passes for which an estimate is worth one more."""


@overload
def attribute(
    model: ExplainedModel,
    examples: Any,
    method: str | Explainer | None = None,
    target: Any = "predicted",
    *,
    unit: Granularity | None = None,
    batch_size: int | None = None,
    show_progress: bool | None = None,
    allow_nan: bool = False,
    stride: int | None = None,
    attribute_target: bool = False,
    **params: Any,
) -> Attributions[Any]: ...


@overload
def attribute(
    model: ExplainedModel,
    examples: Any,
    method: list[str] | list[Explainer] | list[str | Explainer],
    target: Any = "predicted",
    *,
    unit: Granularity | None = None,
    batch_size: int | None = None,
    show_progress: bool | None = None,
    allow_nan: bool = False,
    stride: int | None = None,
    attribute_target: bool = False,
    **params: Any,
) -> dict[str, Attributions[Any]]: ...


def attribute(
    model: ExplainedModel,
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
) -> Attributions[Any] | dict[str, Attributions[Any]]:
    """Explains examples, in their order.

    Args:
        model: what to explain, from `exegete.load`.
        examples: a text, a pair (text, text), an image, a row of canonical columns, several of those, or a dataset.
        method: a registry id (`exegete.list_methods()` lists them) or an explainer; default: see `default_method`.
            A list of them gives one result for each, by name.
        target: "predicted", "label", a class index or name, or a list with one of those for each example; a tuple
            (for, against) of two classes asks why the one rather than the other: for the difference of their outputs.
            Generated text: the response as a whole, its "sentences", "words" or "tokens", or spans (start, end) of its
            tokens.
        unit: what gets a score, `token`, `word`, `sentence`, `paragraph` or `source`; methods that remove it remove
            it as one. Generated text only, and methods with a granularity.
        batch_size: examples a batch; default: as many as fit a token budget. Similar lengths go together either way.
        show_progress: a progress bar on stderr; default: where a person waits longer than a second.
        allow_nan: go on where scores are no finite numbers; a warning says for how many examples.
        stride: texts longer than the model takes are read in windows that share so many tokens, see `WindowedModel`: a
            token's score is the mean over the windows that hold it; default: texts are cut.
        attribute_target: generated text: the response's own earlier tokens get scores, too (`prefix` of each result).
            Methods that start from a baseline, or add noise, then do so there as well, which changes the prompt's.
        params: the method's parameters, as `n_steps=50`.

    Raises:
        ExegeteError: an unknown method or parameter, an empty text, a model that answers NaN, scores
            that are not finite.
    """
    model = model if stride is None else WindowedModel(model, stride)
    rows = model.expand_examples(as_sequence(examples))
    if not len(rows):
        raise ExegeteError("the model tags nothing in these texts: say what by rows with 'text' and 'span'")
    given = method if isinstance(method, list) else [default_method(model) if method is None else method]
    if not given:
        raise ExegeteError("there is nothing to explain by: no method was given")
    chosen = [_chosen(model, each, unit, params) for each in given]
    passes = [sum(explainer.passes(AVERAGE_LENGTH)) for explainer, _ in chosen]
    with progress_bar(
        "explaining", len(rows) * sum(each or 1.0 for each in passes), show_progress, _seconds(model, rows, passes)
    ) as done:
        found = [
            _attributed(model, rows, *each, target, batch_size, allow_nan, partial(_tell, done, cost), attribute_target)
            for each, cost in zip(chosen, passes, strict=True)
        ]
    if not isinstance(method, list):
        return found[0]
    by_name = {each if isinstance(each, str) else each.name: one for each, one in zip(given, found, strict=True)}
    if len(by_name) < len(given):
        raise ExegeteError("two methods have one name: give them by id and parameters, as 'ID?NAME=VALUE'")
    return by_name


def _tell(done: Callable[[float], None], cost: float, count: int) -> None:
    done(count * (cost or 1.0))


def _chosen(
    model: ExplainedModel, method: str | Explainer, unit: Granularity | None, params: Mapping[str, Any]
) -> tuple[Explainer, Granularity | None]:
    """The explainer, and the unit of its scores where that is no token."""
    if isinstance(model, GeneratingModel):
        return resolve_unit(method, unit, dict(params))
    found = explainer(method, **params)
    return (found if unit is None else set_unit(found, unit)), None


def _seconds(model: ExplainedModel, rows: Sequence[Any], passes: Sequence[float]) -> Callable[[], float] | None:
    """The time that explaining will take: passes of all methods at the time of one, measured on the first row.

    None where that is little, or unknown.
    """
    total = sum(passes) * len(rows)
    return (
        None
        if total < MEASURED_PASSES or isinstance(model, GeneratingModel)
        else lambda: total * measure_pass(model, rows)
    )


@torch.no_grad()
def measure_pass(model: ExplainedModel, rows: Sequence[Any]) -> float:
    """Seconds of a pass over an example, measured on the first few: the second of two forward passes."""
    batch = model.encode([rows[index] for index in range(min(TIMED_EXAMPLES, len(rows)))])
    with model.evaluation_mode():
        model(batch)
        begun = time.perf_counter()
        model(batch)
    return (time.perf_counter() - begun) / len(batch)


def _attributed(
    model: ExplainedModel,
    rows: Sequence[Any],
    chosen: Explainer,
    unit: Granularity | None,
    target: Any,
    batch_size: int | None,
    allow_nan: bool,
    done: Callable[[int], None],
    attribute_target: bool,
) -> Attributions[Any]:
    """The examples by one method; `done` is told how many more are."""
    if isinstance(model, GeneratingModel) and unit is not None:
        items = attribute_generated(
            model, rows, chosen, target, unit, done=done, allow_nan=allow_nan, attribute_target=attribute_target
        )
        return Attributions(items, _config(model, chosen))
    if attribute_target:
        raise ExegeteError("attribute_target is about generated text: load the model with task='generation'")
    found: dict[int, Attribution] = {}
    broken = 0
    for number, indices in enumerate(make_batches(model, rows, batch_size, TOKENS_PER_EXPLAINED_BATCH_ON_CPU), 1):
        batch = model.encode([rows[index] for index in indices])
        wanted = select_targets(target, indices, len(rows))
        explained, logits, explanation = _explain(model, chosen, batch, wanted)
        broken += len(find_nonfinite(explanation.scores))
        if not allow_nan:
            require_finite(chosen, model, explanation.scores, indices)
        described = make_attributions(model, chosen, batch, explained, logits, explanation, indices)
        found |= {item.index: item for item in described}
        if number % BATCHES_BETWEEN_TRIMS == 0 and model.device.type == "cpu":
            give_back()
        done(len(indices))
    if broken:
        logger.warning("%s: %d of %d examples have scores that are no finite numbers", chosen.name, broken, len(rows))
    return Attributions([found[index] for index in range(len(rows))], _config(model, chosen))


def _config(model: ExplainedModel, method: Explainer) -> dict[str, Any]:
    names = {"model": model.config._name_or_path, "model_type": model.config.model_type}
    read = {"stride": model.stride} if isinstance(model, WindowedModel) else {}
    return names | {"method": method.name, "params": method.params} | read


def as_sequence(examples: Any) -> Sequence[Any]:
    """A single example as a list of one; a dataset or a sequence as it is."""
    picture = hasattr(examples, "convert") or (isinstance(examples, np.ndarray) and examples.ndim in (2, 3))
    if isinstance(examples, str | Mapping | tuple) or picture:
        return [examples]
    if not isinstance(examples, Iterable):
        raise ExegeteError(f"expected an example or several, got {examples!r:.80}")
    ready: Any = examples
    rows: Sequence[Any] = ready if isinstance(ready, Sequence) or hasattr(ready, "features") else list(ready)
    if not len(rows):
        raise ExegeteError("there is nothing to explain: no example was given")
    return rows


def make_batches(
    model: ExplainedModel, rows: Sequence[Any], batch_size: int | None = None, on_a_cpu: int = TOKENS_PER_BATCH_ON_CPU
) -> Iterator[list[int]]:
    """Indices of rows in batches of similar length, short rows first: by count, or by a budget of padded tokens."""
    if batch_size is not None and batch_size < 1:
        raise ExegeteError(f"batch_size is at least 1, got {batch_size}")
    sizes = np.array([_size(example_to_row(row)) for row in rows])
    order = np.argsort(sizes, kind="stable")
    estimate = np.minimum(sizes[order] // 4 + 2, model.max_length)
    budget = on_a_cpu if model.device.type == "cpu" else TOKENS_PER_BATCH
    start = 0
    while start < len(rows):
        fits = 1 + np.searchsorted(estimate[start + 1 :] * np.arange(2, len(rows) - start + 1), budget, "right")
        stop = min(start + (batch_size or int(fits)), len(rows))
        yield order[start:stop].tolist()
        start = stop


def select_targets(target: Any, indices: Sequence[int], count: int) -> Any:
    """The targets of the examples at `indices` out of `count`: one for each, or one word for all."""
    if target is None or (isinstance(target, str) and target in ("predicted", "label")):
        return target
    each = target.tolist() if isinstance(target, Tensor) else target
    each = list(each) if isinstance(each, list) else [each] * count
    if len(each) != count:
        raise ExegeteError(f"expected one target or {count} (one an example), got {len(each)}")
    return [each[index] for index in indices]


def make_attributions(
    model: ExplainedModel,
    method: Explainer,
    batch: Batch,
    target: Tensor,
    logits: Tensor,
    explanation: Explanation,
    indices: Sequence[int],
) -> list[Attribution]:
    """A batch's explanation as plain values, one `Attribution` an example, without padding."""
    prediction = model.task.predict(logits, batch)
    contrast = model.task.is_contrast(target)
    chance = model.task.probability(model.task.probabilities(logits), target[:, 0] if contrast else target)
    start = torch.zeros_like(target[..., 0]) if batch.exchanges is not None else batch.attended.long().argmax(1)
    return [
        Attribution(
            **_positions(batch, row, explanation),
            target=_output(target[row], start[row] * (not contrast)),
            target_label=_label(model, batch, row, target[row]),
            prediction=float(chance[row]) if model.task.name == "regression" else _output(prediction[row], start[row]),
            prediction_label=_label(model, batch, row, prediction[row]),
            probability=float(chance[row]),
            method=method.name,
            params=method.params,
            delta=None if explanation.delta is None else float(explanation.delta[row]),
            index=index,
            signed=method.signed,
            about=_about(batch, row),
        )
        for row, index in enumerate(indices)
    ]


@torch.no_grad()
def _explain(model: ExplainedModel, method: Explainer, batch: Batch, target: Any) -> tuple[Tensor, Tensor, Explanation]:
    """The target, the model's logits, and the explanation; where the method's own pass answers there is no other."""
    if method.returns_logits:
        explanation = method.explain(model, batch, target)
        assert explanation.logits is not None
        return model.resolve_target(batch, target, explanation.logits), explanation.logits, explanation
    with model.evaluation_mode(), skip_unread_positions(model):
        logits = require_finite_logits(model(batch).logits)
    explained = model.resolve_target(batch, target, logits)
    return explained, logits, method.explain(model, batch, explained)


def _positions(batch: Batch, row: int, explanation: Explanation) -> dict[str, Any]:
    """Tokens, words and their scores, padding left out."""
    real = batch.attended[row].cpu()
    content = batch.content[row].cpu()[real]
    scores = explanation.scores[row].float().cpu()[real].numpy()
    layers = None if explanation.layers is None else explanation.layers[row].float().cpu()[:, real].numpy()
    pairs = None if explanation.pairs is None else explanation.pairs[row].double().cpu()[real][:, real].numpy()
    shared = {"scores": scores, "special": (~content).tolist(), "layers": layers}
    if batch.alignments is None:
        return shared | {
            "tokens": _unnamed(batch, row, real),
            "words": (),
            "word_scores": (),
            "word_spans": (),
            "texts": (),
            "image_shape": batch.image_shape,
            "pairs": () if pairs is None else find_strongest_pairs(pairs),
        }
    alignment = batch.alignments[row]
    member = np.arange(len(alignment.words))[:, None] == np.asarray(alignment.word_of)
    return shared | {
        "pairs": () if pairs is None else find_strongest_pairs(member @ pairs @ member.T),
        "tokens": alignment.tokens,
        "words": tuple(word.text for word in alignment.words),
        "word_scores": pool(scores, alignment.word_of, len(alignment.words)),
        "word_spans": tuple((word.side, word.start, word.end) for word in alignment.words),
        "texts": alignment.texts,
        "truncated": alignment.truncated,
    }


def find_strongest_pairs(pairs: NDArray[np.float64], most: int = 10) -> tuple[tuple[int, int, float], ...]:
    """The pairs i < j of a symmetric table that are farthest from 0, strongest first; none that is 0."""
    first, second = np.triu_indices(len(pairs), 1)
    values = pairs[first, second]
    order = np.argsort(-np.abs(values), kind="stable")[:most]
    return tuple((int(first[at]), int(second[at]), float(values[at])) for at in order if values[at])


def _unnamed(batch: Batch, row: int, real: Tensor) -> list[str]:
    """Names for positions that have no text: patches of an image, or token ids made elsewhere."""
    if batch.image_shape is None:
        return [str(token) for token in batch.inputs["input_ids"][row].cpu()[real].tolist()]
    patches = prod(batch.image_shape)
    others = [f"token {number}" for number in range(1, int(real.sum()) - patches)]
    return ["class", *others, *(f"patch {number}" for number in range(patches))]


def _label(model: ExplainedModel, batch: Batch, row: int, target: Tensor) -> str:
    """The target's name: a label, or for a span the text it covers."""
    if batch.exchanges is not None:
        exchange = batch.exchanges[row]
        return exchange.response[slice(*exchange.extent((int(target[0]), int(target[1]))))]
    if model.task.name != "span":
        return " rather than ".join(model.labels[number] for number in target.flatten().tolist())
    start, end = target.tolist()
    if batch.alignments is None:
        return f"{start}–{end}"
    offset = int(batch.attended[row].long().argmax())
    alignment = batch.alignments[row]
    first, last = alignment.spans[start - offset], alignment.spans[end - offset]
    return "no answer" if first is None or last is None else alignment.texts[first[0]][first[1] : last[2]]


def _about(batch: Batch, row: int) -> tuple[int, int, int] | None:
    """The stretch of text at which a head over tokens is read: side, first character, the one behind the last."""
    if batch.readout_mask is None or batch.alignments is None:
        return None
    alignment = batch.alignments[row]
    places = batch.readout_mask[row][batch.attended[row]].nonzero().flatten().tolist()
    words = [alignment.words[alignment.word_of[place]] for place in places if alignment.word_of[place] >= 0]
    return (words[0].side, words[0].bare[0], words[-1].bare[1]) if words else None


def _output(target: Tensor, start: Tensor) -> int | tuple[int, int]:
    """A class, or a span counted from where its example starts."""
    return int(target) if target.ndim == 0 else (int(target[0] - start), int(target[1] - start))


def _size(row: Mapping[str, Any]) -> int:
    """Characters, which tell lengths apart well enough to sort by; images are all alike."""
    columns = ("text", "text_pair", "prompt", "messages", "sources", "response")
    return 4 * 256 if "image" in row else sum(len(str(row.get(column) or "")) for column in columns)
