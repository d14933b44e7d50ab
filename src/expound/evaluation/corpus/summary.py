"""Summary of an explained corpus: important words, clusters, disagreement with rationales, drift."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import rankdata

from expound.errors import ExpoundError
from expound.evaluation.corpus.parts import CorpusParts, split_rows
from expound.evaluation.corpus.words import (
    MIN_EXAMPLES,
    WordStatistics,
    compute_distance,
    compute_drift,
    compute_word_shares,
)

if TYPE_CHECKING:
    import pandas as pd
    from sklearn.cluster import MiniBatchKMeans

WORDS = ["units", "scores", "targets"]
"""The columns that the shares of words are computed from."""
COLUMNS = [*WORDS, "index", "texts", "rationale", "signed", "unit"]
FEATURES, BATCH_SIZE = 4096, 1000
"""Dimensions that words are hashed to, and examples per batch, for the clustering."""


@dataclass
class Cluster:
    """Explanations that emphasize the same words.

    Attributes:
        size: number of explanations.
        labels: explanations per class.
        mass: sum of each word's shares.
        words: the words whose mean share differs most from that in the whole corpus, with that mean.
        nearest: the explanations nearest to the center: (-distance, -number of the row, text).
    """

    size: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    mass: dict[str, float] = field(default_factory=dict)
    words: list[tuple[str, float]] = field(default_factory=list)
    nearest: list[tuple[float, int, str]] = field(default_factory=list)


@dataclass(frozen=True)
class CorpusSummary:
    """The result of `summarize`.

    Attributes:
        rows: number of explanations.
        labels: explanations per class.
        words: see `WordStatistics.table`.
        clusters: largest first.
        agreement: mean AUC of words' scores against rationales, over `judged` explanations.
        judged: number of explanations with a rationale that marks some words and not all.
        disagreeing: (AUC, number of the row, text), worst first.
        drift: see `compute_drift`; None without another corpus.
        distance: see `compute_distance`; None without another corpus.
        other_labels: explanations per class of the other corpus.
        signed: whether negative scores are evidence against a class.
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
        """Return values that JSON can hold, with the first `top` of each list (of words: per class)."""
        facts = ("rows", "labels", "agreement", "judged", "distance", "other_labels")
        values: dict[str, Any] = {name: getattr(self, name) for name in facts}
        values["words"] = self.words.groupby("label", sort=False).head(top).to_dict("records")
        if self.drift is not None:
            values["drift"] = self.drift.head(top).to_dict("records")
        values["clusters"] = []
        for cluster in self.clusters:
            shown = {"size": cluster.size, "labels": dict(cluster.labels), "words": cluster.words}
            values["clusters"].append(shown | {"examples": _sort_nearest(cluster.nearest)})
        values["disagreeing"] = self.disagreeing[:top]
        return values


def summarize(
    folder: str | Path,
    against: str | Path | None = None,
    *,
    clusters: int = 8,
    top: int = 10,
    min_count: int = MIN_EXAMPLES,
    seed: int = 0,
) -> CorpusSummary:
    """Return a summary of what `expound explain --data` wrote. Memory grows with the vocabulary, not the corpus.

    Args:
        folder: the explained corpus.
        against: another corpus, explained by the same method, to compute the drift from.
        clusters: number of clusters, found by scikit-learn's MiniBatchKMeans over words' shares.
        top: examples kept per cluster, and of the examples whose explanation and rationale disagree most.
        min_count: leave out words that occur in fewer examples.
        seed: random seed of the clusters.

    Raises:
        ExpoundError: a corpus that is not explained completely or has no words, or two corpora that were explained by
            different methods.
    """
    parts = CorpusParts(Path(folder))
    words, disagreeing, total, judged = WordStatistics(), list[tuple[float, int, str]](), 0.0, 0
    signed = True
    for row in parts.rows(COLUMNS):
        if row["unit"] != "word":
            raise ExpoundError(f"{folder} has no words to sum up: summaries are of texts")
        words.add(row["targets"][0]["text"], compute_word_shares(row))
        signed = row["signed"]
        auc = rationale_auc(row)
        if auc is not None:
            total, judged = total + auc, judged + 1
            _push_bounded(disagreeing, (-auc, -row["index"], " / ".join(row["texts"])), top)
    drift, distance, other_labels = None, None, None
    if against is not None:
        other_parts = CorpusParts(Path(against))
        if other_parts.config["method"] != parts.config["method"]:
            raise ExpoundError(f"{against} was explained by another method than {folder}: drift needs the same one")
        other = WordStatistics(other_parts.rows(WORDS))
        drift, distance = compute_drift(other, words, min_count), compute_distance(other, words)
        other_labels = dict(other.examples)
    return CorpusSummary(
        rows=parts.head["rows"],
        labels=dict(words.examples),
        words=words.table(min_count),
        clusters=_find_clusters(parts, clusters, top, seed),
        agreement=total / judged if judged else float("nan"),
        judged=judged,
        disagreeing=[(-auc, -index, text) for auc, index, text in sorted(disagreeing, reverse=True)],
        drift=drift,
        distance=distance,
        other_labels=other_labels,
        signed=signed,
    )


