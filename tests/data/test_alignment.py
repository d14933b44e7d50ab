import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from expound.data import Word, align, pool, split_words, token_mask, word_mask
from expound.errors import ExpoundError
from tokenizers_for_tests import FAMILIES, SENTENCES, byte_level, unigram, wordpiece

MIXED = st.text(
    st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from(" \n\t\u00a0\u200b\u0301é日本ไทกิ😀👍🏽עב.'abc"))
)
ALL = pytest.mark.parametrize("family", FAMILIES)


def brute_force(texts, encoding):
    """Return the tokens of each character, the words, and the word with most characters of each token."""
    on = {(segment, i): [] for segment, text in enumerate(texts) for i in range(len(text))}
    rows = zip(encoding.offsets, encoding.sequence_ids, encoding.special_tokens_mask, strict=True)
    for token, ((start, end), segment, special) in enumerate(rows):
        for i in range(start, end):
            if not special and segment is not None and not texts[segment][start : i + 1].isspace():
                on[segment, i].append(token)
    words = [word for segment, text in enumerate(texts) for word in split_words(text, segment)]
    word_of = []
    for token in range(len(encoding.tokens)):
        shares = [sum(token in on[word.segment, i] for i in range(word.start, word.end)) for word in words]
        word_of.append(shares.index(max(shares)) if any(shares) else -1)
    return on, words, word_of


def check(texts, encoding):
    alignment = align(texts, encoding)
    on, words, word_of = brute_force(texts, encoding)
    assert list(alignment.words) == words
    assert list(alignment.word_of) == word_of
    assert not alignment.truncated
    for (segment, i), tokens in on.items():
        marked = [j for j, hit in enumerate(token_mask(alignment, [(i, i + 1)], segment)) if hit]
        if texts[segment][i].isspace():
            continue
        assert marked == tokens
        (hit,) = [j for j, m in enumerate(word_mask(alignment, [(i, i + 1)], segment)) if m]
        assert (words[hit].segment, words[hit].start <= i < words[hit].end) == (segment, True)
    for span, token in zip(alignment.spans, alignment.tokens, strict=True):
        if span is not None:
            piece = texts[span[0]][span[1] : span[2]]
            assert piece == piece.strip(), token


@ALL
@given(text=MIXED)
@settings(max_examples=60, deadline=None)
def test_one_text_agrees_with_brute_force(family, text):
    check((text,), FAMILIES[family]().encode(text))


@ALL
@given(first=MIXED, second=MIXED)
@settings(max_examples=60, deadline=None)
def test_a_pair_agrees_with_brute_force(family, first, second):
    check((first, second), FAMILIES[family]().encode(first, second))


@ALL
@pytest.mark.parametrize("text", SENTENCES)
def test_sentences_agree_and_every_word_is_reached(family, text):
    encoding = FAMILIES[family]().encode(text, SENTENCES[0])
    check((text, SENTENCES[0]), encoding)
    alignment = align((text, SENTENCES[0]), encoding)
    for word in alignment.words:
        assert any(token_mask(alignment, [(word.start, word.end)], word.segment)), word


@given(text=MIXED)
def test_words_cover_exactly_what_is_not_white_space(text):
    words = split_words(text)
    assert all(text[w.start : w.end] == w.text and w.text and not any(c.isspace() for c in w.text) for w in words)
    covered = [i for word in words for i in range(word.start, word.end)]
    assert covered == [i for i, character in enumerate(text) if not character.isspace()]


@given(text=st.text(st.characters(categories=["Lu", "Ll", "Nd", "Po", "Zs"], max_codepoint=0x52F)))
def test_words_of_scripts_with_spaces_are_those_of_split(text):
    assert [word.text for word in split_words(text)] == text.split()


def test_words_by_hand():
    cases = [
        ("", []),
        ("  \n", []),
        ("a  bc\td", ["a", "bc", "d"]),
        ("日本語のtext、ok", ["日", "本", "語", "の", "text", "、", "ok"]),
        ("ไทย", ["ไ", "ท", "ย"]),
        ("ที่นี่", ["ที่", "นี่"]),
        ("か\u3099き", ["か\u3099", "き"]),
        ("한국어 책", ["한국어", "책"]),
        ("e\u0301t\u0301 שלום", ["e\u0301t\u0301", "שלום"]),
        ("👍🏽🇩🇪 x", ["👍🏽🇩🇪", "x"]),
        ("a\u00a0b\u200bc", ["a", "b\u200bc"]),
    ]
    for text, expected in cases:
        assert [word.text for word in split_words(text, segment=1)] == expected
        assert all(word.segment == 1 for word in split_words(text, segment=1))


