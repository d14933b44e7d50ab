"""The OpenAI-compatible API, asked by the real `openai` package over loopback."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

import httpx
import numpy as np
import openai
import pytest
import torch

import expound
from chats import TEMPLATE, tokenizer
from chats import chatting as tiny
from expound import explainer
from expound.errors import ExpoundError
from expound.explainers.learned.conformal import ConformalLowerBound
from expound.explainers.learned.trained_citation import TrainedCitation
from expound.models.generation.model import GeneratingModel
from expound.serve import Limits, Site
from expound.serve.explore.service import Explorer
from readme_blocks import ROOT, blocks
from serving import listening
from sites import TOKEN, admin
from test_work_queue import wait_until
from two_sided import two_sided

API_TOKEN = "the-api-token-of-the-tests-0123456789"
DOCUMENTS = [
    {"title": "town", "text": "a moving film about a small town", "url": "http://example.org/town"},
    {"name": "packages", "text": "two women are holding packages ."},
    {"text": "great acting cannot save a tired story"},
]
NAMES = ["town", "packages", "source 3"]
CHAT = [
    {"role": "developer", "content": "it is simply long"},
    {"role": "user", "content": "the plot"},
    {"role": "assistant", "content": "is dull"},
    {"role": "user", "content": "what is {small} in {sources} and {town} ?"},
]
ROW = {
    "messages": [{"role": "system", "content": "it is simply long"}, *CHAT[1:]],
    "sources": dict(zip(NAMES, [document["text"] for document in DOCUMENTS], strict=True)),
    "literal": True,
}
PROMPT = (
    "<|system|>it is simply long\n<|user|>the plot\n<|assistant|>is dull\n<|user|>a moving film about a small town\n\n"
    "two women are holding packages .\n\ngreat acting cannot save a tired story\n\n"
    "what is {small} in {sources} and {town} ?\n<|assistant|>"
)
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}]
SIZE = 24


@pytest.fixture(scope="module")
def model():
    """A tiny model that answers in short words, with one sentence per line."""
    made = tiny()
    words, weight = made.tokenizer.convert_ids_to_tokens(range(len(made.tokenizer))), made.model.lm_head.weight.data
    weight[[not (word[0] == "Ġ" and word[1:].isalpha()) for word in words]] = 0
    line_end, replaced = made.tokenizer.convert_tokens_to_ids(["Ċ", "Ġca"])
    weight[line_end] = 1.01 * weight[replaced]
    return made


@pytest.fixture(scope="module")
def site(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "trained"
    bound = ConformalLowerBound(0.1, (0.02, 0.1, 0.2, 0.3, float("nan")))
    TrainedCitation(explainer("input_x_gradient"), lower_bound=bound).save_pretrained(folder, "input_x_gradient")
    spec = f"citation:{folder}"
    # The answers of a model with random weights have characters of several tokens, and incomplete ones.
    listed = "{% for tool in tools %}<|tool|>{{ tool.function.name }}\n{% endfor %}"
    with_tools = GeneratingModel(model.model, tokenizer(listed + TEMPLATE))
    models = {"tiny": model, "trained": model, "random": tiny(), "tools": with_tools}
    explorer = Explorer(models, trained_methods={"trained": spec})
    return Site(TOKEN, explorer=explorer, api_token=API_TOKEN)


@pytest.fixture(scope="module")
def address(site):
    with listening(site) as found:
        yield found


@pytest.fixture(scope="module")
def client(address):
    with connect(address) as found:
        yield found


def connect(address, **options):
    return openai.OpenAI(base_url=f"{address}/v1", api_key=API_TOKEN, max_retries=0, timeout=60, **options)


def ask(client, messages=CHAT, documents=DOCUMENTS, citations=None, model="tiny", **options):
    extra = {} if documents is None else {"documents": documents}
    extra |= {} if citations is None else {"citations": citations}
    options = {"max_tokens": SIZE} | options
    return client.chat.completions.create(model=model, messages=messages, extra_body=extra, **options)


def generate(model, prompt, size=SIZE):
    """Decodes greedily by transformers; returns the text, and the numbers of tokens of prompt and answer."""
    ids = model.tokenizer(prompt, return_tensors="pt", add_special_tokens=False)["input_ids"]
    made = model.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=size, do_sample=False)
    answer = made[0, ids.shape[1] :]
    return model.tokenizer.decode(answer, skip_special_tokens=True), ids.shape[1], len(answer)


def read_stream(stream):
    """Reads a stream; returns its text, annotations, finish reason and usage."""
    text, annotations, reason, usage = "", None, None, None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            assert reason is None, "nothing of the answer follows its end"
            assert annotations is None or not choice.delta.content
            text += choice.delta.content or ""
            annotations = getattr(choice.delta, "annotations", annotations)
            reason = choice.finish_reason
    return text, annotations, reason, usage


def group_by_sentence(annotations, text):
    found = {}
    for each in annotations:
        place = each["url_citation"]
        sentence = text[place["start_index"] : place["end_index"]]
        found.setdefault(sentence, []).append((place["title"], each["score"]))
        assert NAMES[each["index"]] == place["title"]
        assert place["url"] == DOCUMENTS[each["index"]].get("url", "")
    return found


def compare(annotations, text, expected):
    """Checks that annotations equal the Python API's citations, to 1e-5."""
    found = group_by_sentence(annotations, text)
    assert list(found) == [citation.text for citation in expected]
    for (_, sources), citation in zip(found.items(), expected, strict=True):
        assert [name for name, _ in sources] == [name for name, _ in citation.sources]
        np.testing.assert_allclose([s for _, s in sources], [s for _, s in citation.sources], atol=1e-5, rtol=0)


