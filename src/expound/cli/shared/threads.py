"""Number of torch threads, chosen from the model's size and a short measurement."""

from __future__ import annotations

import os
import time
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from expound.cli.shared.console import say
from expound.data.hub import CONFIG, read_json_object

Threads = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="CPU threads. Default: OMP_NUM_THREADS; otherwise 1 for small models, and for others 1 or all, "
        "whichever is faster.",
    ),
]
SMALL = 256
"""Models with at most this hidden size are not faster with several threads."""
GAIN = 1.2
"""Several threads are used only if they are faster by this factor."""
TOKENS, ROUNDS = 512, 5


def set_threads(threads: int | None, hidden: int | None, device: str | None = None) -> None:
    """Set the number of torch threads, and print it if several are available; on a GPU it is left as it is.

    `threads` and `device` are values of options; `hidden` is the model's hidden size, None if it is unknown.
    """
    import torch

    on_gpu = (device or ("cuda" if torch.cuda.is_available() else "cpu")).startswith("cuda")
    available = torch.get_num_threads()
    if threads is not None:
        count, reason = threads, "--threads"
    elif "OMP_NUM_THREADS" in os.environ or on_gpu or available == 1:
        return
    elif hidden is not None and hidden <= SMALL:
        count, reason = 1, "a small model; set another number with --threads"
    else:
        # On a busy machine several threads can be many times slower than one, so a short measurement decides.
        one, many = _time_products(1, hidden or 3 * SMALL), _time_products(available, hidden or 3 * SMALL)
        count = available if one > GAIN * many else 1
        reason = f"{available} threads are {one / many:.1f} × as fast as one; set another number with --threads"
    torch.set_num_threads(count)
    say(f"threads: {count} ({reason})")


def hidden_size(source: Any) -> int | None:
    """Return the hidden size of a loaded model, a folder, a configuration file or a named size; None if unknown."""
    from expound.training.loop.options import SIZES

    if hasattr(source, "config"):
        return getattr(source.config, "hidden_size", None)
    if str(source) in SIZES:
        return int(SIZES[str(source)]["hidden_size"])
    path = Path(source)
    config = read_json_object(path if path.is_file() else path / CONFIG)
    for name in ("hidden_size", "dim", "n_embd", "d_model"):
        if name in config:
            return int(config[name])
    return None


def _time_products(threads: int, hidden: int) -> float:
    """Return the median seconds of the two matrix products of a feed-forward layer."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        inputs, weights = torch.ones(TOKENS, hidden), torch.ones(hidden, 4 * hidden)
        seconds = []
        for _ in range(ROUNDS + 1):
            begun = time.perf_counter()
            (inputs @ weights) @ weights.T
            seconds.append(time.perf_counter() - begun)
        return median(seconds)
    finally:
        torch.set_num_threads(before)
