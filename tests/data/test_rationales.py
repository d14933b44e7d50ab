"""The forms in which a column marks a part of a text."""

import pytest

from expound import ExpoundError
from expound.data.spans import read_rationale

TEXT = "an art party with  art, at last"


def test_spans_words_and_masks_are_read():
    cases = [
        ([[3, 6], [8, 9]], ["art", "a"]),
        ([], []),
        (["art"], ["art", "art"]),
        ("art party", ["art party"]),
        (["art party", "last"], ["art party", "last"]),
        ([0, 1, 1, 0, 0, 0, 1], ["art party", "last"]),
        ([False, True, False, False, True, False, False], ["art", "art,"]),
    ]
    for value, marked in cases:
        assert [TEXT[start:end] for start, end in read_rationale(value, TEXT, "row 1")] == marked


def test_another_form_is_one_clear_sentence():
    cases = [
        (7, r"row 1: expected a rationale as characters as \[\[start, end\]"),
        ([[3, 99]], "within 31 characters"),
        (["part"], "'part' does not occur"),
        ("part", "'part' does not occur in the text as whole words; expected characters as"),
        (["ast"], "'ast' does not occur"),
        ([""], "does not occur"),
        ([0, 1], "each of the 7 words between white space, got 2 numbers"),
        ([0, 1, 1, 0, 0, 0, 0.5], "expected a 0 or 1 for each"),
        ([[3, 6], "art"], "expected a rationale as characters"),
    ]
    for value, message in cases:
        with pytest.raises(ExpoundError, match=message):
            read_rationale(value, TEXT, "row 1")
