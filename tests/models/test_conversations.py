"""Conversations with tools and thoughts: what chat templates make of them, their units, and targets in the answer."""

import copy
import json
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch

import expound
import families
from completions_server import serve
from expound import Explanations, ExpoundError
from expound.cli import main
from expound.explainers import resample_thoughts
from expound.explainers.resampling import find_answer, measure_divergence
from expound.models.generation.completions import CompletionsModel
from expound.models.generation.conversation import find_parts, name_message
from expound.models.generation.model import GeneratingModel
from expound.models.generation.server import CompletionsServer
from readme_blocks import ROOT, run

SPECIAL = ["<|turn|>", "<|end|>", "<|part|>", "[CALL]", "[ARGS]", "[/CALL]"]
START = "{% for m in messages %}"
# Thoughts of the turns before the last question are dropped, and read from a field or from the content (Qwen 3).
DROPS_THOUGHTS = (
    "{% if tools %}<|turn|>system\n{% if messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% endif %}"
    "{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|end|>\n"
    "{% elif messages[0].role == 'system' %}<|turn|>system\n{{ messages[0].content }}<|end|>\n{% endif %}"
    "{% set ns = namespace(last=0) %}" + START + "{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}"
    "{% endfor %}" + START + "{% if m.role == 'user' %}<|turn|>user\n{{ m.content }}<|end|>\n"
    "{% elif m.role == 'tool' %}<|turn|>user\n<tool_response>\n{{ m.content }}\n</tool_response><|end|>\n"
    "{% elif m.role == 'assistant' %}{% set content = m.content or '' %}{% set thought = m.reasoning_content or '' %}"
    "{% if '</think>' in content %}{% set thought = content.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}<|turn|>assistant\n"
    "{% if loop.index0 > ns.last and thought %}<think>\n{{ thought }}\n</think>\n\n{% endif %}{{ content }}"
    "{% for c in m.tool_calls or [] %}{% if content %}\n{% endif %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
    "<|end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)
# One JSON object per call, with parameters; results are turns of the environment (Llama 3.x).
PARAMETERS = (
    START + "{% if m.tool_calls %}<|turn|>assistant<|part|>\n\n"
    '{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}'
    "<|end|>{% elif m.role == 'tool' %}<|turn|>ipython<|part|>\n\n{{ m.content | tojson }}<|end|>"
    "{% else %}<|turn|>{{ m.role }}<|part|>\n\n{{ m.content | trim }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant<|part|>\n\n{% endif %}"
)
# The system's text is the beginning of the first question; marks between a call's name and its arguments (Mistral).
MARKED_CALLS = (
    "{% set ns = namespace(system='') %}" + START + "{% if m.role == 'system' %}"
    "{% set ns.system = m.content + '\n\n' %}{% elif m.role == 'user' %}[INST] {{ ns.system }}{{ m.content }}[/INST]"
    "{% set ns.system = '' %}{% elif m.role == 'tool' %}[RESULT]{{ m.content }}[/RESULT]{% else %}{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}[CALL]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}{% endfor %}"
    "<|end|>{% endif %}{% endfor %}"
)
# Thoughts, calls and answers are messages on channels; a result is from the tool that was called (gpt-oss).
CHANNELS = (
    "{% set ns = namespace(name='') %}" + START + "{% if m.role == 'assistant' %}"
    "{% if m.thinking and (m.tool_calls or loop.last) %}"
    "<|turn|>assistant<|part|>analysis\n{{ m.thinking }}<|end|>{% endif %}"
    "{% if m.tool_calls %}{% set ns.name = m.tool_calls[0].function.name %}<|turn|>assistant to=functions.{{ ns.name }}"
    "<|part|>json\n{{ m.tool_calls[0].function.arguments | tojson }}[/CALL]"
    "{% else %}<|turn|>assistant<|part|>final\n{{ m.content }}<|end|>{% endif %}"
    "{% elif m.role == 'tool' %}<|turn|>functions.{{ ns.name }} to=assistant\n{{ m.content | tojson }}<|end|>"
    "{% else %}<|turn|>{{ m.role }}\n{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant{% endif %}"
)
# No tools at all; the system's text is merged into the first question, and the assistant is the model (Gemma 3).
MERGES_SYSTEM = (
    "{% if messages[0].role == 'system' %}{% set first = messages[0].content + '\n\n' %}{% set rest = messages[1:] %}"
    "{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}{% for m in rest %}"
    "<|turn|>{{ 'model' if m.role == 'assistant' else m.role }}\n{% if loop.first %}{{ first }}{% endif %}"
    "{{ (m.content or '') | trim }}<|end|>\n{% endfor %}{% if add_generation_prompt %}<|turn|>model\n{% endif %}"
)
# A default system text; tool calls are not written (SmolLM2).
DEFAULT_SYSTEM = (
    START + "{% if loop.first and messages[0].role != 'system' %}<|turn|>system\nit is helpful<|end|>\n{% endif %}"
    "<|turn|>{{ m.role }}\n{{ m.content or '' }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)


def call(name, arguments, id_="a1"):
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


SYSTEM = {"role": "system", "content": "it is simply long"}
FIRST, ASK = {"role": "user", "content": "who laughs ?"}, {"role": "user", "content": "is the town small ?"}
EARLIER = {"role": "assistant", "content": "two women"}
THINKS = {"reasoning_content": "a town . It may be small ."}
CALLS = {"role": "assistant", "tool_calls": [call("find", {"town": 'the "river"', "most": 3})], **THINKS}
RESULT = {"role": "tool", "tool_call_id": "a1", "content": "a small town in the rain"}
LAST = {"role": "assistant", "tool_calls": [call("send", {"text": "it is small"}, "b2")], **THINKS}
TALK = [SYSTEM, FIRST, EARLIER, ASK, CALLS, RESULT]
ARGUMENTS = '{"town": "the \\"river\\"", "most": 3}'
PARTS = {
    "system": SYSTEM["content"], "user": FIRST["content"], "assistant": "two women", "user 2": ASK["content"],
    "thought": THINKS["reasoning_content"], "tool call: find": '{"name": "find", "arguments": ' + ARGUMENTS + "}",
    "tool result: find": RESULT["content"],
}  # fmt: skip
KINDS = {
    "drops thoughts": (DROPS_THOUGHTS, {}),
    "parameters": (
        PARAMETERS,
        {"tool call: find": '{"name": "find", "parameters": ' + ARGUMENTS + "}", "thought": None},
    ),
    "marked calls": (MARKED_CALLS, {"tool call: find": "find[ARGS]" + ARGUMENTS, "thought": None}),
    "channels": (CHANNELS, {"tool call: find": "find<|part|>json\n" + ARGUMENTS}),
    "merges system": (MERGES_SYSTEM, {"tool call: find": None, "thought": None}),
    "default system": (DEFAULT_SYSTEM, {"tool call: find": None, "thought": None, "system": None}),
}


def chatting(template):
    """A tiny model in float64 that reads 2,000 tokens, some of them special."""
    tokenizer = copy.deepcopy(families.tokenizer("gpt2"))
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL})
    tokenizer.chat_template = template
    sizes = {"max_position_embeddings": 2000, "vocab_size": len(tokenizer)}
    return GeneratingModel(families.tiny("llama", "CausalLM", dtype=torch.float64, seed=1, **sizes), tokenizer)


