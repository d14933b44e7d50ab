"""Can a model be made to change its mind by words that should not matter?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd
from datasets import Dataset
from numpy.typing import NDArray

from exegete.data.alignment import words_of
from exegete.data.swaps import Swap, applied, swaps
from exegete.errors import ExegeteError
from exegete.explainers.attribute_examples import make_batches
from exegete.models import ExplainedModel
from exegete.models.encoding.encode import example_to_row
from exegete.models.encoding.labels import renumber_labels
from exegete.reports.progress import progress_bar

Status = Literal["succeeded", "failed", "out of queries", "nothing to swap", "wrong already"]
SIDES = ("text", "text_pair")
EXAMPLES_PER_ROUND = 64


@dataclass(frozen=True, slots=True)
class AttackResult:
    """The outcome of the attack on one example.

    `text` and `text_pair`: the changed texts of a successful attack, else the given ones. `before` and `after`: the
    label's probability of those and of these. `changed`: words of the original that the attack replaced, of `words`.
    """

    status: Status
    text: str
    text_pair: str | None
    label: int
    predicted: int
    before: float
    after: float
    words: int
    changed: int
    queries: int


@dataclass(frozen=True)
class AttackReport:
    """Every example in the order given, and the figures of all (REGEX, Table 6). Shares are from 0 to 1."""

    examples: Sequence[AttackResult]

    @property
    def counts(self) -> Counter[Status]:
        """How many examples ended how."""
        return Counter(example.status for example in self.examples)

    @property
    def figures(self) -> dict[str, float]:
        """The figures by name; NaN where there is nothing to take a mean of.

        `successes`: how many predictions changed. `original_accuracy`, `accuracy_under_attack`: of all examples.
        `success_rate`: of those that were right. `perturbed_words`: share of a text's words, mean over successes.
        `words_per_input`: mean over all. `queries`: texts that the model was shown, mean over those that were right.
        """
        total, count = len(self.examples), self.counts
        right = total - count["wrong already"]
        won = [example for example in self.examples if example.status == "succeeded"]
        tried = [example.queries for example in self.examples if example.status != "wrong already"]
        return {
            "successes": float(len(won)),
            "original_accuracy": right / total,
            "accuracy_under_attack": (right - len(won)) / total,
            "success_rate": len(won) / right if right else math.nan,
            "perturbed_words": _mean([example.changed / example.words for example in won]),
            "words_per_input": _mean([example.words for example in self.examples]),
            "queries": _mean(tried),
        }

    def to_pandas(self) -> pd.DataFrame:
        """The attacked examples as a table, one row each."""
        return pd.DataFrame([asdict(example) for example in self.examples])


def attack(
    model: ExplainedModel,
    rows: Dataset | Sequence[Any],
    *,
    budget: int | None = None,
    kinds: Sequence[str] | None = None,
    choices: int = 5,
    seed: int = 0,
    show_progress: bool | None = None,
) -> AttackReport:
    """Swaps contractions, names, places and numbers until the prediction is wrong (CheckList, Ribeiro et al. 2020).

    Greedy search: every round tries each word for every stretch that was not swapped yet and keeps the text that gives
    the label the lowest probability, until the prediction changes (succeeded), no stretch is left (failed) or the
    queries are used up (out of queries; the last round is cut short where they end). Examples that are wrong to begin
    with are left alone. All rounds of 64 examples go on together, packed by length.

    Args:
        model: a classifier, any.
        rows: a dataset, or texts or pairs in canonical columns with `label` in the model's numbering.
        budget: texts that the model may be shown for an example, the original one included; None: no limit.
        kinds: of swaps, see `swaps`.
        choices: words to try for each stretch.
        seed: of the words; the outcome depends on nothing else.
        show_progress: a progress bar on stderr; default: where a person waits longer than a second.

    Raises:
        ExegeteError: no classifier or no texts, a row without a label, a budget below 1, no row, an unknown kind.
    """
    if isinstance(rows, Dataset):
        rows = renumber_labels(model, rows)
    _require_attackable(model, rows, budget)
    found: list[AttackResult] = []
    with progress_bar("attacking", len(rows), show_progress) as done:
        for start in range(0, len(rows), EXAMPLES_PER_ROUND):
            part = [
                _Attempt.from_row(example_to_row(row), kinds, choices, seed)
                for row in rows[start : start + EXAMPLES_PER_ROUND]
            ]
            _run_attempts(model, part, math.inf if budget is None else budget)
            found += [attempt.to_result() for attempt in part]
            done(len(part))
    return AttackReport(found)


@dataclass
class _Attempt:
    """An example under attack: what can be swapped on each side, what is swapped, and the probabilities so far."""

    texts: list[str]
    label: int
    stretches: list[list[Swap]]
    chosen: dict[tuple[int, int], str] = field(default_factory=dict)
    first: NDArray[np.float64] | None = None
    last: NDArray[np.float64] | None = None
    queries: int = 0
    status: Status | None = None

    @classmethod
    def from_row(cls, row: Mapping[str, Any], kinds: Sequence[str] | None, choices: int, seed: int) -> _Attempt:
        texts = [str(row[side]) for side in SIDES if row.get(side) is not None]
        return cls(texts, row["label"], [swaps(text, kinds=kinds, choices=choices, seed=seed) for text in texts])

    def list_moves(self) -> list[tuple[tuple[int, int], str]]:
        """Every stretch that is still as it was, with every word for it."""
        places = ((side, number) for side, found in enumerate(self.stretches) for number in range(len(found)))
        free = (place for place in places if place not in self.chosen)
        return [(place, word) for place in free for word in self.stretches[place[0]][place[1]].choices]

    def apply_swaps(self, more: Mapping[tuple[int, int], str] | None = None) -> dict[str, str]:
        """The texts with what is chosen so far, and more."""
        chosen = {**self.chosen, **(more or {})}
        sides = (
            applied(text, self.stretches[side], {number: word for (at, number), word in chosen.items() if at == side})
            for side, text in enumerate(self.texts)
        )
        return dict(zip(SIDES, sides, strict=False))

    def start(self, answer: NDArray[np.float64]) -> None:
        """Takes the answer to the original."""
        self.first = self.last = answer
        self.queries = 1
        if answer.argmax() != self.label:
            self.status = "wrong already"
        elif not any(self.stretches):
            self.status = "nothing to swap"

    def apply_move(self, move: tuple[tuple[int, int], str], answer: NDArray[np.float64]) -> None:
        """Takes the best move of a round."""
        self.chosen |= dict([move])
        self.last = answer
        if answer.argmax() != self.label:
            self.status = "succeeded"

    def to_result(self) -> AttackResult:
        """The outcome; an attack that failed leaves the texts as they were."""
        assert self.first is not None
        assert self.last is not None
        assert self.status is not None
        won = self.status == "succeeded"
        end = self.last if won else self.first
        given = dict(zip(SIDES, self.texts, strict=False))
        texts = self.apply_swaps() if won else given
        words, changed = self._count_words()
        return AttackResult(
            self.status, texts["text"], texts.get("text_pair"), self.label, int(end.argmax()),
            float(self.first[self.label]), float(end[self.label]), words, changed if won else 0, self.queries,
        )  # fmt: skip

    def _count_words(self) -> tuple[int, int]:
        """Words, and those that overlap something swapped."""
        words = [(side, word) for side, text in enumerate(self.texts) for word in words_of(text)]
        swapped = [(side, self.stretches[side][number]) for side, number in self.chosen]
        changed = sum(
            any(at == side and word.start < swap.end and swap.start < word.end for at, swap in swapped)
            for side, word in words
        )
        return len(words), changed


def _run_attempts(model: ExplainedModel, attempts: Sequence[_Attempt], budget: float) -> None:
    """Runs attempts to their ends, one round of all of them at a time."""
    for attempt, answer in zip(attempts, _predict(model, [each.apply_swaps() for each in attempts]), strict=True):
        attempt.start(answer)
    while going := [attempt for attempt in attempts if attempt.status is None]:
        rounds = []
        for attempt in going:
            list_moves = attempt.list_moves()
            left = int(min(budget - attempt.queries, len(list_moves)))
            if not left:
                attempt.status = "out of queries" if list_moves else "failed"
            rounds.append(list_moves[:left])
        texts = [
            a.apply_swaps(dict([move])) for a, list_moves in zip(going, rounds, strict=True) for move in list_moves
        ]
        answers = _predict(model, texts)
        for attempt, list_moves in zip(going, rounds, strict=True):
            mine, answers = answers[: len(list_moves)], answers[len(list_moves) :]
            attempt.queries += len(list_moves)
            if list_moves:
                best = int(np.argmin([answer[attempt.label] for answer in mine]))
                attempt.apply_move(list_moves[best], mine[best])


def _predict(model: ExplainedModel, rows: Sequence[Mapping[str, str]]) -> list[NDArray[np.float64]]:
    """Class probabilities of every row, in passes of many rows of like length."""
    found: dict[int, NDArray[np.float64]] = {}
    for indices in make_batches(model, rows) if rows else ():
        batch = model.encode([rows[index] for index in indices])
        found |= zip(indices, model.probabilities(batch).double().cpu().numpy(), strict=True)
    return [found[index] for index in range(len(rows))]


def _require_attackable(model: ExplainedModel, rows: Sequence[Any], budget: int | None) -> None:
    if model.task.name != "classification" or model.modality != "text":
        raise ExegeteError(f"an attack needs a classifier of texts with one label each, not {model.task.name}")
    if budget is not None and budget < 1:
        raise ExegeteError(f"the budget is at least 1 query an example, got {budget}")
    if not len(rows):
        raise ExegeteError("there is nothing to attack: no example was given")
    classes = (hasattr(example_to_row(row).get("label"), "__index__") for row in rows)
    missing = next((number for number, known in enumerate(classes) if not known), None)
    if missing is not None:
        raise ExegeteError(f"row {missing} has no label that is a class: an attack changes predictions that are right")


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan
