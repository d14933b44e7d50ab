"""A command killed at any moment and then repeated gives the result of an undisturbed one, bit for bit."""

from __future__ import annotations

import random
import shutil
import signal
import time

import pytest

import stored
from attacked import LONG, noted, times
from commands import OVER_VALUES, SEARCH, STUDY, saved, words
from exegete.recipes import RECIPES
from exegete.studies.runs.grid import build_grid
from exegete.studies.runs.run_cell import remove_leftovers, run_cell
from exegete.studies.runs.store import Store
from exegete.studies.spec.study_file import load_study
from forks import command, forge, run_to_end, seconds_of

KILLS = {"compare": 40, "corpus": 10, SEARCH: 10, OVER_VALUES: 10, "study": 7} | dict.fromkeys(RECIPES, 7)
"""Of the parent, where there are more processes; with those of a study's workers and of servers 200."""
USUAL = [*KILLS] if LONG else ["compare", "baseline"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("model"))


def killed(again, found, begin, kills, whole, same, chance):
    """Starts `begin` until it was killed `kills` times, at random moments. Returns how often it ended before."""
    ended = 0
    while kills:
        begin()
        if found.running(chance.uniform(0.02, 1) * whole):
            found.kill()
        if found.wait() == -signal.SIGKILL:
            kills -= 1
        else:
            ended += 1
            same()
            again()
    begin()
    assert found.wait() == 0
    same()
    return ended


@pytest.mark.parametrize("name", USUAL)
def test_a_killed_command_ends_as_an_undisturbed_one(name, model, tmp_path):
    said, whole, run = tmp_path / "said", tmp_path / "whole" / "run", tmp_path / "killed" / "run"
    with noted("SIGKILL", name) as seen, forge() as found:
        took, (code, output) = seconds_of(lambda: run_to_end(found, words(name, model, whole), said))
        assert code == 0, output
        expected = stored.of(whole.parent)

        def same():
            assert stored.difference(run.parent, expected) == {}

        def again():
            shutil.rmtree(run.parent)

        kills = times(KILLS[name])
        ended = killed(
            again,
            found,
            lambda: found.start(command, words(name, model, run), said),
            kills,
            took,
            same,
            random.Random(name),
        )
        seen |= {"cases": kills, "runs compared": ended + 1}


def all_cells(root):
    for cell in build_grid(load_study(STUDY)).cells:
        while not run_cell(cell, root):
            time.sleep(0.1)
    remove_leftovers(build_grid(load_study(STUDY)).cells, root)


def test_killed_workers_of_a_study_leave_the_runs_of_an_undisturbed_one(tmp_path):
    with noted("SIGKILL", "workers of a study") as seen, forge() as found:
        found.start(all_cells, tmp_path / "whole")
        took, code = seconds_of(found.wait)
        assert code == 0
        expected = stored.of(tmp_path / "whole" / "cells")

        def same():
            assert stored.difference(tmp_path / "killed" / "cells", expected) == {}
            assert not any((Store(tmp_path / "killed").root / ".work").iterdir())

        kills = times(28)
        ended = killed(
            lambda: shutil.rmtree(tmp_path / "killed"),
            found,
            lambda: found.start(all_cells, tmp_path / "killed"),
            kills,
            took,
            same,
            random.Random(0),
        )
        seen |= {"cases": kills, "runs compared": ended + 1}
