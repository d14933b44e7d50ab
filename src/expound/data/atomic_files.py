"""Files and folders that appear whole or not at all, and locks that end with the process that holds them."""

from __future__ import annotations

import errno
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

from filelock import FileLock, Timeout

from expound.errors import ExpoundError

LOCK = ".lock"
TEMPORARY = re.compile(r"\..+\.(?P<host>[0-9a-f]{8})-(?P<process>\d+)-(?P<started>\d+)\.[0-9a-f]{32}")


def process_start_time(process: int) -> str | None:
    """Return when a process of this machine started, in clock ticks since boot; None if it is not alive."""
    try:
        # The second field is the command in parentheses, which may hold spaces and parentheses itself.
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    # A zombie keeps its entry until its parent waits for it, but it writes no more.
    return None if fields[0] in "ZX" else fields[19]


def temporary_path(path: Path) -> Path:
    """Return a hidden name beside `path` to write to first; it names the writing process."""
    process = os.getpid()
    owner = f"{_host_id()}-{process}-{process_start_time(process) or 0}"
    return path.with_name(f".{path.name}.{owner}.{uuid.uuid4().hex}")


def remove_abandoned(path: Path) -> None:
    """Remove what dead processes of this machine left under temporary names of `path`."""
    for temporary in path.parent.glob(f".{escape(path.name)}.*"):
        owner = TEMPORARY.fullmatch(temporary.name)
        # Process numbers mean nothing on another machine, so files from there are left alone.
        if owner is None or owner["host"] != _host_id():
            continue
        # Process numbers are used again: only the start time tells a new process from the dead writer.
        if process_start_time(int(owner["process"])) == owner["started"]:
            continue
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; it becomes `path` when the block ends without an error.

    A reader sees the old file or the whole new one. The content is on disk before the name is.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_path(path)
    try:
        yield temporary
        _sync(temporary)
        remove_abandoned(path)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder to write into; it becomes `path` when the block ends without an error.

    Raises:
        FileExistsError: the folder exists at the end, as another process was faster; the existing one is kept.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_path(path)
    temporary.mkdir()
    try:
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                _sync(file)
        remove_abandoned(path)
        try:
            # rename(2) replaces an empty folder only, so a finished one is never lost to a late writer.
            temporary.rename(path)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Hold a lock file during the block, or yield False at once where another process or thread holds it.

    The file names the holder. The lock is the operating system's (flock), so it ends with its process, however that
    dies. On network file systems this assumes that flock works between machines, as on NFS version 4, and on Lustre
    mounted with `flock`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        yield False
        return
    try:
        owner = {"process": os.getpid(), "machine": platform.node(), "since": time.strftime("%Y-%m-%d %H:%M:%S %z")}
        path.write_text(json.dumps(owner), encoding="utf-8")
        yield True
    finally:
        # Removed while it is held: who has opened it meanwhile finds a file without a name, and opens a new one.
        # Removed after the release, it could be the file that the next process has just locked.
        path.unlink(missing_ok=True)
        lock.release()


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Keep other processes from writing into a folder during the block.

    Raises:
        ExpoundError: another process writes there; the message says which, on what machine, and since when.
    """
    path = folder / LOCK
    with try_lock(path) as acquired:
        if not acquired:
            raise ExpoundError(f"{folder} is being written by {_read_owner(path)}: wait, or choose another folder")
        yield


def remove_abandoned_lock(folder: Path) -> None:
    """Remove the lock file that a killed writer left in a folder; a living writer's stays."""
    if (folder / LOCK).exists():
        with suppress(OSError), try_lock(folder / LOCK):
            pass


def _sync(path: Path) -> None:
    """Wait until a file's content is on disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _read_owner(path: Path) -> str:
    try:
        owner = json.loads(path.read_text(encoding="utf-8"))
        return f"process {owner['process']} on {owner['machine']} since {owner['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


@cache
def _host_id() -> str:
    """Return 8 digits for this machine since its boot and this container: where a process number is unique."""
    boot = container = "?"
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with suppress(OSError):
        container = os.readlink("/proc/self/ns/pid")
    return blake2b(f"{platform.node()} {boot} {container}".encode(), digest_size=4).hexdigest()
