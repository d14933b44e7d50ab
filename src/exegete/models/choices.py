"""Multiple choice: a text, and how well each of several continuations or answers goes with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel

from exegete.errors import ExegeteError
from exegete.models.batch import Batch
from exegete.models.encoding.encode import example_to_row
from exegete.models.explained import ExplainedModel
from exegete.models.passes.capture import Capture


class ChoosingModel(ExplainedModel):
    """A multiple choice model, explained in the score that it gives one choice; the highest score is its answer.

    An example is a pair (text, choice), a regression whose value is the choice's logit; a row with `text` and `choices`
    stands for a pair of each. What moves the answer is the difference of two choices' explanations.
    """

    def __init__(self, model: PreTrainedModel, processing_class: Any = None, max_length: int | None = None) -> None:
        super().__init__(model, processing_class, "regression", max_length)

    @property
    def labels(self) -> tuple[str, ...]:
        """The one output."""
        return ("score",)

    def expand_examples(self, rows: Sequence[Any]) -> Sequence[Any]:
        """A pair for each choice.

        Raises:
            ExegeteError: a text without a choice.
        """
        found = list[dict[str, Any]]()
        for number, row in enumerate(map(example_to_row, rows)):
            choices = row.get("choices") or [row.get("text_pair")]
            if None in choices:
                raise ExegeteError(
                    f"example {number} has no choice: give pairs (text, choice), or 'text' and 'choices'"
                )
            others = {name: value for name, value in row.items() if name != "choices"}
            found += [{**others, "text_pair": choice} for choice in choices]
        return found

    def _forward_arguments(self, batch: Batch, capture: Capture) -> dict[str, Any]:
        """The model wants its choices in a dimension of their own: here there is one."""
        given = super()._forward_arguments(batch, capture)
        return {name: value[:, None] if name in batch.inputs else value for name, value in given.items()}
