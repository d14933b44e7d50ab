"""IvRA at a small scale: does training for a criterion make the explanation better at it, and at what price?

A fine-tuned MiniLM for SST, SNLI and questions of SQuAD is trained on for each criterion, seed by seed, and judged on
data that no training saw, beside other explanations of the fine-tuned model. Then criteria together, coefficients of
one kind only, and coefficients learned on other data. Every part is a file in the output folder, written when it is
there: the same command goes on after an interruption.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset

import exegete
from exegete.data.provenance import write_json
from exegete.explainers import Explainer
from exegete.explainers.interpretable_attention import InterpretableAttention
from exegete.metrics import metric
from exegete.models import ExplainedModel
from exegete.recipes import RECIPES
from exegete.studies.runs import performance

SHARED = Path(__file__).parents[2] / "shared"
DATA = Path(os.environ.get("EXEGETE_DATA", SHARED / "data"))
CRITERIA = ("comprehensiveness", "sufficiency", "consistency")
JUDGES = {
    "comprehensiveness": metric("aopc_comprehensiveness", keep_question=True),
    "sufficiency": metric("aopc_sufficiency", keep_question=True),
    "consistency": metric("consistency"),
    "consistency across pairs": metric("consistency?across=pairs"),
    "important tokens": metric("important_tokens"),
}
NORM = {"comprehensiveness": "softmax", "sufficiency": "softmax", "consistency": "sparsemax"}
SEEDS = (0, 1, 2)
QUIET = {"disable_tqdm": True, "use_cpu": not torch.cuda.is_available(), "save_only_model": True}
QUIET |= {"restore_callback_states_from_checkpoint": False}
TASKS: dict[str, dict[str, Any]] = {
    "sst": {"spec": f"sst:{DATA / 'sst'}", "splits": ("train", "dev", "test"), "longest": 80},
    "snli": {"spec": f"snli:{DATA / 'snli'}", "splits": ("dev", "dev", "test"), "longest": 110, "base": (1280, 1)},
    "squad": {
        "spec": f"squad:{DATA / 'squad' / 'dev-subset.json'}",
        "splits": ("train", "dev", "test"),
        "longest": 480,
        "base": (512, 3),
    },
    "reviews": {
        "spec": f"labelled:{DATA / 'reviews' / 'customer-reviews.txt'}?skip_empty=true",
        "splits": ("train", "dev", "test"),
        "longest": 80,
    },
}
SIZES = {
    "small": {"train": 256, "dev": 48, "test": 96, "scored": 400, "epochs": 2},
    "tiny": {"train": 32, "dev": 8, "test": 12, "scored": 24, "epochs": 1},
}
RATE, PACE = 1e-4, 300.0
HALVED = {"squad": 2}


def main() -> None:
    """Runs what is not there yet, until the time is up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--scale", choices=SIZES, default="small")
    parser.add_argument("--minutes", type=float, default=24.0, help="no part is begun after so many")
    parser.add_argument("--only", default="", help="parts whose name has this in it")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("exegete").setLevel(logging.ERROR)
    end, longest = time.monotonic() + 60 * options.minutes, 0.0
    bench = Bench(options.output, options.scale)
    for name, part in parts(bench):
        file = options.output / "parts" / f"{name}.json"
        if options.only not in name or file.exists():
            continue
        if time.monotonic() + longest > end:
            print("time is up; the same command goes on", flush=True)
            break
        begun = time.monotonic()
        file.parent.mkdir(parents=True, exist_ok=True)
        found = part()
        longest = max(longest, time.monotonic() - begun)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        write_json(file, found | {"seconds": round(time.monotonic() - begun, 1), "peak MiB": memory})
        print(name, json.dumps(found), flush=True)
        gc.collect()


