from __future__ import annotations

import pytest
import torch
import transformers as hf

import expound
from expound.errors import ExpoundError
from expound.explainers import llm_ranking
from expound.explainers.llm_ranking import MARKER, format_prompt, parse_ranking, score_ranks
from families import SENTENCES, SIZE, processor, tiny, tokenizer

TEMPLATE = "{% for message in messages %}<<{{ message['role'] }}>> {{ message['content'] }}{% endfor %}<<answer>>"


@pytest.fixture(scope="module")
def model():
    return expound.load(tiny("bert"), processor("bert"))


@pytest.fixture(scope="module")
def ranker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranker")
    torch.manual_seed(0)
    size = SIZE | {"num_key_value_heads": 2, "max_position_embeddings": 2000, "bos_token_id": 2, "eos_token_id": 2}
    hf.LlamaForCausalLM(hf.LlamaConfig(**size)).save_pretrained(folder)
    own = hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer("gpt2")._tokenizer, bos_token="<|end|>", eos_token="<|end|>", chat_template=TEMPLATE
    )
    own.save_pretrained(folder)
    return folder


def test_a_list_is_read_however_it_is_written():
    cases = [
        ("dull, plot, funny END and so on, more", ["dull", "plot", "funny"]),
        (" 1. dull\n2) plot\n(3) funny\nEND", ["dull", "plot", "funny"]),
        ("- dull\n* plot\n• funny", ["dull", "plot", "funny"]),
        ("\"dull\", 'plot', `funny`.", ["dull", "plot", "funny"]),
        ("dull,, dull , plot,\n", ["dull", "plot"]),
        ("café's, 3D, 1984", ["café's", "3D", "1984"]),
        ("", []),
        ("END dull", []),
    ]
    for answer, words in cases:
        assert parse_ranking(answer) == words


def test_scores_fall_with_the_rank_and_go_to_every_token_of_the_word(model):
    batch = model.encode(["the plot is dull , the end"])
    ids, content = batch.inputs["input_ids"][0], batch.content[0]
    scores = score_ranks(model.tokenizer, ["dull", "nowhereword", "the", "plot"], ids, content)
    word_of = batch.word_of[0]
    own = {w: set(ids[word_of == i].tolist()) for i, w in [(3, "dull"), (0, "the"), (1, "plot")]}
    extra = set(model.tokenizer("nowhereword", add_special_tokens=False)["input_ids"]) & set(ids[content].tolist())
    ranked = [own["dull"], *([extra] if extra else []), own["the"], own["plot"]]
    for position in range(len(ids)):
        token, expected = int(ids[position]), 0.0
        for rank, tokens in enumerate(ranked):
            expected += (1 - rank / len(ranked)) * (token in tokens)
        assert scores[position] == pytest.approx(expected if content[position] else 0.0)
    assert scores[word_of == 0] == scores[word_of == 5]


def test_many_words_stay_apart_in_half_precision(model, monkeypatch):
    tokenizer = model.tokenizer
    half = expound.load(tiny("bert", dtype=torch.bfloat16, max_position_embeddings=400), tokenizer)
    vocabulary = [word for word in tokenizer.get_vocab() if word.isalpha()]
    words = [word for word in vocabulary if tokenizer(word, add_special_tokens=False)["input_ids"][1:] == []]
    monkeypatch.setattr(llm_ranking, "generate_ranking", lambda *arguments: ", ".join(words))
    batch = half.encode([" ".join(words)])
    scores = expound.explainer("llm_ranking", ranker="x").attribute(half, batch, torch.tensor([0]))
    torch.testing.assert_close(scores[batch.content], 1 - torch.arange(len(words)) / len(words), rtol=0, atol=1e-6)


def test_without_a_word_that_fits_all_positions_get_one(model):
    batch = model.encode(["two women"])
    scores = score_ranks(model.tokenizer, [], batch.inputs["input_ids"][0], batch.content[0])
    torch.testing.assert_close(scores, batch.content[0].float())


def test_the_question_holds_the_text_as_it_is_and_what_was_answered(model):
    (alignment,) = model.encode(["a {label} film {text}"]).alignments
    prompt = format_prompt(alignment, "good", ("bad", "good"))
    assert 'answered "good"' in prompt
    assert "bad, good" in prompt
    assert "a {label} film {text}" in prompt
    assert MARKER in prompt


def test_greedy_answers_of_a_chat_model_are_those_by_hand(model, ranker):
    text = SENTENCES[1]
    batch = model.encode([text])
    prompt = format_prompt(batch.alignments[0], model.labels[2], model.labels)
    theirs, own = hf.LlamaForCausalLM.from_pretrained(ranker), hf.AutoTokenizer.from_pretrained(ranker)
    ids = own(f"<<user>> {prompt}<<answer>>", add_special_tokens=False, return_tensors="pt")["input_ids"]
    start = ids.shape[1]
    with torch.no_grad():
        for _ in range(len(batch.alignments[0].words) + 80):
            ids = torch.cat([ids, theirs(ids).logits[:, -1:].argmax(-1)], 1)
            if ids[0, -1] == own.eos_token_id:
                break
    answer = own.decode(ids[0, start:], skip_special_tokens=True)
    found = llm_ranking.generate_ranking(str(ranker), "cpu", prompt, len(batch.alignments[0].words))
    assert found == answer
    scores = expound.explainer("llm_ranking", ranker=str(ranker)).attribute(model, batch, torch.tensor([2]))
    expected = score_ranks(model.tokenizer, parse_ranking(answer), batch.inputs["input_ids"][0], batch.content[0])
    torch.testing.assert_close(scores[0], expected)


def test_batching_changes_nothing_and_random_state_stays(model, ranker):
    torch.manual_seed(3)
    together = expound.attribute(model, SENTENCES[:3], "llm_ranking", target=0, ranker=str(ranker))
    drawn = torch.rand(())
    single = expound.attribute(model, SENTENCES[:3], "llm_ranking", target=0, ranker=str(ranker), batch_size=1)
    for one, other in zip(together, single, strict=True):
        assert (one.scores == other.scores).all()
    torch.manual_seed(3)
    assert drawn == torch.rand(())


def test_missing_rankers_and_texts_are_errors(model, tmp_path):
    batch = model.encode(["two women"])
    with pytest.raises(ExpoundError, match="give its folder or name as ranker="):
        expound.explainer("llm_ranking").attribute(model, batch)
    with pytest.raises(ExpoundError, match="could not be loaded"):
        expound.explainer("llm_ranking", ranker=str(tmp_path / "absent")).attribute(model, batch)
    bare = expound.Batch.from_ids(batch.inputs["input_ids"])
    with pytest.raises(ExpoundError, match="it needs texts"):
        expound.explainer("llm_ranking", ranker="x").attribute(model, bare)
