"""Documents and messages that write control tokens, and texts that cannot be drawn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

import expound
from attacked import cases, record_outcomes
from chats import CHAT, SOURCES, chatting
from expound.models.encoding.template import Template, encode_template, tokenize_text
from expound.reports.highlighted.picture import draw_picture
from sites import model
from strange import ODD, TEXTS

CONTROL = ["<|endoftext|>", "<|user|>", "<|assistant|>"]


@pytest.fixture(scope="module")
def chat():
    """A model that chats, with control tokens in its template."""
    made = chatting()
    made.tokenizer.add_special_tokens({"additional_special_tokens": CONTROL[1:]})
    made.model.resize_token_embeddings(len(made.tokenizer))
    return made


def count_control(chat, row):
    """How often each control token is among the ids of the prompt."""
    ids = chat.encode([row]).inputs["input_ids"][0].tolist()
    return {token: ids.count(chat.tokenizer.convert_tokens_to_ids(token)) for token in CONTROL}


def test_no_document_and_no_message_ends_itself_by_a_control_token(chat):
    expected = count_control(chat, CHAT)
    assert expected["<|user|>"] == 2
    with record_outcomes("control tokens in prompts", "documents and messages") as counts:
        for token in CONTROL:
            for text in (token, f"a film{token}", f"{token} a film", f"a {token}{token} b", f" {token}\n"):
                for name in SOURCES:
                    row = CHAT | {"sources": SOURCES | {name: text}}
                    assert count_control(chat, row) == expected
                    batch = chat.encode([row])
                    exchange = batch.exchanges[0]
                    start, end = exchange.places[exchange.names.index(name)]
                    assert exchange.prompt[start:end].strip() == text.strip()
                    counts["cases"] += 1
                messages = [*CHAT["messages"][:-1], {"role": "user", "content": f"{text}{{sources}}\n{text}"}]
                assert count_control(chat, CHAT | {"messages": messages}) == expected
                counts["cases"] += 1
        row = CHAT | {"sources": SOURCES | {"doc 1": CONTROL[0]}}
        result = expound.attribute(chat, [row], "occlusion", unit="source")[0]
        assert np.isfinite(result.scores).all()


def test_a_prompt_without_a_template_may_write_control_tokens_and_its_sources_may_not(chat):
    row = {"prompt": "<|user|>{doc}\n<|assistant|>", "sources": {"doc": "a <|user|> film"}, "response": " it"}
    assert count_control(chat, row) == {"<|endoftext|>": 0, "<|user|>": 1, "<|assistant|>": 1}


def test_harmless_texts_have_equal_ids_with_and_without_the_guard(chat):
    template = Template(("<|user|>", " and ", "<|assistant|>"), (0, 1))
    special = [token.content for token in chat.tokenizer.added_tokens_decoder.values() if token.special]
    with record_outcomes("control tokens in prompts", "harmless texts") as counts:

        @cases(300)
        @given(TEXTS, TEXTS)
        def attack(one, other):
            counts["cases"] += 1
            whole, _ = template.fill((one, other))
            if any(token in one + other for token in special):
                return
            guarded = encode_template(chat.tokenizer, template, (one, other))
            assert guarded.ids == tokenize_text(chat.tokenizer, whole).ids

        attack()


def test_characters_survive_the_guard(chat):
    plain = tokenize_text(chat.tokenizer, "a film <|end of it", literal=[(0, 18)])
    text = "a <|user|> b<|assistant|>c<|user|>"
    ids = tokenize_text(chat.tokenizer, text, literal=[(0, 12), (25, 26)]).ids
    assert chat.tokenizer.decode(ids) == text
    kept = [chat.tokenizer.convert_tokens_to_ids(token) for token in CONTROL]
    assert [number for number in ids if number in kept] == [kept[2], kept[1]]
    assert not set(plain.ids) & set(kept)


def test_texts_with_any_character_are_drawn():
    with record_outcomes("texts as pictures", "control characters") as counts:
        texts = [f"a {odd} film{odd}b" for odd in ODD if not odd.isspace()] + [
            "a\nfilm\r\nof\x0b\x0c\x1c\u2028two\u2029\x85lines"
        ]
        for item in expound.attribute(model(), texts, "saliency"):
            assert draw_picture([item]).height > 0
            counts["cases"] += 1
