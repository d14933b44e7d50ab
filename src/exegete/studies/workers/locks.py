"""Who works on what: a file that names its owner and is touched while the owner lives."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from exegete.data.owners import born, here, sweep, unfinished

logger = logging.getLogger(__name__)

BEAT, STALE = 30.0, 90.0
LOST = 75
_OWNER = uuid.uuid4().hex


@contextmanager
def claim(
    path: Path, beat: float = BEAT, stale: float = STALE, lost: Callable[[], None] = lambda: os._exit(LOST)
) -> Iterator[bool]:
    """Whether the claim is ours for the time of the block; False when another living process has it.

    A claim is open to others when its owner has not touched it for `stale` seconds by the file system's clock, or is
    known to be dead because it lived on this machine. A process that finds its claim taken over (it was frozen, or cut
    off) calls `lost`, which by default ends it: what it would write belongs to another one now.
    """
    token = f"{_OWNER}-{uuid.uuid4().hex[:8]}"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not _taken(path, token, stale):
        yield False
        return
    ended = threading.Event()
    heart = threading.Thread(target=_beat, args=(path, token, beat, stale, ended, lost), daemon=True)
    heart.start()
    try:
        yield True
    finally:
        ended.set()
        heart.join()
        sweep(path)
        if _owner(path).get("token") == token:
            path.unlink(missing_ok=True)


def _taken(path: Path, token: str, stale: float) -> bool:
    """Makes the claim; takes over a silent one by renaming it, so that one of several wins."""
    if _made(path, token):
        return True
    with _alone(path.parent / ".lock"):
        if not _open(path, stale):
            return False
        aside = unfinished(path)
        try:
            os.rename(path, aside)
        except FileNotFoundError:
            pass
        else:
            logger.warning("%s was silent: taken over", path.name)
            aside.unlink(missing_ok=True)
        return _made(path, token)


def _made(path: Path, token: str) -> bool:
    """Puts a whole claim under its name, or finds the name taken."""
    fresh = unfinished(path)
    fresh.write_text(json.dumps({"token": token, "where": here(), "process": os.getpid(), "born": born(os.getpid())}))
    try:
        os.link(fresh, path)
    except FileExistsError:
        return False
    finally:
        fresh.unlink(missing_ok=True)
    return True


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Inside the block nobody else is here; the file goes with it, and who waited for it waits for the next one."""
    while True:
        with path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                if os.fstat(file.fileno()).st_ino != path.stat().st_ino:
                    continue
            except FileNotFoundError:
                continue
            try:
                yield
            finally:
                path.unlink()
            return


def _open(path: Path, stale: float) -> bool:
    """Whether a claim may be taken over."""
    owner = _owner(path)
    if owner.get("where") == here() and owner["born"] != born(owner["process"]):
        return True
    try:
        return _now(path) - path.stat().st_mtime > stale
    except FileNotFoundError:
        return True


def _owner(path: Path) -> dict[str, Any]:
    try:
        owner: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return owner


def _now(path: Path) -> float:
    """The time by the clock of the file system that the claim is on."""
    probe = unfinished(path)
    try:
        probe.touch()
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


def _beat(path: Path, token: str, beat: float, stale: float, ended: threading.Event, lost: Callable[[], None]) -> None:
    """Touches the claim until the end; a claim that is not ours any more, or cannot be reached for long, is lost."""
    silent = 0.0
    while not ended.wait(beat):
        owner = _owner(path)
        if owner.get("token") == token:
            try:
                os.utime(path)
                silent = 0.0
                continue
            except OSError as error:
                logger.warning("%s cannot be touched: %s", path.name, error)
        silent += beat
        if owner.get("token") not in (token, None) or silent >= stale:
            logger.warning("%s: the claim is lost to another process", path.name)
            lost()
            return
