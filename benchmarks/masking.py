"""Measure the cost of a learned mask in forward passes of the explained model: of one pass, and of refinement.

One run, one thread, CPU seconds; the forms take turns; sentences of mixed length. A forward pass, R, is the explained
model's on one sentence alone; it is timed beside everything that is counted in such passes. Refinement is timed without
and with the metric that chooses its maps. The paper's way refines all of a copy of the masking model, one sentence
after the other, and judges one map after the other; the names of the other forms say how they differ from it, and the
figures they reach are compared sentence by sentence. `--masking` is a masking model trained on `--model`, as
`expound train aml` saves one.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import expound
from expound.data.provenance import get_versions
from expound.explainers.attributive_masking import AttributiveMasking
from expound.explainers.attributive_masking.explainer import answer_distribution
from expound.explainers.attributive_masking.refinement import evaluate_maps, group_by_length, trajectory
from expound.models import Batch, ExplainedModel
from expound.training.masking import sample_stratified, select_texts
from timing import DATA, MODELS, measure_seconds, parse_options, write_results

STEPS, FEWER, TOGETHER = 10, 8, 8
WHOLE: dict[str, Any] = {"refine_layers": None, "refine_rate": None, "together": 4}
UPPER: dict[str, Any] = {"refine_layers": 3, "rank": 8, "refine_rate": 5e-3, "together": TOGETHER}
PAPER = "whole, one at a time"
FAST = "upper layers, side by side"


@dataclass(frozen=True)
class Form:
    """A way to refine, with `settings` of `Refinement`.

    `one_by_one`: one sentence after the other, not in batches. `maps_one_by_one`: the metric judges one map after the
    other.
    """

    settings: dict[str, Any]
    one_by_one: bool
    maps_one_by_one: bool = False
    steps: int = STEPS


FORMS = {
    PAPER: Form(WHOLE, one_by_one=True, maps_one_by_one=True),
    "whole, side by side": Form(WHOLE, one_by_one=False),
    FAST: Form(UPPER, one_by_one=False),
    f"{FAST}, {FEWER} steps": Form(UPPER, one_by_one=False, steps=FEWER),
}


def main() -> None:
    """Measure, print the numbers, and write them as JSON."""
    options = parse_options(__doc__, model=MODELS / "minilm-sst2", masking=Path("runs/aml"), sentences=16, repeats=2)
    model = expound.load(options.model, device="cpu", max_length=64)
    rows = list(select_texts(sample_stratified(expound.load_data(f"sst:{DATA / 'sst'}", "dev"), options.sentences, 7)))
    case = Case(model, AttributiveMasking.from_pretrained(options.masking), rows)
    results = {
        "versions": get_versions(),
        "sentences": len(rows),
        "tokens": [one.length for one in case.single_batches],
    }
    results |= case.measure_pass()
    results |= case.compare_forms(options.repeats)
    write_results(results, options.output)


class Case:
    """Sentences one by one and in batches of similar length, with the model and its masking model."""

    def __init__(self, model: ExplainedModel, masking: AttributiveMasking, rows: list[Any]) -> None:
        self.model, self.masking = model, masking
        self.metric = expound.metric(masking.settings.metric)
        encoded = model.encode(rows)
        self.single_batches = [encoded.select([row]).trim_padding()[0] for row in range(len(rows))]
        self.row_groups = group_by_length(encoded, TOGETHER)
        self.batches = [encoded.select(part).trim_padding()[0] for part in self.row_groups]
        self.count = len(rows)

    @torch.no_grad()
    def measure_pass(self, repeats: int = 7) -> dict[str, Any]:
        """Return the seconds of the model's pass, and the ratio of the mask's time, without that pass, to it."""
        results: dict[str, Any] = {}
        for name, batches in (("alone", self.single_batches), ("batched", self.batches)):
            outputs = [(batch, self.model(batch)) for batch in batches]
            predictions = [(batch, out, self.model.task.predict(out.logits, batch)) for batch, out in outputs]

            def run_passes(batches: list[Batch] = batches) -> None:
                for batch in batches:
                    self.model(batch)

            def run_masks(predictions: list[Any] = predictions) -> None:
                for batch, out, target in predictions:
                    self.masking.compute(self.model, batch, [target], out)

            pairs = [(measure_seconds(run_passes), measure_seconds(run_masks)) for _ in range(repeats + 1)][1:]
            results[f"pass of F, {name}"] = statistics.median(pass_time for pass_time, _ in pairs) / self.count
            results[f"pAML / pass, {name}"] = statistics.median(mask_time / pass_time for pass_time, mask_time in pairs)
        return results

    def compare_forms(self, repeats: int) -> dict[str, Any]:
        """Return each form's seconds and forward passes per example, and its throughput relative to the paper's."""
        costs: dict[str, list[tuple[float, float, float]]] = {name: [] for name in FORMS}
        for _ in range(repeats):
            for name, form in FORMS.items():
                costs[name].append(self.measure_form(form))
        results: dict[str, Any] = {}
        paper_seconds = statistics.median(refining + judging for _, refining, judging in costs[PAPER])
        for name, form in FORMS.items():
            total = statistics.median(refining + judging for _, refining, judging in costs[name])
            passes = statistics.median(refining / pass_time for pass_time, refining, _ in costs[name])
            expected_passes = 4 * form.steps + 1
            refine_seconds = statistics.median(refining for _, refining, _ in costs[name])
            results[name] = {"steps": form.steps, "seconds": refine_seconds, "with the metric": total}
            results[name] |= {
                "passes": passes,
                f"/ {expected_passes} passes": passes / expected_passes,
                "throughput": paper_seconds / total,
            }
            print(name, results[name], flush=True)
        return results

    def measure_form(self, form: Form) -> tuple[float, float, float]:
        """Return the seconds per example of a pass, of the maps and of their metric."""
        masking = self.masking.with_params(refine_steps=form.steps, **form.settings)
        passing = refining = judging = 0.0
        single_rows = [torch.tensor([row]) for row in range(self.count)]
        groups = single_rows if form.one_by_one else self.row_groups
        for rows, batch in zip(groups, self.single_batches if form.one_by_one else self.batches, strict=True):
            with torch.no_grad():
                passing += sum(
                    measure_seconds(lambda row=row: self.model(self.single_batches[row])) for row in rows.tolist()
                )
            start = time.process_time()
            with torch.no_grad():
                logits = self.model(batch).logits
            target = self.model.task.predict(logits, batch)
            maps = torch.stack(
                list(trajectory(masking, self.model, batch, answer_distribution(self.model, logits, target)))
            )
            middle = time.process_time()
            for some_maps in maps[:, None] if form.maps_one_by_one else (maps,):
                evaluate_maps(self.metric, self.model, batch, some_maps, target)
            refining, judging = refining + middle - start, judging + time.process_time() - middle
        return passing / self.count, refining / self.count, judging / self.count


if __name__ == "__main__":
    main()
