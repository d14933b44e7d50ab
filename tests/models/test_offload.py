"""Models whose weights are kept on disk until they are needed are explained as those in memory."""

from __future__ import annotations

import pytest
import torch
from accelerate import disk_offload

import expound
import families
from expound import ExpoundError
from small import make_explainer

METHODS = [
    "input_x_gradient",
    "integrated_gradients",
    "decompx_linear",
    "decompx_classifier",
    "alti",
    "occlusion",
    "gim",
]


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_offloaded_models_have_the_same_scores_and_stay_offloaded(family, tmp_path):
    plain, elsewhere = (families.tiny(family, dtype=torch.float64) for _ in range(2))
    disk_offload(elsewhere, str(tmp_path), execution_device=torch.device("cpu"))
    plain, elsewhere = (expound.load((model, families.processor(family))) for model in (plain, elsewhere))
    batch = plain.encode(families.SENTENCES[:2])
    assert elsewhere.encode(families.SENTENCES[:2]).device.type == "cpu"
    for method in METHODS:
        expected, found = (make_explainer(method).attribute(model, batch) for model in (plain, elsewhere))
        # Not bit for bit: kernels may differ with the alignment of the memory that weights are loaded into.
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)
        assert all(parameter.is_meta for parameter in elsewhere.model.parameters())


def test_a_map_of_devices_says_where_parts_go(tmp_path):
    model = families.tiny("bert")
    model.save_pretrained(tmp_path)
    families.tokenizer("bert").save_pretrained(tmp_path)
    names = ["bert.embeddings", "bert.pooler", "classifier"]
    names += [f"bert.encoder.layer.{index}" for index in range(model.config.num_hidden_layers)]
    there = dict.fromkeys(names, "cpu") | {"bert.encoder.layer.0": "disk"}
    mapped = expound.load(tmp_path, device_map=there)
    assert any(parameter.is_meta for parameter in mapped.model.parameters())
    whole = expound.load(tmp_path, device="cpu")
    text = families.SENTENCES[0]
    assert expound.attribute(mapped, text)[0] == expound.attribute(whole, text)[0]
    assert expound.attribute(expound.load(tmp_path, device="auto"), text)[0].unit_texts == tuple(text.split())
    with pytest.raises(ExpoundError, match="both say where"):
        expound.load(tmp_path, device="cpu", device_map="auto")
