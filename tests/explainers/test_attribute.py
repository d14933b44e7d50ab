"""attribute(): texts in any order and number, targets of every kind, words, and clear errors."""

import logging
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Value
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import expound
from expound import ExpoundError, attribute, explainer
from expound.data.cards import MethodCard
from expound.explainers import Explainer, SinglePass
from expound.models.encoding.encode import TOKENS_PER_BATCH_ON_CPU, make_batches
from small import PAIRS, shared, small, uneven

TEXTS = [
    "someone's old camera works better than this brand new one !",
    "small",
    "a moving film about a small town and its river",
    "two women are holding packages in the rain",
    "dull , but nobody laughs",
]


def scores(result):
    return [item.scores.tolist() for item in result]


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2"])
@pytest.mark.parametrize("method", ["input_x_gradient", "occlusion", "attention_rollout", "random"])
def test_order_and_batch_size_change_nothing(family, method):
    model = shared(family)
    usual = attribute(model, TEXTS, method)
    for size in (1, 2, 3):
        again = attribute(model, TEXTS[::-1], method, batch_size=size)[::-1]
        for one, other, text in zip(usual, again, TEXTS, strict=True):
            assert one.texts == other.texts == (text,)
            assert one.tokens == other.tokens
            np.testing.assert_allclose(one.scores, other.scores, rtol=1e-5, atol=1e-9)
    assert [item.index for item in usual] == [0, 1, 2, 3, 4]


def test_attribution_holds_tokens_words_and_prediction():
    model = shared("bert")
    result = attribute(model, TEXTS, "integrated_gradients", n_steps=4, baselines="zero")
    for item in result:
        batch = model.encode(item.texts)
        probabilities = model.probabilities(batch)[0]
        assert item.target.value == item.prediction.value == int(probabilities.argmax())
        assert item.target.text == item.prediction.text == model.labels[item.target.value]
        assert item.target.probability == pytest.approx(float(probabilities.max()))
        assert item.params == explainer("integrated_gradients?n_steps=4&baselines=zero").params
        assert (item.params["n_steps"], item.params["baselines"]) == (4, "zero")
        explained = explainer("integrated_gradients?n_steps=4&baselines=zero").explain(model, batch)
        assert item.convergence_delta == pytest.approx(float(explained.convergence_delta.detach()), abs=1e-12)
        assert item.special == tuple((~batch.content[0]).tolist())
        assert len(item.units) == len(item.scores[0]) == len(item.texts[0].split())
        for word, side, start, end in item.units:
            assert item.texts[side][start:end] == word
        assert sum(item.scores[0]) == pytest.approx(sum(item.token_scores[0]), abs=1e-6)
    assert result.config["method"] == "integrated_gradients"


def test_texts_pairs_rows_and_datasets_are_accepted():
    model = shared("bert")
    single = scores(attribute(model, "small town", "input_x_gradient"))
    rows = {"text": "small town"}
    dataset = Dataset.from_list([rows])
    for form in (["small town"], rows, [rows], dataset, iter(["small town"]), np.array(["small town"])):
        assert scores(attribute(model, form, "input_x_gradient")) == single
    pair = scores(attribute(model, ("small", "town"), "input_x_gradient"))
    for form in ([("small", "town")], {"text": "small", "text_pair": "town"}, [["small", "town"]]):
        assert scores(attribute(model, form, "input_x_gradient")) == pair
    assert pair != single


def test_pairs_of_mixed_length():
    model = shared("roberta")
    result = attribute(model, PAIRS, "saliency")
    for item, pair in zip(result, PAIRS, strict=True):
        assert item.texts == pair
        assert [item.texts[side][start:end] for _, side, start, end in item.units] == " ".join(pair).split()
        alone = attribute(model, [pair], "saliency")[0]
        np.testing.assert_allclose(item.scores, alone.scores, rtol=1e-5)
        assert (np.abs(item.scores[0]) > 0).all()


def test_target_by_index_name_label_or_list():
    features = Features({"text": Value("string"), "label": ClassLabel(names=["LABEL_0", "LABEL_1", "LABEL_2"])})
    labeled = Dataset.from_dict({"text": TEXTS, "label": [2, 0, 1, 1, 0]}, features=features)
    model = shared("bert")
    ones = scores(attribute(model, TEXTS, "input_x_gradient", 1))
    for target in (
        "LABEL_1",
        "label_1",
        [1] * 5,
        ["LABEL_1"] * 5,
        torch.ones(5, dtype=torch.long),
        torch.tensor(1),
        np.int64(1),
    ):
        assert scores(attribute(model, TEXTS, "input_x_gradient", target)) == ones
    mixed = attribute(model, labeled, "input_x_gradient", "label")
    assert [item.target.value for item in mixed] == [2, 0, 1, 1, 0]
    named = [{"text": text, "label": f"LABEL_{label}"} for text, label in zip(TEXTS, [2, 0, 1, 1, 0], strict=True)]
    for again in (
        attribute(model, TEXTS, "input_x_gradient", [2, "LABEL_0", 1, 1, 0]),
        attribute(model, named, "input_x_gradient", "label"),
    ):
        assert scores(again) == scores(mixed)
    predicted = model.predict(model.encode(TEXTS)).tolist()
    assert [item.target.value for item in attribute(model, TEXTS, "input_x_gradient")] == predicted
    assert scores(attribute(model, TEXTS, "input_x_gradient", None)) == scores(
        attribute(model, TEXTS, "input_x_gradient")
    )


