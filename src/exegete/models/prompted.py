"""A causal language model as a classifier: a prompt around the text, and one token for each label."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from tokenizers import Encoding
from torch import Tensor
from transformers import PreTrainedModel

from exegete.data.alignment import align
from exegete.errors import ExegeteError
from exegete.models.batch import Batch
from exegete.models.encoding import encode as encoding
from exegete.models.encoding.template import Template, fit_template
from exegete.models.explained import ExplainedModel
from exegete.models.passes.capture import Capture
from exegete.models.tasks import Classification

logger = logging.getLogger(__name__)


def make_few_shot_template(instruction: str, shots: Sequence[tuple[str, str]]) -> str:
    """A template: the instruction, shots as `Text:…` and `Label:…`, then the text to classify.

    The labels of the shots are written as the labels given to `load` are.
    """
    blocks = [instruction, *(f"Text:{text}\nLabel:{label}" for text, label in shots), "Text:{text}\nLabel:"]
    return "\n\n".join(block for block in blocks if block)


class LabelTokens(Classification):
    """Softmax over the labels' tokens at the last position."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = list(ids)

    def logits(self, output: Any, batch: Batch) -> Tensor:
        """[B, C] The logits of the labels' tokens, after everything else.

        Raises:
            ExegeteError: padding comes last.
        """
        if not batch.attended[:, -1].all():
            raise ExegeteError("a prompted model answers at the last position: pad the prompts on their left")
        logits: Tensor = output.logits[:, -1, self.ids]
        return logits


class PromptedModel(ExplainedModel):
    """A causal language model that classifies a text by continuing a prompt with a label.

    Only the text can carry attribution: prompt, shots and label prompt stay as they are under every perturbation. The
    prompt is tokenized as a whole, with the special tokens that its tokenizer adds; a token that holds characters of
    both text and prompt belongs to the prompt. Too long a text is cut at its end, never the prompt.

    Args:
        model: a causal language model.
        processing_class: its tokenizer.
        template: the prompt, `{text}` standing for the text (and `{text_pair}` for the second one of a pair).
        labels: how each label continues the prompt, as `[" negative", " positive"]`, or by name,
            `{"negative": " N", "positive": " P"}`. Each is one token.
        max_length: tokens that prompt and text may have together, where that shall be fewer than the model takes.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        processing_class: Any,
        template: str,
        labels: Sequence[str] | Mapping[str, str],
        max_length: int | None = None,
    ) -> None:
        super().__init__(model, processing_class, "classification", max_length)
        if not self.is_decoder:
            raise ExegeteError(f"task='prompt' needs a causal language model, got {type(model).__name__}")
        self.template = Template.parse(template)
        named = labels if isinstance(labels, Mapping) else {label.strip(): label for label in labels}
        if len(named) < 2 or len(named) < len(labels):
            raise ExegeteError(f"expected at least two different labels, got {list(labels)}")
        self._answers = {name: self._label_token(label) for name, label in named.items()}
        self.task = LabelTokens(list(self._answers.values()))
        if len(set(self._answers.values())) < len(named):
            raise ExegeteError(f"two of the labels {list(named.values())} are the same token")

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels' names, in their order."""
        return tuple(self._answers)

    @property
    def settings(self) -> dict[str, Any]:
        """Also the prompt, and the tokens that are answers."""
        prompt = {"pieces": list(self.template.pieces), "sides": list(self.template.sides)}
        return super().settings | {"prompt": prompt, "labels": self._answers}

    def encode(self, examples: Sequence[Any], device: str | torch.device | None = None) -> Batch:
        """Texts (or pairs, where the template has a place for two) in their prompts, as one left-padded batch.

        Raises:
            ExegeteError: an empty text, a prompt that leaves no room for it, no tokenizer.
        """
        return encoding.encode(self, examples, type(self)._tokenized, device)

    def _forward_arguments(self, batch: Batch, capture: Capture) -> dict[str, Any]:
        only_last = {"logits_to_keep": 1} if self.accepts("logits_to_keep") else {}
        return super()._forward_arguments(batch, capture) | only_last

    def _tokenized(self, rows: encoding.Rows) -> encoding.TokenizedRows:
        texts = encoding.get_texts(rows)
        placed = [fit_template(self.tokenizer, self.template, text, self.max_length) for text in texts]
        cut = [shorter != text for (_, shorter), text in zip(placed, texts, strict=True)]
        if any(cut):
            logger.warning("%d of %d texts do not fit into %d tokens: truncated", sum(cut), len(rows), self.max_length)
        return [one for one, _ in placed], tuple(
            align(text, cast("Encoding", one), truncated=short)
            for text, (one, _), short in zip(texts, placed, cut, strict=True)
        )

    def _label_token(self, label: str) -> int:
        """The one token by which the end of the prompt grows with the label."""
        end = self.template.pieces[-1]
        before, after = (self.tokenizer(text, add_special_tokens=False)["input_ids"] for text in (end, end + label))
        if len(after) != len(before) + 1 or after[:-1] != before:
            raise ExegeteError(
                f"the label {label!r} does not continue {end[-20:]!r} by one token, but as "
                f"{self.tokenizer.convert_ids_to_tokens(after[len(before) :])}: choose another word, or move a space "
                "between the end of the template and the beginning of the labels"
            )
        return int(after[-1])
