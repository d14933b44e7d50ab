"""Causal language models as classifiers: a prompt around the text, and one token per label."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from tokenizers import Encoding
from torch import Tensor
from transformers import PreTrainedModel

from expound.data.alignment import align
from expound.errors import ExpoundError
from expound.models.batch import Batch, Capture
from expound.models.encoding import encode as encoding
from expound.models.encoding.template import Template, fit_template
from expound.models.explained import ExplainedModel
from expound.models.tasks import Classification

logger = logging.getLogger(__name__)


class LabelTokens(Classification):
    """Classification by the softmax over the labels' tokens at the last position."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = list(ids)

    def logits(self, output: Any, batch: Batch) -> Tensor:
        """Return the logits [B, C] of the labels' tokens after the prompt.

        Raises:
            ExpoundError: padding comes last.
        """
        if not batch.attended[:, -1].all():
            raise ExpoundError("a prompted model answers at the last position: pad the prompts on their left")
        logits: Tensor = output.logits[:, -1, self.ids]
        return logits


class PromptedModel(ExplainedModel):
    """A causal language model that classifies a text by continuing a prompt with a label.

    Only the text can carry attribution: prompt, shots and label prompt stay the same under every perturbation. The
    prompt is tokenized as a whole, with the special tokens that its tokenizer adds; a token that holds characters of
    both text and prompt belongs to the prompt. A text that is too long is cut at its end; the prompt never is.

    Args:
        model: a causal language model.
        processing_class: its tokenizer.
        template: the prompt, with `{text}` in the place of the text (and `{text_pair}` of the second text of a pair).
        labels: how each label continues the prompt, as `[" negative", " positive"]`, or by name,
            `{"negative": " N", "positive": " P"}`. Each is one token.
        max_length: the most tokens of prompt and text together, if fewer than the model allows.

    Raises:
        ExpoundError: a model with bidirectional attention, fewer than two labels, or labels that are not one token.
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
            raise ExpoundError(f"task='prompt' needs a causal language model, got {type(model).__name__}")
        self.template = Template.parse(template)
        by_name = labels if isinstance(labels, Mapping) else {label.strip(): label for label in labels}
        if len(by_name) < 2 or len(by_name) < len(labels):
            raise ExpoundError(f"expected at least two different labels, got {list(labels)}")
        self._answers = {name: self._find_label_token(label) for name, label in by_name.items()}
        self.task = LabelTokens(list(self._answers.values()))
        if len(set(self._answers.values())) < len(by_name):
            raise ExpoundError(f"two of the labels {list(by_name.values())} are the same token")

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels' names, in their order."""
        return tuple(self._answers)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of any model, with the prompt and the labels' tokens."""
        prompt = {"pieces": list(self.template.pieces), "sides": list(self.template.sides)}
        return super().settings | {"prompt": prompt, "labels": self._answers}

    def encode(self, examples: Sequence[Any], device: str | torch.device | None = None) -> Batch:
        """Encode texts (or pairs, if the template has two places) in their prompts as one left-padded batch.

        Raises:
            ExpoundError: an empty text, a prompt that leaves no room for it, no tokenizer.
        """
        return encoding.encode(self, examples, type(self)._tokenize, device)

    def _forward_arguments(self, batch: Batch, capture: Capture) -> dict[str, Any]:
        arguments = super()._forward_arguments(batch, capture)
        # Logits over the vocabulary at all positions would be the largest tensor of the pass.
        if "logits_to_keep" in self.forward_parameters:
            arguments["logits_to_keep"] = 1
        return arguments

    def _tokenize(self, rows: encoding.Rows) -> encoding.TokenizedRows:
        texts = encoding.get_texts(rows)
        encodings, alignments, cut = [], [], 0
        for text in texts:
            tokens, shortened = fit_template(self.tokenizer, self.template, text, self.max_length)
            encodings.append(tokens)
            alignments.append(align(text, cast("Encoding", tokens), truncated=shortened != text))
            cut += shortened != text
        if cut:
            logger.warning("%d of %d texts do not fit into %d tokens: truncated", cut, len(rows), self.max_length)
        return encodings, tuple(alignments)

    def _find_label_token(self, label: str) -> int:
        """Return the token that the label appends to the end of the prompt."""
        end = self.template.pieces[-1]
        # Tokenized with the end of the prompt: alone, a label may begin with another token.
        before, after = (self.tokenizer(text, add_special_tokens=False)["input_ids"] for text in (end, end + label))
        if len(after) != len(before) + 1 or after[:-1] != before:
            raise ExpoundError(
                f"the label {label!r} does not continue {end[-20:]!r} by one token, but as "
                f"{self.tokenizer.convert_ids_to_tokens(after[len(before) :])}: choose another word, or move a space "
                "between the end of the template and the beginning of the labels"
            )
        return int(after[-1])
