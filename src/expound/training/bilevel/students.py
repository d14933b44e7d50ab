"""Trains a student of a frozen teacher and measures its simulatability."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from expound.data.provenance import digest
from expound.errors import ExpoundError
from expound.explainers import Explainer
from expound.explainers.base import describe_explainer
from expound.explainers.learned.learned_attention import mean_head_logits
from expound.explainers.learned.parameterized_attention import Normalizer, ParameterizedAttention
from expound.metrics.simulatability import simulatability
from expound.models import Batch, Capture, ExplainedModel
from expound.models.loading.checkpoint import digest_weights
from expound.objectives import CrossEntropy, Objective
from expound.training.bilevel.scaffold import (
    LAST,
    LEARNED,
    NONE,
    ROW,
    Scaffolding,
    ScaffoldModule,
    StudentExplainer,
    compare_form,
    get_teacher_predictions,
    label_by_teacher,
    make_static_explainer,
    normalize_scores,
    predict_dataset,
    restore_gold,
    teacher_outputs,
)
from expound.training.loop import evaluation
from expound.training.loop.fine_tune import fine_tune
from expound.training.loop.lora import share_frozen_weights
from expound.training.loop.options import RunOptions
from expound.training.loop.run import vocabulary_digest
from expound.training.loop.starting_model import Source, align_labels, is_from_scratch
from expound.training.loop.trainer import TrainResult


@dataclass(frozen=True)
class Teaching:
    """The settings by which a student learns from a teacher.

    Args:
        teacher: the teacher, which is not changed.
        explainer: `none`, `learned` (SMaT), or a static explainer, see `make_static_explainer`.
        weight: β. Default: 5, or 0.2 for signed methods.
        normalizer: how both explainers normalize the coefficients of heads.
        own: the student's explainer, see `Scaffolding`.
        lookahead: whether the meta-gradient is taken through a further step, see `Scaffolding`.
        interval: number of inner steps per outer step.
        rate: the outer learning rate.
        retrain: whether a new student is trained with the learned explainer held fixed.
    """

    teacher: ExplainedModel
    explainer: str = LEARNED
    weight: float | None = None
    normalizer: Normalizer = "sparsemax"
    student_explainer: StudentExplainer = "parameterized_attention"
    lookahead: bool = True
    interval: int = 1
    rate: float = 5e-4
    retrain: bool = False

    def train_student(
        self, model: Source, train: Dataset, dev: Dataset, folder: Path, options: RunOptions
    ) -> TrainResult:
        """Train one student into a folder; its labels in both splits are the teacher's predictions.

        The folder also gets `student_explainer` and, if it is learned, `teacher_explainer`. With `retrain` the first
        student, with which the explainer was learned, is kept in a folder whose name ends with `-learned`.

        Raises:
            ExpoundError: the student has another vocabulary, or a regression's teacher gives all dev data the same
                value; else as `fine_tune`.
        """
        if self.retrain and self.explainer == LEARNED:
            # Handed-over models are trained in place, so each student starts from a copy.
            beside = folder.with_name(f"{folder.name}-learned")
            first = replace(self, retrain=False).train_student(deepcopy(model), train, dev, beside, options)
            first.require_finished("learning the explainer")
            learned = f"parameterized_attention:{first.output_dir / 'teacher_explainer'}"
            second = replace(self, explainer=learned, retrain=False)
            return second.train_student(model, train, dev, folder, options)
        teaching = self.with_max_length(options.max_length)
        return teaching.run(model, teaching.label_data(train), teaching.label_data(dev), folder, options)

    def run(
        self,
        model: Source,
        train: Dataset,
        dev: Dataset,
        folder: Path,
        options: RunOptions,
        objectives: Sequence[Objective] | None = None,
    ) -> TrainResult:
        """Train a student on data labeled by the teacher; `objectives` may be made of more data than `train`."""
        if self.teacher.task.predicts_number and np.ptp(get_teacher_predictions(dev)) == 0:
            raise ExpoundError(
                "the teacher gives every row of the dev data the same value, with which no correlation is defined: "
                "give other dev data, or another teacher"
            )
        if is_from_scratch(model):
            # A student reads the teacher's tokens; a tokenizer made from the data would have others.
            options = options.fill_defaults({}, processing_class=self.teacher.processing_class)
        if options.early_stopping_patience is not None:
            # SMaT's code stops after patience + 1 bad epochs.
            options = replace(options, early_stopping_patience=options.early_stopping_patience + 1)
        folder.parent.mkdir(parents=True, exist_ok=True)
        terms = self.make_objectives(train, folder.parent) if objectives is None else objectives

        def prepare(student: ExplainedModel) -> Sequence[Objective]:
            # With adapters a student of its teacher's own base costs its adapters alone.
            student.model.to(self.teacher.device)
            share_frozen_weights(student.model, self.teacher.model, fixed=True)
            return terms

        return fine_tune(model, train, dev, folder, objectives=prepare, module=ScaffoldModule, options=options)

    def with_max_length(self, max_length: int | None) -> Teaching:
        """Return a copy whose teacher truncates texts at the student's maximum length."""
        if max_length is None:
            return self
        return replace(self, teacher=self.teacher.with_max_length(max_length))

    def label_data(self, data: Dataset) -> Dataset:
        """Return the data labeled by the teacher, see `label_by_teacher`; labeled data is returned unchanged."""
        if ROW in data.column_names:
            return data
        return label_by_teacher(self.teacher, data)

    def make_objectives(self, data: Dataset, folder: Path | None = None) -> tuple[Objective, ...]:
        """Return the student's objectives: L_sim and, with explanations, the scaffolding term.

        The teacher's explanations of the data are computed in this call; `folder` keeps them until the process ends.

        Raises:
            ExpoundError: a learned explainer whose student has an explainer of another type.
        """
        if self.explainer == NONE or self.weight == 0:
            return (CrossEntropy(),)
        learns = self.explainer == LEARNED
        if learns and self.student_explainer != "parameterized_attention":
            raise ExpoundError(
                f"an explainer is learned through a student's parameterized_attention, not {self.student_explainer}"
            )
        name, compute_values = self.explainer, _compute_explanations
        if learns:
            name, compute_values = "untrained", _compute_head_logits
        method = make_static_explainer(name, self.teacher, self.normalizer)
        if isinstance(method, torch.nn.Module):
            method.to(self.teacher.device)
        used_layers: Literal["all", "last"] = "all"
        if self.explainer in LAST or (isinstance(method, ParameterizedAttention) and method.used_layers == "last"):
            used_layers = "last"
        # SMaT, §5: gradients weigh less than attention.
        usual = 0.2 if method.signed else 5.0
        weight = usual if self.weight is None else self.weight
        compute = partial(compute_values, self.teacher, method)
        scaffolding = Scaffolding(
            method=self.explainer,
            teacher_outputs=teacher_outputs(self.teacher, data, compute, folder),
            teacher=method if learns and isinstance(method, ParameterizedAttention) else None,
            weight=weight,
            normalizer=self.normalizer,
            student_explainer=self.student_explainer,
            used_layers=used_layers,
            special_tokens=getattr(method, "special_tokens", True),
            lookahead=self.lookahead,
            interval=self.interval,
            rate=self.rate,
            source=digest([digest_weights(self.teacher.model), describe_explainer(method)]),
            vocabulary=vocabulary_digest(self.teacher.processing_class),
        )
        return CrossEntropy(), scaffolding


def evaluate_student(model: ExplainedModel, data: Dataset) -> dict[str, float]:
    """Return a student's `simulatability` on labeled data, and the task's figures against people's labels."""
    data, task = align_labels(model, data), model.task
    predicted, gold = predict_dataset(model, data), restore_gold(data)
    figures = {
        "simulatability": simulatability(task.name, compare_form(task, predicted), get_teacher_predictions(data))
    }
    if gold is not None:
        figures |= evaluation.score(task.name, predicted, gold)
    return figures


def _compute_head_logits(teacher: ExplainedModel, method: Explainer, batch: Batch) -> Tensor:
    """Return the heads' mean attention logits [B, N·H, L], which learned coefficients mix."""
    with teacher.evaluation_mode():
        outputs = teacher(batch, capture=Capture(heads=True, heads_only=True))
    return mean_head_logits(teacher, batch, outputs).flatten(1, 2)


def _compute_explanations(teacher: ExplainedModel, method: Explainer, batch: Batch) -> Tensor:
    """Return the explanation of the teacher's own prediction [B, 1, L], a distribution over positions."""
    return normalize_scores(
        method, method.explain(teacher, batch, special_tokens=True).scores.detach(), batch.attended
    )[:, None]
