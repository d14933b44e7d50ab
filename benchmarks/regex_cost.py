"""REGEX: what a step costs over plain fine-tuning. Real sentences, one thread.

`share` and `whole`: CPU seconds of a step whose terms are estimated on a share of each batch, and of one where they see
all of it, each term alone too. The kinds of step take turns over the same batches, so that what else the machine does
falls on all of them. "IG of 50, remembered" is a step of an epoch in which the teacher's earlier answers are used;
"IG of 50, cached" is the mean over ten epochs, the first of which asks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import exegete
from exegete.data.provenance import versions
from exegete.models import Batch, ExplainedModel
from exegete.objectives import CrossEntropy, Objective
from exegete.recipes import RECIPES
from timing import DATA, given, keep, minilm
from training import costs

BAR, EPOCHS = 2.5, 10
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


def main() -> None:
    """Runs, prints, and keeps the figures as JSON, next to those of the other part."""
    options = given(__doc__, parts=["share", "whole"], steps=3, size=16, words=15)
    model = minilm()
    rows = exegete.load_data(f"sst:{DATA / 'sst'}", "train").filter(
        lambda row: len(row["text"].split()) <= options.words
    )
    batches = [
        model.encode(rows.select(range(start, start + options.size)))
        for start in range(0, options.size * (options.steps + 1), options.size)
    ]
    known = options.output is not None and options.output.exists()
    found = json.loads(options.output.read_text()) if known else {}
    made = {"share": on_a_share, "whole": on_the_whole}
    settings = {"sentences a batch": options.size, "words at most": options.words, "batches": options.steps}
    for part in options.parts:
        found[part] = {"settings": settings, "found": made[part](model, batches)}
    found["versions"] = versions()
    keep(found, options.output)


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


def _objectives(given: dict[str, Any]) -> Sequence[Objective]:
    return RECIPES["regex"](**({"form": "smart"} | given)).objectives


if __name__ == "__main__":
    main()
