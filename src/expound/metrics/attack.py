"""Attacks: can a model's prediction be changed by words that should not matter?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from datasets import Dataset
from numpy.typing import NDArray

from expound.data.alignment import Word, split_words
from expound.data.swaps import Swap, apply_swaps, find_swaps
from expound.errors import ExpoundError
from expound.models import ExplainedModel
from expound.models.encoding.encode import example_to_row, make_batches
from expound.models.encoding.labels import renumber_labels
from expound.reports.text import progress_bar

Status = Literal["succeeded", "failed", "out of queries", "nothing to swap", "wrong already"]
SIDES = ("text", "text_pair")
EXAMPLES_PER_ROUND = 64


@dataclass(frozen=True, slots=True)
class AttackResult:
    """The outcome of the attack on one example.

    `text` and `text_pair`: the changed texts of a successful attack, otherwise the original ones. `before` and `after`:
    the label's probability on the original and on these texts. `words`: number of words of the original; `changed`:
    number of words that the attack replaced. `queries`: texts that the model was shown.
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
    """The results of all examples in their order, and summary figures (REGEX, Table 6). Shares are from 0 to 1."""

    examples: Sequence[AttackResult]

    @property
    def counts(self) -> Counter[Status]:
        """The number of examples by the status that their attack ended with."""
        return Counter([example.status for example in self.examples])

    @property
    def figures(self) -> dict[str, float]:
        """Summary figures by name; NaN for means over no example.

        `successes`: number of changed predictions. `original_accuracy`, `accuracy_under_attack`: over all examples.
        `success_rate`: over the examples that were right. `perturbed_words`: share of a text's words, mean over
        successes. `words_per_input`: mean over all. `queries`: texts that the model was shown, mean over the examples
        that were right.
        """
        frame = self.to_pandas()
        right, won = frame[frame["status"] != "wrong already"], frame[frame["status"] == "succeeded"]
        return {
            "successes": float(len(won)),
            "original_accuracy": len(right) / len(frame),
            "accuracy_under_attack": (len(right) - len(won)) / len(frame),
            "success_rate": len(won) / len(right) if len(right) else math.nan,
            "perturbed_words": float((won["changed"] / won["words"]).mean()),
            "words_per_input": float(frame["words"].mean()),
            "queries": float(right["queries"].mean()),
        }

    def to_pandas(self) -> pd.DataFrame:
        """Return the results as a table, one row per example."""
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
    """Swap contractions, names, places and numbers until the prediction is wrong (CheckList, Ribeiro et al. 2020).

    Greedy search: each round tries every alternative of every passage that is still unchanged and keeps the text with
    the lowest probability of the label, until the prediction changes (succeeded), no passage is left (failed) or the
    budget is used up (out of queries; the last round is cut off there). Passages that do not fit into the model are
    left alone. Examples that are wrong from the start are not attacked. The rounds of 64 examples run together, in
    batches of similar length.

    Args:
        model: a text classifier.
        rows: a dataset, or texts or pairs in canonical columns with `label` in the model's numbering.
        budget: number of texts that the model may be shown per example, including the original; None: no limit.
        kinds: kinds of swaps, see `expound.data.swaps`.
        choices: alternatives to try for each passage.
        seed: determines the alternatives, and with them the outcome.
        show_progress: whether to show a progress bar on stderr; default: if the attack takes more than a second.

    Raises:
        ExpoundError: no text classifier, a row without a label, a budget below 1, no row, or an unknown kind.
    """
    if isinstance(rows, Dataset):
        rows = renumber_labels(model, rows)
    _require_attackable(model, rows, budget)
    results: list[AttackResult] = []
    with progress_bar("attacking", len(rows), show_progress) as advance:
        for start in range(0, len(rows), EXAMPLES_PER_ROUND):
            attempts = _make_attempts(model, rows[start : start + EXAMPLES_PER_ROUND], kinds, choices, seed)
            _run_attempts(model, attempts, math.inf if budget is None else budget)
            results += [attempt.to_result() for attempt in attempts]
            advance(len(attempts))
    return AttackReport(results)


class _Move(NamedTuple):
    """One swap: the number of the text, the number of the swappable passage in it, and the new word."""

    side: int
    passage: int
    word: str


