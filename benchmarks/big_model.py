"""A Llama-shaped model of a billion random weights, explained here: seconds and peak memory by method."""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForSequenceClassification

import exegete
from exegete import Batch

METHODS = ("input_x_gradient", "decompx_linear", "attn_lrp", "occlusion?perturbation=remove")


def main() -> int:
    """Explains a text by each method; exits with 1 where the process took more memory than allowed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--most", type=float, default=20.0, help="gigabytes of resident memory")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    torch.set_default_dtype(getattr(torch, given.dtype))
    config = LlamaConfig(
        hidden_size=2048, intermediate_size=8192, num_hidden_layers=given.layers, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=32000, num_labels=2, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = exegete.load(LlamaForSequenceClassification(config).eval())
    torch.set_default_dtype(torch.float32)
    found = {"parameters": sum(each.numel() for each in model.parameters()), "dtype": given.dtype}
    found |= {"tokens": given.tokens, "loaded_gb": _peak()}
    batch = Batch.from_ids(torch.randint(3, 32000, (1, given.tokens)))
    for name in METHODS:
        begun, cpu = time.perf_counter(), time.process_time()
        scores = exegete.explainer(name).attribute(model, batch, torch.tensor([1]))
        assert torch.isfinite(scores).all()
        seconds = {"seconds": time.perf_counter() - begun, "cpu_seconds": time.process_time() - cpu}
        found[name] = {**seconds, "peak_gb": _peak()}
        print(name, found[name], flush=True)
    if given.output:
        given.output.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(found))
    return int(_peak() > given.most)


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    sys.exit(main())
