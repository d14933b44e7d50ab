"""The registry of metrics by their id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from exegete.data.cards import MetricCard
from exegete.data.registry import Registry
from exegete.errors import unknown
from exegete.metrics.presets import PRESETS

if TYPE_CHECKING:
    import pandas as pd

    from exegete.metrics.base import Metric

METRICS: Registry[type[Metric]] = Registry(
    "metric",
    "exegete.metrics",
    {
        "comprehensiveness": "faithfulness.drops:Comprehensiveness",
        "sufficiency": "faithfulness.drops:Sufficiency",
        "difference": "faithfulness.drops:Difference",
        "aopc_comprehensiveness": "faithfulness.drops:AopcComprehensiveness",
        "aopc_sufficiency": "faithfulness.drops:AopcSufficiency",
        "aopc_difference": "faithfulness.drops:AopcDifference",
        "normalised_comprehensiveness": "faithfulness.normalised:NormalisedComprehensiveness",
        "normalised_sufficiency": "faithfulness.normalised:NormalisedSufficiency",
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
        "auc": "plausibility:Auc",
        "side_auc": "sides:SideAuc",
        "average_precision": "plausibility:AveragePrecision",
        "needle_rank": "plausibility:NeedleRank",
        "recall_at_k": "plausibility:RecallAtK",
        "token_f1": "plausibility:TokenF1",
        "important_tokens": "conciseness:ImportantTokens",
        "consistency": "consistency:Consistency",
    },
)
SECONDS = MetricCard(name="seconds", family="cost", higher_is_better=False, bounds=(0, None), label="Seconds")
PEAK_MEMORY = MetricCard(name="peak_memory", family="cost", higher_is_better=False, bounds=(0, None), label="MiB")


def metric(spec: str, **params: Any) -> Metric:
    """The metric of a spec: its id, or its id with parameters, as `log_odds?k=0.1&how=pad`; `params` come on top.

    Raises:
        ExegeteError: an unknown id or parameter, or a value out of its range.
    """
    made: Metric = METRICS.make(spec, **params)
    return made


def cards() -> dict[str, MetricCard]:
    """The card of every metric, and those of what an explanation costs."""
    return METRICS.cards(MetricCard) | {card.name: card for card in (SECONDS, PEAK_MEMORY)}


def metrics() -> pd.DataFrame:
    """Every metric: id, heading, family, which side is better, bounds, whether it needs rationales, paper."""
    import pandas as pd

    columns = ("name", "heading", "family", "higher_is_better", "bounds", "needs_rationale", "paper")
    return pd.DataFrame([{column: getattr(card, column) for column in columns} for card in cards().values()])


def preset(name: str) -> list[Metric]:
    """The metrics of a paper with its parameters, see `PRESETS`; ExegeteError for a name that is not there."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return [metric(each, **params) for each, params in PRESETS[name].items()]
