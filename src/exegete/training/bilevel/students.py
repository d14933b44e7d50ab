"""Students of a frozen teacher: one, or one for every explainer, size and seed, and how well they foretell it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from datasets import Dataset
from torch import Tensor

from exegete.data.provenance import digest, write_json
from exegete.errors import ExegeteError
from exegete.explainers import Explainer
from exegete.explainers.base import describe_explainer
from exegete.explainers.learned.learned_attention import mean_head_logits
from exegete.explainers.learned.parameterised_attention import Normaliser, ParameterisedAttention
from exegete.metrics.simulatability import simulatability
from exegete.models import Batch, Capture, ExplainedModel
from exegete.models.loading.digest import digest_weights
from exegete.objectives import CrossEntropy, Objective
from exegete.training.bilevel.scaffold import (
    LAST,
    LEARNED,
    NONE,
    Scaffolding,
    StudentExplainer,
    default_weight,
    make_static_explainer,
    normalize_scores,
)
from exegete.training.bilevel.scaffold_trainer import ScaffoldTrainer
from exegete.training.bilevel.teacher_outputs import (
    ROW,
    compare_form,
    get_teacher_answers,
    label_by_teacher,
    predict_answers,
    restore_gold,
    teacher_outputs,
)
from exegete.training.loop import evaluation
from exegete.training.loop.execute import TrainResult
from exegete.training.loop.fine_tune import fine_tune
from exegete.training.loop.options import RunOptions
from exegete.training.loop.run import vocabulary_digest
from exegete.training.loop.starting_model import Source, align_labels, is_from_scratch

FIGURES_FILE = "student.json"


@dataclass(frozen=True)
class Teaching:
    """How a student learns from a teacher.

    Args:
        teacher: frozen; nothing of it changes.
        explainer: `none`, `learned` (SMaT), or a static one, see `scaffold.make_static_explainer`.
        weight: β; default: 5, for signed methods 0.2.
        normaliser: of the heads' coefficients, of the teacher's and the student's explainer.
        own: the student's explainer, see `Scaffolding`.
        lookahead: whether it is through a further step of the student, see `Scaffolding`.
        interval: the student's steps for each of the teacher's explainer.
        rate: the outer learning rate.
        retrain: after the teacher's explainer is learned, a new student learns from it as from a static one.
    """

    teacher: ExplainedModel
    explainer: str = LEARNED
    weight: float | None = None
    normaliser: Normaliser = "sparsemax"
    student_explainer: StudentExplainer = "parameterised_attention"
    lookahead: bool = True
    interval: int = 1
    rate: float = 5e-4
    retrain: bool = False

    def train_student(
        self, model: Source, train: Dataset, dev: Dataset, folder: Path, options: RunOptions
    ) -> TrainResult:
        """Trains one student into a folder; its labels in both splits are the teacher's answers.

        Beside it lie `student_explainer` and, where it learned, `teacher_explainer`. With `retrain` the student that
        the explainer learned with lies in a folder beside, whose name ends with `-learned`.

        Raises:
            ExegeteError: a student with another vocabulary, a teacher that says the same of all dev data in a
                regression; else as `fine_tune`.
        """
        if self.retrain and self.explainer == LEARNED:
            beside = folder.with_name(f"{folder.name}-learned")
            first = replace(self, retrain=False).train_student(deepcopy(model), train, dev, beside, options)
            first.require_finished("learning the explainer")
            return self.with_learned_explainer(first.folder).train_student(model, train, dev, folder, options)
        alike = self.with_max_length(options.max_length)
        return alike.run(model, alike.label_data(train), alike.label_data(dev), folder, options)

    def run(
        self,
        model: Source,
        train: Dataset,
        dev: Dataset,
        folder: Path,
        options: RunOptions,
        objectives: Sequence[Objective] | None = None,
    ) -> TrainResult:
        """As `train_student`, from data labelled by the teacher; `objectives`: made of data that contains `train`."""
        _require_varied(self.teacher, dev)
        if is_from_scratch(model):
            options = options.fill_defaults({}, processing_class=self.teacher.processing_class)
        folder.parent.mkdir(parents=True, exist_ok=True)
        terms = self.make_objectives(train, folder.parent) if objectives is None else objectives
        return fine_tune(model, train, dev, folder, objectives=terms, trainer=ScaffoldTrainer, options=options)

    def with_max_length(self, max_length: int | None) -> Teaching:
        """With a teacher that cuts texts where the student does."""
        return self if max_length is None else replace(self, teacher=self.teacher.with_max_length(max_length))

    def label_data(self, data: Dataset) -> Dataset:
        """The data as a student sees it, see `teacher_outputs.label_data`; what is so already stays."""
        return data if ROW in data.column_names else label_by_teacher(self.teacher, data)

    def make_objectives(self, data: Dataset, folder: Path | None = None) -> tuple[Objective, ...]:
        """L_sim, and what the teacher's explanations of this data add; they are computed here, and only here.

        Raises:
            ExegeteError: the explainer shall be learned, and the student has not its kind.
        """
        if self.explainer == NONE or self.weight == 0:
            return (CrossEntropy(),)
        learns = self.explainer == LEARNED
        if learns and self.student_explainer != "parameterised_attention":
            raise ExegeteError(
                f"an explainer is learned through a student's parameterised_attention, not {self.student_explainer}"
            )
        method = make_static_explainer("untrained" if learns else self.explainer, self.teacher, self.normaliser)
        if isinstance(method, torch.nn.Module):
            method.to(self.teacher.device)
        say = partial(_compute_head_logits if learns else _compute_explanations, self.teacher, method)
        scaffolding = Scaffolding(
            method=self.explainer,
            teacher_outputs=teacher_outputs(self.teacher, data, say, folder),
            teacher=method if learns and isinstance(method, ParameterisedAttention) else None,
            weight=default_weight(method) if self.weight is None else self.weight,
            normaliser=self.normaliser,
            student_explainer=self.student_explainer,
            layers="last" if _uses_last_layer(self.explainer, method) else "all",
            special_tokens=getattr(method, "special_tokens", True),
            lookahead=self.lookahead,
            interval=self.interval,
            rate=self.rate,
            source=digest([digest_weights(self.teacher.model), describe_explainer(method)]),
            vocabulary=vocabulary_digest(self.teacher.processing_class),
        )
        return CrossEntropy(), scaffolding

    def with_learned_explainer(self, folder: Path) -> Teaching:
        """With the explainer that a run learned, as a static one."""
        return replace(self, explainer=f"parameterised_attention:{folder / 'teacher_explainer'}", retrain=False)


def evaluate_student(model: ExplainedModel, data: Dataset) -> dict[str, float]:
    """A student's figures on taught data, without explanations: `simulatability`, and the task's against people's."""
    data, task = align_labels(model, data), model.task.name
    predicted = predict_answers(model, data)
    gold = restore_gold(data)
    figures = {} if gold is None else evaluation.score(task, predicted, gold)
    return {"simulatability": simulatability(task, compare_form(task, predicted), get_teacher_answers(data))} | figures