def test_answers_equal_greedy_decoding_and_annotations_the_python_api(client, model):
    text, prompt, tokens = generate(model, PROMPT)
    (item,) = expound.attribute(model, [ROW | {"response": answer_ids(model)}], "occlusion", "sentences", unit="source")
    assert len(item.citations()) > 1
    answer = ask(client)
    choice = answer.choices[0]
    assert choice.message.content == text
    assert choice.finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (prompt, tokens)
    annotations = [each.to_dict() for each in choice.message.annotations]
    compare(annotations, text, item.citations())
    assert {each["method"] for each in annotations} == {"occlusion"}
    assert {each["lower_bound"] for each in annotations} == {None}
    first = choice.message.annotations[0]
    assert (first.type, first.url_citation.title) == ("url_citation", annotations[0]["url_citation"]["title"])
    streamed, parts, reason, usage = read_stream(ask(client, stream=True, stream_options={"include_usage": True}))
    assert (streamed, parts, reason, usage) == (text, annotations, "length", answer.usage)


def test_incomplete_characters_are_streamed_once_they_are_complete(client, site):
    text = generate(site.explorer.models["random"], PROMPT)[0]
    assert "\ufffd" in text
    assert read_stream(ask(client, model="random", stream=True))[0] == text


def answer_ids(model, size=SIZE):
    ids = model.tokenizer(PROMPT, return_tensors="pt", add_special_tokens=False)["input_ids"]
    made = model.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=size, do_sample=False)
    return made[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize(("method", "k"), [("lime", 1), ("input_x_gradient", 3)])
def test_the_request_chooses_method_and_number(client, model, method, k):
    row = ROW | {"response": answer_ids(model)}
    (item,) = expound.attribute(model, [row], method, "sentences", unit="source")
    message = ask(client, citations={"method": method, "k": k}).choices[0].message
    compare([each.to_dict() for each in message.annotations], message.content, item.citations(k))
    assert {each.method for each in message.annotations} == {method}


def test_a_trained_model_cites_by_its_own_method_with_lower_bounds(client, site, model):
    spec = site.explorer.specs[site.explorer.trained_methods["trained"]]
    row = ROW | {"response": answer_ids(model)}
    (item,) = expound.attribute(model, [row], spec, "sentences", unit="source")
    message = ask(client, model="trained", citations={"k": 3}).choices[0].message
    compare([each.to_dict() for each in message.annotations], message.content, item.citations(3))
    bounds = [each.lower_bound for each in message.annotations]
    expected = [citation.lower_bounds.get(name) for citation in item.citations(3) for name, _ in citation.sources]
    assert bounds == pytest.approx(expected)
    assert any(bound is not None for bound in bounds)
    assert {each.method for each in message.annotations} == {"citation:trained"}


def test_citations_can_be_left_out_and_need_documents(client, model):
    message = ask(client, citations=False).choices[0].message
    assert message.content == generate(model, PROMPT)[0]
    assert message.annotations is None
    assert ask(client, documents=None).choices[0].message.annotations is None
    assert read_stream(ask(client, citations=False, stream=True))[1] is None
    with pytest.raises(openai.BadRequestError, match="citations need documents"):
        ask(client, documents=None, citations={"k": 1})


def test_documents_can_be_parts_of_a_message(client):
    parts = [{"type": "document"} | document for document in DOCUMENTS]
    message = CHAT[-1] | {"content": [*parts, {"type": "text", "text": CHAT[-1]["content"]}]}
    assert ask(client, [*CHAT[:-1], message], None).choices == ask(client).choices


def test_an_answer_can_be_sent_back_as_the_next_turn(client):
    first = ask(client).choices[0].message
    again = ask(client, [*CHAT, first, {"role": "user", "content": "who is it ?"}], max_tokens=4)
    assert again.usage.prompt_tokens > SIZE + len(CHAT)


def test_a_stop_sequence_ends_the_answer(client, model):
    text = generate(model, PROMPT)[0]
    stop = text[len(text) // 2 : len(text) // 2 + 5]
    before = text[: text.index(stop)]
    answer = ask(client, stop=["nowhere to be found", stop])
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (before, "stop")
    assert answer.usage.completion_tokens < SIZE
    streamed, annotations, reason, _ = read_stream(ask(client, stop=stop, stream=True))
    assert (streamed, reason) == (before, "stop")
    assert annotations
    assert all(each["url_citation"]["end_index"] <= len(before) for each in annotations)


def test_the_models_end_token_is_a_stop(client, model, monkeypatch):
    end = answer_ids(model)[5]
    monkeypatch.setattr(model.model.generation_config, "eos_token_id", end)
    answer = ask(client)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == answer_ids(model).index(end) + 1


def test_an_empty_answer_has_no_annotations(client, model, monkeypatch):
    first = answer_ids(model)[0]
    monkeypatch.setattr(model.model.generation_config, "eos_token_id", first)
    monkeypatch.setattr(model.tokenizer, "decode", lambda *args, **options: "")
    message = ask(client).choices[0].message
    assert (message.content, message.annotations) == ("", [])


def test_draws_follow_temperature_and_seed(client, model):
    drawn = [ask(client, temperature=1.5, seed=seed).choices[0].message.content for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    (row,) = model.respond([ROW], SIZE, 1.5, 1)
    assert drawn[0] == model.tokenizer.decode(row["response"], skip_special_tokens=True)
    unseeded = {ask(client, temperature=1.5).choices[0].message.content for _ in range(3)}
    assert len(unseeded) > 1


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_models_without_a_chat_template_continue_one_message(family):
    made = two_sided(family) if family == "t5" else tiny(template=None)
    row = {"prompt": "{sources}\n\nwhat is small ?", "sources": {"source 1": DOCUMENTS[0]["text"], "b": "two women"}}
    (row,) = made.respond([row], 6, allow_empty=True)
    (item,) = expound.attribute(made, [row], "occlusion", "sentences", unit="source")
    site = Site(TOKEN, explorer=Explorer({"tiny": made}), api_token=API_TOKEN)
    with listening(site) as address, connect(address) as client:
        documents = [{"text": DOCUMENTS[0]["text"]}, {"name": "b", "text": "two women"}]
        question = {"role": "user", "content": "what is small ?"}
        answer = ask(client, [question], documents, max_tokens=6)
        assert answer.choices[0].message.content == item.response
        scores = [each.score for each in answer.choices[0].message.annotations]
        assert scores == pytest.approx([s for c in item.citations() for _, s in c.sources], abs=1e-5)
        batch = made.encode([row])
        n_prompt = int((batch.attended & ~batch.response).sum()) - len(made.decoder_start_ids)
        assert answer.usage.prompt_tokens == n_prompt
        with pytest.raises(openai.BadRequestError, match="no chat template"):
            ask(client)


def test_models_are_listed(client):
    assert [each.id for each in client.models.list()] == ["tiny", "trained", "random", "tools"]


def test_requests_that_are_wrong_get_error_objects(client):
    cases = [
        ({"messages": []}, "at least 1 item", "messages"),
        ({"messages": [{"role": "user"}]}, "Field required", "messages.0.content"),
        ({"messages": [{"role": "ipython", "content": "a"}]}, "'developer', 'user', 'assistant' or 'tool'", None),
        ({"messages": CHAT[:-1]}, "the user's message at the end", "messages"),
        ({"messages": [{"role": "user", "content": "a \ue0000\ue001"}]}, "U\\+E000", None),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "'text', 'document'",
            "messages.0.content.0",
        ),
        ({"messages": [{"role": "user", "content": "a " * 4000}]}, "the model reads 260 tokens", "messages"),
        ({"messages": [{"role": "user", "content": "a" * 20_001}]}, "at most|may have 20,000 characters", "messages"),
        ({"max_tokens": 0}, "greater than or equal to 1", "max_tokens"),
        ({"max_tokens": 513}, "less than or equal to 512", "max_tokens"),
        ({"max_tokens": 250}, "the model reads 260 tokens", "messages"),
        ({"max_completion_tokens": 250}, "the model reads 260 tokens", "messages"),
        ({"temperature": 2.5}, "less than or equal to 2", "temperature"),
        ({"stop": ""}, "at least 1 character", "stop.0"),
        ({"stop": list("abcde")}, "at most 4 items", "stop"),
        ({"temperature": 1e-300}, "expected 0, or 0.01 to 2", "temperature"),
        ({"documents": [{"text": "a"}] * 257}, "may have 256 documents", "documents"),
        ({"documents": [{"name": "\ue0009\ue001", "text": "a"}]}, "the name of a source has a number", None),
        ({"n": 2}, "Input should be 1", "n"),
        ({"top_p": 0.5}, "'top_p' is not supported", "top_p"),
        ({"logprobs": True}, "'logprobs' is not supported", "logprobs"),
        ({"tools": TOOLS}, "send tool_choice='none'", "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "auto"}, "send tool_choice='none'", "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "none"}, "template does not read 'tools': leave it out", None),
        ({"tools": [{"name": "a" * 20_001}], "tool_choice": "none"}, "may have 20,000 characters", "messages"),
        ({"documents": [{"title": "a", "text": "b"}, {"name": "a", "text": "c"}]}, "two sources are called 'a'", None),
        ({"documents": [{"title": "a", "text": " "}]}, "the source 'a' is empty", None),
        ({"documents": [{"title": "a"}]}, "Field required", "documents.0.text"),
        ({"citations": {"method": "occlusio"}}, "Did you mean 'occlusion'", "citations.method"),
        ({"citations": {"method": "occlusion:/etc"}}, "unknown method", "citations.method"),
        ({"citations": {"k": -1}}, "greater than or equal to 0", "citations.k"),
        ({"citations": {"method": "fusion"}}, "unknown method", "citations.method"),
    ]
    for options, told, param in cases:
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError, match=told) as caught:
                ask(client, stream=stream, **options)
            assert caught.value.type == "invalid_request_error"
            assert param is None or caught.value.param == param


