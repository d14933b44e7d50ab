"""What the chat's page answers, against the model itself."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from threading import Event
from urllib.parse import parse_qs

import pytest
import torch

import exegete
from chats import SOURCES
from chatting import ANSWER, ASKED, chats, model, site
from exegete.errors import ExegeteError
from exegete.explainers.learned.conformal import ConformalLowerBound
from exegete.explainers.learned.trained_citation import TrainedCitation
from exegete.web import Limits
from exegete.web.chat.question import parse_chat_question
from exegete.web.chat.service import ChatService
from exegete.web.explore.progress import StoppedError
from sites import admin, csrf

METHODS = ["occlusion", "input_x_gradient", "decompx_classifier"]
SPACED = (("letter", "the  small\n\n town  moves"), ("memo", "it rains"))


@pytest.fixture(scope="module")
def room():
    return chats()


def target_log_probs(item):
    return [target.log_prob for target in item.targets]


def read(text, limits=Limits()):  # noqa: B008  (frozen)
    return parse_chat_question(
        parse_qs(text, keep_blank_values=True), ["tiny"], METHODS, lambda name: "occlusion", limits
    )


def log_probs(ids, said):
    """Of each token of the response, token by token."""
    with torch.no_grad():
        table = model().model(torch.tensor([[*ids, *said]])).logits[0].log_softmax(-1)
    return [float(table[len(ids) + place - 1, token]) for place, token in enumerate(said)]


def test_removing_a_document_lowers_log_probabilities_by_its_occlusion_scores(room):
    item = room.explain(ASKED).attribution
    assert item.unit_texts == tuple(SOURCES)
    clean = room.score_without(ASKED, [])
    assert clean == pytest.approx([sum(target_log_probs(item)), *target_log_probs(item)], abs=1e-4)
    batch = model().encode([room.make_example(ASKED)])
    ids, said = batch.inputs["input_ids"][0], batch.inputs["input_ids"][0, batch.response[0]].tolist()
    for number in range(2):
        found = room.score_without(ASKED, [number])
        assert [one - other for one, other in zip(clean[1:], found[1:], strict=True)] == pytest.approx(
            item.scores[:, number], abs=1e-5
        )
        left = ids[(batch.unit_of[0] != number) & ~batch.response[0] & batch.attended[0]].tolist()
        each = log_probs(left, said)
        spans = [sum(each[start:end]) for start, end in (target.value for target in item.targets)]
        assert found == pytest.approx([sum(each), *spans], abs=1e-8)


def test_removing_all_words_of_a_document_removes_the_document(room):
    by_source = replace(ASKED, sources=SPACED)
    by_word = replace(by_source, unit="word", method="random")
    item = room.explain(by_word).attribution
    words = [number for number, unit in enumerate(item.units) if item.exchange.names[unit.side] == "letter"]
    assert room.score_without(by_word, words) == pytest.approx(room.score_without(by_source, [0]), abs=1e-9)
    assert room.score_without(by_word, words[1:]) != pytest.approx(room.score_without(by_source, [0]), abs=1e-3)


def test_a_generated_answer_is_cached_for_all_methods(room, monkeypatch):
    asked = replace(ASKED, response="", tokens=5)
    found = room.explain(asked)
    assert found.is_generated
    (row,) = model().respond([room.make_example(asked)], 5)
    assert found.attribution == exegete.attribute(model(), [row], "occlusion", "sentences", unit="source")[0]
    monkeypatch.setattr(model().model, "generate", None)
    assert room.explain(replace(asked, method="input_x_gradient")).attribution.response == found.attribution.response


def test_documents_replace_their_placeholders_or_precede_the_question(room):
    said = [
        room.make_example(replace(ASKED, question=text))["messages"][-1]["content"]
        for text in ("why ?", "{doc 1} why ?")
    ]
    assert said == ["{sources}\n\nwhy ?", "{doc 1} why ?"]
    assert "no place for the source 'doc 2'" in room.explain(replace(ASKED, question="{doc 1} why ?")).problem
    assert room.make_example(replace(ASKED, system="be brief"))["messages"][0] == {
        "role": "system",
        "content": "be brief",
    }


def test_a_given_answer_to_a_plain_prompt_starts_with_a_space(monkeypatch):
    room = chats()
    monkeypatch.setattr(model().tokenizer, "chat_template", None)
    asked = replace(ASKED, response="the town .")
    assert room.make_example(asked)["response"] == " the town ."
    assert room.explain(asked).attribution.response == " the town ."


def test_a_stop_event_ends_generation_at_the_next_token_and_restores_the_model():
    room, stop, shares = chats(), Event(), []

    def report(share):
        shares.append(share)
        if len(shares) == 4:
            stop.set()

    asked = replace(ASKED, response="", tokens=40)
    with pytest.raises(StoppedError):
        room.explain(asked, report, stop)
    assert len(shares) == 4
    assert not model().embedding._forward_pre_hooks
    assert room.explain(asked).attribution is not None, "nothing of a stopped answer is kept"


def test_a_method_that_does_not_support_the_model_reports_why(room):
    found = room.explain(replace(ASKED, method="decompx_classifier"))
    assert found.attribution is None
    assert found.problem
    assert room.score_without(replace(ASKED, method="decompx_classifier"), [0]) == []


def test_a_question_survives_the_round_trip_through_its_address():
    asked = replace(
        ASKED, system="be brief", unit="word", rows="tokens", tokens=9, sources=(("a & b", "x\ny"), ("", "z"))
    )
    assert read(asked.query) == asked
    assert read("question=q&name=&text=&name=one&text=x%0D%0Ay").sources == (("one", "x\ny"),)
    assert read("question=q").method == "occlusion"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("question=q&method=nonsense", "nonsense"),
        ("question=q&unit=chapter", "chapter"),
        ("question=q&rows=pages", "pages"),
        ("question=q&model=other", "other"),
        ("question=q&tokens=0", "1 to 512 tokens"),
        ("question=q&tokens=99999999999999999999", "1 to 512 tokens"),
        ("question=abc&name=abc&text=abcde", "may have 10 characters, these have 11"),
    ],
)
def test_invalid_settings_in_an_address_are_refused(text, told):
    with pytest.raises(ExegeteError, match=told):
        read(text, Limits(text_length=10))


def test_the_method_a_model_was_trained_for_is_the_default_with_its_units_and_bounds(tmp_path):
    method = exegete.explainer("input_x_gradient")
    TrainedCitation(method, "source", 0.1, ConformalLowerBound(0.2, (0.5,) * 5)).save_pretrained(
        tmp_path, "input_x_gradient"
    )
    own = f"citation:{tmp_path}"
    room = ChatService({"tiny": model()}, ["saliency"], trained_methods={"tiny": own})
    asked = parse_chat_question(
        {"question": [ASKED.question]}, ["tiny"], list(room.methods), room.get_default_method, Limits()
    )
    assert room.methods[asked.method] == own
    item = room.explain(replace(asked, sources=ASKED.sources, response=ANSWER)).attribution
    assert item.unit == "source"
    assert item == exegete.attribute(model(), [room.make_example(ASKED)], own, "sentences", unit="source")[0]
    page = admin(site(room)).get(f"/chat?{replace(ASKED, method=asked.method).query}&whole=1").text
    assert "[≥ x]: without this unit the log-probability falls by at least x in 80% of cases" in page
    assert "doc 1 +0.109 [\\u2265 0.5]" in page


def test_the_stream_sends_progress_then_the_card_then_end(room):
    lines = admin(site(room)).get("/chat/stream", params=parse_qs(replace(ASKED, method="lime").query)).text
    events = re.findall(r"event: (\w+)\ndata: (.*)\n", lines)
    assert [kind for kind, _ in events][-2:] == ["card", "end"]
    shares = [json.loads(data)["share"] for kind, data in events if kind == "progress"]
    assert shares == sorted(shares)
    assert 0 < shares[-1] <= 1


def test_scoring_without_units_needs_the_csrf_token(room):
    chief = admin(site(room))
    form = parse_qs(ASKED.query) | {"removed": "0"}
    assert chief.post("/chat/without", data=form).status_code == 403
    headers = {"x-csrf-token": csrf(chief.get("/chat")), "accept": "application/json"}
    assert chief.post("/chat/without", data=form, headers=headers).json() == pytest.approx(
        room.score_without(ASKED, [0])
    )
    assert chief.post("/chat/without", data=form | {"removed": "x"}, headers=headers).status_code == 422


def test_markup_in_documents_and_answers_is_escaped(room):
    marked = replace(ASKED, sources=(("<b>x</b>", "<i>film</i>"),), question="<u>what</u>", response=" <s>town</s>")
    page = admin(site(room)).get(f"/chat?{marked.query}&whole=1").text
    assert "&lt;i&gt;" in page
    for tag in ("b", "i", "u", "s"):
        assert f"<{tag}>" not in page


def test_examples_are_single_turn_rows():
    rows = [
        {"prompt": "{sources} who ?", "sources": [{"name": "a", "text": "x"}], "response": " me"},
        {"messages": [{"role": "user", "content": "why ?"}]},
        {"messages": [{"role": role, "content": "so"} for role in ("user", "assistant", "user")]},
    ]
    room = chats(examples=rows)
    assert [found.question for found in room.examples] == ["{sources} who ?", "why ?"]
    assert room.examples[0].sources == (("a", "x"),)
    reply = admin(site(room)).get("/chat/example", follow_redirects=False)
    assert reply.status_code == 303
    assert "question=" in reply.headers["location"]


def test_exports_contain_the_attribution(room):
    chief = admin(site(room))
    (found,) = json.loads(chief.get(f"/chat/export/json?{ASKED.query}").text)
    assert [unit["text"] for unit in found["units"]] == list(SOURCES)
    assert "data-levels" in chief.get(f"/chat/export/html?{ASKED.query}").text
    assert chief.get(f"/chat/export/png?{ASKED.query}").status_code == 404
