"""Two comparisons of the same examples by the same methods: what changed from one model to another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from exegete.data.readers.exchanges import EXCHANGE
from exegete.errors import ExegeteError
from exegete.reports.tables.leaderboard import LEVEL, Floats, bootstrap_intervals, draw_resamples
from exegete.reports.tables.significance import adjust_p_values, metric_summands, paired_test

if TYPE_CHECKING:
    from exegete.studies.compare.comparison import Comparison

RESAMPLES = 2000


def compute_difference(new: Comparison, old: Comparison) -> pd.DataFrame:
    """The change of every metric for every method that both have, paired by example; costs are left out.

    method, metric, before, after (means over the examples for which both are defined, `examples` of them), difference,
    low, high (its 95 % bootstrap interval), p (two-sided, paired bootstrap, Holm over all rows). No test of n pairs is
    surer than 2^(1-n).

    Raises:
        ExegeteError: other examples or targets, or no method and metric with the same settings in both.
    """
    if list(map(_question_key, new.examples)) != list(map(_question_key, old.examples)):
        raise ExegeteError(
            "the two comparisons are of different examples: give both the same --data, --split and --limit"
        )
    if new.config["target"] != old.config["target"]:
        raise ExegeteError(f"one comparison explains {new.config['target']}, the other {old.config['target']}")
    metrics = [name for name in _find_common(new, old, "metrics") if name in new.results and name in old.results]
    methods = _find_common(new, old, "methods")
    if not methods or not metrics:
        raise ExegeteError("the two comparisons have no method and metric with the same settings in common")
    sample_examples = draw_resamples(len(new.examples), RESAMPLES, new.config.get("seed", 0))
    rows = [_compute_change(new, old, method, metric, sample_examples) for method in methods for metric in metrics]
    frame = pd.DataFrame(rows)
    return frame.assign(p=adjust_p_values(frame["p"].tolist(), "holm"))


def summarize_difference(frame: pd.DataFrame) -> str:
    """How many of the differences are told from chance, in one sentence."""
    sure = int((frame["p"] <= LEVEL).sum())
    return (
        f"{sure} of {len(frame)} differences are told from chance (paired bootstrap over the same examples, Holm, 5 %)."
    )


def _question_key(row: Mapping[str, Any]) -> list[Any]:
    """The question of a row, whatever a model calls its label or answers."""
    image = row.get("image")
    names = ("text", "text_pair", *(name for name in EXCHANGE if name != "response"))
    return [None if image is None else image.tobytes(), *(row.get(name) for name in names)]


def _find_common(new: Comparison, old: Comparison, what: str) -> list[str]:
    """Names of methods or metrics with the same settings in both; of a learned method the weights may differ."""
    found = [{name: dict(made) for name, made in each.config[what].items()} for each in (new, old)]
    for each in found:
        for made in each.values():
            made.pop("digest", None)
    return [name for name, made in found[0].items() if found[1].get(name) == made]


def _compute_change(new: Comparison, old: Comparison, method: str, metric: str, sample_examples: Any) -> dict[str, Any]:
    after, before = (_metric_values(each, method, metric) for each in (new, old))
    defined = np.isfinite(after) & np.isfinite(before)
    count, change = int(defined.sum()), np.where(defined, after - before, np.nan)
    row: dict[str, Any] = {"method": method, "metric": metric}
    if not count:
        return row | dict.fromkeys(("before", "after", "difference", "low", "high", "p"), np.nan) | {"examples": 0}
    low, high = bootstrap_intervals(change[None, None], sample_examples)
    runs = [metric_summands(np.where(defined, each, np.nan)) for each in (after, before)]
    p = max(paired_test(runs[:1], runs[1:], "bootstrap"), 2.0 ** (1 - count))
    row |= {"before": before[defined].mean(), "after": after[defined].mean(), "difference": change[defined].mean()}
    return row | {"low": float(low[0, 0]), "high": float(high[0, 0]), "p": p, "examples": count}


def _metric_values(each: Comparison, method: str, metric: str) -> Floats:
    """A metric's value for each example, in the examples' order."""
    part = each.results[each.results["method"] == method].set_index("example")[metric]
    return part.reindex(range(len(each.examples))).to_numpy(dtype=np.float64)
