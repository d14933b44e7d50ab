"""Generated questions on notes, and rows of generated text read from files."""

import json
from itertools import islice

import pytest

from expound.data import generated_tokenizer, load_data
from expound.data.generated.retrieval import BESIDE, NOTES, generate_lessons, get_vocabulary
from expound.errors import ExpoundError


def rows(size=90, split="dev", seed=0):
    return list(load_data("generated", split, task="retrieval", size=4 * size, seed=seed))


def facts(row):
    return [fact.strip(" .") for fact in row["response"].split(". ")]


def test_the_evidence_states_the_answer_and_nothing_else_does():
    for row in rows():
        notes = {source["name"]: source["text"] for source in row["sources"]}
        assert len(notes) == NOTES
        said = facts(row)
        holding = [name for fact in said for name, text in notes.items() if fact in text]
        assert sorted(holding) == sorted(row["evidence"])
        assert len(said) == (2 if row["kind"] == "two hops" else 1)
        assert len(row["evidence"]) == (1 if row["kind"] == "one hop" else 2)
        assert row["kind"] == "redundant" or [said[n] in notes[name] for n, name in enumerate(row["evidence"])]


def test_somebody_is_mentioned_where_nothing_is_said_of_them():
    for row in rows():
        who = row["prompt"].split()[-2]
        beside = [source for source in row["sources"] for text in BESIDE if text.format(who=who) in source["text"]]
        assert len(beside) == 1
        assert beside[0]["name"] not in row["evidence"]


def test_each_place_holds_the_evidence_as_often():
    found = [sum(f"note {n}" in row["evidence"] for row in rows(600)) for n in range(1, NOTES + 1)]
    assert max(found) < 1.5 * min(found)


def test_rows_depend_on_seed_split_and_number_alone():
    assert rows(30) == rows(60)[:30]
    assert rows(10) != rows(10, seed=1)
    assert not {str(row) for row in rows(50)} & {str(row) for row in rows(50, split="test")}


def test_lessons_ask_what_their_notes_say():
    tokenizer = generated_tokenizer(get_vocabulary())
    lengths = set()
    for notes, questions in islice(generate_lessons(seed=0), 60):
        lengths.add(notes.count("\n\n") + 1)
        assert questions
        for question, answer in questions:
            assert all(fact.strip(" .") in notes for fact in answer.split(". "))
            assert question.split()[2] == answer.split()[0]
        tokens = tokenizer.tokenize(notes + " ".join(question + answer for question, answer in questions))
        assert not [token for token in tokens if token.startswith("##") or token == "[UNK]"]
    assert lengths == set(range(1, NOTES + 1))


CHAT = {
    "messages": [{"role": "user", "content": "{sources}\n\nWhen?"}],
    "sources": {"a": "one", "b": "two"},
    "response": "now",
    "evidence": ["b"],
    "id": 7,
}


def read(tmp_path, *given, split="all"):
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in given))
    return list(load_data(f"jsonl:{tmp_path}/rows.jsonl", split))


def test_chats_and_prompts_from_a_file(tmp_path):
    other = {"prompt": "Why?", "sources": ["x", {"title": "t", "text": "y"}]}
    content = [{"type": "text", "text": text} for text in ("{sources}", "When?")]
    first, second, third = read(tmp_path, CHAT, other, CHAT | {"messages": [{"role": "user", "content": content}]})
    assert first["sources"] == [{"name": "a", "text": "one"}, {"name": "b", "text": "two"}]
    assert (first["messages"], first["response"], first["evidence"]) == (CHAT["messages"], "now", ["b"])
    assert second["sources"] == [{"name": "source 1", "text": "x"}, {"name": "t", "text": "y"}]
    assert (second["prompt"], second["response"], second["evidence"], second["messages"]) == ("Why?", None, None, None)
    assert "id" not in first
    assert third["messages"] == [{"role": "user", "content": "{sources}\nWhen?"}]


def test_rows_that_ask_the_same_stay_together(tmp_path):
    given = [{"prompt": f"{n % 20}?", "response": str(n)} for n in range(60)]
    parts = [{row["prompt"] for row in read(tmp_path, *given, split=split)} for split in ("train", "dev", "test")]
    assert sum(map(len, parts)) == 20


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"prompt": "x"}, "line 1: expected either 'prompt' or 'messages'"),
        ({"sources": "x"}, "expected a list in 'sources'"),
        ({"sources": {"a": " "}}, "the text in 'sources' is empty"),
        ({"evidence": "b"}, "expected a list in 'evidence'"),
        ({"messages": [{"role": "user"}]}, "expected messages as a list"),
        ({"response": 3}, "expected text in 'response'"),
    ],
)
def test_rows_that_cannot_be_read(tmp_path, changed, message):
    with pytest.raises(ExpoundError, match=message):
        read(tmp_path, CHAT | changed)
