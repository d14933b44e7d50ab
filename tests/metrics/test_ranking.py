from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from expound.errors import ExpoundError
from expound.metrics.ranking import fractions_to_counts, ranks, top_fraction
from expound.models import Batch
from judged import top

FRACTIONS = (0.01, 0.05, 0.1, 0.2, 0.29, 1 / 3, 0.5, 1.0)


def batch_of(content, specials=2):
    """Special tokens first, then content, then padding."""
    length = max(content) + specials + 1
    places = torch.arange(length)
    count = torch.tensor(content)[:, None]
    attended = places < count + specials
    return Batch.from_ids(torch.ones(len(content), length, dtype=torch.long), attended, content=places >= specials)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("rounding", ["floor", "ceil", "er"])
def test_top_fraction_selects_the_highest_scores(rounding, content, seed):
    batch = batch_of(content)
    scores = torch.randint(-3, 4, batch.content.shape, generator=torch.Generator().manual_seed(seed)).float()
    chosen = top_fraction(scores, batch, FRACTIONS, rounding)
    for index, fraction in enumerate(FRACTIONS):
        for row in range(len(batch)):
            candidates = batch.content[row].nonzero().flatten().tolist()
            expected = top(scores[row].tolist(), candidates, fraction, rounding, int(batch.attended[row].sum()))
            assert chosen[index, row].nonzero().flatten().tolist() == sorted(expected)


@pytest.mark.parametrize(
    ("rounding", "expected"), [("floor", [0, 3, 29, 7]), ("ceil", [1, 3, 29, 8]), ("er", [1, 3, 29, 7])]
)
def test_sizes_have_no_rounding_error(rounding, expected):
    # In floating point 30 · 0.1 = 3.0000000000000004 and 100 · 0.29 = 28.999999999999996.
    cases = [(9, 0.1), (30, 0.1), (100, 0.29), (15, 0.5)]
    assert [int(fractions_to_counts(torch.tensor([n]), (k,), rounding)) for n, k in cases] == expected


def test_equal_scores_are_ranked_by_position_and_signed_zeros_are_equal():
    scores = torch.tensor([[0.0, -0.0, 1.0, 0.0, 1.0]])
    candidates = torch.tensor([[True, True, True, False, True]])
    assert ranks(scores, candidates).tolist() == [[2, 3, 0, 4, 1]]


def test_candidates_with_extreme_scores_rank_before_other_positions():
    scores = torch.tensor([[5.0, -torch.inf, torch.inf, 0.0]])
    candidates = torch.tensor([[False, True, True, True]])
    assert ranks(scores, candidates).tolist() == [[3, 2, 0, 1]]


@pytest.mark.parametrize("fractions", [(), (0.0,), (0.2, 1.1), (-0.1,)])
def test_fractions_outside_the_input_are_refused(fractions):
    with pytest.raises(ExpoundError, match="above 0 and up to 1"):
        fractions_to_counts(torch.tensor([3]), fractions)
