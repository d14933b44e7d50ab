"""Evaluation of marked evidence: agreement between people, and between people and each method's scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean as mean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, roc_auc_score

from exegete.data.marked import MarkedExample, aggregate_marks, find_marked_units, split_units
from exegete.reports.attributions import Attribution
from exegete.reports.generated import GeneratedAttribution


class Plausibility(NamedTuple):
    """How a method's word scores rank the words that people marked: means over examples, and over how many."""

    method: str
    auc: float
    average_precision: float
    examples: int


def find_units(example: MarkedExample, marks: Sequence[Sequence[int]], unit: str = "word") -> NDArray[np.bool_]:
    """Which words, or sentences, of all texts the marks touch."""
    return np.array(find_marked_units(split_units(example.texts, unit), marks), dtype=bool)


def mean_pairwise_f1(examples: Sequence[MarkedExample], unit: str = "word") -> float:
    """Mean F1 of the units that two people marked, over pairs of people and examples; NaN where nobody shares one.

    Two who both mark nothing agree fully.
    """
    found = []
    for example in examples:
        units = [find_units(example, marks, unit) for marks in example.marks.values()]
        for one, other in combinations(units, 2):
            total = one.sum() + other.sum()
            found.append(2 * (one & other).sum() / total if total else 1.0)
    return float(np.mean(found)) if found else float("nan")


def evaluate_plausibility(
    examples: Sequence[MarkedExample], explanations: Sequence[Mapping[str, Attribution | GeneratedAttribution]]
) -> list[Plausibility]:
    """By method, best first: AUC and average precision of its word scores against the evidence people agree on.

    Examples where all words are evidence or none is are left out.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for example, methods in zip(examples, explanations, strict=True):
        spans = aggregate_marks(example)
        marks = [(side, start, end) for side, each in enumerate(spans or []) for start, end in each]
        words = ((method, item) for method, item in methods.items() if isinstance(item, Attribution))
        for method, item in words:
            gold = np.array([any(w == s and a < e and b < z for s, b, e in marks) for w, a, z in item.word_spans])
            if spans is not None and gold.any() and not gold.all():
                scores = np.nan_to_num(item.word_scores)
                pair = float(roc_auc_score(gold, scores)), float(average_precision_score(gold, scores))
                found.setdefault(method, []).append(pair)
    rows = [
        Plausibility(method, mean([p[0] for p in pairs]), mean([p[1] for p in pairs]), len(pairs))
        for method, pairs in found.items()
    ]
    return sorted(rows, key=lambda row: -row.auc)
