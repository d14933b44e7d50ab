"""The small Llama of the demo: its training examples, and a stopped training, which resumes."""

from __future__ import annotations

import signal
from itertools import islice, pairwise

import pytest
import torch
from transformers import Trainer

import expound
from expound.data.generated.retrieval import get_vocabulary
from expound.data.generated.tokenizer import generated_tokenizer
from expound.models.loading.checkpoint import digest_weights
from expound_papers import answering_model
from expound_papers.answering_model import CUT, IGNORED, LONGEST, SHORTEST, AnsweringExamples, train_answering_model
from expound_papers.protocols.performance import match_responses


@pytest.fixture(scope="module")
def training_rows():
    return list(islice(AnsweringExamples(generated_tokenizer(get_vocabulary()), 0, 200), 240))


def test_words_are_said_again_in_pieces_and_judged_where_the_word_before_tells_the_next(training_rows):
    judged = asked = 0
    for row in training_rows[:200]:
        words, repeated = row["input_ids"][: len(row["input_ids"]) // 2], row["input_ids"][len(row["input_ids"]) // 2 :]
        assert SHORTEST <= len(words) <= LONGEST
        assert sorted(words) == sorted(repeated)
        assert len({*words}) == len(words)
        follows = dict(pairwise(words))
        assert row["labels"][: len(words)] == [IGNORED] * len(words)
        for before, word, label in zip(repeated[:-1], repeated[1:], row["labels"][len(words) + 1 :], strict=True):
            assert label in (word, IGNORED)
            assert label == IGNORED or follows[before] == word
            judged += label != IGNORED
            asked += 1
    assert abs(judged / asked - (1 - CUT)) < 0.05


def test_lessons_come_after_it_and_judge_answers_alone(training_rows):
    tokenizer = generated_tokenizer(get_vocabulary())
    for row in training_rows[200:]:
        said = tokenizer.decode([id for id in row["labels"] if id != IGNORED])
        read = tokenizer.decode(row["input_ids"])
        assert all(fact.strip() in read for fact in said.replace("[SEP]", ".").split(".") if fact.strip())
        assert "what did" not in said


def test_a_stopped_training_goes_on_to_the_same_weights_and_a_finished_one_is_taken(tmp_path, monkeypatch):
    before = torch.random.get_rng_state()
    whole = train_answering_model(tmp_path / "whole", device="cpu", scale=0.004)
    assert (whole.steps, whole.finished) == (8, True)
    step = Trainer.training_step

    def stop_at_step_3(self, *given, **named):
        if self.state.global_step == 3:
            signal.raise_signal(signal.SIGTERM)
        return step(self, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "training_step", stop_at_step_3)
        stopped = train_answering_model(tmp_path / "run", device="cpu", scale=0.004)
    assert (stopped.steps, stopped.finished, stopped.signal) == (4, False, signal.SIGTERM)
    assert not (tmp_path / "run" / "model").exists()
    assert train_answering_model(tmp_path / "run", device="cpu", scale=0.004).finished
    one, other = (expound.load(tmp_path / name / "model", task="generation") for name in ("whole", "run"))
    assert digest_weights(one.model) == digest_weights(other.model)
    assert train_answering_model(tmp_path / "run", scale=0.004).reused
    with pytest.raises(expound.ExpoundError, match="another training"):
        train_answering_model(tmp_path / "run", scale=0.004, seed=1)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_answers_are_right_word_for_word_or_wrong(tmp_path, monkeypatch):
    rows = list(expound.load_data("generated", "dev", task="retrieval", limit=4))
    model = train_answering_model(tmp_path, device="cpu", scale=0.001).model
    ids = [model.tokenizer(row["response"], add_special_tokens=False)["input_ids"] for row in rows]
    said = [[*ids[0], model.tokenizer.sep_token_id], ids[1][:-1], [*ids[2], 9], ids[3]]
    monkeypatch.setattr(type(model), "respond", lambda *_, **__: [{"response": one} for one in said])
    assert match_responses(model, rows).tolist() == [True, False, False, True]


def test_the_model_is_of_stock_layers_whose_biases_are_drawn():
    model = answering_model.make_llama(generated_tokenizer(get_vocabulary()))
    attention = model.model.layers[0].self_attn
    assert float(attention.q_proj.bias.detach().std()) > 0.5
    assert float(attention.v_proj.bias.detach().abs().max()) == 0


def test_layers_of_gpt2_are_taught_too_and_others_are_refused(tmp_path):
    found = train_answering_model(tmp_path, device="cpu", scale=0.001, architecture="gpt2")
    assert (found.steps, found.model.config.model_type, found.model.config.n_layer) == (3, "gpt2", 3)
    positions = answering_model.make_gpt2(found.model.tokenizer).transformer.wpe.weight
    assert torch.cosine_similarity(positions[7:8], positions[8:9]) > torch.cosine_similarity(
        positions[7:8], positions[90:91]
    )
    with pytest.raises(expound.ExpoundError, match="another training"):
        train_answering_model(tmp_path, scale=0.001)
    with pytest.raises(expound.ExpoundError, match="unknown architecture 'bert'"):
        train_answering_model(tmp_path / "other", architecture="bert")
