"""Tiny random models of every architecture of transformers that a configuration alone can build."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

HEADS = {
    "SequenceClassification": "SEQUENCE_CLASSIFICATION",
    "CausalLM": "CAUSAL_LM",
    "Seq2SeqLM": "SEQ_TO_SEQ_CAUSAL_LM",
    "TokenClassification": "TOKEN_CLASSIFICATION",
    "MaskedLM": "MASKED_LM",
    "ImageClassification": "IMAGE_CLASSIFICATION",
}
VOCABULARY, PAD = 300, 1
LAYERS = 2
SIZES: dict[str, Any] = {
    **dict.fromkeys(
        ("vocab_size", "decoder_vocab_size", "src_vocab_size", "tgt_vocab_size", "vocabulary_size"), VOCABULARY
    ),
    **dict.fromkeys(
        ("hidden_size", "d_model", "dim", "n_embd", "emb_dim", "embed_dim", "embedding_size", "d_embed"), 32
    ),
    **dict.fromkeys(("word_embed_proj_dim", "model_dim", "hidden_dim_size", "projection_dim", "rnn_hidden_size"), 32),
    **dict.fromkeys(("true_hidden_size", "hidden_size_per_layer_input", "lru_width", "attention_hidden_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers"), LAYERS),
    **dict.fromkeys(
        ("encoder_layers", "decoder_layers", "num_encoder_layers", "num_blocks", "num_hidden_groups"), LAYERS
    ),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "num_decoder_attention_heads", "num_encoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "multi_query_group_num"), 2),
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim", "d_ff", "hidden_dim"), 48),
    **dict.fromkeys(("n_inner", "num_encoder_ffn_dim", "moe_intermediate_size", "shared_expert_intermediate_size"), 48),
    **dict.fromkeys(("moe_shared_expert_intermediate_size", "shared_intermediate_size", "dff", "dim_ff"), 48),
    **dict.fromkeys(("ngram_embedding_size", "intermediate_size_mlp", "expert_ffn_hidden_size", "ffn_hidden_size"), 48),
    **dict.fromkeys(("head_dim", "d_kv", "kv_channels", "attention_head_size", "d_head", "v_head_dim"), 8),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "rotary_dim", "swa_head_dim", "global_head_dim"), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "low_rank_dim", "index_head_dim", "o_lora_rank"), 16),
    **dict.fromkeys(("n_routed_experts", "num_experts", "num_local_experts", "n_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_top_k", "moe_k", "top_k_experts", "topk"), 2),
    **dict.fromkeys(("n_group", "topk_group", "n_groups", "mamba_n_groups", "n_shared_experts"), 1),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "n_ctx"), 130),
    **dict.fromkeys(("max_2d_position_embeddings", "max_source_positions", "max_target_positions"), 130),
    **dict.fromkeys(("sliding_window", "local_attention", "attention_window_size"), 8),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads", "num_memory_blocks"), 4),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "mamba_headdim", "mamba_head_dim"), 8),
    **dict.fromkeys(("mamba_d_head", "state_size", "mamba_d_state", "ssm_state_size", "time_step_rank"), 8),
    **dict.fromkeys(("mamba_num_heads", "mamba_n_heads", "n_mamba_heads"), 8),
    **dict.fromkeys(("mamba_d_ssm", "mamba_intermediate_size", "conv_dim"), 64),
    **dict.fromkeys(("bos_token_id", "decoder_start_token_id", "cls_token_id"), 0),
    **{
        "pad_token_id": PAD,
        "eos_token_id": 2,
        "mask_token_id": 2,
        "sep_token_id": 2,
        "unk_token_id": 2,
        "num_labels": 3,
        "image_size": 16,
        "patch_size": 4,
        "num_channels": 3,
    },
    **dict.fromkeys(("forced_eos_token_id", "forced_bos_token_id"), None),
    **{"expand": 2, "num_mel_bins": 8, "vocab_size_per_layer_input": VOCABULARY, "block_size": 4, "index_topk": 4},
    **{"num_random_blocks": 1, "chunk_size": 4, "mamba_chunk_size": 4, "pooler_hidden_size": 32, "index_n_heads": 4},
}
"""Sizes under all the names that configurations use."""
TAIL = {"pad_token_id": PAD, "eos_token_id": 2, "bos_token_id": 0, "decoder_start_token_id": 2}
MLA = {"num_key_value_heads": 4}
STAGES = {"image_size": 32, "hidden_sizes": [8, 8, 16, 16], "num_attention_heads": [1, 1, 2, 2], "depths": [1] * 4}
SWIN = {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 2, "patch_size": 2}
SPECIAL: dict[str, dict[str, Any]] = {
    "axk1": MLA,
    "axk2": MLA,
    "deepseek_v2": MLA,
    "deepseek_v3": MLA,
    "minicpm3": MLA,
    "mistral4": MLA,
    **dict.fromkeys(("bailing_hybrid", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "kimi_linear", "youtu"), MLA),
    **dict.fromkeys(("longcat_flash", "dots3_note_text"), MLA),
    "zaya": {"num_experts_per_tok": 1, "moe_topk": 1, "top_k_experts": 1},
    "openai_privacy_filter": {"id2label": {0: "A", 1: "B", 2: "C"}},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"], "layers_block_type": ["mamba", "attention"]},
    "bamba": {"layer_types": ..., "attn_layer_indices": [1]},
    "falcon_h1": {"layer_types": ...},
    "recurrent_gemma": {"layer_types": ..., "num_hidden_layers": 3},
    "mamba2": {"num_heads": 8},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "zamba": {
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
        "mamba_expand": 2,
        "layer_types": ["linear_attention", "hybrid"] * 2,
        "num_hidden_layers": 4,
    },
    "bart": TAIL,
    "bigbird_pegasus": TAIL,
    "mbart": TAIL,
    "mt5": TAIL,
    "mvp": TAIL,
    "plbart": TAIL,
    "umt5": TAIL,
    "t5": TAIL,
    "esmc": {"num_key_value_heads": 4},
    "funnel": {"num_hidden_layers": ..., "num_layers": ..., "block_sizes": [1, 1], "d_inner": 48},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 4},
    # The stacks of layers are run in cycles; each run counts as a layer.
    "hrm_text": {"num_hidden_layers": 1, "H_cycles": 1, "L_cycles": 1},
    # At a baseline of zeros all positions have equal index scores, and which of them are taken would be left to chance.
    "hy_v4": {"index_topk": 64},
    "jamba": {"attn_layer_offset": 1, "attn_layer_period": 2, "num_hidden_layers": 4},
    "layoutlmv3": {"visual_embed": False, "coordinate_size": 5, "shape_size": 6},
    "lilt": {"hidden_size": 24, "channel_shrink_ratio": 2},
    "luke": {"entity_vocab_size": 20, "entity_emb_size": 16},
    "mobilebert": {"hidden_size": 32, "intra_bottleneck_size": 16, "embedding_size": 16, "true_hidden_size": 16},
    "reformer": {
        "axial_pos_embds_dim": [16, 16],
        "axial_pos_shape": [8, 16],
        "attn_layers": ["local", "lsh"],
        "lsh_attn_chunk_length": 4,
        "local_attn_chunk_length": 4,
        "num_buckets": 2,
        "feed_forward_size": 48,
    },
    "roc_bert": {
        "pronunciation_vocab_size": 30,
        "shape_vocab_size": 30,
        "pronunciation_embed_dim": 16,
        "shape_embed_dim": 16,
    },
    "xlnet": {"d_inner": 48, "d_head": 8, "mem_len": None},
    "xmod": {"default_language": "en_XX"},
    "zamba2": {"attention_hidden_size": 64, "attention_head_dim": 16, "num_mem_blocks": 1},
    "perceiver": {
        "num_latents": 8,
        "d_latents": 16,
        "d_model": 32,
        "num_blocks": 1,
        "num_self_attends_per_block": 2,
        "num_self_attention_heads": 2,
        "num_cross_attention_heads": 2,
        "max_position_embeddings": 130,
    },
    "levit": {"image_size": 32, "hidden_sizes": [16, 24, 32], "num_attention_heads": [2, 2, 2], "depths": [1, 1, 1]},
    **dict.fromkeys(("swin", "swinv2", "donut-swin"), SWIN),
    "hiera": {
        "image_size": [16, 16],
        "embed_dim": 16,
        "depths": [1, 1],
        "num_heads": [2, 2],
        "masked_unit_size": [2, 2],
        "num_query_pool": 1,
    },
    "pvt": STAGES | {"patch_size": 4, "sequence_reduction_ratios": [1, 1, 1, 1]},
    "pvt_v2": STAGES | {"sr_ratios": [1, 1, 1, 1]},
    "segformer": STAGES | {"sr_ratios": [1, 1, 1, 1]},
    "cvt": {"embed_dim": [8, 16, 16], "num_heads": [1, 2, 2], "depth": [1, 1, 1]},
    "convnext": {"patch_size": 2, "hidden_sizes": [8, 8, 16, 16], "depths": [1] * 4, "image_size": 32},
    "convnextv2": {"patch_size": 2, "hidden_sizes": [8, 8, 16, 16], "depths": [1] * 4, "image_size": 32},
    "bit": {
        "embedding_size": 8,
        "hidden_sizes": [8, 8],
        "depths": [1, 1],
        "image_size": 32,
        "num_groups": 2,
        "layer_types": ...,
    },
    "resnet": {"embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1], "image_size": 32},
    "regnet": {"embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1], "image_size": 32, "groups_width": 2},
    "poolformer": {"hidden_sizes": [8, 8, 16, 16], "depths": [1] * 4, "image_size": 32, "patch_size": 7},
    "mobilevitv2": {"image_size": 64, "patch_size": 1},
    "mobilevit": {"image_size": 64, "patch_size": 2},
}
"""Further settings of a model type."""


def list_types(head: str) -> list[str]:
    """Model types that have the head."""
    return list(getattr(modeling_auto, f"MODEL_FOR_{HEADS[head]}_MAPPING_NAMES"))


def shrink(model_type: str, cls: Any, **changes: Any) -> dict[str, Any]:
    """The arguments of a tiny configuration of this class."""
    default = cls()
    # Some configurations hold a value per layer; here all layers get the same.
    default.allow_global_per_layer_attribute_access = True
    values = {}
    for name, size in SIZES.items():
        # Where a number per stage is expected, one size says nothing; properties follow from other entries.
        is_property = isinstance(getattr(cls, name, None), property)
        if not hasattr(default, name) or is_property:
            continue
        if name.endswith("token_id") or not isinstance(getattr(default, name), list | tuple | dict):
            values[name] = size
    for part in getattr(cls, "sub_configs", {}):
        own = getattr(default, part, None)
        if own is not None:
            values[part] = shrink(own.model_type, type(own))
    types = getattr(default, "layer_types", None)
    if types and not isinstance(types, str) and not isinstance(getattr(cls, "layer_types", None), property):
        # Every kind of layer that the architecture has.
        kinds = list(dict.fromkeys(types))
        kinds = kinds * 2 if len(kinds) == 1 else kinds
        values["layer_types"] = kinds
        values["num_hidden_layers"] = len(kinds)
        if getattr(default, "mlp_layer_types", None):
            mlps = list(dict.fromkeys(default.mlp_layer_types))
            values["mlp_layer_types"] = [mlps[i % len(mlps)] for i in range(len(kinds))]
    values |= SPECIAL.get(model_type, {}) | changes
    return {name: value for name, value in values.items() if value is not ...}


def build(model_type: str, head: str, *, dtype: torch.dtype = torch.float64, **changes: Any) -> Any:
    """A random model of this type with this head, its biases and norms random too, in evaluation mode."""
    torch.manual_seed(0)
    config = CONFIG_MAPPING[model_type](**shrink(model_type, CONFIG_MAPPING[model_type], **changes))
    count = 0
    for sub in (config, config.get_text_config()):
        count = max(count, getattr(sub, "num_hidden_layers", 0) or 0)
    if head != "ImageClassification" and count > 12:
        raise ValueError(f"{count} layers")
    names = getattr(modeling_auto, f"MODEL_FOR_{HEADS[head]}_MAPPING_NAMES")[model_type]
    # Where a type has several classes for the head, transformers asks the configuration.
    config.architectures = [names if isinstance(names, str) else names[0]]
    model = getattr(hf, f"AutoModelFor{head}").from_config(config)
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    size = sum(weight.numel() for weight in model.parameters())
    if size > 30_000_000:
        raise ValueError(f"{size} parameters")
    with torch.no_grad():
        for weight in model.parameters():
            if weight.is_floating_point():
                weight.add_(0.1 * torch.randn_like(weight))
    return model.to(dtype).eval()