def adapt(messages, kind):
    """The messages as this kind of template reads them."""
    if kind == "channels":
        renamed = {"reasoning_content": "thinking"}
        return [{renamed.get(key, key): value for key, value in message.items()} for message in messages]
    return messages[1:] if kind == "default system" else messages


@pytest.mark.parametrize("kind", KINDS)
def test_units_are_the_messages_texts_and_tokens_those_of_the_template(kind):
    template, changes = KINDS[kind]
    model, messages = chatting(template), adapt(TALK, kind)
    tokenizer, row = model.tokenizer, {"messages": messages, "response": " a town", "unit": "message"}
    batch = model.encode([row])
    (exchange,) = batch.exchanges
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert exchange.prompt == rendered
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert batch.inputs["input_ids"][batch.prompt_mask].tolist() == list(ids)
    expected = {name: text for name, text in (PARTS | changes).items() if text is not None}
    found = {name: rendered[slice(*place)] for name, place in zip(exchange.names, exchange.places, strict=True)}
    assert found == expected
    (item,) = expound.attribute(model, row, "occlusion", "response", unit="message")
    assert item.unit_texts == exchange.names
    (item,) = expound.attribute(model, row, "occlusion", "response", unit="tool_result")
    assert item.unit_texts == ("tool result: find",)


