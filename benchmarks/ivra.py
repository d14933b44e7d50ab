"""IvRA at a small scale: does training for a criterion make the explanation better at it, and at what price?

A fine-tuned MiniLM for SST, SNLI and questions of SQuAD is trained on for each criterion, seed by seed, and judged on
data that no training saw, beside other explanations of the fine-tuned model. Then criteria together, coefficients of
one kind only, and coefficients learned on other data. Every part is a file in the output folder, written when it is
there: the same command goes on after an interruption. `ivra_tables.py` makes tables of them.
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, product
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, concatenate_datasets

import exegete
from exegete.data.provenance import write_json
from exegete.explainers import Explainer
from exegete.explainers.learned.interpretable_attention import InterpretableAttention
from exegete.metrics import Metric, metric
from exegete.models import ExplainedModel
from exegete.recipes import RECIPES
from exegete.studies.runs.work import performance
from exegete.training import TrainResult
from exegete.training.bilevel.students import Teaching, students

SHARED = Path(__file__).parents[2] / "shared"
DATA = Path(os.environ.get("EXEGETE_DATA", SHARED / "data"))
CRITERIA = ("comprehensiveness", "sufficiency", "consistency", "simulatability")
JUDGES = {
    "comprehensiveness": metric("aopc_comprehensiveness", keep_question=True),
    "sufficiency": metric("aopc_sufficiency", keep_question=True),
    "consistency": metric("consistency"),
    "consistency across pairs": metric("consistency?across=pairs"),
    "important tokens": metric("important_tokens"),
}
PLAUSIBILITY = metric("auc")
UNTRAINED: dict[str, dict[str, Any]] = {
    "sparsemax": {"norm": "sparsemax"},
    "softmax": {"norm": "softmax"},
    "softmax, of words": {"norm": "softmax", "special_tokens": False},
}
KIND = {"simulatability": "softmax, of words"}  # of other criteria: softmax
SEEDS = (0, 1, 2)
QUIET = {"disable_tqdm": True, "use_cpu": not torch.cuda.is_available(), "save_only_model": True, "bf16": True}
QUIET |= {"restore_callback_states_from_checkpoint": False}
ONCE = {"save_strategy": "no", "eval_strategy": "no", "load_best_model_at_end": False}


@dataclass(frozen=True)
class Part:
    """Data of a task: texts up to `longest` characters, the first rows of a shuffle of each split.

    `often`: steps from one look at dev to the next. `base`: rows and epochs of the fine-tuned model, where none is
    given; its rows begin with those of `train`. `simulated`: rows and epochs of simulatability alone, whose student has
    to grow up; `again`: of the student that learns along on a model that stays what it is. `students`: for each
    explanation of a model.
    """

    spec: str
    longest: int
    splits: tuple[str, str, str] = ("train", "dev", "test")
    train: int = 384
    dev: int = 96
    test: int = 224
    scored: int = 600
    pool: int = 64
    batch: int = 32
    epochs: int = 2
    often: int = 6
    base: tuple[int, int] = (0, 0)
    base_rate: float = 1e-4
    simulated: tuple[int, int] = (4800, 1)
    again: tuple[int, int] = (384, 8)
    students: int = 4


TASKS = {
    "sst": Part(f"sst:{DATA / 'sst'}", 110, students=8),
    "snli": Part(f"snli:{DATA / 'snli'}", 120, splits=("dev", "dev", "test"), pool=96, base=(5400, 3), students=8),
    "squad": Part(
        f"squad:{DATA / 'squad' / 'dev-subset.json'}", 420, train=192, dev=32, test=62, scored=140, pool=192, batch=16,
        base=(529, 12), base_rate=2e-4, simulated=(510, 5), again=(510, 5),
    ),
    "reviews": Part(f"labelled:{DATA / 'reviews' / 'customer-reviews.txt'}?skip_empty=true", 110),
}  # fmt: skip
TINY = {"train": 32, "dev": 8, "test": 12, "scored": 24, "pool": 16, "epochs": 1, "often": 1}
RATES = {"comprehensiveness": (3e-5, 0.01), "sufficiency": (3e-5, 0.005), "consistency": (3e-5, 0.003)}
RATES |= {"simulatability": (3e-5, 0.005)}  # of the model and of the coefficients
TEMPERATURE, ALONE = 1.0, 0.02  # the second: of coefficients on a model that stays what it is
SEEN = 128  # rows of test that rates were once chosen on: they judge nothing
WEIGHT, NO_WEIGHT = 10.0, 1e-6  # β of students, and of those that learn from answers alone
PUPIL = {"student_optimizer": "adamw", "student_rate": 1e-4, "student_weight": WEIGHT}  # simulatability learns with
GROWING = ONCE | {"lr_scheduler_type": "linear", "lr_scheduler_kwargs": {}}  # simulatability alone
STUDENT = QUIET | ONCE | {
    "num_train_epochs": 6, "learning_rate": 1e-4, "lr_scheduler_type": "constant", "warmup_steps": 0,
    "per_device_train_batch_size": 16,
}  # fmt: skip


def main() -> None:
    """Runs what is not there yet, until the time is up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--scale", choices=("small", "tiny"), default="small")
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
        self.folder, self.scale = folder, scale

    def size(self, task: str) -> Part:
        """The task's sizes at this scale."""
        part = TASKS[task]
        tiny = TINY | ({"base": (32, 1)} if part.base[0] else {})
        return part if self.scale == "small" else replace(part, **tiny)

    def rows(self, task: str, split: str) -> Dataset:
        """All short rows of a split, in an order of their own."""
        part = TASKS[task]
        name = dict(zip(("train", "dev", "test"), part.splits, strict=True))[split]
        data = exegete.load_data(part.spec, name)
        if task == "squad":
            data = data.filter(lambda row: len(row["answer"]) > 0).map(sentence)
        texts = [name for name in ("text", "text_pair") if name in data.column_names]
        return data.filter(lambda row: sum(len(row[name]) for name in texts) <= part.longest).shuffle(seed=0)

    def data(self, task: str) -> tuple[Dataset, Dataset, Dataset]:
        """Train, dev and test; of one split, dev begins behind everything that the model was trained on."""
        size = self.size(task)
        train, dev, test = (self.rows(task, split) for split in ("train", "dev", "test"))
        behind = max(size.base[0], size.train) if size.splits[0] == size.splits[1] else 0
        seen = SEEN if len(test) > SEEN + size.test else 0
        return first(train, size.train), first(dev, size.dev, behind), first(test, size.test, seen)

    def scored(self, task: str) -> Dataset:
        """For the figures of the task alone: of SQuAD's few questions also those of dev that choose no epoch."""
        size, test = self.size(task), self.rows(task, "test")
        if task == "squad":
            dev = self.rows(task, "dev")
            test = concatenate_datasets([test, dev.select(range(min(size.dev, len(dev)), len(dev)))])
        return first(test, size.scored)

    def teacher_outputs(self, task: str) -> tuple[Dataset, Dataset, Dataset]:
        """Students' pool and dev, from test as in the paper (of SQuAD's few questions from train), and what judges."""
        size = self.size(task)
        if task == "squad":
            train, dev, _ = self.data(task)
            return first(train, size.pool), dev, self.scored(task)
        test = self.rows(task, "test")
        pool, dev = first(test, size.pool, size.scored), first(test, 8, size.scored + size.pool)
        return pool, dev, first(test, size.scored)

    def base(self, task: str) -> Path:
        """The folder of the fine-tuned model that everything starts from."""
        if task in ("sst", "reviews"):
            return Path(os.environ.get("EXEGETE_MODELS", SHARED / "models")) / "minilm-sst2"
        size, folder = self.size(task), self.folder / "models" / task
        train = first(self.rows(task, "train"), size.base[0])
        arguments = QUIET | ONCE | {"num_train_epochs": size.base[1], "learning_rate": size.base_rate}
        arguments |= {"per_device_train_batch_size": size.batch}
        RECIPES["baseline"]().train(backbone(), train, self.data(task)[1], folder, arguments=arguments, max_length=224)
        return folder


