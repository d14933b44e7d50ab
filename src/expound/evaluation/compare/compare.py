"""Comparison of explanation methods: explain the same examples by every method and judge all explanations."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image

from expound.data.readers.columns import ColumnOptions
from expound.data.spans import UnitName
from expound.errors import ExpoundError, check_choice
from expound.evaluation.compare.choice import has_rationales, make_methods, make_metrics, refuse_rationale_metrics
from expound.evaluation.compare.comparison import Comparison, name_card
from expound.evaluation.compare.judge import JudgedExamples, judge
from expound.evaluation.compare.shards import ComparisonParts, load_finished, remove_parts
from expound.explainers import Explainer
from expound.explainers.base import describe_explainer
from expound.explainers.plan import AVERAGE_LENGTH, measure_pass
from expound.metrics import Metric
from expound.metrics.registry import PEAK_MEMORY, SECONDS
from expound.models import ExplainedModel
from expound.models.encoding.encode import example_to_row, make_batches, read_examples, select_targets
from expound.models.generation.model import GeneratingModel
from expound.models.loading.checkpoint import digest_weights
from expound.models.loading.load import ModelSource, load
from expound.models.windowed import WindowedModel
from expound.reports.explanations import Explanations
from expound.reports.text import progress_bar

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

EXAMPLES_PER_PART = 32
PASSES_PER_METRIC = 3
"""Forward passes of a metric per example and method, roughly: most remove a few shares of the input."""


def compare(
    model: ModelSource,
    data: Dataset | Sequence[Any],
    methods: Sequence[str | Explainer] | Mapping[str, str | Explainer] | None = None,
    metrics: Sequence[str | Metric] | None = None,
    *,
    target: Any = "predicted",
    unit: UnitName | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    special_tokens: bool = False,
    allow_nan: bool = False,
    stride: int | None = None,
    allow_missing_rationales: bool = False,
    output_dir: str | Path | None = None,
    checkpoint_dir: str | Path | None = None,
    show_progress: bool | None = None,
    **columns: Any,
) -> Comparison:
    """Explain every example by every method, judge all explanations, and return the comparison.

    Args:
        model: the model to explain, or what `expound.load` takes: a folder, a pipeline, (model, tokenizer).
        data: examples in any form that `expound.attribute` takes, or a spec of `expound.load_data`.
        methods: ids or explainers, or a mapping from names to them; ["all"]: every method that needs only the model;
            default: the fast ones among these.
        metrics: ids or metrics; default: the usual ones that apply to the model, those of rationales only if the data
            has rationales.
        target: the output to explain, see `expound.attribute`.
        unit: for generated text, the unit that methods score and metrics remove: `token`, `word`, `sentence`,
            `paragraph` or `source`; default: sources if every example has some, else sentences.
        batch_size: examples per batch; default: up to 32 of similar length. A stopped comparison may resume with
            another batch size, unless a metric compares the examples of a batch with each other.
        seed: random seed of the bootstrap and of every method that has one.
        special_tokens: keep the scores that methods give to special tokens instead of setting them to 0. Only metrics
            with a parameter `special_tokens` use them.
        allow_nan: continue if a method's scores are not finite; their metrics are NaN, and a warning counts them.
        stride: read texts longer than the model in windows that share this many tokens, see `expound.attribute`;
            metrics perturb the whole text and read it in windows again. Default: texts are cut.
        allow_missing_rationales: accept metrics of rationales for data without rationales; they are NaN.
        output_dir: save the comparison in this folder, see `Comparison.save`. A comparison that was stopped resumes.
        checkpoint_dir: keep finished batches in this folder, without tables and report, so that a comparison that was
            stopped resumes; default: `output_dir`.
        show_progress: show a progress bar on stderr; default: if stderr is a terminal or a notebook.
        columns: columns of a table, as `text_column="review"`; see `expound.train`.

    Raises:
        ExpoundError: unknown names, one name for two methods or metrics, metrics that need rationales for data without
            any, a label that the model does not know, or a folder with the results of another comparison.
    """
    explained = load(model)
    if stride is not None:
        explained = WindowedModel(explained, stride)
    rows, unit = _read_rows(explained, data, unit, columns)
    # Before any work, since this refuses labels that the model does not know.
    examples = add_label_names(explained, rows)
    explainers, judges = make_methods(explained, methods, seed, unit), make_metrics(explained, metrics, rows, unit)
    if not allow_missing_rationales and not has_rationales(rows):
        refuse_rationale_metrics([name for name, judge in judges.items() if judge.card.needs_rationale])
    config = _resolve_config(explained, rows, explainers, judges) | {"target": str(target), "seed": seed}
    config |= _name_dataset(data)
    if special_tokens:
        config["special_tokens"] = True
    if unit is not None:
        config["unit"] = unit
    # Consistency, for one, correlates examples within a batch, so its values depend on the batch size.
    if batch_size and any(judge.compares_examples for judge in judges.values()):
        config["batch_size"] = batch_size
    folder = None if output_dir is None else Path(output_dir)
    judged = None if folder is None else load_finished(folder, config)
    if judged is None:
        parts = ComparisonParts(folder if checkpoint_dir is None else Path(checkpoint_dir), config)
        options = {"special_tokens": special_tokens, "allow_nan": allow_nan}
        judged = _judge_parts(explained, rows, explainers, judges, target, parts, batch_size, show_progress, options)
    cards = [name_card(judge.card, column) for column, judge in judges.items()]
    attributions = Explanations(judged.attributions, config)
    _warn_of_non_finite(attributions, len(rows))
    comparison = Comparison(
        results=judged.results,
        curves=judged.curves,
        attributions=attributions,
        cards=[*cards, SECONDS, PEAK_MEMORY],
        examples=examples,
        config=config,
    )
    if folder is not None:
        comparison.save(folder)
        remove_parts(folder)
    return comparison


def _read_rows(
    model: ExplainedModel, data: Any, unit: UnitName | None, columns: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], UnitName | None]:
    """Return the examples as rows, with responses and the model's labels, and the unit of generated text."""
    for name in columns:
        check_choice("parameter of compare", name, [field.name for field in fields(ColumnOptions)])
    examples = read_examples(model, data, **columns)
    if isinstance(model, GeneratingModel):
        rows = model.respond(list(examples))
        if any(isinstance(part, Image.Image) for row in rows for part in _list_image_sources(row)):
            raise ExpoundError("a comparison is stored with its messages: give their images by path")
        if unit is None:
            unit = "source" if all(row.get("sources") for row in rows) else "sentence"
        return rows, unit
    if unit is not None:
        raise ExpoundError("unit= goes with generated text: give methods and metrics their units")
    rows = [example_to_row(example) for example in examples]
    return [example_to_row(row) for row in model.expand_examples(rows)], None