ANSWERS = ["The town is small. Two women laugh.", '{"where": "town", "who": ["women"]}']


def test_any_answer_is_cited_as_in_python(address, model):
    documents = [DOCUMENTS[0] | {"text": "\n A moving film. About a small town.\n"}, *DOCUMENTS[1:]]
    row = ROW | {"sources": dict(zip(NAMES, [document["text"] for document in documents], strict=True))}
    answers = [{"text": ANSWERS[0], "spans": [[4, 8], [19, 35]]}, {"text": ANSWERS[1], "spans": "fields"}, ANSWERS[0]]
    body = {"model": "tiny", "messages": CHAT, "documents": documents, "answer": answers}
    for unit, k in (("source", 1), ("sentence", 9)):
        reply = post(address, json.dumps(body | {"citations": {"unit": unit, "k": k}}), "attributions")
        assert reply.status_code == 200, reply.text
        assert [each["index"] for each in reply.json()["data"]] == [0, 1, 2]
        for given, spans, each in zip(
            [ANSWERS[0], ANSWERS[1], ANSWERS[0]], [[(4, 8), (19, 35)], "fields", "sentences"], reply.json()["data"],
            strict=True,
        ):  # fmt: skip
            expected = []
            for citation in expound.cite(model, row | {"response": given}, "occlusion", spans=spans, unit=unit, k=k):
                for (name, score), place in zip(citation.sources, citation.places, strict=True):
                    expected.append(
                        (*citation.span, citation.field, name, place.segment, place.start, place.end, score)
                    )
            found = []
            for annotation in each["annotations"]:
                cited, place = (
                    annotation["url_citation"],
                    (annotation["start_char_index"], annotation["end_char_index"]),
                )
                ends = (cited["start_index"], cited["end_index"], annotation.get("field", ""))
                found.append((*ends, cited["title"], annotation["index"], *place, annotation["score"]))
            assert [one[:-1] for one in found] == [one[:-1] for one in expected]
            np.testing.assert_allclose([one[-1] for one in found], [one[-1] for one in expected], atol=1e-5, rtol=0)
    question = {"model": "tiny", "question": "what is small ?", "documents": documents, "answer": ANSWERS[0]}
    (one,) = post(address, json.dumps(question), "attributions").json()["data"]
    assert len(one["annotations"]) == 4
    # A NUL is a character like any other, as in a chat.
    assert post(address, json.dumps(question | {"answer": "a\0b"}), "attributions").status_code == 200


