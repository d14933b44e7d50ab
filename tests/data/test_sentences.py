"""Where sentences end, and which sentence and text a token belongs to."""

import families
from expound.data.alignment import align, find_part_of_tokens, find_sentence_ends, find_text_of_tokens


def test_sentences_part_a_text():
    cases = [
        ["One film.", " Two films!", ' "Three?"', " Four."],
        ["Dr. Smith saw it, e.g. at 3.5 km.", " He left... and came back."],
        ["A heading", "\nA line.", "\n\nAnother one"],
        ["これは映画です。", "とても良い！"],
        ["هل هذا فيلم؟", " نعم."],
        ["यह एक फ़िल्म है।", " अच्छी है॥", "ठीक"],
        ["หนังเรื่องนี้ดี", " ฉันชอบมาก"],
        ["値は３．１４です．", "次の文．"],
        ["no stop at all"],
        ["  leading space.", " Trailing space.  "],
    ]
    for sentences in cases:
        text = "".join(sentences)
        ends = find_sentence_ends(text)
        assert [text[start:end] for start, end in zip([0, *ends], ends, strict=False)] == sentences


def test_tokens_of_a_pair_have_sentences_and_texts_of_their_own():
    texts = ("a moving film. The plot is dull!", "it is long.")
    encoding = families.tokenizer("bert")(*texts).encodings[0]
    alignment = align(texts, encoding)
    sentence, side = find_part_of_tokens(alignment, find_sentence_ends), find_text_of_tokens(alignment)
    for span, number, text in zip(alignment.spans, sentence, side, strict=True):
        if span is None:
            assert (number, text) == (-1, -1)
        else:
            assert text == span[0]
            assert number == (2 if span[0] else int(span[1] >= 14))
    assert set(sentence) == {-1, 0, 1, 2}