@dataclass
class _Attempt:
    """The state of the attack on one example.

    `passages`: what can be swapped in each text; `moves`: the swaps made so far; `first` and `last`: class
    probabilities of the original and of the present text.
    """

    texts: list[str]
    label: int
    passages: list[list[Swap]]
    moves: list[_Move] = field(default_factory=list)
    first: NDArray[np.float64] | None = None
    last: NDArray[np.float64] | None = None
    queries: int = 0
    status: Status | None = None

    def list_moves(self) -> list[_Move]:
        """Return every word for every passage that is not swapped yet."""
        swapped = {(move.side, move.passage) for move in self.moves}
        moves = []
        for side, passages in enumerate(self.passages):
            for number, swap in enumerate(passages):
                if (side, number) not in swapped:
                    moves += [_Move(side, number, word) for word in swap.choices]
        return moves

    def apply_swaps(self, *more: _Move) -> dict[str, str]:
        """Return the texts, by column, with the swaps made so far and more."""
        changed = {}
        for side, text in enumerate(self.texts):
            words = {each.passage: each.word for each in (*self.moves, *more) if each.side == side}
            changed[SIDES[side]] = apply_swaps(text, self.passages[side], words)
        return changed

    def start(self, answer: NDArray[np.float64]) -> None:
        """Record the class probabilities of the original texts."""
        self.first = self.last = answer
        self.queries = 1
        if answer.argmax() != self.label:
            self.status = "wrong already"
        elif not any(self.passages):
            self.status = "nothing to swap"

    def apply_move(self, move: _Move, answer: NDArray[np.float64]) -> None:
        """Make the best swap of a round, which has these class probabilities."""
        self.moves.append(move)
        self.last = answer
        if answer.argmax() != self.label:
            self.status = "succeeded"

    def to_result(self) -> AttackResult:
        """Return the outcome; a failed attack leaves the texts unchanged."""
        if self.status != "succeeded":
            self.moves, self.last = [], self.first
        assert self.first is not None
        assert self.last is not None
        assert self.status is not None
        texts, (words, changed) = self.apply_swaps(), self._count_words()
        return AttackResult(
            self.status, texts["text"], texts.get("text_pair"), self.label, int(self.last.argmax()),
            float(self.first[self.label]), float(self.last[self.label]), words, changed, self.queries,
        )  # fmt: skip

    def _count_words(self) -> tuple[int, int]:
        """Return the number of words, and the number of words that overlap a swapped passage."""
        count = changed = 0
        for side, text in enumerate(self.texts):
            swapped = [self.passages[side][move.passage] for move in self.moves if move.side == side]
            for word in split_words(text):
                count += 1
                changed += any(_overlap(word, swap) for swap in swapped)
        return count, changed


def _make_attempts(
    model: ExplainedModel, rows: Sequence[Any], kinds: Sequence[str] | None, choices: int, seed: int
) -> list[_Attempt]:
    """Return the start of the attack on each row, with the passages of the words that the model reads."""
    examples = [example_to_row(row) for row in rows]
    texts = [{side: str(row[side]) for side in SIDES if row.get(side) is not None} for row in examples]
    attempts = []
    for row, sides, alignment in zip(examples, texts, model.encode(texts).alignments or (), strict=True):
        passages = []
        for side, text in enumerate(sides.values()):
            # an alignment has no words of the end of a text that is too long for the model
            words = [word for word in alignment.words if word.segment == side]
            swaps = find_swaps(text, kinds=kinds, choices=choices, seed=seed)
            passages.append([swap for swap in swaps if any(_overlap(word, swap) for word in words)])
        attempts.append(_Attempt(list(sides.values()), row["label"], passages))
    return attempts


def _overlap(word: Word, swap: Swap) -> bool:
    return word.start < swap.end and swap.start < word.end


def _run_attempts(model: ExplainedModel, attempts: Sequence[_Attempt], budget: float) -> None:
    """Run attempts to their ends, one round of all of them at a time so that their texts share passes."""
    originals = _predict(model, [attempt.apply_swaps() for attempt in attempts])
    for attempt, answer in zip(attempts, originals, strict=True):
        attempt.start(answer)
    running = [attempt for attempt in attempts if attempt.status is None]
    while running:
        rounds, texts = [], []
        for attempt in running:
            moves = attempt.list_moves()
            allowed = moves[: int(min(budget - attempt.queries, len(moves)))]
            if not moves:
                attempt.status = "failed"
            elif not allowed:
                attempt.status = "out of queries"
            rounds.append(allowed)
            texts += [attempt.apply_swaps(move) for move in allowed]
        answers = iter(_predict(model, texts))
        for attempt, moves in zip(running, rounds, strict=True):
            own = list(islice(answers, len(moves)))
            attempt.queries += len(moves)
            if moves:
                best = int(np.argmin([answer[attempt.label] for answer in own]))
                attempt.apply_move(moves[best], own[best])
        running = [attempt for attempt in running if attempt.status is None]


def _predict(model: ExplainedModel, rows: Sequence[Mapping[str, str]]) -> list[NDArray[np.float64]]:
    """Return the class probabilities of every row, computed in batches of similar length."""
    answers: dict[int, NDArray[np.float64]] = {}
    if not rows:
        return []
    for indices in make_batches(model, rows):
        batch = model.encode([rows[index] for index in indices])
        answers |= zip(indices, model.probabilities(batch).double().cpu().numpy(), strict=True)
    return [answers[index] for index in range(len(rows))]


def _require_attackable(model: ExplainedModel, rows: Sequence[Any], budget: int | None) -> None:
    if not model.task.supports("classes") or model.modality != "text":
        raise ExpoundError(f"an attack needs a classifier of texts with one label each, not {model.task.name}")
    if budget is not None and budget < 1:
        raise ExpoundError(f"expected a budget of at least 1 query per example, got {budget}")
    if not len(rows):
        raise ExpoundError("expected at least one example to attack, got none")
    for number, row in enumerate(rows):
        # numpy integers count as class labels too; regression targets do not.
        if not hasattr(example_to_row(row).get("label"), "__index__"):
            raise ExpoundError(
                f"row {number} has no label that is a class: an attack changes predictions that are right"
            )
