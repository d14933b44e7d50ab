"""`exegete methods`, `metrics`, `objectives` and `datasets`: lists of all available parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from exegete.cli.shared.console import console

if TYPE_CHECKING:
    import pandas as pd

    from exegete.data.registry import Registry


def methods() -> None:
    """List the attribution methods: id, family, cost, signed, differentiable, learned, paper.

    Cost is in forward (F) and backward (B) passes per example. Example: exegete methods
    """
    import exegete
    from exegete.data.cards import MethodCard
    from exegete.explainers.registry import EXPLAINERS

    # The titles are nearly the ids, and a terminal of 80 columns has no room for both.
    columns = ["name", "family", "cost", "signed", "learned", "differentiable", "paper"]
    _show(exegete.list_methods()[columns], EXPLAINERS, MethodCard)


def metrics() -> None:
    """List the metrics: id, family, which direction is better, whether rationales are needed, paper.

    Example: exegete metrics
    """
    from exegete import metrics
    from exegete.data.cards import MetricCard

    ranges = [card.range for card in metrics.cards().values()]
    _show(metrics.list_metrics().assign(bounds=ranges), metrics.METRICS, MetricCard)


def objectives() -> None:
    """List the objectives of `exegete train custom`: id, parameters with their defaults, description.

    Example: exegete objectives
    """
    import exegete

    _show(exegete.list_objectives()[["name", "parameters", "summary"]])


def datasets() -> None:
    """List the datasets and formats of --data.

    Example: exegete datasets
    """
    from exegete.data import READERS, DataCard, list_datasets

    _show(list_datasets(), READERS, DataCard)


def _show(frame: pd.DataFrame, registry: Registry[Any] | None = None, kind: type = object) -> None:
    """Print the table, and below it the parts of installed packages that cannot be loaded."""
    from exegete.reports.table import Table

    out, rows = console(), []
    for values in frame.itertuples(index=False):
        rows.append([{True: "yes", False: "no"}.get(value, str(value)) for value in values])
    out.print(Table(list(map(str, frame.columns)), rows, texts=len(frame.columns)))
    if registry is not None and (broken := registry.find_broken(kind)):
        out.print(f"Cannot be loaded: {', '.join(broken)}; `exegete doctor` shows why.", markup=False)
