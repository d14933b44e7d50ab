"""Language models without weights, for counting the cost of an explanation without running it."""

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
    """Return the language model that a folder's or hub name's configuration describes, without weights.

    Raises:
        ExegeteError: a model that does not exist, or is no language model.
    """
    base = find_adapter_base(name) or name
    require_local_model(base)
    check_files(base)
    with describe_load_errors(base):
        config = AutoConfig.from_pretrained(base)
        check_config(base, config)
        auto: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        torch_type = getattr(torch, dtype or "", None) or config.dtype or torch.float32
        # Fake tensors have shapes and types but no memory.
        with FakeTensorMode(allow_non_fake_inputs=True):
            model = auto.from_config(config, dtype=torch_type).eval().requires_grad_(False)
    wrapper = EncoderDecoderModel if config.is_encoder_decoder else GeneratingModel
    processing_class = load_processor(name, model, False) or load_processor(base, model, False)
    return wrapper(model, processing_class, max_length)


def count_saved_bytes(model: GeneratingModel, prompt: int, response: int) -> int | None:
    """Return the most bytes besides weights that a forward pass saves for its backward pass.

    It is an upper bound: fake tensors need an attention mask of tokens × tokens, which a real pass may do without.
    It is None for a mixture of experts, whose choice of experts depends on the values.

    Args:
        model: from `load_without_weights`.
        prompt: number of tokens of the prompt.
        response: number of tokens of the response.
    """
    inner, saved = model.generator, dict[int, torch.Tensor]()
    if any(getattr(inner.config, key, None) for key in ("num_experts", "num_local_experts")):
        return None
    weights = {_sort_sizes(weight) for weight in (*inner.parameters(), *inner.buffers())}

    def save(value: torch.Tensor) -> torch.Tensor:
        # Tensors that share memory count once.
        saved.setdefault(value.untyped_storage()._cdata, value)
        return value

    table: Any = inner.get_input_embeddings()
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        torch.autograd.graph.saved_tensors_hooks(save, lambda value: value),
    ):
        sides = (prompt, response) if model.is_encoder_decoder else (prompt + response,)
        words = [torch.empty(1, size, table.embedding_dim, dtype=model.dtype, requires_grad=True) for size in sides]
        arguments: dict[str, Any] = {"decoder_inputs_embeds": words[1]} if model.is_encoder_decoder else {}
        if "logits_to_keep" in model.forward_parameters:
            arguments["logits_to_keep"] = response + 1
        with torch.enable_grad():
            inner(inputs_embeds=words[0], use_cache=False, **arguments)
    activations = [value for value in saved.values() if _sort_sizes(value) not in weights]
    return sum(value.untyped_storage().nbytes() for value in activations)


def _sort_sizes(value: torch.Tensor) -> tuple[int, ...]:
    """Return a key that is equal for a weight and its transposed or expanded views.

    Fake views do not share memory with the weight, by which they could be recognised.
    """
    return tuple(sorted(size for size in value.shape if size > 1))
