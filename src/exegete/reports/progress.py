"""One bar for whoever waits longer than a second, with an estimate before the first part of the work is done."""

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
TOO_LONG = 10.0
"""How many times the estimate a part may take before that is said."""
NOTICED = 5.0
"""Seconds that a part takes at least before that is said."""


@contextmanager
def progress_bar(
    what: str, work: float, show: bool | None = None, estimate: Callable[[], float] | None = None
) -> Iterator[Callable[[float], None]]:
    """Inside the block a bar of so much work in any unit; what is given says how much more of it is done.

    Logs go above the bar, never into it. Where all work takes ten times the estimate, a warning says so once.

    Args:
        what: the name before the bar.
        work: all of it.
        show: whether there is a bar; default: where a person watches, in a terminal or notebook.
        estimate: seconds for all of the work, asked for only where there is a bar.
    """
    shown = is_interactive() if show is None else show
    with tqdm(total=work, desc=what, disable=not shown, delay=DELAY, bar_format=FORMAT, leave=False) as bar:
        if bar.disable:
            yield lambda done: None
            return
        begun, seconds = time.monotonic(), None if estimate is None else estimate()
        told = False

        def appear() -> None:
            if seconds is not None and not bar.n:
                bar.set_postfix_str(f"about {tqdm.format_interval(seconds)} in all", refresh=False)
            bar.delay = 0
            bar.refresh()

        def update(done: float) -> None:
            nonlocal told
            bar.set_postfix_str("", refresh=False)
            bar.update(done)
            took = time.monotonic() - begun
            if not told and seconds and took > max(NOTICED, TOO_LONG * seconds * bar.n / max(work, 1e-9)):
                told = True
                logger.warning("%s takes more than ten times as long as was estimated: is the machine busy?", what)

        timer = Timer(DELAY, appear)
        timer.daemon = True
        timer.start()
        try:
            with logging_redirect_tqdm():
                yield update
        finally:
            timer.cancel()
            timer.join()


def is_interactive() -> bool:
    """Whether a person watches standard error: in a terminal, or in a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules
