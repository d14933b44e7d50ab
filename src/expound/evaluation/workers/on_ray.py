"""Executes tasks on a Ray cluster. All machines must see the results' folder under the same path."""

from __future__ import annotations

import logging
import signal
import socket
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from expound.errors import ExpoundError
from expound.evaluation.workers.local import prepare_worker
from expound.evaluation.workers.scheduler import Task, TaskResult, try_task

logger = logging.getLogger(__name__)

MARK = ".shared_folder"


class RayWorkers:
    """Executes tasks on Ray, each with `threads` CPUs and an equal share of the cluster's GPUs.

    Args:
        root: the folder of the results, on a file system that all machines share.
        count: number of tasks at a time; default: as many as the cluster has CPUs for.
        threads: CPUs of each task.
        address: address of the cluster; default: the one running on this machine (or $RAY_ADDRESS), else a new one.

    Raises:
        ExpoundError: Ray is not installed.
    """

    def __init__(self, root: Path, count: int | None = None, threads: int = 1, address: str | None = None) -> None:
        try:
            import ray
        except ImportError as error:
            raise ExpoundError("Ray needs the extra 'cluster': pip install 'expound[cluster]'") from error
        self.ray: Any = ray
        self.root, self.mark = root.absolute(), _write_mark(root)
        self.ours, self.on_sigterm = not ray.is_initialized(), signal.getsignal(signal.SIGTERM)
        if self.ours:
            join_cluster(ray, address)
        resources = ray.cluster_resources()
        self.count = count or max(1, int(resources.get("CPU", 1)) // threads)
        gpus = resources.get("GPU", 0) / self.count
        # Ray accepts fractions of one GPU, but only whole numbers above that. Retries are the scheduler's.
        options = {"num_cpus": threads, "num_gpus": gpus if gpus < 1 else int(gpus), "max_retries": 0}
        self.submit = ray.remote(**options)(_run_task)
        self.threads, self.running = threads, dict[Any, Task]()

    @property
    def free_count(self) -> int:
        """The number of tasks that could be started now."""
        return self.count - len(self.running)

    def start(self, task: Task) -> None:
        """Submit a task to Ray."""
        self.running[self.submit.remote(task, self.root, self.mark, self.threads)] = task

    def wait(self, seconds: float) -> list[TaskResult]:
        """Return the results of tasks that have ended; a task whose process or machine died counts as killed."""
        if not self.running:
            time.sleep(seconds)
            return []
        ready, _ = self.ray.wait(list(self.running), num_returns=1, timeout=seconds)
        return [self._collect_result(each, self.running.pop(each)) for each in ready]

    def close(self) -> None:
        """Cancel running tasks, which save and end; leave a cluster that was joined here; restore signal handlers."""
        for each in self.running:
            # Without force Ray sends KeyboardInterrupt to the task, which then writes a checkpoint.
            self.ray.cancel(each, force=False)
        self.running.clear()
        if self.ours:
            self.ray.shutdown()
            # ray.init replaces the SIGTERM handler. Outside the main thread it cannot, and neither can this.
            with suppress(ValueError):
                signal.signal(signal.SIGTERM, self.on_sigterm or signal.SIG_DFL)

    def _collect_result(self, reference: Any, task: Task) -> TaskResult:
        try:
            result: TaskResult = self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:
            return TaskResult(task.key, "failed", str(error.cause))
        except self.ray.exceptions.RayError as error:
            return TaskResult(task.key, "killed", f"its process died ({type(error).__name__})")
        return result


def _run_task(task: Task, root: Path, mark: str, threads: int) -> TaskResult:
    """Execute a task on a machine of the cluster, after checking that it sees the same folder."""
    prepare_worker(threads)
    try:
        content = (root / MARK).read_text(encoding="utf-8")
    except OSError:
        content = ""
    if content != mark:
        return TaskResult(task.key, "refused", f"a machine of the cluster does not see {root}: put it on a shared disk")
    return try_task(task, threads)


def _write_mark(root: Path) -> str:
    """Return the random content of the folder's mark file, written once.

    A machine that reads the same content sees the same folder, not just one of the same name.
    """
    root.mkdir(parents=True, exist_ok=True)
    path = root / MARK
    if not path.exists():
        path.write_text(uuid.uuid4().hex, encoding="utf-8")
    return path.read_text(encoding="utf-8")


def join_cluster(ray: Any, address: str | None) -> None:
    """Connect to a cluster; without an address, to the one running on this machine or else a new one.

    Raises:
        ExpoundError: no cluster answers at the address.
    """
    if address is not None:
        _require_reachable(address)
    quiet = {"log_to_driver": False, "logging_level": logging.WARNING}
    try:
        ray.init(address=address or "auto", **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        if address is not None:
            raise ExpoundError(f"there is no Ray cluster at {address}: {str(error).splitlines()[0]}") from error
        ray.init(**quiet)


def _require_reachable(address: str) -> None:
    """Raise ExpoundError unless a server answers at the address."""
    # Ray itself waits for minutes before it reports an unreachable address.
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except OSError as error:
            raise ExpoundError(f"there is no Ray cluster at {address}: {error.strerror or error}") from error
