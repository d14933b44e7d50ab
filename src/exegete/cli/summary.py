"""`exegete summary`: tables that summarise an explained corpus."""

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
    folder: Annotated[Path, typer.Argument(help="The output folder of `exegete explain --data`.")],
    against: Annotated[
        Path | None, typer.Option(help="Another explained corpus: show the changes from it to this row.")
    ] = None,
    clusters: Annotated[int, typer.Option(min=1, help="Number of groups of explanations.")] = 8,
    top: Annotated[int, typer.Option(min=1, help="Rows per table.")] = 10,
    least: Annotated[int, typer.Option(min=2, help="Minimum number of examples that contain a word.")] = 5,
    seed: options.Seed = 0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Summarise an explained corpus: important words, groups of explanations, disagreement with rationales, changes.

    Example: exegete summary explained --against explained-last-month
    """
    from exegete.studies.corpus.summary import summarise

    corpus = summarise(folder, against, clusters=clusters, top=top, least=least, seed=seed)
    if json:
        import json as library

        from exegete.data.provenance import to_json_value

        typer.echo(library.dumps(to_json_value(corpus.to_dict(top)), ensure_ascii=False))
        return
    counts = ", ".join(f"{label} {count}" for label, count in sorted(corpus.labels.items()))
    console().print(f"{corpus.rows} rows: {counts}", markup=False, highlight=False)
    for table in _tables(corpus, top):
        console().print(table)


def _tables(corpus: CorpusSummary, top: int) -> Iterator[Table | Text]:
    signed = "" if corpus.signed else "; unsigned: important words, not words that support the class"
    for label, words in corpus.words.groupby("label", sort=False):
        rows = []
        for row in _first(words, top):
            rows.append((row["word"], f"{row['share']:+.3f}", _interval(row), str(row["examples"])))
        yield _table(
            f"Most important words for {label}: mean share of the explanation{signed}; "
            "those whose 95 % interval is above the share of an average word, surest first",
            ("word", "share", "interval", "examples"),
            rows,
        )
    missing = sorted(set(corpus.labels) - set(corpus.words["label"]))
    if missing:
        yield Text(
            f"No word is surely above an average word for {', '.join(missing)}: explain more texts or lower --least."
        )
    yield _table("Groups of explanations", ("size", "classes", "words", "typical"), map(_cluster, corpus.clusters))
    if corpus.judged:
        title = f"Explanation and rationale disagree most (AUC; mean {corpus.agreement:.3f} over {corpus.judged})"
        worst = [(f"{auc:.2f}", str(index), text) for auc, index, text in corpus.disagreeing[:top]]
        yield _table(title, ("AUC", "row", "text"), worst)
    if corpus.drift is not None:
        changed = corpus.drift[corpus.drift["p"] < LEVEL]
        if not len(changed):
            yield Text(f"No word's share changed ({len(corpus.drift)} tested). {_distance(corpus)}")
            return
        yield _table(
            f"Changes ({len(changed)} of {len(corpus.drift)} words; smallest p first). {_distance(corpus)}",
            ("class", "word", "before", "after", "interval of the change", "p, adjusted"),
            map(_change, _first(changed, top)),
        )


def _distance(corpus: CorpusSummary) -> str:
    """Describe the distance between the important words of the two corpora."""
    return (
        f"Distance between the important words: {corpus.distance:.3f} (Jensen–Shannon; 0: the same words, "
        "1: no word in common)"
    )


def _first(frame: pd.DataFrame, top: int) -> list[Any]:
    rows: list[Any] = frame.head(top).to_dict("records")
    return rows


def _change(row: Mapping[str, Any]) -> tuple[str, ...]:
    shares = f"{row['before']:+.3f}", f"{row['after']:+.3f}"
    return (row["label"], row["word"], *shares, _interval(row), f"{row['p']:.2g}")


def _cluster(row: Cluster) -> tuple[str, ...]:
    classes = ", ".join(f"{label} {count}" for label, count in row.labels.most_common())
    words = ", ".join(f"{word} {share:+.2f}" for word, share in row.words[:5])
    return str(row.size), classes, words, max(row.nearest)[2]


def _interval(row: Mapping[str, Any]) -> str:
    return f"{row['low']:+.3f} to {row['high']:+.3f}"


def _table(title: str, head: Iterable[str], rows: Iterable[tuple[str, ...]]) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, min_width=100, header_style="bold")
    for name in head:
        table.add_column(name, overflow="ellipsis" if name in ("text", "typical") else "fold", max_width=60)
    for row in rows:
        table.add_row(*[Text(" ".join(cell.split())) for cell in row])
    return table
