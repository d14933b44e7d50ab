"""Maps refined for each test example, judged at every step, beside controls that choose among as many maps."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from exegete.data.provenance import write_json
from exegete.explainers.attributive_masking import AttributiveMasking
from exegete.explainers.attributive_masking.explainer import answered
from exegete.explainers.attributive_masking.refinement import alike, trajectory
from exegete.metrics import Metric
from exegete.models import Batch, ExplainedModel
from exegete.models.digest import weights_digest

if TYPE_CHECKING:
    from masking_judged import Experiment

STEPS = 10
FORMS: dict[str, dict[str, Any]] = {
    "whole": {"rank": 0, "together": 2},
    "low rank": {"rank": 8, "refine_rate": 1e-2, "together": 4},
    "noise": {"together": 20},
    "random": {"together": 20},
}


def refined(
    there: Experiment,
    forms: tuple[str, ...],
    first: int,
    last: int,
    some: slice = slice(None),
) -> None:
    """Test examples from `first` to `last` by each form, for each metric from the masking model chosen by it.

    Metrics whose masking models are the same share one refinement; each chooses among its maps. `some`: of these
    groups.
    """
    rows = list(there.data["test"])[first:last]
    for form in forms:
        for names, made in groups(there)[some if form in ("whole", "low rank") else slice(1)]:
            judges = [each for each in there.metrics if each.name in names or form == "random"]
            done = (
                there.results
                / "refined"
                / f"{form.replace(' ', '-')}-{names[0]}-{first:03d}-{first + len(rows):03d}.json"
            )
            if done.exists() or there.late():
                continue
            begun, wall = time.process_time(), time.monotonic()
            values = judged(form, made, there.model, rows, judges)
            content = {"form": form, "settings": FORMS[form], "first": first, "last": first + len(rows)}
            seconds = {"cpu_seconds": time.process_time() - begun, "seconds": time.monotonic() - wall}
            done.parent.mkdir(parents=True, exist_ok=True)
            write_json(done, content | seconds | {"values": values})
            print(there.name, done.stem, {n: shown(v, n, judges) for n, v in values.items()}, seconds, flush=True)


def groups(there: Experiment) -> list[tuple[list[str], AttributiveMasking]]:
    """The metrics that share a masking model, and it."""
    found: dict[str, tuple[list[str], AttributiveMasking]] = {}
    for name, (_, folder) in there.chosen().items():
        made = AttributiveMasking.from_pretrained(folder)
        found.setdefault(weights_digest(made), ([], made))[0].append(name)
    return list(found.values())


def judged(
    form: str, made: AttributiveMasking, model: ExplainedModel, rows: list[Any], judges: list[Metric]
) -> dict[str, list[list[float]]]:
    """Values of every map, by metric: [maps, examples]."""
    batch = model.encode(rows)
    with torch.no_grad():
        logits = torch.cat([model(batch.select(part).trimmed()[0]).logits for part in torch.arange(len(rows)).split(8)])
    target = logits.argmax(-1)
    answer = answered(model, logits, target)
    values = {each.name: torch.zeros(STEPS + 1, len(rows)) for each in judges}
    for number, part in enumerate(alike(batch, FORMS[form]["together"])):
        few = batch.select(part).trimmed()[0]
        with model.remember():
            for step, scores in enumerate(candidates(form, made, model, few, answer[part], number)):
                for each in judges:
                    with torch.no_grad():
                        values[each.name][step, part] = each.judge(model, few, scores, target[part])[each.name].float()
    return {name: value.tolist() for name, value in values.items()}


def candidates(
    form: str, made: AttributiveMasking, model: ExplainedModel, batch: Batch, answer: Tensor, seed: int
) -> Iterator[Tensor]:
    """The maps to choose from, the first of them as it was learned (a random one for `random`)."""
    if form in ("whole", "low rank"):
        yield from trajectory(made.configured(refine_steps=STEPS, **FORMS[form]), model, batch, answer)
        return
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        learned = made.configured(refine_steps=0).attribute(model, batch).logit(eps=1e-6)
    for step in range(STEPS + 1):
        drawn = torch.randn(learned.shape, generator=generator)
        yield drawn if form == "random" else learned + (drawn if step else 0.0)


def shown(values: list[list[float]], name: str, judges: list[Metric]) -> list[float]:
    """The first maps', the last maps' and the best maps' mean."""
    table = torch.tensor(values)
    higher = next(each for each in judges if each.name == name).card.higher_is_better
    best = table.amax(0) if higher else table.amin(0)
    return [round(float(each.mean()), 3) for each in (table[0], table[-1], best)]


def together(folder: Path, form: str, name: str) -> dict[int, list[float]]:
    """What there is by a form and a metric: for each test example the values of all its maps."""
    found: dict[int, list[float]] = {}
    for path in sorted(folder.glob(f"refined/{form.replace(' ', '-')}-*.json")):
        content = json.loads(path.read_text())
        columns = zip(*content["values"].get(name, []), strict=True)
        found |= dict(zip(range(content["first"], content["last"]), map(list, columns), strict=False))
    return found
