"""BART."""

from expound.models.families.record import Attention, Decoder, Family, FeedForward, Head

OWN = Attention("self_attn.v_proj", "self_attn.out_proj", norm="self_attn_layer_norm")
CROSS = Attention("encoder_attn.v_proj", "encoder_attn.out_proj", norm="encoder_attn_layer_norm")
WIDE = FeedForward("fc1", "activation_fn", "fc2", norm="final_layer_norm")
FAMILY = Family(
    layers="encoder.layers",
    attention=OWN,
    feed_forward=WIDE,
    decoder=Decoder("decoder.layers", OWN, CROSS, WIDE),
    head=Head("lm_head"),
    small_config={
        "vocab_size": 300,
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "max_position_embeddings": 130,
    }
    | {"encoder_attention_heads": 4, "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 40}
    | {
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
        "forced_eos_token_id": None,
    },
    tokenizer="roberta",
)
