"""Tiny random language models of the families that generated text is explained for."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf

import families
from expound.models.generation.model import GeneratingModel

GROUPED = {"num_key_value_heads": 2, "bos_token_id": 2, "eos_token_id": 3}
EXPERTS = GROUPED | {"num_experts_per_tok": 2}
CAUSAL: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "llama": GROUPED,
    "mistral": GROUPED | {"sliding_window": 4},
    "qwen2": GROUPED,
    "qwen3": GROUPED | {"head_dim": 8},
    "gemma2": GROUPED | {"head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 8},
    "gemma3_text": GROUPED | {"head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 8},
    "phi3": GROUPED | {"pad_token_id": 0},
    "olmo2": GROUPED,
    "gpt_neox": {"bos_token_id": 2, "eos_token_id": 3},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32, "bos_token_id": 2, "eos_token_id": 3},
    "mixtral": EXPERTS | {"num_local_experts": 4},
    "qwen2_moe": EXPERTS | {"num_experts": 4, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24},
}
"""Sizes of each family besides `families.SIZE`; windows are shorter than the texts of tests."""


def causal(family: str, dtype: torch.dtype = torch.float64, seed: int = 0) -> GeneratingModel:
    """A random model of the family, norms and biases random too."""
    torch.manual_seed(seed)
    config = hf.AutoConfig.for_model(family, **(families.SIZE | CAUSAL[family]))
    model = hf.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return GeneratingModel(model.to(dtype).eval())
