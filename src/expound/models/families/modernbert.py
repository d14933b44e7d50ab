"""ModernBERT."""

from expound.models.families.record import SMALL, Attention, Family, FeedForward, Head

SPECIAL = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
FAMILY = Family(
    layers="layers",
    # Queries, keys and values come from one projection, values last.
    attention=Attention("attn.Wqkv", "attn.Wo", norm="attn_norm", part=(2, 3)),
    feed_forward=FeedForward("mlp.Wi", "mlp.act", "mlp.Wo", norm="mlp_norm", has_fused_gate=True),
    head=Head("classifier", dense="head.dense", activation="classifier_activation", norm="head.norm"),
    masked=Head("decoder", dense="head.dense", activation="classifier_activation", norm="head.norm"),
    norm_first=True,
    final_norm="final_norm",
    in_float32="rotations",
    small_config=SMALL | SPECIAL | {"local_attention": 8},
)
