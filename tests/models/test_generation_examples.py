"""Prompts and chats as batches: what is visible, where sources go, and responses of three kinds."""

import logging

import numpy as np
import pytest
import torch

import families
from chats import CHAT, SOURCES, TEMPLATE, chatting, tokenizer
from expound import ExpoundError
from expound.models.generation.prompt import name_sources, parse_prompt
from expound.testing.no_side_effects import snapshot

WHOLE = (
    "<|system|>it is simply long\n<|user|>the plot\n<|assistant|>is dull\n<|user|>a moving film about a small town\n\n "
    "two women are holding packages .\n\n\nwhat is small ?\n<|assistant|>"
)


def list_visible_parts(prompt):
    return list(zip(prompt.names, prompt.texts, strict=True))


def test_only_what_the_user_asks_last_is_visible_and_sources_apart():
    prompt = parse_prompt(CHAT, tokenizer())
    assert prompt.template.fill(prompt.texts)[0] == WHOLE
    assert list_visible_parts(prompt) == [
        ("doc 1", "a moving film about a small town"),
        ("doc 2", "two women are holding packages ."),
        ("user", "what is small ?"),
    ]
    assert prompt.kinds == ("source", "source", "user")
    assert not prompt.special, "a chat's template writes special tokens itself"


def test_earlier_messages_on_request_and_tools_answers():
    messages = [
        {"role": "system", "content": " it is long ", "explain": True},
        {"role": "user", "content": "the plot"},
        {"role": "assistant", "content": ""},
        {"role": "tool", "content": "a film"},
        {"role": "user", "content": "is it sad", "explain": False},
    ]
    prompt = parse_prompt({"messages": messages}, tokenizer())
    assert list_visible_parts(prompt) == [("system", "it is long")]
    prompt = parse_prompt({"messages": messages[:4]}, tokenizer())
    assert list_visible_parts(prompt) == [("system", "it is long"), ("user", "the plot"), ("tool result", "a film")]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Read {doc 2}, then {doc 1}! Why?", ["prompt", "doc 2", "prompt 2", "doc 1", "prompt 3"]),
        ("{sources}", ["doc 1", "doc 2"]),
        ("{doc 2} and {sources} ?", ["doc 2", "prompt", "doc 1", "prompt 2"]),
        ("a moving film about a small town\ntwo women are holding packages .", ["doc 1", "doc 2"]),
    ],
)  # fmt: skip
def test_where_sources_go(prompt, expected):
    found = parse_prompt({"prompt": prompt, "sources": SOURCES}, tokenizer())
    assert found.names == tuple(expected)
    assert found.kinds == tuple("source" if name.startswith("doc") else "prompt" for name in expected)
    whole = found.template.fill(found.texts)[0]
    assert not {"{", "\ue000"} & set(whole)
    assert all(whole.count(text.strip()) == 1 for text in SOURCES.values())


def test_a_chat_template_with_a_place_for_documents():
    template = "{% for d in documents %}[{{ d.title }}] {{ d.text }}\n{% endfor %}" + TEMPLATE
    prompt = parse_prompt({"messages": [{"role": "user", "content": "why"}], "sources": SOURCES}, tokenizer(template))
    assert prompt.names == ("doc 1", "doc 2", "user")
    assert prompt.template.fill(prompt.texts)[0].startswith("[doc 1] a moving film about a small town\n[doc 2]")


def test_literal_text_may_have_braces_and_quote_sources():
    text = "is {doc 1} or {x} in {sources} a moving film about a small town ?"
    prompt = parse_prompt({"prompt": text, "sources": SOURCES, "literal": True}, tokenizer())
    assert prompt.names == ("doc 1", "doc 2", "prompt")
    assert prompt.template.fill(prompt.texts)[0] == "\n\n".join([*SOURCES.values(), text])
    chat = [{"role": "user", "content": "{x}"}, {"role": "assistant", "content": "{doc 2}"}]
    chat.append({"role": "user", "content": text})
    found = parse_prompt({"messages": chat, "sources": SOURCES, "literal": True}, tokenizer())
    assert (found.names, found.texts[-1]) == (("doc 1", "doc 2", "user"), text)
    placed = [{"role": "user", "content": "{sources}\n\nwhy"}]
    first = [{"role": "user", "content": "why"}]
    assert parse_prompt({"messages": placed, "sources": SOURCES}, tokenizer()) == parse_prompt(
        {"messages": first, "sources": SOURCES, "literal": True}, tokenizer()
    )
    template = "{% for d in documents %}[{{ d.title }}] {{ d.text }}\n{% endfor %}" + TEMPLATE
    found = parse_prompt({"messages": chat, "sources": SOURCES, "literal": True}, tokenizer(template))
    assert found.template.fill(found.texts)[0].startswith("[doc 1] a moving film about a small town\n[doc 2]")
    assert found.texts[-1] == text