def test_results_of_tools_are_cited_as_in_python(client, address, model):
    call = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"what": "town"}'}}
    results = ["\n A moving film. About a small town. ", "two women laugh ."]
    messages = [
        {"role": "user", "content": "what is small ?"},
        {"role": "assistant", "content": None, "tool_calls": [call, call | {"id": "c2"}]},
        {"role": "tool", "tool_call_id": "c1", "content": results[0]},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": results[1]}]},
    ]
    # An earlier turn has the same result, which no citation means.
    chat = [
        messages[0],
        {"role": "assistant", "tool_calls": [call]},
        messages[2],
        {"role": "assistant", "content": "a"},
    ]
    chat += messages
    read = {"name": "look_up", "arguments": {"what": "town"}}
    row = {"messages": [{"content": "", **each} for each in chat], "literal": True}
    row["messages"] = [each | {"content": each["content"] or ""} for each in row["messages"]]
    row["messages"][-1] = row["messages"][-1] | {"content": results[1]}
    for each in row["messages"]:
        if "tool_calls" in each:
            each["tool_calls"] = [one | {"function": read} for one in each["tool_calls"]]
    body = {"model": "tiny", "messages": chat, "citations": {"unit": "sentence", "k": 9}, "answer": ANSWERS[0]}
    reply = post(address, json.dumps(body), "attributions")
    assert reply.status_code == 200, reply.text
    (given,) = reply.json()["data"]
    answered = ask(client, chat, None, {"unit": "sentence", "k": 9}).choices[0].message
    for response, noted in (
        (ANSWERS[0], given["annotations"]),
        (answered.content, [each.model_dump() for each in answered.annotations]),
    ):
        expected, found = [], []
        for citation in expound.cite(model, row | {"response": response}, "occlusion", unit="sentence", k=9):
            for (name, score), place in zip(citation.sources, citation.places, strict=True):
                text = row["messages"][place.segment]["content"][place.start : place.end]
                expected.append((*citation.span, name, place.segment, text, pytest.approx(score, abs=1e-5)))
        for each in noted:
            cited, text = each["url_citation"], chat[each["message_index"]]["content"]
            text = text if isinstance(text, str) else text[0]["text"]
            text = text[each["start_char_index"] : each["end_char_index"]]
            place = (cited["start_index"], cited["end_index"], cited["title"])
            found.append((*place, each["message_index"], text, each["score"]))
        assert found == expected
        assert {each[3:5] for each in found} == {(6, "A moving film."), (6, "About a small town."), (7, results[1])}
        assert {each[2] for each in found} == {"tool result: look_up", "tool result: look_up 2"}
    for wrong, told in (
        ([*chat[:-1], messages[1]], "at the end of the messages, or a tool's"),
        ([{"role": "user", "content": None}], "messages.0.content"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}, *chat[1:]],
            "expected tool_calls as",
        ),
        (messages[:1], "need documents"),
    ):
        reply = post(address, json.dumps(body | {"messages": wrong}), "attributions")
        assert reply.status_code == 400
        assert told in reply.json()["error"]["message"], reply.text


