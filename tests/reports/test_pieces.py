"""Texts are cut at words and rationales, and no part of the text is lost."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expound.reports.highlighted.pieces import cut_patches, cut_response, cut_texts, scores_to_levels
from expound.reports.records import Unit
from reports.boards import explanation, image


def test_words_have_scores_and_gaps_have_none():
    (side,) = cut_texts(explanation("warm  tea", marks=[1, 0.5, -0.25]))
    assert [(piece.text, piece.score, piece.level) for piece in side] == [
        ("warm", 1.0, 8),
        ("  ", None, 0),
        ("tea", -0.25, -2),
    ]


def test_gold_cuts_through_words_and_gaps():
    (side,) = cut_texts(explanation("warm tea", marks=[1, 1]), [((2, 6),)])
    assert [(piece.text, piece.gold) for piece in side] == [
        ("wa", False),
        ("rm", True),
        (" ", True),
        ("t", True),
        ("ea", False),
    ]


def test_sides_are_kept_apart():
    item = explanation(
        "a b",
        texts=("a", "b"),
        units=(Unit("a", 0, 0, 1), Unit("b", 1, 0, 1)),
        tokens=(),
        token_scores=None,
        special=(),
        marks=[1, -1],
    )
    first, other = cut_texts(item, [None, ((0, 1),)])
    assert [(piece.text, piece.level, piece.gold) for piece in (*first, *other)] == [("a", 8, False), ("b", -8, True)]


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=30), st.lists(st.tuples(st.integers(0, 35), st.integers(0, 35)), max_size=4))
def test_pieces_join_to_the_text_and_gold_is_where_it_was_marked(text, gold):
    span = (0, 1, max(1, len(text) - 1))
    item = explanation("x", texts=(text,), units=(Unit(text, *span),))
    (side,) = cut_texts(item, [gold])
    assert "".join(piece.text for piece in side) == text
    marks = [piece.gold for piece in side for _ in piece.text]
    assert marks == [any(start <= at < end for start, end in gold) for at in range(len(text))]


def test_units_without_characters_are_pieces_themselves():
    item = explanation("warm tea", units=(Unit("warm"), Unit("tea")), marks=[1, -1])
    assert [piece.text for piece in cut_texts(item)[0]] == ["warm", " ", "tea"]


def test_scale_leaves_out_what_is_not_finite():
    assert scores_to_levels(np.array([[np.nan, -np.inf, -3], [0, 0, 0]])) == [[0, 0, -8], [0, 0, 0]]


def test_patches_are_in_rows():
    item = image(2, 3)
    shown = [[piece.score for piece in row] for row in cut_patches(item)]
    np.testing.assert_allclose(shown, item.scores[0].reshape(2, 3))


@pytest.mark.parametrize("text", ["", " ", "\n"])
def test_texts_without_words_are_shown_as_they_are(text):
    item = explanation("x", texts=(text,), units=(), scores=np.zeros((1, 0)), tokens=(), token_scores=None, special=())
    assert "".join(piece.text for side in cut_texts(item) for piece in side) == text


def test_white_space_at_the_edges_of_the_parts_of_a_response_belongs_to_none():
    pieces = cut_response("One.\n\nTwo. \n ", [(0, 6), (6, 11), (11, 13)])
    assert [(piece.text, piece.unit) for piece in pieces] == [("One.", 0), ("\n\n", None), ("Two.", 1), (" \n ", None)]
