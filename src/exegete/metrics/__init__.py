"""Metrics that judge attributions. A new metric is a file with its class and a line in `METRICS`."""

from typing import Any

import pandas as pd

from exegete.data.cards import MetricCard
from exegete.data.specs import parameters, split
from exegete.errors import unknown
from exegete.metrics.base import Metric
from exegete.metrics.conciseness import ImportantTokens
from exegete.metrics.consistency import Consistency
from exegete.metrics.cost import PEAK_MEMORY, SECONDS, Measurement, measured
from exegete.metrics.faithfulness import (
    AopcComprehensiveness,
    AopcDifference,
    AopcSufficiency,
    Comprehensiveness,
    Difference,
    LogOdds,
    Sufficiency,
)
from exegete.metrics.gain import average_relative_gain
from exegete.metrics.normalised import NormalisedComprehensiveness, NormalisedSufficiency
from exegete.metrics.plausibility import Auc, AveragePrecision, RecallAtK, TokenF1
from exegete.metrics.presets import PRESETS
from exegete.metrics.ranking import top_fraction
from exegete.metrics.sides import SideAuc

METRICS: dict[str, type[Metric]] = {
    kind.card.name: kind
    for kind in (
        Comprehensiveness,
        Sufficiency,
        Difference,
        AopcComprehensiveness,
        AopcSufficiency,
        AopcDifference,
        NormalisedComprehensiveness,
        NormalisedSufficiency,
        LogOdds,
        Auc,
        SideAuc,
        AveragePrecision,
        RecallAtK,
        TokenF1,
        ImportantTokens,
        Consistency,
    )
}

CARDS: dict[str, MetricCard] = {name: kind.card for name, kind in METRICS.items()} | {
    card.name: card for card in (SECONDS, PEAK_MEMORY)
}


def metric(spec: str, **params: Any) -> Metric:
    """The metric of a spec: its id, or its id with parameters, as `log_odds?k=0.1&how=pad`; `params` come on top.

    Raises:
        ExegeteError: an unknown id or parameter, or a value out of its range.
    """
    name, given = split(spec)
    if name not in METRICS:
        raise unknown("metric", name, METRICS)
    return METRICS[name](**parameters(name, METRICS[name], given | params))


def metrics() -> pd.DataFrame:
    """Every metric: id, family, which side is better, bounds, whether it needs rationales, paper."""
    columns = ("name", "family", "higher_is_better", "bounds", "needs_rationale", "paper")
    return pd.DataFrame([{column: getattr(card, column) for column in columns} for card in CARDS.values()])


def preset(name: str) -> list[Metric]:
    """The metrics of a paper with its parameters, see `PRESETS`."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return [metric(each, **params) for each, params in PRESETS[name].items()]


__all__ = [
    "CARDS",
    "METRICS",
    "PRESETS",
    "Measurement",
    "Metric",
    "average_relative_gain",
    "measured",
    "metric",
    "metrics",
    "preset",
    "top_fraction",
]
