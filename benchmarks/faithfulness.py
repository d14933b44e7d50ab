"""Time comprehensiveness and sufficiency over five budgets for ten methods: the engine, a plain loop, and the floor.

One run, one thread, CPU seconds. The loop runs every perturbed input by itself; the floor is the time of the
distinct, unpadded inputs at the best throughput that this machine reaches on this model.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

import expound
from expound.metrics import measure_cost, metric, top_fraction
from expound.models import Batch, ExplainedModel
from expound.models.encoding.encode import make_batches
from timing import DATA, load_minilm, parse_options, write_results

METHODS = (
    "random", "saliency", "input_x_gradient", "integrated_gradients?n_steps=20", "attention_last", "attention_all",
    "attention_last?query=mean", "scaled_attention", "attention_rollout", "occlusion",
)  # fmt: skip
BUDGETS = (0.01, 0.05, 0.1, 0.2, 0.5)


def main() -> None:
    """Run both parts, print the figures, and write them as JSON."""
    options = parse_options(__doc__, sentences=200, texts=16)
    model = load_minilm()
    sentences = list(expound.load_data(f"sst:{DATA / 'sst'}", "dev", limit=options.sentences))
    reviews = expound.load_data(f"eraser:{DATA / 'movies'}", "dev", limit=options.texts)
    throughput = measure_throughput(model)
    parts = {"sentences": compare_with_loop(model, sentences)}
    parts["texts of 256 tokens"] = compare_with_loop(load_minilm(256), [row["text"] for row in reviews])
    for part in parts.values():
        part["floor_s"] = part["flops"] / throughput
        part |= {f"engine/{other}": part["engine_s"] / part[f"{other}_s"] for other in ("loop", "floor")}
    write_results({"throughput_gflops": throughput / 1e9} | parts, options.output)


def compare_with_loop(model: ExplainedModel, rows: Sequence) -> dict[str, float]:
    """Return the CPU seconds of the engine and of the loop over the same inputs, and the FLOPs of the distinct ones."""
    metrics = [metric("aopc_comprehensiveness"), metric("aopc_sufficiency")]
    totals = {"engine_s": 0.0, "loop_s": 0.0, "flops": 0.0, "inputs": 0, "distinct": 0, "peak_mib": 0.0, "gap": 0.0}
    for indices in make_batches(model, rows):
        for start in range(0, len(indices), 32):
            batch = model.encode([rows[index] for index in indices[start : start + 32]])
            with torch.no_grad():
                target = model.predict(batch)
                scores = [expound.explainer(method).attribute(model, batch, target) for method in METHODS]
            repeated_batch = batch.select(list(range(len(batch))) * len(METHODS))
            arguments = (repeated_batch, torch.cat(scores), target.repeat(len(METHODS)))
            with measure_cost("cpu") as cost:
                begin = time.process_time()
                with model.cache_perturbed():
                    values = [next(iter(judge.evaluate(model, *arguments).values())) for judge in metrics]
                totals["engine_s"] += time.process_time() - begin
            totals["peak_mib"] = max(totals["peak_mib"], cost.peak_memory)
            add_loop(totals, model, *arguments, values)
    return totals


def add_loop(
    totals: dict[str, float], model: ExplainedModel, batch: Batch, scores: Tensor, target: Tensor, engine_values
) -> None:
    """Run the same inputs one at a time, add their time and number to the totals, and compare the values."""
    top = top_fraction(scores, batch, BUDGETS)
    keep = torch.cat([torch.ones_like(top[:1]), ~top, top]) | ~batch.content
    inputs = [
        [(batch.inputs["input_ids"][row][keep[n, row] & batch.attended[row]]) for n in range(len(keep))]
        for row in range(len(batch))
    ]
    answers = torch.zeros(len(keep), len(batch))
    begin = time.process_time()
    with torch.no_grad():
        for row, versions in enumerate(inputs):
            for n, ids in enumerate(versions):
                answers[n, row] = model.model(input_ids=ids[None]).logits.softmax(-1)[0, target[row]]
    totals["loop_s"] += time.process_time() - begin
    bins = len(BUDGETS)
    expected = [(answers[0] - answers[1 : bins + 1]).mean(0), (answers[0] - answers[bins + 1 :]).mean(0)]
    totals["gap"] = max(
        totals["gap"], *(float((a - b).abs().max()) for a, b in zip(expected, engine_values, strict=True))
    )
    distinct = {tuple(ids.tolist()) for versions in inputs for ids in versions}
    totals["inputs"] += keep.shape[0] * keep.shape[1]
    totals["distinct"] += len(distinct)
    totals["flops"] += sum(count_flops(model, len(ids)) for ids in distinct)


def count_flops(model: ExplainedModel, length: int) -> float:
    """Return the multiplications and additions of one sequence in the encoder."""
    config = model.config
    linear = 4 * config.hidden_size**2 + 2 * config.hidden_size * config.intermediate_size
    return config.num_hidden_layers * 2 * length * (linear + 2 * length * config.hidden_size)


@torch.no_grad()
def measure_throughput(model: ExplainedModel) -> float:
    """Return the FLOPs per CPU second at the best of many shapes."""
    best = 0.0
    for length in (16, 32, 64, 128, 256):
        for tokens in (512, 1024, 2048, 4096, 8192):
            ids = torch.randint(1000, 20000, (max(1, tokens // length), length))
            for _ in range(3):
                begin = time.process_time()
                model.model(input_ids=ids)
                best = max(best, ids.shape[0] * count_flops(model, length) / (time.process_time() - begin))
    return best


if __name__ == "__main__":
    main()
