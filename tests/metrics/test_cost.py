from __future__ import annotations

import math
import os
import time
from mmap import mmap

import numpy as np
import pytest
import torch

from expound.metrics import cost, measure_cost

marked = pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK), reason="this system has no high-water mark that can be lowered"
)


@marked
def test_time_and_memory_of_a_block():
    with measure_cost("cpu") as measurement:
        assert math.isnan(measurement.seconds)
        with mmap(-1, 128 * cost.MIB) as block:  # new pages, whatever the process has kept of what it freed
            np.frombuffer(block, np.uint8)[...] = 1
        time.sleep(0.05)
    assert 0.05 <= measurement.seconds < 5
    assert 120 < measurement.peak_memory < 200


def test_a_peak_before_the_block_does_not_count():
    block = np.ones(256 * cost.MIB, dtype=np.uint8)
    del block
    with measure_cost() as measurement:
        small = np.ones(16 * cost.MIB, dtype=np.uint8)
        del small
    assert math.isnan(measurement.peak_memory) or measurement.peak_memory < 100


def test_a_block_that_raises_is_measured():
    def measurement_of_a_failure(found):
        with measure_cost() as found["it"]:
            raise RuntimeError("inside")

    found = {}
    with pytest.raises(RuntimeError, match="inside"):
        measurement_of_a_failure(found)
    assert found["it"].seconds > 0


@pytest.mark.parametrize("attribute", ["_CLEAR", "_STATUS"])
def test_unknown_memory_is_nan(attribute, monkeypatch, tmp_path):
    monkeypatch.setattr(cost, attribute, tmp_path / "absent" / "file")
    with measure_cost() as measurement:
        pass
    assert math.isnan(measurement.peak_memory)
    assert measurement.seconds >= 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_memory_on_the_device():
    held = torch.ones(64 * cost.MIB, dtype=torch.uint8, device="cuda")
    with measure_cost("cuda") as measurement:
        block = torch.ones(32 * cost.MIB, dtype=torch.uint8, device="cuda")
        del block
    assert measurement.peak_memory == pytest.approx(32, abs=2)
    assert len(held)