def test_tools_are_in_the_prompt_as_the_chat_template_writes_them(client, address, site):
    made = site.explorer.language_models["tools"]
    messages = [
        {"role": "user", "content": "what is small ?"},
        {"role": "tool", "name": "look_up", "content": "a town ."},
    ]
    written = made.tokenizer.apply_chat_template(messages, tools=TOOLS, add_generation_prompt=True, tokenize=False)
    text, length, _ = generate(made, written)
    assert "<|tool|>look_up\n<|user|>" in written
    answer = ask(client, messages, None, {"k": 9}, "tools", tools=TOOLS, tool_choice="none")
    assert (answer.choices[0].message.content, answer.usage.prompt_tokens) == (text, length)
    row = {"messages": messages, "tools": TOOLS, "literal": True}
    body = {"model": "tools", "messages": messages, "tools": TOOLS, "answer": ANSWERS[0], "citations": {"k": 9}}
    (given,) = post(address, json.dumps(body), "attributions").json()["data"]
    expected = []
    for citation in expound.cite(made, row | {"response": ANSWERS[0]}, "occlusion", k=9):
        expected += [pytest.approx(score, abs=1e-5) for _, score in citation.sources]
    assert len(expected) == 2
    assert [each["score"] for each in given["annotations"]] == expected


