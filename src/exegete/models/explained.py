"""A Hugging Face model as explainers and metrics use it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from exegete.errors import ExegeteError
from exegete.models.batch import Batch
from exegete.models.encoding import encode as encoding
from exegete.models.hugging_face import HuggingFaceModel, check_max_length
from exegete.models.loading.adapters import unwrap_adapter
from exegete.models.outputs import Outputs, require_finite_logits
from exegete.models.passes.capture import Capture, PassEnded, record_attention
from exegete.models.passes.checkpointing import enable_checkpointing
from exegete.models.passes.replace_inputs import find_last_tokens, mark_last_token, replace_embeddings
from exegete.models.perturbation.run import PerturbationCache, RemovalMethod, run_perturbed
from exegete.models.state.locks import with_lock
from exegete.models.state.restore import choose_attention_type, evaluation_mode, remove_added_hooks
from exegete.models.tasks import Task, make_task

Reference = Literal["mask", "pad", "zero"]


class ExplainedModel(HuggingFaceModel):
    """A Hugging Face model with its tokenizer or image processor, ready to be explained.

    It never moves, patches, resizes or retrains the model it holds: mode, hooks, attention implementation, embeddings
    and random state are after each call what they were before it, also when the call raises. Threads take turns.

    Args:
        model: a model with a sequence classification (or regression), question answering or image classification head.
        processing_class: its tokenizer or image processor; without it only batches made with `Batch.from_ids` work.
        task: one of `TASKS`; default: what the model's head and configuration say.
        max_length: tokens that a text may have, where that shall be fewer than the model takes; at least 8.

    Raises:
        ExegeteError: an unknown task, a model without such a head, with an encoder and a decoder; XLNet.
    """

    is_encoder_decoder: ClassVar[bool] = False
    """Whether an encoder and a decoder share the row of a batch."""

    def __init__(
        self,
        model: PreTrainedModel,
        processing_class: Any = None,
        task: str | None = None,
        max_length: int | None = None,
    ) -> None:
        super().__init__()
        if (model.config.is_encoder_decoder and not self.is_encoder_decoder) or model.config.model_type == "xlnet":
            raise ExegeteError(
                f"expected an encoder or a decoder alone, and not XLNet, got {type(model).__name__}; encoder-decoders "
                "are explained in what they say (task='generation')"
            )
        self.requested_max_length = check_max_length(max_length)
        self.model = model
        self.processing_class = processing_class
        self.task: Task = make_task(unwrap_adapter(model), task)
        self._forward_parameters = frozenset(inspect.signature(unwrap_adapter(model).forward).parameters)
        self.perturbation_cache: PerturbationCache | None = None

    def __repr__(self) -> str:
        names = self.labels
        shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        name = self.config._name_or_path or type(self.model).__name__
        length = f"up to {self.max_length} tokens" if self.max_length < 1 << 20 else ""
        known = (self.task.name, shown, self.config.model_type, length, str(self.device))
        return f"{type(self).__name__}({name}: {'; '.join(part for part in known if part)})"

    # -- inputs ------------------------------------------------------------------------------------------------------

    def encode(self, examples: Sequence[Any], device: str | torch.device | None = None) -> Batch:
        """Texts, pairs (text, text), images or rows of canonical columns as one padded batch.

        It is on the model's device unless another is given. Texts longer than the model takes are truncated, and a
        warning says how many. Labels are the model's own ids.

        Raises:
            ExegeteError: an empty text, a text without content tokens, a missing column, no tokenizer.
        """
        return encoding.encode(self, examples, device=device)

    def expand_examples(self, rows: Sequence[Any]) -> Sequence[Any]:
        """The examples, one for each thing that is explained; most models explain one thing of an example."""
        return rows

    def add_position_ids(self, batch: Batch) -> Batch:
        """The batch with explicit positions where left padding would shift the model's own."""
        if "position_ids" in batch.inputs or not (self.is_decoder and self.accepts("position_ids")):
            return batch
        positions = (batch.attended.long().cumsum(1) - 1).clamp(min=0)
        return replace(batch, inputs=batch.inputs | {"position_ids": positions})

    @with_lock
    def embed(self, batch: Batch) -> Tensor:
        """The input embeddings [B, L, d], before positions are added; differentiable.

        Texts: word embeddings. Images: patch embeddings, with zeros before them (the class token has no pixels).
        """
        if self.modality == "text":
            words: Tensor = self.embedding(batch.inputs["input_ids"])
            return words
        patches: Tensor = self.embedding(batch.inputs["pixel_values"])
        return nn.functional.pad(patches, (0, 0, batch.length - patches.shape[1], 0))

    @with_lock
    def embed_reference(self, batch: Batch, kind: Reference = "mask") -> Tensor:
        """Embeddings [B, L, d] of an input that says nothing.

        `mask` and `pad`: every content position holds that token, special tokens stay (images: patches of zero pixels);
        `zero`: zeros everywhere; another kind raises ExegeteError.
        """
        embeddings = self.embed(batch)
        if kind == "zero":
            return torch.zeros_like(embeddings)
        if kind not in ("mask", "pad"):
            raise ExegeteError(f"unknown reference {kind!r}. Valid choices: mask, pad, zero")
        if self.modality == "image":
            blank = self.embed(replace(batch, inputs={"pixel_values": torch.zeros_like(batch.inputs["pixel_values"])}))
        else:
            token = torch.tensor(self.mask_id if kind == "mask" else self.pad_id, device=batch.device)
            blank = self.embedding(token).expand_as(embeddings)
        return torch.where(batch.content[..., None], blank, embeddings)

    def blend(self, batch: Batch, keep: Tensor, how: Reference = "mask") -> Tensor:
        """E·keep + E_ref·(1 − keep) [B, L, d] with keep [B, L] bool or in [0, 1]; outside `removable` E stays."""
        embeddings = self.embed(batch)
        reference = torch.zeros_like(embeddings) if how == "zero" else self.embed_reference(batch, how)
        if keep.dtype == torch.bool:
            return torch.where((keep | ~batch.removable)[..., None], embeddings, reference)
        keep = torch.where(batch.removable, keep.to(embeddings.dtype), 1.0)[..., None]
        return embeddings * keep + reference * (1 - keep)

    # -- passes ------------------------------------------------------------------------------------------------------

    @with_lock
    def forward(self, batch: Batch, embeddings: Tensor | None = None, capture: Capture | None = None) -> Outputs:
        """One forward pass in the model's present mode.

        Args:
            batch: B examples.
            embeddings: [B, L, d] to run on instead of the batch's own (see `embed`); positions are added by the model.
            capture: what to record.
        """
        capture = capture or Capture()
        arguments = self._forward_arguments(self.add_position_ids(batch), capture)
        with ExitStack() as scope:
            scope.enter_context(choose_attention_type(self.model, batch.length))
            if capture.hidden_states:
                scope.enter_context(remove_added_hooks(self.model))
            if self._is_read_at_last_token:
                arguments["input_ids"] = scope.enter_context(mark_last_token(self.model, self.embedding, batch))
            if embeddings is not None:
                scope.enter_context(replace_embeddings(self.embedding, embeddings))
            scope.enter_context(enable_checkpointing(self.model, capture))
            record = scope.enter_context(record_attention(self.model, capture)) if capture.in_attention else None
            try:
                output = self.model(**arguments)
            except PassEnded:
                output = None
        recorded: dict[str, Any] = {} if record is None else record.layers()
        if output is None:
            nothing = torch.empty(len(batch), 0, dtype=self.dtype, device=batch.device)
            return Outputs(nothing, embeddings, **recorded)
        if capture.hidden_states:
            recorded["hidden_states"] = tuple(
                states if states.shape[1] <= batch.length else states[:, : batch.length]  # BigBird pads to full blocks
                for states in output.hidden_states
            )
        if capture.distribution:
            recorded["distribution"] = self.task.distribution(output, batch)
        return Outputs(self.task.logits(output, batch), embeddings, **recorded)

    def _forward_arguments(self, batch: Batch, capture: Capture) -> dict[str, Any]:
        arguments: dict[str, Any] = {name: value for name, value in batch.inputs.items() if self.accepts(name)}
        if self.accepts("use_cache"):
            arguments["use_cache"] = False
        if capture.hidden_states:
            arguments["output_hidden_states"] = True
        if not self.config.return_dict:
            arguments["return_dict"] = True
        return arguments

    @contextmanager
    def evaluation_mode(self) -> Iterator[None]:
        """Evaluation mode inside the block, every module's own mode and the random state after it."""
        with self.lock(), evaluation_mode(self.model):
            yield

    @torch.no_grad()
    def probabilities(self, batch: Batch) -> Tensor:
        """Class probabilities [B, C] without dropout (regression: values; spans: [B, 2, L]).

        Raises:
            ExegeteError: the model answers NaN.
        """
        with self.evaluation_mode():
            return self.task.probabilities(require_finite_logits(self(batch).logits))

    @torch.no_grad()
    def predict(self, batch: Batch) -> Tensor:
        """The predicted target, [B] (spans: [B, 2])."""
        with self.evaluation_mode():
            return self.task.predict(require_finite_logits(self(batch).logits), batch)

    def predict_perturbed(self, batch: Batch, keep: Tensor, how: RemovalMethod = "remove") -> Tensor:
        """Probabilities of many perturbed versions of each example: [N, B, C] (spans: [N, B, 2, L]).

        Special tokens always stay. Identical inputs are run once, the rest sorted by length and packed by tokens.

        Args:
            batch: B examples.
            keep: [N, B, L] which content positions to keep: bool, or weights in [0, 1] for a soft blend
                E·keep + E_ref·(1 − keep), which is differentiable in `keep`.
            how: `remove` (positions are deleted), or what takes their place: `mask`, `pad` (that token) or `zero`
                (a zero vector); positions then stay as they are.
        """
        return self.task.probabilities(run_perturbed(self, batch, keep, how))

    @contextmanager
    def cache_perturbed(self) -> Iterator[None]:
        """Inside the block no perturbed input is run twice, over all calls: methods often ask for the same ones."""
        with self.lock():
            before, self.perturbation_cache = (
                self.perturbation_cache,
                PerturbationCache() if self.perturbation_cache is None else self.perturbation_cache,
            )
            try:
                yield
            finally:
                self.perturbation_cache = before

    def scatter_attention(self, batch: Batch, maps: Sequence[Tensor]) -> Sequence[Tensor]:
        """[B, L, L] or [B, H, L, L] Maps of attention among all positions, from those of `Outputs.blocks`."""
        return maps

    def scatter_states(self, batch: Batch, parts: Sequence[Tensor]) -> Tensor:
        """[B, L, d] of what the model's stacks have at the positions that they read, of most models one alone."""
        return parts[0]

    @with_lock
    def readout_weights(self, batch: Batch, target: Tensor) -> Tensor:
        """Weights [B, L] of the positions at which the answer is read: attention maps are looked at from there.

        Encoders: the first position (or the mean over all, if that is how the head pools); decoders: the last one;
        spans: half at the start and half at the end.
        """
        weights = torch.zeros(batch.attended.shape, device=batch.device, dtype=self.dtype)
        if self.task.name == "span":
            halves = torch.full_like(target, 0.5, dtype=weights.dtype)
            return weights.scatter_add(1, target, halves)
        if getattr(self.config, "classifier_pooling", "cls") == "mean":
            return batch.attended / batch.attended.sum(1, keepdim=True)
        first = batch.attended.long().argmax(1)
        position = find_last_tokens(batch, self.config.pad_token_id) if self.is_decoder else first
        return weights.scatter(1, position[:, None], 1.0)

    def resolve_target(self, batch: Batch, target: Any = None, logits: Tensor | None = None) -> Tensor:
        """The target as a tensor: [B], or [B, 2] for spans and contrasts.

        `target`: None or "predicted" (from `logits` when given, else one more pass), "label" (the batch's own), a class
        index or name, a contrast (for, against) of two classes, of which the difference is explained, a span (start,
        end) counted without padding, or a list with one of those for each example; or the tensor itself, its spans
        counted with padding.

        Raises:
            ExegeteError: no such output, or not one target an example.
        """
        if target is None or (isinstance(target, str) and target == "predicted"):
            return (
                self.predict(batch)
                if logits is None
                else self.task.predict(require_finite_logits(logits).detach(), batch)
            )
        if isinstance(target, str) and target == "label":
            if batch.labels is None:
                raise ExegeteError("target='label' needs labelled examples")
            return self.task.check_target(self.task.target_from_labels(batch.labels), batch, len(self.labels))
        if not isinstance(target, Tensor) or not target.ndim:
            target = self.task.parse_target(target, batch, self.label_id)
        return self.task.check_target(target.to(batch.device), batch, len(self.labels))
