"""Rewards for answers that cite: equal to a loop over transformers' log-probabilities, and refused clearly."""

import pytest
import torch

import expound
from chats import chatting
from expound import ExpoundError
from expound.rewards import CitedSource, find_citations, measure_removal_effects, necessity, sufficiency
from readme_blocks import ROOT, blocks, small_chat_model

SOURCES = [
    "a moving film about a small town",
    "two women are holding packages",
    "great acting cannot save a tired story",
]
PROMPT = "[1] {}\n[2] {}\n[3] {}\nwho is holding packages ? "
COMPLETIONS = ["two women [2]", "a [1, 3] story", "it is dull", "women [2] [7] [2]", "[2]", " \n", "the [9] river"]
CITED = [[1], [0, 2], [], [1], [1], [], []]
MARKERS = [["[2]"], ["[1, 3]"], [], ["[2]", "[7]", "[2]"], ["[2]"], [], ["[9]"]]


@pytest.fixture(scope="module")
def model():
    return chatting()


def ids_of(model, text):
    return model.tokenizer(text, add_special_tokens=False)["input_ids"]


@torch.no_grad()
def log_prob(model, prompt, kept, completion, markers):
    """The mean log-probability of a completion's tokens outside its markers, after a prompt with the kept sources."""
    read = model.tokenizer(prompt, add_special_tokens=False, return_offsets_mapping=True)
    gone = [(prompt.index(each), prompt.index(each) + len(each)) for each in SOURCES if each not in kept]
    ids = []
    for token, (first, last) in zip(read["input_ids"], read["offset_mapping"], strict=True):
        if not any(first < end and last > start for start, end in gone):
            ids.append(token)
    answer = model.tokenizer(completion, add_special_tokens=False)["input_ids"]
    log_probs = model.model(torch.tensor([ids + answer])).logits[0].log_softmax(-1)
    places, start = [], 0
    for marker in markers:
        start = completion.index(marker, start)
        places.append((start, start := start + len(marker)))
    values, end = [], 0
    for place, token in enumerate(answer):
        text = model.tokenizer.decode(answer[: place + 1])
        first = end + len(text[end:]) - len(text[end:].lstrip())
        if first < len(text) and not any(first < last and len(text) > begin for begin, last in places):
            values.append(float(log_probs[len(ids) + place - 1, token]))
        end = len(text)
    return sum(values) / len(values) if values else None


def compute_by_hand(model, prompt):
    """The necessity and sufficiency of each completion, one pass at a time."""
    needed, enough = [], []
    for completion, cited, markers in zip(COMPLETIONS, CITED, MARKERS, strict=True):
        full = log_prob(model, prompt, SOURCES, completion, markers) if completion.strip() else None
        if full is None:
            needed.append(0.0)
            enough.append(0.0)
            continue
        falls = []
        for one in cited:
            kept = [source for number, source in enumerate(SOURCES) if number != one]
            falls.append(full - log_prob(model, prompt, kept, completion, markers))
        needed.append(sum(falls) / len(falls) if falls else 0.0)
        alone = log_prob(model, prompt, [SOURCES[one] for one in cited], completion, markers)
        enough.append(alone - full)
    return needed, enough


@pytest.mark.parametrize("kind", ["text", "chat"])
def test_rewards_equal_a_loop_over_log_probabilities(model, kind):
    prompt = PROMPT.format(*SOURCES)
    given = prompt if kind == "text" else [{"role": "system", "content": "it"}, {"role": "user", "content": prompt}]
    completions = COMPLETIONS
    if kind == "chat":
        prompt = model.tokenizer.apply_chat_template(given, tokenize=False, add_generation_prompt=True)
        completions = [[{"role": "assistant", "content": text}] for text in COMPLETIONS]
    needed, enough = compute_by_hand(model, prompt)
    assert max(map(abs, needed)) > 0.01
    prompts, columns = [given] * len(completions), {"documents": [SOURCES] * len(completions), "trainer_state": None}
    for make, expected in ((necessity, needed), (sufficiency, enough)):
        reward = make(model, sources="documents")
        assert reward.__name__ == make.__name__
        assert reward(prompts=prompts, completions=completions, **columns) == pytest.approx(expected, abs=1e-9)


def test_removal_effects_are_the_necessity_of_each_source(model):
    prompt = PROMPT.format(*SOURCES)
    cited, effects = measure_removal_effects(model, prompt, "two women [2]", SOURCES)
    assert cited == (1,)
    for number, effect in enumerate(effects):
        completion = "two women [2]"
        kept = [source for other, source in enumerate(SOURCES) if other != number]
        full = log_prob(model, prompt, SOURCES, completion, ["[2]"])
        assert effect == pytest.approx(full - log_prob(model, prompt, kept, completion, ["[2]"]), abs=1e-9)
    assert measure_removal_effects(model, prompt, " ", SOURCES) == ((), [])


