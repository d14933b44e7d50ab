from __future__ import annotations

import numpy as np
import pytest
import torch

import expound
from expound.explainers.attention.value_zeroing import compute_contributions
from expound.models.passes.layer_calls import record_layer_calls
from families import TEXT, examples, processor, sweep_others, tiny


@pytest.mark.parametrize("family", sweep_others([*TEXT, "vit"]))
def test_rows_add_up_to_one_whatever_the_batch(family):
    model = expound.load(tiny(family), processor(family))
    inputs = examples(family, 3)
    method = expound.explainer("value_zeroing")
    batch = model.encode(inputs)
    scores = method.explain(model, batch)
    assert scores.layers.shape[:2] == (3, model.config.num_hidden_layers)
    torch.testing.assert_close(scores.layers.sum(-1), torch.ones(3, 2), atol=1e-4, rtol=0)
    for row, one in enumerate(inputs):
        alone = model.encode([one])
        np.testing.assert_allclose(
            method.attribute(model, alone)[0][alone.attended[0]], scores.scores[row][batch.attended[row]], atol=1e-4
        )


def test_the_score_is_the_product_of_the_layers_maps_where_the_answer_is_read():
    model = expound.load(tiny("bert", dtype=torch.float64), processor("bert"))
    batch = model.encode(["someone's old camera"])
    with torch.no_grad(), model.evaluation_mode():
        first, second = (compute_contributions(call) for call in record_layer_calls(model, batch))
    explanation = expound.explainer("value_zeroing").explain(model, batch)
    torch.testing.assert_close(explanation.layers[0, 0], first[0])
    torch.testing.assert_close(explanation.scores[0], (second @ first)[0].masked_fill(~batch.content[0], 0))


def test_block_sparse_attention_is_refused():
    model = expound.load(tiny("big_bird"), processor("big_bird"))
    with pytest.raises(expound.ExpoundError, match="block-sparse"):
        expound.explainer("value_zeroing").attribute(model, expound.Batch.from_ids(torch.randint(5, 200, (1, 36))))
