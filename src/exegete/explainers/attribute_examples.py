"""Explains texts and other examples in batches, and makes `Attribution`s of the results."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from exegete.data.alignment import pool
from exegete.data.granularity import Granularity
from exegete.errors import ExegeteError
from exegete.explainers.base import Explainer, TokenScores, find_nonfinite, require_finite
from exegete.explainers.generated import attribute_generated, resolve_unit, set_unit
from exegete.explainers.registry import default_method, explainer
from exegete.models import Batch, ExplainedModel
from exegete.models.encoding.encode import example_to_row
from exegete.models.generation.model import GeneratingModel
from exegete.models.loading.load import ModelSource, load
from exegete.models.outputs import require_finite_logits
from exegete.models.passes.last_layer import skip_unread_positions
from exegete.models.windowed import WindowedModel
from exegete.reports.attributions import Attribution, Attributions
from exegete.reports.progress import progress_bar

logger = logging.getLogger(__name__)

TOKENS_PER_BATCH, TOKENS_PER_BATCH_ON_CPU = 4096, 1024
"""Token budget of a batch on a CPU: larger ones are slower, and take memory in proportion."""
TOKENS_PER_EXPLAINED_BATCH_ON_CPU = 256
"""The budget if one method explains a batch: a quarter of the memory, for a tenth more time."""
BATCHES_BETWEEN_TRIMS, AVERAGE_LENGTH = 2, 32
"""Batches after which a CPU returns freed memory; content positions of an example, to compare the costs of methods."""
TIMED_EXAMPLES, MEASURED_PASSES = 16, 100
"""Examples on which a pass is timed, if the work takes at least MEASURED_PASSES."""


@overload
def attribute(
    model: ModelSource,
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
    model: ModelSource,
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
) -> Attributions[Any] | dict[str, Attributions[Any]]:
    """Explain examples and return one attribution per example, in their order.

    Args:
        model: what to explain, from `exegete.load`, or what that takes: a folder, a pipeline, (model, tokenizer).
        examples: a text, a pair (text, text), an image, a row of canonical columns, several of those, or a dataset. For
            generated text: a prompt, which is read as it is, or a row with `messages`, read in the chat template.
        method: an id of `exegete.list_methods()` or an explainer, by default `default_method`; a list gives a dict.
        target: "predicted", "label", a class index or name, or a list with one of those per example; a tuple
            (for, against) of two classes explains the difference of their outputs. For generated text: the response as
            a whole, its "sentences", "words" or "tokens", or spans (start, end) of its tokens.
        unit: what gets a score, `token`, `word`, `sentence`, `paragraph` or `source`; methods that remove input remove
            a whole unit. For generated text, and for methods with a granularity.
        batch_size: examples per batch; default: as many as fit a token budget. Similar lengths share a batch.
        show_progress: show a progress bar on stderr; default: if the work takes longer than a second.
        allow_nan: continue if scores are not finite; a warning tells for how many examples.
        stride: read texts longer than the model's limit in windows that share `stride` tokens, see `WindowedModel`; a
            token's score is the mean over its windows, or what removing it does to the answer. Default: cut texts.
        attribute_target: for generated text, score the response's own earlier tokens too (`prefix` of each result).
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
    chosen = default_method(explained) if method is None else method
    methods = chosen if isinstance(chosen, list) else [chosen]
    if not methods:
        raise ExegeteError("there is nothing to explain by: no method was given")
    explainers: list[tuple[Explainer, Granularity | None]] = []
    for spec in methods:
        if isinstance(explained, GeneratingModel):
            explainers.append(resolve_unit(spec, unit, dict(params)))
        else:
            single = explainer(spec, **params)
            explainers.append((single if unit is None else set_unit(single, unit), None))
    # Methods without passes count as one, so that the bar moves.
    costs = [sum(single.passes(AVERAGE_LENGTH)) or 1.0 for single, _ in explainers]
    total = sum(costs) * len(examples)
    is_measured = total >= MEASURED_PASSES and not isinstance(explained, GeneratingModel)
    estimate = (lambda: total * measure_pass(explained, examples)) if is_measured else None
    results = []
    with progress_bar("explaining", total, show_progress, estimate) as report:
        for item, cost in zip(explainers, costs, strict=True):

            def tell(count: int, cost: float = cost) -> None:
                report(count * cost)

            results.append(
                _attribute_all(explained, examples, *item, target, batch_size, allow_nan, attribute_target, tell)
            )
    if not isinstance(method, list):
        return results[0]
    names = [spec if isinstance(spec, str) else spec.name for spec in methods]
    if len(set(names)) < len(names):
        raise ExegeteError("two methods have one name: give them by id and parameters, as 'ID?NAME=VALUE'")
    return dict(zip(names, results, strict=True))


