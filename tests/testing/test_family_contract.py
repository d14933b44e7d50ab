"""The shipped contract holds for usual families, and catches a record that is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

import families
from expound.errors import ExpoundError
from expound.models.passes import find_record
from expound.testing import FamilyContract


@pytest.mark.parametrize("family", families.FAMILIES)
class TestNativeFamilies(FamilyContract):
    @pytest.fixture(autouse=True)
    def _small_config(self, family):
        whole = {"attention_type": "original_full"} if family == "big_bird" else {}
        self.small_config = families.FAMILIES[family].config | whole


@pytest.mark.parametrize(
    ("part", "changes", "test"),
    [
        (None, {"norm_first": True}, "test_the_parts_of_a_layer_compute_what_the_layer_computes"),
        ("head", {"activation": "gelu"}, "test_the_parts_of_a_head_compute_the_logits"),
    ],
)
def test_a_wrong_record_is_caught(part, changes, test, monkeypatch):
    contract = FamilyContract()
    contract.small_config = families.FAMILIES["bert"].config
    model, derive = FamilyContract.model.__wrapped__(contract, "bert"), find_record.derive_record

    def derive_wrongly(*given):
        record = derive(*given)
        if part is None:
            return replace(record, layers=tuple(replace(layer, **changes) for layer in record.layers))
        return replace(record, **{part: replace(getattr(record, part), **changes)})

    monkeypatch.setattr(find_record, "derive_record", derive_wrongly)
    with pytest.raises((AssertionError, ExpoundError, LookupError)):
        getattr(contract, test)(model)
