"""Tasks, each with everything that differs by task."""

from __future__ import annotations

from transformers import PreTrainedModel

from expound.errors import ExpoundError, unknown
from expound.models.layers.architecture import has_head, takes_argument
from expound.models.tasks.base import Classification as Classification
from expound.models.tasks.base import Generation as Generation
from expound.models.tasks.base import MultiLabel as MultiLabel
from expound.models.tasks.base import OutputKind as OutputKind
from expound.models.tasks.base import Regression as Regression
from expound.models.tasks.base import Span as Span
from expound.models.tasks.base import Task as Task

TASKS: dict[str, type[Task]] = {task.name: task for task in (Classification, MultiLabel, Regression, Span)}


def make_task(model: PreTrainedModel, name: str | None = None) -> Task:
    """Return the task of this name; default: as the model's head and configuration say.

    Raises:
        ExpoundError: an unknown task, or no head that can be explained.
    """
    if name is not None and name not in TASKS:
        raise unknown("task", name, TASKS)
    return TASKS[name or _infer_task_name(model)]()


def _infer_task_name(model: PreTrainedModel) -> str:
    config = model.config
    if has_head(model, "ForQuestionAnswering"):
        if not takes_argument(model, "start_positions"):
            raise ExpoundError(
                f"{type(model).__name__} does not answer by a span of a text: questions about tables and images are "
                "not explained"
            )
        return "span"
    if not has_head(model, "ForSequenceClassification", "ForImageClassification"):
        raise ExpoundError(
            f"{type(model).__name__} has no head to explain: expected a class that inherits from "
            "…ForSequenceClassification, …ForQuestionAnswering or …ForImageClassification, or the task of a class of "
            f"your own: task= (--task), one of {', '.join(TASKS)}"
        )
    if config.problem_type == "multi_label_classification":
        return "multi_label"
    # transformers itself reads a single output as a regression.
    if config.problem_type == "regression" or config.num_labels == 1:
        return "regression"
    return "classification"
