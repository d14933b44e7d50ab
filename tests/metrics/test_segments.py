"""The area under the curve on one text of a pair, against scikit-learn over that text's words by hand."""

import pytest
import torch
from sklearn.metrics import roc_auc_score

from expound.data.alignment import pool
from expound.errors import ExpoundError
from expound.metrics import metric
from expound.models import Batch
from judged import PAIRS, model_of

ROWS = [
    {"text": first, "text_pair": second, "rationale": marked, "rationale_pair": other}
    for (first, second), marked, other in zip(PAIRS, ([[0, 3]], []), ([[0, 5], [12, 20]], [[0, 1]]), strict=True)
]


@pytest.mark.parametrize("absolute", [True, False])
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_words_of_the_other_text_do_not_count(family, absolute):
    model = model_of(family)
    batch = model.encode(ROWS)
    scores = torch.randn(batch.content.shape, generator=torch.Generator().manual_seed(0)) * batch.content
    for segment in (1, 2):
        found = metric("segment_auc", segment=segment, absolute=absolute).evaluate(model, batch, scores)["segment_auc"]
        for row, alignment in enumerate(batch.alignments):
            own = [word for word in alignment.words if word.segment == segment - 1]
            spans = ROWS[row]["rationale" if segment == 1 else "rationale_pair"]
            gold = [any(start < word.end and word.start < end for start, end in spans) for word in own]
            pooled = pool(scores[row][batch.attended[row]].tolist(), alignment.word_of, len(alignment.words))
            values = [
                abs(value) if absolute else value
                for value, word in zip(pooled, alignment.words, strict=True)
                if word in own
            ]
            if any(gold):
                assert float(found[row]) == pytest.approx(roc_auc_score(gold, values), abs=1e-6)
            else:
                assert torch.isnan(found[row])


def test_a_text_without_a_partner_has_no_second_segment():
    model = model_of("bert")
    batch = model.encode([{"text": PAIRS[0][1], "rationale": [[0, 5]]}])
    scores = torch.rand(batch.content.shape) * batch.content
    assert torch.isnan(metric("segment_auc", segment=2).evaluate(model, batch, scores)["segment_auc"]).all()
    alone, both = (metric(name).evaluate(model, batch, scores)[name] for name in ("segment_auc", "rationale_auc"))
    assert torch.equal(alone, both)


def test_wrong_choices():
    with pytest.raises(ExpoundError, match="segment 1 or 2 of a pair, got 3"):
        metric("segment_auc", segment=3)
    with pytest.raises(ExpoundError, match="neither text"):
        metric("segment_auc", unit="token", special_tokens=True)
    ids = Batch.from_ids(torch.tensor([[5, 6, 7]]))
    marked = torch.tensor([[True, False, False]])
    batch = Batch(**{**vars(ids), "rationale_mask": marked})
    with pytest.raises(ExpoundError, match="known of texts only"):
        metric("segment_auc").evaluate(model_of("bert"), batch, torch.rand(1, 3))
