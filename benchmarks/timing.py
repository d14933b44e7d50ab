"""Helpers that the benchmarks share: paths of models and data, options, CPU seconds, ratios, memory, and results."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

import expound
from expound.models import ExplainedModel

SHARED = Path(__file__).parents[2] / "shared"
DATA, MODELS = (Path(os.environ.get(f"EXPOUND_{name}", SHARED / name.lower())) for name in ("DATA", "MODELS"))


def parse_options(description: str | None, **defaults: Any) -> argparse.Namespace:
    """Parse a benchmark's options, which have these defaults, and `--output`, the file for figures; use one thread."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--output", type=Path, help="a JSON file for the figures")
    for name, default in defaults.items():
        is_list = isinstance(default, list | tuple)
        kind = type(next(iter(default), "")) if is_list else type(default)
        arguments = {"action": "store_true"} if kind is bool else {"type": kind, "nargs": "*" if is_list else None}
        parser.add_argument(f"--{name.replace('_', '-')}", default=default, **arguments)
    return parser.parse_args()


def write_results(results: Any, output: Path | None) -> None:
    """Print figures as JSON, and write them to the output file if there is one."""
    text = json.dumps(results, indent=2)
    print(text)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text + "\n")


def load_minilm(max_length: int | None = None) -> ExplainedModel:
    """Return the fine-tuned model that most benchmarks explain."""
    return expound.load(MODELS / "minilm-sst2", device="cpu", max_length=max_length)


def read_memory(name: str = "VmHWM", process: int | str = "self") -> float:
    """Return the MiB that a process holds (VmRSS) or held at most (VmHWM); 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(name)), 0.0)


def measure_seconds(call: Callable[[], object], repeats: int = 1) -> float:
    """Return the CPU seconds of a call, the least of several in a row."""
    durations = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        durations.append(time.process_time() - start)
    return min(durations)


def measure_ratios(
    plain: Callable[[], object], others: dict[str, Callable[[], object]], rounds: int
) -> dict[str, float]:
    """Return each call's time over that of `plain`: the median over rounds in which all take turns.

    The first round warms up and is not counted.
    """
    ratios: dict[str, list[float]] = {name: [] for name in others}
    for number in range(rounds + 1):
        plain_seconds = measure_seconds(plain)
        for name, other in others.items():
            if number:
                ratios[name].append(measure_seconds(other) / plain_seconds)
            else:
                other()
    return {name: round(median(values), 3) for name, values in ratios.items()}