@pytest.mark.parametrize("kind", ["drops thoughts", "parameters", "marked calls", "channels"])
def test_an_answer_with_a_tool_call_is_as_the_template_writes_it(kind):
    model = chatting(KINDS[kind][0])
    messages = adapt([*TALK, LAST], kind)
    exchange = model.encode([{"messages": messages}]).exchanges[0]
    whole = model.tokenizer.apply_chat_template(messages, tokenize=False)
    assert whole.startswith(exchange.prompt + exchange.response)
    parts = {part.kind: exchange.response[part.start : part.end] for part in exchange.parts}
    assert parts["tool_name"] == "send"
    assert parts["tool_arguments"] == '{"text": "it is small"}'
    assert parts["tool_call"].startswith(("{", "send"))
    assert parts["tool_call"].endswith("}")
    if kind in ("drops thoughts", "channels"):
        assert parts["thought"] == THINKS["reasoning_content"]
        assert exchange.response.endswith(parts["answer"])
        assert not {"think", "a town"} & set(parts["answer"].split())


def log_probs(model, ids, count, masked=()):
    """log p of the last `count` ids; `masked` ones are not attended to."""
    mask = torch.ones(1, len(ids), dtype=torch.long)
    mask[0, list(masked)] = 0
    positions = torch.arange(len(ids))[None]
    with torch.no_grad():
        logits = model.model(torch.tensor([ids]), attention_mask=mask, position_ids=positions).logits
    table = logits[0].log_softmax(-1)
    return np.array([float(table[place - 1, ids[place]]) for place in range(len(ids) - count, len(ids))])


def brute_force(model, whole, extents, spans, perturbation):
    """Effects [T, U] on `spans` of a text of leaving out the tokens inside `extents`, without the library."""
    encoded = model.tokenizer(whole, return_offsets_mapping=True)
    ids, offsets = encoded["input_ids"], encoded["offset_mapping"]
    trimmed = [(end - len(whole[start:end].lstrip()), end) for start, end in offsets]
    first = min(start for start, _ in spans)
    count = sum(end > first for _, end in trimmed)
    chosen = []
    for start, end in spans:
        chosen.append([n for n, (a, b) in enumerate(trimmed[-count:]) if a < end and b > start])
    rows = []
    for start, end in extents:
        inside = [n for n, (a, b) in enumerate(trimmed) if (a >= start and b <= end and a < b) or start < a == b <= end]
        kept = [own for n, own in enumerate(ids) if n not in inside]
        without = log_probs(model, ids, count, inside) if perturbation == "attend" else log_probs(model, kept, count)
        change = log_probs(model, ids, count) - without
        rows.append([change[own].sum() for own in chosen])
    return np.array(rows).T


@pytest.mark.parametrize("perturbation", ["remove", "attend"])
def test_units_and_targets_equal_brute_force(perturbation):
    model = chatting(DROPS_THOUGHTS)
    row = {"messages": [*TALK, LAST]}
    method = f"occlusion?perturbation={perturbation}"
    for unit in ("message", "tool_result"):
        for target in ("tool_call", "tool_name", "tool_arguments"):
            (item,) = expound.attribute(model, row, method, target, unit=unit)
            exchange = item.exchange
            whole, size = exchange.prompt + exchange.response, len(exchange.prompt)
            places = dict(zip(exchange.names, exchange.places, strict=True))
            spans = [(size + part.start, size + part.end) for part in exchange.parts if part.kind == target]
            expected = brute_force(model, whole, [places[name] for name in item.unit_texts], spans, perturbation)
            np.testing.assert_allclose(item.scores, expected, atol=1e-6)
            assert np.abs(expected).max() > 1e-4
    # The sentences of the thoughts of the earlier call and of the answer itself.
    (item,) = expound.attribute(model, row, method, "tool_call", unit="thought")
    assert item.unit_texts == ("a town .", "It may be small .") * 2
    assert item.exchange.prompt.endswith("</think>\n\n")
    whole, extents, place = item.exchange.prompt + item.exchange.response, [], 0
    for text in item.unit_texts:
        start = whole.index(text, place)
        extents.append((place if text.startswith("It") else start, start + len(text)))
        place = start + len(text)
    (part,) = [part for part in item.exchange.parts if part.kind == "tool_call"]
    span = (len(item.exchange.prompt) + part.start, len(item.exchange.prompt) + part.end)
    expected = brute_force(model, whole, extents, [span], perturbation)
    np.testing.assert_allclose(item.scores, expected, atol=1e-6)


