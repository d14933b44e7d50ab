"""The results of `ivra.py` as Markdown."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np

from exegete.metrics import average_relative_gain

CRITERIA = ("comprehensiveness", "sufficiency", "consistency", "simulatability")
LEVELS = ("all", "features", "heads", "layers")
SEEDS = (0, 1, 2)


def main() -> None:
    """Prints what there is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path, help="the folder that `ivra.py` wrote into")
    folder = parser.parse_args().output
    for table in (alone, simulated, along, others, levels, mixed, moved):
        print("\n".join(table(folder)), end="\n\n")


def parts(folder: Path) -> dict[str, dict[str, Any]]:
    """What each part found, by its name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted((folder / "parts").glob("*.json"))}


def alone(folder: Path) -> Iterator[str]:
    """Each criterion alone: its metric for the fine-tuned model and after training, and what it costs in accuracy.

    `over`: in how many runs trained coefficients beat untrained ones, of the fine-tuned model and of the run's own.
    """
    found = parts(folder)
    yield "| task | criterion | fine-tuned | own, untrained | trained | over fine-tuned | over own | accuracy |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for task, criterion in product(("sst", "snli", "squad"), CRITERIA):
        runs = [found[name] for seed in SEEDS if (name := f"{task} {criterion} {seed}") in found]
        if not runs or f"{task} plain" not in found:
            continue
        plain, taught = found[f"{task} plain"], criterion == "simulatability"
        own, trained = (
            [run["students"][name] if taught else run["judged"][name][criterion] for run in runs]
            for name in ("untrained", "trained")
        )
        before = [run["students"]["fine-tuned, untrained"] for run in runs] if taught else (
            [plain["judged"][f"untrained {runs[0]['norm']}"][criterion]] * len(runs)
        )  # fmt: skip
        sign = -1 if criterion == "sufficiency" else 1
        over_before, over_own = (
            f"{sum(sign * (new - old) > 0 for new, old in zip(trained, values, strict=True))} of {len(runs)}"
            for values in (before, own)
        )
        main = "exact_match" if task == "squad" else "accuracy"
        price = [100 * (run["figures"][main] - plain["figures"][main]) for run in runs]
        yield (
            f"| {task} | {criterion} | {spread(list(dict.fromkeys(before)))} | {spread(own)} | {spread(trained)} | "
            f"{over_before} | {over_own} | {spread(price, '+.1f', '.1f')} |"
        )


def simulated(folder: Path) -> Iterator[str]:
    """Students of each explanation, seed by seed: new ones, and the one that learns along with it."""
    found = parts(folder)
    new = ("none", "attention, all layers", "fine-tuned, untrained", "untrained", "trained")
    yield f"| task | seed | {' | '.join(new)} | along, untrained | along, trained |"
    yield f"| --- | ---: |{' ---: |' * (len(new) + 2)}"
    for task, seed in product(("sst", "snli", "squad"), SEEDS):
        run, untrained = found.get(f"{task} simulatability {seed}"), found.get(f"beside {task} {seed}")
        if run is not None:
            values = [run["students"].get(name, np.nan) for name in new]
            values += [
                each["history"][-1].get("eval_criterion", np.nan) if each else np.nan for each in (untrained, run)
            ]
            yield f"| {task} | {seed} | {' | '.join(format(value, '.3f') for value in values)} |"


def along(folder: Path) -> Iterator[str]:
    """The student that learns along from few data, on a model that stays what it is."""
    found, arms = parts(folder), ("none", "untrained", "trained")
    yield f"| task | seed | {' | '.join(arms)} |"
    yield f"| --- | ---: |{' ---: |' * len(arms)}"
    for task, seed in product(("sst", "snli", "squad"), SEEDS):
        run = found.get(f"along {task} {seed}")
        if run is not None:
            values = [format(run[arm][-1]["eval_criterion"], ".3f") for arm in arms]
            yield f"| {task} | {seed} | {' | '.join(values)} |"


def spread(values: Sequence[float], form: str = ".3f", deviation: str = ".3f") -> str:
    """Mean and standard deviation over seeds."""
    mean = format(float(np.mean(values)), form)
    return mean if len(values) < 2 else f"{mean} ± {float(np.std(values, ddof=1)):{deviation}}"


def others(folder: Path) -> Iterator[str]:
    """What other methods' explanations of the fine-tuned models come to; and of those trained on without criteria."""
    for name, found in parts(folder).items():
        if name.endswith(" plain") or name.startswith("control "):
            figures = list(next(iter(found["judged"].values())))
            yield f"| {name} | {' | '.join(figures)} |"
            yield f"| --- |{' ---: |' * len(figures)}"
            for method, values in found["judged"].items():
                yield f"| {method} | {' | '.join(format(values.get(figure, np.nan), '.3f') for figure in figures)} |"


def levels(folder: Path) -> Iterator[str]:
    """Coefficients of one kind on a model that stays: the loss of the last steps and the metric on test (Fig. 6)."""
    found = parts(folder)
    yield "| criterion | coefficients | loss, last steps | untrained | trained |"
    yield "| --- | --- | ---: | ---: | ---: |"
    for criterion, level in product(CRITERIA[:3], LEVELS):
        run = found.get(f"only {level} sst {criterion} 0")
        if run is not None:
            losses = [entry[criterion] for entry in run["history"] if criterion in entry]
            values = " | ".join(f"{run['judged'][name][criterion]:.3f}" for name in ("untrained", "trained"))
            yield f"| {criterion} | {level} | {np.mean(losses[-2:]):.4f} | {values} |"


def mixed(folder: Path) -> Iterator[str]:
    """The relative gain in each criterion of training for several over training for it alone (Fig. 5)."""
    found = parts(folder)
    yield f"| trained for | {' | '.join(CRITERIA)} | accuracy |"
    yield f"| --- |{' ---: |' * (len(CRITERIA) + 1)}"
    for size in (2, 3, 4):
        for several in combinations(CRITERIA, size):
            run = found.get(f"mixed sst {'+'.join(several)} 0")
            if run is not None:
                gains = [f"{_gain(found, run, criterion):+.1f}" for criterion in CRITERIA]
                yield f"| {', '.join(several)} | {' | '.join(gains)} | {100 * run['figures']['accuracy']:.1f} |"


def _gain(found: dict[str, dict[str, Any]], run: dict[str, Any], criterion: str) -> float:
    usual = found.get(f"sst {criterion} 0")
    if criterion == "simulatability":
        pair = [each.get("students", {}).get("trained") for each in (run, usual or {})]
    else:
        pair = [each.get("judged", {}).get("trained", {}).get(criterion) for each in (run, usual or {})]
    if None in pair:
        return float("nan")
    return average_relative_gain([pair[0]], [pair[1]], criterion != "sufficiency")


def moved(folder: Path) -> Iterator[str]:
    """Coefficients on models that were not trained with them: of SST on reviews (Fig. 8), and beside rationales."""
    for name in ("transfer", "plausibility"):
        found = parts(folder).get(name)
        if found is not None:
            figures = list(next(iter(found["judged"].values())))
            yield f"| {name} | {' | '.join(figures)} |"
            yield f"| --- |{' ---: |' * len(figures)}"
            for method, values in found["judged"].items():
                yield f"| {method} | {' | '.join(format(values[figure], '.3f') for figure in figures)} |"


if __name__ == "__main__":
    main()
