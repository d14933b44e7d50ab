"""Flags for careless people, and how many people a study needs."""

from __future__ import annotations

import math

import pytest

from expound.cli import main
from expound.errors import ExpoundError
from expound_people.analysis.power import StudyDesign, simulate_power
from expound_people.analysis.quality import ALL_ALIKE, CHECKS_MISSED, TOO_FAST, AnnotatorWork, assess_quality

CAREFUL = AnnotatorWork("Ada", [20, 30, 25], [(1, 2), (2, 1), (1, 2), (2, 1)], [True, True])


def test_careless_annotators_are_flagged_and_careful_ones_are_not():
    fast = AnnotatorWork("Ben", [2, 3, 40], [(1, 2), (2, 1)], [True])
    wrong = AnnotatorWork("Cy", [22], [(1, 2)], [True, False])
    alike = AnnotatorWork("Dee", [21], [(1, 2)] * 4)
    found = {each.person: each for each in assess_quality([CAREFUL, fast, wrong, alike])}
    assert not found["Ada"].is_careless
    assert found["Ben"].flags == (TOO_FAST,)
    assert (found["Cy"].flags, found["Cy"].missed, found["Cy"].checks) == ((CHECKS_MISSED,), 1, 2)
    assert found["Dee"].flags == (ALL_ALIKE,)


def test_bounds_can_be_declared():
    wrong = AnnotatorWork("Cy", [22], [], [True, False])
    assert assess_quality([CAREFUL, wrong], missed=1)[1].flags == ()
    assert assess_quality([CAREFUL, wrong], fastest=24)[1].flags == (TOO_FAST, CHECKS_MISSED)
    assert assess_quality([AnnotatorWork("Eve", [], [])])[0].flags == ()
    assert math.isnan(assess_quality([AnnotatorWork("Eve", [], [])])[0].seconds)


def test_without_an_effect_power_is_the_level_of_the_test():
    ranked = simulate_power(StudyDesign(0.5, methods=2, items=4, person=0.8), 16, runs=300)
    guessed = simulate_power(StudyDesign(0.0, kind="simulate", methods=1, items=4, person=0.8), 16, runs=300)
    assert 0.005 <= ranked.power <= 0.05  # one side of 5 %
    assert 0.005 <= guessed.power <= 0.05


def test_more_people_have_more_power_and_smaller_intervals():
    for design in (StudyDesign(0.7, methods=3, items=6), StudyDesign(0.3, kind="simulate", methods=2, items=6)):
        few, many = (simulate_power(design, people, runs=60) for people in (6, 40))
        assert few.power < many.power
        assert many.power > 0.7
        assert many.width < few.width
        assert simulate_power(design, 6, runs=60) == few


def test_simulation_studies_have_the_power_of_a_t_test():
    from statsmodels.stats.power import TTestPower

    found = simulate_power(StudyDesign(0.25, kind="simulate", methods=1, items=1, person=0.0, item=0.0), 30, runs=1500)
    before, after = 0.6, 0.85
    deviation = math.sqrt(before * (1 - before) + after * (1 - after))
    expected = TTestPower().power(0.25 / deviation, nobs=30, alpha=0.05)
    assert found.power == pytest.approx(expected, abs=0.04)


def test_invalid_designs_are_refused():
    for options, people, message in (
        ({"effect": 0.4}, 9, "an effect from 0.5 to below 1, got 0.4"),
        ({"effect": 0.5, "kind": "simulate"}, 9, "an effect from 0.0 to below 0.4, got 0.5"),
        ({"effect": 0.6, "item": -1}, 9, "deviations that are not negative"),
        ({"effect": 0.6}, 1, "2 people or more, got 1"),
    ):
        with pytest.raises(ExpoundError, match=message):
            simulate_power(StudyDesign(**options), people)


def test_the_command_prints_a_row_for_each_number_of_people(capsys):
    assert main(["people", "power", "--effect", "0.7", "--people", "4,30", "--runs", "20", "--items", "3"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    few, many = (next(row for row in rows if row[:1] == [people]) for people in ("4", "30"))
    assert int(few[1]) <= int(many[1])
    assert float(few[3]) > float(many[3])


@pytest.mark.parametrize(
    "wrong", [("--kind", "highlight"), ("--people", "ten"), ("--methods", "1"), ("--effect", "1.2"), ("--people", "1")]
)
def test_the_power_command_refuses_invalid_options(wrong, capsys):
    assert main(["people", "power", "--effect", "0.7", *wrong]) == 2
    assert capsys.readouterr().err.count("\n") == 1
