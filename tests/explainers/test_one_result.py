"""Explanations of every task are one table: the same notebook code reads, draws, sums, saves and compares them."""

import json
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import torch

import expound
from chats import CHAT, chatting
from expound import Explanations, ExpoundError
from models.test_encoder_decoder import ROW
from models.test_token_heads import ROWS, loaded
from small import PAIRS, shared, uneven
from two_sided import two_sided

TEXT = "a moving film about a small town"
TASKS = {
    "classifier": lambda: (shared("bert"), TEXT, {}),
    "pair": lambda: (shared("bert"), PAIRS[1], {}),
    "question answering": lambda: (shared("bert", "QuestionAnswering"), PAIRS[0], {}),
    "tags": lambda: (loaded("bert", "TokenClassification"), ROWS[:1], {}),
    "image": lambda: (shared("vit"), uneven("vit", 1), {}),
    "chat": lambda: (chatting(), [CHAT], {"target": "words", "unit": "word"}),
    "encoder-decoder": lambda: (two_sided("t5"), [ROW], {"target": "words", "unit": "sentence"}),
}


@pytest.fixture(params=TASKS.values(), ids=TASKS)
def task(request):
    return request.param()


def test_the_same_lines_work_for_every_task(task, tmp_path):
    model, examples, options = task
    result = expound.attribute(model, examples, "input_x_gradient", **options)
    item = result[0]
    table = item.to_pandas()
    best = item.top(3)
    figure = item.plot()
    page = result.to_html(tmp_path / "page.html")
    loaded = Explanations.load(result.save(tmp_path / "saved"))
    other = expound.attribute(model, examples, "occlusion", **options)[0]
    both = item.compare_to(other)

    assert table.shape == item.scores.shape == (len(item.targets), len(item.units))
    assert list(table.columns) == [unit.text for unit in item.units]
    assert best[0][1] == item.scores.sum(0).max()
    assert loaded == result
    assert "<html" in page
    assert figure.axes
    assert list(both.columns) == ["target", "unit", "input_x_gradient", "occlusion", "difference"]
    assert both["occlusion"].abs().max() == pytest.approx(1)
    long = item.to_pandas(long=True)
    np.testing.assert_array_equal(long["score"].to_numpy(np.float32), item.scores.ravel())
    for unit, text in zip(item.units, long["unit"], strict=False):
        assert unit.text == text
        if unit.segment >= 0 and item.unit != "source":
            assert item.texts[unit.segment][unit.start : unit.end] == unit.text
    assert expound.Explanation.from_row(json.loads(result.to_json())[0]).scores.tobytes() == item.scores.tobytes()
    assert len(repr(item)) < 250
    assert item.to_latex().count(r"\\") >= len(item.targets)
    assert pd.concat([frame.to_pandas() for frame in (result, loaded)])["score"].notna().all()


@pytest.mark.parametrize("unit", ["sentence", "paragraph", "source"])
def test_sums_over_larger_units_are_what_explaining_them_gives(unit):
    text = ("a moving film. the plot is dull\n\nbut nobody laughs.", "in the rain. two women.")
    words, units = (
        expound.attribute(shared("bert"), text, "input_x_gradient", unit=each)[0] for each in ("word", unit)
    )
    summed = words.aggregate(unit)
    assert summed == units
    assert summed.unit == unit
    np.testing.assert_allclose(summed.scores.sum(), words.scores.sum(), rtol=1e-5)
    fine, coarse = (
        expound.attribute(chatting(), [CHAT], "input_x_gradient", "words", unit=each)[0] for each in ("token", unit)
    )
    found = fine.aggregate(unit)
    assert found.unit_texts == coarse.unit_texts
    np.testing.assert_allclose(found.scores, coarse.scores, rtol=1e-4, atol=1e-6)


