"""Trains students of one teacher by several of its explanations, and keeps those that are finished."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pandas as pd
from datasets import Dataset

from expound.data.provenance import write_json
from expound.training import RunOptions
from expound.training.bilevel.students import Teaching, evaluate_student
from expound.training.loop.starting_model import Source

FIGURES_FILE = "student.json"


def train_students(
    start: Source,
    teaching: Teaching,
    data: tuple[Dataset, Dataset, Dataset],
    folder: Path,
    explainers: Sequence[str],
    seeds: Sequence[int],
    options: RunOptions,
) -> pd.DataFrame:
    """Train a student for every explainer and seed; return one row per student, with its test figures.

    Finished students are kept, and the same call resumes an interrupted one. The teacher runs once per split, and once
    per explainer.

    Args:
        start: the starting point of every student; never the teacher's own weights.
        teaching: the teacher and the settings that all students share.
        data: examples to learn from, to choose the best epoch on, and to measure each finished student on.
        folder: folder of the students' folders.
        explainers: values of `Teaching.explainer`.
        seeds: seeds of the students.
        options: options of all runs.
    """
    teaching = teaching.with_max_length(options.max_length)
    train, dev, test = map(teaching.label_data, data)
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in explainers:
        # The explanations are computed once per explainer, and only if a student is left to train.
        one, terms = replace(teaching, explainer=name), None
        # Some characters of specs are not allowed in the name of a folder.
        safe_name = re.sub(r"[^\w.-]", "-", name)
        for seed in seeds:
            own = folder / f"{safe_name}-{len(train)}-{seed}"
            if not (own / FIGURES_FILE).exists():
                terms = terms or one.make_objectives(train, folder)
                result = one.run(deepcopy(start), train, dev, own, replace(options, seed=seed), terms)
                result.require_finished("the students' training")
                write_json(own / FIGURES_FILE, evaluate_student(result.model, test) | {"steps": result.steps})
            figures = json.loads((own / FIGURES_FILE).read_text(encoding="utf-8"))
            rows.append({"explainer": name, "seed": seed, **figures})
    return pd.DataFrame(rows)
