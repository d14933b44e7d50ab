"""Protocols with student models: how well students predict a teacher's answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from datasets import Dataset

    from expound.models import ExplainedModel


def measure_simulatability(
    model: ExplainedModel, data: Dataset, *, teacher: str, without: str = ""
) -> dict[str, float]:
    """Measure simulability: how often a student gives the same answer as its teacher (SMaT).

    Args:
        model: the student; it sees no explanations here.
        data: the inputs; labels do not matter.
        teacher: folder of the teacher.
        without: folder of a student that was trained without explanations. If given, also returns the share of its
            errors that this student avoids.
    """
    from expound.metrics.simulatability import simulatability_gain
    from expound.models import load
    from expound.training.bilevel.scaffold import label_by_teacher
    from expound.training.bilevel.students import evaluate_student

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
    """Train new students on a model's answers and explanations and measure their simulability, one row per student.

    Args:
        model: the teacher.
        data: test inputs, on which students see no explanations.
        explainers: explainers of the teacher, each for its own group of students; `none`: answers alone.
        pool: training inputs of the students.
        dev: inputs for choosing among a student's epochs, if `arguments` evaluate epochs.
        start: the model that students start from.
        count: number of students per explainer.
        weight: weight β of the explanation loss; default: SMaT's.
        arguments: arguments of the Trainer.
        max_length: maximum number of tokens per text.
        folder: keeps finished students.
        seed: seed of the run.
    """
    from expound.training import RunOptions
    from expound.training.bilevel.students import Teaching
    from expound_papers.protocols.train_students import train_students

    # Students of different runs get different seeds.
    seeds = range(count * seed, count * (seed + 1))
    options = RunOptions(arguments=_quiet_arguments(model) | dict(arguments or {}), max_length=max_length)
    rows = train_students(start, Teaching(model, weight=weight), (pool, dev, data), folder, explainers, seeds, options)
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
    """Measure how much better the best of many random settings of IvRA's attention teaches students than the untrained.

    Args:
        model: the teacher; it is not trained.
        data: test inputs for new students of the best setting, not used to choose it.
        pool: training inputs of the students.
        dev: inputs on which the best setting is chosen.
        start: the model that students start from.
        settings: number of random settings.
        count: number of students per setting.
        judged: number of new students of the best setting, and of the untrained one.
        spread: standard deviation of the random λ and η around 1.
        weight: weight β of the explanation loss; default: SMaT's.
        arguments: arguments of the Trainer.
        max_length: maximum number of tokens per text.
        folder: keeps finished students.
    """
    from expound.training import RunOptions
    from expound.training.bilevel.students import Teaching
    from expound_papers.protocols.headroom import CoefficientSearch
    from expound_papers.protocols.headroom import headroom as found

    options = RunOptions(arguments=_quiet_arguments(model) | dict(arguments or {}), max_length=max_length)
    teaching = Teaching(model, weight=weight).with_max_length(max_length)
    search = CoefficientSearch(teaching, start, folder, options, spread, {"normalizer": "softmax"})
    return found(search, pool, dev, data, settings, count, judged)


def _quiet_arguments(model: ExplainedModel) -> dict[str, Any]:
    """Return arguments of the Trainer for students without evaluation and checkpoints."""
    return {
        "disable_tqdm": True,
        "use_cpu": model.device.type == "cpu",
        "save_strategy": "no",
        "eval_strategy": "no",
        "load_best_model_at_end": False,
    }
