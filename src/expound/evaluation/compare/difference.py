"""Two comparisons of the same examples by the same methods: what changed from one model to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pandas as pd

from expound.data.readers.exchanges import EXCHANGE
from expound.errors import ExpoundError
from expound.reports.tables.leaderboard import CONTROL, Counts, Floats, bootstrap_intervals, draw_resamples
from expound.reports.tables.significance import adjust_p_values, metric_summands, paired_test

RESAMPLES = 2000


class JudgedResults(Protocol):
    """The part of a `Comparison` that a difference needs."""

    @property
    def results(self) -> pd.DataFrame:
        """One row per example and method, one column per metric."""

    @property
    def examples(self) -> Sequence[dict[str, Any]]:
        """The rows that were compared."""

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration."""


def compute_difference(new: JudgedResults, old: JudgedResults) -> pd.DataFrame:
    """Return the change of every metric for every method that both have, paired by example, without costs.

    Columns: method, metric, before, after (means over the `examples` for which both are defined), difference, low,
    high (its 95 % bootstrap interval), p (two-sided paired bootstrap, Holm over all rows, at least 2^(1-n) for n
    examples; NaN for `random`, which is a control and not tested), examples.

    Raises:
        ExpoundError: other examples or targets, or no method and metric with the same settings in both.
    """
    if [_question_key(row) for row in new.examples] != [_question_key(row) for row in old.examples]:
        raise ExpoundError(
            "the two comparisons are of different examples: give both the same --data, --split and --limit"
        )
    if new.config["target"] != old.config["target"]:
        raise ExpoundError(f"one comparison explains {new.config['target']}, the other {old.config['target']}")
    metrics = [name for name in _find_common(new, old, "metrics") if name in new.results and name in old.results]
    methods = _find_common(new, old, "methods")
    if not methods or not metrics:
        raise ExpoundError("the two comparisons have no method and metric with the same settings in common")
    # Shared resamples make the intervals of all rows comparable.
    resamples = draw_resamples(len(new.examples), RESAMPLES, new.config.get("seed", 0))
    rows = []
    for method in methods:
        for metric in metrics:
            after, before = _metric_values(new, method, metric), _metric_values(old, method, metric)
            rows.append({"method": method, "metric": metric} | compute_change(after, before, resamples))
    frame = pd.DataFrame(rows)
    # A test of the control would cost the tests of the methods some of their power.
    frame.loc[frame["method"].str.partition("?")[0] == CONTROL, "p"] = np.nan
    return frame.assign(p=adjust_p_values(frame["p"].tolist(), "holm"))


def _question_key(row: Mapping[str, Any]) -> list[Any]:
    """Return the question of a row without its label and response, which differ between models."""
    key = [row.get(name) for name in ("text", "text_pair", *EXCHANGE) if name != "response"]
    if row.get("image") is not None:
        key.append(row["image"].tobytes())
    return key


def _find_common(new: JudgedResults, old: JudgedResults, what: str) -> list[str]:
    """Return the names of methods or metrics with the same settings in both."""
    common = []
    for name, params in new.config[what].items():
        other = old.config[what].get(name)
        # Learned methods are trained for one model, so the digests of their weights differ.
        if other is not None and {**params, "digest": None} == {**other, "digest": None}:
            common.append(name)
    return common


def compute_change(after: Floats, before: Floats, resamples: Counts) -> dict[str, Any]:
    """Return the change between two runs' values [N] of the same examples: the columns of `compute_difference`."""
    defined = np.isfinite(after) & np.isfinite(before)
    count, change = int(defined.sum()), np.where(defined, after - before, np.nan)
    if not count:
        return dict.fromkeys(("before", "after", "difference", "low", "high", "p"), np.nan) | {"examples": 0}
    low, high = bootstrap_intervals(change[None, None], resamples)
    one, other = metric_summands(np.where(defined, after, np.nan)), metric_summands(np.where(defined, before, np.nan))
    # The bootstrap of few pairs is too sure: a sign test of n pairs has no p-value below 2^(1-n).
    p = max(paired_test([one], [other], "bootstrap"), 2.0 ** (1 - count))
    row = {"before": before[defined].mean(), "after": after[defined].mean(), "difference": change[defined].mean()}
    return row | {"low": float(low[0, 0]), "high": float(high[0, 0]), "p": p, "examples": count}


def _metric_values(side: JudgedResults, method: str, metric: str) -> Floats:
    """Return a metric's value for each example, in the order of the examples."""
    part = side.results[side.results["method"] == method].set_index("example")[metric]
    return part.reindex(range(len(side.examples))).to_numpy(dtype=np.float64)
