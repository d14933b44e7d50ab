"""A Hugging Face model as explainers and metrics use it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from expound.errors import ExpoundError
from expound.models.batch import Batch, Capture, Outputs, name_outputs, require_finite_logits
from expound.models.checks import CHECKS, make_readout_weights
from expound.models.encoding import encode as encoding
from expound.models.hugging_face import HuggingFaceModel, Probe, find_failure, is_changed_by_padding
from expound.models.passes.capture import PassEnded, record_attention
from expound.models.passes.hooks import mark_last_token, replace_embeddings
from expound.models.perturbation.run import PerturbationCache, RemovalMethod, run_perturbed
from expound.models.state import (
    avoid_cudnn_attention,
    choose_attention_type,
    enable_checkpointing,
    is_checkpointed,
    remove_added_hooks,
    with_lock,
)
from expound.reports.records import Target


class ExplainedModel(HuggingFaceModel):
    """A Hugging Face model with its tokenizer or image processor, ready to be explained.

    It never moves, patches, resizes or retrains the model that it holds: mode, hooks, attention implementation,
    embeddings and random state are after each call what they were before it, also when the call raises. Threads take
    turns.

    Args:
        model: a model with a sequence classification (or regression), question answering or image classification head.
        processing_class: its tokenizer or image processor; without it only batches made with `Batch.from_ids` work.
        task: one of `TASKS`; default: as the model's head and configuration say.
        max_length: the most tokens of a text, if fewer than the model allows; at least 8.

    Raises:
        ExpoundError: an unknown task, a model without such a head, an encoder-decoder; XLNet.
    """

    perturbation_cache: PerturbationCache | None = None
    checks: ClassVar = CHECKS
    """How it is checked what methods assume, see `find_failure`."""

    @property
    def has_text_head(self) -> bool:
        """Whether a head for the whole input reads positions of its own choice, see `readout_weights`."""
        return type(self).readout_weights is ExplainedModel.readout_weights and not self.task.is_read_at_positions

    # -- inputs ------------------------------------------------------------------------------------------------------

    def encode(self, examples: Sequence[Any], device: str | torch.device | None = None) -> Batch:
        """Encode texts, pairs (text, text), images or rows of canonical columns as one padded batch.

        The batch is on the model's device, unless another is given. Texts longer than the model allows are truncated,
        and a warning says how many. Labels are the model's own ids.

        Raises:
            ExpoundError: an empty text, a text without content tokens, a missing column, no tokenizer.
        """
        return encoding.encode(self, examples, device=device)

    def expand_examples(self, rows: Sequence[Any]) -> Sequence[Any]:
        """Return one example per explained output; most models explain one output per example."""
        return rows

    # -- passes ------------------------------------------------------------------------------------------------------

    @with_lock
    def forward(self, batch: Batch, embeddings: Tensor | None = None, capture: Capture | None = None) -> Outputs:
        """Run one forward pass in the model's present mode.

        Args:
            batch: B examples.
            embeddings: [B, L, d] to run on instead of the batch's own (see `embed`); the model adds positions.
            capture: what to record.
        """
        capture = capture or Capture()
        if capture.embeddings and embeddings is None:
            embeddings = self.embed_with_gradient(batch, keep_graph=True)
        if is_changed_by_padding(self) and not self.model.training and not batch.attended.all():
            return self._forward_by_length(batch, embeddings, capture)
        return self.run_pass(batch, embeddings, capture)

    def _forward_by_length(self, batch: Batch, embeddings: Tensor | None, capture: Capture) -> Outputs:
        """Run the examples of each length in a pass of their own, for models whose predictions padding changes."""
        if capture.attentions or capture.heads or capture.hidden_states:
            raise ExpoundError(
                f"padding changes the predictions of model type {self.config.model_type!r}: what happens inside its "
                "layers is explained for texts of one length only; choose batch_size=1"
            )
        lengths = batch.attended.sum(1)
        answers: dict[int, Tensor] = {}
        for length in lengths.unique().tolist():
            rows = (lengths == length).nonzero().flatten()
            part, columns = batch.select(rows).trim_padding()
            given = None if embeddings is None else embeddings[rows][:, columns]
            for row, answer in zip(rows.tolist(), self.run_pass(part, given, capture).logits, strict=True):
                gaps = (columns.start, batch.length - columns.stop) if self.task.reads_context else (0, 0)
                answers[row] = nn.functional.pad(answer, gaps, value=torch.finfo(answer.dtype).min)
        # Responses differ in length.
        return Outputs(pad_sequence([answers[row] for row in range(len(batch))], batch_first=True), embeddings)

    def run_pass(self, batch: Batch, embeddings: Tensor | None, capture: Capture) -> Outputs:
        """Run one pass over the batch as it is padded, and return logits [B, C]; see `forward`.

        Raises:
            ExpoundError: hidden states are asked for, and the model does not return them.
        """
        arguments = self._forward_arguments(self.add_position_ids(batch), capture)
        with ExitStack() as scope:
            scope.enter_context(choose_attention_type(self.model, batch.length))
            scope.enter_context(avoid_cudnn_attention(batch.device))
            if capture.hidden_states:
                scope.enter_context(remove_added_hooks(self.model))
            if self.is_decoder and not self.task.is_read_at_positions:
                arguments["input_ids"] = scope.enter_context(mark_last_token(self.model, self.embedding, batch))
            if embeddings is not None:
                scope.enter_context(self.replace_embeddings(batch, embeddings))
            if torch.is_grad_enabled() and is_checkpointed(self.model):
                scope.enter_context(enable_checkpointing(self.model, capture))
            record = None
            if capture.needs_own_attention:
                part = self.get_attending_part(batch)
                record = scope.enter_context(record_attention(part, capture, last=self.last_attention))
            try:
                output = name_outputs(self.model(**arguments), is_span=self.task.reads_context)
            except PassEnded:
                output = None
        recorded: dict[str, Any] = {} if record is None else record.by_name()
        if output is None:
            no_logits = torch.empty(len(batch), 0, dtype=self.dtype, device=batch.device)
            return Outputs(no_logits, embeddings, **recorded)
        if capture.hidden_states:
            recorded["hidden_states"] = getattr(output, "hidden_states", None)
            if recorded["hidden_states"] is None:
                raise ExpoundError(f"{type(self.model).__name__} does not return its hidden states")
        return self.read_outputs(output, batch, capture, embeddings, recorded)

    def replace_embeddings(self, batch: Batch, embeddings: Tensor) -> AbstractContextManager[None]:
        """Return a context in which the model reads these input embeddings [B, L, d]."""
        return replace_embeddings(self.embedding, embeddings)

    def get_attending_part(self, batch: Batch) -> PreTrainedModel:
        """Return the part of the model whose attention is among the positions of the batch."""
        return self.model

    def compute_own_answer(self, batch: Batch) -> Tensor:
        """Return the logits [1, C] that the Hugging Face model alone gives to one example without padding."""
        arguments = self._forward_arguments(batch, Capture())
        with choose_attention_type(self.model, batch.length):
            output = self.model(**{name: value for name, value in arguments.items() if name in batch.inputs})
        return self.task.logits(name_outputs(output, is_span=self.task.reads_context), batch)

    def read_outputs(
        self, output: Any, batch: Batch, capture: Capture, embeddings: Tensor | None, recorded: dict[str, Any]
    ) -> Outputs:
        """Return the outputs of a pass from the Hugging Face model's output and recorded quantities.

        Args:
            output: the Hugging Face model's output.
            batch: B examples.
            capture: what was asked for.
            embeddings: [B, L, d] that the pass ran on, if they were given.
            recorded: hidden states and quantities of attention, by their names in `Outputs`.
        """
        # BigBird pads texts to full blocks, and its hidden states keep that padding. Other states must stay the same
        # tensors: the logits do not depend on a slice of them, so no gradient could be taken.
        states = []
        for each in recorded.pop("hidden_states", ()):
            states.append(each if each.shape[1] <= batch.length else each[:, : batch.length])
        distribution = self.task.distribution(output, batch) if capture.distribution else None
        return Outputs(
            self.task.logits(output, batch), embeddings, hidden_states=tuple(states), distribution=distribution,
            **recorded,
        )  # fmt: skip

    def _forward_arguments(self, batch: Batch, capture: Capture) -> dict[str, Any]:
        """Return the arguments of the Hugging Face model's forward."""
        arguments: dict[str, Any] = {}
        for name, value in batch.inputs.items():
            if name in self.forward_parameters:
                arguments[name] = value
        # No token follows, so a cache of keys and values would only cost memory.
        if "use_cache" in self.forward_parameters:
            arguments["use_cache"] = False
        if capture.hidden_states:
            arguments["output_hidden_states"] = True
        # A configuration may ask for tuples, whose entries have no names.
        if not self.config.return_dict:
            arguments["return_dict"] = True
        return arguments

    @torch.no_grad()
    def probabilities(self, batch: Batch) -> Tensor:
        """Return class probabilities [B, C] without dropout (regression: values; spans: [B, 2, L]).

        Raises:
            ExpoundError: the model predicts NaN.
        """
        with self.evaluation_mode():
            find_failure(self, "padding", Probe(self, batch))
            return self.task.probabilities(require_finite_logits(self(batch).logits))

    @torch.no_grad()
    def predict(self, batch: Batch) -> Tensor:
        """Return the predicted target, [B] (spans: [B, 2])."""
        with self.evaluation_mode():
            find_failure(self, "padding", Probe(self, batch))
            return self.task.predict(require_finite_logits(self(batch).logits), batch)

    def predict_perturbed(self, batch: Batch, keep: Tensor, perturbation: RemovalMethod = "remove") -> Tensor:
        """Return the probabilities of many perturbed versions of each example: [N, B, C] (spans: [N, B, 2, L]).

        Special tokens always stay. Identical inputs are run once, the rest sorted by length and packed by tokens.

        Args:
            batch: B examples.
            keep: [N, B, L] the content positions to keep: bool, or weights in [0, 1] for a soft blend
                E·keep + E_ref·(1 − keep), which is differentiable in `keep`.
            perturbation: `remove` deletes positions; `mask` and `pad` replace them by that token, `zero` by a zero
                vector, so that all other positions stay the same; `attend` leaves all in place and masks attention to
                them.
        """
        return self.task.probabilities(run_perturbed(self, batch, keep, perturbation, self.perturbation_cache))

    def score_perturbed(
        self, batch: Batch, keep: Tensor, target: Tensor, perturbation: RemovalMethod = "remove"
    ) -> Tensor:
        """Return the outputs [N, B] whose drop removal methods report; see `predict_perturbed`, `OutputExplainer`."""
        return self.task.score_removal(run_perturbed(self, batch, keep, perturbation, self.perturbation_cache), target)

    @contextmanager
    def cache_perturbed(self) -> Iterator[None]:
        """Run no perturbed input twice inside the block, over all calls: methods often ask for the same inputs."""
        with self.lock():
            before = self.perturbation_cache
            if before is None:
                self.perturbation_cache = PerturbationCache()
            try:
                yield
            finally:
                self.perturbation_cache = before

    def sum_by_region(self, batch: Batch, scores: Tensor) -> Tensor:
        """Return scores [..., B, L] with those of image tokens summed by region; the same where nothing is an image."""
        return scores

    def scatter_attention(self, batch: Batch, maps: Sequence[Tensor]) -> Sequence[Tensor]:
        """Scatter maps shaped like the last `Outputs.blocks` to maps among all positions, [B, L, L] or [B, H, L, L]."""
        return maps

    def scatter_states(self, batch: Batch, parts: Sequence[Tensor]) -> Tensor:
        """Scatter the states of each stack to the positions that it reads: [B, L, d]; most models have one stack."""
        return parts[0]

    @with_lock
    def readout_weights(self, batch: Batch, target: Tensor) -> Tensor:
        """Return the weights [B, L] of the positions at which the prediction is read; attention is read from there.

        The position, or the mean of positions, that the head's gradient at the last hidden state shows; spans: half at
        the start and half at the end.

        Raises:
            ExpoundError: the head reads several positions in different ways.
        """
        if not self.task.reads_context:
            return make_readout_weights(self, batch)
        weights = torch.zeros(batch.attended.shape, device=batch.device, dtype=self.dtype)
        halves = torch.full_like(target, 0.5, dtype=weights.dtype)
        # Added, because a span of one token has its start and its end at the same position.
        return weights.scatter_add(1, target, halves)

    def resolve_target(self, batch: Batch, target: Any = None, logits: Tensor | None = None) -> Tensor:
        """Return the target as a tensor: [B], or [B, 2] for spans and contrasts.

        Args:
            batch: B examples.
            target: None or "predicted" (from `logits` if given, else by one more pass), "label" (the batch's own), a
                class index or name, a contrast (for, against) of two classes, whose difference is explained, a span
                (start, end) counted without padding, or a list with one of those per example; or the tensor itself,
                its spans counted with padding.
            logits: the batch's logits.

        Raises:
            ExpoundError: no such output, or another number of targets than examples.
        """
        if target is None or (isinstance(target, str) and target == "predicted"):
            if logits is None:
                return self.predict(batch)
            return self.task.predict(require_finite_logits(logits).detach(), batch)
        if isinstance(target, str) and target == "label":
            if batch.labels is None:
                raise ExpoundError("target='label' needs labeled examples (responses: target='predicted')")
            return self.task.check_target(self.task.target_from_labels(batch.labels), batch, len(self.labels))
        if not isinstance(target, Tensor) or not target.ndim:
            target = self.task.parse_target(target, batch, self.label_id)
        return self.task.check_target(target.to(batch.device), batch, len(self.labels))

    def describe_targets(
        self, batch: Batch, target: Tensor, logits: Tensor, explained: Sequence[float] | None = None
    ) -> list[Target]:
        """Return the name, value and probability of a resolved target, or prediction, for each example.

        `explained`: the output [B] that a method explains, for methods whose scores sum to it.
        """
        is_contrast = self.task.is_contrast(target)
        # The probability of a contrast is that of the class it argues for.
        single = target[:, 0] if is_contrast else target
        probabilities = self.task.probability(self.task.probabilities(logits), single).tolist()
        log_probs = None
        if self.task.is_generated:
            log_probs = self.task.log_probability(logits, target).tolist()
        # Spans count from the example's first token, without padding on the left.
        shifted = self.task.shift(target, batch.attended.long().argmax(1, keepdim=True))
        targets = []
        for row, position in enumerate(shifted.tolist()):
            value = tuple(position) if isinstance(position, list) else position
            targets.append(
                Target(
                    text=self._name_target(batch, row, value),
                    value=value,
                    probability=probabilities[row],
                    log_prob=None if log_probs is None else log_probs[row],
                    output=None if explained is None else explained[row],
                    place=None if batch.readout_mask is None else _locate_readout(batch, row, batch.readout_mask),
                )
            )
        return targets

    def describe_predictions(self, batch: Batch, logits: Tensor) -> list[Target]:
        """Return each prediction's name, value and probability from logits [B, C]; a regression's value is a number."""
        predictions = self.describe_targets(batch, self.task.predict(logits, batch), logits)
        if not self.task.predicts_number:
            return predictions
        return [prediction._replace(value=prediction.probability) for prediction in predictions]

    def _name_target(self, batch: Batch, row: int, value: int | tuple[int, int]) -> str:
        """Return the name of a target: a label, two labels, or the text that a span covers."""
        if batch.exchanges is not None and isinstance(value, tuple):
            return batch.exchanges[row].cut(value)
        if not isinstance(value, tuple):
            return self.labels[value]
        if self.task.has_contrasts:
            return " rather than ".join(self.labels[number] for number in value)
        if batch.alignments is None:
            return f"{value[0]}–{value[1]}"
        alignment = batch.alignments[row]
        first, last = (alignment.spans[position] for position in value)
        # A span at a special token means that the text has no answer.
        if first is None or last is None:
            return "no answer"
        return alignment.texts[first[0]][first[1] : last[2]]


def _locate_readout(batch: Batch, row: int, readout_mask: Tensor) -> tuple[int, int, int] | None:
    """Return the text span that a token-level head reads: side, first character, end."""
    if batch.alignments is None:
        return None
    alignment = batch.alignments[row]
    places = readout_mask[row][batch.attended[row]].nonzero().flatten().tolist()
    words = [alignment.words[alignment.word_of[place]] for place in places if alignment.word_of[place] >= 0]
    if not words:
        return None
    return words[0].segment, words[0].span_without_punctuation[0], words[-1].span_without_punctuation[1]