def sentence(row: dict[str, Any]) -> dict[str, Any]:
    """A question with the sentence that its first answer is in for context."""
    context, (begin, end) = row["text_pair"], row["answer"][0]
    before, stop = context.rfind(". ", 0, begin), context.find(". ", end) + 1 or len(context)
    start = 0 if before < 0 else before + 2
    inside = [[a - start, b - start] for a, b in row["answer"] if start <= a and b <= stop]
    return {"text_pair": context[start:stop], "answer": inside}


def first(data: Dataset, count: int, skip: int = 0) -> Dataset:
    """So many rows, or what there is."""
    return data.select(range(min(skip, len(data)), min(skip + count, len(data))))


def backbone() -> str:
    """The folder of the pretrained encoder."""
    return os.environ.get("EXEGETE_BACKBONE", "sentence-transformers/all-MiniLM-L6-v2")


def parts(bench: Bench) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Names and what makes them, the most important first."""
    for tasks, criteria in (
        (("snli",), CRITERIA[:3]),
        (("squad",), CRITERIA[:3]),
        (("sst",), CRITERIA[3:]),
        (("sst",), CRITERIA[:3]),
        (("snli", "squad"), CRITERIA[3:]),
    ):
        for seed, task in product(SEEDS, tasks):
            yield from one_at_a_time(bench, task, criteria, seed)
    for seed, task in product(SEEDS, ("sst", "snli", "squad")):
        yield f"beside {task} {seed}", partial(beside, bench, task, seed)
        yield f"along {task} {seed}", partial(along, bench, task, seed)
    for task in ("snli", "squad", "sst"):
        yield f"control {task}", partial(trained, bench, task, "", 0)
    for criterion in CRITERIA[:3]:
        yield from ablated(bench, criterion)
        yield f"reviews {criterion} 0", partial(trained, bench, "reviews", criterion, 0)
    yield "transfer", partial(transferred, bench)
    yield "plausibility", partial(plausible, bench)
    for size in (2, 3, 4):
        for several in combinations(CRITERIA, size):
            yield f"mixed sst {'+'.join(several)} 0", partial(trained, bench, "sst", ",".join(several), 0)


def one_at_a_time(
    bench: Bench, task: str, criteria: Sequence[str], seed: int
) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Each criterion alone (Tables 1 to 5)."""
    for criterion in criteria:
        yield f"{task} {criterion} {seed}", partial(trained, bench, task, criterion, seed)
    if seed == 0 and len(criteria) > 1:
        yield f"{task} plain", partial(plain, bench, task)


