"""The reader of the generated corpus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from expound.data.cards import DataCard
from expound.data.generated.corpus import SENTIMENTS, TASKS, generate_examples
from expound.data.generated.pairs import LABELS as RELATIONS
from expound.data.generated.retrieval import KINDS, generate_exchanges
from expound.data.readers.base import NUMBER, LabelType, Reader, Table, make_text_features
from expound.data.readers.exchanges import make_exchange_table
from expound.errors import ExpoundError, unknown


@dataclass(frozen=True, kw_only=True)
class Generated(Reader):
    """Generates examples with known evidence: rationales, or the names of sources for generated text.

    Args:
        task: sentiment, pairs, regression, or retrieval (questions on notes, for language models).
        domain: films or gadgets.
        shortcut: probability of a spurious word that correlates with the label.
        size: number of examples of train; dev and test have a quarter of it.
        kind: only questions on notes of this kind: "one hop", "redundant" or "two hops".
    """

    card: ClassVar[DataCard] = DataCard(
        name="generated", what="made-up reviews, pairs and questions on notes whose evidence is known; no files needed",
        form="generated?task=sentiment|pairs|regression|retrieval&domain=films|gadgets&shortcut=P&size=N&seed=S",
        source="expound", license="Apache-2.0", example="generated?task=pairs&size=500",
    )  # fmt: skip
    needs_path: ClassVar[bool] = False
    task: str = "sentiment"
    domain: str = "films"
    shortcut: float = 0.0
    size: int = 2000
    kind: str | None = None

    def splits(self) -> tuple[str, ...]:
        """Return train, dev and test."""
        return ("train", "dev", "test")

    def table(self, split: str) -> Table:
        """Return the generated examples of a split."""
        if self.size < 1:
            raise ExpoundError(f"expected a size of at least 1, got {self.size}")
        if self.kind is not None and (self.task != "retrieval" or self.kind not in KINDS):
            raise unknown("kind of question (task=retrieval)", self.kind, KINDS)
        size = self.size if split == "train" else -(-self.size // 4)
        if self.task == "retrieval":
            rows = generate_exchanges(split, size=size, seed=self.seed, kind=self.kind)
            return make_exchange_table([(f"row {number}", row) for number, row in enumerate(rows)])
        features = make_text_features(get_label_type(self.task), pair=self.task == "pairs")
        rows = generate_examples(self.task, self.domain, split, size=size, seed=self.seed, shortcut=self.shortcut)
        return Table(features, rows)


def get_label_type(task: str) -> LabelType:
    """Return the type of a task's label. Raises ExpoundError for an unknown task."""
    if task not in TASKS:
        raise unknown("task", task, (*TASKS, "retrieval"))
    if task == "regression":
        return NUMBER
    return SENTIMENTS if task == "sentiment" else RELATIONS
