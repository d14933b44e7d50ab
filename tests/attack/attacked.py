"""How large an attack is, and what is written down of it."""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

from hypothesis import HealthCheck, settings

LONG = os.environ.get("EXEGETE_ATTACK") == "long"
"""Whether this is `make attack`; `make test` does a tenth."""
FIGURES = os.environ.get("EXEGETE_ATTACK_FIGURES")
"""A file to which each attack adds a line."""


def times(count):
    """So often in the long run, a tenth in the short one."""
    return count if LONG else -(-count // 10)


def cases(count, **more):
    """Hypothesis's settings for a number of cases: the short run's are always the same, the long run's are new."""
    return settings(
        max_examples=times(count),
        deadline=None,
        database=None,
        derandomize=not LONG,
        suppress_health_check=list(HealthCheck),
        **more,
    )


@contextmanager
def noted(attack, what):
    """Counts the outcomes of an attack in the block, and writes them to a file if none is a failure."""
    seen, began = Counter(), _seconds()
    yield seen
    if FIGURES:
        line = {"attack": attack, "what": what, "seconds": round(_seconds() - began, 1), **seen}
        with Path(FIGURES).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _seconds():
    """CPU time of this process and of those it waited for."""
    return sum(os.times()[:4])
