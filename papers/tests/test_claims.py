"""Verdicts on claims: what intervals say, and how wide they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from expound.errors import ExpoundError
from expound.reports.tables.significance import Effect, measure_effect, metric_summands
from expound_papers.tables.claims import (
    CONTRADICTED,
    REPRODUCED,
    UNDECIDED,
    Condition,
    format_size,
    format_verdict,
    judge_claim,
)
from expound_papers.tables.figures import correlate


def make_test(text, center, margin):
    return Condition.parse(text), Effect(center, margin, 3, 40, True)


def test_an_interval_inside_a_claim_reproduces_it_and_one_outside_contradicts_it():
    cases = [
        ("> 0", 2.0, 1.9, REPRODUCED),
        ("> 0", 2.0, 2.1, UNDECIDED),
        ("> 0", -2.0, 1.9, CONTRADICTED),
        ("< 0.5", -2.0, 1.9, REPRODUCED),
        ("< 0.5", 2.0, 1.4, CONTRADICTED),
        ("> -2", -1.0, 0.9, REPRODUCED),
        ("within 3", 1.0, 1.9, REPRODUCED),
        ("within 3", 1.0, 2.1, UNDECIDED),
        ("within 3", -6.0, 2.9, CONTRADICTED),
        ("> 0", 2.0, float("nan"), UNDECIDED),
    ]
    for text, center, margin, verdict in cases:
        assert judge_claim([make_test(text, center, margin)]) == verdict


def test_one_contradicted_condition_contradicts_a_claim_and_one_undecided_leaves_it_open():
    yes, no, open_one = make_test("> 0", 2, 1), make_test("> 0", -2, 1), make_test("> 0", 1, 2)
    assert format_verdict([yes, yes]) == "**reproduced**"
    assert format_verdict([yes, open_one, make_test("> 0", 1, 4)]) == "**undecided** (detectable: 2.9–5.7)"
    assert format_verdict([yes, no, open_one]) == "**contradicted**"


def test_the_interval_of_a_correlation_covers_it_in_nineteen_of_twenty_studies():
    draw, inside = np.random.default_rng(0), 0
    true = 6 / np.pi * np.arcsin(0.4 / 2)  # Spearman's ρ of normal variables with Pearson's r = .4
    for _ in range(300):
        # Half of each variable's variance is shared by the five models of a seed.
        of_seed, of_model = draw.normal(size=(10, 1, 2)), draw.normal(size=(10, 5, 2))
        values = (of_seed + of_model) @ np.linalg.cholesky([[0.5, 0.2], [0.2, 0.5]]).T
        frame = pd.DataFrame(values.reshape(-1, 2), columns=["x", "y"]).assign(seed=np.repeat(range(10), 5))
        found = correlate(frame)
        inside += abs(found.center - true) < found.margin
    assert 0.9 < inside / 300 < 0.99
    assert found.seeds == 10


def test_the_margin_covers_seeds_and_examples():
    draw = np.random.default_rng(0)
    one, other = draw.normal(1, 1, (4, 50)), draw.normal(0, 1, (4, 50))
    pairs = [(metric_summands(a), metric_summands(b)) for a, b in zip(one, other, strict=True)]
    found = measure_effect(np.zeros(4), pairs, 100)
    differences = 100 * (one - other)
    over_seeds = 3.182446 * differences.mean(1).std(ddof=1) / 2
    over_examples = 1.959964 * differences.mean(0).std(ddof=1) / 50**0.5
    assert found.center == pytest.approx(differences.mean())
    assert found.margin == pytest.approx(np.hypot(over_seeds, over_examples))
    assert measure_effect(np.zeros(1), pairs[:1], 100).margin == pytest.approx(
        1.959964 * differences[0].std(ddof=1) / 50**0.5
    )
    seeds_alone = measure_effect((one - other).mean(1), [], 100, judged=50)
    assert seeds_alone.margin == pytest.approx(over_seeds)
    assert (format_size([found]), format_size([seeds_alone])) == ("50 × 4", "50 × 4 ‡")
    apart = [(metric_summands(one[0], np.arange(50)), metric_summands(other[0], np.arange(50, 100)))]
    with pytest.raises(ExpoundError, match="no example in common"):
        measure_effect(np.zeros(1), apart, 1)


def test_an_effect_of_the_detectable_size_is_found_in_four_of_five_studies():
    draw = np.random.default_rng(0)
    noise = draw.normal(0, 1, (2000, 100))
    detectable = measure_effect(
        np.zeros(1), [(metric_summands(noise[0]), metric_summands(np.zeros(100)))], 1
    ).detectable
    found = 0
    for values in noise + 0.28016:
        effect = measure_effect(np.zeros(1), [(metric_summands(values), metric_summands(np.zeros(100)))], 1)
        assert judge_claim([(Condition.parse("> 0"), effect)]) == UNDECIDED, "of one seed"
        untrained = replace(effect, is_trained=False)
        assert judge_claim([(Condition.parse("> -9"), untrained)]) == REPRODUCED, "there are no other seeds"
        found += judge_claim([(Condition.parse("> 0"), replace(effect, seeds=2))]) == REPRODUCED
    assert detectable == pytest.approx(0.28, rel=0.15)
    assert found / 2000 == pytest.approx(0.8, abs=0.03)
