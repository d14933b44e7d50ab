"""Statistics of words in an explained corpus: their share of the explanations, with intervals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

if TYPE_CHECKING:
    import pandas as pd

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
    masses = np.array([(one[word], other[word]) for word in vocabulary])
    first, second = (masses / masses.sum(0)).T
    middle = (first + second) / 2
    return float(np.sqrt((stats.entropy(first, middle, 2) + stats.entropy(second, middle, 2)) / 2))


def _absolute_shares(words: WordStatistics) -> defaultdict[str, float]:
    mass = defaultdict[str, float](float)
    for (_, word), (_, _, _, absolute, _) in words.sums.items():
        mass[word] += absolute
    return mass
