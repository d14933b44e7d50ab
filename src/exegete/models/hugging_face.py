"""Facts about a model that are known without a pass: its parts, its tokens, its labels."""

from __future__ import annotations

from copy import copy
from functools import cached_property
from operator import index
from typing import Any, Literal, Self, SupportsIndex

import torch
from torch import nn
from transformers import PreTrainedModel

from exegete.errors import ExegeteError
from exegete.models.encoding import encode as encoding
from exegete.models.loading.adapters import unwrap_adapter
from exegete.models.state.locks import Lock, get_lock
from exegete.models.tasks import OutputKind, Task


class HuggingFaceModel(nn.Module):
    """Facts about a Hugging Face model that are known without a pass: its parts, special tokens and labels."""

    model: PreTrainedModel
    processing_class: Any
    task: Task
    requested_max_length: int | None
    _forward_parameters: frozenset[str]

    @property
    def config(self) -> Any:
        """The Hugging Face configuration of the model."""
        return self.model.config

    @property
    def device(self) -> torch.device:
        """Where the model is, or computes where its weights are kept elsewhere; batches are put there."""
        place = getattr(getattr(self.embedding, "_hf_hook", None), "execution_device", None)
        return next(self.embedding.parameters()).device if place is None else torch.device(place)

    @property
    def dtype(self) -> torch.dtype:
        """The model's floating point type."""
        dtype: torch.dtype = self.model.dtype
        return dtype

    @property
    def modality(self) -> Literal["text", "image"]:
        """The kind of input that the model reads."""
        return "image" if unwrap_adapter(self.model).main_input_name == "pixel_values" else "text"

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the model's outputs, in their order."""
        return tuple(str(self.config.id2label[index]) for index in range(self.config.num_labels))

    @property
    def settings(self) -> dict[str, Any]:
        """The settings besides its weights that the model's answers depend on, as plain values."""
        return {"task": self.task.name, "max_length": self.max_length}

    @cached_property
    def is_decoder(self) -> bool:
        """Whether attention is causal: the answer is then read at the last position, and padding goes left."""
        return any(getattr(module, "is_causal", False) for module in self.model.modules())

    @property
    def attention_shape(self) -> tuple[int, int]:
        """The layers, and the heads of each, whose attention is looked at from where the answer is read."""
        return self.config.num_hidden_layers, self.config.num_attention_heads

    @property
    def embedding(self) -> nn.Module:
        """The layer whose output is the input embeddings: word embeddings, or an image's patch embeddings."""
        layer: nn.Module = self.model.get_input_embeddings()
        return layer

    @property
    def tokenizer(self) -> Any:
        """The processing class, when it is a tokenizer that knows where its tokens are in the text."""
        if self.processing_class is None:
            raise ExegeteError("the model came without a tokenizer: pass it as processing_class, or use Batch.from_ids")
        known = getattr(self.processing_class, "is_fast", False) or hasattr(self.processing_class, "spm_source")
        if not known:
            kind = type(self.processing_class).__name__
            raise ExegeteError(f"{kind} does not say where tokens are in the text: use its fast version")
        return self.processing_class

    @property
    def max_length(self) -> int:
        """The most tokens of a text, special ones included: what the model takes, or fewer if so asked."""
        positions = getattr(self.config, "max_position_embeddings", None) or getattr(self.config, "n_positions", None)
        limit = int(positions) - self._first_position if positions else 1 << 20
        limit = limit if self.requested_max_length is None else min(limit, self.requested_max_length)
        return min(limit, getattr(self.processing_class, "model_max_length", limit) or limit)

    @cached_property
    def _first_position(self) -> int:
        return encoding.get_first_position(self.model)

    @property
    def pad_id(self) -> int:
        """A token id for padding; never attended to, so any valid one does for models without one."""
        known = (getattr(self.processing_class, "pad_token_id", None), self.config.pad_token_id)
        return next((int(value) for value in known if value is not None), 0)

    @property
    def mask_id(self) -> int:
        """The id that stands for "no word": the mask token, else the unknown token, else the end-of-text token."""
        names, sources = ("mask_token_id", "unk_token_id", "eos_token_id"), (self.processing_class, self.config)
        known = [value for name in names for source in sources if (value := getattr(source, name, None)) is not None]
        if not known:
            raise ExegeteError("the tokenizer has no mask, unknown or end-of-text token: use the reference 'zero'")
        return int(known[0] if not isinstance(known[0], list) else known[0][0])

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids that never carry attribution; the unknown token is a word unless it doubles as another special token."""
        tokenizer = self.tokenizer
        special, unknown = frozenset(tokenizer.all_special_ids), tokenizer.unk_token_id
        doubles = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
        return special if unknown in doubles else special - {unknown}

    @property
    def _is_read_at_last_token(self) -> bool:
        return self.is_decoder and not self.task.is_read_at_positions

    def with_max_length(self, max_length: int) -> Self:
        """The same model, sharing all that it holds, for texts of so many tokens."""
        other = copy(self)
        other.requested_max_length = check_max_length(max_length)
        return other

    def with_output(self, output: OutputKind | None) -> Self:
        """The same model, sharing all that it holds, with another number of the target explained; None: the same."""
        other = copy(self)
        other.task = self.task.with_output(output)
        return other

    def accepts(self, argument: str) -> bool:
        """Whether the model's forward has this argument."""
        return argument in self._forward_parameters

    def lock(self) -> Lock:
        """A lock that this thread may take again; every call takes it, and all that share the model share it."""
        return get_lock(unwrap_adapter(self.model).base_model.config)

    def label_id(self, label: SupportsIndex | str) -> int:
        """The index of a label given by index or by name (any case)."""
        if isinstance(label, str):
            names = [name.lower() for name in self.labels]
            if label.lower() in names:
                return names.index(label.lower())
        elif hasattr(label, "__index__") and 0 <= index(label) < len(self.labels):
            return index(label)
        valid = ", ".join(f"{number} ({name})" for number, name in enumerate(self.labels))
        raise ExegeteError(f"the model does not know the label {label!r}. It knows: {valid}")


def check_max_length(max_length: int | None) -> int | None:
    """The length, checked. Raises ExegeteError for fewer than 8 tokens."""
    if max_length is not None and max_length < 8:
        raise ExegeteError(f"expected a max_length of at least 8 tokens, got {max_length}")
    return max_length
