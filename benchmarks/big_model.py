"""A Llama-shaped model of a billion random weights, explained here: seconds and peak memory by method."""

from __future__ import annotations

import sys
import time

import torch
from transformers import LlamaConfig, LlamaForSequenceClassification

import exegete
from exegete import Batch
from timing import given, keep, memory

METHODS = ("input_x_gradient", "decompx_linear", "attn_lrp", "occlusion?perturbation=remove")


def main() -> int:
    """Explains a text by each method; exits with 1 where the process took more memory than `--most` GB."""
    options = given(__doc__, tokens=32, layers=16, dtype="bfloat16", most=20.0)
    torch.set_default_dtype(getattr(torch, options.dtype))
    config = LlamaConfig(
        hidden_size=2048, intermediate_size=8192, num_hidden_layers=options.layers, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=32000, num_labels=2, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = exegete.load(LlamaForSequenceClassification(config).eval())
    torch.set_default_dtype(torch.float32)
    found = {"parameters": sum(each.numel() for each in model.parameters()), "dtype": options.dtype}
    found |= {"tokens": options.tokens, "loaded_gb": memory() / 1024}
    batch = Batch.from_ids(torch.randint(3, 32000, (1, options.tokens)))
    for name in METHODS:
        begun, cpu = time.perf_counter(), time.process_time()
        scores = exegete.explainer(name).attribute(model, batch, torch.tensor([1]))
        assert torch.isfinite(scores).all()
        seconds = {"seconds": time.perf_counter() - begun, "cpu_seconds": time.process_time() - cpu}
        found[name] = {**seconds, "peak_gb": memory() / 1024}
        print(name, found[name], flush=True)
    keep(found, options.output)
    return int(memory() / 1024 > options.most)


if __name__ == "__main__":
    sys.exit(main())
