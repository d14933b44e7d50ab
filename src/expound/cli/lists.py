"""`expound methods`, `metrics`, `objectives` and `datasets`: lists of all available parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from expound.cli.shared.console import console

if TYPE_CHECKING:
    import pandas as pd

    from expound.data.registry import Registry


def methods() -> None:
    """List the attribution methods: id, family, cost, signed, differentiable, learned, paper.

    Cost is in forward (F) and backward (B) passes per example. Example: expound methods
    """
    import expound
    from expound.data.cards import MethodCard
    from expound.explainers.registry import EXPLAINERS

    # The titles are nearly the ids, and a terminal of 80 columns has no room for both.
    columns = ["name", "family", "cost", "signed", "learned", "differentiable", "paper"]
    _show(expound.list_methods()[columns], EXPLAINERS, MethodCard)


def metrics() -> None:
    """List the metrics: id, family, which direction is better, whether rationales are needed, paper.

    Example: expound metrics
    """
    from expound import metrics
    from expound.data.cards import MetricCard

    ranges = [card.range for card in metrics.cards().values()]
    _show(metrics.list_metrics().assign(bounds=ranges), metrics.METRICS, MetricCard)


def objectives() -> None:
    """List the objectives of `expound train custom`: id, parameters with their defaults, description.

    Example: expound objectives
    """
    import expound

    _show(expound.list_objectives()[["name", "parameters", "summary"]])


def datasets() -> None:
    """List the datasets and formats of --data.

    Example: expound datasets
    """
    from expound.data import READERS, DataCard, list_datasets

    _show(list_datasets(), READERS, DataCard)


def _show(frame: pd.DataFrame, registry: Registry[Any] | None = None, kind: type = object) -> None:
    """Print the table, and below it the parts of installed packages that cannot be loaded."""
    from expound.reports.table import Table

    out, rows = console(), []
    for values in frame.itertuples(index=False):
        rows.append([{True: "yes", False: "no"}.get(value, str(value)) for value in values])
    out.print(Table(list(map(str, frame.columns)), rows, texts=len(frame.columns)))
    if registry is not None and (broken := registry.find_broken(kind)):
        out.print(f"Cannot be loaded: {', '.join(broken)}; `expound doctor` shows why.", markup=False)
