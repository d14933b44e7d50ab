"""Forks of this process, which need not import anything again, and can be killed at any moment."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from contextlib import contextmanager, suppress
from importlib import import_module

from tqdm import tqdm

from expound.cli import main


def _forge(orders, others_end):
    """Runs each order in a fork; sends its process id, then its exit status. This process has one thread."""
    others_end.close()
    with suppress(EOFError):
        while True:
            order = orders.recv()
            child = os.fork()
            if not child:
                _give_bars_own_lock(tqdm, threading.RLock())
                os.setsid()
                os._exit(_run_order(*order))
            orders.send(child)
            orders.send(os.waitpid(child, 0)[1])


def _give_bars_own_lock(kind, lock):
    """Gives all kinds of progress bars a new lock: a fork that is killed would keep a shared one."""
    kind.set_lock(lock)
    for each in kind.__subclasses__():
        _give_bars_own_lock(each, lock)


def _run_order(function, *arguments):
    try:
        return function(*arguments) or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    finally:
        sys.stdout.flush(), sys.stderr.flush()


class Forge:
    """Starts functions in forks, one at a time; `kill` and `wait` are for the last one."""

    def __init__(self):
        context = multiprocessing.get_context("fork")
        self._orders, theirs = context.Pipe()
        self._parent = context.Process(target=_forge, args=(theirs, self._orders))
        self._parent.start()
        theirs.close()
        self.pid, self._ended = None, True

    def start(self, function, *arguments):
        """Starts function(*arguments) in a new process, which leads a new process group."""
        self._orders.send((function, *arguments))
        self.pid, self._ended = self._orders.recv(), False

    def running(self, seconds=0.0):
        """Whether the process still runs after at most this many seconds."""
        return not self._ended and not self._orders.poll(seconds)

    def wait(self):
        """Waits for the process, and returns its exit code; a negative one is the signal that killed it."""
        self._ended = True
        return os.waitstatus_to_exitcode(self._orders.recv())

    def kill(self, number=signal.SIGKILL, group=False):
        """Sends a signal to the process, or to its whole group."""
        with suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self.pid, number)

    def end(self):
        """Kills the processes that are left."""
        if not self._ended:
            self.kill(group=True)
            self.wait()
        self._orders.close()
        self._parent.join()


@contextmanager
def forge():
    """Gives a forge, which is ended after the block."""
    # what is imported before the fork is not imported again by each command that trains
    import_module("expound.training.loop.trainer")
    new = Forge()
    try:
        yield new
    finally:
        new.end()


def command(argv, output, before=None):
    """Runs `expound argv` as in a new process; writes all that it prints into a file."""
    redirect(os.open(os.devnull, os.O_RDONLY), os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
    if before is not None:
        before()
    return main([str(word) for word in argv])


def command_in_terminal(terminal, argv):
    """Runs `expound argv` as in a new process whose input and output are the terminal."""
    for name in ("NO_COLOR", "COLUMNS", "CI"):
        os.environ.pop(name, None)
    os.environ["TERM"] = "xterm-256color"
    device = os.open(terminal, os.O_RDWR)
    redirect(device, device)
    return main([str(word) for word in argv])


def redirect(given, told):
    """Makes two open files the input and the output of this process, which has the settings of a new one."""
    for file, number in ((given, 0), (told, 1), (told, 2)):
        os.dup2(file, number)
    sys.stdin = os.fdopen(os.dup(0))
    sys.stdout, sys.stderr = (os.fdopen(os.dup(number), "w", buffering=1) for number in (1, 2))
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    logging.getLogger().handlers.clear()
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"}
    signal.signal(signal.SIGINT, signal.default_int_handler)


def run_to_end(process_forge, argv, output, before=None):
    """Runs a command to its end; returns its exit code and its output."""
    process_forge.start(command, argv, output, before)
    return process_forge.wait(), output.read_text(errors="replace")


def seconds_of(function):
    """The seconds that a call took, and its result."""
    began = time.monotonic()
    result = function()
    return time.monotonic() - began, result


def find_free_port() -> int:
    """The number of a port that nobody listens to now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