def train_students(
    model: Source,
    teaching: Teaching,
    pool: Dataset,
    dev: Dataset,
    test: Dataset,
    output_dir: str | Path,
    *,
    explainers: Sequence[str],
    sizes: Sequence[int],
    seeds: Sequence[int],
    options: RunOptions | None = None,
    **given: Any,
) -> pd.DataFrame:
    """A student for every explainer, size and seed: a row each, with its figures on the test split.

    The first `size` rows of the pool are its training data, whatever the seed. What is finished is kept, the same call
    goes on. The teacher is asked once a split and explainer.

    Args:
        model: what every student starts from; never the teacher's own weights.
        teaching: the teacher and the settings that all students share.
        pool: rows to learn from.
        dev: chooses the best student, and is the outer problem's data.
        test: is looked at once a student.
        output_dir: a folder a student.
        explainers: as `Teaching.explainer`.
        sizes: numbers of rows.
        seeds: of the students.
        options: of all runs.
        given: single options by name, on top of these.
    """
    options = RunOptions.with_overrides(options, given)
    teaching = teaching.with_max_length(options.max_length)
    train, chosen_on, last = (teaching.label_data(data) for data in (pool, dev, test))
    if max(sizes) > len(train):
        raise ExegeteError(f"the pool has {len(train)} rows, fewer than {max(sizes)}")
    rows = []
    for name in explainers:
        one, terms = replace(teaching, explainer=name), None
        for size, seed in ((size, seed) for size in sizes for seed in seeds):
            folder = Path(output_dir) / f"{_to_file_name(name)}-{size}-{seed}"
            if not (folder / FIGURES_FILE).exists():
                Path(output_dir).mkdir(parents=True, exist_ok=True)
                terms = terms or one.make_objectives(train, Path(output_dir))
                data = train.select(range(size)), chosen_on
                result = one.run(deepcopy(model), *data, folder, replace(options, seed=seed), terms)
                result.require_finished("the students' training")
                write_json(folder / FIGURES_FILE, evaluate_student(result.model, last) | {"steps": result.steps})
            found = json.loads((folder / FIGURES_FILE).read_text(encoding="utf-8"))
            rows.append({"explainer": name, "size": size, "seed": seed, **found})
    return pd.DataFrame(rows)


def _compute_head_logits(teacher: ExplainedModel, method: Explainer, batch: Batch) -> Tensor:
    """[B, N·H, L], which the coefficients are applied to."""
    with teacher.evaluation_mode():
        outputs = teacher(batch, capture=Capture(heads=True, heads_only=True))
    return mean_head_logits(teacher, batch, outputs).flatten(1, 2)


def _compute_explanations(teacher: ExplainedModel, method: Explainer, batch: Batch) -> Tensor:
    """[B, 1, L] of the teacher's own answer."""
    return normalize_scores(
        method, method.explain(teacher, batch, special_tokens=True).scores.detach(), batch.attended
    )[:, None]


def _uses_last_layer(name: str, method: Explainer) -> bool:
    return name in LAST or (isinstance(method, ParameterisedAttention) and method.layers == "last")


def _require_varied(teacher: ExplainedModel, chosen_on: Dataset) -> None:
    if teacher.task.name == "regression" and np.ptp(get_teacher_answers(chosen_on)) == 0:
        raise ExegeteError(
            "the teacher gives every row of the dev data the same value: no correlation with it is defined, and there "
            "is nothing to foretell"
        )


def _to_file_name(name: str) -> str:
    """A name for a folder."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)
