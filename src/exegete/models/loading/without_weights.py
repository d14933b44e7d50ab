"""A language model without its weights: what its work will be can be counted, none of it done."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from exegete.data.local import require_local_model
from exegete.models.generation.encoder_decoder import EncoderDecoderModel
from exegete.models.generation.model import GeneratingModel
from exegete.models.loading.adapters import find_adapter_base
from exegete.models.loading.checkpoint import check_config, check_files, describe_load_errors
from exegete.models.loading.load import load_processor


def load_without_weights(name: str, dtype: str | None = None, max_length: int | None = None) -> GeneratingModel:
    """The language model that a folder's or hub name's configuration describes, with its tokenizer and no weights.

    Raises:
        ExegeteError: nothing there, or no configuration that a language model can be made of.
    """
    named = find_adapter_base(name) or name
    require_local_model(named)
    check_files(named)
    with describe_load_errors(named):
        config = AutoConfig.from_pretrained(named)
        check_config(named, config)
        auto: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        kind = getattr(torch, dtype or "", None) or config.dtype or torch.float32
        with FakeTensorMode(allow_non_fake_inputs=True):
            model = auto.from_config(config, dtype=kind).eval().requires_grad_(False)
    own = EncoderDecoderModel if config.is_encoder_decoder else GeneratingModel
    processing_class = load_processor(name, model, False) or load_processor(named, model, False)
    return own(model, processing_class, max_length)


def count_saved_bytes(model: GeneratingModel, prompt: int, response: int) -> int | None:
    """Bytes that a forward pass keeps for a backward pass besides weights, at most; None for a model with experts.

    Counted without weights there is a mask, of tokens × tokens, that a pass may do without.

    Args:
        model: a `load_without_weights` one.
        prompt: tokens of the prompt.
        response: tokens of the response.
    """
    inner, kept = model.generator, dict[int, torch.Tensor]()
    if any(getattr(inner.config, key, None) for key in ("num_experts", "num_local_experts")):
        return None
    weights = {_sizes(weight) for weight in (*inner.parameters(), *inner.buffers())}

    def keep(value: torch.Tensor) -> torch.Tensor:
        kept.setdefault(value.untyped_storage()._cdata, value)
        return value

    table: Any = inner.get_input_embeddings()
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value),
    ):
        sides = (prompt, response) if model.is_encoder_decoder else (prompt + response,)
        words = [torch.empty(1, size, table.embedding_dim, dtype=model.dtype, requires_grad=True) for size in sides]
        given: dict[str, Any] = {"decoder_inputs_embeds": words[1]} if model.is_encoder_decoder else {}
        given |= {"logits_to_keep": response + 1} if model.accepts("logits_to_keep") else {}
        with torch.enable_grad():
            inner(inputs_embeds=words[0], use_cache=False, **given)
    return sum(value.untyped_storage().nbytes() for value in kept.values() if _sizes(value) not in weights)


def _sizes(value: torch.Tensor) -> tuple[int, ...]:
    """By which a weight is known again, transposed or expanded: views without memory share none."""
    return tuple(sorted(size for size in value.shape if size > 1))
