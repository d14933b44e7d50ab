"""How much better than untrained coefficients any setting teaches: a search by drawing, judged on other data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from numpy.typing import NDArray

from exegete.data.provenance import write_json
from exegete.errors import ExegeteError
from exegete.explainers.learned.interpretable_attention import InterpretableAttention
from exegete.models import ExplainedModel
from exegete.training.bilevel.students import Teaching
from exegete.training.bilevel.teacher_outputs import compare_form, get_teacher_answers, predict_answers
from exegete.training.loop.options import RunOptions
from exegete.training.loop.starting_model import Source, align_labels

UNTRAINED = 0
ANSWERS = "right.json"


@dataclass(frozen=True)
class CoefficientSearch:
    """Settings of λ and η of `interpretable_attention` on a frozen model, and students that learn from each.

    Args:
        teaching: the model, and how students learn from its answers and explanations.
        start: what students start from.
        folder: keeps settings and what finished students got right; the same search goes on.
        options: of the students' runs.
        spread: the standard deviation of drawn coefficients around the untrained 1.
        attention: parameters of the explainer.
    """

    teaching: Teaching
    start: Source
    folder: Path
    options: RunOptions
    spread: float = 2.0
    attention: Mapping[str, Any] | None = None

    def setting(self, number: int) -> Path:
        """The folder of a setting: 0 is untrained, others are drawn by their number."""
        folder = self.folder / f"setting-{number}"
        if not folder.exists():
            single = InterpretableAttention.for_model(self.teaching.teacher, **(self.attention or {}))
            generator = torch.Generator().manual_seed(number)
            with torch.no_grad():
                for value in (single.head_coefficients, single.layer_coefficients):
                    value.add_(torch.randn(value.shape, generator=generator), alpha=self.spread * (number > UNTRAINED))
            single.save_pretrained(folder)
        return folder

    def right(self, number: int, seeds: Sequence[int], pool: Dataset, asked: Dataset, name: str) -> NDArray[np.bool_]:
        """[S, N] Which of the rows asked each new student of a setting answers as the model does.

        `pool` and `asked` as `teacher_outputs.label_by_teacher` makes them; `name`: of the rows asked, for files.
        """
        method = f"interpretable_attention:{self.setting(number)}"
        one, terms, found = replace(self.teaching, explainer=method), None, []
        for seed in seeds:
            folder = self.folder / f"student-{number}-{seed}-{name}"
            if not (folder / ANSWERS).exists():
                terms = terms or one.make_objectives(pool, self.folder)
                run = one.run(deepcopy(self.start), pool, pool, folder, replace(self.options, seed=seed), terms)
                run.require_finished("the students' training")
                write_json(folder / ANSWERS, match_teacher(run.model, asked).tolist())
            found.append(json.loads((folder / ANSWERS).read_text(encoding="utf-8")))
        return np.array(found)


def match_teacher(student: ExplainedModel, asked: Dataset) -> NDArray[np.bool_]:
    """[N] Which rows of taught data a student answers as its teacher does."""
    asked = align_labels(student, asked)
    equal = compare_form(student.task.name, predict_answers(student, asked)) == get_teacher_answers(asked)
    alike: NDArray[np.bool_] = equal.reshape(len(asked), -1).all(1)
    return alike


def headroom(
    search: CoefficientSearch,
    pool: Dataset,
    dev: Dataset,
    test: Dataset,
    settings: int = 30,
    count: int = 4,
    judged: int = 8,
) -> dict[str, float]:
    """The drawn setting whose students agree most on dev, judged on test by new students against the untrained one.

    `headroom`: its gain in agreement, with a 95 % interval by a paired bootstrap over rows and students; on dev, where
    it was chosen, `headroom_chosen`; `simulatability` is the untrained setting's on test.

    Raises:
        ExegeteError: fewer than one setting or student, or a regression, whose values nobody foretells exactly.
    """
    if search.teaching.teacher.task.name == "regression":
        raise ExegeteError("headroom counts answers that are foretold: it does not apply to a regression")
    if min(settings, count, judged) < 1:
        raise ExegeteError("a search has a setting to draw and students to learn from it")
    pool, dev, test = (search.teaching.label_data(data) for data in (pool, dev, test))
    tries = {
        number: search.right(number, range(count), pool, dev, "dev").mean() for number in range(UNTRAINED, settings + 1)
    }
    best = max((number for number in tries if number > UNTRAINED), key=lambda number: tries[number])
    seeds = range(count, count + judged)
    chosen, usual = (search.right(number, seeds, pool, test, "test") for number in (best, UNTRAINED))
    low, high = interval(chosen, usual)
    return {
        "simulatability": float(usual.mean()),
        "headroom": float(chosen.mean() - usual.mean()),
        "headroom_low": low,
        "headroom_high": high,
        "headroom_chosen": float(tries[best] - tries[UNTRAINED]),
    }


def interval(
    one: NDArray[np.bool_], other: NDArray[np.bool_], resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """The 95 % interval of the mean of one − other [S, N], students and rows drawn again, both in pairs."""
    difference, random = one.astype(float) - other.astype(float), np.random.default_rng(seed)
    students, rows = difference.shape
    means = []
    for _ in range(resamples):
        weights = np.bincount(random.integers(rows, size=rows), minlength=rows) / rows
        means.append((difference @ weights)[random.integers(students, size=students)].mean())
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
