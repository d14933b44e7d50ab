"""Which metric to trust: how alike metrics rank methods, and what each costs alone.

One thread, CPU seconds. Every metric judges the same attributions of the same sentences by itself, nothing remembered
from another one.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from exegete.explainers.attribute import batches
from torch import Tensor

import exegete
from exegete.metrics import metric
from exegete.models import Batch, ExplainedModel
from exegete.studies.tables.metric_agreement import agreement

SHARED = Path(__file__).parents[2] / "shared"
METHODS = (
    "random",
    "saliency",
    "input_x_gradient",
    "integrated_gradients?n_steps=20",
    "attention_last",
    "attention_rollout",
    "globenc",
    "alti",
    "decompx_classifier",
    "occlusion",
)
METRICS = {
    "A-C": "aopc_comprehensiveness",
    "A-S": "aopc_sufficiency",
    "NAOPC-C": "naopc_comprehensiveness?max_units=8",
    "NAOPC-S": "naopc_sufficiency?max_units=8",
    "soft-C": "soft_comprehensiveness",
    "soft-S": "soft_sufficiency",
    "soft-C, half": "soft_comprehensiveness?share=0.5",
    "soft-S, half": "soft_sufficiency?share=0.5",
    "deletion": "deletion_auc",
    "insertion": "insertion_auc",
    "flip": "decision_flip",
    "infidelity": "infidelity",
    "LDS": "lds",
    "top-3 drop": "topk_drop",
    "AUC": "auc",
}


def main() -> None:
    """Measures, prints the tables, and keeps the numbers as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path(os.environ.get("EXEGETE_MODELS", SHARED / "models")))
    parser.add_argument("--copy", help="folder of the model's copy fine-tuned on random masks, for F-fidelity")
    parser.add_argument("--data", default=f"sst:{os.environ.get('EXEGETE_DATA', SHARED / 'data')}/sst")
    parser.add_argument("--limit", type=int, default=40)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = options.model if (options.model / "config.json").exists() else options.model / "minilm-sst2"
    specs = METRICS | ({"F-fidelity": f"f_fidelity?copy={options.copy}"} if options.copy else {})
    figures, seconds = measured(exegete.load(folder, device="cpu"), options.data, options.limit, specs)
    signs = pd.Series({name: 1 if metric(spec).card.higher_is_better else -1 for name, spec in specs.items()})
    tau = pd.DataFrame(agreement(figures.mul(signs)), index=figures.columns, columns=figures.columns)
    costs = pd.Series(seconds, name="seconds an example and method")
    for table in (figures.round(3), tau.round(2), costs.round(4)):
        print(table.to_string(), end="\n\n")
    if options.output is not None:
        found = {"figures": figures.to_dict(), "tau": tau.to_dict(), "seconds": seconds}
        options.output.write_text(json.dumps(found, indent=1), encoding="utf-8")


def measured(
    model: ExplainedModel, data: str, limit: int, specs: Mapping[str, str]
) -> tuple[pd.DataFrame, dict[str, float]]:
    """Means by method and metric, and each metric's CPU seconds an example and method."""
    rows = list(exegete.load_data(data, "dev", limit=limit))
    parts = [_attributed(model, [rows[index] for index in indices]) for indices in batches(model, rows)]
    figures, seconds = {}, {}
    for name, spec in specs.items():
        start = time.process_time()
        found = [metric(spec).judge(model, *part)[metric(spec).name].view(len(METHODS), -1) for part in parts]
        seconds[name] = (time.process_time() - start) / (len(rows) * len(METHODS))
        figures[name] = np.nanmean(torch.cat(found, 1).numpy(), 1)
    return pd.DataFrame(figures, index=list(METHODS)), seconds


def _attributed(model: ExplainedModel, rows: list[dict[str, object]]) -> tuple[Batch, Tensor, Tensor]:
    """A batch as often as there are methods, all their scores, and the predictions."""
    batch = model.encode(rows)
    target = model.predict(batch)
    scores = [exegete.explainer(method).attribute(model, batch, target).detach() for method in METHODS]
    every = batch.select(list(range(len(batch))) * len(METHODS))
    return every, torch.cat(scores), target.repeat(len(METHODS))


if __name__ == "__main__":
    main()
