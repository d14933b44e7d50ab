from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import transformers as hf

import exegete
from exegete.errors import ExegeteError
from exegete.metrics.chat_simulation import simulate_with_chat
from exegete.metrics.simulatability import simulatability_gain
from families import SENTENCES, TEXT, processor, tiny
from judged import model_of


@pytest.mark.parametrize(
    ("explained", "unexplained", "gain"), [(1.0, 0.5, 1), (0.75, 0.5, 0.5), (0.5, 0.5, 0), (0.25, 0.5, -0.5), (0, 0, 0)]
)
def test_the_gain_is_the_share_of_what_was_wrong(explained, unexplained, gain):
    assert simulatability_gain(explained, unexplained) == gain


def test_the_gain_is_nan_if_no_guess_was_wrong():
    assert math.isnan(simulatability_gain(0.9, 1.0))


@pytest.fixture(scope="module")
def simulator():
    torch.manual_seed(1)
    decoder = hf.AutoModelForCausalLM.from_config(hf.AutoConfig.for_model("gpt2", **TEXT["gpt2"])).eval()
    labels = {"negative": "N", "positive": "P"}
    return exegete.load(decoder, processor("gpt2"), task="prompt", template="{text}\nLabel:", labels=labels)


@pytest.fixture(scope="module")
def explanations():
    bert = tiny("bert", num_labels=2, id2label={0: "negative", 1: "positive"}, label2id={"negative": 0, "positive": 1})
    return exegete.attribute(exegete.load(bert, processor("bert")), SENTENCES, "occlusion", "positive")


def test_a_chat_model_is_asked_with_and_without_the_best_words(simulator, explanations):
    found = simulate_with_chat(simulator, explanations, words=2)
    right = {False: [], True: []}
    for item, text in zip(explanations, SENTENCES, strict=True):
        places = sorted(np.argsort(-item.scores[0], kind="stable")[:2])
        told = f"{text}\nImportant words: {item.units[places[0]].text}, {item.units[places[1]].text}"
        for flag, asked in ((False, text), (True, told)):
            guess = simulator.labels[int(simulator.predict(simulator.encode([asked])))]
            right[flag].append(guess == item.prediction.text)
    assert (found.unexplained, found.explained) == (np.mean(right[False]), np.mean(right[True]))
    assert found.gain == pytest.approx(simulatability_gain(found.explained, found.unexplained), nan_ok=True)


def test_labels_that_the_simulator_has_no_name_for_are_refused(simulator):
    other = exegete.attribute(model_of("bert", num_labels=4), SENTENCES[:1], "random")
    with pytest.raises(ExegeteError, match="does not know the label"):
        simulate_with_chat(simulator, other)
    with pytest.raises(ExegeteError, match="at least one explanation"):
        simulate_with_chat(simulator, [])