class Bench:
    """Where things are, and how much of everything there is."""

    def __init__(self, folder: Path, scale: str) -> None:
        self.folder, self.size = folder, SIZES[scale]
        self.scale = scale

    def rows(self, task: str, split: str, count: int | None = None, skip: int = 0) -> Dataset:
        """Short rows of a split in an order of their own; `skip`: those that something else has."""
        part = TASKS[task]
        data = exegete.load_data(part["spec"], dict(zip(("train", "dev", "test"), part["splits"], strict=True))[split])
        if task == "squad":
            data = data.filter(lambda row: len(row["answer"]) > 0)
        texts = [name for name in ("text", "text_pair") if name in data.column_names]
        data = data.filter(lambda row: sum(len(row[name]) for name in texts) <= part["longest"]).shuffle(seed=0)
        wanted = (count or self.size[split]) // HALVED.get(task, 1)
        return data.select(range(min(skip, len(data)), min(skip + wanted, len(data))))

    def data(self, task: str) -> tuple[Dataset, Dataset, Dataset]:
        """Train, dev and test; train and dev of one split do not overlap."""
        skip = self.size["train"] if TASKS[task]["splits"][0] == TASKS[task]["splits"][1] else 0
        return self.rows(task, "train"), self.rows(task, "dev", skip=skip), self.rows(task, "test")

    def scored(self, task: str) -> Dataset:
        """More of test, for the figures of the task alone."""
        return self.rows(task, "test", self.size["scored"])

    def base(self, task: str) -> Path:
        """The folder of the fine-tuned model that everything starts from."""
        if task in ("sst", "reviews"):
            return Path(os.environ.get("EXEGETE_MODELS", SHARED / "models")) / "minilm-sst2"
        count, epochs = TASKS[task]["base"]
        count, epochs = (count, epochs) if self.scale == "small" else (32, 1)
        skip = self.size["train"] + self.size["dev"] if task == "snli" else 0
        train = self.rows(task, "train", count * HALVED.get(task, 1), skip)
        arguments = {"num_train_epochs": epochs, "learning_rate": 1e-4, "save_strategy": "no", "eval_strategy": "no"}
        arguments |= QUIET | {"load_best_model_at_end": False}
        if task == "squad":
            arguments["per_device_train_batch_size"] = 16
        folder = self.folder / "models" / task
        RECIPES["baseline"]().train(backbone(), train, self.data(task)[1], folder, arguments=arguments, max_length=192)
        return folder


def backbone() -> str:
    """The folder of the pretrained encoder."""
    return os.environ.get("EXEGETE_BACKBONE", "sentence-transformers/all-MiniLM-L6-v2")


def parts(bench: Bench) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Names and what makes them, the most important first."""
    for seed in SEEDS:
        yield from one_at_a_time(bench, seed)
    for size in (2, len(CRITERIA)):
        for several in combinations(CRITERIA, size):
            yield f"mixed sst {'+'.join(several)} 0", partial(trained, bench, "sst", ",".join(several), 0)
    for criterion in CRITERIA:
        yield from ablated(bench, criterion)
    yield "reviews plain", partial(plain, bench, "reviews")
    for criterion in CRITERIA:
        yield f"reviews {criterion} 0", partial(trained, bench, "reviews", criterion, 0)


def one_at_a_time(bench: Bench, seed: int) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Each criterion alone on each task (Tables 1 to 5)."""
    for task in ("sst", "snli", "squad"):
        if seed == 0:
            yield f"{task} plain", partial(plain, bench, task)
        for criterion in CRITERIA:
            yield f"{task} {criterion} {seed}", partial(trained, bench, task, criterion, seed)
    yield f"sst cross-entropy {seed}", partial(trained, bench, "sst", "", seed)


