"""The registry of metrics by id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from expound.data.cards import MetricCard as MetricCard  # noqa: PLC0414  # a public name of the package
from expound.data.registry import Registry
from expound.errors import check_choice
from expound.metrics.presets import PRESETS

if TYPE_CHECKING:
    import pandas as pd

    from expound.metrics.base import Metric

METRICS: Registry[type[Metric]] = Registry(
    "metric",
    "expound.metrics",
    {
        "comprehensiveness": "faithfulness.drops:Comprehensiveness",
        "sufficiency": "faithfulness.drops:Sufficiency",
        "comprehensiveness_minus_sufficiency": "faithfulness.drops:ComprehensivenessMinusSufficiency",
        "aopc_comprehensiveness": "faithfulness.drops:AopcComprehensiveness",
        "aopc_sufficiency": "faithfulness.drops:AopcSufficiency",
        "aopc_comprehensiveness_minus_sufficiency": "faithfulness.drops:AopcComprehensivenessMinusSufficiency",
        "normalized_comprehensiveness": "faithfulness.normalized:NormalizedComprehensiveness",
        "normalized_sufficiency": "faithfulness.normalized:NormalizedSufficiency",
        "log_odds": "faithfulness.drops:LogOdds",
        "naopc_comprehensiveness": "faithfulness.naopc:NaopcComprehensiveness",
        "naopc_sufficiency": "faithfulness.naopc:NaopcSufficiency",
        "soft_comprehensiveness": "faithfulness.soft:SoftComprehensiveness",
        "soft_sufficiency": "faithfulness.soft:SoftSufficiency",
        "deletion_auc": "faithfulness.deletion_curves:DeletionAuc",
        "insertion_auc": "faithfulness.deletion_curves:InsertionAuc",
        "unit_comprehensiveness": "faithfulness.unit_aopc:UnitComprehensiveness",
        "unit_sufficiency": "faithfulness.unit_aopc:UnitSufficiency",
        "decision_flip": "faithfulness.decision_flip:DecisionFlip",
        "infidelity": "faithfulness.infidelity:Infidelity",
        "f_fidelity": "faithfulness.f_fidelity:FFidelity",
        "lds": "faithfulness.ablation:Lds",
        "topk_drop": "faithfulness.ablation:TopkDrop",
        "rationale_auc": "plausibility:RationaleAuc",
        "segment_auc": "segments:SegmentAuc",
        "average_precision": "plausibility:AveragePrecision",
        "auprc": "plausibility:Auprc",
        "needle_rank": "plausibility:NeedleRank",
        "recall_at_k": "plausibility:RecallAtK",
        "token_f1": "plausibility:TokenF1",
        "iou_f1": "plausibility:IouF1",
        "important_tokens": "conciseness:ImportantTokens",
        "consistency": "consistency:Consistency",
    },
)
SECONDS = MetricCard(
    name="seconds", family="cost", higher_is_better=False, bounds=(0, None), label="Seconds",
    equation=r"\text{seconds of a batch} / B",
    computed="Wall time of explaining a batch, divided by its number of examples; loading is not included.",
    read="Compare methods of one run on one machine.",
    use="Together with every measure of quality: how long does an explanation take?",
    avoid="Do not compare seconds of two machines, or of a machine that did other work meanwhile; compare ratios of "
    "one run.",
)  # fmt: skip
PEAK_MEMORY = MetricCard(
    name="peak_memory", family="cost", higher_is_better=False, bounds=(0, None), label="MiB",
    equation=r"\text{peak during the call} - \text{before}",
    computed="The most MiB that the process (on CUDA, the tensors on the device) held while a batch was explained, "
    "beyond what it held before.",
    read="Compare methods of one run on one machine. No value (–): the process reused memory that it had kept, or the "
    "system does not report it.",
    use="Long texts and large models: does a method fit?",
    avoid="Do not use it for tiny models on a CPU: their memory is smaller than the error of the measurement.",
)  # fmt: skip


def metric(spec: str, **params: Any) -> Metric:
    """Return the metric of a spec: its id, or its id with parameters, as `log_odds?fraction=0.1&perturbation=pad`.

    `params` override the spec's.

    Raises:
        ExpoundError: an unknown id or parameter, or a value out of its range.
    """
    made: Metric = METRICS.make(spec, **params)
    return made


def cards() -> dict[str, MetricCard]:
    """Return the card of every metric by id, including the costs of an explanation."""
    return METRICS.cards(MetricCard) | {card.name: card for card in (SECONDS, PEAK_MEMORY)}


def list_metrics() -> pd.DataFrame:
    """Return a table of all metrics: id, heading, family, better direction, bounds, need of rationales, paper."""
    # pandas takes a tenth of a second to import, which `expound --help` need not pay.
    import pandas as pd

    columns = ("name", "heading", "family", "higher_is_better", "bounds", "needs_rationale", "paper")
    rows = []
    for card in cards().values():
        rows.append({column: getattr(card, column) for column in columns})
    return pd.DataFrame(rows)


def preset(name: str) -> list[Metric]:
    """Return the metrics of a paper with its parameters, see `PRESETS`. Raises ExpoundError for an unknown name."""
    check_choice("preset", name, PRESETS)
    return [metric(metric_id, **params) for metric_id, params in PRESETS[name].items()]