def test_targets_are_summed_into_sentences_and_the_response():
    model = chatting()
    words, sentences = (
        expound.attribute(model, [CHAT], "input_x_gradient", each, unit="source")[0] for each in ("words", "sentences")
    )
    summed = words.aggregate(target="sentences")
    assert summed.target_texts == sentences.target_texts
    np.testing.assert_allclose(summed.scores, sentences.scores, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        [target.log_prob for target in summed.targets], [target.log_prob for target in sentences.targets], rtol=1e-6
    )
    whole = words.aggregate(target="response")
    assert whole.target_texts == (CHAT["response"].strip(),)
    np.testing.assert_allclose(whole.scores[0], words.scores.sum(0), rtol=1e-6)


def test_tokens_are_what_words_were_summed_from():
    item = expound.attribute(shared("roberta"), TEXT, "input_x_gradient")[0]
    tokens = item.aggregate("token")
    np.testing.assert_array_equal(tokens.scores[0], item.content_scores)
    np.testing.assert_allclose(tokens.aggregate("word").scores, item.scores, rtol=1e-6)


def test_what_cannot_be_summed_is_refused():
    item = expound.attribute(shared("bert"), TEXT, "random", unit="sentence")[0]
    with pytest.raises(ExpoundError, match="choose a larger unit"):
        item.aggregate("word")
    with pytest.raises(ExpoundError, match="unknown aggregation"):
        item.aggregate(target="sentences")
    with pytest.raises(ExpoundError, match="only a response has citations"):
        item.citations()
    picture = expound.attribute(shared("vit"), uneven("vit", 1), "random")[0]
    with pytest.raises(ExpoundError, match="cannot be summed by word"):
        picture.aggregate("word")
    with pytest.raises(ExpoundError, match="same units and targets"):
        item.compare_to(picture)


def test_a_waterfall_ends_at_the_models_output():
    model = shared("bert")
    item = expound.attribute(model, TEXT * 4, "decompx_linear")[0]
    logit = float(model(model.encode([TEXT * 4])).logits[0, item.target.value].detach())
    assert item.target.output == pytest.approx(logit)
    (axes, *_) = item.plot("waterfall").axes
    bars = axes.patches
    assert bars[-1].get_x() + bars[-1].get_width() == pytest.approx(logit, abs=1e-6)
    assert sum(bar.get_width() for bar in bars) == pytest.approx(float(item.scores.sum()), rel=1e-5)
    for before, after in pairwise(bars):
        assert before.get_x() + before.get_width() == pytest.approx(after.get_x())
    with pytest.raises(ExpoundError, match="no such sum"):
        expound.attribute(model, TEXT, "attention_last")[0].plot("waterfall")
    with pytest.raises(ExpoundError, match="Valid choices: bars, heatmap, waterfall"):
        item.plot("pie")


def test_a_repeated_sentence_is_explained_once_with_a_note():
    model = chatting()
    row = CHAT | {"response": " the town . Two women laugh. Two women laugh. Two women laugh."}
    item = expound.attribute(model, [row], "random", "sentences", unit="source")[0]
    assert item.target_texts == ("the town .", "Two women laugh.")
    whole = expound.attribute(model, [row], "random", "response", unit="source")[0]
    assert item.metadata["response_log_prob"] == pytest.approx(whole.target.log_prob)
    assert item.notes == ["2 repeated sentences are explained where they come first"]
    assert "2 repeated sentences" in item.to_html()
    assert len(expound.attribute(model, [row], "random", "words", unit="source")[0].targets) == 12


def test_a_long_answer_shows_its_mean_probability():
    item = expound.attribute(chatting(dtype=torch.float32), [CHAT], "random", "response", unit="source")[0]
    (target,) = item.targets
    tokens = len(item.exchange.tokens)
    assert target.probability < 1e-30
    assert target.mean_probability == pytest.approx(np.exp(target.log_prob / tokens))
    from expound.reports.terminal import render_explanation

    assert f"({target.mean_probability:.2g} per token)" in render_explanation(item, plain=True).plain
