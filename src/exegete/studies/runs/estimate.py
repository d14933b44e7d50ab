"""How long runs will take: from what finished ones took, or else from a rough count of operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from exegete.studies.runs import explainers as explaining
from exegete.studies.runs.store import Cell, Store
from exegete.studies.spec.sources import Source

if TYPE_CHECKING:
    from exegete.metrics import Metric

ROUGH_FLOPS_A_SECOND = 4e10
STARTING_SECONDS = 5.0
BASELINE_PASSES, GUIDED_PASSES = 3.0, 4.0


class Estimate(NamedTuple):
    """`seconds` of work for one worker; `measured`: from how many finished runs it is known, 0 where it is rough."""

    seconds: float
    measured: int


def training(train: Source, dev: Source, model: Source, config: Mapping[str, Any]) -> float:
    """Operations of a training run: 2 a parameter and token forward, twice that backward; guidance adds another."""
    arguments, length = config["arguments"], config["max_length"] or config["recipe_max_length"]
    epochs, steps = float(arguments.get("num_train_epochs", 3)), arguments.get("max_steps", -1)
    if steps > 0:
        epochs = min(epochs, steps * arguments["per_device_train_batch_size"] / max(len(train.lengths), 1))
    passes = BASELINE_PASSES if config["recipe"] == "baseline" else GUIDED_PASSES
    return 2 * model.parameters * epochs * (passes * train.tokens(length) + dev.tokens(length))


def judging(
    data: Source,
    model: Source,
    explainers: Mapping[str, Mapping[str, Any]],
    metrics: Sequence[Metric],
    max_length: int | None,
) -> float:
    """Operations of judging: one pass, each explainer's own, and one for each of its budgets and erasing metrics."""
    tokens = data.tokens(max_length)
    erasing = [each for each in metrics if not each.card.needs_rationale]
    passes, erased = 1.0, sum(max(1, len(getattr(each, "budgets", ()))) for each in erasing)
    passes += explaining.passes(explainers, int(tokens / max(len(data.lengths), 1))) + erased * len(explainers)
    return 2 * model.parameters * tokens * passes


def left(cells: Sequence[Cell], store: Store) -> Estimate:
    """The work of the runs that are not done, at the speed of the store's finished runs of the same kind."""
    speeds: dict[str, list[float]] = {}
    for key in store.finished():
        record = store.record(key)
        if record and record.get("flops") and record["seconds"] > 0:
            speeds.setdefault(record["config"].get("kind", ""), []).append(record["flops"] / record["seconds"])
    seconds = 0.0
    for cell in cells:
        if not store.done(cell.key):
            known = speeds.get(cell.config.get("kind", ""))
            speed = median(known) if known else ROUGH_FLOPS_A_SECOND
            seconds += cell.flops / speed + (0 if known else STARTING_SECONDS)
    return Estimate(seconds, sum(map(len, speeds.values())))


def in_words(seconds: float) -> str:
    """A duration as text, in seconds, minutes, hours or days."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.1f} days"
