"""Citations of an answer that somebody else wrote, as characters of the answer and of the sources as given."""

import json

import pytest
import torch

import expound
from chats import chatting
from expound import ExpoundError, cite
from expound.explainers.cite_answer import find_json_fields

SOURCES = {
    "town": "\n A moving film about a small town. It is long.\n\nThe plot is dull.",
    "user": "two women are holding packages .",
}
ROW = {
    "messages": [{"role": "user", "content": "what is {small} in {sources} ?"}],
    "sources": SOURCES,
    "literal": True,
    "response": "The town is small. Two women laugh at it.",
}


def measure_fall(model, start, end, source, first, last):
    """How much less likely characters of the answer are without characters of a source, by its token ids removed."""
    texts = [text.strip() for text in SOURCES.values()]
    question = "what is {small} in {sources} ?"
    prompt = "<|user|>" + "\n\n".join([*texts, question]) + "\n<|assistant|>"
    encoded = model.tokenizer(prompt + ROW["response"], return_offsets_mapping=True, add_special_tokens=False)
    ids, spans = torch.tensor(encoded["input_ids"]), encoded["offset_mapping"]
    lead = len(SOURCES[source]) - len(SOURCES[source].lstrip())
    begin = prompt.index(SOURCES[source].strip()) - lead
    removed = [begin + first <= one and other <= begin + last for one, other in spans]
    keep = ~torch.tensor(removed)

    def score(kept):
        logits = model.model(ids[kept][None]).logits[0].log_softmax(-1)
        places = [offset for offset, is_kept in zip(spans, kept.tolist(), strict=True) if is_kept]
        total = 0.0
        for number, (one, other) in enumerate(places):
            if one < len(prompt) + end and other > len(prompt) + start:
                total += float(logits[number - 1, ids[kept][number]])
        return total

    return score(torch.ones_like(keep)) - score(keep)


@torch.no_grad()
@pytest.mark.parametrize("unit", ["source", "sentence"])
def test_scores_and_characters_are_those_of_removed_token_ids(unit):
    model = chatting()
    spans = [(4, 8), (19, 41)]
    found = cite(model, ROW, "occlusion", spans=spans, unit=unit, k=9)
    assert [citation.span for citation in found] == spans
    for citation in found:
        assert len(citation.sources) == (2 if unit == "source" else 4)
        for (name, score), place in zip(citation.sources, citation.places, strict=True):
            assert list(SOURCES)[place.segment] == name
            assert SOURCES[name][place.start : place.end] == (SOURCES[name].strip() if unit == "source" else place.text)
            # A sentence owns the white space before it, whose tokens have no characters of their own.
            first = place.start
            while unit == "sentence" and first and SOURCES[name][first - 1].isspace() and SOURCES[name][:first].strip():
                first -= 1
            fall = measure_fall(model, *citation.span, name, first, place.end)
            assert score == pytest.approx(fall, abs=1e-5)


def test_sentences_are_cited_as_explanations_cite_them():
    model = chatting()
    (item,) = expound.attribute(model, [ROW], "occlusion", "sentences", unit="source")
    found = cite(model, ROW)
    assert found == item.citations()
    assert [ROW["response"][slice(*each.span)] for each in found] == [each.text for each in found]
    assert [each.places for each in cite(model, ROW, k=0)] == [(), ()]


def test_values_of_a_json_answer_are_cited_by_their_pointer():
    model = chatting()
    answer = 'Here: {"town": "small", "a/b": [12, {"c": true}], "none": ""}'
    found = cite(model, ROW | {"response": answer}, spans="fields", unit="sentence")
    assert [(each.field, answer[slice(*each.span)]) for each in found] == [
        ("/town", "small"), ("/a~1b/0", "12"), ("/a~1b/1/c", "true"), ("/none", '""'),
    ]  # fmt: skip
    assert all(len(each.places) == 2 for each in found)


def test_fields_are_the_values_that_json_reads():
    value = {"": 1, 'a"b': [[], {}, [None, -1.5e3]], "c\\": {"d": "x\\", "e": "é, [\u2028] \U0001f600"}, "f": ""}
    fenced = f"```json\n{json.dumps(value, ensure_ascii=False)}\n```"
    for text in (json.dumps(value), json.dumps(value, indent=2), fenced):
        read = {}
        for field in find_json_fields(text):
            read[field.pointer] = text[field.start : field.end]
        assert list(read) == ["/", '/a"b/2/0', '/a"b/2/1', "/c\\/d", "/c\\/e", "/f"]
        assert [json.loads(read[name]) for name in list(read)[:3]] == [1, None, -1500]
        texts = [json.loads('"' + read[name] + '"') for name in list(read)[3:5]]
        assert texts == list(value["c\\"].values())
    for text in ("", "no", "{", "[]", "{} or []", "[" * 100_000, '{"a": 1} {"b": 2}'):
        with pytest.raises(ExpoundError, match="JSON"):
            find_json_fields(text)


def test_what_cannot_be_cited_is_refused():
    model = chatting()
    for span in ((0, 0), (-1, 4), (3, 99), (5, 2)):
        with pytest.raises(ExpoundError, match="empty or outside"):
            cite(model, ROW, spans=[span])
    with pytest.raises(ExpoundError, match="longer than the 260 tokens"):
        cite(model, ROW | {"messages": [{"role": "user", "content": "long " * 300}]})
    with pytest.raises(ExpoundError, match="JSON object or list in the answer"):
        cite(model, ROW, spans="fields")
