"""Weights in 8 or 4 bits, by bitsandbytes: what loads them so, and what they are as numbers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from exegete.errors import ExegeteError

BITS: Mapping[str, dict[str, Any]] = {
    "8bit": {"load_in_8bit": True},
    "4bit": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.float32},
}
"""Types of linear layers' weights: 8-bit whole numbers (LLM.int8), which round what enters a layer too, or 4-bit normal
floats (NF4)."""


def quantization_options(dtype: Any) -> dict[str, Any]:
    """What transformers needs to load a model's linear layers in so many bits; nothing for other types.

    Raises:
        ExegeteError: the extra that does it is missing.
    """
    if dtype not in BITS:
        return {}
    if find_spec("bitsandbytes") is None:
        raise ExegeteError(f"dtype={dtype!r} needs the extra 'quantized': pip install 'exegete[quantized]'")
    from transformers import BitsAndBytesConfig  # noqa: PLC0415

    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it warns of every layer in every pass
    return {"quantization_config": BitsAndBytesConfig(**BITS[dtype])}


def keep_weight_order(model: nn.Module) -> None:
    """Keeps 4-bit weights as they were stored: passes without gradients would round and reorder them on some CPUs."""
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            setattr(module, "support_avx512bf16_for_cpu", False)  # noqa: B010


def dequantize(module: nn.Module, weight: Tensor) -> Tensor:
    """The numbers that a weight stands for: itself, unless it is stored in 8 or 4 bits.

    Raises:
        ExegeteError: a pass of a model loaded elsewhere has reordered it (see `keep_weight_order`).
    """
    if type(weight).__name__ not in ("Int8Params", "Params4bit"):
        return weight
    if getattr(getattr(weight, "quant_state", None), "packing_format_for_cpu", False):
        raise ExegeteError("4-bit weights were reordered for this CPU: load the model by name with dtype='4bit'")
    from transformers.integrations.bitsandbytes import dequantize_bnb_weight  # noqa: PLC0415

    numbers: Tensor = dequantize_bnb_weight(weight, getattr(module, "state", None))
    return numbers.detach()