def test_thoughts_of_a_generated_answer_are_units_and_its_tokens_stay():
    model = chatting(DROPS_THOUGHTS)
    text = "<think>\na town . It may be small .\n</think>\n\nyes"
    # Ids that the tokenizer would not choose for this text.
    ids = [token for character in text for token in model.tokenizer(character)["input_ids"]]
    row = {"messages": [ASK], "response": ids}
    (item,) = expound.attribute(model, row, "occlusion", "answer", unit="thought")
    assert (item.unit_texts, item.response) == (("a town .", "It may be small ."), "yes")
    prompt = model.tokenizer.apply_chat_template([ASK], add_generation_prompt=True, return_dict=False)
    whole, size, count = list(prompt) + ids, len(prompt), len("yes")
    first, second = text.index(" It"), text.index("\n</think>")
    for number, (start, end) in enumerate([(text.index("a"), first), (first, second)]):
        kept = whole[: size + start] + whole[size + end :]
        drop = log_probs(model, whole, count).sum() - log_probs(model, kept, count).sum()
        assert item.scores[0, number] == pytest.approx(drop, abs=1e-5)
    # Where the thoughts stay in the answer, the answer alone is a target.
    (item,) = expound.attribute(model, row, "occlusion", "answer", unit="message")
    assert (item.unit_texts, item.target_texts) == (("user",), ("yes",))
    with pytest.raises(ExpoundError, match="shows no thought: the messages have none"):
        expound.attribute(model, {"messages": [ASK], "response": " yes"}, "occlusion", unit="thought")
    with pytest.raises(ExpoundError, match="has no tool call: 'yes'"):
        expound.attribute(model, {"messages": [ASK], "response": "yes"}, "occlusion", "tool_call")


def test_conversations_of_a_file_are_those_of_its_rows(tmp_path):
    model, rows = chatting(DROPS_THOUGHTS), [{"messages": [*TALK, LAST]}, {"messages": [ASK], "response": "yes"}]
    file = tmp_path / "chats.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    found = expound.attribute(model, str(file), "random", "response", unit="message")
    assert list(found) == list(expound.attribute(model, rows, "random", "response", unit="message"))
    file.write_text(json.dumps({"messages": [ASK | {"image": "a.png"}]}), encoding="utf-8")
    with pytest.raises(ExpoundError, match="expected messages as a list of"):
        expound.attribute(model, str(file), "random")


def test_the_page_on_agents_runs(tmp_path):
    model = chatting(DROPS_THOUGHTS)
    model.model.float().save_pretrained(tmp_path / "my-chat-model")
    model.tokenizer.save_pretrained(tmp_path / "my-chat-model")
    run(ROOT / "docs" / "agents.md", tmp_path)


def test_results_are_named_by_their_calls_and_messages_sum_up_their_tokens(tmp_path):
    two = {"role": "assistant", "tool_calls": [call("find", {}), call("read", {}, "b2")]}
    bare = {"role": "tool", "content": "a"}
    names = [name for _, name in (name_message([ASK, two, bare, bare], place) for place in range(4))]
    assert names == ["user", "assistant", "tool result: find", "tool result: read"]
    assert name_message([two, bare | {"tool_call_id": "b2"}], 1) == ("tool_result", "tool result: read")
    assert name_message([two, bare | {"name": "open"}], 1) == ("tool_result", "tool result: open")
    assert name_message([ASK, bare], 1) == ("tool_result", "tool result")
    model = chatting(DROPS_THOUGHTS)
    asked = {"role": "user", "content": "{memo}\n\nis it small ?"}
    row = {"messages": [FIRST, EARLIER, asked], "sources": {"memo": "a town"}, "response": " yes", "unit": "message"}
    (direct,) = expound.attribute(model, row, "input_x_gradient", "response", unit="message")
    (tokens,) = expound.attribute(model, row, "input_x_gradient", "response", unit="token")
    assert direct.unit_texts == ("user", "assistant", "memo", "user 2")
    np.testing.assert_allclose(tokens.aggregate("message").scores, direct.scores, atol=1e-6)
    margin = (direct.scores[0, 2] - direct.scores[0, 3]) / direct.target.value[1]
    assert direct.margins() == {"memo": pytest.approx(margin, rel=1e-5)}
    with pytest.raises(ExpoundError, match="explain a chat with unit='message'"):
        tokens.margins()
    (found,) = expound.attribute(model, {"messages": [*TALK, LAST]}, "random", "tool_call", unit="message")
    assert Explanations.load(Explanations([found]).save(tmp_path))[0] == found


