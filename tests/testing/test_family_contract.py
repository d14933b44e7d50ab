"""The shipped contract holds for every family that has a record, and catches a record that is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

import families
from expound.errors import ExpoundError
from expound.models.families import FAMILIES
from expound.testing import FamilyContract


@pytest.mark.parametrize("family", families.FAMILIES)
class TestNativeFamilies(FamilyContract):
    @pytest.fixture(autouse=True)
    def _whole_attention(self, family):
        self.changes = {"attention_type": "original_full"} if family == "big_bird" else {}


@pytest.mark.parametrize(
    ("changes", "test"),
    [
        ({"final_norm": "nothing"}, "test_every_path_of_the_record_exists"),
        ({"norm_first": True}, "test_the_parts_of_a_layer_compute_what_the_layer_computes"),
        ({"head": replace(FAMILIES["bert"].head, activation="gelu")}, "test_the_parts_of_a_head_compute_the_logits"),
    ],
)
def test_a_wrong_record_is_caught(changes, test, monkeypatch):
    model = FamilyContract.model.__wrapped__(FamilyContract(), "bert")
    wrong = replace(FAMILIES["bert"], **changes)
    monkeypatch.setattr(type(FAMILIES), "__getitem__", lambda *_: wrong)
    with pytest.raises((AssertionError, ExpoundError, LookupError)):
        getattr(FamilyContract(), test)(model)