def test_invalid_targets_are_refused():
    cases = [3, -1, "positive", [0, 1], [0, 1, 2, 0, 9], 1.5, {"a": 1}, torch.tensor([0.5] * 5), "label"]
    for target in cases:
        with pytest.raises(ExpoundError):
            attribute(shared("bert"), TEXTS, "input_x_gradient", target)


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2"])
def test_spans_are_counted_in_the_example_and_named_by_their_text(family):
    model = shared(family, "QuestionAnswering")
    together = attribute(model, PAIRS, "input_x_gradient")
    for item, pair in zip(together, PAIRS, strict=True):
        batch = model.encode([pair])
        assert item.target.value == item.prediction.value == tuple(model.predict(batch)[0].tolist())
        (alone,) = attribute(model, [pair], "input_x_gradient")
        assert alone.target[:2] == item.target[:2]
        np.testing.assert_allclose(item.scores, alone.scores, rtol=1e-4, atol=1e-7)
        start, end = (model.probabilities(batch)[0, side, item.target.value[side]] for side in (0, 1))
        assert item.target.probability == pytest.approx(float(start * end))
    answers = [item.target.value for item in together]
    again = attribute(model, PAIRS, "input_x_gradient", answers)
    assert [item.target.value for item in again] == answers
    assert scores(again) == scores(together)
    inside = len(together[0].tokens) - 3
    item = attribute(model, PAIRS[:1], "input_x_gradient", (inside, inside))[0]
    assert item.target.text in PAIRS[0][1]
    with pytest.raises(ExpoundError, match="expected targets"):
        attribute(model, PAIRS[:1], "input_x_gradient", (inside, 500))


def test_the_span_that_is_shown_is_the_span_that_is_explained():
    model = small("bert", "QuestionAnswering", seed=3)
    with torch.no_grad():
        model.model.qa_outputs.weight.mul_(20)
    for start in range(0, 30, 3):
        context = " ".join((" ".join(TEXTS)).split()[start : start + 12])
        (item,) = attribute(model, [("who laughs", context)], "random")
        assert item.prediction[:3] == item.target[:3]


def test_question_answering_rows_are_explained_at_their_answer():
    model = shared("bert", "QuestionAnswering")
    context = PAIRS[0][1]
    start = context.index("small town")
    row = {"text": PAIRS[0][0], "text_pair": context, "answer": [[start, start + len("small town")]]}
    (item,) = attribute(model, [row], "input_x_gradient", "label")
    assert item.target.text == "small town"
    (item,) = attribute(model, [row | {"answer": []}], "input_x_gradient", "label")
    assert item.target[:2] == ("no answer", (0, 0))


def test_regression_explains_its_value():
    model = small("bert", num_labels=1)
    result = attribute(model, TEXTS, "input_x_gradient")
    values = model.probabilities(model.encode(TEXTS))[:, 0]
    assert [item.target.value for item in result] == [0] * 5
    np.testing.assert_allclose([item.prediction.value for item in result], values, rtol=1e-6)
    labeled = [{"text": text, "label": 0.5} for text in TEXTS]
    assert scores(attribute(model, labeled, "input_x_gradient", "label")) == scores(result)


def test_images_have_scores_of_patches():
    model = shared("vit")
    pictures = uneven("vit")
    result = attribute(model, pictures, "input_x_gradient", batch_size=3)
    assert [item.index for item in result] == [0, 1, 2, 3]
    for item, picture in zip(result, pictures, strict=True):
        assert item.image_shape == (4, 4)
        assert [token.text for token in item.tokens[:2]] == ["class", "patch 0"]
        assert item.special == (True, *[False] * 16)
        (alone,) = attribute(model, {"image": picture, "label": None}, "input_x_gradient")
        np.testing.assert_allclose(alone.scores, item.scores, rtol=1e-5)


TEXT = st.text(max_size=40) | st.text(alphabet="aé 日本\n\t\u00a0\u200b'’😀ก[SEP]", max_size=30)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(TEXT, min_size=1, max_size=3), st.sampled_from(["bert", "roberta", "gpt2"]), st.booleans())
def test_any_text_is_explained_or_refused_with_a_clear_error(texts, family, paired):
    model = shared(family)
    examples = [(text, texts[0]) for text in texts] if paired else texts
    try:
        result = attribute(model, examples, "input_x_gradient")
    except ExpoundError as caught:
        error = str(caught)
    else:
        error = ""
    if error:
        assert "empty" in error or "nothing to explain" in error
        return
    for item, text in zip(result, texts, strict=True):
        assert item.texts[0] == text
        assert np.isfinite(item.scores).all()
        assert (item.token_scores[0][np.array(item.special)] == 0).all()
        assert all(item.texts[side][start:end] == word for word, side, start, end in item.units)