def ablated(bench: Bench, criterion: str) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Coefficients of all kinds and of one alone, on a model that stays what it is (Fig. 6)."""
    levels = ("features", "heads", "layers")
    for level in ("all", *levels):
        only = {each: level in ("all", each) for each in levels}
        yield f"only {level} sst {criterion} 0", partial(trained, bench, "sst", criterion, 0, train_model=False, **only)


def transferred(bench: Bench) -> dict[str, Any]:
    """Coefficients learned on SST, and on the reviews where they are there, for the reviews (Fig. 8)."""
    return {"judged": with_coefficients(bench, "reviews", ("sst", "reviews"), {c: JUDGES[c] for c in CRITERIA[:3]})}


def plausible(bench: Bench) -> dict[str, Any]:
    """Agreement with people's rationales of all coefficients learned on SST, and of other methods (Table 6)."""
    judges = {"plausibility": PLAUSIBILITY}
    model, test = exegete.load(bench.base("sst"), device=None, max_length=224), first(bench.data("sst")[2], 96)
    specs = ("attention_all", "attention_last", "input_x_gradient", "random")
    specs += ("integrated_gradients?n_steps=8&baselines=zero", "lime?n_samples=64")
    others = judged(model, test, {spec: exegete.explainer(spec) for spec in specs}, judges)
    return {"judged": with_coefficients(bench, "sst", ("sst",), judges) | others}


def with_coefficients(
    bench: Bench, task: str, sources: Sequence[str], judges: dict[str, Metric]
) -> dict[str, dict[str, float]]:
    """Every set of coefficients that was learned on the sources, on the fine-tuned model of a task."""
    model = exegete.load(bench.base(task), device=None, max_length=224)
    chosen: dict[str, Explainer] = {
        f"untrained {name}": InterpretableAttention.untrained(model, **kind).to(model.device)
        for name, kind in UNTRAINED.items()
    }
    for source in sources:
        for folder in sorted((bench.folder / "coefficients").glob(f"{source}-*")):
            if "+" not in folder.name:
                chosen[folder.name] = InterpretableAttention.from_pretrained(folder).to(model.device)
    return judged(model, bench.data(task)[2], chosen, judges)


