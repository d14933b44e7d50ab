"""Training under FSDP by two processes is training by one."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.torch import load_file

import expound
import families
from expound import ExpoundError
from runs import bert, difference, run_in_two_processes, sentences, trainer, weights
from sharded_steps import MOMENTUM
from steps_of_eight import run


def test_two_processes_with_half_of_the_weights_each_resumed_too(tmp_path):
    run(tmp_path, "attention_rollout", **MOMENTUM)
    curve, end = json.loads((tmp_path / "curve.json").read_text())["curve"], load_file(tmp_path / "end.safetensors")
    run_in_two_processes("sharded_steps.py", tmp_path)
    for name in ("whole", "resumed"):
        told = json.loads((tmp_path / name / "told.json").read_text())
        assert told["processes"] == 2
        assert 0.4 < told["share"] < 0.6
        np.testing.assert_allclose(told["curve"], [loss for loss, *_ in curve], rtol=0, atol=2e-5)
        assert difference(weights(tmp_path / name), end) < 2e-5
    families.tokenizer("bert").save_pretrained(tmp_path / "whole")
    assert expound.attribute(expound.load(tmp_path / "whole"), "a moving film")[0].scores.any()
    for process in (0, 1):
        on_cpus, *terms = json.loads((tmp_path / f"refused-{process}.json").read_text())
        assert "would train whole copies" in on_cpus
        assert len(terms) == 2
        assert all("cross_entropy, rationale_alignment" in said for said in terms)


def test_one_process_shards_nothing(tmp_path):
    with pytest.raises(ExpoundError, match="torchrun"):
        trainer(tmp_path, bert(), sentences(), fsdp=True)