def test_pair_of_equal_texts_keeps_its_sides_apart():
    text = "two grey cats"
    for tokenizer in (wordpiece(), byte_level()):
        alignment = align((text, text), tokenizer.encode(text, text))
        assert alignment.words == (*split_words(text, 0), *split_words(text, 1))
        half = alignment.word_of.index(3)
        assert set(alignment.word_of[:half]) == {-1, 0, 1, 2}
        assert set(alignment.word_of[half:]) == {-1, 3, 4, 5}
        both = np.array([token_mask(alignment, [(4, 8)], segment) for segment in (0, 1)])
        assert both.any(axis=1).all()
        assert not both.all(axis=0).any()


def test_double_separator_is_special_and_typed_specials_are_content():
    alignment = align(("a", "b"), byte_level().encode("a", "b"))
    assert alignment.tokens == ("<s>", "a", "</s>", "</s>", "b", "</s>")
    assert alignment.spans == (None, (0, 0, 1), None, None, (1, 0, 1), None)
    typed = align(("cats [SEP] hens",), wordpiece().encode("cats [SEP] hens"))
    at = typed.tokens.index("[SEP]")
    assert typed.spans[at] == (0, 5, 10)
    assert typed.words[typed.word_of[at]].text == "[SEP]"
    assert (typed.spans[0], typed.spans[-1]) == (None, None)


def test_bytes_of_one_character_all_belong_to_its_word():
    alignment = align(("x 🦔",), byte_level().encode("x 🦔"))
    pieces = [i for i, word in enumerate(alignment.word_of) if word == 1]
    assert len(pieces) > 1
    assert all(alignment.spans[i] == (0, 2, 3) for i in pieces)


def test_trimmed_and_untrimmed_offsets_give_the_same_alignment():
    for text in (*SENTENCES, "  two   grey\n\ncats  "):
        trimmed, raw = (align((text,), byte_level(trim=trim).encode(text)) for trim in (True, False))
        assert trimmed == raw


def test_white_space_alone_belongs_to_no_word():
    alignment = align(("a   b",), byte_level(trim=False).encode("a   b"))
    blanks = [i for i, token in enumerate(alignment.tokens) if set(token) == {"Ġ"}]
    assert blanks
    assert all(alignment.word_of[i] == -1 and alignment.spans[i][1] == alignment.spans[i][2] for i in blanks)
    assert not any(token_mask(alignment, [(0, 5)])[i] for i in blanks)


def test_metaspace_of_its_own_does_not_steal_the_next_word():
    alignment = align(("hens ξ cats",), unigram().encode("hens ξ cats"))
    assert [w.text for w in alignment.words] == ["hens", "ξ", "cats"]
    pooled = pool(np.ones(len(alignment.tokens)), alignment.word_of, 3)
    assert (pooled >= 1).all()


def test_a_dropped_word_stays_without_tokens():
    alignment = align(("cats \u200b\u200b hens",), wordpiece().encode("cats \u200b\u200b hens"))
    assert [w.text for w in alignment.words] == ["cats", "\u200b\u200b", "hens"]
    assert set(alignment.word_of) == {-1, 0, 2}


class Overlapping:
    """An encoding whose tokens cross words, as byte merges over several characters do."""

    offsets = ((0, 5), (3, 8), (0, 8), (0, 3))
    tokens = ("ab cd", "cdefg", "ab cdefg", "ab")
    sequence_ids = (0, 0, 0, 0)
    special_tokens_mask = (0, 0, 0, 0)
    overflowing = ()


def test_largest_overlap_wins_and_ties_go_to_the_first():
    assert align(("ab cdefg",), Overlapping).word_of == (0, 1, 1, 0)