def test_attributions_that_are_wrong_get_error_objects(address):
    usual = {"model": "tiny", "question": "a", "documents": DOCUMENTS, "answer": ANSWERS[0]}
    wrong = [
        ({"answer": ""}, "at least 1"), ({"answer": " "}, "text or as token ids"), ({"answer": []}, "least 1"),
        ({"answer": ["a"] * 17}, "at most 16"), ({"answer": 5}, "answer.0"), ({"answer": "a" * 20_001}, "20,000 char"),
        ({"answer": {"text": "ab", "spans": [[0, 3]]}}, "empty or outside"), ({"answer": "a " * 300}, "at most 260"),
        ({"question": "what " * 200, "answer": "a " * 60}, "longer than the 260"),
        ({"answer": {"text": "ab", "spans": [[1, 1]]}}, "empty or outside"), ({"documents": None}, "need documents"),
        ({"answer": {"text": "ab", "spans": [[0]]}}, "pairs [start, end]"),
        ({"answer": {"text": "a", "spans": []}}, "1 to 256"),
        ({"answer": {"text": "ab", "spans": "words"}}, "'sentences', 'fields'"), ({"model": "x"}, "unknown model"),
        ({"answer": {"text": "ab", "spans": [[0, 1e99]]}}, "whole numbers"), ({"stream": True}, "Extra inputs"),
        ({"answer": {"text": "ab", "spans": "fields"}}, "JSON object or list"), ({"messages": CHAT}, "Extra inputs"),
        ({"citations": {"unit": "token"}}, "'source', 'paragraph' or"), ({"question": None}, "messages.0.content"),
        ({"citations": {"method": "occlusion:/etc"}}, "unknown method"), ({"documents": [{"text": ""}]}, "is empty"),
        ({"answer": {"text": "a b", "spans": [[0, 1]] * 257}}, "1 to 256"),
    ]  # fmt: skip
    for change, told in wrong:
        reply = post(address, json.dumps(usual | change), "attributions")
        assert reply.status_code == (404 if "model" in change else 400), (change, reply.text)
        assert told in reply.json()["error"]["message"], (change, reply.text)
    assert post(address, b"{", "attributions", authorization="Bearer x").status_code == 401


