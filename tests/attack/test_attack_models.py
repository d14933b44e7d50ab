"""Model folders with damaged bytes, other values in their JSON, or weights that are no numbers."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import expound
from attacked import cases, record_outcomes
from commands import save_model
from expound import ExpoundError
from strange import bytes_with_edits, with_other_values

CONFIG, WEIGHTS = "config.json", "model.safetensors"
TEXT = "a moving film about a small town"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"))


def require_short(message):
    assert len(message.splitlines()) == 1
    assert len(message) <= 600


def outcome(folder, counts):
    """The scores of a text by the folder's model, which must be finite, or None if it is refused in one line."""
    counts["cases"] += 1
    try:
        found = expound.attribute(expound.load(folder, device="cpu"), TEXT, "saliency")[0]
    except ExpoundError as error:
        counts["refused"] += 1
        require_short(str(error).replace(str(folder), "FOLDER"))
        return None
    assert np.isfinite(found.scores).all()
    counts["explained"] += 1
    return found.scores


@pytest.mark.parametrize("file", [CONFIG, "tokenizer.json", "tokenizer_config.json", WEIGHTS])
def test_a_damaged_file_is_refused_or_changes_nothing_that_matters(file, folder):
    original = (folder / file).read_bytes()
    kinds = [bytes_with_edits(original)]
    if file.endswith(".json"):
        kinds += [with_other_values(json.loads(original)).map(lambda value: json.dumps(value).encode())] * 3
    else:  # a header says where weights are: that is where damage is worst
        size = 8 + int.from_bytes(original[:8], "little")
        kinds += [bytes_with_edits(original[:size]).map(lambda head: head + original[size:])]
    with record_outcomes("damaged model folders", file) as counts:

        @cases(400)
        @given(st.one_of(kinds))
        def attack(content):
            (folder / file).write_bytes(content)
            outcome(folder, counts)

        try:
            attack()
        finally:
            (folder / file).write_bytes(original)


def test_weights_that_are_no_numbers_are_refused_wherever_they_are(folder):
    original = load_file(folder / WEIGHTS)
    names = sorted(name for name, value in original.items() if value.is_floating_point())
    with record_outcomes("damaged model folders", "NaN or infinity among the weights") as counts:

        @cases(400)
        @given(st.sampled_from(names), st.sampled_from([torch.nan, torch.inf, -torch.inf]), st.integers(0, 2**31))
        def attack(name, value, place):
            broken = original[name].clone()
            broken.view(-1)[place % broken.numel()] = value
            save_file(original | {name: broken}, folder / WEIGHTS, metadata={"format": "pt"})
            assert outcome(folder, counts) is None

        try:
            attack()
        finally:
            save_file(original, folder / WEIGHTS, metadata={"format": "pt"})
