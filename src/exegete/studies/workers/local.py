"""Workers on this machine: one process each, with threads and a GPU of its own."""

from __future__ import annotations

import logging
import multiprocessing as mp
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.resource_tracker import ensure_running
from pathlib import Path

import torch
from datasets import disable_progress_bars
from transformers.utils import logging as transformers_logging

from exegete.studies.runs.run_cell import CellResult, try_cell
from exegete.studies.runs.store import Cell

GRACE = 120.0
STOPS = (signal.SIGINT, signal.SIGTERM)
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass
class _Worker:
    """A process, the pipe to it, and the run it is at."""

    process: SpawnProcess
    pipe: Connection
    cell: Cell | None = None


class LocalWorkers:
    """`count` processes started afresh (not forked), in place of which new ones come when they die.

    Args:
        root: the store.
        count: runs at a time.
        threads: of each; default: an equal share of the cores.
        gpus: how many there are to share; worker i sees GPU i modulo that number alone. Default: all.
    """

    def __init__(self, root: Path, count: int = 1, threads: int | None = None, gpus: int | None = None) -> None:
        self.root = root
        self.threads = threads or max(1, available_cores() // count)
        self.gpus = _count_gpus() if gpus is None else gpus
        self.workers = [self._start_process(number) for number in range(count)]

    @property
    def free_count(self) -> int:
        """The number of idle worker processes."""
        return sum(worker.cell is None for worker in self.workers)

    def start(self, cell: Cell) -> None:
        """Sends a run to an idle process; a dead one is replaced first."""
        number = next(number for number, worker in enumerate(self.workers) if worker.cell is None)
        if not self.workers[number].process.is_alive():
            self.workers[number] = self._start_process(number)
        worker = self.workers[number]
        worker.cell = cell
        try:
            worker.pipe.send(cell)
        except OSError:
            worker.process.join()

    def wait(self, seconds: float) -> list[CellResult]:
        """The runs that have ended, including one whose process died in the middle of it."""
        busy = [worker for worker in self.workers if worker.cell is not None]
        if not busy:
            time.sleep(seconds)
            return []
        signs: list[Connection | int] = [worker.pipe for worker in busy]
        wait([*signs, *(worker.process.sentinel for worker in busy)], seconds)
        ended = (self._collect_result(number, worker) for number, worker in enumerate(self.workers))
        return [each for each in ended if each is not None]

    def close(self) -> None:
        """Asks running processes to save and end, and ends those that do not."""
        for worker in self.workers:
            worker.pipe.close()
            if worker.cell is not None and worker.process.is_alive():
                worker.process.terminate()
        deadline = time.monotonic() + GRACE
        for worker in self.workers:
            worker.process.join(max(0.1, deadline - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()

    def _collect_result(self, number: int, worker: _Worker) -> CellResult | None:
        if worker.cell is None:
            return None
        key, alive = worker.cell.key, worker.process.is_alive()
        try:
            if worker.pipe.poll():
                ended: CellResult = worker.pipe.recv()
                worker.cell = None
                return ended
        except (EOFError, OSError):
            worker.process.join()
            alive = False
        if alive:
            return None
        self.workers[number] = self._start_process(number)
        return CellResult(key, "killed", f"its process died ({_describe_exit(worker.process.exitcode)})")

    def _start_process(self, number: int) -> _Worker:
        ours, theirs = mp.Pipe()
        variables = dict.fromkeys(THREAD_VARIABLES, str(self.threads)) | {"TOKENIZERS_PARALLELISM": "false"}
        if self.gpus:
            variables["CUDA_VISIBLE_DEVICES"] = _gpu_name(number % self.gpus)
        context = mp.get_context("spawn")
        process = context.Process(target=_run_worker, args=(theirs, self.root, self.threads), name=f"worker {number}")
        with _set_environment(variables), _block_signals():
            process.start()
        theirs.close()
        return _Worker(process, ours)


def _run_worker(pipe: Connection, root: Path, threads: int) -> None:
    """A worker's life: runs that come through the pipe, until it is closed."""
    os.setpgrp()
    _accept_signals()
    prepare_worker(threads)
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    while True:
        try:
            cell = pipe.recv()
        except (EOFError, OSError):
            return
        ended = try_cell(cell, root, threads=threads)
        try:
            pipe.send(ended)
        except OSError:
            return


@contextmanager
def _block_signals() -> Iterator[None]:
    """What is started in the block sees no Ctrl-C and no SIGTERM until it listens, and is handed over whole."""
    ensure_running()  # what it begins with lets these signals through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _accept_signals() -> None:
    """Forgets a Ctrl-C that came while this process started: it was meant for the command, which says what to do."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGINT, before)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)


def prepare_worker(threads: int) -> None:
    """Sets threads and logging in a worker process before its first run."""
    torch.set_num_threads(threads)
    disable_progress_bars()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    for name in ("exegete.models.encoding.encode", "bitsandbytes"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _stop_with_parent() -> None:
    """When the command is gone, however it went: save and stop, as it would have asked."""
    parent = mp.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _describe_exit(code: int | None) -> str:
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}"


def available_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _count_gpus() -> int:
    return torch.cuda.device_count()


def _gpu_name(number: int) -> str:
    """The GPU's name among those that this process may see."""
    names = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return names[number] if number < len(names) else str(number)


@contextmanager
def _set_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """The variables for what is started in the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