@pytest.mark.parametrize("direction", ["right", "left"])
@pytest.mark.parametrize("strategy", ["longest_first", "only_first", "only_second"])
@ALL
def test_truncation_drops_exactly_the_words_cut_off(family, direction, strategy):
    texts = (SENTENCES[0], SENTENCES[2])
    tokenizer = FAMILIES[family]()
    whole = align(texts, tokenizer.encode(*texts))
    limit = len(whole.tokens) - 10
    tokenizer.enable_truncation(limit, strategy=strategy, direction=direction)
    try:
        encoding = tokenizer.encode(*texts)
    finally:
        tokenizer.no_truncation()
    alignment = align(texts, encoding)
    assert alignment.truncated
    assert len(alignment.tokens) == limit
    reached = {(w.segment, w.start) for w in (alignment.words[i] for i in alignment.word_of if i >= 0)}
    assert [(w.segment, w.start) for w in alignment.words] == [
        (w.segment, w.start) for w in whole.words if (w.segment, w.start) in reached
    ]
    assert len(alignment.words) < len(whole.words)


def test_truncation_unknown_to_the_encoding():
    tokenizer = wordpiece()
    encoding = tokenizer.encode("cats hens")
    told = align(("cats hens tractor",), encoding, truncated=True)
    assert [w.text for w in told.words] == ["cats", "hens"]
    assert told.truncated
    assert len(align(("cats hens tractor",), encoding).words) == 3


@ALL
def test_tokenizers_of_transformers_give_the_same_alignment(family):
    backend = FAMILIES[family]()
    pad = {"wordpiece": "[PAD]", "llama_like": "<|begin_of_text|>"}.get(family, "<pad>")
    wrapped = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token=pad)
    pairs = [(SENTENCES[i], SENTENCES[j]) for i in range(5) for j in range(2)]
    batch = wrapped([a for a, _ in pairs], [b for _, b in pairs])
    for pair, encoding in zip(pairs, batch.encodings, strict=True):
        assert align(pair, encoding) == align(pair, backend.encode(*pair))
    padded = wrapped([a for a, _ in pairs], padding=True)
    for (text, _), encoding in zip(pairs, padded.encodings, strict=True):
        real = align((text,), backend.encode(text))
        assert align((text,), encoding).spans == (*real.spans, *[None] * (len(encoding.ids) - len(real.spans)))


def test_an_encoding_of_other_texts_is_refused():
    with pytest.raises(ExpoundError, match="does not belong to these texts"):
        align(("cats",), wordpiece().encode("cats", "hens"))
    with pytest.raises(ExpoundError, match="does not belong to these texts"):
        align(("ca",), wordpiece().encode("cats"))


def test_spans_outside_the_text_are_refused():
    alignment = align(("cats",), wordpiece().encode("cats"))
    for span in ((0, 5), (-1, 2), (3, 2)):
        with pytest.raises(ExpoundError, match="4 characters"):
            token_mask(alignment, [span])


@given(
    rows=st.lists(st.tuples(st.floats(-5, 5), st.integers(-1, 6)), max_size=30),
    pooling=st.sampled_from(["sum", "max", "mean"]),
)
def test_pool_agrees_with_loops(rows, pooling):
    scores, word_of = [s for s, _ in rows], [w for _, w in rows]
    rule = {"sum": sum, "max": max, "mean": lambda values: sum(values) / len(values)}[pooling]
    groups = [[s for s, w in rows if w == word] for word in range(7)]
    np.testing.assert_allclose(pool(scores, word_of, 7, pooling), [rule(g) if g else 0.0 for g in groups], atol=1e-12)


def test_pool_refuses_other_lengths_and_unknown_ways():
    with pytest.raises(ExpoundError, match="2 tokens"):
        pool([1.0], [0, 1], 2)
    with pytest.raises(ExpoundError, match="Valid choices: max, mean, sum"):
        pool([1.0], [0], 1, "median")


def test_combining_marks_stay_with_their_word():
    text = unicodedata.normalize("NFD", "café ünlü")
    alignment = align((text,), wordpiece().encode(text))
    assert [w.text for w in alignment.words] == text.split()
    assert set(alignment.word_of) == {-1, 0, 1}
    assert alignment.words[0] == Word(text[:5], 0, 0, 5)
