"""Inputs that users hand over are accepted, or refused in one sentence."""

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image

import expound
import families
from expound import ExpoundError
from expound.training.loop.options import DEFAULT_ARGUMENTS, RunOptions, make_training_arguments


@pytest.fixture(scope="module")
def pair():
    return families.tiny("bert").eval(), families.tokenizer("bert")


@pytest.fixture(scope="module")
def scores(pair):
    return expound.attribute(expound.load(*pair), "a film", "saliency")[0].scores


def test_a_pipeline_a_pair_and_a_named_tokenizer_are_taken(pair, scores):
    model, tokenizer = pair
    pipeline = hf.TextClassificationPipeline(model=model, tokenizer=tokenizer, device="cpu")
    for given in (expound.load(pipeline), expound.load(pair), expound.load(model, tokenizer=tokenizer)):
        np.testing.assert_array_equal(expound.attribute(given, "a film", "saliency")[0].scores, scores)


def test_explaining_and_comparing_take_what_load_takes(pair, scores, tmp_path):
    model, tokenizer = pair
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    pipeline = hf.TextClassificationPipeline(model=model, tokenizer=tokenizer, device="cpu")
    for given in (pair, pipeline, tmp_path, str(tmp_path)):
        np.testing.assert_array_equal(expound.attribute(given, "a film", "saliency")[0].scores, scores)
        compared = expound.compare(given, ["a film"], ["saliency"], ["important_tokens"])
        np.testing.assert_array_equal(compared.attributions[0].scores, scores)
    with pytest.raises(ExpoundError, match="expected a folder, a hub name, a Hugging Face model, a pipeline"):
        expound.attribute(3, "a film")


def test_two_names_for_one_thing_are_refused(pair):
    model, tokenizer = pair
    with pytest.raises(ExpoundError, match="give it once"):
        expound.load(model, tokenizer, tokenizer=tokenizer)


@pytest.mark.parametrize("given", [torch.nn.Linear(2, 2), 3, None, (1, 2)])
def test_what_is_no_model_is_named(given):
    with pytest.raises(ExpoundError, match="expected a folder, a hub name, a Hugging Face model, a pipeline"):
        expound.load(given)


def test_an_image_as_an_array_is_the_image():
    model = expound.load(families.tiny("vit", "ImageClassification"), families.processor("vit"))
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    expected = expound.attribute(model, Image.fromarray(pixels), "saliency")[0].scores
    for given in (pixels, [pixels], pixels[None]):
        (found,) = expound.attribute(model, given, "saliency")
        np.testing.assert_array_equal(found.scores, expected)


def test_an_array_that_is_no_image_is_not_printed(pair):
    with pytest.raises(ExpoundError, match=r"array of float64, \(4, 4, 3\)") as error:
        expound.attribute(expound.load(*pair), np.zeros((4, 4, 3)), "saliency")
    assert "0." not in str(error.value)


def test_a_list_of_methods_gives_a_result_for_each(pair, scores):
    model = expound.load(*pair)
    found = expound.attribute(model, ["a film", "dull"], ["saliency", expound.explainer("random", seed=3)])
    assert {name: [item.method for item in items] for name, items in found.items()} == {
        "saliency": ["saliency"] * 2,
        "random": ["random"] * 2,
    }
    np.testing.assert_allclose(found["saliency"][0].scores, scores, rtol=1e-4)
    assert found["random"][0].params == {"seed": 3}
    for given, message in (([], "no method was given"), (["random", "random"], "two methods have one name")):
        with pytest.raises(ExpoundError, match=message):
            expound.attribute(model, "a film", given)


def test_a_tuple_is_no_method(pair):
    with pytest.raises(ExpoundError, match=r"one id.*not a tuple"):
        expound.attribute(expound.load(*pair), "a film", ("saliency", "random"))


class OddActivation(torch.nn.Module):
    def forward(self, x):
        return x - x.logsumexp(-1, keepdim=True)


def test_the_best_explains_where_no_method_is_named(pair):
    assert expound.attribute(expound.load(*pair), "a film")[0].method == "decompx_linear"
    config = hf.MPNetConfig(vocab_size=300, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, num_labels=2)
    raw = hf.MPNetForSequenceClassification(config).eval()
    other = expound.load(raw, families.tokenizer("bert"))
    assert expound.attribute(other, "a film")[0].method == "decompx_linear"
    # No rule is known for this function of a whole vector, whether the model is to be checked or not.
    raw.mpnet.encoder.layer[0].intermediate.intermediate_act_fn = OddActivation()
    for checked in (other, other.without_checks()):
        assert expound.attribute(checked, "a film")[0].method == "integrated_gradients"


def test_costs_may_be_asked_for_by_name(pair):
    found = expound.compare(expound.load(*pair), ["a film"], ["random"], ["sufficiency", "seconds", "peak_memory"])
    assert [card.name for card in found.cards] == ["sufficiency", "seconds", "peak_memory"]
    assert [card.name for card in expound.compare(expound.load(*pair), ["a film"], ["random"], ["seconds"]).cards] == [
        "seconds",
        "peak_memory",
    ]


def test_a_tracker_that_is_not_installed_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.integrations.get_available_reporting_integrations", lambda: ["clearml"])
    options = RunOptions(arguments={"report_to": "wandb"})
    with pytest.raises(ExpoundError, match="report_to=wandb: expected one of none, all, clearml"):
        make_training_arguments(
            options, DEFAULT_ARGUMENTS | {"metric_for_best_model": "loss"}, tmp_path, {"loss": False}
        )


def test_models_that_would_be_read_in_another_way_say_what_they_are(tmp_path):
    class OwnBertForSequenceClassification(hf.BertForSequenceClassification):
        pass

    plain, tokenizer = families.tiny("bert"), families.processor("bert")
    model = OwnBertForSequenceClassification(plain.config).eval()
    tokenizer.save_pretrained(tmp_path)
    model.save_pretrained(tmp_path)
    with pytest.raises(ExpoundError, match="a class that transformers does not have: load the model by your own"):
        expound.load(tmp_path)
    assert expound.load((model, tokenizer)).task.name == "classification"
    tapas = hf.TapasForQuestionAnswering(hf.TapasConfig(**families.SIZE))
    with pytest.raises(ExpoundError, match="does not answer by a span of a text"):
        expound.load((tapas, tokenizer))
    pipe = hf.pipeline("text-classification", model=plain, tokenizer=tokenizer, function_to_apply="sigmoid")
    found = expound.attribute(expound.load(pipe), "a film", "saliency")[0].prediction.probability
    assert found == pytest.approx(pipe("a film")[0]["score"], rel=1e-5)
    pipe = hf.pipeline("text-classification", model=plain, tokenizer=tokenizer, function_to_apply="none")
    with pytest.raises(ExpoundError, match="function_to_apply='none' gives no probabilities"):
        expound.load(pipe)
