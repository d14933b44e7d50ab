"""GPT-2."""

from expound.models.families.record import Attention, Family, FeedForward, Head

FAMILY = Family(
    layers="h",
    # Queries, keys and values come from one projection, values last.
    attention=Attention("attn.c_attn", "attn.c_proj", norm="ln_1", part=(2, 3)),
    feed_forward=FeedForward("mlp.c_fc", "mlp.act", "mlp.c_proj", norm="ln_2"),
    head=Head("score"),
    norm_first=True,
    final_norm="ln_f",
    small_config={"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 130}
    | {"vocab_size": 300, "bos_token_id": 2, "eos_token_id": 2},
    tokenizer="gpt2",
)
