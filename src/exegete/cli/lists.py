"""`exegete methods`, `metrics`, `objectives` and `datasets`: lists of all available parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from exegete.cli.shared.console import console

GAP = 3
"""Spaces between two columns."""

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
    """Print as many columns of the table as fit without breaking a word, and name the others below it.

    Parts of installed packages that cannot be loaded are also named below it.
    """
    out = console()
    texts, words = dict[str, list[str]](), dict[str, int]()
    for name in map(str, frame.columns):
        texts[name] = [{True: "yes", False: "no"}.get(value, str(value)) for value in frame[name]]
        # A column can be as narrow as its longest word.
        words[name] = max(map(len, " ".join([name, *texts[name]]).split()))
    shown, room = list(texts), out.width + GAP - sum(words.values()) - GAP * len(words)
    while len(shown) > 2 and room < 0:
        room += GAP + words[shown.pop()]
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in shown:
        extra = min(room, max(map(len, [name, *texts[name]])) - words[name])
        room -= extra
        table.add_column(name, width=words[name] + extra, overflow="fold")
    for row in zip(*[texts[name] for name in shown], strict=True):
        table.add_row(*map(Text, row))
    out.print(table)
    if len(shown) < len(texts):
        out.print(f"Too narrow for {', '.join(list(texts)[len(shown) :])}: widen the terminal.", markup=False)
    if registry is not None and (broken := registry.find_broken(kind)):
        out.print(f"Cannot be loaded: {', '.join(broken)}; `exegete doctor` shows why.", markup=False)
