"""REGEX: what a step costs over plain fine-tuning, and what the guide's cost buys. Real sentences, one thread.

`guides`: every guide of one fixed model against integrated gradients of 50 points: how alike the tokens that it would
mask and the whole ranking are, and how faithful it is itself, with its own CPU seconds over those of a plain step.

`share` and `whole`: CPU seconds of a step whose terms are estimated on a share of each batch, and of one where they see
all of it, each term alone too. The kinds of step take turns over the same batches, so that what else the machine does
falls on all of them. "IG of 50, remembered" is a step of an epoch in which the teacher's earlier answers are used;
"IG of 50, cached" is the mean over ten epochs, the first of which asks.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import exegete
from exegete.data.provenance import versions
from exegete.metrics.agreement import kendall_tau
from exegete.models import Batch, ExplainedModel
from exegete.objectives import CrossEntropy, ExplanationGuided, Objective
from exegete.objectives.teacher import importance, least_important
from exegete.recipes import RECIPES
from training import costs

SHARED = Path(__file__).parents[2] / "shared"
BAR, EPOCHS, MASKED = 2.5, 10, 0.15
NOTHING = dict.fromkeys(("gradient_weight", "adversarial_weight", "guidance_weight"), 0.0)
POINTS = (1, 2, 4, 8)
LINEAR = {"teacher": "decompx_linear"}
EVERY = {f"IG of {points}": {"points": points} for points in POINTS} | {"decompx_linear": LINEAR}
ON_A_SHARE: dict[str, dict[str, Any]] = {
    f"{name}, share {share}": given | {"share": share} for share in (0.25, 0.125) for name, given in EVERY.items()
}
WHOLE: dict[str, dict[str, Any]] = {
    "gradient penalty alone": NOTHING | {"gradient_weight": 0.01},
    "virtual adversarial alone": NOTHING | {"adversarial_weight": 0.5},
    "guidance alone, IG of 4": NOTHING | {"guidance_weight": 0.01, "points": 4},
    "guidance alone, decompx_linear": NOTHING | {"guidance_weight": 0.01} | LINEAR,
    "IG of 4": {"points": 4},
    "decompx_linear": LINEAR,
    "IG of 50": {"points": 50, "lifetime": EPOCHS},
}
GUIDES = {f"IG of {points}": {"points": points} for points in (50, *POINTS)} | {
    "decompx_linear": LINEAR, "input_x_gradient": {"teacher": "input_x_gradient"}, "random": {"teacher": "random"},
}  # fmt: skip


def main() -> None:
    """Runs, prints, and keeps the figures as JSON, next to those of the other part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--parts", default="guides,share,whole")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--size", type=int, default=16, help="Sentences a batch.")
    parser.add_argument("--words", type=int, default=15, help="Only sentences of at most so many words.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    models, data = (Path(os.environ.get(f"EXEGETE_{n.upper()}", SHARED / n)) for n in ("models", "data"))
    model = exegete.load(models / "minilm-sst2", device="cpu")
    rows = exegete.load_data(f"sst:{data / 'sst'}", "train").filter(
        lambda row: len(row["text"].split()) <= options.words
    )
    batches = [
        model.encode(rows.select(range(start, start + options.size)))
        for start in range(0, options.size * (options.steps + 1), options.size)
    ]
    known = options.output is not None and options.output.exists()
    found = json.loads(options.output.read_text()) if known else {}
    made = {"guides": guides, "share": on_a_share, "whole": on_the_whole}
    settings = {"sentences a batch": options.size, "words at most": options.words, "batches": options.steps}
    for part in options.parts.split(","):
        found[part] = {"settings": settings, "found": made[part](model, batches)}
    found["versions"] = versions()
    print(json.dumps(found, indent=2))
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(found, indent=2) + "\n")


def on_a_share(model: ExplainedModel, batches: Sequence[Batch]) -> dict[str, dict[str, Any]]:
    """Of all terms together, on a part of each batch."""
    return _costs(model, batches, {name: _objectives(given) for name, given in ON_A_SHARE.items()})


def on_the_whole(model: ExplainedModel, batches: Sequence[Batch]) -> dict[str, dict[str, Any]]:
    """Of every term alone, and of all of them."""
    kinds = {name: _objectives(given) for name, given in WHOLE.items()}
    found = _costs(model, batches, kinds | {"IG of 50, remembered": kinds["IG of 50"]})
    cached = (found["IG of 50"]["ratio"] + (EPOCHS - 1) * found["IG of 50, remembered"]["ratio"]) / EPOCHS
    return found | {"IG of 50, cached": {"ratio": cached, "within the bar": cached <= BAR}}


def _costs(
    model: ExplainedModel, batches: Sequence[Batch], kinds: dict[str, Sequence[Objective]]
) -> dict[str, dict[str, Any]]:
    few = batches[0].select([0, 1]).trimmed()[0]
    found = costs(model, [few, *batches[1:]], {"plain": [CrossEntropy()]} | kinds)
    return {name: cost | {"within the bar": cost["ratio"] <= BAR} for name, cost in found.items()}


def guides(model: ExplainedModel, batches: Sequence[Batch]) -> dict[str, dict[str, float]]:
    """What each guide says of the same sentences, and what it costs to ask."""
    model.eval()
    judges = [exegete.metric(f"normalised_{name}?how=pad") for name in ("sufficiency", "comprehensiveness")]
    terms = {name: next(t for t in _objectives(g) if isinstance(t, ExplanationGuided)) for name, g in GUIDES.items()}
    rows: dict[str, list[list[float]]] = {name: [] for name in GUIDES}
    for batch in batches[1:]:
        target = model.target(batch, "label")
        goal = torch.empty(0)
        with model.remember(), torch.no_grad():
            for name, term in terms.items():
                begin = time.process_time()
                scores = importance(term.explainer, model, batch, target, term.how)
                seconds = time.process_time() - begin
                goal = scores if name == "IG of 50" else goal
                faithful = [next(iter(j.judge(model, batch, scores).values())).nanmean().item() for j in judges]
                rows[name].append([*_alike(scores, goal, batch.content), *faithful, seconds])
    names = ("masked alike", "Kendall's tau", "sufficiency", "comprehensiveness", "seconds")
    found = {name: dict(zip(names, np.mean(values, 0).tolist(), strict=True)) for name, values in rows.items()}
    plain = costs(model, batches, {"plain": [CrossEntropy()]})["plain"]["seconds"]
    return {name: values | {"plain steps": values.pop("seconds") / plain} for name, values in found.items()}


def _alike(one: torch.Tensor, other: torch.Tensor, content: torch.Tensor) -> tuple[float, float]:
    """Jaccard similarity of what both would mask, and Kendall's τ, mean over examples."""
    lost = [least_important(scores, content, MASKED) for scores in (one, other)]
    jaccard = (lost[0] & lost[1]).sum(1) / (lost[0] | lost[1]).sum(1)
    ranked = [kendall_tau(a[c], b[c]) for a, b, c in zip(one.numpy(), other.numpy(), content.numpy(), strict=True)]
    return jaccard.mean().item(), float(np.nanmean(ranked))


def _objectives(given: dict[str, Any]) -> Sequence[Objective]:
    return RECIPES["regex"](**({"form": "smart"} | given)).objectives


if __name__ == "__main__":
    main()
