"""Single calls on one sentence of 26 tokens: CPU seconds, beside passes of the model alone and Captum at its best."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import captum.attr as published
import numpy as np
import torch

import exegete
from attribution import case, probability_of
from exegete.explainers.units import units
from exegete.models import ExplainedModel
from timing import given, keep, minilm, seconds

LONG = (
    "an honest film about a father who never learned to say what he really meant , played with great restraint , "
    "such a joy"
)
CALLS = {
    "saliency": "F + B",
    "input_x_gradient": "F + B",
    "decompx_linear": "F + B",
    "attention_rollout": "F",
    "attention_all": "F",
    "occlusion": "captum",
}
"""Methods whose single calls are timed, and what each is measured by."""
ROUNDS = 12


def main() -> None:
    """Measures, prints, and keeps the numbers as JSON."""
    options = given(__doc__)
    keep(measured(minilm()), options.output)


def measured(model: ExplainedModel) -> dict[str, Any]:
    """One call of `attribute` on one sentence, against passes of the model alone and Captum's feature ablation.

    Everything is timed in turn, over and over; the figures are medians, the ratios those of medians.
    """
    one = case(model, LONG)
    ids, unit = one.batch.inputs["input_ids"], units(one.batch, "word")
    ablation = published.FeatureAblation(probability_of(model, one))
    ablated = {
        size: partial(
            ablation.attribute,
            ids,
            torch.where(unit >= 0, model.mask_id, ids),
            feature_mask=torch.where(unit >= 0, unit, unit.max() + 1),
            perturbations_per_eval=size,
        )
        for size in (8, 16, 32)
    }
    contestants: dict[str, Callable[[], Any]] = {
        "forward": torch.no_grad()(lambda: model.model(**one.batch.inputs)),
        "forward + backward": lambda: torch.autograd.grad(
            one.score(embeddings := one.embeddings.detach().requires_grad_()).sum(), embeddings
        ),
        **{f"captum, {size} a pass": call for size, call in ablated.items()},
        **{name: partial(exegete.attribute, model, LONG, name) for name in CALLS},
    }
    rounds = [{name: seconds(call, 4) for name, call in contestants.items()} for _ in range(ROUNDS)]
    medians = {name: float(np.median([each[name] for each in rounds[1:]])) for name in contestants}
    best_ablation = min(medians[name] for name in medians if name.startswith("captum"))
    floors = {"F": medians["forward"], "F + B": medians["forward + backward"], "captum": best_ablation}
    ratios = {name: {floor: medians[name] / floors[floor]} for name, floor in CALLS.items()}
    return {"tokens": one.batch.length, "cpu_s": medians, "ratios": ratios}


if __name__ == "__main__":
    main()
