"""Maps refined for each test example, judged at every step, beside controls that choose among as many maps."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import exegete
from exegete.data.provenance import write_json
from exegete.explainers.attributive_masking import AttributiveMasking
from exegete.explainers.attributive_masking.explainer import answered
from exegete.explainers.attributive_masking.refinement import alike, judged, trajectory
from exegete.metrics import Metric
from exegete.models import Batch, ExplainedModel
from exegete.models.loading.digest import weights_digest

if TYPE_CHECKING:
    from masking_judged import Experiment

STEPS, FEWER = 10, 8
FORMS: dict[str, dict[str, Any]] = {
    "upper": {"refine_layers": 3, "rank": 8, "refine_rate": 5e-3, "together": 8},
    "whole": {"refine_layers": None, "refine_rate": None, "together": 4},
    "noise": {"together": 25},
    "noisy_decompx": {"together": 25},
    "random": {"together": 25},
}
CONTROLS = ("noise", "noisy_decompx", "random")
REFINING = ("upper", "whole")
TRIED: dict[str, dict[str, Any]] = {
    f"{'all' if layers is None else layers} layers, rank {rank or 'full'}, {rate:g}": {
        "refine_layers": layers,
        "rank": rank,
        "refine_rate": rate,
        "together": 8,
    }
    for layers, rank, rates in ((None, 0, (2e-4,)), (3, 8, (5e-3, 2e-3, 1e-2)), (None, 8, (5e-3,)))
    for rate in rates
}


def refined(there: Experiment, forms: tuple[str, ...], first: int, last: int) -> None:
    """Test examples from `first` to `last` by each form, for each metric from the masking model chosen by it.

    Metrics whose masking models are the same share one refinement; each chooses among its maps.
    """
    rows = list(there.data["test"])[first:last]
    for form in forms:
        for names, made in groups(there)[: None if form in (*REFINING, "noise") else 1]:
            judges = [each for each in there.metrics if each.name in names or form in CONTROLS[1:]]
            part = f"{form}-{names[0]}-{first:03d}-{first + len(rows):03d}"
            done = there.results / "refined" / f"{part}.json"
            if done.exists() or there.late():
                continue
            begun, wall = time.process_time(), time.monotonic()
            values = values_of(FORMS[form], form, made, there.model, rows, judges)
            content = {"form": form, "settings": FORMS[form], "first": first, "last": first + len(rows)}
            seconds = {"cpu_seconds": time.process_time() - begun, "seconds": time.monotonic() - wall}
            done.parent.mkdir(parents=True, exist_ok=True)
            write_json(done, content | seconds | {"values": values})
            print(there.name, done.stem, {n: shown(v, n, judges) for n, v in values.items()}, seconds, flush=True)


def tried(there: Experiment, count: int) -> None:
    """Forms of refinement on dev sentences, by the metric that comes first; what they cost and lead to."""
    rows, judge = list(there.data["dev"])[:count], there.metrics[0]
    made = AttributiveMasking.from_pretrained(there.chosen()[judge.name][1])
    for name, settings in TRIED.items():
        done = there.results / "tried" / f"{name.replace(' ', '-')}.json"
        if done.exists() or there.late():
            continue
        begun = time.process_time()
        values = values_of(settings, "tried", made, there.model, rows, [judge])
        spent = time.process_time() - begun
        curve = torch.tensor(values[judge.name]).cummax(0).values.mean(1).tolist()
        done.parent.mkdir(parents=True, exist_ok=True)
        write_json(done, {"settings": settings, "cpu_seconds": spent, "best so far": curve, "values": values})
        print("tried", name, [round(value, 3) for value in curve], f"{spent / count:.3f} s", flush=True)


def groups(there: Experiment) -> list[tuple[list[str], AttributiveMasking]]:
    """The metrics that share a masking model, and it."""
    found: dict[str, tuple[list[str], AttributiveMasking]] = {}
    for name, (_, folder) in there.chosen().items():
        made = AttributiveMasking.from_pretrained(folder)
        found.setdefault(weights_digest(made), ([], made))[0].append(name)
    return list(found.values())


def values_of(
    settings: dict[str, Any],
    form: str,
    made: AttributiveMasking,
    model: ExplainedModel,
    rows: list[Any],
    judges: list[Metric],
) -> dict[str, list[list[float]]]:
    """Values of every map, by metric: [maps, examples]."""
    batch = model.encode(rows)
    with torch.no_grad():
        logits = torch.cat([model(batch.select(part).trimmed()[0]).logits for part in torch.arange(len(rows)).split(8)])
    target = logits.argmax(-1)
    answer = answered(model, logits, target)
    values = {each.name: torch.zeros(STEPS + 1, len(rows)) for each in judges}
    refining = made.configured(refine_steps=STEPS, **settings)
    for number, part in enumerate(alike(batch, settings["together"])):
        few = batch.select(part).trimmed()[0]
        if form in CONTROLS:
            maps = drawn(form, made, model, few, number)
        else:
            maps = torch.stack(list(trajectory(refining, model, few, answer[part])))
        with model.remember():
            for each in judges:
                values[each.name][:, part] = judged(each, model, few, maps, target[part]).float()
    return {name: value.tolist() for name, value in values.items()}


@torch.no_grad()
def drawn(form: str, made: AttributiveMasking, model: ExplainedModel, batch: Batch, seed: int) -> Tensor:
    """[maps, B, L] Controls to choose from: random maps; or a map and copies of it with noise on it.

    That map is the learned one, noise of 1 on its logits, or DecompX's, noise of half its own spread.
    """
    noise = torch.randn((STEPS + 1, *batch.content.shape), generator=torch.Generator().manual_seed(seed))
    if form == "random":
        return noise
    noise[0] = 0.0
    if form == "noise":
        return made.configured(refine_steps=0).attribute(model, batch).logit(eps=1e-6) + noise
    scores = exegete.explainer("decompx_linear").attribute(model, batch)
    spread = torch.stack([row[real].std() for row, real in zip(scores, batch.content, strict=True)])
    return scores + 0.5 * spread[:, None] * noise


def shown(values: list[list[float]], name: str, judges: list[Metric]) -> list[float]:
    """The first maps', the last maps' and the best maps' mean."""
    table = torch.tensor(values)
    higher = next(each for each in judges if each.name == name).card.higher_is_better
    best = table.amax(0) if higher else table.amin(0)
    return [round(float(each.mean()), 3) for each in (table[0], table[-1], best)]


def together(folder: Path, form: str, name: str) -> dict[int, list[float]]:
    """What there is by a form and a metric: for each test example the values of all its maps."""
    found: dict[int, list[float]] = {}
    for path in sorted(folder.glob(f"refined/{form}-*.json")):
        content = json.loads(path.read_text())
        columns = zip(*content["values"].get(name, []), strict=True)
        found |= dict(zip(range(content["first"], content["last"]), map(list, columns), strict=False))
    return found
