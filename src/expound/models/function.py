"""Functions from texts to probabilities, explained by their answers to changed texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from types import SimpleNamespace
from typing import Any, Self, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Pipeline, PretrainedConfig, PreTrainedModel

from expound.data.alignment import align, split_words
from expound.errors import ExpoundError, shorten
from expound.models.batch import Batch, Capture, Outputs
from expound.models.encoding import encode as encoding
from expound.models.encoding.template import TemplateEncoding
from expound.models.explained import ExplainedModel
from expound.models.hugging_face import REMOVAL_ONLY
from expound.models.tasks import OutputKind
from expound.models.tasks.base import TEXT

TextFunction = Callable[[list[str]], Any]
"""A function from texts to their probabilities [B, C], as an array, a tensor or lists."""
REMEMBERED = 1 << 16
"""Texts whose answers are kept."""
SUM_TOLERANCE = 1e-3
"""How much the probabilities of a text may miss 1; they are normalized."""


class FunctionCaller(PreTrainedModel):
    """A model without weights that answers by calling a function.

    Its tokens are the words that it has read, each with the white space before it, so that texts without some words can
    be compared and put together again. Token 0 is the empty text.
    """

    def __init__(self, function: TextFunction, labels: Sequence[str]) -> None:
        super().__init__(PretrainedConfig(id2label=dict(enumerate(labels))))
        self.config.model_type, self.config.name_or_path = "function", name_function(function)
        self.function = function
        self.numbers: dict[tuple[bool, str], int] = {(True, ""): 0}
        self.pieces = list(self.numbers)
        self.answers: dict[bytes, Tensor] = {}

    def number_piece(self, piece: str, *, is_first: bool) -> int:
        """Return the token of a word with the white space before it; the first word of a text keeps its white space."""
        key = is_first, piece
        if key not in self.numbers:
            self.numbers[key] = len(self.pieces)
            self.pieces.append(key)
        return self.numbers[key]

    def join_pieces(self, ids: Sequence[int]) -> str:
        """Return the text of tokens; white space that separated its first word from a removed one is left out."""
        text = "".join(self.pieces[number][1] for number in ids)
        return text if self.pieces[ids[0]][0] else text.lstrip()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the logarithms of the probabilities [B, C] of texts [B, L]."""
        texts = []
        for ids, real in zip(input_ids, attention_mask.bool(), strict=True):
            texts.append(self.join_pieces(ids[real].tolist()))
        return self.ask(texts).log()

    def ask(self, texts: Sequence[str]) -> Tensor:
        """Return the probabilities [B, C]; the function is asked only for texts that it has not answered.

        Raises:
            ExpoundError: the function raises an error, or returns something else than probabilities.
        """
        for name in list(self.answers)[: max(0, len(self.answers) - REMEMBERED)]:
            del self.answers[name]
        names = [blake2b(text.encode("utf-8", "surrogatepass")).digest() for text in texts]
        new = {name: text for name, text in zip(names, texts, strict=True) if name not in self.answers}
        if new:
            self.answers.update(zip(new, self._call(list(new.values())), strict=True))
        return torch.stack([self.answers[name] for name in names])

    def _call(self, texts: list[str]) -> Tensor:
        name = self.config.name_or_path
        try:
            answer = self.function(texts)
        # A function of the user's own can raise anything.
        except Exception as error:
            raise ExpoundError(
                f"{name} fails on {len(texts)} texts, of which the first is {texts[0]!r:.60}: "
                f"{type(error).__name__}: {shorten(error, 300)}"
            ) from error
        if isinstance(answer, Tensor):
            answer = answer.detach().cpu()
        try:
            found = np.asarray(answer, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ExpoundError(f"{name} returns no numbers: {shorten(error, 120)}") from error
        expected = (len(texts), self.config.num_labels)
        if found.shape != expected:
            raise ExpoundError(
                f"{name} returns numbers of shape {list(found.shape)}, expected probabilities of shape "
                f"{list(expected)}: one row per text, one column per label"
            )
        # A comparison with NaN is false.
        is_valid = (found >= 0).all(1) & (np.abs(found.sum(1) - 1) <= SUM_TOLERANCE)
        if not is_valid.all():
            row = int(np.flatnonzero(~is_valid)[0])
            shown = ", ".join(f"{value:.4g}" for value in found[row][:6])
            raise ExpoundError(
                f"{name} returns {shown} for {texts[row]!r:.60}, expected probabilities that sum to 1: give a function "
                "such as predict_proba, not one of scores, decisions or logits"
            )
        return torch.from_numpy(found)


class FunctionModel(ExplainedModel):
    """A function from texts to class probabilities: a scikit-learn pipeline, SetFit, a model behind an address.

    Methods that remove input apply. Words are those of `split_words`; a word is removed together with the white space
    before it, and all other characters stay as they are. The latest 65,536 answers are kept: a text is asked once, also
    if a call is repeated after an error.

    Args:
        function: takes a list of B texts and returns their probabilities [B, C].
        labels: the names of the C classes; default: the `classes_` of the object whose method the function is.

    Raises:
        ExpoundError: no labels, fewer than two, or two that are equal.
    """

    black_box_reason = f"a function gives answers only, neither gradients nor hidden states: {REMOVAL_ONLY}"

    def __init__(self, function: TextFunction, labels: Sequence[str] | None = None) -> None:
        if labels is None:
            labels = getattr(getattr(function, "__self__", None), "classes_", None)
        if labels is None or isinstance(labels, str):
            raise ExpoundError(
                f"{name_function(function)} is a function, which does not say what it predicts: give the names of its "
                "classes in their order, labels=[…]"
            )
        names = [str(label) for label in labels]
        if len(set(names)) < max(2, len(names)):
            raise ExpoundError(f"expected at least two different labels, got {names}")
        super().__init__(FunctionCaller(function, names), None, "classification")
        # The checks of a model look at its weights.
        self.is_checked = False

    @property
    def embedding(self) -> nn.Module:
        """The caller of the function, which runs once per pass."""
        caller: nn.Module = self.model
        return caller

    @property
    def special_ids(self) -> frozenset[int]:
        """None: every token is a word."""
        return frozenset()

    @property
    def pad_id(self) -> int:
        """The empty text."""
        return 0

    @property
    def mask_id(self) -> int:
        """The empty text, which remains when all words are removed."""
        return 0

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of any model, with one answer, which tells apart functions of the same name."""
        answer = self.model.ask([TEXT])[0].tolist()
        return super().settings | {"answer": [round(value, 6) for value in answer]}

    def with_output(self, output: OutputKind | None) -> Self:
        """Return a model explained by `log_prob` or `prob`; raise ExpoundError for logits, which a function lacks."""
        if output == "logit":
            raise ExpoundError("a function gives no logits: choose output='prob' or 'log_prob'")
        return super().with_output(output)

    def embed(self, batch: Batch) -> Tensor:
        """Raise ExpoundError: a function has no embeddings."""
        raise ExpoundError(f"{self.black_box_reason}, by perturbation='remove'")

    def encode(self, examples: Sequence[Any], device: str | torch.device | None = None) -> Batch:
        """Encode texts as one padded batch, in which every token is a word.

        Raises:
            ExpoundError: an empty text, or a pair of texts.
        """
        return encoding.encode(self, examples, type(self)._tokenize, device)

    def run_pass(self, batch: Batch, embeddings: Tensor | None, capture: Capture) -> Outputs:
        """Call the function and return log-probabilities [B, C] as logits.

        Raises:
            ExpoundError: anything but the answer is asked for.
        """
        if embeddings is not None or capture != Capture():
            raise ExpoundError(self.black_box_reason)
        return Outputs(
            self.task.logits(SimpleNamespace(logits=self.model(batch.inputs["input_ids"], batch.attended)), batch)
        )

    def _tokenize(self, rows: encoding.Rows) -> encoding.TokenizedRows:
        encodings, alignments = [], []
        for texts in encoding.get_texts(rows):
            if len(texts) > 1:
                raise ExpoundError("a function reads one text: join the texts of a pair, and explain spans of them")
            encodings.append(self._split(texts[0]))
            alignments.append(align(texts, encodings[-1]))  # type: ignore[arg-type]
        return encodings, tuple(alignments)

    def _split(self, text: str) -> TemplateEncoding:
        """Return the words of a text as tokens."""
        words, ids, end = split_words(text), list[int](), 0
        for number, word in enumerate(words):
            # White space at the end of the text belongs to the last word.
            stop = word.end if number + 1 < len(words) else len(text)
            ids.append(self.model.number_piece(text[end:stop], is_first=not number))
            end = stop
        zeros = [0] * len(words)
        spans = [(word.start, word.end) for word in words]
        return TemplateEncoding(ids, [word.text for word in words], spans, [*zeros], zeros, zeros)


def is_function(model: object) -> TypeGuard[TextFunction]:
    """Return whether a model is given as a function, or as an object that is called like one."""
    is_network = isinstance(model, nn.Module | Pipeline) or hasattr(model, "config")
    return callable(model) and not is_network


def load_function(
    function: TextFunction, labels: Sequence[str] | Mapping[str, str] | None, others: Iterable[Any] = ()
) -> FunctionModel:
    """Return the model of a function; ExpoundError for other options of `load` than labels."""
    if any(option is not None for option in others):
        raise ExpoundError("a function is called as it is: give labels= only")
    return FunctionModel(function, list(labels) if isinstance(labels, Mapping) else labels)


def name_function(function: TextFunction) -> str:
    """Return the name of a function, or of its class, as errors and results show it."""
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)
