"""`compare` with its usual methods and metrics against the distinct passes in it: CPU seconds, one thread, one run.

A pass is told by what enters the first layer: a sentence that goes in twice the same way is counted once, whichever
methods and metrics ask. Passes back all count. Other computations of methods and metrics are not passes.
"""

from __future__ import annotations

import time
from typing import Any

import torch

import exegete
from timing import DATA, given, keep, minilm, seconds


def main() -> None:
    """Measures, prints, and keeps the numbers as JSON."""
    options = given(__doc__, sentences=200)
    model, found = minilm(), {"forward_s": 0.0, "repeated_s": 0.0, "backward_s": 0.0}
    rows = exegete.load_data(f"sst:{DATA / 'sst'}", "dev", limit=options.sentences)
    exegete.compare(model, rows.select(range(2)), show_progress=False)
    known, repeated, inner, back = set[tuple[float, ...]](), 0.0, model.model.forward, torch.autograd.grad

    def looked(_: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        nonlocal repeated
        states = inputs[0].detach().double() * attended
        sums = torch.stack([states.sum((1, 2)), (states**2).sum((1, 2))], 1).round(decimals=3)
        keys = [tuple(row) for row in sums.tolist()]
        sizes = attended.sum((1, 2)).tolist()
        seen = [key in known or key in keys[:row] for row, key in enumerate(keys)]
        known.update(keys)
        repeated = sum(size for size, again in zip(sizes, seen, strict=True) if again) / sum(sizes)

    def forward(*args: Any, **named: Any) -> Any:
        nonlocal attended
        attended = named["attention_mask"][..., None]
        begun = time.process_time()
        answer = inner(*args, **named)
        taken = time.process_time() - begun
        found["forward_s"] += taken
        found["repeated_s"] += taken * repeated
        return answer

    def backward(*args: Any, **named: Any) -> Any:
        begun = time.process_time()
        slopes = back(*args, **named)
        found["backward_s"] += time.process_time() - begun
        return slopes

    attended = torch.empty(0)
    model.model.bert.encoder.layer[0].register_forward_pre_hook(looked)
    model.model.forward, torch.autograd.grad = forward, backward
    found["compare_s"] = seconds(lambda: exegete.compare(model, rows, show_progress=False))
    distinct = found["forward_s"] - found["repeated_s"] + found["backward_s"]
    keep(found | {"sentences": len(rows), "compare/distinct": found["compare_s"] / distinct}, options.output)


if __name__ == "__main__":
    main()