def test_messages_of_agentdojo_are_those_of_openai():
    model = chatting(DROPS_THOUGHTS)
    own = {"function": "find", "args": {"town": 'the "river"', "most": 3}, "id": "a1"}
    messages = [
        {"role": "user", "content": [{"type": "text", "content": ASK["content"]}]},
        {"role": "assistant", "content": None, "tool_calls": [own]},
        {"role": "tool", "content": [{"type": "text", "content": "a town"}], "tool_call_id": "a1", "tool_call": own},
    ]
    usual = [ASK, {"role": "assistant", "tool_calls": CALLS["tool_calls"]}, RESULT | {"content": "a town"}]
    one, other = (
        model.encode([{"messages": each, "response": "yes", "unit": "message"}]) for each in (messages, usual)
    )
    assert one.exchanges == other.exchanges
    assert one.exchanges[0].names == ("user", "tool call: find", "tool result: find")


def test_calls_in_a_text_are_json_with_a_name_and_arguments():
    text = (
        'so {"x": 1} <think>{"name": "no", "arguments": 1}</think> {"name": "send", "parameters": {"to": ["a", {}]}} {'
    )
    found = [(part.kind, text[part.start : part.end]) for part in find_parts(text)]
    assert found[1:] == [
        ("answer", text[text.index('{"name": "send') :]),
        ("tool_call", text[text.index('{"name": "send') : -2]),
        ("tool_name", "send"),
        ("tool_arguments", '{"to": ["a", {}]}'),
    ]
    assert find_parts("no {call} here") == ()
    # Keys in any order and form, also where an argument is called like one of the call's own.
    text = '{"arguments": {"name": "x"} , "n\\u0061me" : "f" }'
    assert [text[part.start : part.end] for part in find_parts(text)] == [text, "f", '{"name": "x"}']
    # Long runs and deep values take no long time, and raise nothing.
    assert [part.kind for part in find_parts(" " * 200_000 + "a </think>" + " " * 200_000)] == ["thought", "answer"]
    assert find_parts(" " * 200_000) == find_parts('{"name": ' * 2_000) == ()
    assert [part.kind for part in find_parts(" </think> yes")] == ["answer"]


def test_the_command_prints_effects_and_the_margin_also_of_a_server(tmp_path, monkeypatch, capsys):
    model = chatting(DROPS_THOUGHTS)
    row = {"messages": [*TALK, LAST]}
    (local,) = expound.attribute(model, row, "occlusion", "tool_call", unit="message")
    effects, count = dict(zip(local.unit_texts, local.scores[0], strict=True)), np.subtract(*local.target.value[::-1])
    margin = (effects["tool result: find"] - effects["user 2"]) / count
    assert local.margins() == {"tool result: find": pytest.approx(margin)}
    with serve(model) as served:
        remote = CompletionsModel(CompletionsServer(served.address, "tiny"), model.tokenizer, 2000)
        (item,) = expound.attribute(remote, row, "occlusion", "tool_call", unit="message")
    np.testing.assert_allclose(item.scores, local.scores, atol=1e-6)
    file = tmp_path / "chat.json"
    file.write_text(json.dumps(row["messages"]), encoding="utf-8")
    monkeypatch.setattr(expound, "load", lambda *_, **__: model)
    arguments = ["--messages", str(file), "--unit", "message", "--target", "tool_call", "--methods", "occlusion"]
    assert main(["explain", "--model", "tiny", "--task", "generation", *arguments]) == 0
    printed = capsys.readouterr().out
    assert '{"name": "send", "arguments": {"text": "it is small"}}' in printed
    verdict = "exceeds the user's request" if margin > 0 else "below the user's request"
    assert f"tool result: find {margin:+.3g} ({verdict})" in printed.replace("\n", " ")


