"""The speed of a machine in operations a CPU second, as a folder of runs keeps it."""

from __future__ import annotations

import json
import os
import platform
from typing import NamedTuple

from exegete.data.provenance import write_json
from exegete.studies.runs.store import Store


class Speed(NamedTuple):
    """Operations a CPU second: of a training step, of one in bfloat16, and of a pass alone."""

    training: float = 6e10
    bfloat16: float = 9e10
    judging: float = 6e10


USUAL = Speed()
"""Of the machine that the files of this project were made for."""


def known(store: Store) -> Speed | None:
    """This machine's speed, if it was measured."""
    path = store.root / "speed.json"
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return Speed(*kept[_machine()]) if _machine() in kept else None


def keep(store: Store, speed: Speed) -> Speed:
    """Writes this machine's speed beside those of others that share the folder."""
    path = store.root / "speed.json"
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    write_json(path, {**kept, _machine(): speed})
    return speed


def _machine() -> str:
    return f"{platform.node()}, {platform.machine()}, {os.cpu_count()} cores"
