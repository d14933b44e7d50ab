"""Units that are spans of the user's: sums and removals by hand, the rest, and errors."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from chats import CHAT, chatting
from expound import ExpoundError, attribute
from small import shared

TEXT = "a moving film about  a small town, and its river"
SPANS = [(21, 33), (2, 13)]


def find_inside(item, spans):
    """Return [U, L] whether a token, by its characters, lies in each span."""
    inside = []
    for span in spans:
        segment, start, end = (0, *span)[-3:]
        own = []
        for token, special in zip(item.tokens, item.special, strict=True):
            is_space = token.start == token.end
            fits = start < token.end <= end if is_space else start <= token.start and token.end <= end
            own.append(not special and token.segment == segment and fits)
        inside.append(own)
    return np.array(inside)


def test_spans_are_summed_or_removed_as_a_whole_and_the_rest_is_kept():
    for family in ("bert", "gpt2"):
        model, pair = shared(family), ("the river is cold", "a small film")
        for examples, units in (([TEXT, "small film"], [SPANS, [(0, 5)]]), ([pair], [[(1, 2, 7), (0, 4, 9)]])):
            sums = attribute(model, examples, "integrated_gradients", unit=units, n_steps=4)
            by_token = attribute(model, examples, "integrated_gradients", unit="token", n_steps=4)
            drops = attribute(model, examples, "occlusion?perturbation=attend", unit=units)
            for item, whole, drop, spans in zip(sums, by_token, drops, units, strict=True):
                inside = find_inside(item, spans)
                assert inside.any(1).all()
                assert item.unit == "span"
                assert item.unit_texts == tuple(item.texts[(0, *span)[-3]][span[-2] : span[-1]] for span in spans)
                np.testing.assert_allclose(item.scores[0], inside @ item.token_scores[0], rtol=1e-5)
                total = whole.scores.sum() + whole.rest[0]
                assert item.scores.sum() + item.rest[0] == pytest.approx(total, abs=1e-6)
                assert drop.params["unit"] == "span"
                with pytest.raises(ExpoundError, match="explain with unit='sentence'"):
                    drop.aggregate("sentence")
                batch = model.encode([item.texts if len(item.texts) == 2 else item.texts[0]])
                with torch.no_grad(), model.evaluation_mode():
                    full = model.probabilities(batch)[0, drop.target.value]
                    for score, own in zip(drop.scores[0], inside, strict=True):
                        kept = replace(batch, attended=batch.attended & ~torch.tensor(own))
                        mask = {"attention_mask": kept.attended.long()}
                        kept = replace(kept, inputs=batch.inputs | mask)
                        rest = model.probabilities(kept)[0, drop.target.value]
                        assert score == pytest.approx(float(full - rest), abs=1e-6)


def test_spans_of_a_chat_are_removed_as_a_whole():
    model = chatting()
    texts = attribute(model, [CHAT], "occlusion?output=log_prob", unit="source")[0].texts
    number = texts.index(CHAT["sources"]["doc 1"])
    spans = [(number, 20, 32), (number, 0, 13)]
    item = attribute(model, [CHAT], "occlusion?output=log_prob", unit=spans)[0]
    assert item.unit_texts == ("a small town", "a moving film")
    batch = model.encode([CHAT])
    (alignment,) = batch.alignments
    assert batch.attended.all()
    ids = batch.inputs["input_ids"][0].tolist()
    length = int(batch.response.sum())

    def log_prob(kept):
        with torch.no_grad():
            logits = model.model(torch.tensor([kept])).logits[0, -length - 1 : -1].log_softmax(-1)
        return float(logits[range(length), kept[-length:]].sum())

    for score, (_, start, end) in zip(item.scores[0], spans, strict=True):
        kept = []
        for token, span in zip(ids, alignment.spans, strict=True):
            if span is None or span[0] != number or not (start <= span[1] and span[2] <= end):
                kept.append(token)
        assert len(kept) < len(ids)
        assert score == pytest.approx(log_prob(ids) - log_prob(kept), rel=1e-6)


def test_spans_that_name_no_characters_are_refused():
    refused = {
        "the spans (0, 5) and (4, 8) of example 0 overlap": [(0, 5), (4, 8)],
        "(3, 3) of example 0 is empty or outside: its text has 48 characters": [(3, 3)],
        "(40, 49) of example 0 is empty or outside": [(40, 49)],
        "(1, 0, 5) of example 0 is empty or outside": [(1, 0, 5)],
        "(-3, 5) of example 0 is empty or outside": [(-3, 5)],
        "example 0 has no span": [[]],
        "for each of 1 examples": [[(0, 5)], [(0, 5)]],
        "(start, end), whole numbers, not (0, '5')": [(0, "5")],
        "(19, 20) of example 0, ' ', has no token": [(19, 20)],
    }
    for message, unit in refused.items():
        for method in ("occlusion", "input_x_gradient"):
            with pytest.raises(ExpoundError) as refusal:
                attribute(shared("bert"), TEXT, method, unit=unit)
            assert message in str(refusal.value)
    with pytest.raises(ExpoundError, match=r"\(number of the text, start, end\)"):
        attribute(shared("bert"), [("a film", "a town")], "occlusion", unit=[(0, 1)])