@torch.no_grad()
def measure_pass(model: ExplainedModel, examples: Sequence[Any]) -> float:
    """Return the seconds per example of a forward pass, measured on the first few examples."""
    batch = model.encode([examples[index] for index in range(min(TIMED_EXAMPLES, len(examples)))])
    with model.evaluation_mode():
        # The first pass allocates memory and chooses kernels, so the second one is timed.
        model(batch)
        begun = time.perf_counter()
        model(batch)
    return (time.perf_counter() - begun) / len(batch)


def _attribute_all(
    model: ExplainedModel,
    examples: Sequence[Any],
    method: Explainer,
    unit: Granularity | None,
    target: Any,
    batch_size: int | None,
    allow_nan: bool,
    attribute_target: bool,
    report: Callable[[int], None],
) -> Attributions[Any]:
    """Explain the examples by one method; `report` is called with the number of examples of each finished batch."""
    config = {"model": model.config._name_or_path, "model_type": model.config.model_type}
    config |= {"method": method.name, "params": method.params}
    if isinstance(model, WindowedModel):
        config["stride"] = model.stride
    if isinstance(model, GeneratingModel) and unit is not None:
        items = attribute_generated(
            model, examples, method, target, unit,
            report=report, allow_nan=allow_nan, attribute_target=attribute_target,
        )  # fmt: skip
        return Attributions(items, config)
    if attribute_target:
        raise ExegeteError("attribute_target is about generated text: load the model with task='generation'")
    attributions: dict[int, Attribution] = {}
    nonfinite, count = 0, len(examples)
    for indices in make_batches(model, examples, batch_size, TOKENS_PER_EXPLAINED_BATCH_ON_CPU):
        batch = model.encode([examples[index] for index in indices])
        chosen = select_targets(target, indices, count)
        targets, logits, explanation = _explain(model, method, batch, chosen)
        broken = find_nonfinite(explanation.scores)
        nonfinite += len(broken)
        if broken and not allow_nan:
            require_finite(method, model, explanation.scores, indices)
        for item in make_attributions(model, method, batch, targets, logits, explanation, indices):
            attributions[item.index] = item
        report(len(indices))
    if nonfinite:
        logger.warning("%s: %d of %d examples have scores that are not finite", method.name, nonfinite, count)
    return Attributions([attributions[index] for index in range(count)], config)


def as_sequence(examples: Any) -> Sequence[Any]:
    """Return a single example as a list of one, and a dataset or a sequence unchanged."""
    is_image = hasattr(examples, "convert") or (isinstance(examples, np.ndarray) and examples.ndim in (2, 3))
    if isinstance(examples, str | Mapping | tuple) or is_image:
        return [examples]
    if not isinstance(examples, Iterable):
        raise ExegeteError(f"expected an example or several, got {examples!r:.80}")
    sequence: Any = examples
    if not isinstance(examples, Sequence) and not hasattr(examples, "features"):
        sequence = list(examples)
    if not sequence:
        raise ExegeteError("there is nothing to explain: no example was given")
    return sequence  # type: ignore[no-any-return]


