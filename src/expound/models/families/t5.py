"""T5."""

from expound.models.families.record import Attention, Decoder, Family, FeedForward, Head

OWN = Attention("layer.0.SelfAttention.v", "layer.0.SelfAttention.o", norm="layer.0.layer_norm")
CROSS = Attention("layer.1.EncDecAttention.v", "layer.1.EncDecAttention.o", norm="layer.1.layer_norm")


def _make_feed_forward(place: int) -> FeedForward:
    # A decoder's layer has cross-attention as its part 1, so that its feed-forward is part 2.
    base = f"layer.{place}.DenseReluDense"
    return FeedForward(f"{base}.wi", f"{base}.act", f"{base}.wo", f"layer.{place}.layer_norm", gate_flag="is_gated_act")


FAMILY = Family(
    layers="encoder.block",
    attention=OWN,
    feed_forward=_make_feed_forward(1),
    decoder=Decoder("decoder.block", OWN, CROSS, _make_feed_forward(2)),
    head=Head("lm_head"),
    norm_first=True,
    final_norm="encoder.final_layer_norm",
    # T5LayerNorm computes the variance in float32.
    in_float32="norms",
    small_config={"vocab_size": 300, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 3}
    | {"num_heads": 4, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
    tokenizer="roberta",
)
