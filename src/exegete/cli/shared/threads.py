"""How many threads one operation of a model is split into: by the model's size and the machine's speed right now."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from exegete.cli.shared.console import say

Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=1,
        help="Threads of one operation on a CPU. Default: OMP_NUM_THREADS; else 1 for small models, for others 1 or "
        "all, whichever is faster now.",
    ),
]
SMALL = 256
"""Hidden sizes up to this gain nothing by several threads."""
GAIN = 1.2
"""How much faster several threads have to be than one."""
TOKENS, ROUNDS = 512, 5


def choose(wanted: int | None, hidden: int | None, device: str | None = None) -> None:
    """Sets torch's threads, and says so where more than one could be had.

    Args:
        wanted: what `--threads` said.
        hidden: the model's hidden size; None where it is not known.
        device: what `--device` said; on a GPU nothing is chosen.
    """
    import torch

    on_gpu = (device or ("cuda" if torch.cuda.is_available() else "cpu")).startswith("cuda")
    if wanted is not None:
        count, why = wanted, "--threads"
    elif "OMP_NUM_THREADS" in os.environ or on_gpu or (every := torch.get_num_threads()) == 1:
        return
    elif hidden is not None and hidden <= SMALL:
        count, why = 1, "a small model; --threads says otherwise"
    else:
        one, many = (_seconds(count, hidden or 3 * SMALL) for count in (1, every))
        count = every if one > GAIN * many else 1
        why = f"{every} threads are {one / many:.1f} × as fast as one now; --threads says otherwise"
    torch.set_num_threads(count)
    say(f"threads: {count} ({why})")


def hidden_size(source: Any) -> int | None:
    """The hidden size of a model: loaded, in a folder, in a configuration's file or by the name of a size."""
    from exegete.training.loop.options import SIZES

    if hasattr(source, "config"):
        return getattr(source.config, "hidden_size", None)
    if str(source) in SIZES:
        return int(SIZES[str(source)]["hidden_size"])
    path = Path(source)
    file = path if path.is_file() else path / "config.json"
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return next((known[name] for name in ("hidden_size", "dim", "n_embd", "d_model") if name in known), None)


def _seconds(threads: int, hidden: int) -> float:
    """The median time of a feed-forward layer's two products with so many threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        inputs, weights = torch.ones(TOKENS, hidden), torch.ones(hidden, 4 * hidden)
        return median(_timed(inputs, weights) for _ in range(ROUNDS + 1))
    finally:
        torch.set_num_threads(before)


def _timed(inputs: Any, weights: Any) -> float:
    begun = time.perf_counter()
    (inputs @ weights) @ weights.T
    return time.perf_counter() - begun
