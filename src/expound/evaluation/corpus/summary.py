"""Summary of an explained corpus: important words, clusters, disagreement with rationales, drift."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.spatial.distance import jensenshannon

from expound.data.alignment import Word
from expound.data.readers.marked import find_marked_units
from expound.errors import ExpoundError
from expound.evaluation.corpus.parts import CorpusParts, split_rows
from expound.reports.table import Table
from expound.reports.text import shorten

if TYPE_CHECKING:
    import pandas as pd
    from sklearn.cluster import MiniBatchKMeans

CONFIDENCE = 0.95
MIN_EXAMPLES = 5
PUNCTUATION = ".,;:!?…\"'()[]{}“”‘’„«»¿¡–—。，、；：！？「」（）"
"""A word is reported only if it occurs in this many examples."""


def compute_word_shares(row: Mapping[str, Any]) -> dict[str, float]:
    """Return each word's share of the sum of absolute scores, by lower-case word, summed over its occurrences.

    Punctuation around a word is not part of it; a word of punctuation alone stays.
    """
    scores = row["scores"][0]
    total = float(np.abs(scores).sum()) or 1.0
    shares = defaultdict[str, float](float)
    for unit, score in zip(row["units"], scores, strict=True):
        lower = unit["text"].casefold()
        shares[lower.strip(PUNCTUATION) or lower] += score / total
    return dict(shares)


class WordStatistics:
    """Sums over examples by class and word: count, shares, squared shares, absolute shares, shares of an average word.

    Memory grows with the vocabulary, not with the corpus.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self.sums = defaultdict[tuple[str, str], NDArray[np.float64]](lambda: np.zeros(5))
        self.examples = defaultdict[str, int](int)
        for row in rows:
            self.add(row["targets"][0]["text"], compute_word_shares(row))

    def add(self, label: str, word_shares: Mapping[str, float]) -> None:
        """Add an example of a class with its words' shares."""
        self.examples[label] += 1
        for word, share in word_shares.items():
            self.sums[label, word] += (1, share, share * share, abs(share), 1 / len(word_shares))

    def table(self, min_count: int = MIN_EXAMPLES) -> pd.DataFrame:
        """Return label, word, examples, share, low, high: means over the examples with the word, 95 % intervals (t).

        Words are sorted within their class by how far the end of the interval that is nearer to 0 is above the share of
        an average word of the same texts; other words are left out. Frequent function words are no larger than that,
        and in a small corpus they alone occur often enough to have an interval.
        """
        import pandas as pd

        frame = pd.DataFrame(
            list(self._figures(min_count)), columns=["label", "word", "examples", "share", "low", "high", "average"]
        )
        # A large mean of few examples is uncertain: the nearer end ranks a word by what is sure of it.
        near = np.where(frame["share"] > 0, frame["low"], -frame["high"]) - frame.pop("average")
        frame = frame.assign(near=near).sort_values(["label", "near"], ascending=[True, False])
        return frame[frame["near"] > 0].drop(columns="near")

    def _figures(self, min_count: int) -> Iterator[tuple[str, str, int, float, float, float, float]]:
        for (label, word), (count, total, _, _, average) in self.sums.items():
            if count >= max(min_count, 2):
                half = stats.t.ppf((1 + CONFIDENCE) / 2, count - 1) * np.sqrt(self.variance(label, word) / count)
                mean = total / count
                yield label, word, int(count), mean, mean - half, mean + half, average / count

    def variance(self, label: str, word: str) -> float:
        """Return the variance of a word's share over the examples of a class that contain it."""
        count, total, squares, *_ = self.sums[label, word]
        # Rounding can make the difference of two close sums negative.
        return float(max(0.0, (squares - total * total / count) / (count - 1)))


def compute_drift(before: WordStatistics, after: WordStatistics, min_count: int = MIN_EXAMPLES) -> pd.DataFrame:
    """Return the change of each word's mean share between two corpora, sorted by p and then by size.

    Columns: label, word, before, after (mean shares), change, low, high (95 % interval), p (Welch's t-test, adjusted
    by Benjamini and Hochberg 1995).
    """
    import pandas as pd

    columns = ["label", "word", "before", "after", "change", "low", "high", "p"]
    rows = []
    for key in sorted(before.sums.keys() & after.sums.keys()):
        # A variance needs two examples.
        if min(before.sums[key][0], after.sums[key][0]) >= max(min_count, 2):
            rows.append(_test_change(key, before, after))
    frame = pd.DataFrame(rows, columns=columns)
    if len(frame):
        frame["p"] = stats.false_discovery_control(frame["p"])
    return frame.assign(size=-frame["change"].abs()).sort_values(["p", "size"], kind="stable").drop(columns="size")


def _test_change(key: tuple[str, str], before: WordStatistics, after: WordStatistics) -> tuple[Any, ...]:
    sums = np.stack([before.sums[key], after.sums[key]])
    counts = sums[:, 0]
    means = sums[:, 1] / counts
    squared_errors = np.array([before.variance(*key), after.variance(*key)]) / counts
    change, error = means[1] - means[0], np.sqrt(squared_errors.sum())
    if not error:
        return *key, *means, change, change, change, float(change == 0)
    # Welch–Satterthwaite degrees of freedom.
    freedom = squared_errors.sum() ** 2 / (squared_errors**2 / (counts - 1)).sum()
    half = stats.t.ppf((1 + CONFIDENCE) / 2, freedom) * error
    return *key, *means, change, change - half, change + half, 2 * stats.t.sf(abs(change) / error, freedom)


def compute_distance(before: WordStatistics, after: WordStatistics) -> float:
    """Return the Jensen–Shannon distance, from 0 to 1, of the corpora's distributions of absolute shares over words."""
    one, other = _absolute_shares(before), _absolute_shares(after)
    vocabulary = sorted(one.keys() | other.keys())
    return float(jensenshannon([one[word] for word in vocabulary], [other[word] for word in vocabulary], base=2))


def _absolute_shares(words: WordStatistics) -> defaultdict[str, float]:
    mass = defaultdict[str, float](float)
    for (_, word), (_, _, _, absolute, _) in words.sums.items():
        mass[word] += absolute
    return mass


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
            examples = [(-index, text) for _, index, text in sorted(cluster.nearest, reverse=True)]
            values["clusters"].append(shown | {"examples": examples})
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
    is_marked = np.array(find_marked_units([Word(**unit) for unit in row["units"]], row["rationale"]), dtype=bool)
    marked, unmarked = int(is_marked.sum()), int((~is_marked).sum())
    if not marked or not unmarked:
        return None
    # The Mann–Whitney statistic from ranks; ties count one half.
    rank_sum = stats.rankdata(row["scores"][0])[is_marked].sum()
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
        shares = {word: mass / cluster.size for word, mass in cluster.mass.items()}
        ranked = sorted((-abs(share - corpus_share[word]), word) for word, share in shares.items())
        cluster.words = [(word, shares[word]) for _, word in ranked[:top]]
    found = [cluster for cluster in clusters if cluster.size]
    return sorted(found, key=lambda cluster: -cluster.size)


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
    rows = []
    for cluster in corpus.clusters:
        classes = ", ".join(f"{label} {count}" for label, count in cluster.labels.most_common())
        words = ", ".join(f"{word} {share:+.2f}" for word, share in cluster.words[:5])
        typical = shorten(" ".join(max(cluster.nearest)[2].split()), longest)
        rows.append((str(cluster.size), classes, words, typical))
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


def _format_interval(row: Mapping[Any, Any]) -> str:
    return f"{row['low']:+.3f}…{row['high']:+.3f}"
