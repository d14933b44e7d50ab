"""Threads: a call changes the model that it looks into, so a model has one lock; models do not wait for each other."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
Lock = AbstractContextManager[Any]

PROCESS_LOCK: Lock = threading.RLock()
"""For what libraries keep once for the whole process: seeds of global generators, switches of kernels, warnings."""
_guard, _locks = threading.Lock(), dict[int, Lock]()


class Lockable(Protocol):
    """An object that has a lock of its own."""

    def lock(self) -> Lock:
        """Inside the block no other thread looks into it."""


def get_lock(thing: Any) -> Lock:
    """The re-entrant lock of an object, made when it is first asked for, gone with the object.

    It is kept apart from the object: that stays as it is, and can be copied and compared.
    """
    with _guard:
        if id(thing) not in _locks:
            _locks[id(thing)] = threading.RLock()
            with suppress(TypeError):  # what takes no weak reference, as None, keeps its lock
                weakref.finalize(thing, _locks.pop, id(thing), None).atexit = False
        return _locks[id(thing)]


S = TypeVar("S", bound=Lockable)


def with_lock(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """The method, for one thread at a time."""

    @wraps(method)
    def alone(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.lock():
            return method(self, *args, **kwargs)

    return alone
