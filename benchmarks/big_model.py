"""Explain a Llama-shaped model of a billion random weights: seconds and peak memory of each method."""

from __future__ import annotations

import sys
import time

import torch
from transformers import LlamaConfig, LlamaForSequenceClassification

import expound
from expound import Batch
from timing import parse_options, read_memory, write_results

METHODS = ("input_x_gradient", "decompx_linear", "attn_lrp", "occlusion?perturbation=remove")


def main() -> int:
    """Explain a text by each method; return 1 if the process took more memory than `--most` GB."""
    options = parse_options(__doc__, tokens=32, layers=16, dtype="bfloat16", most=20.0)
    torch.set_default_dtype(getattr(torch, options.dtype))
    config = LlamaConfig(
        hidden_size=2048, intermediate_size=8192, num_hidden_layers=options.layers, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=32000, num_labels=2, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = expound.load(LlamaForSequenceClassification(config).eval())
    torch.set_default_dtype(torch.float32)
    results = {"parameters": sum(each.numel() for each in model.parameters()), "dtype": options.dtype}
    results |= {"tokens": options.tokens, "loaded_gb": read_memory() / 1024}
    batch = Batch.from_ids(torch.randint(3, 32000, (1, options.tokens)))
    for name in METHODS:
        start, cpu_start = time.perf_counter(), time.process_time()
        scores = expound.explainer(name).attribute(model, batch, torch.tensor([1]))
        assert torch.isfinite(scores).all()
        seconds = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu_start}
        results[name] = {**seconds, "peak_gb": read_memory() / 1024}
        print(name, results[name], flush=True)
    write_results(results, options.output)
    return int(read_memory() / 1024 > options.most)


if __name__ == "__main__":
    sys.exit(main())
