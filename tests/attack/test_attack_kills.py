"""A command killed at any moment and then repeated gives the result of an undisturbed one, bit for bit."""

from __future__ import annotations

import random
import shutil
import signal
import time

import pytest

import stored
from attacked import LONG, record_outcomes, scale_count
from commands import OVER_VALUES, SEARCH, STUDY, build_arguments, save_model
from expound.recipes import RECIPES
from expound_papers.runs.run_cell import remove_leftovers, run_cell
from expound_papers.runs.store import Store
from expound_papers.study.loading import load_study
from forks import command, forge, run_to_end, seconds_of

KILLS = {"compare": 30, "corpus": 8, SEARCH: 6, OVER_VALUES: 6, "study": 4} | dict.fromkeys(RECIPES, 5)
"""Kills by command, of the parent if there are several processes; with workers of a study and servers 200."""
USUAL = [*KILLS] if LONG else ["compare", "baseline"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"))


def kill_repeatedly(reset, process, begin, kills, seconds, check, chance):
    """Kills the process at random moments until it was killed `kills` times; counts the runs that ended before that."""
    ended = 0
    while kills:
        begin()
        if process.running(chance.uniform(0.02, 1) * seconds):
            process.kill()
        if process.wait() == -signal.SIGKILL:
            kills -= 1
        else:
            ended += 1
            check()
            reset()
    begin()
    assert process.wait() == 0
    check()
    return ended


@pytest.mark.parametrize("name", USUAL)
def test_a_killed_command_ends_as_an_undisturbed_one(name, model, tmp_path):
    log, undisturbed, run = tmp_path / "said", tmp_path / "whole" / "run", tmp_path / "killed" / "run"
    with record_outcomes("SIGKILL", name) as counts, forge() as process:
        took, (code, output) = seconds_of(lambda: run_to_end(process, build_arguments(name, model, undisturbed), log))
        assert code == 0, output
        expected = stored.read_folder(undisturbed.parent)

        def require_same():
            assert stored.difference(run.parent, expected) == {}

        def remove_result():
            shutil.rmtree(run.parent)

        kills = scale_count(KILLS[name])
        ended = kill_repeatedly(
            remove_result,
            process,
            lambda: process.start(command, build_arguments(name, model, run), log),
            kills,
            took,
            require_same,
            random.Random(name),
        )
        counts |= {"cases": kills, "runs compared": ended + 1}


def run_all_cells(root):
    for cell in load_study(STUDY).cells:
        while not run_cell(cell, root):
            time.sleep(0.1)
    remove_leftovers(load_study(STUDY).cells, root)


def test_killed_workers_of_a_study_leave_the_runs_of_an_undisturbed_one(tmp_path):
    with record_outcomes("SIGKILL", "workers of a study") as counts, forge() as process:
        process.start(run_all_cells, tmp_path / "whole")
        took, code = seconds_of(process.wait)
        assert code == 0
        expected = stored.read_folder(tmp_path / "whole" / "cells")

        def require_same():
            assert stored.difference(tmp_path / "killed" / "cells", expected) == {}
            assert not any((Store(tmp_path / "killed").root / ".work").iterdir())

        kills = scale_count(20)
        ended = kill_repeatedly(
            lambda: shutil.rmtree(tmp_path / "killed"),
            process,
            lambda: process.start(run_all_cells, tmp_path / "killed"),
            kills,
            took,
            require_same,
            random.Random(0),
        )
        counts |= {"cases": kills, "runs compared": ended + 1}
