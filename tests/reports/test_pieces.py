"""Texts are cut at words and rationales, and nothing of them is lost."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exegete.reports.highlighted.pieces import cut_texts, largest_magnitude, patch_scores
from reports.boards import attribution, image


def test_words_have_scores_and_gaps_have_none():
    (side,) = cut_texts(
        attribution(
            "warm  tea", marks=[1, 0.5, -0.25], words=("warm", "", "tea"), word_spans=((0, 0, 4), (0, 5, 5), (0, 6, 9))
        )
    )
    assert [(piece.text, piece.score, piece.level) for piece in side] == [
        ("warm", 1.0, 8),
        ("  ", None, 0),
        ("tea", -0.25, -2),
    ]


def test_gold_cuts_through_words_and_gaps():
    (side,) = cut_texts(attribution("warm tea", marks=[1, 1]), [((2, 6),)])
    assert [(piece.text, piece.gold) for piece in side] == [
        ("wa", False),
        ("rm", True),
        (" ", True),
        ("t", True),
        ("ea", False),
    ]


def test_sides_are_kept_apart():
    item = attribution("a b", texts=("a", "b"), word_spans=((0, 0, 1), (1, 0, 1)), marks=[1, -1])
    first, other = cut_texts(item, [None, ((0, 1),)])
    assert [(piece.text, piece.level, piece.gold) for piece in (*first, *other)] == [("a", 8, False), ("b", -8, True)]


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=30), st.lists(st.tuples(st.integers(0, 35), st.integers(0, 35)), max_size=4))
def test_pieces_join_to_the_text_and_gold_is_where_it_was_marked(text, gold):
    span = (0, 1, max(1, len(text) - 1))
    item = attribution("x", texts=(text,), words=(text,), word_spans=(span,))
    (side,) = cut_texts(item, [gold])
    assert "".join(piece.text for piece in side) == text
    marks = [piece.gold for piece in side for _ in piece.text]
    assert marks == [any(start <= at < end for start, end in gold) for at in range(len(text))]


def test_tokens_stand_in_for_words():
    item = attribution("warm tea", words=(), word_scores=(), word_spans=(), marks=[1, -1])
    assert [piece.text for piece in cut_texts(item)[0]] == ["warm", " ", "tea"]


def test_scale_leaves_out_what_is_not_finite():
    assert largest_magnitude(attribution("a b c", marks=[np.nan, -np.inf, -3])) == 3.0
    assert largest_magnitude(attribution("a", marks=[0])) == 0.0


def test_patches_are_in_rows():
    item = image(2, 3)
    np.testing.assert_array_equal(patch_scores(item), item.scores[1:].reshape(2, 3))


@pytest.mark.parametrize("text", ["", " ", "\n"])
def test_texts_without_words_are_shown_as_they_are(text):
    empty = dict.fromkeys(("words", "word_scores", "word_spans"), ())
    item = attribution("x", texts=(text,), tokens=("[CLS]", "[SEP]"), scores=(0, 0), special=(True, True), **empty)
    assert "".join(piece.text for side in cut_texts(item) for piece in side) == text
