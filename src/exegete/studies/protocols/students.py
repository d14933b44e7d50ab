"""Protocols with students: how well they foretell a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from datasets import Dataset

    from exegete.models import ExplainedModel


def measure_simulatability(
    model: ExplainedModel, data: Dataset, *, teacher: str, without: str = ""
) -> dict[str, float]:
    """How often a student foretells its teacher, without any explanation (SMaT).

    Args:
        model: the student.
        data: what both are asked; labels do not matter.
        teacher: its folder.
        without: folder of a student that was taught without explanations; then also how much of what that one gets
            wrong this one gets right.
    """
    from exegete.metrics.simulatability import simulatability_gain
    from exegete.models import load
    from exegete.training.bilevel.students import evaluate_student
    from exegete.training.bilevel.teacher_outputs import label_by_teacher

    told = label_by_teacher(load(teacher, device=model.device), data)
    found = {"simulatability": evaluate_student(model, told)["simulatability"]}
    if without:
        usual = evaluate_student(load(without, device=model.device), told)["simulatability"]
        found["simulatability_gain"] = simulatability_gain(found["simulatability"], usual)
    return found


def measure_student_simulatability(
    model: ExplainedModel,
    data: Dataset,
    *,
    explainers: Sequence[str],
    pool: Dataset,
    dev: Dataset,
    start: str,
    count: int = 4,
    weight: float | None = None,
    arguments: Mapping[str, Any] | None = None,
    max_length: int | None = None,
    folder: Path,
    seed: int,
) -> pd.DataFrame:
    """How well new students foretell a model that learned from its answers and explanations: a row a student.

    Args:
        model: the teacher.
        data: what students are examined on, without explanations.
        explainers: of the teacher, a group of students each; `none`: students that learn from answers alone.
        pool: what they learn from.
        dev: chooses among a student's epochs, where `arguments` say so.
        start: the model that students start from.
        count: students for each explainer, whose seeds no other seed of the study has.
        weight: β, of the explanations; default: SMaT's.
        arguments: of the Trainer.
        max_length: tokens that a text may have.
        folder: keeps finished students.
        seed: of the run.
    """
    from exegete.training.bilevel.students import Teaching, train_students

    seeds = range(count * seed, count * (seed + 1))
    rows = train_students(
        start, Teaching(model, weight=weight), pool, dev, data, folder, explainers=explainers, sizes=[len(pool)],
        seeds=seeds, arguments=_quiet_arguments(model) | dict(arguments or {}),
        max_length=max_length,
    )  # fmt: skip
    found = rows.rename(columns={"explainer": "method", "seed": "example"})
    return found[["example", "method", "simulatability"]]


def headroom(
    model: ExplainedModel,
    data: Dataset,
    *,
    pool: Dataset,
    dev: Dataset,
    start: str,
    settings: int = 30,
    count: int = 4,
    judged: int = 8,
    spread: float = 2.0,
    weight: float | None = None,
    arguments: Mapping[str, Any] | None = None,
    max_length: int | None = None,
    folder: Path,
) -> dict[str, float]:
    """How much better than untrained coefficients of IvRA's attention the best of many drawn ones teach students.

    Args:
        model: the teacher, which stays what it is.
        data: what the best setting's students are examined on; it chooses nothing.
        pool: what students learn from.
        dev: chooses among settings.
        start: the model that students start from.
        settings: how many are drawn.
        count: students of each.
        judged: new students of the best one, and of the untrained one.
        spread: of the drawn λ and η around 1.
        weight: β, of the explanations; default: SMaT's.
        arguments: of the Trainer.
        max_length: tokens that a text may have.
        folder: keeps finished students.
    """
    from exegete.studies.protocols.headroom import CoefficientSearch
    from exegete.studies.protocols.headroom import headroom as found
    from exegete.training import RunOptions
    from exegete.training.bilevel.students import Teaching

    options = RunOptions(arguments=_quiet_arguments(model) | dict(arguments or {}), max_length=max_length)
    teaching = Teaching(model, weight=weight).with_max_length(max_length)
    search = CoefficientSearch(teaching, start, folder, options, spread, {"normaliser": "softmax"})
    return found(search, pool, dev, data, settings, count, judged)


def _quiet_arguments(model: ExplainedModel) -> dict[str, Any]:
    """Arguments of the Trainer for students that nothing is chosen or kept of."""
    return {
        "disable_tqdm": True,
        "use_cpu": model.device.type == "cpu",
        "save_strategy": "no",
        "eval_strategy": "no",
        "load_best_model_at_end": False,
    }
