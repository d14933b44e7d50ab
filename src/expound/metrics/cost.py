"""Measurement of the time and memory that a block of code takes."""

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
    """Time and memory of a block; filled when the block ends, also if it raises.

    `seconds`: wall time. `peak_memory`: the most MiB held during the block beyond what its start held: tensors on
    the device for CUDA, the process's resident memory for a CPU under Linux. NaN if neither is known, or if the block
    only reused memory that the process already had.
    """

    seconds: float = math.nan
    peak_memory: float = math.nan


@contextmanager
def measure_cost(device: torch.device | str = "cpu") -> Iterator[Measurement]:
    """Measure wall time and peak memory of the block on `device`, including the work queued there.

    The high-water mark belongs to the whole process: a measured block inside another one lowers the outer one's peak.
    """
    device = torch.device(device)
    result = Measurement()
    # GPUs work asynchronously: without waiting, the time of earlier work would count, and that of the block would not.
    synchronize = torch.get_device_module(device).synchronize
    synchronize()
    read_peak = _start_peak_meter(device)
    start = time.perf_counter()
    try:
        yield result
    finally:
        synchronize()
        result.seconds = time.perf_counter() - start
        result.peak_memory = read_peak() / MIB


def _start_peak_meter(device: torch.device) -> Callable[[], float]:
    """Return a function that returns by how many bytes memory has exceeded its present level since this call."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        held = torch.cuda.memory_allocated(device)
        return lambda: float(torch.cuda.max_memory_allocated(device) - held)
    if device.type != "cpu" or not _reset_high_water_mark():
        return lambda: math.nan
    resident = _read_status("VmRSS")

    def read_growth() -> float:
        growth = _read_status("VmHWM") - resident
        return growth if growth > 0 else math.nan

    return read_growth


def _reset_high_water_mark() -> bool:
    """Lower the process's high-water mark to its present memory; return False if the system has no such mark."""
    try:
        # proc(5): writing 5 to clear_refs resets VmHWM.
        _CLEAR.write_text("5")
    except OSError:
        return False
    return True


def _read_status(field: str) -> float:
    """Return a field of /proc/self/status in bytes, NaN if it is missing."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return math.nan
    for line in lines:
        if line.startswith(f"{field}:"):
            return 1024.0 * int(line.split()[1])
    return math.nan