def rationale_auc(row: Mapping[str, Any]) -> float | None:
    """Return the chance that a marked word has a higher score than an unmarked one; None without both kinds."""
    if row["rationale"] is None:
        return None
    is_marked = np.zeros(len(row["units"]), dtype=bool)
    for word, unit in enumerate(row["units"]):
        for segment, first, last in row["rationale"]:
            if unit["segment"] == segment and unit["start"] < last and first < unit["end"]:
                is_marked[word] = True
    marked, unmarked = int(is_marked.sum()), int((~is_marked).sum())
    if not marked or not unmarked:
        return None
    # The Mann–Whitney statistic from ranks; ties count one half.
    rank_sum = rankdata(row["scores"][0])[is_marked].sum()
    return float((rank_sum - marked * (marked + 1) / 2) / (marked * unmarked))


def _find_clusters(parts: CorpusParts, count: int, top: int, seed: int) -> list[Cluster]:
    """Return the clusters, largest first: one pass over the corpus finds their centers, another their content."""
    # Importing scikit-learn takes a second, which only this function needs.
    from sklearn.cluster import MiniBatchKMeans

    rows = parts.head["rows"]
    means = MiniBatchKMeans(min(count, rows), random_state=seed, n_init=1, batch_size=BATCH_SIZE)
    for batch in split_rows(parts.rows(WORDS), BATCH_SIZE):
        # partial_fit needs as many examples as clusters; a last batch that is smaller is left out.
        if len(batch) >= means.n_clusters:
            means.partial_fit(_hash_words(batch))
    clusters = [Cluster() for _ in range(means.n_clusters)]
    for batch in split_rows(parts.rows(["index", "texts", *WORDS]), BATCH_SIZE):
        _assign_to_clusters(means, batch, clusters, top)
    corpus_share = defaultdict[str, float](float)
    for cluster in clusters:
        for word, mass in cluster.mass.items():
            corpus_share[word] += mass / rows
    for cluster in clusters:
        cluster.words = _find_typical_words(cluster, corpus_share, top)
    found = [cluster for cluster in clusters if cluster.size]
    return sorted(found, key=lambda cluster: -cluster.size)


def _find_typical_words(cluster: Cluster, corpus_share: Mapping[str, float], top: int) -> list[tuple[str, float]]:
    shares = {word: mass / cluster.size for word, mass in cluster.mass.items()}
    ranked = sorted(shares, key=lambda word: (-abs(shares[word] - corpus_share[word]), word))
    return [(word, shares[word]) for word in ranked[:top]]


def _assign_to_clusters(means: MiniBatchKMeans, batch: list[dict[str, Any]], clusters: list[Cluster], top: int) -> None:
    distances = means.transform(_hash_words(batch))
    for row, nearest, distance in zip(batch, distances.argmin(1), distances.min(1), strict=True):
        cluster = clusters[nearest]
        cluster.size += 1
        cluster.labels[row["targets"][0]["text"]] += 1
        for word, share in compute_word_shares(row).items():
            cluster.mass[word] = cluster.mass.get(word, 0.0) + share
        _push_bounded(cluster.nearest, (-float(distance), -row["index"], " / ".join(row["texts"])), top)


def _hash_words(batch: list[dict[str, Any]]) -> Any:
    from sklearn.feature_extraction import FeatureHasher
    from sklearn.preprocessing import normalize

    # Hashing needs no pass to collect the vocabulary; unit length makes distances those of directions.
    return normalize(FeatureHasher(FEATURES).transform(map(compute_word_shares, batch)))


def _push_bounded(heap: list[tuple[float, int, str]], item: tuple[float, int, str], size: int) -> None:
    """Add an item to a heap of the `size` largest ones."""
    if len(heap) < size:
        heapq.heappush(heap, item)
    else:
        heapq.heappushpop(heap, item)


def _sort_nearest(nearest: list[tuple[float, int, str]]) -> list[tuple[int, str]]:
    return [(-index, text) for _, index, text in sorted(nearest, reverse=True)]
