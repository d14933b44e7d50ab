"""Words that matter in an explained corpus: how much of each explanation falls on them, with intervals."""

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
"""Examples that a word has to occur in before anything is said of it."""


def compute_word_shares(row: Mapping[str, Any]) -> dict[str, float]:
    """By word, in small letters: its scores' part of all scores' absolute sum; occurrences are added up."""
    total = float(np.abs(row["word_scores"]).sum()) or 1.0
    found = defaultdict[str, float](float)
    for word, score in zip(row["words"], row["word_scores"], strict=True):
        found[word.casefold()] += score / total
    return dict(found)


class WordStatistics:
    """Sums over examples by class and word: how often, the shares, their squares and their absolute values.

    Memory grows with the vocabulary, not with the corpus.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self.sums = defaultdict[tuple[str, str], NDArray[np.float64]](lambda: np.zeros(4))
        self.examples = defaultdict[str, int](int)
        for row in rows:
            self.add(row["target_label"], compute_word_shares(row))

    def add(self, label: str, found: Mapping[str, float]) -> None:
        """Counts an example's words."""
        self.examples[label] += 1
        for word, share in found.items():
            self.sums[label, word] += (1, share, share * share, abs(share))

    def table(self, least: int = MIN_EXAMPLES) -> pd.DataFrame:
        """label, word, examples, share, low, high: means over the examples with the word, Student's 95 % intervals.

        Words that matter most come first within their class: by the end of the interval that is nearer to 0.
        """
        import pandas as pd

        frame = pd.DataFrame(list(self._figures(least)), columns=["label", "word", "examples", "share", "low", "high"])
        near = np.where(frame["share"] > 0, frame["low"].clip(lower=0), (-frame["high"]).clip(lower=0))
        return frame.assign(near=near).sort_values(["label", "near"], ascending=[True, False]).drop(columns="near")

    def _figures(self, least: int) -> Iterator[tuple[str, str, int, float, float, float]]:
        for (label, word), (count, total, _, _) in self.sums.items():
            if count >= max(least, 2):
                half = stats.t.ppf((1 + CONFIDENCE) / 2, count - 1) * np.sqrt(self.variance(label, word) / count)
                yield label, word, int(count), total / count, total / count - half, total / count + half

    def variance(self, label: str, word: str) -> float:
        """Of the word's share among examples that have it."""
        count, total, squares, _ = self.sums[label, word]
        return float(max(0.0, (squares - total * total / count) / (count - 1)))


def compute_drift(before: WordStatistics, after: WordStatistics, least: int = MIN_EXAMPLES) -> pd.DataFrame:
    """Words whose share changed between two corpora, surest first, then largest; p values by Welch's test, adjusted.

    label, word, before and after (mean shares), change, low, high (Welch's 95 % interval), p
    (Benjamini and Hochberg 1995).
    """
    import pandas as pd

    columns = ["label", "word", "before", "after", "change", "low", "high", "p"]
    rows = [
        _test_change(key, before, after)
        for key in sorted(before.sums.keys() & after.sums.keys())
        if min(before.sums[key][0], after.sums[key][0]) >= max(least, 2)
    ]
    frame = pd.DataFrame(rows, columns=columns)
    if len(frame):
        frame["p"] = stats.false_discovery_control(frame["p"])
    return frame.assign(size=-frame["change"].abs()).sort_values(["p", "size"], kind="stable").drop(columns="size")


def _test_change(key: tuple[str, str], before: WordStatistics, after: WordStatistics) -> tuple[Any, ...]:
    counts = np.array([words.sums[key][0] for words in (before, after)])
    means = np.array([words.sums[key][1] for words in (before, after)]) / counts
    parts = np.array([words.variance(*key) for words in (before, after)]) / counts
    change, error = means[1] - means[0], np.sqrt(parts.sum())
    if not error:
        return *key, *means, change, change, change, float(change == 0)
    freedom = parts.sum() ** 2 / (parts**2 / (counts - 1)).sum()
    half = stats.t.ppf((1 + CONFIDENCE) / 2, freedom) * error
    return *key, *means, change, change - half, change + half, 2 * stats.t.sf(abs(change) / error, freedom)


def compute_distance(before: WordStatistics, after: WordStatistics) -> float:
    """How far apart the corpora's words lie, each weighted by what falls on it: Jensen and Shannon's, from 0 to 1."""
    masses = [_absolute_shares(words) for words in (before, after)]
    vocabulary = sorted(masses[0].keys() | masses[1].keys())
    first, second = (np.array([mass.get(word, 0.0) for word in vocabulary]) for mass in masses)
    first, second = first / first.sum(), second / second.sum()
    middle = (first + second) / 2
    return float(np.sqrt((stats.entropy(first, middle, 2) + stats.entropy(second, middle, 2)) / 2))


def _absolute_shares(words: WordStatistics) -> dict[str, float]:
    found = defaultdict[str, float](float)
    for (_, word), (_, _, _, absolute) in words.sums.items():
        found[word] += absolute
    return found
