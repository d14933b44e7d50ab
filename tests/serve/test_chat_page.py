"""The chat's page answers what the model itself computes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape
from threading import Event

import pytest
import torch

import expound
from chats import SOURCES
from chatting import ANSWER, ASKED, chats, explain, form_of, model, page_of, score_without, site
from expound.errors import ExpoundError
from expound.explainers.learned.conformal import ConformalLowerBound
from expound.explainers.learned.trained_citation import TrainedCitation
from expound.explainers.plan import plan_work
from expound.serve import Limits
from expound.serve.explore.question import Question, read_question
from expound.serve.explore.queue import StoppedError
from expound.serve.explore.service import Explorer
from expound.serve.explore.view import list_cited_parts
from sites import admin, csrf

METHODS = ["occlusion", "input_x_gradient", "decompx_classifier"]
SPACED = (("letter", "the  small\n\n town  moves"), ("memo", "it rains"))


@pytest.fixture(scope="module")
def room():
    return chats()


def target_log_probs(item):
    return [target.log_prob for target in item.targets]


def read(**fields):
    form = {name: value if isinstance(value, list) else [str(value)] for name, value in fields.items()}
    return read_question(form, ["tiny"], METHODS, lambda name: ["occlusion"])


def log_probs(ids, response):
    """The log-probability of each token of the response."""
    with torch.no_grad():
        table = model().model(torch.tensor([[*ids, *response]])).logits[0].log_softmax(-1)
    return [float(table[len(ids) + place - 1, token]) for place, token in enumerate(response)]


def test_removing_a_document_lowers_log_probabilities_by_its_occlusion_scores(room):
    item = explain(room, ASKED).attribution
    assert item.unit_texts == tuple(SOURCES)
    clean = score_without(room, ASKED, [])
    assert clean == pytest.approx([sum(target_log_probs(item)), *target_log_probs(item)], abs=1e-4)
    batch = model().encode([room.make_example(ASKED)])
    ids, response = batch.inputs["input_ids"][0], batch.inputs["input_ids"][0, batch.response[0]].tolist()
    for number in range(2):
        found = score_without(room, ASKED, [number])
        assert [one - other for one, other in zip(clean[1:], found[1:], strict=True)] == pytest.approx(
            item.scores[:, number], abs=1e-5
        )
        left = ids[(batch.unit_of[0] != number) & ~batch.response[0] & batch.attended[0]].tolist()
        each = log_probs(left, response)
        spans = [sum(each[start:end]) for start, end in (target.value for target in item.targets)]
        assert found == pytest.approx([sum(each), *spans], abs=1e-8)


def test_removing_all_words_of_a_document_removes_the_document(room):
    by_source = replace(ASKED, sources=SPACED)
    by_word = replace(by_source, unit="word", method=("random",))
    item = explain(room, by_word).attribution
    words = [number for number, unit in enumerate(item.units) if item.exchange.names[unit.segment] == "letter"]
    assert score_without(room, by_word, words) == pytest.approx(score_without(room, by_source, [0]), abs=1e-9)
    assert score_without(room, by_word, words[1:]) != pytest.approx(score_without(room, by_source, [0]), abs=1e-3)


def test_a_generated_answer_is_cached_for_all_methods(room, monkeypatch):
    asked = replace(ASKED, response="", tokens=5)
    found = explain(room, asked)
    (row,) = model().respond([room.make_example(asked)], 5)
    assert found.attribution == expound.attribute(model(), [row], "occlusion", "sentences", unit="source")[0]
    monkeypatch.setattr(model().model, "generate", None)
    other = explain(room, replace(asked, method=("input_x_gradient",)))
    assert other.attribution.response == found.attribution.response


def test_documents_replace_their_placeholders_or_precede_the_question(room):
    response = [
        room.make_example(replace(ASKED, text=text))["messages"][-1]["content"] for text in ("why ?", "{doc 1} why ?")
    ]
    assert response == ["{sources}\n\nwhy ?", "{doc 1} why ?"]
    assert "no place for the source 'doc 2'" in explain(room, replace(ASKED, text="{doc 1} why ?")).problem
    assert room.make_example(replace(ASKED, system="be brief"))["messages"][0] == {
        "role": "system",
        "content": "be brief",
    }


def test_a_given_answer_to_a_plain_prompt_starts_with_a_space(monkeypatch):
    room = chats()
    monkeypatch.setattr(model().tokenizer, "chat_template", None)
    asked = replace(ASKED, response="the town .")
    assert room.make_example(asked)["response"] == " the town ."
    assert explain(room, asked).attribution.response == " the town ."


def test_a_stop_event_ends_generation_at_the_next_token_and_restores_the_model():
    room, stop, words = chats(), Event(), []

    def write(text):
        words.append(text)
        if len(words) == 4:
            stop.set()

    asked = replace(ASKED, response="", tokens=40)
    with pytest.raises(StoppedError):
        room.predict(asked, (), stop, write)
    assert len(words) == 4
    assert not model().embedding._forward_pre_hooks
    assert explain(room, asked).attribution is not None, "nothing of a stopped answer is kept"


def test_a_method_that_does_not_support_the_model_reports_why(room):
    asked = replace(ASKED, method=("decompx_classifier",))
    found = explain(room, asked)
    assert found.attribution is None
    assert found.problem
    assert score_without(room, asked, [0]) == score_without(room, ASKED, [0]), "the answer is scored all the same"


def test_a_form_is_read_as_the_question_that_it_shows(room):
    asked = replace(
        ASKED, system="be brief", unit="word", rows="tokens", tokens=9, sources=(("a & b", "x\ny"), ("", "z"))
    )
    assert read(**form_of(asked)) == asked
    assert read(text="q", name=["", "one"], document=["", "x\r\ny"]).sources == (("one", "x\ny"),)
    assert read(text="q").method == ("occlusion",)
    chief = admin(site(room))
    page = chief.post("/explore", data=form_of(asked) | {"csrf": csrf(chief.get("/explore"))})
    assert page.url.query == f"key={asked.key}".encode()
    assert "x\ny</textarea>" in page.text


@pytest.mark.parametrize("fields", [{"method": "nonsense"}, {"unit": "chapter"}, {"rows": "pages"}, {"model": "other"}])
def test_unknown_names_in_a_form_are_refused(fields):
    with pytest.raises(ExpoundError, match=next(iter(fields.values()))):
        read(text="q", **fields)


@pytest.mark.parametrize(
    ("fields", "field", "told"),
    [
        ({"document": ["x" * 50, "y"]}, "texts", "may have 60 characters; these have 77. Shorten them by 17."),
        ({"tokens": 0}, "tokens", "1 to 512 tokens"),
        ({"tokens": "9" * 20}, "tokens", "1 to 512 tokens"),
        ({"text": " "}, "text", "Ask a question."),
    ],
)
def test_a_form_with_a_problem_comes_back_with_its_texts(fields, field, told):
    chief = admin(site(limits=Limits(text_length=60)))
    sent = form_of(replace(ASKED, sources=(("one", "x"), ("two", "y")), response="it is")) | fields
    page = chief.post("/explore", data=sent | {"csrf": csrf(chief.get("/explore"))})
    assert page.status_code == 422
    assert re.findall(r'role="alert" id="(\w+)-problem">([^<]*)<', page.text) == [(field, page_problem(page))]
    assert told in page_problem(page)
    assert f'aria-describedby="{field}-problem"' in page.text
    texts = re.findall(r"<textarea[^>]*>([^<]*)</textarea>", page.text)
    assert {*sent["document"], sent["text"], sent["response"]} <= set(texts)


def page_problem(page):
    return re.search(r'role="alert"[^>]*>([^<]*)<', page.text).group(1)


def test_no_text_is_cut_by_the_browser_or_sent_in_an_address(room):
    page = admin(site(room)).get(page_of(room)).text
    assert "maxlength" not in page
    assert '<form id="ask" method="post"' in page
    addresses = re.findall(r'(?:href|action|data-query)="([^"]*)"', page)
    assert [found for found in addresses if "small" in found] == []
    assert {found.partition("key=")[2] for found in addresses if "?" in found} == {
        ASKED.key,
        f"{ASKED.key}&amp;whole=1",
    }


def test_a_question_that_is_no_longer_stored_is_said_to_be():
    page = admin(site()).get(f"/explore?key={ASKED.key}")
    assert page.status_code == 404
    assert "no longer stored (the last 256 are)" in page.text


def test_only_methods_that_apply_are_offered_and_the_others_would_fail():
    room = chats()
    chief = admin(site(room))
    page = chief.post("/explore/costs", data={"csrf": csrf(chief.get("/explore"))}).text
    assert re.findall(r'name="method" value="(\w+)"', page) == room.list_methods("tiny")
    page = chief.get("/explore").text
    offered = re.findall(r'name="method" value="(\w+)"', page)
    refused = set(room.methods) - set(offered)
    assert refused == {"decompx_classifier"}
    assert "occlusion" in offered
    assert explain(room, replace(ASKED, method=("decompx_classifier",))).problem


def test_a_baseline_of_a_single_token_counts_as_one_input(room):
    asked = replace(ASKED, method=("integrated_gradients",))
    item = explain(room, asked).attribution
    assert (
        item
        == expound.attribute(model(), [room.make_example(ASKED)], "integrated_gradients", "sentences", unit="source")[0]
    )


def test_the_cost_of_each_method_is_said_before_it_runs(room):
    chief, names = admin(site(room)), ("occlusion", "saliency", "random")
    sent = form_of(replace(ASKED, unit="word", method=names)) | {"csrf": csrf(chief.get("/explore"))}
    page = chief.post("/explore/costs", data=sent).text
    told = re.findall(r"At most (.+?), about (.+?), by (.+?)\.", page)
    example = room.make_example(ASKED)
    found = {title: passes for passes, _, title in told}
    for name in names:
        assert found[room.titles[name]] == plan_work(model(), example, name, "sentences", "word", 64).passes
    times = [time for _, time, _ in told] + re.findall(r"<span>[^<]+ – ([^<]+)</span>", page)
    assert len(times) == len(names) + len(room.list_methods("tiny"))
    assert all(re.fullmatch(r"\d+ (s|min)", time) for time in times)
    lost = chief.post("/explore/costs", data=sent | {"text": "{doc 1} ?"}).text
    assert "no place for the source" in lost


def test_the_method_a_model_was_trained_for_is_the_default_with_its_units_and_bounds(tmp_path):
    method = expound.explainer("input_x_gradient")
    TrainedCitation(method, "source", 0.1, ConformalLowerBound(0.2, (0.5,) * 5)).save_pretrained(
        tmp_path, "input_x_gradient"
    )
    own = f"citation:{tmp_path}"
    room = Explorer({"tiny": model()}, ["saliency"], trained_methods={"tiny": own})
    asked = read_question({"text": [ASKED.text]}, ["tiny"], list(room.methods), room.get_default_methods)
    assert room.specs[asked.method[0]] == own
    item = explain(room, replace(asked, sources=ASKED.sources, response=ANSWER)).attribution
    assert item.unit == "source"
    assert item == expound.attribute(model(), [room.make_example(ASKED)], own, "sentences", unit="source")[0]
    page = admin(site(room)).get(f"{page_of(room, replace(ASKED, method=asked.method))}&whole=1").text
    assert "[≥ x]: without this unit the log-probability falls by at least x in 80% of cases" in page
    assert "doc 1 +0.109 [\\u2265 0.5]" in page


def test_the_stream_sends_words_and_progress_then_the_card_then_end():
    room = chats()
    asked = replace(ASKED, method=("lime",), response="", tokens=6)
    lines = admin(site(room)).get(page_of(room, asked).replace("?", "/stream?")).text
    events = re.findall(r"event: (\w+)\ndata: (.*)\n", lines)
    assert [kind for kind, _ in events][-2:] == ["card", "end"]
    words = [json.loads(data)["text"] for kind, data in events if kind == "text"]
    assert "".join(words).strip() == explain(room, asked).attribution.response.strip()
    shares = [json.loads(data)["share"] for kind, data in events if kind == "progress"]
    assert shares == sorted(shares)
    assert 0 < shares[-1] <= 1


def test_several_methods_explain_one_answer():
    room = chats()
    asked = replace(ASKED, method=("occlusion", "input_x_gradient"), response="", tokens=6)
    lines = admin(site(room)).get(page_of(room, asked).replace("?", "/stream?")).text
    events = re.findall(r"event: (\w+)\ndata: (.*)\n", lines)
    kinds = [kind for kind, _ in events if kind not in ("text", "progress")]
    assert kinds == ["output", "card", "card", "end"]
    assert [json.loads(data)["method"] for kind, data in events if kind == "card"] == list(asked.method)
    first, second = (room.explain(asked, name).attribution for name in asked.method)
    assert (first.response, first.units, first.target_texts) == (second.response, second.units, second.target_texts)
    (output,) = [json.loads(data)["html"] for kind, data in events if kind == "output"]
    assert output.count("data-row=") == len(first.targets)


def test_scoring_without_units_needs_the_csrf_token(room):
    chief = admin(site(room))
    address, asked = "/explore/without", {"key": page_of(room).partition("key=")[2], "removed": "0"}
    assert chief.post(address, data=asked).status_code == 403
    headers = {"x-csrf-token": csrf(chief.get("/explore")), "accept": "application/json"}
    found = [score["value"] for score in chief.post(address, data=asked, headers=headers).json()]
    assert found == pytest.approx(score_without(room, ASKED, [0]))
    assert chief.post(address, data=asked | {"removed": "x"}, headers=headers).status_code == 422


def test_markup_in_documents_and_answers_is_escaped(room):
    marked = replace(ASKED, sources=(("<b>x</b>", "<i>film</i>"),), text="<u>what</u>", response=" <s>town</s>")
    page = admin(site(room)).get(f"{page_of(room, marked)}&whole=1").text
    assert "&lt;i&gt;" in page
    for tag in ("b", "i", "u", "s"):
        assert f"<{tag}>" not in page


def test_examples_are_prompts_and_chats():
    rows = [
        {"prompt": "{sources} who ?", "sources": [{"name": "a", "text": "x"}], "response": " me"},
        {"messages": [{"role": "user", "content": "why ?"}]},
        {"messages": [{"role": role, "content": "so"} for role in ("user", "assistant", "user")]},
    ]
    room = chats(examples=rows)
    *single, chat = room.find_examples("tiny")
    assert [found.text for found in single] == ["{sources} who ?", "why ?"]
    assert room.make_example(chat)["messages"] == rows[2]["messages"]
    assert room.find_examples("tiny")[0].sources == (("a", "x"),)
    chief = admin(site(room))
    page = chief.post("/explore/example", data={"csrf": csrf(chief.get("/explore"))}).text
    assert any(f">{found.text}</textarea>" in unescape(page) for found in room.find_examples("tiny"))
    assert "waiting" not in page, "the user starts it"


@pytest.mark.parametrize("template", [True, False])
def test_an_answer_is_cited_by_characters_of_the_documents_and_of_its_own(template, monkeypatch):
    room, asked = chats(), replace(ASKED, response=ANSWER.strip())
    if not template:
        monkeypatch.setattr(model().tokenizer, "chat_template", None)
    expected = expound.cite(model(), room.make_example(asked), "occlusion")
    found = list_cited_parts(explain(room, asked).attribution, asked)
    assert [(part.document, part.score) for part in found] == [pair for each in expected for pair in each.sources]
    page = admin(site(room)).get(f"{page_of(room, asked)}&whole=1").text
    for part in found:
        assert asked.response[slice(*part.span)] == part.text.strip()
        assert SOURCES[part.document][part.place.start : part.place.end] == SOURCES[part.document].strip()
        assert f"{part.document} <span" in page
        assert f">{part.place.start}–{part.place.end}</span>" in page


def test_a_conversation_is_explained_by_its_messages(room):
    call = '{"name": "send", "arguments": {"to": "women"}}'
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "is the town small ?"}]},
        {"role": "tool", "name": "find", "content": "a small town"},
    ]
    asked = Question(
        "tiny", json.dumps(messages), unit="message", rows="tool_call", response=call, method=("occlusion",)
    )
    item = explain(room, asked).attribution
    own = {"messages": messages, "response": call}
    assert item == expound.attribute(model(), own, "occlusion", "tool_call", unit="message")[0]
    assert item.unit_texts == ("user", "tool result: find")
    (clean, _), (without, _) = (score_without(room, asked, removed) for removed in ([], [1]))
    assert clean - without == pytest.approx(item.scores[0, 1], abs=1e-5)
    page = admin(site(room)).get(f"{page_of(room, asked)}&whole=1").text
    assert "margin per token: tool result: find" in page
    answered = replace(asked, text=json.dumps([*messages, {"role": "assistant", "content": call}]), response="")
    assert explain(room, answered).attribution.scores == pytest.approx(item.scores)
    assert "The answer to explain" in admin(site(room)).get(f"{page_of(room, answered)}&whole=1").text
    # A path in a page's form opens no file of the server.
    picture = [{"role": "user", "content": [{"type": "image", "image": "/etc/hostname"}]}]
    assert "content of a message as text" in explain(room, replace(asked, text=json.dumps(picture))).problem


def test_exports_contain_the_attribution(room):
    chief = admin(site(room))
    (found,) = json.loads(chief.get(page_of(room).replace("?", "/export/json?")).text)
    assert [unit["text"] for unit in found["units"]] == list(SOURCES)
    assert "data-levels" in chief.get(page_of(room).replace("?", "/export/html?")).text
    assert chief.get(page_of(room).replace("?", "/export/png?")).status_code == 404
