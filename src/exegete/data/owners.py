"""Whose a file is: names that tell what a killed process left, and folders that one process writes at a time."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from glob import escape
from hashlib import blake2b
from pathlib import Path
from typing import TextIO

from exegete.errors import ExegeteError

LOCK = ".lock"
UNFINISHED = re.compile(r"\..+\.(?P<machine>[0-9a-f]{8})-(?P<process>\d+)-(?P<born>\d+)\.[0-9a-f]{32}")


def here() -> str:
    """This machine since its last start, and this container of it: where a process number means one process."""
    parts = [platform.node()]
    for fact in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        try:
            parts.append(os.readlink(fact) if fact.endswith("pid") else Path(fact).read_text().strip())
        except OSError:
            parts.append("?")
    return " ".join(parts)


def born(process: int) -> str | None:
    """When a process of this machine started, in the system's own count; None when it is not alive."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def unfinished(path: Path) -> Path:
    """A hidden name beside a path for what becomes it when it is whole; it says whose it is."""
    process = os.getpid()
    return path.with_name(f".{path.name}.{_machine()}-{process}-{born(process) or 0}.{uuid.uuid4().hex}")


def sweep(path: Path) -> None:
    """Removes what processes of this machine that are dead left under hidden names for a path."""
    for left in path.parent.glob(f".{escape(path.name)}.*"):
        owner = UNFINISHED.fullmatch(left.name)
        if owner is not None and owner["machine"] == _machine() and born(int(owner["process"])) != owner["born"]:
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Inside the block no other process can be here with the same folder; a killed one does not stay in the way.

    Raises:
        ExegeteError: somebody writes there; it says who, where and since when.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = _locked(folder / LOCK)
    try:
        file.truncate(0)
        owner = {"process": os.getpid(), "machine": platform.node(), "since": time.strftime("%Y-%m-%d %H:%M:%S %z")}
        file.write(json.dumps(owner))
        file.flush()
        yield
    finally:
        (folder / LOCK).unlink(missing_ok=True)
        file.close()


def sweep_lock(folder: Path) -> None:
    """Removes the lock that a killed writer left in a folder, if it can be removed; that of a living one stays."""
    if (folder / LOCK).exists():
        with suppress(ExegeteError, OSError), only_writer(folder):
            pass


def _locked(path: Path) -> TextIO:
    """The lock's file, ours. One that its owner has removed meanwhile is none."""
    while True:
        file = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file.fileno()).st_ino == path.stat().st_ino:
                return file
        except FileNotFoundError:
            pass
        except BlockingIOError:
            file.seek(0)
            owner = _named(file.read())
            file.close()
            raise ExegeteError(f"{path.parent} is being written by {owner}: wait, or choose another folder") from None
        file.close()


def _named(text: str) -> str:
    try:
        owner = json.loads(text)
        return f"process {owner['process']} on {owner['machine']} since {owner['since']}"
    except (ValueError, KeyError, TypeError):
        return "another process"


@cache
def _machine() -> str:
    return blake2b(here().encode(), digest_size=4).hexdigest()
