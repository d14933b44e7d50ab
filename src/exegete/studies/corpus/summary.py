"""An explained corpus summed up in passes over its parts: words, clusters, disagreement with people, drift."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import rankdata

from exegete.errors import ExegeteError
from exegete.studies.corpus.parts import Parts
from exegete.studies.corpus.words import (
    MIN_EXAMPLES,
    WordStatistics,
    compute_distance,
    compute_drift,
    compute_word_shares,
)

if TYPE_CHECKING:
    import pandas as pd
    from sklearn.cluster import MiniBatchKMeans

COLUMNS = ["index", "texts", "words", "word_scores", "word_spans", "target_label", "rationale", "signed"]
FEATURES, BATCH_SIZE = 4096, 1000
"""Words are hashed to so many numbers before they are clustered, so many examples at a time."""


@dataclass
class Cluster:
    """Explanations that fall on the same words: how many, of which classes, and the nearest to their middle.

    `words`: those whose mean share (over all the cluster's examples) differs most from that in the whole corpus.
    """

    size: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    mass: dict[str, float] = field(default_factory=dict)
    words: list[tuple[str, float]] = field(default_factory=list)
    nearest: list[tuple[float, int, str]] = field(default_factory=list)


@dataclass(frozen=True)
class CorpusSummary:
    """The findings of `summarise`.

    `words`: see `Words.table`. `clusters`: largest first. `rationale_auc`: the mean AUC of words' scores against
    rationales, over so many `judged` examples; `disagreeing`: (AUC, example's number, text), worst first. `drift`: see
    there, and `distance` between the two corpora; None where there is no other. `labels`: examples by class. `signed`:
    whether scores tell evidence for a class from evidence against it.
    """

    rows: int
    labels: dict[str, int]
    words: pd.DataFrame
    clusters: list[Cluster]
    agreement: float
    judged: int
    disagreeing: list[tuple[float, int, str]]
    drift: pd.DataFrame | None
    distance: float | None
    other_labels: dict[str, int] | None
    signed: bool = True

    def to_dict(self, top: int = 10) -> dict[str, Any]:
        """Values that JSON can hold, `top` of each list (of words: for each class)."""
        tables = {"words": self.words.groupby("label", sort=False).head(top)}
        tables |= {} if self.drift is None else {"drift": self.drift.head(top)}
        found = {name: frame.to_dict("records") for name, frame in tables.items()}
        clusters = [
            {"size": one.size, "labels": dict(one.labels), "words": one.words, "examples": _sort_nearest(one.nearest)}
            for one in self.clusters
        ]
        facts = ("rows", "labels", "agreement", "judged", "distance", "other_labels")
        return (
            {name: getattr(self, name) for name in facts}
            | found
            | {
                "clusters": clusters,
                "disagreeing": self.disagreeing[:top],
            }
        )


def summarise(
    folder: str | Path,
    against: str | Path | None = None,
    *,
    clusters: int = 8,
    top: int = 10,
    least: int = MIN_EXAMPLES,
    seed: int = 0,
) -> CorpusSummary:
    """Sums up what `exegete explain --data` wrote. Memory grows with the vocabulary, not with the corpus.

    Args:
        folder: the explained corpus.
        against: another one, explained by the same method: what changed from it to this one.
        clusters: how many, by scikit-learn's MiniBatchKMeans over words' shares.
        top: examples kept of each cluster, and of those where explanation and rationale disagree most.
        least: examples that a word has to occur in.
        seed: of the clusters.

    Raises:
        ExegeteError: a corpus that is not explained to its end, or has no words; two that were explained by different
            methods.
    """
    parts = Parts(Path(folder))
    words, ranked, total, judged = WordStatistics(), list[tuple[float, int, str]](), 0.0, 0
    signed = True
    for row in parts.rows(COLUMNS):
        if not row["words"]:
            raise ExegeteError(f"{folder} has no words to sum up: summaries are of texts")
        words.add(row["target_label"], compute_word_shares(row))
        signed = row["signed"]
        auc = rationale_auc(row)
        if auc is not None:
            total, judged = total + auc, judged + 1
            _push_bounded(ranked, (-auc, -row["index"], " / ".join(row["texts"])), top)
    other = None if against is None else _read_word_statistics(parts, Path(against))
    return CorpusSummary(
        rows=parts.head["rows"],
        labels=dict(words.examples),
        words=words.table(least),
        clusters=_find_clusters(parts, clusters, top, seed),
        agreement=total / judged if judged else float("nan"),
        judged=judged,
        disagreeing=[(-auc, -index, text) for auc, index, text in sorted(ranked, reverse=True)],
        drift=None if other is None else compute_drift(other, words, least),
        distance=None if other is None else compute_distance(other, words),
        other_labels=None if other is None else dict(other.examples),
        signed=signed,
    )


def rationale_auc(row: Mapping[str, Any]) -> float | None:
    """The chance that a marked word scores above one that is not marked; None where one of both is missing."""
    if row["rationale"] is None:
        return None
    marked = np.array(
        [
            any(side == where and start < last and first < end for where, first, last in row["rationale"])
            for side, start, end in row["word_spans"]
        ]
    )
    yes, no = int(marked.sum()), int((~marked).sum())
    if not yes or not no:
        return None
    return float((rankdata(row["word_scores"])[marked].sum() - yes * (yes + 1) / 2) / (yes * no))


def _read_word_statistics(parts: Parts, folder: Path) -> WordStatistics:
    other = Parts(folder)
    if other.config["method"] != parts.config["method"]:
        raise ExegeteError(f"{folder} was explained by another method than {parts.folder}: drift needs the same one")
    return WordStatistics(other.rows(["words", "word_scores", "target_label"]))


def _find_clusters(parts: Parts, count: int, top: int, seed: int) -> list[Cluster]:
    """The clusters, largest first: one pass finds their centres, another what is in them."""
    from sklearn.cluster import MiniBatchKMeans

    rows = parts.head["rows"]
    means = MiniBatchKMeans(min(count, rows), random_state=seed, n_init=1, batch_size=BATCH_SIZE)
    for batch in _read_batches(parts, ["words", "word_scores"]):
        if len(batch) >= means.n_clusters:
            means.partial_fit(_hash_words(batch))
    found = [Cluster() for _ in range(means.n_clusters)]
    for batch in _read_batches(parts, ["index", "texts", "words", "word_scores", "target_label"]):
        _assign_to_clusters(means, batch, found, top)
    usual = defaultdict[str, float](float)
    for each in found:
        for word, mass in each.mass.items():
            usual[word] += mass / rows
    for each in found:
        shared = {word: mass / each.size for word, mass in each.mass.items()}
        each.words = sorted(shared.items(), key=lambda one: (-abs(one[1] - usual[one[0]]), one[0]))[:top]
    return sorted((each for each in found if each.size), key=lambda each: -each.size)


def _assign_to_clusters(means: MiniBatchKMeans, batch: list[dict[str, Any]], found: list[Cluster], top: int) -> None:
    distances = means.transform(_hash_words(batch))
    for row, nearest, away in zip(batch, distances.argmin(1), distances.min(1), strict=True):
        cluster = found[nearest]
        cluster.size += 1
        cluster.labels[row["target_label"]] += 1
        for word, share in compute_word_shares(row).items():
            cluster.mass[word] = cluster.mass.get(word, 0.0) + share
        _push_bounded(cluster.nearest, (-float(away), -row["index"], " / ".join(row["texts"])), top)


def _hash_words(batch: list[dict[str, Any]]) -> Any:
    from sklearn.feature_extraction import FeatureHasher
    from sklearn.preprocessing import normalize

    return normalize(FeatureHasher(FEATURES).transform(compute_word_shares(row) for row in batch))


def _read_batches(parts: Parts, columns: list[str]) -> Iterator[list[dict[str, Any]]]:
    rows = parts.rows(columns)
    while batch := list(islice(rows, BATCH_SIZE)):
        yield batch


def _push_bounded(heap: list[tuple[float, int, str]], item: tuple[float, int, str], most: int) -> None:
    (heapq.heappush if len(heap) < most else heapq.heappushpop)(heap, item)


def _sort_nearest(nearest: list[tuple[float, int, str]]) -> list[tuple[int, str]]:
    return [(-index, text) for _, index, text in sorted(nearest, reverse=True)]
