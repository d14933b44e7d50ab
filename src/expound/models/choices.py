"""Multiple choice models: a text, and a score for each of several continuations or answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel

from expound.errors import ExpoundError
from expound.models.batch import Batch, Capture
from expound.models.encoding.encode import example_to_row
from expound.models.explained import ExplainedModel


class ChoosingModel(ExplainedModel):
    """A multiple choice model, explained in the score of one choice; it predicts the choice with the highest score.

    An example is a pair (text, choice), a regression whose value is the choice's logit; a row with `text` and `choices`
    means one pair per choice. The difference of two choices' explanations explains the decision between them.

    Args:
        model: a multiple choice model.
        processing_class: its tokenizer.
        max_length: the most tokens of text and choice, if fewer than the model allows.
    """

    def __init__(self, model: PreTrainedModel, processing_class: Any = None, max_length: int | None = None) -> None:
        super().__init__(model, processing_class, "regression", max_length)

    @property
    def labels(self) -> tuple[str, ...]:
        """The name of the only output."""
        return ("score",)

    def expand_examples(self, rows: Sequence[Any]) -> Sequence[Any]:
        """Return one pair (text, choice) per choice.

        Raises:
            ExpoundError: a text without a choice.
        """
        pairs = list[dict[str, Any]]()
        for number, row in enumerate(map(example_to_row, rows)):
            choices = row.get("choices") or [row.get("text_pair")]
            if None in choices:
                raise ExpoundError(
                    f"example {number} has no choice: give pairs (text, choice), or 'text' and 'choices'"
                )
            others = {name: value for name, value in row.items() if name != "choices"}
            pairs += [{**others, "text_pair": choice} for choice in choices]
        return pairs

    def _forward_arguments(self, batch: Batch, capture: Capture) -> dict[str, Any]:
        arguments = super()._forward_arguments(batch, capture)
        # transformers' models take all choices of a text at once, [B, choices, L]; here each row is a single choice.
        for name in batch.inputs.keys() & arguments.keys():
            arguments[name] = arguments[name][:, None]
        return arguments
