"""`exegete summary`: an explained corpus in a few tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from exegete.cli.shared import options
from exegete.cli.shared.console import console

LEVEL = 0.05

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

    import pandas as pd
    from rich.table import Table

    from exegete.studies.corpus.summary import Cluster, CorpusSummary


def summary(
    folder: Annotated[Path, typer.Argument(help="What `exegete explain --data` wrote.")],
    against: Annotated[
        Path | None, typer.Option("--against", help="Another explained corpus: what changed from it to this one.")
    ] = None,
    clusters: Annotated[int, typer.Option("--clusters", min=1, help="Groups of explanations to look for.")] = 8,
    top: Annotated[int, typer.Option("--top", min=1, help="Lines of each table.")] = 10,
    least: Annotated[int, typer.Option("--least", min=2, help="Examples that a word has to occur in.")] = 5,
    seed: options.Seed = 0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Sum up an explained corpus: words that matter, groups of explanations, where people disagree, what changed.

    Example: exegete summary explained --against explained-last-month
    """
    from exegete.studies.corpus.summary import summarise

    found = summarise(folder, against, clusters=clusters, top=top, least=least, seed=seed)
    if json:
        import json as library

        from exegete.data.provenance import to_json_value

        typer.echo(library.dumps(to_json_value(found.to_dict(top)), ensure_ascii=False))
        return
    counts = ", ".join(f"{label} {count}" for label, count in sorted(found.labels.items()))
    console().print(f"{found.rows} rows: {counts}", markup=False, highlight=False)
    for table in _tables(found, top):
        console().print(table)


def _tables(found: CorpusSummary, top: int) -> Iterator[Table | Text]:
    for label, words in found.words.groupby("label", sort=False):
        signed = "" if found.signed else "; it has no sign: words with much attention, not words for the class"
        yield _table(
            f"Words that matter most for {label}: mean share of the explanation{signed}; "
            "sorted by the end of the 95 % interval that is nearer to 0",
            ("word", "share", "interval", "examples"),
            ((one["word"], f"{one['share']:+.3f}", _interval(one), str(one["examples"])) for one in _first(words, top)),
        )
    yield _table("Groups of explanations", ("size", "classes", "words", "typical"), map(_cluster, found.clusters))
    if found.judged:
        title = f"Explanation and rationale disagree most (AUC; mean {found.agreement:.3f} over {found.judged})"
        worst = ((f"{auc:.2f}", str(index), text) for auc, index, text in found.disagreeing[:top])
        yield _table(title, ("AUC", "row", "text"), worst)
    if found.drift is not None:
        changed = found.drift[found.drift["p"] < LEVEL]
        if not len(changed):
            yield Text(f"No word's share changed ({len(found.drift)} tested). {_distance(found)}")
            return
        yield _table(
            f"What changed ({len(changed)} of {len(found.drift)} words; surest first). {_distance(found)}",
            ("class", "word", "before", "after", "interval of the change", "p, adjusted"),
            map(_change, _first(changed, top)),
        )


def _distance(found: CorpusSummary) -> str:
    """How far the explanations' words lie apart."""
    return (
        f"Distance of what the explanations fall on: {found.distance:.3f} (Jensen–Shannon; 0: the same words, "
        "1: none in common)"
    )


def _first(frame: pd.DataFrame, top: int) -> list[Any]:
    rows: list[Any] = frame.head(top).to_dict("records")
    return rows


def _change(one: Mapping[str, Any]) -> tuple[str, ...]:
    shares = (f"{one[name]:+.3f}" for name in ("before", "after"))
    return (one["label"], one["word"], *shares, _interval(one), f"{one['p']:.2g}")


def _cluster(one: Cluster) -> tuple[str, ...]:
    classes = ", ".join(f"{label} {count}" for label, count in one.labels.most_common())
    words = ", ".join(f"{word} {share:+.2f}" for word, share in one.words[:5])
    return str(one.size), classes, words, max(one.nearest)[2]


def _interval(one: Mapping[str, Any]) -> str:
    return f"{one['low']:+.3f} to {one['high']:+.3f}"


def _table(title: str, head: Iterable[str], rows: Iterable[tuple[str, ...]]) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, min_width=100, header_style="bold")
    for name in head:
        table.add_column(name, overflow="ellipsis" if name in ("text", "typical") else "fold", max_width=60)
    for row in rows:
        table.add_row(*(Text(" ".join(cell.split())) for cell in row))
    return table
