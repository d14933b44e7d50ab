"""Self-consistency against Shapley values by own removal of token ids, and where it is known."""

from itertools import combinations
from math import factorial

import numpy as np
import pytest
import torch

from chats import chatting
from expound import ExpoundError
from expound.metrics import explanation_consistency
from expound.metrics.self_consistency import compare_contributions, find_reason
from small import shared

SOURCES = {"a": "a moving film", "b": "about a small town", "c": "two women"}
ROW = {"prompt": "{a} {b} {c} ?", "sources": SOURCES, "response": " The town. It is small."}


@torch.no_grad()
def test_the_value_is_the_cosine_of_shapley_shares_by_removed_token_ids():
    model = chatting(template=None)
    found = explanation_consistency(model, [ROW], unit="source")
    ends, prompt = [], " ".join(SOURCES.values()) + " ?"
    for text in SOURCES.values():
        ends.append((prompt.index(text), prompt.index(text) + len(text)))
    encoded = model.tokenizer(prompt + ROW["response"], return_offsets_mapping=True)
    ids, spans = torch.tensor(encoded["input_ids"]), encoded["offset_mapping"]
    # A token belongs to the source that has its characters; the space before a word is part of its token.
    owner = [next((n for n, (a, b) in enumerate(ends) if a < end <= b), -1) for _, end in spans]
    count = sum(end > len(prompt) for _, end in spans)

    def read(kept):
        keep = torch.tensor([each < 0 or each in kept for each in owner])
        logits = model.model(ids[keep][None]).logits[0].log_softmax(-1)
        return logits[-count - 1 : -1].gather(1, ids[-count:, None])[:, 0]

    shapley = torch.zeros(count, 3, dtype=torch.float64)
    for unit in range(3):
        others = [each for each in range(3) if each != unit]
        for size in range(3):
            for kept in combinations(others, size):
                weight = factorial(size) * factorial(2 - size) / factorial(3)
                shapley[:, unit] += weight * (read({*kept, unit}) - read(set(kept)))
    shares = shapley / shapley.abs().sum(1, keepdim=True)
    n = sum(end <= len(prompt) + len(" The town.") for _, end in spans[-count:])
    one, other = shares[:n].mean(0), shares[n:].mean(0)
    assert found == pytest.approx(float(one @ other / (one.norm() * other.norm())), abs=1e-5)


def test_equal_parts_are_consistent_and_parts_without_a_reason_have_no_value():
    model, rows = chatting(template=None), [ROW, ROW | {"response": " The town."}]
    found = explanation_consistency(model, rows, "occlusion", unit="source")
    assert -1 <= found[0] < 1
    assert np.isnan(found[1])
    same = explanation_consistency(model, rows, "occlusion", unit="source", find_parts=lambda text: ((0, 5), (0, 5)))
    assert same == pytest.approx([1, 1])
    assert find_reason("Nine. Because it rains. Yes.") == ((0, 5), (5, 28))
    with pytest.raises(ExpoundError, match="load ExplainedModel with task='generation'"):
        explanation_consistency(shared("bert"), ["a film"])


def test_contributions_are_compared_by_share():
    one = np.array([[2.0, 0, -2], [0.1, 0, -0.1], [0, 0, 0]])
    assert compare_contributions(one, -5 * one) == pytest.approx(-1)
    assert compare_contributions(one, np.array([[0, 3.0, 0]])) == 0
    assert np.isnan(compare_contributions(one, np.zeros((2, 3))))
