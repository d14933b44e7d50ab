"""SMaT (learning to scaffold): the explainer that teaches a student best."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from datasets import Dataset

from expound.errors import ExpoundError
from expound.explainers import EXPLAINERS
from expound.explainers.learned.base import CONFIG
from expound.explainers.learned.parameterized_attention import Normalizer
from expound.models import ExplainedModel, load
from expound.recipes.base import Recipe
from expound.recipes.baseline import train_companion
from expound.training import RunOptions, TrainResult
from expound.training.bilevel.scaffold import ScaffoldModule, StudentExplainer
from expound.training.bilevel.students import Teaching
from expound.training.loop.starting_model import Source

logger = logging.getLogger(__name__)
KNOWN = 0.995
"""Agreement with the teacher at the first evaluation from which on the student has nothing to learn."""
EQUATION = r"\min_{\phi} \text{loss of } S(\theta^\ast(\phi)) \text{ on held-out}"
USE = "You want the explanation that teaches a student best."
AVOID = "The student learns the task without explanations: nothing is left to gain."
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
    "Logits are those of the model's own head on one position; --scalar-mix gives it the paper's mean of all layers.",
    "At most 100 epochs; the paper has no cap.",
    "Batches group texts of similar length, and are padded to their longest text only.",
    "Gradients of static methods are taken at word embeddings, before positions are added.",
    "The student's dropout is the model's own, after the softmax; its explainer sees clean logits.",
    "Integrated gradients have 10 points of this library's quadrature; the authors' are off by a factor.",
)


@dataclass(frozen=True, kw_only=True)
class SmatRecipe(Recipe):
    """A student learns to simulate a teacher (Fernandes et al. 2022); the labels of the data are used for metrics only.

    `teacher`: the explained model; None: a baseline is trained first, in a folder beside the output folder, on the same
    data from the same start. `teaching`: how a student learns from the teacher. `size`: the student is trained on that
    many rows of the training data, the first ones; None: on all.
    """

    teacher: ExplainedModel | None = None
    teaching: Callable[[ExplainedModel], Teaching] = Teaching
    size: int | None = None

    def run(self, model: Source, train: Dataset, dev: Dataset, folder: Path, options: RunOptions) -> TrainResult:
        """Train the student. `simulatability` compares it with the teacher, the other metrics with the labels.

        `expound.load` loads the student from the folder, `explainer("parameterized_attention:…/teacher_explainer")` the
        teacher's explainer.

        Raises:
            ExpoundError: see `Teaching.train_student`; also if the training of the teacher was stopped.
        """
        if self.teacher is not None:
            _require_other_model(self.teacher, model)
        resolved = self.resolve_options(options, model, train)
        teacher = self.teacher
        if teacher is None:
            # the teacher is fine-tuned in the ordinary way: SGD, rate and epochs are the student's
            of_student = {*STUDENT_ARGUMENTS, "greater_is_better"}
            arguments = {name: value for name, value in options.arguments.items() if name not in of_student}
            teacher_options = replace(
                options, arguments=arguments, early_stopping_patience=None, max_length=resolved.max_length
            )
            teacher = train_companion(folder, "teacher", model, train, dev, teacher_options)
        rows = train if self.size is None else train.select(range(min(self.size, len(train))))
        result = self.teaching(teacher).train_student(model, rows, dev, folder, resolved)
        # A run that a signal stopped has no history yet.
        history = result.history if result.finished else []
        agreement = [entry["eval_simulatability"] for entry in history if "eval_simulatability" in entry]
        if agreement and agreement[0] >= KNOWN:
            logger.warning(
                "the student predicts as the teacher does from the first evaluation on (%.4f), so explanations had "
                "nothing to teach: start from a model that is not fine-tuned (as --model bert-base-uncased), or with "
                "fewer rows (--student-size)",
                agreement[0],
            )
        return result


def smat(
    teacher: Annotated[
        str | ExplainedModel | None,
        "Folder or name of the fine-tuned model that is explained. Default: train one first.",
    ] = None,
    explainer: Annotated[
        str,
        "Explainer of the teacher: learned, none, untrained, untrained_last, any id of `expound methods` (a learned"
        " method without a folder is the one in the teacher's folder), or the folder of a saved explainer.",
    ] = "learned",
    student_weight: Annotated[
        float | None, "β, weight of the explanations in the student's loss. Default: 5, for signed methods 0.2."
    ] = None,
    normalizer: Annotated[Normalizer, "Normalization of the heads' coefficients."] = "sparsemax",
    student_explainer: Annotated[
        StudentExplainer, "Explainer of the student; IvRA's students have interpretable_attention."
    ] = "parameterized_attention",
    lookahead: Annotated[
        bool,
        "Take the meta-gradient through a lookahead step of the student, as the paper; else through its own step, which"
        " costs less.",
    ] = True,
    interval: Annotated[int, "Student steps per step of the explainer."] = 1,
    meta_learning_rate: Annotated[float, "Learning rate of the explainer; the paper uses 2e-4 for regression."] = 5e-4,
    retrain_student: Annotated[
        bool, "Train a new student with the learned explainer fixed: a cleaner comparison with static explainers."
    ] = False,
    student_size: Annotated[int | None, "Number of training rows of the student, the first ones. Default: all."] = None,
) -> Recipe:
    """Learn the explainer that teaches a student best (SMaT): the student's success trains the teacher's explainer.

    --model is the start of the student: pretrained, and never the teacher itself; both have the same tokenizer. The
    teacher's predictions replace the labels. Explanations help students that see a hundred examples; that learned ones
    help more than plain attention is not shown, and a thousand examples take over an hour on a CPU. The folder contains
    the student, teacher_explainer and student_explainer; evaluate teacher_explainer with `expound compare
    --methods parameterized_attention:FOLDER/teacher_explainer`.

    Example: expound train smat --teacher runs/sst --student-size 500 --model bert-base-uncased --data sst:data/sst
    --output-dir runs/smat
    """
    if interval < 1:
        raise ExpoundError(f"expected an interval of at least 1, got {interval}")
    return SmatRecipe(
        name="smat",
        paper="Fernandes et al. 2022",
        module=ScaffoldModule,
        teacher=None if teacher is None else load(teacher),
        teaching=partial(
            Teaching,
            explainer=_resolve_explainer(teacher if isinstance(teacher, str) else None, explainer),
            weight=student_weight,
            normalizer=normalizer,
            student_explainer=student_explainer,
            lookahead=lookahead,
            interval=interval,
            rate=meta_learning_rate,
            retrain=retrain_student,
        ),
        size=student_size,
        arguments=STUDENT_ARGUMENTS,
        # a student from scratch keeps the paper's SGD
        from_scratch={},
        patience=10,
        max_length=256,
        departures=DEPARTURES,
    )


def _require_other_model(teacher: ExplainedModel, start: Source) -> None:
    """Raise ExpoundError if the student would start from the teacher's own weights."""
    is_same = start is teacher.model
    # A teacher of adapters has the name of the model below them, which its student may start from.
    if isinstance(start, str | Path) and not hasattr(teacher.model, "peft_config"):
        is_same = Path(start).resolve() == Path(teacher.config._name_or_path).resolve()
    if is_same:
        raise ExpoundError(
            "the student starts from the teacher itself, so there is nothing to learn: give the pretrained model as "
            "model (--model)"
        )


def _resolve_explainer(teacher: str | None, name: str) -> str:
    """Return the spec of the teacher's explainer, given as an id, or as the folder of a saved explainer."""
    config = Path(name) / CONFIG
    if config.is_file():
        return f"{json.loads(config.read_text()).get('explainer')}:{name}"
    # a learned method without a folder was saved in the folder of the teacher
    if teacher and name in EXPLAINERS and EXPLAINERS[name].card.learned:
        return f"{name}:{teacher}"
    return name
