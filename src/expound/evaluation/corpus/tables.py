"""Tables of a summary of an explained corpus, for the terminal and for pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from expound.evaluation.corpus.summary import Cluster, CorpusSummary
from expound.reports.table import Table
from expound.reports.text import shorten

LONGEST = 200
"""Characters of a text that are shown."""


def make_word_tables(corpus: CorpusSummary, top: int) -> dict[str, Table]:
    """Return by class the table of its most important words."""
    tables = {}
    for label, words in corpus.words.groupby("label", sort=False):
        rows = []
        for row in words.head(top).to_dict("records"):
            rows.append((row["word"], f"{row['share']:+.3f}", _format_interval(row), str(row["examples"])))
        tables[str(label)] = Table(("Word", "Share", "Interval", "Examples"), rows)
    return tables


def make_cluster_table(corpus: CorpusSummary, longest: int = LONGEST) -> Table:
    """Return the table of groups of explanations; typical texts are cut to `longest` characters."""
    rows = [_make_cluster_row(cluster, longest) for cluster in corpus.clusters]
    return Table(("Size", "Classes", "Words", "Typical"), rows, texts=4)


def make_disagreement_table(corpus: CorpusSummary, top: int, longest: int = LONGEST) -> Table:
    """Return the table of the explanations that disagree most with rationales."""
    rows = []
    for auc, index, text in corpus.disagreeing[:top]:
        rows.append((f"{auc:.2f}", str(index), shorten(" ".join(text.split()), longest)))
    return Table(("AUC", "Row", "Text"), rows, texts=3)


def make_change_table(corpus: CorpusSummary, top: int, level: float = 1.0) -> Table:
    """Return the table of changes of words' shares whose adjusted p is below the level, smallest p first."""
    rows = []
    assert corpus.drift is not None
    for row in corpus.drift[corpus.drift["p"] < level].head(top).to_dict("records"):
        shares = f"{row['before']:+.3f}", f"{row['after']:+.3f}"
        rows.append((row["label"], row["word"], *shares, _format_interval(row), f"{row['p']:.2g}"))
    return Table(("Class", "Word", "Before", "After", "Interval of the change", "p, adjusted"), rows, texts=2)


def _make_cluster_row(row: Cluster, longest: int) -> tuple[str, ...]:
    classes = ", ".join(f"{label} {count}" for label, count in row.labels.most_common())
    words = ", ".join(f"{word} {share:+.2f}" for word, share in row.words[:5])
    return str(row.size), classes, words, shorten(" ".join(max(row.nearest)[2].split()), longest)


def _format_interval(row: Mapping[Any, Any]) -> str:
    return f"{row['low']:+.3f}…{row['high']:+.3f}"
