"""What a learned mask costs, in forward passes of the explained model: one pass, refined, and refined side by side.

One run, one thread, CPU seconds, the forms in turns; sentences of mixed length. A forward pass, R, is the explained
model's on one sentence alone; it is timed beside everything that is counted in it. Refinement is timed without and with
the metric that chooses its maps. The paper's way refines all of a copy of the masking model, one sentence after the
other, and judges one map after the other; the other forms differ from it by what their names say, and the figures they
reach are compared sentence by sentence. `--masking` is a masking model trained on `--model`, as `exegete train aml`
leaves one.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import exegete
from exegete.data.provenance import get_versions
from exegete.explainers.attributive_masking import AttributiveMasking
from exegete.explainers.attributive_masking.explainer import answer_distribution
from exegete.explainers.attributive_masking.refinement import evaluate_maps, group_by_length, trajectory
from exegete.models import Batch, ExplainedModel
from exegete.training.masking.run import sample_stratified, select_texts
from timing import DATA, MODELS, given, keep, seconds

STEPS, FEWER, TOGETHER = 10, 8, 8
WHOLE: dict[str, Any] = {"refine_layers": None, "refine_rate": None, "together": 4}
UPPER: dict[str, Any] = {"refine_layers": 3, "rank": 8, "refine_rate": 5e-3, "together": TOGETHER}
PAPER = "whole, one at a time"
FAST = "upper layers, side by side"


@dataclass(frozen=True)
class Form:
    """A way to refine: `settings` of `Refinement`; `alone`: one sentence after the other; `each`: so with the maps."""

    settings: dict[str, Any]
    alone: bool
    each: bool = False
    steps: int = STEPS


WAYS = {
    PAPER: Form(WHOLE, alone=True, each=True),
    "whole, side by side": Form(WHOLE, alone=False),
    FAST: Form(UPPER, alone=False),
    f"{FAST}, {FEWER} steps": Form(UPPER, alone=False, steps=FEWER),
}


def main() -> None:
    """Measures, prints, and keeps the numbers as JSON."""
    options = given(__doc__, model=MODELS / "minilm-sst2", masking=Path("runs/aml"), sentences=16, repeats=2)
    model = exegete.load(options.model, device="cpu", max_length=64)
    rows = list(select_texts(sample_stratified(exegete.load_data(f"sst:{DATA / 'sst'}", "dev"), options.sentences, 7)))
    case = Case(model, AttributiveMasking.from_pretrained(options.masking), rows)
    found = {"versions": get_versions(), "sentences": len(rows), "tokens": [one.length for one in case.alone]}
    found |= case.one_pass()
    found |= case.refinement(options.repeats)
    keep(found, options.output)


class Case:
    """Sentences alone and in batches of like length, with what the model says of them."""

    def __init__(self, model: ExplainedModel, masking: AttributiveMasking, rows: list[Any]) -> None:
        self.model, self.masking = model, masking
        self.metric = exegete.metric(masking.settings.metric)
        whole = model.encode(rows)
        self.alone = [whole.select([row]).trim_padding()[0] for row in range(len(rows))]
        self.rows = group_by_length(whole, TOGETHER)
        self.batches = [whole.select(part).trim_padding()[0] for part in self.rows]
        self.count = len(rows)

    @torch.no_grad()
    def one_pass(self, repeats: int = 7) -> dict[str, Any]:
        """Seconds of the model's pass and of the mask once its answer is there, in turns, and their ratios."""
        found: dict[str, Any] = {}
        for name, batches in (("alone", self.alone), ("batched", self.batches)):
            outputs = [(batch, self.model(batch)) for batch in batches]
            known = [(batch, out, self.model.task.predict(out.logits, batch)) for batch, out in outputs]

            def passes(batches: list[Batch] = batches) -> None:
                for batch in batches:
                    self.model(batch)

            def masks(known: list[Any] = known) -> None:
                for batch, out, target in known:
                    self.masking.scores_from_outputs(self.model, batch, out, target, keep_graph=False)

            pairs = [(seconds(passes), seconds(masks)) for _ in range(repeats + 1)][1:]
            found[f"pass of F, {name}"] = statistics.median(one for one, _ in pairs) / self.count
            found[f"pAML / pass, {name}"] = statistics.median(mask / one for one, mask in pairs)
        return found

    def refinement(self, repeats: int) -> dict[str, Any]:
        """Seconds per example of every way, in forward passes, and the ratio to the paper's."""
        spent: dict[str, list[tuple[float, float, float]]] = {name: [] for name in WAYS}
        for _ in range(repeats):
            for name, form in WAYS.items():
                spent[name].append(self.refined(form))
        found: dict[str, Any] = {}
        first = statistics.median(refining + judging for _, refining, judging in spent[PAPER])
        for name, form in WAYS.items():
            total = statistics.median(refining + judging for _, refining, judging in spent[name])
            passes = statistics.median(refining / one for one, refining, _ in spent[name])
            wanted = 4 * form.steps + 1
            alone = statistics.median(refining for _, refining, _ in spent[name])
            found[name] = {"steps": form.steps, "seconds": alone, "with the metric": total}
            found[name] |= {"passes": passes, f"/ {wanted} passes": passes / wanted, "throughput": first / total}
            print(name, found[name], flush=True)
        return found

    def refined(self, form: Form) -> tuple[float, float, float]:
        """Seconds an example of a pass, of the maps and of their metric."""
        masking = self.masking.with_params(refine_steps=form.steps, **form.settings)
        passing = refining = judging = 0.0
        each_alone = [torch.tensor([row]) for row in range(self.count)]
        groups = each_alone if form.alone else self.rows
        for rows, batch in zip(groups, self.alone if form.alone else self.batches, strict=True):
            with torch.no_grad():
                passing += sum(seconds(lambda row=row: self.model(self.alone[row])) for row in rows.tolist())
            begun = time.process_time()
            with torch.no_grad():
                logits = self.model(batch).logits
            target = self.model.task.predict(logits, batch)
            maps = torch.stack(
                list(trajectory(masking, self.model, batch, answer_distribution(self.model, logits, target)))
            )
            between = time.process_time()
            for some in maps[:, None] if form.each else (maps,):
                evaluate_maps(self.metric, self.model, batch, some, target)
            refining, judging = refining + between - begun, judging + time.process_time() - between
        return passing / self.count, refining / self.count, judging / self.count


if __name__ == "__main__":
    main()
