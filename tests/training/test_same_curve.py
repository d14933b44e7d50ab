"""Steps of one large batch, of its parts and over two processes have equal losses, weights and multipliers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.torch import load_file

from runs import difference, run_in_two_processes
from steps_of_eight import run, small_model

GUIDES = ("attention_rollout", "input_x_gradient")


@pytest.fixture(scope="module", params=GUIDES)
def plain_run(request, tmp_path_factory):
    """The guide, the curve of losses and the final weights of plain steps of eight."""
    folder = tmp_path_factory.mktemp(request.param)
    run(folder, request.param)
    curve, end = outcome(folder)
    assert curve.shape == (6, 4)
    assert (curve[:, 2] > 0).all()
    assert len(set(curve[:, 3].tolist())) > 4
    assert difference(end, small_model().model.state_dict()) > 1e-3
    return request.param, curve, end


def outcome(folder, processes=1):
    found = json.loads((folder / "curve.json").read_text())
    assert found["processes"] == processes
    return np.array(found["curve"]), load_file(folder / "end.safetensors")


def test_accumulated_parts(plain_run, tmp_path):
    guide, curve, end = plain_run
    run(tmp_path, guide, parts=4)
    found, weights = outcome(tmp_path)
    np.testing.assert_allclose(found, curve, rtol=0, atol=2e-5)
    assert difference(weights, end) < 2e-5


@pytest.mark.parametrize("plain_run", ["input_x_gradient"], indirect=True)
def test_two_processes(plain_run, tmp_path):
    """For the guide whose gradients go through the model twice."""
    guide, curve, end = plain_run
    run_in_two_processes("steps_of_eight.py", tmp_path, guide)
    found, weights = outcome(tmp_path, processes=2)
    np.testing.assert_allclose(found, curve, rtol=0, atol=2e-5)
    assert difference(weights, end) < 2e-5


def test_mixed_precision_stays_close(plain_run, tmp_path):
    guide, curve, _ = plain_run
    run(tmp_path, guide, bf16=True)
    found, _ = outcome(tmp_path)
    assert not np.array_equal(found, curve)
    np.testing.assert_allclose(found[:, 1], curve[:, 1], rtol=0, atol=0.03)
    np.testing.assert_allclose(found[:, 2], curve[:, 2], rtol=0.05, atol=0)
