"""Model folders with damaged bytes, other values in their JSON, or weights that are no numbers."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import exegete
from attacked import cases, noted
from commands import saved
from exegete import ExegeteError
from strange import damaged, with_other_values

CONFIG, WEIGHTS = "config.json", "model.safetensors"
TEXT = "a moving film about a small town"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("model"))


def require_short(message):
    assert len(message.splitlines()) == 1
    assert len(message) <= 600


def outcome(folder, seen):
    """The scores of a text with the folder's model, finite; or None if it is refused by name, in one line."""
    seen["cases"] += 1
    try:
        found = exegete.attribute(exegete.load(folder, device="cpu"), TEXT, "saliency")[0]
    except ExegeteError as error:
        seen["refused"] += 1
        require_short(str(error).replace(str(folder), "FOLDER"))
        return None
    assert np.isfinite(found.scores).all()
    seen["explained"] += 1
    return found.scores


@pytest.mark.parametrize("file", [CONFIG, "tokenizer.json", "tokenizer_config.json", WEIGHTS])
def test_a_damaged_file_is_refused_or_changes_nothing_that_matters(file, folder):
    whole = (folder / file).read_bytes()
    kinds = [damaged(whole)]
    if file.endswith(".json"):
        kinds += [with_other_values(json.loads(whole)).map(lambda value: json.dumps(value).encode())] * 3
    else:  # a header says where weights are: that is where damage is worst
        size = 8 + int.from_bytes(whole[:8], "little")
        kinds += [damaged(whole[:size]).map(lambda head: head + whole[size:])]
    with noted("damaged model folders", file) as seen:

        @cases(600)
        @given(st.one_of(kinds))
        def attack(content):
            (folder / file).write_bytes(content)
            outcome(folder, seen)

        try:
            attack()
        finally:
            (folder / file).write_bytes(whole)


def test_weights_that_are_no_numbers_are_refused_wherever_they_are(folder):
    whole = load_file(folder / WEIGHTS)
    names = sorted(name for name, value in whole.items() if value.is_floating_point())
    with noted("damaged model folders", "NaN or infinity among the weights") as seen:

        @cases(600)
        @given(st.sampled_from(names), st.sampled_from([torch.nan, torch.inf, -torch.inf]), st.integers(0, 2**31))
        def attack(name, value, place):
            broken = whole[name].clone()
            broken.view(-1)[place % broken.numel()] = value
            save_file(whole | {name: broken}, folder / WEIGHTS, metadata={"format": "pt"})
            assert outcome(folder, seen) is None

        try:
            attack()
        finally:
            save_file(whole, folder / WEIGHTS, metadata={"format": "pt"})
