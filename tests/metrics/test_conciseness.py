from __future__ import annotations

import pytest
import torch

import families
from expound.errors import ExpoundError
from expound.metrics import metric
from expound.models import Batch
from judged import attribution_for, model_of


@pytest.mark.parametrize("family", ["bert", "gpt2", "vit"])
def test_agrees_with_counting(family):
    model = model_of(family)
    batch = model.encode(families.examples(family))
    attribution = attribution_for(batch)
    got = metric("important_tokens").evaluate(model, batch, attribution)["important_tokens"]
    for row in range(len(batch)):
        scores = attribution[row][batch.content[row]].tolist()
        low, high = min(scores), max(scores)
        above = [sum((s - low) / (high - low) > z / 10 for s in scores) / len(scores) for z in range(1, 10)]
        assert float(got[row]) == pytest.approx(sum(above) / 9, abs=1e-6)


def test_by_hand():
    # Scaled to 0, 0.25, 1: above .1 and .2 are two of three, above .3 to .9 one; specials do not count.
    batch = Batch.from_ids(torch.ones(1, 4, dtype=torch.long), content=torch.tensor([[False, True, True, True]]))
    scores = torch.tensor([[9.0, -1.0, 0.0, 3.0]])
    got = metric("important_tokens").evaluate(model_of("bert"), batch, scores)["important_tokens"]
    assert float(got) == pytest.approx((2 * 2 / 3 + 7 / 3) / 9)


def test_constant_scores_count_as_all_important():
    batch = Batch.from_ids(torch.ones(3, 3, dtype=torch.long), torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 1]]))
    scores = torch.tensor([[0.5, 0.5, 0.5], [2.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    got = metric("important_tokens").evaluate(model_of("bert"), batch, scores)["important_tokens"]
    assert got.tolist() == [1, 1, 1]


def test_thresholds_outside_the_scale_are_refused():
    with pytest.raises(ExpoundError, match="thresholds"):
        metric("important_tokens?thresholds=0.5,1.0")
