"""Threads are chosen by the model's size, the machine's speed now, and the user, in rising order."""

from __future__ import annotations

import json

import pytest
import torch

from expound.cli.shared import threads


@pytest.fixture
def four_threads(monkeypatch):
    """A machine with four threads, and no number of threads requested."""
    chosen = []
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    return chosen


def test_a_small_model_gets_one_thread(four_threads, capsys):
    threads.set_threads(None, 64, "cpu")
    assert four_threads == [1]
    assert capsys.readouterr().err == "threads: 1 (a small model; set another number with --threads)\n"


@pytest.mark.parametrize(("seconds", "count"), [({1: 1.0, 4: 0.4}, 4), ({1: 1.0, 4: 0.9}, 1), ({1: 1.0, 4: 7.0}, 1)])
def test_a_larger_one_gets_what_is_faster_now(seconds, count, four_threads, monkeypatch, capsys):
    monkeypatch.setattr(threads, "_time_products", lambda number, hidden: seconds[number])
    threads.set_threads(None, 768, "cpu")
    assert four_threads == [count]
    assert f"threads: {count} (4 threads are {1 / seconds[4]:.1f} × as fast" in capsys.readouterr().err


def test_the_user_decides(four_threads, monkeypatch, capsys):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    threads.set_threads(None, 64, "cpu")
    assert four_threads == []
    threads.set_threads(2, 64, "cpu")
    assert four_threads == [2]
    assert "threads: 2 (--threads)" in capsys.readouterr().err
    monkeypatch.delenv("OMP_NUM_THREADS")
    threads.set_threads(None, 64, "cuda:0")
    assert four_threads == [2]


def test_the_measurement_leaves_the_threads_as_they_were():
    before = torch.get_num_threads()
    assert 0 < threads._time_products(2, 64) < 5
    assert torch.get_num_threads() == before


def test_the_hidden_size_is_read_wherever_the_model_is(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"dim": 48}))
    assert threads.hidden_size("tiny") == 64
    assert threads.hidden_size(tmp_path) == threads.hidden_size(str(tmp_path / "config.json")) == 48
    assert threads.hidden_size("user/model") is None
