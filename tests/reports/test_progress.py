"""The progress bar: only on a terminal, with an estimate first, not above logs, and with a hint if all takes long."""

from __future__ import annotations

import logging
import time

import pytest

from expound.reports import text as module
from expound.reports.text import progress_bar


@pytest.fixture(autouse=True)
def short_delays(monkeypatch):
    monkeypatch.setattr(module, "DELAY", 0.05)
    monkeypatch.setattr(module, "SLOW_SECONDS", 0.0)


def test_nobody_who_does_not_watch_is_told_anything(capsys):
    with progress_bar("explaining", 3, estimate=lambda: pytest.fail("measured for nobody")) as done:
        time.sleep(0.1)
        done(3)
    assert capsys.readouterr().err == ""


def test_what_is_quick_shows_no_bar(capsys):
    with progress_bar("explaining", 3, show=True) as done:
        done(3)
    assert "explaining" not in capsys.readouterr().err


def test_the_estimate_comes_before_the_first_part(capsys):
    with progress_bar("explaining", 4, show=True, estimate=lambda: 150.0) as done:
        time.sleep(0.2)
        before = capsys.readouterr().err
        done(1)
        time.sleep(0.11)
        done(3)
    after = capsys.readouterr().err
    assert "explaining:   0 %" in before
    assert "about 02:30 in all" in before
    assert "explaining: 100 %" in after


def test_logs_stand_above_the_bar(capsys):
    root, handler = logging.getLogger(), logging.StreamHandler()
    root.addHandler(handler)
    try:
        with progress_bar("explaining", 4, show=True) as done:
            time.sleep(0.1)
            done(2)
            logging.getLogger("expound").warning("a word between")
            done(2)
    finally:
        root.removeHandler(handler)
    lines = capsys.readouterr().err.replace("\r", "\n").splitlines()
    assert any(line.strip() == "a word between" for line in lines)


def test_ten_times_the_estimate_is_said_once(caplog):
    with progress_bar("explaining", 4, show=True, estimate=lambda: 0.004) as done:
        for _ in range(4):
            time.sleep(0.03)
            done(1)
    assert [record.message for record in caplog.records] == [
        "explaining takes more than ten times as long as was estimated: is the machine busy?"
    ]
