"""Measure CPU seconds and peak memory of the decomposition family, beside a forward pass.

Sentences and texts of 256 tokens are explained one at a time on the fine-tuned model, and one text of 1,024 tokens on a
random model of BERT-base's size. Every method has a process of its own with one thread, in which the forward pass is
timed, too. Peak memory is the largest resident set of this process, with interpreter, libraries and model.
"""

from __future__ import annotations

import statistics
from multiprocessing import get_context

import torch
from transformers import BertConfig, BertForSequenceClassification

import expound
from expound.explainers import explainer
from expound.models import Batch, ExplainedModel
from timing import DATA, load_minilm, measure_seconds, parse_options, read_memory, write_results

METHODS = ("globenc", "alti", "information_flow", "flash_trace", "decompx_linear", "decompx", "decompx_classifier")
PARTS = ("sentences", "texts of 256 tokens", "a text of 1,024 tokens")
WIDE = ("decompx", "decompx_classifier")
BARS = {
    "passes": {"globenc": 4.0, "alti": 4.0, "decompx_linear": 3.5} | dict.fromkeys(WIDE, 0.75 * 366),
    "peak_gb": {"globenc": 1.0, "alti": 1.0} | dict.fromkeys(WIDE, 1.5),
}
LONG_BARS = {
    "passes": {"information_flow": 4.0},
    "peak_gb": {"information_flow": 4.0, "globenc": 8.0, "alti": 8.0} | dict.fromkeys(WIDE, 16.0),
}
GB = 2**20 / 1e9  # of a MiB
REPEATED = ("globenc", "alti", "decompx_linear")


def main() -> None:
    """Run the chosen parts, print the figures, and write them as JSON."""
    options = parse_options(__doc__, methods=METHODS, parts=PARTS, sentences=64, texts=16)
    results: dict[str, dict[str, dict[str, float]]] = {}
    for part in options.parts:
        for method in options.methods:
            with get_context("spawn").Pool(1) as pool:
                count = {PARTS[0]: options.sentences, PARTS[1]: options.texts}.get(part, 1)
                row = pool.apply(measure, (part, method, count))
            results.setdefault(part, {})[method] = row
            print(f"{part:24}{method:20}" + "  ".join(f"{name} {value:.4g}" for name, value in row.items()), flush=True)
    print(*list_missed_bars(results), sep="\n")
    write_results(results, options.output)


def measure(part: str, method: str, count: int) -> dict[str, float]:
    """Return the median CPU seconds per input of a forward pass and of the method, their ratio, and peak GB."""
    torch.set_num_threads(1)
    model, inputs = load_inputs(part, count)
    target = torch.zeros(1, dtype=torch.long)
    chosen = explainer(method)
    repeats = 3 if part == PARTS[0] or method in REPEATED else 1
    with torch.no_grad(), model.evaluation_mode():
        model(inputs[0])
        pass_times = [measure_seconds(lambda batch=batch: model(batch), 3) for batch in inputs]
        pass_memory = read_memory() * GB
        if repeats > 1:
            chosen.explain(model, inputs[0], target)
        method_times = [
            measure_seconds(lambda batch=batch: chosen.explain(model, batch, target), repeats) for batch in inputs
        ]
        pass_times += [measure_seconds(lambda batch=batch: model(batch), 3) for batch in inputs]
    pass_seconds, method_seconds = statistics.median(pass_times), statistics.median(method_times)
    results = {"seconds": method_seconds, "forward_seconds": pass_seconds, "passes": method_seconds / pass_seconds}
    return results | {"peak_gb": read_memory() * GB, "forward_peak_gb": pass_memory, "inputs": len(inputs)}


def load_inputs(part: str, count: int) -> tuple[ExplainedModel, list[Batch]]:
    """Return the model and its inputs, one per batch."""
    if part == PARTS[2]:
        torch.manual_seed(0)
        model = BertForSequenceClassification(BertConfig(max_position_embeddings=1024)).eval()
        return ExplainedModel(model), [Batch.from_ids(torch.randint(1000, 30000, (1, 1024)))]
    minilm = load_minilm()
    if part == PARTS[0]:
        rows = expound.load_data(f"sst:{DATA / 'sst'}", "dev", limit=count)
        return minilm, [minilm.encode([row]) for row in rows]
    rows = expound.load_data(f"eraser:{DATA / 'movies'}", "dev", limit=count)
    encoded = [minilm.encode([" ".join(row["text"].split()[:330])]) for row in rows]
    return minilm, [Batch.from_ids(batch.inputs["input_ids"][:, :256]) for batch in encoded if batch.length >= 256]


def list_missed_bars(results: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    """Return a line for each bar at 256 and 1,024 tokens that was missed."""
    return [
        f"missed: {part}, {method}: {name} {results[part][method][name]:.3g} > {bar:.3g}"
        for part, bars in zip(PARTS[1:], (BARS, LONG_BARS), strict=True)
        for name, bars_by_method in bars.items()
        for method, bar in bars_by_method.items()
        if results.get(part, {}).get(method, {}).get(name, 0) > bar
    ] or ["every bar reached"]


if __name__ == "__main__":
    main()
