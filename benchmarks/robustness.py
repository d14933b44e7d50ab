"""Do robust models explain better? REGEX and its ablations on real sentences: faithfulness, initialisations, attack.

Every figure is a row of a CSV file, written when it is known; run the script again and it goes on where it stopped.
`--minutes` ends it between two figures. `--scale tiny` does all of it at a size that shows whether it runs.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset

import exegete
from exegete.data.provenance import versions
from exegete.metrics.attack import attack
from exegete.metrics.robustness import consistency
from exegete.models import ExplainedModel
from exegete.models.encoding.labels import in_model_labels
from exegete.recipes import RECIPES, Recipe
from exegete.studies.compare.judge import judge
from exegete.studies.runs.work import performance
from exegete.training.loop.starting_model import starting_model

SHARED = Path(__file__).parents[2] / "shared"
DATA = Path(os.environ.get("EXEGETE_DATA", SHARED / "data"))
BACKBONE = os.environ.get("EXEGETE_BACKBONE", "sentence-transformers/all-MiniLM-L6-v2")
SCALES = {
    "small": {"train": 480, "dev": 16, "judged": {"SST": 30, "Reviews": 20, "Movies": 4}, "attacked": 200},
    "tiny": {"train": 32, "dev": 16, "judged": {"SST": 4, "Reviews": 4, "Movies": 2}, "attacked": 10},
}
LENGTH, WORDS = 64, 12
ARGUMENTS = {
    "learning_rate": 5e-5, "num_train_epochs": 2, "per_device_train_batch_size": 16, "data_seed": 0,
    "warmup_steps": 0.1, "weight_decay": 0.01, "disable_tqdm": True, "save_total_limit": 1,
    "eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False,
}  # fmt: skip
METHODS = {
    "RAND": "random", "α∇α": "scaled_attention", "α": "attention_last", "DeepLift": "deep_lift?baselines=zero",
    "x∇x": "input_x_gradient", "IG": "integrated_gradients?n_steps=10&baselines=zero", "ALTI": "alti",
    "DX": "decompx_linear",
}  # fmt: skip
REGEX: dict[str, Any] = {"form": "smart", "share": 0.125, "points": 4}
LINEAR = REGEX | {"teacher": "decompx_linear"}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "baseline": {},
    "REGEX": REGEX,
    "REGEX (decompx_linear)": LINEAR,
    "w/o guidance": REGEX | {"guidance_weight": 0.0},
    "w/o robustness": REGEX | {"gradient_weight": 0.0, "adversarial_weight": 0.0},
    "λ4 = 1": LINEAR | {"guidance_weight": 1.0},
    "w/o adversarial": REGEX | {"adversarial_weight": 0.0},
    "w/o gradient penalty": REGEX | {"gradient_weight": 0.0},
    "mean over dimensions": REGEX | {"aggregation": "mean"},
    "λ4 = 1, IG of 4": REGEX | {"guidance_weight": 1.0},
    "λ4 = 1, IG of 1": REGEX | {"guidance_weight": 1.0, "points": 1},
    "λ4 = 0.1": LINEAR | {"guidance_weight": 0.1},
    "λ4 = 0.001": LINEAR | {"guidance_weight": 0.001},
    "K = 0.3": LINEAR | {"mask_ratio": 0.3},
    "literal": LINEAR | {"form": "literal"},
}
SEEDS = (0, 1, 2)
NAMES = tuple(CONFIGURATIONS)
MAIN = [(configuration, seed) for seed in SEEDS for configuration in NAMES[:3]]
PARTS = {
    "main": MAIN,
    "targets": MAIN,
    "ablations": [(configuration, seed) for configuration in NAMES[3:8] for seed in SEEDS],
    "sweeps": [(configuration, 0) for configuration in NAMES[8:]],
}
INITIALISATIONS = (0, 1, 2, 3)


class Book:
    """The figures so far, a row each, with the unit of work they belong to."""

    columns = ("part", "configuration", "seed", "dataset", "method", "metric", "value", "count")

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_text(",".join(self.columns) + "\n", encoding="utf-8")
        with path.open(encoding="utf-8", newline="") as file:
            self.done = {tuple(row[:4]) for row in csv.reader(file)}

    def fill(self, key: tuple[str, str, str, str], work: Callable[[], Iterator[tuple[Any, ...]]]) -> None:
        """Does a unit of work that was not done, and writes all its rows at once."""
        if key in self.done:
            return
        begun = time.monotonic()
        rows = [(*key, *row) for row in work()]
        with self.path.open("a", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(rows)
        self.done.add(key)
        print(f"{time.strftime('%T')} {' / '.join(key)}: {time.monotonic() - begun:.0f} s", flush=True)


@cache
def data(name: str, scale: str) -> Dataset:
    """A part of a corpus, the same in every run: short sentences but for the attack, Movies as far as a model reads."""
    size = SCALES[scale]
    reviews = f"labelled:{DATA / 'reviews' / 'customer-reviews.txt'}?skip_empty=true"
    specs = {
        "train": (f"sst:{DATA / 'sst'}", "train", size["train"]),
        "dev": (f"sst:{DATA / 'sst'}", "dev", size["dev"]),
        "attacked": (f"sst:{DATA / 'sst'}", "dev", size["attacked"]),
        "SST": (f"sst:{DATA / 'sst'}", "test", size["judged"]["SST"]),
        "Reviews": (reviews, "all", size["judged"]["Reviews"]),
        "Movies": (f"eraser:{DATA / 'movies'}", "test", size["judged"]["Movies"]),
    }
    spec, split, limit = specs[name]
    rows = exegete.load_data(spec, split)
    if name not in ("Movies", "attacked"):
        rows = rows.filter(lambda row: len(row["text"].split()) <= WORDS)
    return rows.shuffle(seed=0).select(range(min(limit, len(rows))))


def recipe(configuration: str) -> Recipe:
    """The baseline differs from REGEX in its loss alone."""
    weights = dict.fromkeys(("gradient_weight", "adversarial_weight", "guidance_weight"), 0.0)
    given = CONFIGURATIONS[configuration] or weights
    return RECIPES["regex"](**given)


def train(folder: Path, configuration: str, seed: int, scale: str) -> Iterator[tuple[Any, ...]]:
    """Trains a model into its folder; yields its dev figures and seconds."""
    target = folder / f"{configuration}-{seed}".replace("/", "")
    begun = time.monotonic()
    result = recipe(configuration).train(
        BACKBONE, data("train", scale), data("dev", scale), target, arguments=ARGUMENTS, max_length=48, seed=seed
    )
    for left in target.glob("checkpoint-*"):
        shutil.rmtree(left)
    for name in ("accuracy", "f1_macro"):
        yield "", name, result.metrics[name], scale_size(scale)
    yield "", "seconds", time.monotonic() - begun, 1
    yield "", "steps", result.steps, 1


def scale_size(scale: str) -> int:
    """Sentences on dev."""
    return int(SCALES[scale]["dev"])


def trained(folder: Path, configuration: str, seed: int) -> ExplainedModel:
    """A model that `train` left."""
    return exegete.load(folder / f"{configuration}-{seed}".replace("/", ""), device="cpu", max_length=LENGTH)


def judged(folder: Path, configuration: str, seed: int, dataset: str, scale: str) -> Iterator[tuple[Any, ...]]:
    """Normalised sufficiency and comprehensiveness of every method, and how well the model classifies."""
    model = trained(folder, configuration, seed)
    found = data(dataset, scale)
    for name, value in performance(model, found)[0].items():
        yield "", name, value, len(found)
    methods = {name: exegete.explainer(spec) for name, spec in METHODS.items()}
    metrics = {
        "sufficiency": "normalised_sufficiency?how=pad",
        "comprehensiveness": "normalised_comprehensiveness?how=pad",
    }
    judges = {name: exegete.metric(spec) for name, spec in metrics.items()}
    rows = in_model_labels(model, found)
    sums: dict[tuple[str, str], list[float]] = {}
    for start in range(0, len(rows), 16):
        batch = model.encode(rows[start : start + 16])
        results = judge(model, batch, range(start, start + len(batch)), methods, judges).results
        for method, group in results.groupby("method", sort=False):
            for name in judges:
                sums.setdefault((method, name), []).extend(group[name].dropna())
    for (method, name), values in sums.items():
        yield method, name, sum(values) / len(values), len(values)


def initialisations(folder: Path, configuration: str, scale: str) -> Iterator[tuple[Any, ...]]:
    """Jaccard@25 % over all pairs of initialisations, and with a model whose head was never trained."""
    models: dict[str, Any] = {f"init {s}": partial(trained, folder, configuration, s) for s in INITIALISATIONS}
    models["untrained"] = lambda: starting_model(BACKBONE, data("train", scale), max_length=LENGTH, seed=99).eval()
    examples = list(data("SST", scale))
    for name in ("α∇α", "α", "x∇x", "IG", "DX"):
        similarity = consistency(models, examples, METHODS[name])
        names = [f"init {seed}" for seed in INITIALISATIONS]
        for kind, values in (("DIT", similarity.between(names)), ("UIT", similarity.between(names, ["untrained"]))):
            yield name, kind, float(values.mean()), len(values)
        matrix = similarity.matrix
        for row in range(len(models)):
            for column in range(row):
                yield name, f"J {matrix.index[row]} / {matrix.columns[column]}", matrix.iloc[row, column], len(examples)


def attacked(folder: Path, configuration: str, seed: int, dataset: str, scale: str) -> Iterator[tuple[Any, ...]]:
    """What an attack by harmless swaps does."""
    model = trained(folder, configuration, seed)
    found = data(dataset, scale)
    report = attack(model, in_model_labels(model, found), budget=500)
    for name, value in report.figures.items():
        yield "", name, value, len(found)
    yield "", "nothing to swap", report.counts["nothing to swap"], len(found)


Unit = tuple[tuple[str, str, str, str], Callable[[], Iterator[tuple[Any, ...]]]]


def units(folder: Path, scale: str, which: str) -> Iterator[Unit]:
    """All units of a part, the most telling first."""
    if which == "initialisations":
        for configuration in ("baseline", "REGEX (decompx_linear)"):
            for seed in INITIALISATIONS:
                yield training(folder, scale, configuration, seed)
            yield ("init", configuration, "all", "SST"), partial(initialisations, folder, configuration, scale)
        return
    datasets = [name for name in SCALES[scale]["judged"] if (name != "SST") == (which == "targets")]
    for configuration, seed in PARTS[which]:
        yield training(folder, scale, configuration, seed)
        if which == "main":
            key = ("attack", configuration, str(seed), "SST dev")
            yield key, partial(attacked, folder, configuration, seed, "attacked", scale)
        for dataset in datasets:
            key = ("judge", configuration, str(seed), dataset)
            yield key, partial(judged, folder, configuration, seed, dataset, scale)


def training(folder: Path, scale: str, configuration: str, seed: int) -> Unit:
    """The unit that leaves a model."""
    key = ("train", configuration, str(seed), "dev")
    return key, partial(train, folder, configuration, seed, scale)


def main() -> None:
    """Works until all is done or the minutes are up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="Where figures go.")
    parser.add_argument("--runs", type=Path, required=True, help="Where models are kept between two calls.")
    parser.add_argument("--scale", choices=SCALES, default="small")
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--parts", default="main,initialisations,targets,ablations,sweeps")
    options = parser.parse_args()
    torch.set_num_threads(1)
    begun = time.monotonic()
    book = Book(options.output / "figures.csv")
    settings = {"scale": SCALES[options.scale], "arguments": ARGUMENTS, "configurations": CONFIGURATIONS}
    (options.output / "settings.json").write_text(json.dumps(settings | {"versions": versions()}, indent=2))
    for which in options.parts.split(","):
        for key, unit in units(options.runs, options.scale, which):
            if time.monotonic() - begun > 60 * options.minutes:
                print("time is up: the same command goes on", flush=True)
                return
            book.fill(key, unit)


if __name__ == "__main__":
    main()
