"""The same runs as Ray tasks on two nodes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from exegete.errors import ExegeteError
from exegete.studies.cell import Cell, Store
from exegete.studies.engine import drive
from exegete.studies.ray_engine import RayWorkers
from small_cells import cells, dying, raising

ROOT = Path(__file__).parents[2]
PORT = 6411


def test_without_ray_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ExegeteError, match=r"exegete\[cluster\]"):
        RayWorkers(tmp_path)


@pytest.fixture(scope="module")
def cluster():
    """Two `ray start` processes on this machine, which end with the tests; gives their address."""
    pytest.importorskip("ray", reason="needs the extra 'cluster'")
    paths = [str(ROOT / "src"), str(ROOT / "tests"), str(Path(__file__).parent)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats", "--num-cpus=1"]
    head = ["--head", f"--port={PORT}", "--include-dashboard=false"]
    nodes = []
    try:
        for more in (head, [f"--address=127.0.0.1:{PORT}"]):
            command = [*ray, *more, "--object-store-memory=100000000"]
            nodes.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL))
            joined(len(nodes), nodes[-1])
        yield f"127.0.0.1:{PORT}"
    finally:
        for node in reversed(nodes):
            node.terminate()
            node.wait(60)


def joined(count, node):
    """Waits until the cluster has so many nodes."""
    look = f"import ray; ray.init('127.0.0.1:{PORT}', log_to_driver=False); print(sum(n['Alive'] for n in ray.nodes()))"
    end = time.monotonic() + 120
    while time.monotonic() < end:
        assert node.poll() is None
        done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=False)
        if done.stdout.strip() == str(count):
            return
        time.sleep(1)
    pytest.fail(f"{count} nodes did not come up")


def test_two_nodes_do_every_run_once_and_survive_a_killed_one(cluster, tmp_path):
    import ray

    these = [*cells(10), Cell({"kind": "test", "number": 99}, dying, "dies")]
    bad = Cell({"kind": "test", "number": 100}, raising, "bad")
    root, told = tmp_path / "store", []
    workers = RayWorkers(root, address=cluster)
    assert workers.count == 2
    assert len([node for node in ray.nodes() if node["Alive"]]) == 2
    outcome = drive([*these, bad], root, workers, lambda cell, ended: told.append((cell.title, ended.status)))
    assert outcome.failed == {bad.key: "RuntimeError: broken on purpose"}
    assert all(Store(root).done(cell.key) for cell in these)
    assert (tmp_path / "log").read_text().count("\n") == 11
    assert told.count(("dies", "killed")) == 1


def test_a_wrong_address_is_said_at_once(tmp_path):
    pytest.importorskip("ray", reason="needs the extra 'cluster'")
    with pytest.raises(ExegeteError, match=r"no Ray cluster at 127\.0\.0\.1:1: "):
        RayWorkers(tmp_path, address="127.0.0.1:1")
