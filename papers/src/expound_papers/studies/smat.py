"""Fernandes et al. 2022, Learning to Scaffold: Optimizing Model Explanations for Teaching.

A teacher is trained, and a student for each explainer of the teacher; students are examined on how often they answer as
the teacher does. A static explainer is what the learned one starts from: the mean of all heads' logits, or of the last
layer's. `SMaT, then a new student` has a new student of the explainer that was learned: what static explainers are
compared with fairly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from expound_papers.study import Data, Model, Runs, Study, Training

STATIC = {
    "No Explainer": "none",
    "Gradient × Input": "input_x_gradient",
    "Integrated Gradients": "integrated_gradients",
    "Attention (all layers)": "untrained",
    "Attention (last layer)": "untrained_last",
}
LEARNED, AGAIN = "Attention (SMaT)", "SMaT, then a new student"
EXPLAINERS = {
    "Grad × Input": "input_x_gradient",
    "Integrated Grad.": "integrated_gradients?n_steps=50&baselines=zero",
    "Attn (all layers)": "parameterized_attention?untrained",
    "Attn (last layer)": "parameterized_attention?untrained&used_layers=last",
}
ATTN_SMAT = {"Attn (SMaT)": "parameterized_attention:{run}/teacher_explainer"}
SEEDS, OTHER_SEEDS = [0, 9, 11, 30, 69], [1, 2, 3, 4, 5, 6, 7, 8, 10, 12]
TEACHER = {
    "learning_rate": 5e-5, "weight_decay": 0.01, "warmup_steps": 500, "lr_scheduler_type": "constant_with_warmup",
    "num_train_epochs": 20, "per_device_train_batch_size": 16, "metric_for_best_model": "accuracy",
}  # fmt: skip
BATCH = {"per_device_train_batch_size": 16}


@dataclass
class Task:
    """The data and models of one task, and how students of all explainers (or of one) are trained."""

    study: Study
    model: Model
    exam: Data
    teacher: Runs
    pools: Sequence[Training]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    patience: int | None = None
    start: Runs | None = None
    of_smat: Mapping[str, Any] = field(default_factory=dict)
    steps: int | None = None
    gradient_seeds: Sequence[int] | None = None
    runs: dict[str, Runs] = field(default_factory=dict)

    def train(self, *names: str, pool: str | None = None) -> list[Runs]:
        """Train students by the names of their explainers."""
        for name in names:
            if name == AGAIN:
                (learned,) = self.train(LEARNED, pool=pool)
                self.add(name, pool, explainer=learned.folder("teacher_explainer"))
            elif name == LEARNED and name not in self.runs:
                self.add(name, pool, explainer="learned", **self.of_smat)
            elif name == "Integrated Gradients" and self.steps:
                self.add(name, pool, explainer=f"integrated_gradients?n_steps={self.steps}")
            elif name in STATIC:
                self.add(name, pool, explainer=STATIC[name])
        return [self.runs[name] for name in names]

    def add(self, name: str, pool: str | None = None, **parameters: Any) -> Runs:
        """Train students on each pool, or on one."""
        pools = [each for each in self.pools if pool in (None, each.name)]
        seeds = self.gradient_seeds if "Grad" in name else None
        self.runs[name] = self.study.train(
            name, "smat", pools, self.model, start=self.start, seeds=seeds, arguments=self.arguments,
            patience=self.patience, teacher=self.teacher, **parameters,
        )  # fmt: skip
        return self.runs[name]

    def examine(self, *names: str) -> None:
        """Train students and judge how often they answer as the teacher does."""
        self.study.judge(
            "simulatability", self.train(*names), self.exam, protocol="simulatability", teacher=self.teacher
        )

    def add_table(self, name: str, caption: str, **fields: Any) -> None:
        """Add a table of simulatability."""
        fields = {"scale": 100, "decimals": 2, "where": {"dataset": "exam"}, **fields}
        self.study.table(
            name, caption, rows="recipe", columns="training", metrics="simulatability", show="median [25–75]", **fields
        )


def train_teacher(
    study: Study, model: Model, data: Training, patience: int | None, arguments: Mapping[str, Any], **how: Any
) -> Runs:
    """Train the teacher with one seed."""
    how = {"seeds": [0]} | how
    return study.train("Teacher", "baseline", data, model, patience=patience, arguments={**TEACHER, **arguments}, **how)


def make_pools(data: Mapping[str, Data], dev: Data) -> list[Training]:
    """Return the training data of students, by size."""
    return [Training(name, pool, dev) for name, pool in data.items()]


def add_coefficients(study: Study, name: str) -> None:
    """Add the figure of the learned explainer's coefficients."""
    caption = "Head coefficients λ of the teacher's explainer, mean over seeds"
    study.figure(name, "coefficients", caption, where={"explainer": [*ATTN_SMAT]})