def _list_image_sources(row: Mapping[str, Any]) -> list[Any]:
    """Return the images in a row's messages as they were given."""
    sources = []
    for message in row.get("messages") or ():
        parts = message.get("content")
        sources += [part.get("image") for part in parts if isinstance(part, Mapping)] if isinstance(parts, list) else []
    return sources


def _judge_parts(
    model: ExplainedModel,
    rows: Sequence[dict[str, Any]],
    explainers: Mapping[str, Explainer],
    judges: Mapping[str, Metric],
    target: Any,
    parts: ComparisonParts,
    batch_size: int | None,
    show_progress: bool | None,
    options: Mapping[str, bool],
) -> JudgedExamples:
    """Judge every batch that `parts` lacks, and return all of them together."""
    chunks = list(_make_chunks(model, rows, batch_size))
    passes = float(PASSES_PER_METRIC * len(explainers) * len(judges))
    for method in explainers.values():
        passes += sum(method.passes(AVERAGE_LENGTH))

    def estimate() -> float:
        return passes * len(rows) * measure_pass(model, rows)

    with progress_bar("comparing", len(rows), show_progress, estimate) as advance:
        for indices in chunks:
            if indices not in parts:
                batch = model.encode([rows[index] for index in indices])
                targets = select_targets(target, indices, len(rows))
                parts[indices] = judge(model, batch, indices, explainers, judges, targets, **options)
            advance(len(indices))
    return parts.merge(chunks)


def _warn_of_non_finite(attributions: Explanations, count: int) -> None:
    broken = Counter[str]()
    for item in attributions:
        if not np.isfinite(item.content_scores).all():
            broken[item.method] += 1
    for name, examples in broken.items():
        logger.warning("%s: %d of %d examples have scores that are not finite", name, examples, count)


def _make_chunks(model: ExplainedModel, rows: Sequence[Any], batch_size: int | None) -> Iterator[list[int]]:
    """Yield the indices of examples that are judged together: of similar length, at most `batch_size`."""
    # A batch is the part that is lost when the process is killed, so it is smaller than memory would allow.
    # What happens inside layers is captured for one prompt with images at a time.
    has_images = any(source is not None for row in rows for source in _list_image_sources(row))
    size = 1 if has_images else batch_size or EXAMPLES_PER_PART
    for indices in make_batches(model, rows):
        for start in range(0, len(indices), size):
            yield indices[start : start + size]


def add_label_names(model: ExplainedModel, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows, of classification with the name of the label as `label_name`."""
    if not model.task.supports("labels"):
        return list(rows)
    named = [dict(row) for row in rows]
    for row in named:
        if isinstance(row.get("label"), int):
            row["label_name"] = model.labels[model.label_id(row["label"])]
    return named


def _resolve_config(
    model: ExplainedModel, rows: Sequence[dict[str, Any]], methods: dict[str, Explainer], metrics: dict[str, Metric]
) -> dict[str, Any]:
    """Return everything that the results depend on: a folder with another configuration is refused."""
    config = {
        "model": model.config._name_or_path,
        "model_type": model.config.model_type,
        "weights": digest_weights(model.model),
        "settings": model.settings,
        "labels": list(model.labels),
        "examples": len(rows),
        "data": _digest_rows(rows),
        "methods": {name: describe_explainer(method) for name, method in methods.items()},
        "metrics": {column: {"metric": metric.name, **metric.params} for column, metric in metrics.items()},
    }
    if model.dtype in (torch.bfloat16, torch.float16):
        config["dtype"] = str(model.dtype).removeprefix("torch.")
    return config


def _name_dataset(data: Any) -> dict[str, Any]:
    """Return the name and split of a dataset as an entry of the configuration; empty for other examples."""
    if not hasattr(data, "features"):
        return {}
    names = dict[str, str]()
    # Of datasets from the hub, the description is a text; its first line names them.
    if spec := data.info.description.partition("\n")[0]:
        names["spec"] = spec
    if data.split is not None:
        names["split"] = str(data.split)
    return {"dataset": names}


def _digest_rows(rows: Sequence[dict[str, Any]]) -> str:
    summary = blake2b(digest_size=8)
    for row in rows:
        for name, value in row.items():
            content = repr(value).encode("utf-8", "surrogatepass")
            # The repr of a picture is its memory address, so its pixels are used instead.
            if hasattr(value, "tobytes"):
                content = value.tobytes()
            summary.update(name.encode() + b"\0" + content + b"\0")
    return summary.hexdigest()
