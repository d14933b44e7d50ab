"""Learning to scaffold: the explainer that teaches a student best."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from datasets import Dataset

from exegete.errors import ExegeteError
from exegete.explainers import EXPLAINERS
from exegete.explainers.learned.base import CONFIG
from exegete.explainers.learned.parameterised_attention import Normaliser
from exegete.models import ExplainedModel, load
from exegete.recipes.base import Recipe
from exegete.recipes.baseline import train_companion
from exegete.training import RunOptions, TrainResult
from exegete.training.bilevel.scaffold import StudentExplainer
from exegete.training.bilevel.scaffold_trainer import ScaffoldTrainer
from exegete.training.bilevel.students import Teaching
from exegete.training.loop.starting_model import Source

STUDENT_ARGUMENTS: dict[str, Any] = {
    "optim": "sgd",
    "learning_rate": 5e-3,
    "lr_scheduler_type": "constant",
    "warmup_steps": 0,
    "weight_decay": 0.01,
    "max_grad_norm": 5.0,
    "num_train_epochs": 100,
    "per_device_train_batch_size": 32,
    "metric_for_best_model": "simulatability",
}
DEPARTURES = (
    "Logits are pooled by the model's own head, without a scalar mix of all layers.",
    "At most 100 epochs; the paper has no cap.",
    "Batches are of like length, and padded to their longest text only.",
    "Gradients of static methods are taken at word embeddings, before positions are added.",
    "The student's dropout is the model's own, after the softmax; its explainer sees clean logits.",
    "Integrated gradients have 10 points of this library's quadrature; the authors' are off by a factor.",
)


@dataclass(frozen=True, kw_only=True)
class SmatRecipe(Recipe):
    """A student learns to foretell a teacher (Fernandes et al. 2022); labels of the data are for figures only.

    `teacher`: without one, a baseline is trained first, in a folder beside the output folder, on the same data from the
    same start. `teaching`: how a student learns from it. `size`: the rows of the training data that the student gets,
    the first ones.
    """

    teacher: ExplainedModel | None = None
    teaching: Callable[[ExplainedModel], Teaching] = Teaching
    size: int | None = None

    def run(self, model: Source, train: Dataset, dev: Dataset, folder: Path, options: RunOptions) -> TrainResult:
        """Trains the student; its dev figures are against people's labels, `simulatability` against the teacher's.

        `exegete.load` takes the student from the folder, and `explainer("parameterised_attention:…/teacher_explainer")`
        the teacher's explainer.

        Raises:
            ExegeteError: as `Teaching.train_student`; a teacher whose training was stopped.
        """
        resolve_options = self.resolve_options(options, model, train)
        teacher = self.teacher
        if teacher is None:
            students = {*STUDENT_ARGUMENTS, "greater_is_better"}
            own = {name: value for name, value in options.arguments.items() if name not in students}
            asked = replace(options, arguments=own, early_stopping_patience=None, max_length=resolve_options.max_length)
            teacher = train_companion(folder, "teacher", model, train, dev, asked)
        rows = train if self.size is None else train.select(range(min(self.size, len(train))))
        return self.teaching(teacher).train_student(model, rows, dev, folder, resolve_options)


def smat(
    teacher: Annotated[
        str | None, "Folder or name of the fine-tuned model that is explained. Default: train one first."
    ] = None,
    explainer_id: Annotated[
        str,
        "What teaches: learned, none, untrained, untrained_last, any id of `exegete methods` (a learned method without"
        " a folder is the one beside the teacher), or the folder of a saved explainer.",
    ] = "learned",
    weight: Annotated[
        float | None, "β, of the explanations in the student's loss. Default: 5, for signed methods 0.2."
    ] = None,
    normaliser: Annotated[Normaliser, "What makes shares of the heads' coefficients."] = "sparsemax",
    student_explainer: Annotated[
        StudentExplainer, "What the student explains itself by; IvRA's students have interpretable_attention."
    ] = "parameterised_attention",
    lookahead: Annotated[
        bool, "Find it through a further step of the student, as the paper; else through the one it takes, for less."
    ] = True,
    meta_interval: Annotated[int, "The student's steps for each of the explainer's."] = 1,
    meta_learning_rate: Annotated[float, "The explainer's; the paper has 2e-4 for regression."] = 5e-4,
    retrain_student: Annotated[
        bool, "Then train a new student with the learned explainer held still: a cleaner comparison with static ones."
    ] = False,
    student_size: Annotated[int | None, "Rows that the student learns from, the first ones. Default: all."] = None,
) -> Recipe:
    """Learn the explainer that teaches best (SMaT): the student's success steers the teacher's attention explainer.

    --model is what the student starts from (pretrained, never the teacher itself); teacher and student share a
    tokenizer. The teacher's answers replace the labels. The folder holds the student, teacher_explainer and
    student_explainer; `exegete compare --methods parameterised_attention:FOLDER/teacher_explainer` judges the first.

    Example: exegete train smat --teacher runs/sst --student-size 500 --model bert-base-uncased --data sst:data/sst
    --output-dir runs/smat
    """
    if meta_interval < 1:
        raise ExegeteError(f"the student steps at least once for each step of the explainer, got {meta_interval}")
    return SmatRecipe(
        name="smat",
        paper="Fernandes et al. 2022",
        trainer=ScaffoldTrainer,
        teacher=None if teacher is None else load(teacher),
        teaching=partial(
            Teaching,
            explainer=_resolve_explainer(teacher, explainer_id),
            weight=weight,
            normaliser=normaliser,
            student_explainer=student_explainer,
            lookahead=lookahead,
            interval=meta_interval,
            rate=meta_learning_rate,
            retrain=retrain_student,
        ),
        size=student_size,
        arguments=STUDENT_ARGUMENTS,
        from_scratch={},
        patience=10,
        max_length=256,
        departures=DEPARTURES,
    )


def _resolve_explainer(teacher: str | None, name: str) -> str:
    """The spec of what teaches: a learned method without a folder is beside the teacher, a folder has its explainer."""
    saved = Path(name) / CONFIG
    if saved.is_file():
        return f"{json.loads(saved.read_text()).get('explainer')}:{name}"
    return f"{name}:{teacher}" if teacher and name in EXPLAINERS and EXPLAINERS[name].card.learned else name
