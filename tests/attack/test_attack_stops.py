"""SIGTERM, one Ctrl-C and two, and a clock that is set back: no half-written file, and the same result."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

import stored
from attacked import LONG, noted, times
from commands import SEARCH, saved, words
from forks import command, forge, run_to_end, seconds_of
from test_attack_kills import all_cells

USUAL = ["baseline", "compare", "smat", "ivra", "aml", "at2", "corpus", "study", SEARCH] if LONG else ["baseline"]
STOPS = {"SIGTERM": [signal.SIGTERM], "one Ctrl-C": [signal.SIGINT], "two Ctrl-C": [signal.SIGINT, signal.SIGINT]}
BACK = 40 * 24 * 3600


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("name", USUAL)
def test_a_stopped_command_says_so_and_ends_as_an_undisturbed_one(name, model, tmp_path):
    said, chance, group = tmp_path / "said", random.Random(name), name == "study"
    with noted("SIGTERM, Ctrl-C", name) as seen, forge() as found:
        whole, run = tmp_path / "whole" / "run", tmp_path / "stopped" / "run"
        took, (code, output) = seconds_of(lambda: run_to_end(found, words(name, model, whole), said))
        assert code == 0, output
        expected = stored.of(whole.parent)
        for signals in list(STOPS.values()) * times(2):
            found.start(command, words(name, model, run), said)
            for number in signals:
                if found.running(chance.uniform(0.02, 1 / len(signals)) * took):
                    found.kill(number, group)
            code, output = found.wait(), said.read_text(errors="replace")
            assert code in (0, 130, 143, -signal.SIGTERM), output
            assert "Traceback" not in output
            seen["cases"] += 1
            seen["stopped"] += code != 0
        assert run_to_end(found, words(name, model, run), said)[0] == 0
        assert stored.difference(run.parent, expected) == {}


def set_back():
    """From now on the process's clock is behind what files say."""
    now, exact = time.time, time.time_ns
    time.time, time.time_ns = (lambda: now() - BACK), (lambda: exact() - BACK * 10**9)


def all_cells_later(root):
    set_back()
    all_cells(root)


@pytest.mark.parametrize("name", ["baseline", "compare"] if LONG else ["compare"])
def test_a_clock_that_was_set_back_changes_nothing(name, model, tmp_path):
    said, chance = tmp_path / "said", random.Random(name)
    with noted("clock set back by 40 days", name) as seen, forge() as found:
        whole, run = tmp_path / "whole" / "run", tmp_path / "later" / "run"
        took, (code, output) = seconds_of(lambda: run_to_end(found, words(name, model, whole), said))
        assert code == 0, output
        for _ in range(times(3)):
            found.start(command, words(name, model, run), said)
            if found.running(chance.uniform(0.3, 1) * took):
                found.kill()
            found.wait()
            assert run_to_end(found, words(name, model, run), said, set_back)[0] == 0
            assert stored.difference(run.parent, stored.of(whole.parent)) == {}
            seen["cases"] += 1


def test_a_run_claimed_in_the_future_by_a_dead_worker_is_taken_over(tmp_path):
    with noted("clock set back by 40 days", "workers of a study") as seen, forge() as found:
        found.start(all_cells, tmp_path / "runs")
        while found.running(0.02) and not list(tmp_path.glob("runs/.claims/*")):
            pass
        found.kill()
        found.wait()
        for path in tmp_path.rglob("*"):
            os.utime(path, (time.time() + BACK,) * 2)
        found.start(all_cells_later, tmp_path / "runs")
        assert found.wait() == 0
        seen["cases"] += 1