def plain(bench: Bench, task: str) -> dict[str, Any]:
    """Explanations of the fine-tuned model that nothing trained."""
    model = exegete.load(bench.base(task), device=None, max_length=224)
    test = bench.data(task)[2]
    chosen: dict[str, Explainer] = {
        f"untrained {name}": InterpretableAttention.untrained(model, **kind).to(model.device)
        for name, kind in UNTRAINED.items()
    }
    specs = ["attention_all", "attention_last", "input_x_gradient", "random"]
    if task != "squad":
        specs += ["integrated_gradients?n_steps=8&baselines=zero", "lime?n_samples=64"]
    judges = JUDGES | ({"plausibility": PLAUSIBILITY} if task == "sst" else {})
    others = judged(model, first(test, 96), {spec: exegete.explainer(spec) for spec in specs}, judges)
    found = {"task": task, "figures": scores(model, bench.scored(task))}
    return found | {"judged": judged(model, test, chosen, judges) | others}


def trained(bench: Bench, task: str, criteria: str, seed: int, **switches: bool) -> dict[str, Any]:
    """A model trained for criteria, judged on test; the paper's rates scaled to a run this short."""
    test, kind = bench.data(task)[2], UNTRAINED[KIND.get(criteria, "softmax")]
    folder = bench.folder / "work"
    shutil.rmtree(folder, ignore_errors=True)
    begun = time.process_time()
    result = fitted(bench, task, criteria, seed, **switches)
    seconds = time.process_time() - begun
    model = result.model
    untrained = InterpretableAttention.untrained(model, **kind).to(model.device)
    chosen: dict[str, Explainer] = {"untrained": untrained}
    if criteria:
        chosen["trained"] = InterpretableAttention.from_pretrained(folder / "model").to(model.device)
        if not switches:
            name = f"{task}-{criteria.replace(',', '+')}-{kind['norm']}-{seed}"
            chosen["trained"].save_pretrained(bench.folder / "coefficients" / name)
    found: dict[str, Any] = {"task": task, "criteria": criteria, "norm": kind["norm"], "seed": seed}
    found |= {"figures": scores(model, bench.scored(task)), "training seconds": round(seconds, 1)}
    judges = {name: judge for name, judge in JUDGES.items() if name == criteria or criteria not in CRITERIA}
    if task == "sst" and not switches:
        judges["plausibility"] = PLAUSIBILITY
    found["judged"] = judged(model, test, chosen, judges)
    if "simulatability" in criteria:
        found["students"] = taught(bench, task, model, chosen, seed)
    found["history"] = [logged(entry) for entry in result.history]
    shutil.rmtree(folder, ignore_errors=True)
    return found


def beside(bench: Bench, task: str, seed: int) -> dict[str, Any]:
    """The student that learns along, on the fine-tuned model, from attention that stays untrained."""
    shutil.rmtree(bench.folder / "work", ignore_errors=True)
    result = fitted(bench, task, "simulatability", seed, lr_multiplier=0.0, train_model=False)
    found = {"task": task, "seed": seed, "history": [logged(entry) for entry in result.history]}
    shutil.rmtree(bench.folder / "work", ignore_errors=True)
    return found


def along(bench: Bench, task: str, seed: int) -> dict[str, Any]:
    """The student that learns along from few data, on one model: without attention, with untrained, with trained."""
    found: dict[str, Any] = {"task": task, "seed": seed}
    for name, rates in (
        ("none", {"lr_multiplier": 0.0, "student_weight": NO_WEIGHT}),
        ("untrained", {"lr_multiplier": 0.0}),
        ("trained", {}),
    ):
        shutil.rmtree(bench.folder / "work", ignore_errors=True)
        options: dict[str, Any] = {"train_model": False, "growing": bench.size(task).again, **rates}
        result = fitted(bench, task, "simulatability", seed, **options)
        found[name] = [logged(entry) for entry in result.history]
    shutil.rmtree(bench.folder / "work", ignore_errors=True)
    return found