def test_parameters_that_change_nothing_are_accepted(client):
    options = {"top_p": 1, "presence_penalty": 0, "user": "ada", "response_format": {"type": "text"}, "n": 1}
    assert ask(client, **options).choices == ask(client).choices


def test_a_method_that_the_model_does_not_support_is_refused(client):
    with pytest.raises(openai.BadRequestError, match="head gives the next token, not a class"):
        ask(client, citations={"method": "decompx_classifier"})


def test_an_unknown_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError, match="unknown model 'tinny'") as caught:
        ask(client, model="tinny")
    assert caught.value.code == "model_not_found"


def test_the_token_is_required_before_anything_is_read(client, address, site):
    for key in ("wrong", TOKEN, f"{API_TOKEN}é"):
        reply = post(address, b"{", authorization=f"Bearer {key}".encode())
        assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key")
    with pytest.raises(openai.AuthenticationError, match="API token"):
        client.with_options(api_key="x" * 30).models.list()
    # The API's token does not open the pages, and their cookie does not open the API.
    assert admin(site).get("/v1/models").status_code == 401
    assert httpx.get(f"{address}/sign-in", params={"token": API_TOKEN}).status_code == 403


def test_bodies_that_are_no_request_get_error_objects(address):
    for body in [b"", b"{", b"[]", b'{"model": NaN}', b'"\xff"', b"[" * 100_000, b'{"a": "\\ud800"}']:
        reply = post(address, body)
        assert (reply.status_code, reply.json()["error"]["type"]) == (400, "invalid_request_error")


def post(address, body, path="chat/completions", **headers):
    headers = {"authorization": f"Bearer {API_TOKEN}"} | headers
    return httpx.post(f"{address}/v1/{path}", content=body, headers=headers, timeout=60)


def test_other_refusals_have_the_form_of_the_api_too(address):
    refusals = {
        413: post(address, b" " * (1 << 20) + b"{}"),
        421: post(address, b"{}", host="other.example.org"),
        403: post(address, b"{}", origin="http://other.example.org"),
        404: httpx.get(f"{address}/v1/nothing", headers={"accept": "text/html"}),
        405: httpx.get(f"{address}/v1/chat/completions"),
    }
    for status, reply in refusals.items():
        assert (reply.status_code, set(reply.json()["error"])) == (status, {"message", "type", "param", "code"})


def test_a_full_queue_and_late_work_are_errors_of_the_server(model):
    limits = Limits(queue_size=1, work_seconds=0.5)
    made = Site(TOKEN, explorer=Explorer({"tiny": model}, limits=limits), api_token=API_TOKEN, limits=limits)
    with listening(made) as address, connect(address) as client:
        go = Event()
        made.explorer.work.submit(lambda stop: go.wait(20))
        for stream in (False, True):
            with pytest.raises(openai.InternalServerError, match="1 explanations are waiting") as caught:
                ask(client, stream=stream)
            assert (caught.value.status_code, caught.value.type) == (503, "server_error")
            assert caught.value.response.headers["retry-after"] == "2"
        go.set()
        wait_until(lambda: made.explorer.work._free._value == 1)
        with delay_passes(model, 0.2):
            with pytest.raises(openai.InternalServerError, match=r"more than 0\.5 seconds"):
                ask(client)
            wait_until(lambda: made.explorer.work._free._value == 1)
            with pytest.raises(openai.APIError, match=r"more than 0\.5 seconds"):
                read_stream(ask(client, stream=True))


