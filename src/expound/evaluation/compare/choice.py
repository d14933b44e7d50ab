"""Which methods and metrics a comparison has: those that the caller names, or the usual ones for model and data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any, TypeVar

from expound.data.cards import MethodCard
from expound.data.registry import parse_spec
from expound.data.spans import UnitName
from expound.errors import ExpoundError
from expound.explainers import EXPLAINERS, Explainer
from expound.explainers.base import resolve_unit
from expound.explainers.registry import add_seed
from expound.metrics import Metric, metric
from expound.metrics.registry import PEAK_MEMORY, SECONDS
from expound.models import ExplainedModel

T = TypeVar("T")

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
USUAL_FOR_BLACK_BOXES = ("occlusion", "lime", "kernel_shap", "random")
USUAL_FOR_GENERATION = (
    "rationale_auc",
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
    "rationale_auc",
    "average_precision",
    "recall_at_k",
    "important_tokens",
)

OTHER_REMOVAL = "aopc_comprehensiveness?perturbation=mask"
"""The first usual metric by replacement instead of deletion: what is best can depend on the way of removal."""


def list_native_methods(*, black_box: bool = False) -> list[str]:
    """Return the ids of all methods that need only the model: neither training nor a prompt.

    `black_box`: only those that need its answers alone.
    """
    names = []
    for name, card in EXPLAINERS.cards(MethodCard).items():
        is_native = not card.learned and card.family != "prompted"
        if is_native and (not black_box or EXPLAINERS[name].removes_input() or card.family == "control"):
            names.append(name)
    return names


def make_methods(
    model: ExplainedModel,
    methods: Sequence[str | Explainer] | Mapping[str, str | Explainer] | None,
    seed: int,
    unit: UnitName | None,
) -> dict[str, Explainer]:
    """Return explainers by the name that the table shows; `seed` is for specs without a seed."""
    if methods is not None and not methods:
        raise ExpoundError("there is nothing to compare: no method was given")
    black_box = bool(model.black_box_reason)
    if methods is None:
        methods = USUAL_FOR_BLACK_BOXES if black_box else USUAL_METHODS
    elif not isinstance(methods, Mapping) and list(methods) == ["all"]:
        methods = list_native_methods(black_box=black_box)
    if not isinstance(methods, Mapping):
        named = []
        for method in methods:
            name = method if isinstance(method, str) else method.name
            named.append((name, method))
        methods = _by_unique_name("methods", named)
    made = {}
    for name, method in methods.items():
        made[name] = resolve_unit(model, add_seed(method, seed), unit, {})[0]
    return made


def make_metrics(
    model: ExplainedModel,
    metrics: Sequence[str | Metric] | None,
    rows: Sequence[dict[str, Any]],
    unit: UnitName | None,
) -> dict[str, Metric]:
    """Return metrics by column: by their id, or by their whole spec if several share an id."""
    if metrics is None:
        are_marked, usual = has_rationales(rows), dict[str, Metric]()
        for usual_spec in USUAL_METRICS if unit is None else USUAL_FOR_GENERATION:
            candidate = _make_metric(model, usual_spec, unit)
            if candidate.supports(model) and (are_marked or not candidate.card.needs_rationale):
                usual[candidate.name] = candidate
        if unit is None and model.modality == "text" and not model.black_box_reason:
            usual[OTHER_REMOVAL] = metric(OTHER_REMOVAL)
        return usual
    made, count = [], Counter[str]()
    for spec in metrics:
        # Costs are always measured.
        if spec in (SECONDS.name, PEAK_MEMORY.name):
            continue
        part = spec if isinstance(spec, Metric) else _make_metric(model, spec, unit)
        made.append((spec, part))
        count[part.name] += 1
    named = []
    for spec, part in made:
        name = part.name
        if isinstance(spec, str) and count[name] > 1:
            name = spec
        named.append((name, part))
    return _by_unique_name("metrics", named)


def has_rationales(rows: Sequence[dict[str, Any]]) -> bool:
    """Return whether any row has a human rationale."""
    names = ("rationale", "rationale_pair", "evidence")
    return any(row.get(name) is not None for row, name in product(rows, names))


def refuse_rationale_metrics(metrics: Sequence[str]) -> None:
    """Raise ExpoundError if there are any of these metrics, which need rationales."""
    if metrics:
        need, them = ("needs", "it") if len(metrics) == 1 else ("need", "them")
        raise ExpoundError(
            f"{', '.join(metrics)} {need} rationales, and the data has none: name their column "
            f"(--rationale-column, rationale_column=), or leave {them} out"
        )


def _make_metric(model: ExplainedModel, spec: str, unit: UnitName | None) -> Metric:
    """Return the metric of a spec; for generated text it removes these units, unless the spec says otherwise."""
    defaults: dict[str, Any] = {}
    if unit is not None:
        defaults = {"unit": unit, "perturbation": "remove", "absolute": False}
    elif model.black_box_reason:
        defaults = {"perturbation": "remove"}
    unset = metric(spec).params.keys() - parse_spec(spec)[1].keys()
    return metric(spec, **{key: defaults[key] for key in defaults.keys() & unset})


def _by_unique_name(what: str, named: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Return parts by name. Raises ExpoundError if different ones share a name, which the table could not show."""
    parts = dict[str, T]()
    for name, part in named:
        if parts.setdefault(name, part) != part:
            raise ExpoundError(f"two {what} are called {name}: give them by id and parameters, as 'ID?NAME=VALUE'")
    return parts
