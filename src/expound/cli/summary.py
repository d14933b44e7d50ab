"""`expound summary`: tables that summarize an explained corpus."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from expound.cli.shared import options
from expound.cli.shared.console import console

LEVEL, LONGEST = 0.05, 60
"""Level of changes that are shown, and characters of a text."""

if TYPE_CHECKING:
    from collections.abc import Iterator

    from expound.evaluation.corpus.summary import CorpusSummary
    from expound.reports.table import Table


def summary(
    folder: Annotated[Path, typer.Argument(help="The output folder of `expound explain --data`.")],
    against: Annotated[
        Path | None, typer.Option(help="Another explained corpus: show the changes from it to this one.")
    ] = None,
    clusters: Annotated[int, typer.Option(min=1, help="Number of groups of explanations.")] = 8,
    top: Annotated[int, typer.Option(min=1, help="Rows per table.")] = 10,
    min_count: Annotated[int, typer.Option(min=2, help="Minimum number of examples that contain a word.")] = 5,
    seed: options.Seed = 0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Summarize an explained corpus: important words, groups of explanations, disagreement with rationales, changes.

    Example: expound summary explained --against explained-last-month
    """
    from expound.evaluation.corpus.summary import summarize

    corpus = summarize(folder, against, clusters=clusters, top=top, min_count=min_count, seed=seed)
    if json:
        import json as library

        from expound.data.provenance import to_json_value

        typer.echo(library.dumps(to_json_value(corpus.to_dict(top)), ensure_ascii=False))
        return
    counts = ", ".join(f"{label} {count}" for label, count in sorted(corpus.labels.items()))
    console().print(f"{corpus.rows} rows: {counts}", markup=False, highlight=False)
    for title, table in _list_tables(corpus, top):
        console().print(title, markup=False, highlight=False, style="italic" if table else None)
        if table is not None:
            console().print(table)


def _list_tables(corpus: CorpusSummary, top: int) -> Iterator[tuple[str, Table | None]]:
    """Yield tables with their titles, and sentences without a table."""
    from expound.evaluation.corpus import summary as tables

    signed = "" if corpus.signed else "; unsigned: important words, not words that support the class"
    for label, table in tables.make_word_tables(corpus, top).items():
        yield (
            f"Most important words for {label}: mean share of the explanation{signed}; "
            "those whose 95 % interval is above the share of an average word, surest first",
            table,
        )
    missing = sorted(set(corpus.labels) - set(corpus.words["label"]))
    if missing:
        names = ", ".join(missing)
        yield f"No word is surely above an average word for {names}: explain more texts or lower --min-count.", None
    yield "Groups of explanations", tables.make_cluster_table(corpus, LONGEST)
    if corpus.judged:
        title = f"Explanation and rationale disagree most (AUC; mean {corpus.agreement:.3f} over {corpus.judged})"
        yield title, tables.make_disagreement_table(corpus, top, LONGEST)
    if corpus.drift is None:
        return
    distance = (
        f"Distance between the important words: {corpus.distance:.3f} (Jensen–Shannon; 0: the same words, "
        "1: no word in common)"
    )
    tested, changed = len(corpus.drift), int((corpus.drift["p"] < LEVEL).sum())
    if not changed:
        yield f"No word's share changed ({tested} tested). {distance}", None
        return
    title = f"Changes ({changed} of {tested} words; smallest p first). {distance}"
    yield title, tables.make_change_table(corpus, top, LEVEL)