def test_prompts_of_other_lengths_orders_and_numbers_of_sources_do_not_change_a_reward(model):
    long, short = PROMPT.format(*SOURCES), f"{SOURCES[1]}\nwho ?"
    # In the column, the sources have another order than in the prompt.
    rows = [(long, "women [3]", SOURCES[::-1]), (short, "women [1]", SOURCES[1:2]), (long, "it [1]", SOURCES)]
    alone = [necessity(model)([prompt], [text], sources=[sources])[0] for prompt, text, sources in rows]
    prompts, completions, sources = zip(*rows, strict=True)
    assert necessity(model)(prompts, completions, sources=sources) == pytest.approx(alone, abs=1e-9)
    first = log_prob(model, long, SOURCES, "women [3]", ["[3]"]) - log_prob(
        model, long, SOURCES[1:], "women [3]", ["[3]"]
    )
    assert alone[0] == pytest.approx(first, abs=1e-9)


def test_all_rows_are_scored_in_one_call(model, monkeypatch):
    calls = []
    run = expound.rewards.run_perturbed
    monkeypatch.setattr(expound.rewards, "run_perturbed", lambda *args: calls.append(args) or run(*args))
    prompts, sources = [PROMPT.format(*SOURCES)] * len(COMPLETIONS), [SOURCES] * len(COMPLETIONS)
    necessity(model)(prompts, COMPLETIONS, sources=sources)
    assert len(calls) == 1


def test_the_model_in_training_measures_with_its_adapter_and_stays_in_training(model):
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    options = peft.LoraConfig(target_modules="all-linear", init_lora_weights=False, lora_dropout=0.5)
    policy = peft.get_peft_model(chatting().model, options).train()
    prompts, columns = [PROMPT.format(*SOURCES)] * len(COMPLETIONS), {"sources": [SOURCES] * len(COMPLETIONS)}
    in_training = necessity(expound.load((policy, model.tokenizer), task="generation"))
    rewards = in_training(prompts, COMPLETIONS, **columns)
    assert policy.training
    assert all(weight.grad is None for weight in policy.parameters())
    assert sum(weight.requires_grad for weight in policy.parameters()) > 0
    assert rewards != pytest.approx(necessity(model)(prompts, COMPLETIONS, **columns), abs=1e-3)
    merged = expound.load((policy.eval().merge_and_unload(), model.tokenizer), task="generation")
    assert rewards == pytest.approx(necessity(merged)(prompts, COMPLETIONS, **columns), abs=1e-9)


def test_another_parser_reads_other_citations(model):
    def parse(text):
        start = text.find("(B)")
        return [CitedSource(1, start, start + 3)] if start >= 0 else []

    prompt = PROMPT.format(*SOURCES)
    (reward,) = necessity(model, parse=parse)([prompt], ["two women (B)"], sources=[SOURCES])
    kept = [SOURCES[0], SOURCES[2]]
    full = log_prob(model, prompt, SOURCES, "two women (B)", ["(B)"])
    assert reward == pytest.approx(full - log_prob(model, prompt, kept, "two women (B)", ["(B)"]), abs=1e-9)


def test_citations_are_found():
    assert find_citations("Paris [2], and [1,  3]. A list[0] [x]") == [
        CitedSource(1, 6, 9), CitedSource(0, 15, 22), CitedSource(2, 15, 22), CitedSource(-1, 30, 33),
    ]  # fmt: skip


def test_wrong_arguments_are_refused(model):
    prompt = PROMPT.format(*SOURCES)
    with pytest.raises(ExpoundError, match=r"no column 'sources'.*sources='COLUMN'"):
        necessity(model)([prompt], ["it [1]"], documents=[SOURCES])
    with pytest.raises(ExpoundError, match="'source 1' must occur once in prompt 0, it occurs 0 times"):
        necessity(model)([prompt], ["it [1]"], sources=[["a river"]])
    with pytest.raises(ExpoundError, match="'source 2' must occur once in prompt 0, it occurs 2 times"):
        necessity(model)([prompt + SOURCES[1]], ["it [1]"], sources=[SOURCES])
    with pytest.raises(ExpoundError, match="prompt 0 has no sources"):
        sufficiency(model)([prompt], ["it [1]"], sources=[[]])
    chat = [{"role": "user", "content": prompt}, {"role": "assistant", "content": "it"}]
    with pytest.raises(ExpoundError, match="ends with the assistant's message"):
        necessity(model)([chat], ["it [1]"], sources=[SOURCES])
    with pytest.raises(ExpoundError, match=r"task='generation'.*got str"):
        necessity("model")


def test_the_page_trains_with_trl(tmp_path, monkeypatch):
    pytest.importorskip("trl")
    monkeypatch.chdir(tmp_path)
    small_chat_model(tmp_path / "my-chat-model")
    names = {}
    page = blocks(ROOT / "docs" / "citation_use.md")[0].text
    exec(page, names)
    first = names["trainer"].state.log_history[0]
    assert first["reward"] == pytest.approx(first["rewards/necessity/mean"] + first["rewards/correct/mean"])
    # Random completions cite no source: nothing is necessary for them, and all sources but the cited ones are missing.
    assert first["rewards/necessity/mean"] == 0
    exec(page.replace("necessity", "sufficiency"), names)
    assert names["trainer"].state.log_history[0]["rewards/sufficiency/mean"] != 0
