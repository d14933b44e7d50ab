"""The headroom of learned coefficients: how much better the best random setting teaches than the untrained one."""

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

from expound.data.provenance import write_json
from expound.errors import ExpoundError
from expound.explainers.learned.interpretable_attention import InterpretableAttention
from expound.models import ExplainedModel
from expound.training.bilevel.scaffold import compare_form, get_teacher_predictions, predict_dataset
from expound.training.bilevel.students import Teaching
from expound.training.loop.options import RunOptions
from expound.training.loop.starting_model import Source, align_labels

UNTRAINED = 0
ANSWERS = "right.json"


@dataclass(frozen=True)
class CoefficientSearch:
    """A random search over the coefficients λ and η of `interpretable_attention` of a frozen model.

    Args:
        teaching: the teacher, and how students learn from its answers and explanations.
        start: the model that students start from.
        folder: keeps the settings and the answers of finished students; the same search resumes from it.
        options: options of the students' training runs.
        spread: standard deviation of the random coefficients around their untrained value, 1.
        attention: parameters of the explainer.
    """

    teaching: Teaching
    start: Source
    folder: Path
    options: RunOptions
    spread: float = 2.0
    attention: Mapping[str, Any] | None = None

    def setting(self, number: int) -> Path:
        """Return the folder of a setting: number 0 is untrained, others are random with their number as the seed."""
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
        """Return which of N examples each of S new students answers as the teacher does, [S, N].

        `pool` and `asked` are labeled by the teacher (`teacher_outputs.label_by_teacher`); `name` is that of `asked`,
        for file names.
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
    """Return which examples a student answers as its teacher does, [N]."""
    asked = align_labels(student, asked)
    equal = compare_form(student.task, predict_dataset(student, asked)) == get_teacher_predictions(asked)
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
    """Choose the random setting with the best students on dev, and compare it with the untrained one on test.

    Returns `headroom`, the gain in simulability of new students on test, with a 95 % interval by a paired bootstrap
    over examples and students (`headroom_low`, `headroom_high`); `headroom_chosen`, the gain on dev, where the setting
    was chosen; and `simulatability`, that of the untrained setting on test.

    Raises:
        ExpoundError: fewer than one setting or student, or a regression, where no student predicts exact values.
    """
    if search.teaching.teacher.task.predicts_number:
        raise ExpoundError("headroom counts answers that students predict exactly: it does not apply to a regression")
    if min(settings, count, judged) < 1:
        raise ExpoundError("headroom needs at least one setting and one student: raise settings, count and judged")
    pool, dev, test = (search.teaching.label_data(data) for data in (pool, dev, test))
    means = [search.right(number, range(count), pool, dev, "dev").mean() for number in range(settings + 1)]
    best = 1 + int(np.argmax(means[1:]))
    seeds = range(count, count + judged)
    chosen = search.right(best, seeds, pool, test, "test")
    usual = search.right(UNTRAINED, seeds, pool, test, "test")
    low, high = interval(chosen, usual)
    return {
        "simulatability": float(usual.mean()),
        "headroom": float(chosen.mean() - usual.mean()),
        "headroom_low": low,
        "headroom_high": high,
        "headroom_chosen": float(means[best] - means[UNTRAINED]),
    }


def interval(
    one: NDArray[np.bool_], other: NDArray[np.bool_], resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Return the 95 % paired bootstrap interval, over students and examples, of the mean of one − other [S, N]."""
    difference, random = one.astype(float) - other.astype(float), np.random.default_rng(seed)
    students, rows = difference.shape
    means = []
    for _ in range(resamples):
        weights = np.bincount(random.integers(rows, size=rows), minlength=rows) / rows
        means.append((difference @ weights)[random.integers(students, size=students)].mean())
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
