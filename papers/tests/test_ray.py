"""The same runs as Ray tasks on two nodes."""

from __future__ import annotations

import signal
import sys

import pytest

from expound.errors import ExpoundError
from expound.evaluation.workers.on_ray import RayWorkers
from expound_papers.runs.run_cell import run_all
from expound_papers.runs.store import Cell, Store
from small_cells import cells, dying, raising


def test_without_ray_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ExpoundError, match=r"expound\[cluster\]"):
        RayWorkers(tmp_path)


def test_two_nodes_do_every_run_once_and_survive_a_killed_one(cluster, tmp_path):
    import ray

    these = [*cells(10), Cell({"kind": "test", "number": 99}, dying, "dies")]
    bad = Cell({"kind": "test", "number": 100}, raising, "bad")
    root, told, on_sigterm = tmp_path / "store", [], signal.getsignal(signal.SIGTERM)
    workers = RayWorkers(root, address=cluster)
    assert workers.count == 2
    assert len([node for node in ray.nodes() if node["Alive"]]) == 2
    outcome = run_all([*these, bad], root, workers, lambda cell, ended: told.append((cell.title, ended.status)))
    assert outcome.failed == {bad.key: "RuntimeError: broken on purpose"}
    assert all(Store(root).is_done(cell.key) for cell in these)
    assert (tmp_path / "log").read_text().count("\n") == 11
    assert told.count(("dies", "killed")) == 1
    assert signal.getsignal(signal.SIGTERM) is on_sigterm


def test_a_wrong_address_is_said_at_once(tmp_path):
    pytest.importorskip("ray", reason="needs the extra 'cluster'")
    with pytest.raises(ExpoundError, match=r"no Ray cluster at 127\.0\.0\.1:1: "):
        RayWorkers(tmp_path, address="127.0.0.1:1")