def test_resampling_compares_the_answers_of_continuations_from_each_sentence_on(tmp_path, monkeypatch, capsys):
    model = chatting(DROPS_THOUGHTS)
    # Every token of random weights is about as likely: with few letters in an answer, some are drawn often.
    text = "<think>\na town . It may be small .\n</think>\n\nyes"
    model.tokenizer.add_tokens(["</think>"])
    model.model.resize_token_embeddings(len(model.tokenizer))
    end = model.tokenizer.convert_tokens_to_ids("</think>")
    model.model.generation_config.eos_token_id = model.tokenizer.eos_token_id
    with torch.no_grad():
        model.model.lm_head.weight.mul_(0.2)
        model.model.lm_head.weight[end] = model.model.lm_head.weight.mean(0)
    messages, settings = {"messages": [ASK], "response": text}, {"n_samples": 12, "max_new_tokens": 100}
    item = resample_thoughts(model, messages, pattern=".", seed=3, **settings)
    assert item.unit_texts == ("a town .", "It may be small .")
    prompt = model.tokenizer.apply_chat_template([ASK], tokenize=False, add_generation_prompt=True)
    wholes = [prompt + text[: text.index(place)] for place in ("a town", " It", "\n</think>")]
    eos, expected = model.tokenizer.eos_token_id, list[Counter]()
    for number, whole in enumerate(wholes):
        given = torch.tensor([model.tokenizer(whole)["input_ids"]] * 12)
        torch.manual_seed(3 + 12 * number)
        drawn = model.model.generate(given, attention_mask=torch.ones_like(given), do_sample=True, top_k=0,
                                     max_new_tokens=100, pad_token_id=model.pad_id)  # fmt: skip
        expected.append(Counter())
        for row in drawn[:, given.shape[1] :].tolist():
            kept = row[: row.index(eos)] if eos in row else row
            answer = kept[kept.index(end) + 1 :] if end in kept else []
            shown = model.tokenizer.decode(answer, skip_special_tokens=True).strip().replace("\n", "")
            expected[-1][shown[-1:]] += 1
    assert [Counter(counts) for counts in item.metadata["answers"]] == expected
    assert max(map(len, expected)) > 2
    for number, (one, other) in enumerate(pairwise(expected)):
        names = {*one, *other}
        total = 12 + len(names)
        divergence = sum((one[n] + 1) / total * np.log((one[n] + 1) / (other[n] + 1)) for n in names)
        assert item.scores[0, number] == pytest.approx(divergence, abs=1e-6)
    file = tmp_path / "chat.json"
    file.write_text(json.dumps(messages), encoding="utf-8")
    monkeypatch.setattr(expound, "load", lambda *_, **__: model)
    command = ["explain", "--model", "tiny", "--task", "generation", "--messages", str(file), "--resample", "12"]
    command += ["--max-new-tokens", "100", "--pattern", ".", "--seed", "3", "--json"]
    assert main([*command, "--dry-run"]) == 0
    work = "resampling 2 sentences: 36 continuations of at most 100 tokens"
    assert capsys.readouterr().out == f"{work}\n"
    assert main(command) == 0
    printed = capsys.readouterr()
    assert work in " ".join(printed.err.split())
    assert json.loads(printed.out)[0]["scores"] == pytest.approx(item.scores, abs=1e-6)
    with serve(model) as served:
        remote = CompletionsModel(CompletionsServer(served.address, "tiny"), model.tokenizer, 2000)
        # This server takes the likeliest token every time.
        item = resample_thoughts(remote, messages, n_samples=3, max_new_tokens=4)
    assert [sum(counts.values()) for counts in item.metadata["answers"]] == [3, 3, 3]
    assert measure_divergence(Counter(a=3), Counter(a=3)) == 0
    assert [find_answer(f"so </think> {text}", r"(\d+)\b") for text in ("it is 3 or 12 .", "no")] == ["12", ""]
    with pytest.raises(ExpoundError, match="shows no thought"):
        resample_thoughts(model, {"messages": [ASK], "response": "yes"})
    with pytest.raises(ExpoundError, match="n_samples of at least 2"):
        resample_thoughts(model, messages, n_samples=1)
