"""`exegete methods`, `metrics`, `objectives` and `datasets`: what there is."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from exegete.cli.console import console

if TYPE_CHECKING:
    import pandas as pd


def methods() -> None:
    """List the attribution methods: id, family, signed, differentiable, learned, cost, paper.

    Cost is in forward (F) and backward (B) passes an example. Example: exegete methods
    """
    import exegete

    _show(exegete.methods())


def metrics() -> None:
    """List the metrics: id, family, which side is better, whether it needs rationales, paper.

    Example: exegete metrics
    """
    from exegete import metrics

    _show(metrics.metrics())


def objectives() -> None:
    """List the objectives that `exegete train custom` puts together: id, parameters as they are, the term.

    Example: exegete objectives
    """
    import pandas as pd

    from exegete.objectives import OBJECTIVES

    kinds = {name: (kind().params, kind.__doc__ or "") for name, kind in OBJECTIVES.items()}
    _show(
        pd.DataFrame(
            {"name": name, "parameters": ", ".join(map(_given, params.items())), "term": text.split("\n\n")[0]}
            for name, (params, text) in kinds.items()
        )
    )


def _given(parameter: tuple[str, Any]) -> str:
    name, value = parameter
    return f"{name}={value['method'] if isinstance(value, dict) else value}"


def datasets() -> None:
    """List the datasets and formats that --data understands.

    Example: exegete datasets
    """
    import pandas as pd

    from exegete.data import READERS
    from exegete.data.cards import DataCard

    _show(pd.DataFrame([asdict(card) for card in READERS.cards(DataCard).values()]))


def _show(frame: pd.DataFrame) -> None:
    table = Table(box=SIMPLE_HEAD)
    for column in frame.columns:
        table.add_column(str(column), overflow="fold")
    for row in frame.itertuples(index=False):
        table.add_row(*(Text({True: "yes", False: "no"}.get(value, str(value))) for value in row))
    console().print(table)
