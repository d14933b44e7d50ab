"""ViT."""

from expound.models.families.record import SMALL, Attention, Family, FeedForward, Head

FAMILY = Family(
    layers="layers",
    norm_first=True,
    final_norm="layernorm",
    attention=Attention("attention.v_proj", "attention.o_proj", norm="layernorm_before"),
    feed_forward=FeedForward("mlp.fc1", "mlp.activation_fn", "mlp.fc2", norm="layernorm_after"),
    head=Head("classifier"),
    small_config=SMALL | {"image_size": 8, "patch_size": 2, "num_channels": 1},
    tokenizer=None,
)
