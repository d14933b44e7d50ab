"""What IvRA's explanations cost over a forward pass, and its criteria over a plain training step.

One run, one thread, CPU seconds, MiniLM; the things compared take turns, and a ratio is the median over rounds. Freed
memory stays with the process (glibc): else some passes, plain ones among them, have to ask the system for all of it
again, which here takes up to a tenth of their time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial

import torch

import exegete
from exegete.explainers.learned.interpretable_attention import InterpretableAttention
from exegete.models import Batch
from exegete.objectives import Comprehensiveness, Consistency, CrossEntropy, Objective, StepContext, Sufficiency
from exegete.training.bilevel.simulatability import Simulatability, SimulatingStudent
from exegete.training.loop.module import TrainingModule
from timing import DATA, given, keep, minilm, ratios

LIMITS = {"explanation": 1.10, "comprehensiveness": 2.3, "sufficiency": 2.3, "consistency": 1.3}
FEW = 16
MORE = 4  # rounds of what takes a pass alone, for each of what takes a step
NORMS = ("sparsemax", "softmax")
MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # of mallopt(3)


def main() -> None:
    """Measures, prints, and keeps the ratios as JSON."""
    options = given(__doc__, rounds=5, batch=64, lengths=[32, 128])
    keep_memory()
    found: dict[str, dict[str, float]] = {}
    for length in options.lengths:
        data = batch_of(length, FEW)
        found[f"explanation over a forward pass, {FEW} texts of {length} tokens"] = explanations(
            data, MORE * options.rounds
        )
    shortest = batch_of(options.lengths[0], options.batch)
    name = f"training step over a plain one, {options.batch} texts of {options.lengths[0]} tokens"
    found[name] = steps(shortest, options.rounds)
    keep(found | {"limits": LIMITS}, options.output)


def keep_memory() -> None:
    """Whatever is freed from here on is kept for what comes next."""
    libc = ctypes.CDLL(None)
    if not (libc.mallopt(MMAP_THRESHOLD, 1 << 30) and libc.mallopt(TRIM_THRESHOLD, (1 << 31) - 1)):
        raise SystemExit("the C library cannot be told to keep memory")


def batch_of(length: int, count: int) -> Batch:
    """Rows of so many tokens each, of sentences one after the other."""
    words = " ".join(row["text"] for row in exegete.load_data(f"sst:{DATA / 'sst'}", "dev", limit=800)).split()
    rows = [{"text": " ".join(words[i * length : (i + 1) * length]), "label": i % 2} for i in range(count)]
    return minilm(length).encode(rows)


def explanations(batch: Batch, rounds: int) -> dict[str, float]:
    """By NORM: a pass with queries and keys recorded and the explanation made of it, over a pass alone."""
    model = minilm()
    target = torch.zeros(len(batch), dtype=torch.long)

    def explained(single: InterpretableAttention) -> None:
        outputs = model(batch, capture=single.capture)
        single.from_outputs(model, batch, outputs, target, keep_graph=False)

    singles = {norm: InterpretableAttention.untrained(model, normaliser=norm) for norm in NORMS}
    with torch.no_grad():
        return ratios(lambda: model(batch), {n: partial(explained, each) for n, each in singles.items()}, rounds)


def steps(batch: Batch, rounds: int) -> dict[str, float]:
    """By criterion: forward, backward and AdamW with it and the cross-entropy, over the cross-entropy alone."""

    def step(*criteria: Callable[[InterpretableAttention], Objective]) -> Callable[[], None]:
        model = minilm()
        single = InterpretableAttention.untrained(model, normaliser="softmax")
        module = TrainingModule(model, [CrossEntropy(), *(each(single) for each in criteria)]).train()
        optimizer = torch.optim.AdamW([weight for weight in module.parameters() if weight.requires_grad])

        def run() -> None:
            module(batch, StepContext())["terms"].sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return run

    compared = {
        "comprehensiveness": step(Comprehensiveness),
        "sufficiency": step(Sufficiency),
        "consistency": step(Consistency),
        "simulatability": step(lambda single: Simulatability(single, student=SimulatingStudent(minilm()))),
    }
    return ratios(step(), compared, rounds)


if __name__ == "__main__":
    main()