def ablated(bench: Bench, criterion: str) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Coefficients of one kind alone (Fig. 6), and the other NORM."""
    for level in ("features", "heads", "layers"):
        only = {each: each == level for each in ("features", "heads", "layers")}
        yield f"only {level} sst {criterion} 0", partial(trained, bench, "sst", criterion, 0, **only)
    other = "sparsemax" if NORM[criterion] == "softmax" else "softmax"
    yield f"{other} sst {criterion} 0", partial(trained, bench, "sst", criterion, 0, norm=other)


def plain(bench: Bench, task: str) -> dict[str, Any]:
    """Explanations of the fine-tuned model that nothing trained."""
    model = exegete.load(bench.base(task), device=None, max_length=192)
    test = bench.data(task)[2]
    chosen: dict[str, Explainer] = {
        f"untrained {norm}": InterpretableAttention.untrained(model, norm=norm).to(model.device)
        for norm in ("sparsemax", "softmax")
    }
    specs = ["attention_all", "attention_last", "input_x_gradient", "integrated_gradients?n_steps=8", "random"]
    if task != "squad":
        specs.append("lime?n_samples=64")
    chosen |= {spec: exegete.explainer(spec) for spec in specs}
    return {"task": task, "figures": performance(model, bench.scored(task))[0], "judged": judged(model, test, chosen)}


def trained(
    bench: Bench, task: str, criteria: str, seed: int, norm: str | None = None, **switches: bool
) -> dict[str, Any]:
    """A model trained for criteria, judged on test; the paper's rates scaled to a run this short."""
    train, dev, test = bench.data(task)
    norm = norm or NORM.get(criteria.partition(",")[0], "softmax")
    folder = bench.folder / "work"
    shutil.rmtree(folder, ignore_errors=True)
    recipe = RECIPES["ivra"](criteria, norm=norm, pace=PACE, **switches) if criteria else RECIPES["baseline"]()
    arguments = QUIET | {
        "num_train_epochs": bench.size["epochs"],
        "learning_rate": RATE,
        "per_device_train_batch_size": 16 if task == "squad" else 32,
        "per_device_eval_batch_size": 32,
        "logging_steps": 5,
    }
    begun = time.process_time()
    result = recipe.train(str(bench.base(task)), train, dev, folder, arguments=arguments, max_length=192, seed=seed)
    seconds = time.process_time() - begun
    model = result.model
    chosen: dict[str, Explainer] = {
        f"untrained {norm}": InterpretableAttention.untrained(model, norm=norm).to(model.device),
    }
    if criteria:
        chosen["trained"] = InterpretableAttention.from_pretrained(folder).to(model.device)
        kept = bench.folder / "coefficients" / f"{task}-{criteria.replace(',', '+')}-{norm}-{seed}"
        if not switches:
            chosen["trained"].save_pretrained(kept)
    found: dict[str, Any] = {"task": task, "criteria": criteria, "norm": norm, "seed": seed}
    found["figures"] = performance(model, bench.scored(task))[0]
    found |= {"judged": judged(model, test, chosen), "training seconds": round(seconds, 1)}
    if criteria and task == "sst" and not switches:
        found["transfer to reviews"] = judged(model, bench.data("reviews")[2], {"trained": chosen["trained"]})
    found["history"] = [logged(entry) for entry in result.history]
    shutil.rmtree(folder, ignore_errors=True)
    return found


def logged(entry: dict[str, Any]) -> dict[str, Any]:
    """What tells the course of a run."""
    wanted = ("step", "epoch", "loss", *CRITERIA)
    return {
        key: value for key, value in entry.items() if key in wanted or key.startswith(("eval_criterion", "eval_acc"))
    }


def judged(model: ExplainedModel, data: Dataset, explainers: dict[str, Explainer]) -> dict[str, dict[str, float]]:
    """Every metric of every explanation: means over examples where it is defined."""
    rows = sorted(data, key=lambda row: len(row["text"]) + len(row.get("text_pair") or ""))
    values: dict[str, dict[str, list[torch.Tensor]]] = {name: {m: [] for m in JUDGES} for name in explainers}
    for start in range(0, len(rows), 32):
        batch = model.encode(rows[start : start + 32])
        with model.remember(), torch.no_grad():
            for name, method in explainers.items():
                scores = method.attribute(model, batch)
                for column, judge in JUDGES.items():
                    values[name][column].append(judge.judge(model, batch, scores)[judge.name].cpu())
    return {n: {m: round(float(torch.cat(v).nanmean()), 5) for m, v in each.items()} for n, each in values.items()}


if __name__ == "__main__":
    main()
