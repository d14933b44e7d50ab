"""Llama."""

from expound.models.families.record import SMALL, Attention, Family, FeedForward, Head

FAMILY = Family(
    layers="layers",
    attention=Attention("self_attn.v_proj", "self_attn.o_proj", norm="input_layernorm"),
    feed_forward=FeedForward(
        "mlp.up_proj", "mlp.act_fn", "mlp.down_proj", norm="post_attention_layernorm", gate="mlp.gate_proj"
    ),
    head=Head("score"),
    norm_first=True,
    final_norm="norm",
    # LlamaRMSNorm computes the variance in float32.
    in_float32="norms",
    small_config=SMALL | {"num_key_value_heads": 2, "bos_token_id": 2, "eos_token_id": 3},
    tokenizer="gpt2",
)