def test_sources_in_other_forms():
    assert name_sources(["a", "b"]) == {"source 1": "a", "source 2": "b"}
    assert name_sources([{"title": "x", "text": "a"}, {"text": "b"}]) == {"x": "a", "source 2": "b"}
    assert name_sources({"x": "a", "y": None}) == {"x": "a"}
    assert name_sources(None) == {}


def test_prompts_that_cannot_be_read():
    cases = [
        ({"text": "a"}, "either a 'prompt' or 'messages'"),
        ({"prompt": "a", "messages": []}, "either a 'prompt' or 'messages'"),
        ({"prompt": 3}, "expected prompt to be a text"),
        ({"messages": [{"content": "a"}]}, "list of"),
        ({"messages": [{"role": "user", "content": [1]}]}, "content of message 1"),
        ({"prompt": "a {doc 1}", "sources": {"doc 1": " "}}, "source 'doc 1' is empty"),
        ({"prompt": "a {doc 3}", "sources": {"doc 1": "b"}}, "unknown source 'doc 3'. Did you mean 'doc 1'"),
        ({"prompt": "{doc 1} {x}", "sources": {"doc 1": "b"}}, "unknown source 'x'"),
        ({"prompt": "a", "sources": {"doc 1": "b"}}, "no place for the source 'doc 1': write {doc 1} or {sources}"),
        ({"messages": [{"role": "user", "content": "a"}], "sources": {"d": "b"}}, "no place for the source 'd'"),
        ({"prompt": "a {sources}"}, "has none"),
        ({"prompt": "a", "sources": 3}, "sources as texts by name"),
        ({"prompt": "a", "sources": "doc"}, "sources as texts by name"),
        (
            {"prompt": "a", "sources": [{"name": "x", "text": "a"}, {"name": "x", "text": "b"}]},
            "two sources are called",
        ),
    ]
    for example, message in cases:
        with pytest.raises(ExpoundError, match=message.replace("{", r"\{")):
            parse_prompt(example, tokenizer())


def test_templates_that_lose_the_text():
    cases = [
        (None, "no chat template"),
        ("{{ messages[0].content }}", "leaves out or repeats 'user'"),
        (TEMPLATE.replace("trim", "upper"), "changes the messages"),
        ("{% for m in messages %}{{ m.content }} {{ m.content }}{% endfor %}", "leaves out or repeats 'user'"),
        ("{{ raise_exception('no system text') }}", "does not take these messages: no system text"),
    ]
    for template, message in cases:
        messages = [{"role": "system", "content": "a small town"}, {"role": "user", "content": "the river"}]
        with pytest.raises(ExpoundError, match=message):
            parse_prompt({"messages": messages}, tokenizer(template))


def test_a_batch_knows_content_sources_and_the_response():
    model = chatting()
    short = {"prompt": "a {s}", "sources": {"s": "film"}, "response": " the"}
    batch = model.encode([CHAT, short])
    assert batch.attended.sum(1).tolist() == [len(alignment.tokens) for alignment in batch.alignments]
    exchange, ids = batch.exchanges[0], batch.inputs["input_ids"][0]
    assert exchange.prompt == WHOLE
    assert exchange.sources == ("doc 1", "doc 2")
    assert model.tokenizer.decode(ids[batch.response[0]]) == exchange.response == CHAT["response"]
    for number, text in enumerate(SOURCES.values()):
        decoded = model.tokenizer.decode(ids[batch.unit_of[0] == number])
        assert decoded.strip() == text.strip()
    assert model.tokenizer.decode(ids[batch.content[0] & (batch.unit_of[0] < 0)]).strip() == "what is small ?"
    assert not (batch.content & batch.response).any()
    assert batch.select([1]).exchanges == (batch.exchanges[1],)
    assert batch.unit_of[1][batch.content[1]].unique().tolist() == [-1, 0]


@pytest.mark.parametrize("response", [" the town", [5, 66, 7], np.array([5, 66, 7]).tolist(), torch.tensor([5, 66])])
def test_responses_as_text_and_as_ids(response):
    model = chatting()
    batch = model.encode([{"prompt": "a moving film", "response": response}])
    ids = batch.inputs["input_ids"][0][batch.response[0]].tolist()
    given = model.tokenizer(response)["input_ids"] if isinstance(response, str) else list(response)
    assert ids == given
    exchange = batch.exchanges[0]
    assert exchange.response == model.tokenizer.decode(ids)
    for token, (start, end) in zip(ids, exchange.token_spans, strict=True):
        assert exchange.response[start:end] == model.tokenizer.decode([token]).strip()


