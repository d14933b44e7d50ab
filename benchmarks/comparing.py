"""Time `compare` with its default methods and metrics, relative to its distinct passes: CPU seconds, one thread.

Forward passes are distinct if different states enter the first layer: a sentence that enters it twice in the same way
is counted once, for all methods and metrics. All backward passes count. Other computations of methods and metrics are
not passes.
"""

from __future__ import annotations

import time
from typing import Any

import torch

import expound
from timing import DATA, load_minilm, measure_seconds, parse_options, write_results


def main() -> None:
    """Measure, print the numbers, and write them as JSON."""
    options = parse_options(__doc__, sentences=200)
    model, results = load_minilm(), {"forward_s": 0.0, "repeated_s": 0.0, "backward_s": 0.0}
    rows = expound.load_data(f"sst:{DATA / 'sst'}", "dev", limit=options.sentences)
    expound.compare(model, rows.select(range(2)), show_progress=False)
    known_inputs, repeated_share = set[tuple[float, ...]](), 0.0
    forward, grad = model.model.forward, torch.autograd.grad

    def find_repeated(_: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        nonlocal repeated_share
        states = inputs[0].detach().double() * attended
        sums = torch.stack([states.sum((1, 2)), (states**2).sum((1, 2))], 1).round(decimals=3)
        keys = [tuple(row) for row in sums.tolist()]
        sizes = attended.sum((1, 2)).tolist()
        seen = [key in known_inputs or key in keys[:row] for row, key in enumerate(keys)]
        known_inputs.update(keys)
        repeated_share = sum(size for size, is_repeated in zip(sizes, seen, strict=True) if is_repeated) / sum(sizes)

    def time_forward(*args: Any, **kwargs: Any) -> Any:
        nonlocal attended
        attended = kwargs["attention_mask"][..., None]
        start = time.process_time()
        outputs = forward(*args, **kwargs)
        duration = time.process_time() - start
        results["forward_s"] += duration
        results["repeated_s"] += duration * repeated_share
        return outputs

    def time_backward(*args: Any, **kwargs: Any) -> Any:
        start = time.process_time()
        gradients = grad(*args, **kwargs)
        results["backward_s"] += time.process_time() - start
        return gradients

    attended = torch.empty(0)
    model.model.bert.encoder.layer[0].register_forward_pre_hook(find_repeated)
    model.model.forward, torch.autograd.grad = time_forward, time_backward
    results["compare_s"] = measure_seconds(lambda: expound.compare(model, rows, show_progress=False))
    distinct = results["forward_s"] - results["repeated_s"] + results["backward_s"]
    write_results(
        results | {"sentences": len(rows), "compare/distinct": results["compare_s"] / distinct}, options.output
    )


if __name__ == "__main__":
    main()
