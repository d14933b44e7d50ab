"""What benchmarks share: where models and data are, their options, CPU seconds, ratios, and what they leave."""

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

import exegete
from exegete.models import ExplainedModel

SHARED = Path(__file__).parents[2] / "shared"
DATA, MODELS = (Path(os.environ.get(f"EXEGETE_{name}", SHARED / name.lower())) for name in ("DATA", "MODELS"))


def given(purpose: str | None, **defaults: Any) -> argparse.Namespace:
    """The options of a benchmark by their defaults, and `output`, where its figures are kept; it runs on one thread."""
    torch.set_num_threads(1)
    made = argparse.ArgumentParser(description=purpose)
    made.add_argument("--output", type=Path, help="a JSON file for the figures")
    for name, usual in defaults.items():
        several = isinstance(usual, list | tuple)
        kind = type(next(iter(usual), "")) if several else type(usual)
        how = {"action": "store_true"} if kind is bool else {"type": kind, "nargs": "*" if several else None}
        made.add_argument(f"--{name.replace('_', '-')}", default=usual, **how)
    return made.parse_args()


def keep(found: Any, output: Path | None) -> None:
    """Prints figures, and writes them where that is asked for."""
    text = json.dumps(found, indent=2)
    print(text)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text + "\n")


def minilm(max_length: int | None = None) -> ExplainedModel:
    """The fine-tuned model that most benchmarks explain."""
    return exegete.load(MODELS / "minilm-sst2", device="cpu", max_length=max_length)


def memory(name: str = "VmHWM", process: int | str = "self") -> float:
    """MiB that a process holds (VmRSS) or held at most (VmHWM); 0 when it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(name)), 0.0)


def seconds(call: Callable[[], object], repeats: int = 1) -> float:
    """CPU seconds of a call, the least of some in a row."""
    taken = []
    for _ in range(repeats):
        begun = time.process_time()
        call()
        taken.append(time.process_time() - begun)
    return min(taken)


def ratios(plain: Callable[[], object], others: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Each one's time over that of `plain`: the median over rounds in which all take turns; the first warms up."""
    found: dict[str, list[float]] = {name: [] for name in others}
    for number in range(rounds + 1):
        usual = seconds(plain)
        for name, other in others.items():
            if number:
                found[name].append(seconds(other) / usual)
            else:
                other()
    return {name: round(median(values), 3) for name, values in found.items()}