def test_the_end_of_text_token_makes_no_text():
    model = chatting()
    exchange = model.encode([{"prompt": "a film", "response": [5, 66, 2]}]).exchanges[0]
    assert exchange.response == model.tokenizer.decode([5, 66])
    assert exchange.tokens[2] == "<|end|>"
    assert exchange.token_spans[2] == (len(exchange.response),) * 2


def test_a_tokenizer_that_ends_texts_does_not_end_the_prompt():
    model = chatting()
    model.processing_class = tokenizer(kind="roberta")
    batch = model.encode([("a moving film", " about a town")])
    ids = batch.inputs["input_ids"][0]
    assert model.tokenizer.decode(ids) == "<s>a moving film about a town"
    assert not batch.content[0, 0]


def test_responses_that_cannot_be():
    cases = [
        ("", "as a text or as token ids"),
        ("  ", "as a text or as token ids"),
        ([], "as a text or as token ids"),
        ([5, 300], "from 0 to 299"),
        (3, "as a text or as token ids"),
        ("he film", "does not continue 'a t' by tokens of the response 'he film'"),
        ([5] * 260, "260 tokens; prompt and response together have at most 260"),
    ]
    for response, message in cases:
        with pytest.raises(ExpoundError, match=message):
            chatting().encode([{"prompt": "a t", "response": response}])


def test_an_assistants_last_message_is_the_response():
    model = chatting()
    said = [*CHAT["messages"], {"role": "assistant", "content": CHAT["response"]}]
    one, other = (model.encode([row]) for row in (CHAT, {"messages": said, "sources": SOURCES}))
    assert one.exchanges == other.exchanges


def test_too_long_a_prompt_is_cut_where_it_is_longest(caplog):
    model = chatting()
    row = {
        "prompt": "{sources} why ?",
        "sources": {"long": "a small town " * 80, "short": "the river"},
        "response": " it",
    }
    with caplog.at_level(logging.WARNING):
        batch = model.encode([row])
    assert batch.attended.sum() == 260
    assert "the prompt of example 0 is cut to 259 tokens: 'long' to" in caplog.text
    assert batch.alignments[0].truncated
    assert batch.exchanges[0].prompt.endswith("\n\nthe river why ?")
    with pytest.raises(ExpoundError, match="the prompt without its longest text has"):
        model.with_max_length(40).encode([CHAT])


@torch.no_grad()
def test_greedy_answers_are_the_likeliest_tokens_and_draws_follow_their_seed():
    model = chatting()
    left, drawn = snapshot(model), torch.random.get_rng_state()
    row, given = model.respond([{"prompt": "a moving film"}, CHAT], max_new_tokens=6)
    ids = model.tokenizer("a moving film")["input_ids"]
    for token in row["response"]:
        assert token == model.model(torch.tensor([ids])).logits[0, -1].argmax()
        ids.append(token)
    assert given["response"] == CHAT["response"]
    sampled = [model.respond(["a moving film"], 6, 1.5, seed)[0]["response"] for seed in (0, 0, 1)]
    assert sampled[0] == sampled[1] != sampled[2]
    assert snapshot(model) == left
    assert torch.equal(torch.random.get_rng_state(), drawn)
    for bad in ({"max_new_tokens": 0}, {"temperature": -1.0}):
        with pytest.raises(ExpoundError, match="at least"):
            model.respond(["a"], **bad)


def test_a_generated_answer_leaves_room_for_itself():
    model = chatting()
    (row,) = model.respond([{"prompt": "a small town " * 80}], max_new_tokens=10)
    batch = model.encode([row])
    assert batch.attended.sum() <= 260
    assert batch.response.sum() == len(row["response"])
    again = model.respond([{"prompt": batch.exchanges[0].prompt}], max_new_tokens=10)
    assert again[0]["response"] == row["response"], "what is explained was said to this very prompt"


def test_examples_of_other_kinds():
    with pytest.raises(ExpoundError, match="an example is a prompt"):
        chatting().encode([3])
    with pytest.raises(ExpoundError, match="no example"):
        chatting().encode([])
    model = chatting()
    model.processing_class = None
    with pytest.raises(ExpoundError, match="without a tokenizer"):
        model.encode(["a"])
    assert families.processor("llama").chat_template is None, "the shared tokenizer stays as it is"