def test_invalid_examples_are_refused():
    cases = [
        ([], "no example"),
        ("", "empty text"),
        (["fine", " \n"], "empty text"),
        ([("", " ")], "empty text"),
        ("[SEP] [SEP]", "nothing to explain"),
        ("\u200b", "nothing to explain"),
        ([{"words": "small"}], "unknown key of a row 'words'. Did you mean 'text'"),
        ([{"text": None}], "no text"),
        ([{"text": 5}], "no text"),
        ([{"text": "small", "text_pair": 5}], "text_pair"),
        ([1], "an example is"),
        (None, "expected an example"),
        (7, "expected an example"),
        (("a", "b", "c"), "an example is"),
        (["small", ("small", "town")], "not both"),
        ("small \ud800 town", "cannot be cut"),
    ]
    for examples, message in cases:
        with pytest.raises(ExpoundError, match=message):
            attribute(shared("bert"), examples, "random")


@dataclass(frozen=True)
class Short(Explainer):
    """Forgets the last position."""

    card = MethodCard(name="short", family="control", cost="0")

    def scores(self, model, batch, target):
        return batch.content[:, :-1].float()


@dataclass(frozen=True)
class ShortPass(SinglePass):
    """Gives a score for every hidden dimension."""

    card = MethodCard(name="short_pass", family="control", cost="F")

    def scores_from_outputs(self, model, batch, outputs, target, gradients):
        return model.embed(batch)


def test_scores_of_another_shape_are_refused_by_name():
    model = shared("bert")
    batch = model.encode(["a moving film"])
    rows, length = batch.content.shape
    expected = rf"expected \[{rows}, {length}\]"
    for explain in (lambda: Short().attribute(model, batch), lambda: attribute(model, "a moving film", Short())):
        with pytest.raises(ExpoundError, match=rf"short.scores returned \[{rows}, {length - 1}\], {expected}"):
            explain()
    with pytest.raises(ExpoundError, match=r"short\.scores returned"):
        Short().attribute_each(model, batch, model.resolve_target(batch)[None])
    with pytest.raises(
        ExpoundError, match=rf"short_pass.scores_from_outputs returned \[{rows}, {length}, \d+\], {expected}"
    ):
        ShortPass().attribute(model, batch)


def test_errors_suggest_the_nearest_name():
    model = shared("bert")
    with pytest.raises(ExpoundError, match="Did you mean 'saliency'"):
        attribute(model, "small", "salience")
    with pytest.raises(ExpoundError, match="Did you mean 'n_steps'"):
        attribute(model, "small", "integrated_gradients", n_step=3)
    for size in (0, -1):
        with pytest.raises(ExpoundError, match="batch_size"):
            attribute(model, TEXTS, "random", batch_size=size)
    broken = small("bert")
    with torch.no_grad():
        broken.embedding.weight.fill_(torch.nan)
    for method in ("random", "saliency", "occlusion"):
        for target in ("predicted", 0):
            with pytest.raises(ExpoundError, match="NaN"):
                attribute(broken, "small", method, target)
    questions = shared("bert", "QuestionAnswering")
    with pytest.raises(ExpoundError, match="text_pair"):
        attribute(questions, "small town", "random")
    with pytest.raises(ExpoundError, match="at most 130 tokens"):
        attribute(questions, ("small town " * 100, "river"), "random")
    bare = expound.load(small("bert").model)
    with pytest.raises(ExpoundError, match="without a tokenizer"):
        attribute(bare, "small", "random")


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2", "albert"])
def test_too_long_texts_are_cut_with_a_warning(family, caplog):
    model = shared(family)
    with caplog.at_level(logging.WARNING):
        result = attribute(model, ["small town " * 120, "small"], "input_x_gradient", batch_size=2)
    assert "1 of 2 texts are longer than" in caplog.text
    assert result[0].truncated
    assert not result[1].truncated
    assert len(result[0].tokens) == model.max_length
    assert model.max_length == (128 if family == "roberta" else 130)
    assert 0 < len(result[0].units) < 240
    caplog.clear()
    attribute(model, ["small town"], "random")
    assert not caplog.text


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 3000), min_size=1, max_size=60), st.none() | st.integers(1, 7))
def test_batches_contain_every_example_once_within_the_budget(lengths, size):
    model = shared("bert")
    parts = list(make_batches(model, ["x" * length for length in lengths], size))
    order = [index for part in parts for index in part]
    assert sorted(order) == list(range(len(lengths)))
    assert [lengths[index] for index in order] == sorted(lengths)
    for part in parts:
        if size is None:
            tokens = len(part) * min(max(lengths[index] for index in part) // 4 + 2, model.max_length)
            assert len(part) == 1 or tokens <= TOKENS_PER_BATCH_ON_CPU
        else:
            assert len(part) <= size
