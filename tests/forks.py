"""Processes that begin with all that this one has imported, and can be killed at any moment."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager, suppress

from tqdm import tqdm

from exegete.cli import main


def _forge(orders, others_end):
    """For each order a fork that does it; tells its id, then how it ended. This process has one thread."""
    others_end.close()
    with suppress(EOFError):
        while True:
            order = orders.recv()
            child = os.fork()
            if not child:
                _own_bars(tqdm, threading.RLock())
                os.setsid()
                os._exit(_done(*order))
            orders.send(child)
            orders.send(os.waitpid(child, 0)[1])


def _own_bars(kind, lock):
    """A lock of its own for all kinds of bars, as of any process: one that forks share stays with a killed one."""
    kind.set_lock(lock)
    for each in kind.__subclasses__():
        _own_bars(each, lock)


def _done(function, *arguments):
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
        """Begins function(*arguments) in a new process, the first of a group."""
        self._orders.send((function, *arguments))
        self.pid, self._ended = self._orders.recv(), False

    def running(self, seconds=0.0):
        """Whether it still works after at most this many seconds."""
        return not self._ended and not self._orders.poll(seconds)

    def wait(self):
        """Its exit code once it has ended; negative: the signal it died of."""
        self._ended = True
        return os.waitstatus_to_exitcode(self._orders.recv())

    def kill(self, number=signal.SIGKILL, group=False):
        """Sends a signal to it, or to it and all that it started."""
        with suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self.pid, number)

    def end(self):
        """Kills what is left."""
        if not self._ended:
            self.kill(group=True)
            self.wait()
        self._orders.close()
        self._parent.join()


@contextmanager
def forge():
    """A forge that is ended after the block."""
    found = Forge()
    try:
        yield found
    finally:
        found.end()


def command(argv, said, before=None):
    """`exegete argv` as a process of its own has it; all that it prints goes into a file."""
    out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number in (1, 2):
        os.dup2(out, number)
    sys.stdin = open(os.devnull)  # noqa: SIM115
    sys.stdout, sys.stderr = (os.fdopen(os.dup(number), "w", buffering=1) for number in (1, 2))
    logging.getLogger().handlers.clear()
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if before is not None:
        before()
    return main([str(word) for word in argv])


def finished(found, argv, said, before=None):
    """Runs a command to its end: exit code, and what it printed."""
    found.start(command, argv, said, before)
    return found.wait(), said.read_text(errors="replace")


def seconds_of(function):
    """How long a call took, and what it gave."""
    began = time.monotonic()
    result = function()
    return time.monotonic() - began, result
