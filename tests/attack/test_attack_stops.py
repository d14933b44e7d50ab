"""SIGTERM, one Ctrl-C and two, and a clock that is set back: no half-written file, and the same result."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

import stored
from attacked import LONG, record_outcomes, scale_count
from commands import SEARCH, build_arguments, save_model
from forks import command, forge, run_to_end, seconds_of
from test_attack_kills import run_all_cells

USUAL = ["baseline", "compare", "smat", "ivra", "aml", "at2", "corpus", "study", SEARCH] if LONG else ["baseline"]
STOPS = {"SIGTERM": [signal.SIGTERM], "one Ctrl-C": [signal.SIGINT], "two Ctrl-C": [signal.SIGINT, signal.SIGINT]}
BACK = 40 * 24 * 3600


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("name", USUAL)
def test_a_stopped_command_says_so_and_ends_as_an_undisturbed_one(name, model, tmp_path):
    log, chance, group = tmp_path / "said", random.Random(name), name == "study"
    with record_outcomes("SIGTERM, Ctrl-C", name) as counts, forge() as process:
        undisturbed, run = tmp_path / "whole" / "run", tmp_path / "stopped" / "run"
        took, (code, output) = seconds_of(lambda: run_to_end(process, build_arguments(name, model, undisturbed), log))
        assert code == 0, output
        expected = stored.read_folder(undisturbed.parent)
        for signals in list(STOPS.values()) * scale_count(2):
            process.start(command, build_arguments(name, model, run), log)
            for number in signals:
                if process.running(chance.uniform(0.02, 1 / len(signals)) * took):
                    process.kill(number, group)
            code, output = process.wait(), log.read_text(errors="replace")
            assert code in (0, 130, 143, -signal.SIGTERM), output
            assert "Traceback" not in output
            counts["cases"] += 1
            counts["stopped"] += code != 0
        assert run_to_end(process, build_arguments(name, model, run), log)[0] == 0
        assert stored.difference(run.parent, expected) == {}


def set_clock_back():
    """Sets the clock of this process back, so that dates of files are in its future."""
    now, exact = time.time, time.time_ns
    time.time, time.time_ns = (lambda: now() - BACK), (lambda: exact() - BACK * 10**9)


def run_all_cells_later(root):
    set_clock_back()
    run_all_cells(root)


@pytest.mark.parametrize("name", ["baseline", "compare"] if LONG else ["compare"])
def test_a_clock_that_was_set_back_changes_nothing(name, model, tmp_path):
    log, chance = tmp_path / "said", random.Random(name)
    with record_outcomes("clock set back by 40 days", name) as counts, forge() as process:
        undisturbed, run = tmp_path / "whole" / "run", tmp_path / "later" / "run"
        took, (code, output) = seconds_of(lambda: run_to_end(process, build_arguments(name, model, undisturbed), log))
        assert code == 0, output
        for _ in range(scale_count(3)):
            process.start(command, build_arguments(name, model, run), log)
            if process.running(chance.uniform(0.3, 1) * took):
                process.kill()
            process.wait()
            assert run_to_end(process, build_arguments(name, model, run), log, set_clock_back)[0] == 0
            assert stored.difference(run.parent, stored.read_folder(undisturbed.parent)) == {}
            counts["cases"] += 1


def test_a_run_claimed_in_the_future_by_a_dead_worker_is_taken_over(tmp_path):
    with record_outcomes("clock set back by 40 days", "workers of a study") as counts, forge() as process:
        process.start(run_all_cells, tmp_path / "runs")
        while process.running(0.02) and not list(tmp_path.glob("runs/.claims/*")):
            pass
        process.kill()
        process.wait()
        for path in tmp_path.rglob("*"):
            os.utime(path, (time.time() + BACK,) * 2)
        process.start(run_all_cells_later, tmp_path / "runs")
        assert process.wait() == 0
        counts["cases"] += 1