def make_batches(
    model: ExplainedModel, examples: Sequence[Any], batch_size: int | None = None,
    cpu_budget: int = TOKENS_PER_BATCH_ON_CPU,
) -> Iterator[list[int]]:  # fmt: skip
    """Yield the indices of the examples of each batch: similar lengths together, short examples first.

    A batch has `batch_size` examples, or as many as fit a budget of padded tokens.
    """
    if batch_size is not None and batch_size < 1:
        raise ExegeteError(f"batch_size is at least 1, got {batch_size}")
    sizes = np.array([_count_characters(example_to_row(example)) for example in examples])
    order = np.argsort(sizes, kind="stable")
    # About four characters per token, and two special tokens: tokenizing twice would cost more than it saves.
    estimate = np.minimum(sizes[order] // 4 + 2, model.max_length)
    budget = cpu_budget if model.device.type == "cpu" else TOKENS_PER_BATCH
    start = 0
    while start < len(examples):
        # A batch of n examples has n times the tokens of its longest, which comes last.
        padded = estimate[start + 1 :] * np.arange(2, len(examples) - start + 1)
        size = batch_size or 1 + int(np.searchsorted(padded, budget, "right"))
        stop = min(start + size, len(examples))
        yield order[start:stop].tolist()
        start = stop


def _count_characters(row: Mapping[str, Any]) -> int:
    """Return a row's length in characters, which is exact enough to sort by; images are all the same length."""
    if "image" in row:
        return 4 * 256
    columns = ("text", "text_pair", "prompt", "messages", "sources", "response")
    return sum(len(str(row.get(column) or "")) for column in columns)


def select_targets(target: Any, indices: Sequence[int], count: int) -> Any:
    """Return the targets of the examples at `indices`, given one target per example or one for all `count`."""
    if target is None or (isinstance(target, str) and target in ("predicted", "label")):
        return target
    targets = target.tolist() if isinstance(target, Tensor) else target
    if not isinstance(targets, list):
        targets = [targets] * count
    if len(targets) != count:
        raise ExegeteError(f"expected one target or {count} (one an example), got {len(targets)}")
    return [targets[index] for index in indices]


@torch.no_grad()
def _explain(model: ExplainedModel, method: Explainer, batch: Batch, target: Any) -> tuple[Tensor, Tensor, TokenScores]:
    """Return the resolved target, the model's logits and the explanation."""
    if method.returns_logits:
        explanation = method.explain(model, batch, target)
        assert explanation.logits is not None
        return model.resolve_target(batch, target, explanation.logits), explanation.logits, explanation
    with model.evaluation_mode(), skip_unread_positions(model):
        logits = require_finite_logits(model(batch).logits)
    explained = model.resolve_target(batch, target, logits)
    return explained, logits, method.explain(model, batch, explained)


def make_attributions(
    model: ExplainedModel,
    method: Explainer,
    batch: Batch,
    target: Tensor,
    logits: Tensor,
    explanation: TokenScores,
    indices: Sequence[int],
) -> list[Attribution]:
    """Return a batch's explanation as plain values, one `Attribution` per example, without padding."""
    prediction = model.task.predict(logits, batch)
    is_contrast = model.task.is_contrast(target)
    # The probability of a contrast is that of the class it argues for.
    chance = model.task.probability(model.task.probabilities(logits), target[:, 0] if is_contrast else target)
    # Spans count from the example's first token, without padding on the left; those of responses already do.
    start = torch.zeros_like(target[..., 0]) if batch.exchanges is not None else batch.attended.long().argmax(1)
    attributions = []
    for row, index in enumerate(indices):
        probability = float(chance[row])
        predicted = _convert_output(prediction[row], start[row])
        attributions.append(
            Attribution(
                **_describe_positions(batch, row, explanation),
                target=_convert_output(target[row], start[row] * (not is_contrast)),
                target_label=_label_output(model, batch, row, target[row]),
                prediction=probability if model.task.name == "regression" else predicted,
                prediction_label=_label_output(model, batch, row, prediction[row]),
                probability=probability,
                method=method.name,
                params=method.params,
                delta=None if explanation.delta is None else float(explanation.delta[row]),
                index=index,
                signed=method.signed,
                about=None if batch.readout_mask is None else _locate_readout(batch, row, batch.readout_mask),
            )
        )
    return attributions


def _describe_positions(batch: Batch, row: int, explanation: TokenScores) -> dict[str, Any]:
    """Return the tokens and words of an example with their scores, without padding, as fields of `Attribution`."""
    real = batch.attended[row].cpu()
    scores = explanation.scores[row].float().cpu()[real].numpy()
    layers = None if explanation.layers is None else explanation.layers[row].float().cpu()[:, real].numpy()
    pairs = None if explanation.pairs is None else explanation.pairs[row].double().cpu()[real][:, real].numpy()
    shared = {"scores": scores, "special": (~batch.content[row].cpu()[real]).tolist(), "layers": layers}
    if batch.alignments is None:
        return shared | {
            "tokens": _name_positions(batch, row, real),
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


def _label_output(model: ExplainedModel, batch: Batch, row: int, target: Tensor) -> str:
    """Return the name of a target or prediction: a label, or the text that a span covers."""
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
    # A span at a special token means that the text has no answer.
    return "no answer" if first is None or last is None else alignment.texts[first[0]][first[1] : last[2]]


def _convert_output(target: Tensor, start: Tensor) -> int | tuple[int, int]:
    """Return a class as a number, or a span counted from position `start`."""
    return int(target) if target.ndim == 0 else (int(target[0] - start), int(target[1] - start))


def _locate_readout(batch: Batch, row: int, readout_mask: Tensor) -> tuple[int, int, int] | None:
    """Return the text span that a token-level head reads: side, first character, end."""
    if batch.alignments is None:
        return None
    alignment = batch.alignments[row]
    numbers = np.asarray(alignment.word_of)[readout_mask[row][batch.attended[row]].cpu().numpy()]
    words = [alignment.words[number] for number in numbers if number >= 0]
    return (
        (words[0].side, words[0].span_without_punctuation[0], words[-1].span_without_punctuation[1]) if words else None
    )
