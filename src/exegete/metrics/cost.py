"""Measures the cost of a block of code in time and memory."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

MIB = 1 << 20
_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


@dataclass
class Measurement:
    """Filled when the block ends, also when it raises.

    `seconds`: wall time. `peak_memory`: MiB at the highest context beyond what was held at the start; on CUDA what
    tensors take on the device, on a Linux CPU what the process holds beyond what it had before, NaN where neither is
    known, and where the process only filled again what it had kept.
    """

    seconds: float = math.nan
    peak_memory: float = math.nan


@contextmanager
def measure_cost(device: torch.device | str = "cpu") -> Iterator[Measurement]:
    """Wall time and peak memory of the block on `device`, its queued work included.

    The high-water mark is one for the whole process: a measured block inside another one lowers the outer one's peak.
    """
    device = torch.device(device)
    result = Measurement()
    wait = torch.get_device_module(device).synchronize
    wait()
    peak = _start_peak_meter(device)
    start = time.perf_counter()
    try:
        yield result
    finally:
        wait()
        result.seconds = time.perf_counter() - start
        result.peak_memory = peak() / MIB


def _start_peak_meter(device: torch.device) -> Callable[[], float]:
    """A function that says how many bytes the peak since now lies above the present."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        held = torch.cuda.memory_allocated(device)
        return lambda: float(torch.cuda.max_memory_allocated(device) - held)
    if device.type != "cpu" or not _reset_high_water_mark():
        return lambda: math.nan
    resident = _read_status("VmRSS")
    return lambda: grown if (grown := _read_status("VmHWM") - resident) > 0 else math.nan


def _reset_high_water_mark() -> bool:
    """Lowers the process's high-water mark to what it holds now; False where the system has no such mark."""
    try:
        _CLEAR.write_text("5")
    except OSError:
        return False
    return True


def _read_status(field: str) -> float:
    """Bytes that /proc says of this process, NaN where it does not say."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return math.nan
    return next((1024.0 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:")), math.nan)
