"""The search for settings that teach better: its interval, the settings it keeps, and the students it compares."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import families
from expound.errors import ExpoundError
from expound.explainers.learned.interpretable_attention import InterpretableAttention
from expound.models import ExplainedModel
from expound.training import RunOptions
from expound.training.bilevel.students import Teaching
from expound_papers.protocols.headroom import CoefficientSearch, headroom, interval
from runs import sentences

QUIET = {"eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False, "disable_tqdm": True}
SETTINGS = {"num_train_epochs": 1, "per_device_train_batch_size": 4, "learning_rate": 1e-3, "use_cpu": True}


@pytest.fixture
def search(tmp_path):
    teacher = ExplainedModel(families.tiny("bert", seed=3, initializer_range=0.4), families.processor("bert"))
    options = RunOptions(arguments=QUIET | SETTINGS)
    start = families.tiny("bert").config
    return CoefficientSearch(
        Teaching(teacher, weight=1.0), start, tmp_path, options, attention={"normalizer": "softmax"}
    )


def test_the_interval_is_that_of_all_resamples():
    one, other = np.array([[1, 1, 0], [1, 0, 1]], bool), np.array([[0, 1, 0], [0, 1, 1]], bool)
    difference = one.astype(float) - other
    every = [
        difference[list(students)][:, list(rows)].mean()
        for students in product(range(2), repeat=2)
        for rows in product(range(3), repeat=3)
    ]
    assert interval(one, other) == pytest.approx(tuple(np.quantile(every, [0.025, 0.975])), abs=0.17)
    assert interval(one, one) == (0, 0)


def test_settings_are_drawn_by_their_number_and_the_first_is_untrained(search):
    untrained, drawn = (InterpretableAttention.from_pretrained(search.setting(number)) for number in (0, 3))
    assert set(untrained.head_coefficients.flatten().tolist()) == {1.0}
    assert len(set(drawn.head_coefficients.flatten().tolist())) == drawn.head_coefficients.numel()
    assert set(drawn.query_features.flatten().tolist()) == {1.0}


def test_the_best_setting_is_judged_by_students_of_other_seeds(search):
    pool, dev, test = (sentences(20).select(range(start, start + 6)) for start in (0, 6, 12))
    found = headroom(search, pool, dev, test, settings=2, count=1, judged=2)
    kept = sorted(path.name for path in search.folder.glob("student-*"))
    assert [name for name in kept if name.endswith("dev")] == [f"student-{number}-0-dev" for number in (0, 1, 2)]
    assert {name.split("-")[2] for name in kept if name.endswith("test")} == {"1", "2"}
    assert found["headroom_low"] <= found["headroom"] <= found["headroom_high"]
    before = {path: path.stat().st_mtime_ns for path in search.folder.rglob("right.json")}
    assert headroom(search, pool, dev, test, settings=2, count=1, judged=2) == found
    assert {path: path.stat().st_mtime_ns for path in search.folder.rglob("right.json")} == before
    with pytest.raises(ExpoundError, match="at least one setting"):
        headroom(search, pool, dev, test, settings=0)
