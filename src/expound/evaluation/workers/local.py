"""Executes tasks in processes of this machine, each with its own threads and GPU."""

from __future__ import annotations

import logging
import multiprocessing as mp
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.resource_tracker import ensure_running

import torch
from accelerate.utils import patch_environment
from datasets import disable_progress_bars
from transformers.utils import logging as transformers_logging

from expound.evaluation.workers.scheduler import Task, TaskResult, available_cores, try_task

GRACE = 120.0
STOPS = (signal.SIGINT, signal.SIGTERM)
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass
class _Worker:
    """A worker process, the pipe to it, and the task that it executes."""

    process: SpawnProcess
    pipe: Connection
    task: Task | None = None


class LocalWorkers:
    """A pool of worker processes; a process that dies is replaced.

    Args:
        count: number of processes.
        threads: threads of each process; default: an equal share of the cores.
        gpus: number of GPUs; worker i sees only GPU i modulo this number. Default: all of this machine.
    """

    def __init__(self, count: int = 1, threads: int | None = None, gpus: int | None = None) -> None:
        self.threads = threads or max(1, available_cores() // count)
        self.gpus = torch.cuda.device_count() if gpus is None else gpus
        self.workers = [self._start_process(number) for number in range(count)]

    @property
    def free_count(self) -> int:
        """The number of idle worker processes."""
        return sum(worker.task is None for worker in self.workers)

    def start(self, task: Task) -> None:
        """Send a task to an idle process; a dead process is replaced first."""
        number = [worker.task for worker in self.workers].index(None)
        if not self.workers[number].process.is_alive():
            self.workers[number] = self._start_process(number)
        worker = self.workers[number]
        worker.task = task
        try:
            worker.pipe.send(task)
        except OSError:
            # The process has died meanwhile: `wait` finds it and reports the task as killed.
            worker.process.join()

    def wait(self, seconds: float) -> list[TaskResult]:
        """Return the results of the tasks that have ended, including tasks whose process died."""
        signs = list[Connection | int]()
        for worker in self.workers:
            if worker.task is not None:
                # A dead worker's own children may keep its pipe open, so the process itself is watched as well.
                signs += [worker.pipe, worker.process.sentinel]
        if not signs:
            time.sleep(seconds)
            return []
        wait(signs, seconds)
        results = [self._collect_result(number, worker) for number, worker in enumerate(self.workers)]
        return [result for result in results if result is not None]

    def close(self) -> None:
        """Ask running processes to save and end; kill the processes that still run after the grace period."""
        for worker in self.workers:
            worker.pipe.close()
            if worker.task is not None and worker.process.is_alive():
                worker.process.terminate()
        deadline = time.monotonic() + GRACE
        for worker in self.workers:
            worker.process.join(max(0.1, deadline - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()

    def _collect_result(self, number: int, worker: _Worker) -> TaskResult | None:
        """Return how a worker's task ended; None while it is running."""
        if worker.task is None:
            return None
        # Asked before the pipe is read: a process that sends its result and dies then has still finished its task.
        key, alive = worker.task.key, worker.process.is_alive()
        try:
            if worker.pipe.poll():
                result: TaskResult = worker.pipe.recv()
                worker.task = None
                return result
        except (EOFError, OSError):
            worker.process.join()
            alive = False
        if alive:
            return None
        self.workers[number] = self._start_process(number)
        return TaskResult(key, "killed", f"its process died ({_describe_exit(worker.process.exitcode)})")

    def _start_process(self, number: int) -> _Worker:
        ours, theirs = mp.Pipe()
        variables = dict.fromkeys(THREAD_VARIABLES, str(self.threads)) | {"TOKENIZERS_PARALLELISM": "false"}
        if self.gpus:
            variables["CUDA_VISIBLE_DEVICES"] = _gpu_name(number % self.gpus)
        # Not forked: CUDA and torch's thread pools do not survive a fork.
        context = mp.get_context("spawn")
        process = context.Process(target=_run_worker, args=(theirs, self.threads), name=f"worker {number}")
        with patch_environment(**variables), _block_signals():
            process.start()
        # With our copy of their end open, the worker's death would never close the pipe.
        theirs.close()
        return _Worker(process, ours)


def _run_worker(pipe: Connection, threads: int) -> None:
    """Execute tasks from the pipe until it is closed; the main function of a worker process."""
    # A process group of its own: Ctrl-C in the terminal reaches the command alone, which then stops its workers.
    os.setpgrp()
    _accept_signals()
    prepare_worker(threads)
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    while True:
        try:
            task = pipe.recv()
        except (EOFError, OSError):
            return
        result = try_task(task, threads)
        try:
            pipe.send(result)
        except OSError:
            return


@contextmanager
def _block_signals() -> Iterator[None]:
    """Block SIGINT and SIGTERM for processes that start in the block, until they call `_accept_signals`."""
    # Started before the mask is set: multiprocessing's resource tracker unblocks these signals when it starts.
    ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _accept_signals() -> None:
    """Discard a Ctrl-C that came during the start of this process, and unblock the signals."""
    # The command got the same Ctrl-C and decides. Ignoring a pending signal discards it.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGINT, before)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)


def prepare_worker(threads: int) -> None:
    """Set threads and logging of a worker process before its first task."""
    torch.set_num_threads(threads)
    disable_progress_bars()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    logging.getLogger("expound.models.encoding.encode").setLevel(logging.ERROR)


def _stop_with_parent() -> None:
    """Wait for the end of the parent process, then stop this one with SIGTERM, so that it saves."""
    parent = mp.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _describe_exit(code: int | None) -> str:
    # multiprocessing gives the number of a signal as a negative exit code.
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}"


def _gpu_name(number: int) -> str:
    """Return the name of a GPU that CUDA_VISIBLE_DEVICES lets this process see."""
    names = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return names[number] if number < len(names) else str(number)
