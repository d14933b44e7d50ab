"""Evaluation of marked evidence: agreement between annotators, and between annotators and each method's scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, roc_auc_score

from expound.data.alignment import Word
from expound.data.readers.marked import MarkedExample, aggregate_marks, find_marked_units, split_units
from expound.reports.explanations import Explanation


class Plausibility(NamedTuple):
    """Agreement of a method's word scores with the words that annotators marked, averaged over `examples` examples."""

    method: str
    auc: float
    average_precision: float
    examples: int


def find_units(example: MarkedExample, marks: Sequence[Sequence[int]], unit: str = "word") -> NDArray[np.bool_]:
    """Return a mask of the words, or sentences, of all texts of an example: True if a mark touches the unit."""
    return np.array(find_marked_units(split_units(example.texts, unit), marks), dtype=bool)


def mean_pairwise_f1(examples: Sequence[MarkedExample], unit: str = "word") -> float:
    """Compute the mean F1 of the units that two annotators marked, over all pairs of annotators of every example.

    Two annotators who both mark nothing agree fully. Returns NaN if no example has two annotators.
    """
    scores = []
    for example in examples:
        masks = [find_units(example, marks, unit) for marks in example.marks.values()]
        # F1 is symmetric: it does not matter whose marks count as the reference.
        for first, second in combinations(masks, 2):
            total = first.sum() + second.sum()
            scores.append(2 * (first & second).sum() / total if total else 1.0)
    return float(np.mean(scores)) if scores else float("nan")


def evaluate_plausibility(
    examples: Sequence[MarkedExample], explanations: Sequence[Mapping[str, Explanation]]
) -> list[Plausibility]:
    """Compute each method's AUC and average precision against the words that half of the annotators marked.

    Returns one row per method, highest AUC first.
    """
    scores: dict[str, list[tuple[float, float]]] = {}
    for example, by_method in zip(examples, explanations, strict=True):
        marks = []
        for segment, spans in enumerate(aggregate_marks(example) or ()):
            marks += [(segment, start, end) for start, end in spans]
        for method, item in by_method.items():
            if item.exchange is not None:
                continue
            # Methods split words by their own tokenizer, so a word counts if it overlaps a mark.
            evidence = np.array(find_marked_units([Word(*unit) for unit in item.units], marks), dtype=bool)
            # AUC and average precision are undefined if all words, or none, are evidence.
            if evidence.any() and not evidence.all():
                word_scores = np.nan_to_num(item.scores[0])
                auc = float(roc_auc_score(evidence, word_scores))
                scores.setdefault(method, []).append((auc, float(average_precision_score(evidence, word_scores))))
    rows = []
    for method, pairs in scores.items():
        auc, precision = (fmean(column) for column in zip(*pairs, strict=True))
        rows.append(Plausibility(method, auc, precision, len(pairs)))
    return sorted(rows, key=lambda row: -row.auc)
