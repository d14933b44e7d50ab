"""Long texts in windows are what an explicit loop over the windows gives; paragraphs are units."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

import exegete
import families
from exegete import ExegeteError
from exegete.data.sentences import paragraph_ends
from exegete.explainers.units import units
from exegete.explainers.windows import windows
from small import shared

LONG = " ".join(families.SENTENCES[:4])
SHORT = "the plot is dull"


@pytest.fixture(scope="module", params=["bert", "roberta"])
def model(request):
    return shared(request.param).with_max_length(16)


def test_windows_hold_all_words_overlap_and_fit(model):
    for stride in (0, 5, 9):
        found = list(windows(model, LONG, stride))
        assert found[0][0] == 0
        assert found[-1][1] == len(LONG)
        for (_, end), (start, _) in pairwise(found):
            both = model.tokenizer(LONG[start:end], add_special_tokens=False)["input_ids"] if start < end else []
            assert start <= end + 1
            assert len(both) <= stride + 3  # a word at a beginning may have some more
        assert all(len(model.tokenizer(LONG[a:b])["input_ids"]) <= 16 for a, b in found)
        assert all(not LONG[max(0, a - 1) : a].strip() for a, _ in found)


@pytest.mark.parametrize("target", ["predicted", 1, (0, 2)])
@pytest.mark.parametrize("method", ["input_x_gradient", "occlusion"])
def test_scores_are_means_over_windows_in_an_explicit_loop(model, method, target):
    long, short = exegete.attribute(model, [LONG, SHORT], method, target, stride=6)
    spans = list(windows(model, LONG, 6))
    with torch.no_grad():
        logits = torch.cat(
            [model.model(**model.tokenizer(LONG[a:b], return_tensors="pt")).logits for a, b in spans]
        ).mean(0)
    chosen = int(logits.argmax()) if target == "predicted" else target
    scores = {}
    for start, end in spans:
        item = exegete.attribute(model, LONG[start:end], method, chosen)[0]
        for (_, begun, _), score in zip(item.word_spans, item.word_scores, strict=True):
            scores.setdefault(start + begun, []).append(score)
    assert max(map(len, scores.values())) > 1
    np.testing.assert_allclose(long.word_scores, [np.mean(scores[start]) for _, start, _ in long.word_spans], rtol=1e-5)
    assert long.words == tuple(LONG.split())
    assert long.prediction == int(logits.argmax())
    assert long.probability == pytest.approx(
        float(logits.softmax(-1)[chosen[0] if isinstance(chosen, tuple) else chosen])
    )
    alone = exegete.attribute(model, SHORT, method, target)[0]
    np.testing.assert_allclose(short.word_scores, alone.word_scores, rtol=1e-6)
    assert (short.index, long.truncated) == (1, False)


def test_what_windows_are_not_for_is_told(model):
    with pytest.raises(ExegeteError, match="single texts"):
        exegete.attribute(model, [(LONG, SHORT)], "saliency", stride=4)
    with pytest.raises(ExegeteError, match="expected a stride from 0 to"):
        exegete.attribute(model, LONG, "saliency", stride=40)
    with pytest.raises(ExegeteError, match="not for span"):
        exegete.attribute(shared("bert", "QuestionAnswering"), [(SHORT, LONG)], "saliency", stride=4)


def test_paragraphs_end_at_blank_lines():
    text = "\n\none. two\nstill one\n \n\ntwo\n\n"
    assert [text[a:b].strip() for a, b in zip([0, *paragraph_ends(text)], paragraph_ends(text), strict=False)] == [
        "one. two\nstill one",
        "two",
    ]
    model = shared("bert")
    batch = model.encode(["the plot is dull\n\na small town\nin the rain"])
    assert units(batch, "paragraph")[0][batch.content[0]].tolist() == sorted(
        units(batch, "paragraph")[0][batch.content[0]].tolist()
    )
    assert int(units(batch, "paragraph").max()) == 1
    assert int(units(batch, "sentence").max()) == 2
    drop = exegete.explainer("occlusion", granularity="paragraph").attribute(model, batch)
    kept = model.encode(["the plot is dull"])
    assert len(set(drop[0][batch.content[0]].tolist())) == 2
    assert kept.length < batch.length
