"""What a guided step costs over plain fine-tuning: real sentences, batches of 32, one thread, CPU seconds.

The kinds of step take turns over the same batches, so that what else the machine does falls on all of them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from statistics import median

import torch
from torch.nn.utils import clip_grad_norm_

import exegete
from exegete.models import Batch, ExplainedModel
from exegete.objectives import CrossEntropy, ExplanationLoss, Objective, StepContext
from exegete.training.loop.module import TrainingModule
from timing import DATA, given, keep, minilm

BARS = {"attention_last": 1.15, "attention_rollout": 1.3, "input_x_gradient": 3.0, "alti": None, "decompx_linear": None}


def main() -> None:
    """Runs, prints, and keeps the figures as JSON."""
    options = given(__doc__, steps=12, guides=list(BARS))
    model = minilm()
    rows = list(exegete.load_data(f"sst:{DATA / 'sst'}", "train", limit=32 * options.steps))
    batches = [model.encode(rows[start : start + 32]) for start in range(0, len(rows), 32)]
    batches = batches[:1] + batches
    kinds: dict[str, list[Objective]] = {"plain": [CrossEntropy()]}
    kinds |= {g: [CrossEntropy(), ExplanationLoss(exegete.explainer(g))] for g in options.guides}
    found = {name: cost | {"bar": BARS.get(name)} for name, cost in costs(model, batches, kinds).items()}
    keep(found, options.output)


def costs(
    model: ExplainedModel, batches: Sequence[Batch], kinds: Mapping[str, Sequence[Objective]]
) -> dict[str, dict[str, float]]:
    """Median CPU seconds of a step of each kind, and the median over batches of its ratio to a `plain` one.

    The first batch warms up: its steps are not counted.
    """
    modules = {name: TrainingModule(model, objectives).train() for name, objectives in kinds.items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    for number, batch in enumerate(batches):
        for name, module in modules.items():
            begin = time.process_time()
            optimizer.zero_grad()
            terms = module(batch, StepContext(number=number))["terms"]
            (terms * terms.new_tensor([objective.weight for objective in kinds[name]])).sum().backward()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            seconds[name].append(time.process_time() - begin)
    kept = {name: values[1:] for name, values in seconds.items()}
    return {
        name: {
            "seconds": median(values),
            "ratio": median(one / plain for one, plain in zip(values, kept["plain"], strict=True)),
        }
        for name, values in kept.items()
    }


if __name__ == "__main__":
    main()
