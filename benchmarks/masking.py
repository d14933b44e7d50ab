"""What a learned mask costs, in forward passes of the explained model: one pass, refined, and refined side by side.

One run, one thread, CPU seconds; sentences of mixed length. A forward pass is the explained model's on one sentence
alone, and on the same sentences in batches of like length. Refinement is timed without and with the metric that
chooses its maps. `--masking` is a masking model trained on `--model`, as `exegete train aml` leaves one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import exegete
from exegete.data.provenance import versions
from exegete.explainers.attributive_masking import AttributiveMasking
from exegete.explainers.attributive_masking.explainer import answered
from exegete.explainers.attributive_masking.refinement import alike, metric_of, trajectory
from exegete.models import Batch, ExplainedModel
from exegete.training.masking_data import only_texts, stratified

SHARED = Path(__file__).parents[2] / "shared"
TOGETHER = 4
WHOLE: dict[str, Any] = {"rank": 0, "refine_rate": None}
LOW_RANK: dict[str, Any] = {"rank": 8, "refine_rate": 1e-2}


def main() -> None:
    """Measures, prints, and keeps the numbers as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    models, data = (Path(os.environ.get(f"EXEGETE_{n.upper()}", SHARED / n)) for n in ("models", "data"))
    parser.add_argument("--output", type=Path)
    parser.add_argument("--model", type=Path, default=models / "minilm-sst2")
    parser.add_argument("--masking", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=16)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = exegete.load(options.model, device="cpu", max_length=64)
    rows = list(only_texts(stratified(exegete.load_data(f"sst:{data / 'sst'}", "dev"), options.sentences, 7)))
    case = Case(model, AttributiveMasking.from_pretrained(options.masking), rows)
    found = {"versions": versions(), "sentences": len(rows), "tokens": [one.length for one in case.alone]}
    found |= case.one_pass(options.repeats)
    found |= case.refinement(options.steps)
    print(json.dumps(found, indent=1))
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(found, indent=1) + "\n")


class Case:
    """Sentences alone and in batches of like length, with what the model says of them."""

    def __init__(self, model: ExplainedModel, masking: AttributiveMasking, rows: list[Any]) -> None:
        self.model, self.masking = model, masking
        self.metric = metric_of(masking.settings.metric)
        whole = model.encode(rows)
        self.alone = [whole.select([row]).trimmed()[0] for row in range(len(rows))]
        self.batches = [whole.select(part).trimmed()[0] for part in alike(whole, TOGETHER)]
        self.count = len(rows)

    @torch.no_grad()
    def one_pass(self, repeats: int) -> dict[str, Any]:
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
                    self.masking.from_outputs(self.model, batch, out, target, keep_graph=False)

            pairs = [(seconds(passes), seconds(masks)) for _ in range(repeats + 1)][1:]
            found[f"pass of F, {name}"] = statistics.median(one for one, _ in pairs) / self.count
            found[f"pAML / pass, {name}"] = statistics.median(mask / one for one, mask in pairs)
        self.pass_alone, self.pass_batched = found["pass of F, alone"], found["pass of F, batched"]
        return found

    def refinement(self, steps: int) -> dict[str, Any]:
        """Whole copies one at a time, as in the paper, against low-rank changes side by side."""
        found: dict[str, Any] = {"steps": steps}
        curves: dict[str, list[float]] = {}
        judged: dict[str, list[float]] = {}
        passes = 4 * steps + 1
        for name, how, batches in (
            ("whole, one at a time", WHOLE, self.alone),
            ("whole, side by side", WHOLE, self.batches),
            ("low rank, one at a time", LOW_RANK, self.alone),
            ("low rank, side by side", LOW_RANK, self.batches),
        ):
            bare = self.refined(how, batches, steps, judge=False)[0][-1]
            judged[name], curves[name] = self.refined(how, batches, steps, judge=True)
            found[name] = {
                "seconds": bare,
                "with the metric": judged[name][-1],
                f"/ {passes} passes alone": bare / (passes * self.pass_alone),
                f"/ {passes} passes batched": bare / (passes * self.pass_batched),
                self.metric.name: curves[name],
            }
            print(name, found[name], flush=True)
        first = judged["whole, one at a time"][-1]
        found["throughput at equal steps"] = first / judged["low rank, side by side"][-1]
        return found | self.at_equal_metric(first, curves, judged)

    def at_equal_metric(
        self, first: float, curves: dict[str, list[float]], judged: dict[str, list[float]]
    ) -> dict[str, Any]:
        """After how many steps side by side the metric is what all steps one at a time lead to, and how much faster."""
        sign = 1 if self.metric.card.higher_is_better else -1
        goal, curve = curves["whole, one at a time"][-1], curves["low rank, side by side"]
        enough = next((step for step, value in enumerate(curve) if sign * value >= sign * goal), None)
        if enough is None:
            return {"steps to the same metric": None}
        ratio = first / judged["low rank, side by side"][enough]
        return {"steps to the same metric": enough, "throughput at equal metric": ratio}

    def refined(
        self, how: dict[str, Any], batches: list[Batch], steps: int, *, judge: bool
    ) -> tuple[list[float], list[float]]:
        """Seconds an example up to each map, and the mean of the best maps' metric so far."""
        masking = self.masking.configured(refine_steps=steps, **how)
        spent = [0.0] * (steps + 1)
        values: list[Tensor] = []
        for batch in batches:
            begun = time.process_time()
            with torch.no_grad():
                logits = self.model(batch).logits
            target = self.model.task.predict(logits, batch)
            found = []
            with self.model.remember():
                for step, scores in enumerate(
                    trajectory(masking, self.model, batch, answered(self.model, logits, target))
                ):
                    if judge:
                        with torch.no_grad():
                            found.append(self.metric.judge(self.model, batch, scores, target)[self.metric.name])
                    spent[step] += (time.process_time() - begun) / self.count
            if judge:
                values.append(torch.stack(found))
        if not judge:
            return spent, []
        table = torch.cat(values, 1)
        best = table.cummax(0).values if self.metric.card.higher_is_better else table.cummin(0).values
        return spent, best.mean(1).tolist()


def seconds(call: Callable[[], Any]) -> float:
    """CPU seconds of a call."""
    begun = time.process_time()
    call()
    return time.process_time() - begun


if __name__ == "__main__":
    main()
