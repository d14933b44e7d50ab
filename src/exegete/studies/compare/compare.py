"""Which explanation of this model can be trusted on this data?"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from exegete.data.cards import MethodCard
from exegete.data.granularity import Granularity
from exegete.data.specs import parse_spec
from exegete.errors import ExegeteError
from exegete.explainers import EXPLAINERS, Explainer
from exegete.explainers.attribute_examples import (
    AVERAGE_LENGTH,
    as_sequence,
    make_batches,
    measure_pass,
    select_targets,
)
from exegete.explainers.base import describe_explainer
from exegete.explainers.generated import resolve_unit
from exegete.explainers.registry import make_seeded, seed_params
from exegete.metrics import Metric, metric
from exegete.metrics.registry import PEAK_MEMORY, SECONDS
from exegete.models import ExplainedModel
from exegete.models.encoding.encode import example_to_row
from exegete.models.encoding.labels import renumber_labels
from exegete.models.generation.model import GeneratingModel
from exegete.models.loading.digest import digest_weights
from exegete.models.windowed import WindowedModel
from exegete.reports.attributions import Attributions
from exegete.reports.progress import progress_bar
from exegete.studies.compare.comparison import Comparison
from exegete.studies.compare.judge import judge
from exegete.studies.compare.shards import Parts, finished, remove_parts

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)
T = TypeVar("T")

EXAMPLES_PER_PART = 32
PASSES_OF_A_METRIC = 3
"""Of an example by a method, about: most metrics look at a few shares of it removed."""
USUAL_METHODS = (
    "decompx_linear",
    "integrated_gradients",
    "occlusion",
    "random",
    "saliency",
    "input_x_gradient",
    "attention_last",
    "attention_all",
    "scaled_attention",
    "attention_rollout",
    "globenc",
    "alti",
)
USUAL_FOR_GENERATION = (
    "auc",
    "recall_at_k",
    "needle_rank",
    "topk_drop?k=1",
    "lds",
    "unit_comprehensiveness",
    "unit_sufficiency",
)
USUAL_METRICS = (
    "aopc_comprehensiveness",
    "aopc_sufficiency",
    "log_odds",
    "auc",
    "average_precision",
    "recall_at_k",
    "important_tokens",
)


def compare(
    model: ExplainedModel,
    data: Dataset | Sequence[Any],
    methods: Sequence[str | Explainer] | Mapping[str, str | Explainer] | None = None,
    metrics: Sequence[str | Metric] | None = None,
    *,
    target: Any = "predicted",
    unit: Granularity | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    special_tokens: bool = False,
    allow_nan: bool = False,
    stride: int | None = None,
    unmarked: bool = False,
    output_dir: str | Path | None = None,
    show_progress: bool | None = None,
) -> Comparison:
    """Explains every example by every method and judges all of it.

    Args:
        model: what is explained.
        data: a dataset in canonical form, or texts.
        methods: ids or explainers, by name or not; ["all"]: every one that needs nothing but the model; default: the
            quick among them.
        metrics: ids or metrics; default: the usual ones that apply, those on rationales where the data has some.
        target: what is explained, see `exegete.attribute`.
        unit: of generated text, what methods score (remove, where they do) and metrics remove and compare: `token`,
            `word`, `sentence`, `paragraph` or `source`; default: sources where every example has some, else sentences.
        batch_size: examples judged together; default: up to 32 of similar length. What was stopped may go on with
            another one, unless a metric compares the examples of a batch with each other.
        seed: of the bootstrap and of every method that has a seed.
        special_tokens: whether special tokens keep the scores that methods give them; else these are 0. Only metrics
            with `specials` look at them.
        allow_nan: go on where a method's scores are no finite numbers: these have no figures, and are counted.
        stride: texts longer than the model takes are read in windows that share so many tokens, see `attribute`;
            metrics ask about the whole text, in windows of what they leave of it. Default: texts are cut.
        unmarked: whether metrics of rationales may be asked for where the data has none, and are undefined.
        output_dir: where results go. A comparison that was stopped there goes on where it stopped.
        show_progress: a progress bar on stderr; default: where a person waits longer than a second.

    Raises:
        ExegeteError: unknown names, one name for two, metrics that need rationales where the data has none, a label
            that the model does not know, or results of something else in `output_dir`.
    """
    given = as_sequence(data)
    model = model if stride is None else WindowedModel(model, stride)
    if isinstance(model, GeneratingModel):
        rows = model.respond(list(given))
        unit = unit or ("source" if all(row.get("sources") for row in rows) else "sentence")
    else:
        rows = (
            renumber_labels(model, data) if hasattr(data, "features") else [dict(example_to_row(row)) for row in given]
        )
        rows = [dict(example_to_row(row)) for row in model.expand_examples(rows)]
        _check_no_unit(unit)
    examples = add_label_names(model, rows)
    chosen, judges = _make_methods(methods, seed, unit), _make_metrics(model, metrics, rows, unit)
    if not unmarked and not _has_rationales(rows):
        _refuse_rationale_metrics([name for name, judge in judges.items() if judge.card.needs_rationale])
    config = _resolve_config(model, rows, chosen, judges) | {"target": str(target), "seed": seed}
    config |= ({"special_tokens": True} if special_tokens else {}) | ({} if unit is None else {"unit": unit})
    if batch_size and any(judge.compares_examples for judge in judges.values()):
        config["batch_size"] = batch_size
    folder = None if output_dir is None else Path(output_dir)
    whole = None if folder is None else finished(folder, config)
    parts = None
    if whole is None:
        parts, shards = Parts(folder, config), list(_make_chunks(model, rows, batch_size))
        passes = sum(sum(method.passes(AVERAGE_LENGTH)) for method in chosen.values())
        passes += PASSES_OF_A_METRIC * len(chosen) * len(judges)
        with progress_bar(
            "comparing", len(rows), show_progress, lambda: passes * len(rows) * measure_pass(model, rows)
        ) as done:
            for indices in shards:
                if indices not in parts:
                    batch = model.encode([rows[index] for index in indices])
                    wanted = select_targets(target, indices, len(rows))
                    options = {"special_tokens": special_tokens, "allow_nan": allow_nan}
                    parts[indices] = judge(model, batch, indices, chosen, judges, wanted, **options)
                done(len(indices))
        whole = parts.whole(shards)
    cards = [*(replace(judge.card, name=column) for column, judge in judges.items()), SECONDS, PEAK_MEMORY]
    attributions = Attributions(whole.attributions, config)
    broken = Counter(item.method for item in attributions if not np.isfinite(item.scores).all())
    for name, count in broken.items():
        logger.warning("%s: %d of %d examples have scores that are no finite numbers", name, count, len(rows))
    comparison = Comparison(whole.results, whole.curves, attributions, cards, examples, config)
    if folder is not None:
        comparison.save(folder)
        remove_parts(folder)
    return comparison


def _make_chunks(model: ExplainedModel, rows: Sequence[Any], batch_size: int | None) -> Iterator[list[int]]:
    """Indices of examples that are explained together: of similar length, and few enough to lose little."""
    size = batch_size or EXAMPLES_PER_PART
    for indices in make_batches(model, rows):
        for start in range(0, len(indices), size):
            yield indices[start : start + size]


def list_native_methods() -> list[str]:
    """Every method that needs nothing but the model."""
    return [
        name for name, card in EXPLAINERS.cards(MethodCard).items() if not card.learned and card.family != "prompted"
    ]


def _make_methods(
    methods: Sequence[str | Explainer] | Mapping[str, str | Explainer] | None, seed: int, unit: Granularity | None
) -> dict[str, Explainer]:
    """Explainers by the name that the table shows; those with a seed get this one unless they name their own."""
    if methods is not None and not methods:
        raise ExegeteError("there is nothing to compare: no method was given")
    if isinstance(methods, Mapping):
        return {name: _make_explainer(each, seed, unit) for name, each in methods.items()}
    if methods is None:
        methods = USUAL_METHODS
    elif list(methods) == ["all"]:
        methods = list_native_methods()
    named = _by_unique_name("methods", [(each if isinstance(each, str) else each.name, each) for each in methods])
    return {name: _make_explainer(each, seed, unit) for name, each in named.items()}


def _make_explainer(method: str | Explainer, seed: int, unit: Granularity | None) -> Explainer:
    """The explainer with this seed; of generated text, one that scores units of this size."""
    return make_seeded(method, seed) if unit is None else resolve_unit(method, unit, seed_params(method, seed))[0]


def _make_metrics(
    model: ExplainedModel,
    metrics: Sequence[str | Metric] | None,
    rows: Sequence[dict[str, Any]],
    unit: Granularity | None,
) -> dict[str, Metric]:
    """Metrics by column: their id, or all they were called where two share an id."""
    if metrics is None:
        marked = _has_rationales(rows)
        usual = [_make_metric(name, unit) for name in (USUAL_METRICS if unit is None else USUAL_FOR_GENERATION)]
        return {m.name: m for m in usual if m.supports(model) and (marked or not m.card.needs_rationale)}
    judged = [each for each in metrics if each not in (SECONDS.name, PEAK_MEMORY.name)]  # always measured
    made = [(each, each if isinstance(each, Metric) else _make_metric(each, unit)) for each in judged]
    count = Counter(each.name for _, each in made)
    return _by_unique_name(
        "metrics", [(spec if isinstance(spec, str) and count[m.name] > 1 else m.name, m) for spec, m in made]
    )


def _has_rationales(rows: Sequence[dict[str, Any]]) -> bool:
    """Whether people marked evidence, or it is known, in any row."""
    names = ("rationale", "rationale_pair", "evidence")
    return any(row.get(name) is not None for row in rows for name in names)


def _refuse_rationale_metrics(metrics: Sequence[str]) -> None:
    """Raises ExegeteError where there are any of these metrics, which need rationales."""
    if metrics:
        one = len(metrics) == 1
        raise ExegeteError(
            f"{', '.join(metrics)} need{'s' if one else ''} rationales, and the data has none: name their column "
            f"(--rationale-column, rationale_column=), or leave {'it' if one else 'them'} out"
        )


def _make_metric(spec: str, unit: Granularity | None) -> Metric:
    """The metric of a spec; of generated text on units of this size, which are removed, unless the spec says it."""
    if unit is None:
        return metric(spec)
    _, given = parse_spec(spec)
    usual = {"level": unit, "how": "remove", "absolute": False}
    valid = metric(spec).params
    return metric(spec, **{key: value for key, value in usual.items() if key in valid and key not in given})


def _check_no_unit(unit: Granularity | None) -> None:
    if unit is not None:
        raise ExegeteError("unit= goes with generated text: give methods a granularity and metrics a level")


def _by_unique_name(what: str, given: Iterable[tuple[str, T]]) -> dict[str, T]:
    """By name. Raises ExegeteError where different ones have the same, since the table could show only one."""
    found = dict[str, T]()
    for name, each in given:
        if found.setdefault(name, each) != each:
            raise ExegeteError(f"two {what} are called {name}: give them by id and parameters, as 'ID?NAME=VALUE'")
    return found


def add_label_names(model: ExplainedModel, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with the name of their label, where they have a class."""
    if model.task.name not in ("classification", "multi_label"):
        return list(rows)
    return [
        row | {"label_name": model.labels[model.label_id(row["label"])]} if isinstance(row.get("label"), int) else row
        for row in rows
    ]


def _resolve_config(
    model: ExplainedModel, rows: Sequence[dict[str, Any]], methods: dict[str, Explainer], metrics: dict[str, Metric]
) -> dict[str, Any]:
    """All that the results depend on: the same configuration gives the same results, another one never these."""
    return {
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


def _digest_rows(rows: Sequence[dict[str, Any]]) -> str:
    """A digest of the rows, pictures included."""
    summary = blake2b(digest_size=8)
    for row in rows:
        for name, value in row.items():
            content = value.tobytes() if hasattr(value, "tobytes") else repr(value).encode("utf-8", "surrogatepass")
            summary.update(name.encode() + b"\0" + content + b"\0")
    return summary.hexdigest()