def fitted(
    bench: Bench, task: str, criteria: str, seed: int, growing: tuple[int, int] | None = None, **switches: Any
) -> TrainResult:
    """The fine-tuned model after the recipe; of simulatability dev is what judges students, and chooses nothing.

    `growing`: rows and epochs of simulatability alone.
    """
    train, dev, _ = bench.data(task)
    size, kind = bench.size(task), UNTRAINED[KIND.get(criteria, "softmax")]
    rate, own = map(min, zip(*(RATES[name] for name in criteria.split(",")), strict=True)) if criteria else (3e-5, 0.0)
    own = own if switches.get("train_model", True) else ALONE
    student = {"student": backbone(), **PUPIL} if "simulatability" in criteria else {}
    options = {"lr_multiplier": own / rate, "temperature": TEMPERATURE, **kind, **student, **switches}
    recipe = RECIPES["ivra"](criteria, **options) if criteria else RECIPES["baseline"]()
    simulated = criteria == "simulatability" and bench.scale == "small"
    growing = (growing or size.simulated) if simulated else None
    rows, epochs = growing or (len(train), size.epochs)
    arguments = QUIET | {
        "num_train_epochs": epochs, "learning_rate": rate, "per_device_train_batch_size": size.batch,
        "per_device_eval_batch_size": 32, "logging_steps": size.often, "eval_steps": size.often, "warmup_steps": 0,
    }  # fmt: skip
    arguments |= GROWING if growing else {}
    train, dev = first(bench.rows(task, "train"), rows), bench.teacher_outputs(task)[2] if growing else dev
    model, folder = str(bench.base(task)), bench.folder / "work" / "model"
    result = recipe.train(model, train, dev, folder, arguments=arguments, max_length=224, seed=seed)
    if not result.finished:
        raise SystemExit("stopped; the same command goes on")
    return result


def taught(bench: Bench, task: str, model: ExplainedModel, chosen: dict[str, Explainer], seed: int) -> dict[str, float]:
    """How well new students foretell the model that learned from its answers and one explanation (eq. 6 and 7)."""
    folder, (pool, dev, test) = bench.folder / "work" / "students", bench.teacher_outputs(task)
    count = bench.size(task).students
    specs = {"none": "none", "attention, all layers": "untrained"}
    for name, method in chosen.items():
        assert isinstance(method, InterpretableAttention)
        method.save_pretrained(bench.folder / "work" / name)
        specs[name] = f"interpretable_attention:{bench.folder / 'work' / name}"
    base = exegete.load(bench.base(task), device=None, max_length=224)
    found: dict[str, float] = {}
    for of, teacher, own in (
        ("own", model, specs),
        ("fine-tuned", base, {"fine-tuned, untrained": specs["untrained"]}),
    ):
        frame = students(
            backbone(), Teaching(teacher, weight=WEIGHT), pool, dev, test, folder / of,
            explainers=list(own.values()), sizes=[len(pool)], seeds=range(count * seed, count * (seed + 1)),
            arguments=STUDENT, max_length=224,
        )  # fmt: skip
        means = frame.groupby("explainer")["simulatability"].mean()
        found |= {name: round(float(means[spec]), 5) for name, spec in own.items()}
    return found


def logged(entry: dict[str, Any]) -> dict[str, Any]:
    """What tells the course of a run."""
    wanted = ("step", "epoch", "loss", *CRITERIA)
    return {
        key: value for key, value in entry.items() if key in wanted or key.startswith(("eval_criterion", "eval_acc"))
    }


def scores(model: ExplainedModel, data: Dataset) -> dict[str, float]:
    """The task's figures."""
    with torch.autocast(model.device.type, torch.bfloat16):
        return dict(performance(model, data)[0])


def judged(
    model: ExplainedModel, data: Dataset, explainers: dict[str, Explainer], judges: dict[str, Metric]
) -> dict[str, dict[str, float]]:
    """Every metric of every explanation: means over examples where it is defined."""
    rows = sorted(data, key=lambda row: len(row["text"]) + len(row.get("text_pair") or ""))
    values: dict[str, dict[str, list[torch.Tensor]]] = {name: {m: [] for m in judges} for name in explainers}
    for start in range(0, len(rows), 32):
        batch = model.encode(rows[start : start + 32])
        with model.remember(), torch.no_grad(), torch.autocast(model.device.type, torch.bfloat16):
            for name, method in explainers.items():
                found = method.attribute(model, batch)
                for column, judge in judges.items():
                    values[name][column].append(judge.judge(model, batch, found)[judge.name].cpu())
    return {n: {m: round(float(torch.cat(v).nanmean()), 5) for m, v in each.items()} for n, each in values.items()}


if __name__ == "__main__":
    main()
