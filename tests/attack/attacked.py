"""The size of an attack, and the record of its outcomes."""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

from hypothesis import HealthCheck, settings

LONG = os.environ.get("EXPOUND_ATTACK") == "long"
"""True in `make attack`; `make test` does a twentieth of the cases, and a fortieth of those that Hypothesis draws."""
FIGURES = os.environ.get("EXPOUND_ATTACK_FIGURES")
"""A file to which each attack adds a line."""


def scale_count(count):
    """The count itself in the long run, a twentieth of it in the short one."""
    return count if LONG else -(-count // 20)


def cases(count, **more):
    """Hypothesis's settings for a number of cases: the short run's are always the same, the long run's are new."""
    return settings(
        max_examples=count if LONG else -(-count // 40),
        deadline=None,
        database=None,
        derandomize=not LONG,
        suppress_health_check=list(HealthCheck),
        **more,
    )


@contextmanager
def record_outcomes(attack, what):
    """Yields a counter of the outcomes of an attack; appends it to the file of figures unless the block raises."""
    counts, began = Counter(), _seconds()
    yield counts
    if FIGURES:
        line = {"attack": attack, "what": what, "seconds": round(_seconds() - began, 1), **counts}
        with Path(FIGURES).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _seconds():
    """CPU time of this process and of the child processes it waited for."""
    return sum(os.times()[:4])
