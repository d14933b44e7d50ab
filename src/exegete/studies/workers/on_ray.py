"""Workers on a Ray cluster: the same runs as Ray tasks. All machines must see the store under the same path."""

from __future__ import annotations

import logging
import signal
import socket
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from exegete.errors import ExegeteError
from exegete.studies.runs.run_cell import CellResult, try_cell
from exegete.studies.runs.store import Cell
from exegete.studies.workers.local import prepare_worker

logger = logging.getLogger(__name__)

MARK = ".store"


class RayWorkers:
    """Runs as tasks of a Ray cluster, each with `threads` CPUs and a share of a GPU where there are some.

    Args:
        root: the store, on a file system that all machines share.
        count: runs at a time; default: as many as the cluster has CPUs for.
        threads: of each run.
        address: of the cluster; default: the one that runs here (or $RAY_ADDRESS), else one is started for the study.

    Raises:
        ExegeteError: Ray is not installed.
    """

    def __init__(self, root: Path, count: int | None = None, threads: int = 1, address: str | None = None) -> None:
        try:
            import ray  # an extra
        except ImportError as error:
            raise ExegeteError("--engine ray needs the extra 'cluster': pip install 'exegete[cluster]'") from error
        self.ray: Any = ray
        self.root, self.mark = root.absolute(), _write_mark(root)
        self.ours, self.on_sigterm = not ray.is_initialized(), signal.getsignal(signal.SIGTERM)
        if self.ours:
            join_cluster(ray, address)
        resources = ray.cluster_resources()
        self.count = count or max(1, int(resources.get("CPU", 1)) // threads)
        gpus = resources.get("GPU", 0) / self.count
        options = {"num_cpus": threads, "num_gpus": gpus if gpus < 1 else int(gpus), "max_retries": 0}
        self.task = ray.remote(**options)(_run_task)
        self.threads, self.running = threads, dict[Any, Cell]()

    @property
    def free_count(self) -> int:
        """How many more tasks to hand in."""
        return self.count - len(self.running)

    def start(self, cell: Cell) -> None:
        """Submits a run to Ray as a task."""
        self.running[self.task.remote(cell, self.root, self.mark, self.threads)] = cell

    def wait(self, seconds: float) -> list[CellResult]:
        """Reads the result of every task that has ended; one whose process or machine died counts as killed."""
        if not self.running:
            time.sleep(seconds)
            return []
        ready, _ = self.ray.wait(list(self.running), num_returns=1, timeout=seconds)
        return [self._collect_result(each, self.running.pop(each)) for each in ready]

    def close(self) -> None:
        """Cancels what runs: it is told to save and end. Leaves a cluster joined here, and the signals as they were."""
        for each in self.running:
            self.ray.cancel(each, force=False)
        self.running.clear()
        if self.ours:
            self.ray.shutdown()
            with suppress(ValueError):  # outside of the main thread, where Ray has left signals alone, too
                signal.signal(signal.SIGTERM, self.on_sigterm or signal.SIG_DFL)

    def _collect_result(self, task: Any, cell: Cell) -> CellResult:
        try:
            ended: CellResult = self.ray.get(task)
        except self.ray.exceptions.RayTaskError as error:
            return CellResult(cell.key, "failed", str(error.cause))
        except self.ray.exceptions.RayError as error:
            return CellResult(cell.key, "killed", f"its process died ({type(error).__name__})")
        return ended


def _run_task(cell: Cell, root: Path, mark: str, threads: int) -> CellResult:
    """A run on whatever machine it lands."""
    prepare_worker(threads)
    try:
        seen = (root / MARK).read_text(encoding="utf-8")
    except OSError:
        seen = ""
    if seen != mark:
        return CellResult(cell.key, "refused", f"a machine of the cluster does not see {root}: put it on a shared disk")
    return try_cell(cell, root, threads=threads)


def _write_mark(root: Path) -> str:
    """The content of the store's mark; a machine that reads the same content sees the same store."""
    root.mkdir(parents=True, exist_ok=True)
    path = root / MARK
    if not path.exists():
        path.write_text(uuid.uuid4().hex, encoding="utf-8")
    return path.read_text(encoding="utf-8")


def join_cluster(ray: Any, address: str | None) -> None:
    """Connects to a cluster, or starts one of this machine where none was named and none is running.

    Raises:
        ExegeteError: there is no cluster at the address.
    """
    if address is not None:
        _require_reachable(address)
    quiet = {"log_to_driver": False, "logging_level": logging.WARNING}
    try:
        ray.init(address=address or "auto", **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        if address is not None:
            raise ExegeteError(f"there is no Ray cluster at {address}: {str(error).splitlines()[0]}") from error
        ray.init(**quiet)


def _require_reachable(address: str) -> None:
    """Ray itself takes minutes to say that nobody answers."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except OSError as error:
            raise ExegeteError(f"there is no Ray cluster at {address}: {error.strerror or error}") from error
