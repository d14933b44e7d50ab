"""Records of the families that need special treatment, by transformers' `model_type`: what no pass of a model shows."""

from __future__ import annotations

from dataclasses import dataclass

from expound.data.registry import Registry


@dataclass(frozen=True, slots=True)
class Hooks:
    """The names of the parts of an attention outside of transformers' interface; its weights pass through `dropout`."""

    query: str
    key: str
    value: str
    dropout: str = "dropout"
    heads: str = "num_attention_heads"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The special treatment of a family of models.

    Args:
        hooks: the parts of self-attention, if it does not go through transformers' interface.
        shared: the paths of the groups of layers in the base model, and of the layers in each group, if layers run
            repeatedly.
    """

    hooks: Hooks | None = None
    shared: tuple[str, str] | None = None


ALBERT = Family(shared=("encoder.albert_layer_groups", "albert_layers"))
BIG_BIRD = Family(hooks=Hooks("query", "key", "value"))
# Its attention adds terms of relative positions.
DEBERTA_V2 = Family(hooks=Hooks("query_proj", "key_proj", "value_proj"))

FAMILIES: Registry[Family] = Registry(
    "model family",
    "expound.families",
    {"albert": "families:ALBERT", "big_bird": "families:BIG_BIRD", "deberta-v2": "families:DEBERTA_V2"},
    package="expound.models",
)
