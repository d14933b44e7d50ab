"""A Ray cluster of two nodes on this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def cluster():
    """The address of a cluster of two `ray start` processes on this machine, which end with the tests."""
    with two_nodes() as (address, _):
        yield address


@contextmanager
def two_nodes():
    """Starts a cluster; gives its address, and the processes of its two nodes, the head first."""
    pytest.importorskip("ray", reason="needs the extra 'cluster'")
    paths = [str(ROOT / folder) for folder in ("src", "papers/src", "tests", "papers/tests")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "RAY_worker_niceness": "0"}
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats", "--num-cpus=1"]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    head = ["--head", f"--port={port}", "--include-dashboard=false"]
    nodes = []
    try:
        for more in (head, [f"--address=127.0.0.1:{port}"]):
            command = [*ray, *more, "--object-store-memory=100000000"]
            nodes.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL))
            wait_for_nodes(len(nodes), nodes[-1], port)
        yield f"127.0.0.1:{port}", nodes
    finally:
        for node in reversed(nodes):
            node.terminate()
            node.wait(60)


@pytest.fixture(scope="session")
def ray_nodes():
    """The function that starts a cluster for one test."""
    return two_nodes


def wait_for_nodes(count, node, port):
    """Waits until the cluster has this many nodes."""
    look = f"import ray; ray.init('127.0.0.1:{port}', log_to_driver=False); print(sum(n['Alive'] for n in ray.nodes()))"
    end = time.monotonic() + 120
    while time.monotonic() < end:
        assert node.poll() is None
        done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=False)
        if done.stdout.strip() == str(count):
            return
        time.sleep(1)
    pytest.fail(f"{count} nodes did not come up")
