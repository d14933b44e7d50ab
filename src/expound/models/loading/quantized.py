"""Loading of linear layers' weights in 8 or 4 bits by bitsandbytes."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from expound.errors import ExpoundError

BITS: Mapping[str, dict[str, Any]] = {
    "8bit": {"load_in_8bit": True},
    "4bit": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.float32},
}
"""Options per type: 8-bit integers (LLM.int8), which also round a layer's inputs, or 4-bit normal floats (NF4)."""


def quantization_options(dtype: Any) -> dict[str, Any]:
    """Return the options with which transformers loads linear layers in 8 or 4 bits; {} for other types.

    Raises:
        ExpoundError: bitsandbytes is not installed.
    """
    if dtype not in BITS:
        return {}
    if find_spec("bitsandbytes") is None:
        raise ExpoundError(f"dtype={dtype!r} needs the extra 'quantized': pip install 'expound[quantized]'")
    from transformers import BitsAndBytesConfig  # noqa: PLC0415

    return {"quantization_config": BitsAndBytesConfig(**BITS[dtype])}


def keep_weight_order(model: nn.Module) -> None:
    """Keep 4-bit weights as they were stored.

    On CPUs with AVX512-BF16, bitsandbytes would round and reorder them in the first pass without gradients, for good.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            setattr(module, "support_avx512bf16_for_cpu", False)  # noqa: B010
