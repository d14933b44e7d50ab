"""`expound train aml` makes an explainer that the other commands accept."""

from __future__ import annotations

import json
import re

import pandas as pd

from expound.cli import main

DATA = ["--data", "generated?size=48", "--device", "cpu", "--quiet"]
SMALL = [*DATA, "--epochs", "1", "--batch-size", "8"]
WEIGHTS = ["--preservation-weight", "0.5", "--sparsity-weight", "0.1", "--inverse-weight", "0.5"]


def test_a_masking_model_is_trained_for_a_model_and_compared_by_its_folder(tmp_path, capsys):
    model, folder = str(tmp_path / "model"), str(tmp_path / "masking")
    assert main(["train", "baseline", *SMALL, "--config", "tiny", "--max-length", "32", "--output-dir", model]) == 0
    before = (tmp_path / "model" / "model.safetensors").read_bytes()
    training = [*SMALL, "--model", model, "--metric", "comprehensiveness", *WEIGHTS, "--train-rows", "16"]
    capsys.readouterr()
    assert main(["train", "aml", *training, "--dev-rows", "6", "--output-dir", folder]) == 0
    shown = capsys.readouterr()
    assert "comprehensiveness: " in shown.out
    assert "mask_spread: " in shown.out
    # the end of a run: what it changed, and how to go on
    assert re.search(
        r"what aml is for: comprehensiveness on \d+ dev rows.* of decompx_linear of the same model", shown.out
    )
    assert f"  expound explain TEXT --model {model} --methods attributive_masking:{folder}" in shown.err
    assert main(["explain", "a good film", "--model", folder]) == 2
    assert f"give the model that it explains, and --methods attributive_masking:{folder}" in capsys.readouterr().err
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == before
    settings = json.loads((tmp_path / "masking" / "config.json").read_text())
    assert settings["metric"] == "comprehensiveness?rounding=floor"
    methods = f"random,attributive_masking:{folder},attributive_masking:{folder}?refine_steps=1"
    judging = ["--model", model, "--methods", methods, "--metrics", "comprehensiveness?rounding=floor", "--limit", "3"]
    assert main(["compare", *DATA, *judging, "--output-dir", str(tmp_path / "out")]) == 0
    found = pd.read_parquet(next((tmp_path / "out").rglob("results.parquet")))
    assert found["method"].nunique() == 3
    assert found["comprehensiveness"].notna().all()
