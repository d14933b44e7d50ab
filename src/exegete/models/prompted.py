"""A causal language model as a classifier: a prompt around the text, and one token for each label."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from tokenizers import Encoding
from torch import Tensor
from transformers import PreTrainedModel

from exegete.data.alignment import align
from exegete.errors import ExegeteError
from exegete.models import encode as encoding
from exegete.models.batch import Batch
from exegete.models.capture import Capture
from exegete.models.explained import ExplainedModel
from exegete.models.tasks import Classification

logger = logging.getLogger(__name__)
FIELD = re.compile(r"\{(text|text_pair)\}")


def few_shot(instruction: str, shots: Sequence[tuple[str, str]]) -> str:
    """A template: the instruction, shots as `Text:…` and `Label:…`, then the text to classify.

    The labels of the shots are written as the labels given to `load` are.
    """
    blocks = [instruction, *(f"Text:{text}\nLabel:{label}" for text, label in shots), "Text:{text}\nLabel:"]
    return "\n\n".join(block for block in blocks if block)


@dataclass(frozen=True, slots=True)
class Template:
    """A prompt with a place for the text, and one for the second text of a pair. Other braces are only characters."""

    pieces: tuple[str, ...]
    sides: tuple[int, ...]

    @classmethod
    def parse(cls, template: str) -> Template:
        """From text with `{text}` once, and `{text_pair}` at most once."""
        parts = FIELD.split(template)
        names = parts[1::2]
        if sorted(names) not in (["text"], ["text", "text_pair"]):
            raise ExegeteError(
                f"a template has {{text}} once and {{text_pair}} at most once, got {template!r:.80} with "
                + (", ".join(f"{{{name}}}" for name in names) or "neither")
            )
        return cls(tuple(parts[::2]), tuple(("text", "text_pair").index(name) for name in names))

    def filled(self, texts: tuple[str, ...]) -> tuple[str, dict[int, tuple[int, int]]]:
        """The whole prompt, and where in it each text stands."""
        if len(texts) != len(self.sides):
            raise ExegeteError(f"the template has {len(self.sides)} place(s) for texts, the example has {len(texts)}")
        whole, places = self.pieces[0], {}
        for side, after in zip(self.sides, self.pieces[1:], strict=True):
            places[side] = (len(whole), len(whole) + len(texts[side]))
            whole += texts[side] + after
        return whole, places


@dataclass(frozen=True, slots=True)
class Placed:
    """The `Encoding` of a prompt, seen from the texts in it: everything else is special."""

    ids: list[int]
    tokens: list[str]
    offsets: list[tuple[int, int]]
    sequence_ids: list[int | None]
    special_tokens_mask: list[int]
    type_ids: list[int]
    overflowing: tuple[()] = ()


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

    def _arguments_for(self, batch: Batch, capture: Capture) -> dict[str, Any]:
        only_last = {"logits_to_keep": 1} if self.takes("logits_to_keep") else {}
        return super()._arguments_for(batch, capture) | only_last

    def _tokenized(self, rows: encoding.Rows) -> encoding.Tokenized:
        texts = encoding.texts_of(rows)
        placed = [self._fitted(text) for text in texts]
        cut = [shorter != text for (_, shorter), text in zip(placed, texts, strict=True)]
        if any(cut):
            logger.warning("%d of %d texts do not fit into %d tokens: truncated", sum(cut), len(rows), self.max_length)
        return [one for one, _ in placed], tuple(
            align(text, cast("Encoding", one), truncated=short)
            for text, (one, _), short in zip(texts, placed, cut, strict=True)
        )

    def _fitted(self, texts: tuple[str, ...]) -> tuple[Placed, tuple[str, ...]]:
        """The texts in their prompt, the longest cut until all fits; and what is left of them."""
        placed = self._placed(texts)
        while (excess := len(placed.ids) - self.max_length) > 0:
            longest = max(range(len(texts)), key=placed.sequence_ids.count)
            own = [i for i, side in enumerate(placed.sequence_ids) if side == longest]
            if len(own) <= excess:
                raise ExegeteError(
                    f"the prompt without the text has {len(placed.ids) - len(own)} of at most {self.max_length} "
                    "tokens: use a shorter template or fewer shots"
                )
            end = placed.offsets[own[-excess]][0]
            texts = (*texts[:longest], texts[longest][:end].rstrip(), *texts[longest + 1 :])
            placed = self._placed(texts)
        return placed, texts

    def _placed(self, texts: tuple[str, ...]) -> Placed:
        whole, places = self.template.filled(texts)
        found = self.tokenizer(whole).encodings[0]
        sides = [_side(span, whole, places) for span in found.offsets]
        sides = [None if added else side for side, added in zip(sides, found.special_tokens_mask, strict=True)]
        offsets = [
            (0, 0) if side is None else (max(start - places[side][0], 0), end - places[side][0])
            for side, (start, end) in zip(sides, found.offsets, strict=True)
        ]
        return Placed(found.ids, found.tokens, offsets, sides, [int(s is None) for s in sides], [0] * len(sides))

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


def _side(span: tuple[int, int], whole: str, places: Mapping[int, tuple[int, int]]) -> int | None:
    """The text that a token's characters are in, white space before them aside."""
    start, end = span
    lead = len(whole[start:end]) - len(whole[start:end].lstrip())
    begin = min(start + lead, end - 1)
    return next((side for side, (first, last) in places.items() if first <= begin and start < end <= last), None)
