"""Maps between tokenizers, against maps by hand and sets of characters."""

from __future__ import annotations

import pytest

import tokenizers_for_tests as tokenizers
from expound import ExpoundError
from expound.data.alignment import align, map_tokens

TEXTS = [
    *tokenizers.SENTENCES,
    "naïve café  soufflé , über!",
    "Ünïcödé 日本 😀👍🏽 x",
    "plain words only",
]
KINDS = {"wordpiece": tokenizers.wordpiece, "byte-level": tokenizers.byte_level, "llama": tokenizers.llama_like}


def align_texts(kind, *texts):
    encoding = KINDS[kind]().encode(*texts)
    return align(texts, encoding)


def characters(span):
    return set() if span is None else {(span[0], i) for i in range(span[1], span[2])}


def by_characters(source, target):
    """Return the overlapping source tokens of each token, by sets of characters."""
    there = [characters(span) for span in source.spans]
    return [[i for i, other in enumerate(there) if other & characters(span)] for span in target.spans]


def test_equal_tokenizations_map_each_token_to_itself():
    for text in TEXTS:
        for kind in KINDS:
            one = align_texts(kind, text)
            assert map_tokens(one, align_texts(kind, text)) == [
                [] if span is None else [i] for i, span in enumerate(one.spans)
            ]


def test_overlaps_are_those_of_character_sets_and_no_content_token_is_left_empty():
    for pair in [("wordpiece", "byte-level"), ("byte-level", "wordpiece"), ("wordpiece", "llama")]:
        for text in TEXTS:
            source, target = align_texts(pair[0], text, text[::-1]), align_texts(pair[1], text, text[::-1])
            expected, found = by_characters(source, target), map_tokens(source, target)
            for span, row, overlap in zip(target.spans, found, expected, strict=True):
                if span is None:
                    assert row == []
                elif overlap:
                    assert row == overlap
                else:
                    assert row, "a token without characters has its neighbors'"
                    assert all(source.spans[i][0] == span[0] for i in row)


def test_splits_and_merges_by_hand():
    """WordPiece on café: one token that is unaccented; byte-level: bytes of é apart from the letters before."""
    source, target = align_texts("wordpiece", "café owner"), align_texts("byte-level", "café owner")
    back = map_tokens(target, source)
    forth = map_tokens(source, target)
    cafe_pieces = [i for i, span in enumerate(source.spans) if span and span[2] <= 4]
    cafe_bytes = [i for i, span in enumerate(target.spans) if span and span[2] <= 4]
    assert sorted({i for p in cafe_bytes for i in forth[p]}) == cafe_pieces
    assert sorted({i for p in cafe_pieces for i in back[p]}) == cafe_bytes
    owner = next(i for i, span in enumerate(target.spans) if span and span[1] >= 5)
    assert all(source.spans[i][1] >= 5 for i in forth[owner])


def test_what_truncation_cut_off_has_no_source_and_other_texts_are_refused():
    text = "two grey cats slept under the tractor"
    tokenizer = tokenizers.wordpiece()
    tokenizer.enable_truncation(6)
    try:
        cut = align((text,), tokenizer.encode(text))
    finally:
        tokenizer.no_truncation()
    whole = align_texts("wordpiece", text)
    reach = max(span[2] for span in cut.spans if span)
    for span, row in zip(whole.spans, map_tokens(cut, whole), strict=True):
        assert bool(row) == (span is not None and span[1] < reach)
    with pytest.raises(ExpoundError, match="same text"):
        map_tokens(align_texts("wordpiece", "one"), align_texts("wordpiece", "two"))