@contextmanager
def delay_passes(model, seconds):
    """Makes every pass of the model take longer; gives a list with an entry for each pass."""
    passes = []

    def wait(*_):
        passes.append(1)
        time.sleep(seconds)

    hook = model.embedding.register_forward_hook(wait)
    try:
        yield passes
    finally:
        hook.remove()


@pytest.mark.parametrize("stream", [False, True])
def test_work_stops_when_the_client_leaves(site, address, model, stream):
    work = site.explorer.work
    with delay_passes(model, 0.1) as passes, connect(address) as client:
        if stream:
            answer = ask(client, stream=True)
            next(answer)
            answer.close()
        else:
            with pytest.raises(openai.APITimeoutError):
                ask(client.with_options(timeout=0.4))
        wait_until(lambda: work._free._value == work.size)
        assert len(passes) < SIZE


def test_a_client_that_leaves_the_waiting_line_starts_no_work(site, address, model):
    go, work = Event(), site.explorer.work
    work.submit(lambda stop: go.wait(20))
    with delay_passes(model, 0) as passes, connect(address) as client:
        with pytest.raises(openai.APITimeoutError):
            ask(client.with_options(timeout=0.3), stream=True)
        wait_until(lambda: work._free._value == work.size - 1)
        go.set()
        wait_until(lambda: work._free._value == work.size)
        assert not passes


def test_parallel_clients_get_their_own_answers(address, model):
    texts = [f"{word} film about {n} towns" for n in range(4) for word in ("a", "dull", "moving", "small")]
    asked = [[{"role": "user", "content": text}] for text in texts]
    expected = [generate(model, f"<|user|>{text}\n<|assistant|>")[0] for text in texts]
    assert len(set(expected)) > 4

    def answer(number):
        with connect(address) as client:
            if number % 2:
                return read_stream(ask(client, asked[number], None, stream=True))[0]
            return ask(client, asked[number], None).choices[0].message.content

    with ThreadPoolExecutor(len(texts)) as crowd:
        for _ in range(2):
            assert list(crowd.map(answer, range(len(texts)))) == expected


def test_the_page_on_serving_runs_as_it_stands(model, monkeypatch, capsys):
    found = [block.text for block in blocks(ROOT / "docs" / "serving.md") if block.language == "python"]
    monkeypatch.setenv("EXPOUND_API_TOKEN", API_TOKEN)
    made = Site(TOKEN, explorer=Explorer({"my-chat-model": model}), api_token=API_TOKEN)
    with listening(made) as address:
        exec("\n".join(found).replace("http://127.0.0.1:8000", address), {})
    printed = capsys.readouterr().out
    assert "letter" in printed
    assert "memo" in printed
    assert "/opens" in printed


def test_a_server_without_a_token_has_no_api(model):
    made = Site(TOKEN, explorer=Explorer({"tiny": model}))
    assert admin(made).get("/v1/models", headers={"authorization": "Bearer "}).status_code == 404
    with pytest.raises(ExpoundError, match="API token of at least 20"):
        Site(TOKEN, explorer=made.explorer, api_token="short")
    with pytest.raises(ExpoundError, match="needs a language model"):
        Site(TOKEN, api_token=API_TOKEN)


def test_the_command_serves_the_api(start_server, tmp_path, monkeypatch):
    chat = tiny(dtype=torch.float32)
    chat.model.save_pretrained(tmp_path / "tiny")
    chat.tokenizer.save_pretrained(tmp_path / "tiny")
    start = start_server("--api", "--model", str(tmp_path / "tiny"))
    site = start["config"].app.state.site
    assert f"API: http://127.0.0.1:{start['port']}/v1\nAPI token: {site.api_token}\n" in start["printed"]
    assert site.token != site.api_token
    monkeypatch.setenv("EXPOUND_API_TOKEN", API_TOKEN)
    start = start_server("--api", "--model", str(tmp_path / "tiny"))
    assert start["config"].app.state.site.api_token == API_TOKEN
    assert API_TOKEN not in start["printed"]
    for options in (("--api",), ("--api", "--model", str(tmp_path / "tiny"), "--task", "classification")):
        with pytest.raises(ExpoundError, match=r"--api serves language models|nothing to serve"):
            start_server(*options)
