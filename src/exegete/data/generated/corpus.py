"""The corpus that the package makes itself: texts whose evidence is known because it was planted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from exegete.data.generated.dice import Dice
from exegete.data.generated.lexicon import MARKERS, MARKING, Lexicon, lexicon
from exegete.data.generated.marking import paragraph, unmark
from exegete.data.generated.pairs import LABELS as RELATIONS
from exegete.data.generated.pairs import pair
from exegete.data.generated.reviews import score, sentiment
from exegete.data.readers.base import NUMBER, LabelType
from exegete.errors import ExegeteError, unknown

TASKS = ("sentiment", "pairs", "regression")
SENTIMENTS = ("negative", "positive")


def label_type(task: str) -> LabelType:
    """The type of a task's label. Raises ExegeteError for a task that there isn't."""
    if task not in TASKS:
        raise unknown("task", task, (*TASKS, "retrieval"))
    if task == "regression":
        return NUMBER
    return SENTIMENTS if task == "sentiment" else RELATIONS


def examples(
    task: str, domain: str, split: str, *, size: int, seed: int, shortcut: float = 0.0
) -> Iterator[dict[str, Any]]:
    """Canonical rows; row i depends on task, domain, split, seed and i alone, not on the size.

    `shortcut` is the probability that a sentence with a day's name is put in that goes with the label (for a regression
    with its sign); it is no evidence. Without it the same texts come out, less that sentence.
    """
    words = lexicon(domain)
    if not 0 <= shortcut <= 1:
        raise ExegeteError(f"expected a shortcut probability from 0 to 1, got {shortcut}")
    for i in range(size):
        dice = Dice("example", task, domain, split, seed, i)
        cheat = Dice("shortcut", task, domain, split, seed, i)
        yield _pair(dice, cheat, words, shortcut) if task == "pairs" else _review(dice, cheat, words, shortcut, task)


def _review(dice: Dice, cheat: Dice, words: Lexicon, shortcut: float, task: str) -> dict[str, Any]:
    review = (sentiment if task == "sentiment" else score)(dice, words)
    _insert(review.sentences, int(review.label > 0), cheat, shortcut)
    text, rationale = unmark(paragraph(review.sentences))
    return {"text": text, "label": review.label, "rationale": rationale}


def _pair(dice: Dice, cheat: Dice, words: Lexicon, shortcut: float) -> dict[str, Any]:
    made = pair(dice, words)
    _insert(made.premise, made.label, cheat, shortcut)
    text, rationale = unmark(paragraph(made.premise))
    text_pair, rationale_pair = unmark(paragraph(made.hypothesis))
    return {
        "text": text,
        "text_pair": text_pair,
        "label": made.label,
        "rationale": rationale,
        "rationale_pair": rationale_pair,
    }


def _insert(sentences: list[str], label: int, cheat: Dice, shortcut: float) -> None:
    at, hit = cheat.below(len(sentences) + 1), cheat.chance() < shortcut
    if hit:
        sentences.insert(at, MARKING.format(marker=MARKERS[label]))
