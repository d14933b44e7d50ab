"""CPU seconds and peak memory of the decomposition family, beside a forward pass.

Sentences and texts of 256 tokens one at a time on the fine-tuned model, and one text of 1,024 tokens on a random model
of BERT-base's size. One thread; every method has a process of its own, in which the forward pass is timed too, and
whose peak memory (with interpreter, libraries and model) is the highest resident set.
"""

from __future__ import annotations

import statistics
from multiprocessing import get_context

import torch
from transformers import BertConfig, BertForSequenceClassification

import exegete
from exegete.explainers import explainer
from exegete.models import Batch, ExplainedModel
from timing import DATA, given, keep, memory, minilm, seconds

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
    """Runs what is asked for, prints it, and keeps it as JSON."""
    options = given(__doc__, methods=METHODS, parts=PARTS, sentences=64, texts=16)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for part in options.parts:
        for method in options.methods:
            with get_context("spawn").Pool(1) as pool:
                count = {PARTS[0]: options.sentences, PARTS[1]: options.texts}.get(part, 1)
                row = pool.apply(measured, (part, method, count))
            found.setdefault(part, {})[method] = row
            print(f"{part:24}{method:20}" + "  ".join(f"{name} {value:.4g}" for name, value in row.items()), flush=True)
    print(*missed(found), sep="\n")
    keep(found, options.output)


def measured(part: str, method: str, count: int) -> dict[str, float]:
    """Median CPU seconds an input of a forward pass and of the method, their ratio, and peak memory in GB of each."""
    torch.set_num_threads(1)
    model, inputs = loaded(part, count)
    target = torch.zeros(1, dtype=torch.long)
    chosen = explainer(method)
    repeats = 3 if part == PARTS[0] or method in REPEATED else 1
    with torch.no_grad(), model.evaluation_mode():
        model(inputs[0])
        passes = [seconds(lambda batch=batch: model(batch), 3) for batch in inputs]
        before = memory() * GB
        if repeats > 1:
            chosen.explain(model, inputs[0], target)
        own = [seconds(lambda batch=batch: chosen.explain(model, batch, target), repeats) for batch in inputs]
        passes += [seconds(lambda batch=batch: model(batch), 3) for batch in inputs]
    forward, mine = statistics.median(passes), statistics.median(own)
    found = {"seconds": mine, "forward_seconds": forward, "passes": mine / forward}
    return found | {"peak_gb": memory() * GB, "forward_peak_gb": before, "inputs": len(inputs)}


def loaded(part: str, count: int) -> tuple[ExplainedModel, list[Batch]]:
    """The model and its inputs, one a batch."""
    if part == PARTS[2]:
        torch.manual_seed(0)
        model = BertForSequenceClassification(BertConfig(max_position_embeddings=1024)).eval()
        return ExplainedModel(model), [Batch.from_ids(torch.randint(1000, 30000, (1, 1024)))]
    explained = minilm()
    if part == PARTS[0]:
        rows = exegete.load_data(f"sst:{DATA / 'sst'}", "dev", limit=count)
        return explained, [explained.encode([row]) for row in rows]
    rows = exegete.load_data(f"eraser:{DATA / 'movies'}", "dev", limit=count)
    whole = [explained.encode([" ".join(row["text"].split()[:330])]) for row in rows]
    return explained, [Batch.from_ids(batch.inputs["input_ids"][:, :256]) for batch in whole if batch.length >= 256]


def missed(found: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    """The bars at 256 and 1,024 tokens that were not reached."""
    return [
        f"missed: {part}, {method}: {name} {found[part][method][name]:.3g} > {bar:.3g}"
        for part, bars in zip(PARTS[1:], (BARS, LONG_BARS), strict=True)
        for name, each in bars.items()
        for method, bar in each.items()
        if found.get(part, {}).get(method, {}).get(name, 0) > bar
    ] or ["every bar reached"]


if __name__ == "__main__":
    main()
