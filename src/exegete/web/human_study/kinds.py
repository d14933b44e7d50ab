"""The kinds of human study: ranking explanations, marking evidence, predicting the model's answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from exegete.data.alignment import Word
from exegete.data.marked import split_units
from exegete.data.spans import merge_marked_words
from exegete.web.human_study.blind import Unnamed
from exegete.web.human_study.texts import MissingError, texts

ONLY = ""
BEFORE, AFTER = "before", "after"


@dataclass(frozen=True)
class Asked:
    """The content of a question to one annotator about one example.

    `shown`: its explanations under letters, in this annotator's order; `labels`: what the model can answer; `changed`:
    the version of the example whose answer is asked, where there is one; `unit`: what is marked.
    """

    texts: tuple[str, ...]
    has_picture: bool
    shown: Sequence[Unnamed]
    labels: Sequence[str]
    prediction: str | None
    changed: Mapping[str, Any] | None = None
    unit: str = "word"

    @property
    def units(self) -> list[Word]:
        """The parts of all texts that can be marked."""
        return split_units(self.texts, self.unit)


class Kind(ABC):
    """A kind of study. `phases` are asked one after the other; `final`: an answer in these cannot be changed.

    `guesses`: people say what the model answers; `changes`: to a changed version of each example.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    phases: ClassVar[tuple[str, ...]] = (ONLY,)
    final: ClassVar[tuple[str, ...]] = ()
    fewest: ClassVar[int] = 0
    guesses: ClassVar[bool] = False
    changes: ClassVar[bool] = False

    @property
    def question(self) -> str:
        """The question to people, in English."""
        return str(texts()(f"{self.name}_question"))

    @abstractmethod
    def read(self, form: Mapping[str, Sequence[str]], asked: Asked, phase: str) -> dict[str, Any]:
        """The answer that a form holds, by method. Raises MissingError, telling what that is."""


class Rank(Kind):
    """Rank unnamed explanations, 1 is best, ties allowed (Fernandes et al. 2022, appendix B)."""

    name = "rank"
    title = "Rank explanations"
    fewest = 2

    def read(self, form: Mapping[str, Sequence[str]], asked: Asked, phase: str) -> dict[str, Any]:
        """`ranks` by method, and the `order` in which they were shown."""
        ranks = {}
        for each in asked.shown:
            given = form.get(f"rank-{each.letter}", ())
            if len(given) != 1 or given[0] not in map(str, range(1, len(asked.shown) + 1)):
                raise MissingError("needs_rank", letter=each.letter, count=len(asked.shown))
            ranks[each.method] = int(given[0])
        return {"ranks": ranks, "order": [each.method for each in asked.shown]}


class Highlight(Kind):
    """Mark the words or sentences that are evidence for the label: a human rationale."""

    name = "highlight"
    title = "Mark evidence"

    def read(self, form: Mapping[str, Sequence[str]], asked: Asked, phase: str) -> dict[str, Any]:
        """`marks`: (side, start, end) in characters; neighbouring units make one mark."""
        units = asked.units
        chosen = set(form.get("unit", ()))
        if not chosen <= {str(number) for number in range(len(units))}:
            raise MissingError("not_of_text")
        marks = [
            [side, start, end]
            for side in range(len(asked.texts))
            for start, end in merge_marked_words(
                [(unit.start, unit.end) for unit in units if unit.side == side],
                [str(number) in chosen for number, unit in enumerate(units) if unit.side == side],
            )
        ]
        return {"marks": marks}


class Simulate(Kind):
    """Predict the model's answer, first without and then with an explanation (forward simulation)."""

    name = "simulate"
    title = "Predict the model"
    phases = (BEFORE, AFTER)
    final = (BEFORE,)
    fewest = 1
    guesses = True

    def read(self, form: Mapping[str, Sequence[str]], asked: Asked, phase: str) -> dict[str, Any]:
        """`guess`: a label; `method`: what explained it, in the second phase."""
        given = form.get("guess", ())
        if len(given) != 1 or given[0] not in map(str, range(len(asked.labels))):
            raise MissingError("needs_guess")
        guess = {"guess": asked.labels[int(given[0])]}
        return guess | ({"method": asked.shown[0].method} if phase == AFTER else {})


class Counterfactual(Simulate):
    """Predict the model's answer to a changed version of an example whose answer is known, before and after the
    example's explanation (counterfactual simulation, Hase and Bansal 2020, section 3.2).
    """

    name = "counterfactual"
    title = "Predict the model on changed examples"
    changes = True


KINDS: dict[str, Kind] = {kind.name: kind for kind in (Rank(), Highlight(), Simulate(), Counterfactual())}
