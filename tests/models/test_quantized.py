"""Models with linear layers in 8 or 4 bits; test_half_precision has the effect on each method."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import expound
import families
from expound import ExpoundError
from expound.cli import main
from expound.models.layers.layer_parts import to_affine
from expound.models.loading import quantized


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("model")
    families.tiny("bert").save_pretrained(place)
    families.tokenizer("bert").save_pretrained(place)
    return place


@pytest.mark.parametrize("dtype", ["8bit", "4bit"])
def test_a_layer_is_known_by_what_it_computes_also_after_passes(folder, dtype):
    model = expound.load(folder, device="cpu", dtype=dtype)
    batch = model.encode(families.SENTENCES[:2])
    before = {name: weight.clone() for name, weight in model.model.state_dict().items()}
    logits = model.probabilities(batch)
    layer = model.model.bert.encoder.layer[0].attention.self.value
    assert layer.weight.element_size() == 1
    assert layer.weight.numel() == 32 * 32 // (1 if dtype == "8bit" else 2)
    numbers = to_affine(layer)
    columns = layer(torch.eye(32)) - numbers.bias
    torch.testing.assert_close(columns.T, numbers.weight, rtol=0, atol=1e-3 if dtype == "8bit" else 1e-7)
    for method in ("input_x_gradient", "decompx_linear", "occlusion"):
        assert expound.attribute(model, "a moving film", method)[0].scores.any()
    for name, weight in model.model.state_dict().items():
        assert weight.equal(before[name])
    assert model.probabilities(batch).equal(logits)


@pytest.mark.parametrize("dtype", ["8bit", "4bit"])
def test_what_was_saved_in_so_many_bits_is_loaded_in_as_many(folder, tmp_path, dtype):
    model = expound.load(folder, device="cpu", dtype=dtype)
    model.model.save_pretrained(tmp_path)
    families.tokenizer("bert").save_pretrained(tmp_path)
    again = expound.load(tmp_path, device="cpu")
    assert again.model.bert.encoder.layer[0].output.dense.weight.element_size() == 1
    one, other = (expound.attribute(each, families.SENTENCES[0], "decompx_linear")[0] for each in (model, again))
    np.testing.assert_array_equal(other.scores, one.scores)


def test_the_command_and_the_refusals(folder, monkeypatch, capsys):
    given = ["explain", "a moving film", "--model", str(folder), "--device", "cpu", "--methods", "saliency", "--dtype"]
    assert main([*given, "4bit"]) == 0
    assert main([*given, "2bit"]) == 2
    assert "Valid choices: 4bit, 8bit" in capsys.readouterr().err
    monkeypatch.setattr(quantized, "find_spec", lambda name: None)
    with pytest.raises(ExpoundError, match=r"pip install 'expound\[quantized\]'"):
        expound.load(folder, dtype="4bit")
