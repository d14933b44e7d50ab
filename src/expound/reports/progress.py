"""A progress bar that appears after a second, with an estimate before the first part of the work is done."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer

from tqdm.auto import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

logger = logging.getLogger(__name__)
DELAY = 1.0
"""Seconds before a bar appears."""
FORMAT = "{desc}: {percentage:3.0f} %|{bar:20}| {elapsed}, left: {remaining}{postfix}"
SLOW_FACTOR = 10.0
"""A warning is logged when the work takes this many times its estimate, …"""
SLOW_SECONDS = 5.0
"""… and at least this many seconds."""


@contextmanager
def progress_bar(
    description: str, total: float, show: bool | None = None, estimate: Callable[[], float] | None = None
) -> Iterator[Callable[[float], None]]:
    """Yield a function that adds an amount of finished work to a progress bar on stderr.

    Log messages appear above the bar. A warning is logged once when the work takes ten times its estimate.

    Args:
        description: the text before the bar.
        total: the amount of all work, in any unit.
        show: whether to show the bar; default: if stderr is a terminal or a notebook.
        estimate: returns the seconds that all work may take; called only if the bar is shown.
    """
    if show is None:
        show = is_interactive()
    with tqdm(total=total, desc=description, disable=not show, delay=DELAY, bar_format=FORMAT, leave=False) as bar:
        if bar.disable:
            yield lambda done: None
            return
        start, seconds = time.monotonic(), None if estimate is None else estimate()
        warned = False

        def appear() -> None:
            if seconds is not None and not bar.n:
                bar.set_postfix_str(f"about {tqdm.format_interval(seconds)} in all", refresh=False)
            bar.delay = 0
            bar.refresh()

        def update(done: float) -> None:
            nonlocal warned
            bar.set_postfix_str("", refresh=False)
            bar.update(done)
            elapsed = time.monotonic() - start
            limit = max(SLOW_SECONDS, SLOW_FACTOR * (seconds or 0.0) * bar.n / max(total, 1e-9))
            if not warned and seconds and elapsed > limit:
                warned = True
                logger.warning(
                    "%s takes more than ten times as long as was estimated: is the machine busy?", description
                )

        # tqdm draws only when it is updated: without a timer, nothing would appear during a long first part.
        timer = Timer(DELAY, appear)
        timer.daemon = True
        timer.start()
        try:
            with logging_redirect_tqdm():
                yield update
        finally:
            timer.cancel()
            # A timer that has just fired must not draw on a bar that is closed.
            timer.join()


def is_interactive() -> bool:
    """Return whether a person sees standard error, in a terminal or a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules
