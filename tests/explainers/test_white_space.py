"""Scores of white space: one rule for all tasks and units, and nothing of the output is lost."""

import random

import numpy as np
import pytest
import torch

import expound
import families
from chats import chatting
from expound.data.alignment import find_part_of_tokens, find_sentence_ends
from expound.explainers.base import resolve_unit
from expound.models import ExplainedModel
from expound.reports.explanations import Explanations
from small import NATIVE, make_explainer

PIECES = (
    "film",
    "small",
    "\n",
    "\n\n  ",
    " ",
    "   ",
    "\t",
    "🤗",
    "é",
    "e\u0301",
    "映画",
    "。",
    ". ",
    "น้ำ",
    "\u00a0",
    "!",
    "town",
)
UNITS = ("token", "word", "sentence", "paragraph")


def make_text(seed):
    draw = random.Random(seed)
    return "film" + "".join(draw.choice(PIECES) for _ in range(14)) + "\n small"


def find_complete_methods():
    """Return the methods whose scores sum to the output, up to what they call bias and delta."""
    model = ExplainedModel(families.tiny("gpt2", dtype=torch.float64), families.processor("gpt2"))
    batch = model.encode(["a small film"])
    complete = []
    for name in NATIVE:
        found = make_explainer(name).explain(model, batch)
        if found.bias is not None or found.convergence_delta is not None:
            complete.append(name)
    return complete


@pytest.fixture(scope="module")
def complete_methods():
    found = find_complete_methods()
    assert {"integrated_gradients", "decompx_linear", "deep_lift"} <= set(found)
    return found


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_units_rest_and_bias_sum_to_the_output_of_every_complete_method(family, complete_methods):
    model = ExplainedModel(families.tiny(family, dtype=torch.float64), families.processor(family))
    seen = 0
    for seed in range(2):
        text = make_text(seed)
        batch = model.encode([text])
        for name in complete_methods:
            explained = []
            for unit in UNITS:
                # Some methods remove units, so that each unit is an explanation of its own.
                method = resolve_unit(model, make_explainer(name), unit, {})[0]
                try:
                    # A method that removes no units is the same for all of them.
                    whole = next((found for other, found in explained if other == method), None)
                    if whole is None:
                        whole = method.explain(model, batch, special_tokens=True)
                except expound.ExpoundError:
                    # A method that refuses the family.
                    continue
                explained.append((method, whole))
                output = float(whole.scores.detach().masked_fill(~batch.attended, 0).sum())
                missing = sum(float(part) for part in (whole.bias, whole.convergence_delta) if part is not None)
                item = expound.attribute(model, text, method, unit=unit)[0]
                total = item.scores.sum(1) + item.rest + (item.bias or 0) + (item.convergence_delta or 0)
                assert total == pytest.approx(output + missing, rel=1e-4, abs=1e-5), (name, unit, text)
                seen += 1
            if name == "decompx_linear":
                assert total == pytest.approx(item.target.output, rel=1e-4, abs=1e-5)
    assert seen >= 2 * 4 * 3


def test_a_sentence_has_its_white_space_and_a_word_has_not():
    model = ExplainedModel(families.tiny("gpt2", dtype=torch.float64), families.processor("gpt2"))
    text = "a film\n\n  small town . 🤗\n\n\na river\n"
    word = expound.attribute(model, text, "input_x_gradient", unit="word")[0]
    sentence, token = word.aggregate("sentence"), word.aggregate("token")
    space = [score for score, each in zip(token.scores[0], token.units, strict=True) if each.start == each.end]
    assert len(space) > 3
    assert word.rest[0] == pytest.approx(sum(space), abs=1e-6)
    assert (abs(sentence.rest[0]), abs(token.rest[0])) == pytest.approx((0, 0), abs=1e-6)
    assert sentence.unit_texts == ("a film", "small town .", "🤗", "a river")
    assert expound.attribute(model, text, "input_x_gradient", unit="sentence")[0] == sentence


def test_a_removed_sentence_takes_its_white_space_along():
    model = ExplainedModel(families.tiny("gpt2", dtype=torch.float64), families.processor("gpt2"))
    text = "a film\n\n  small town . 🤗\n\n\na river"
    item = expound.attribute(model, text, "occlusion?perturbation=remove&unit=sentence", unit="sentence")[0]
    batch = model.encode([text])
    number = np.array(find_part_of_tokens(batch.alignments[0], find_sentence_ends))
    assert set(number) == {0, 1, 2, 3}
    whole = model.probabilities(batch)[0, item.target.value]
    for unit, score in enumerate(item.scores[0]):
        keep = torch.tensor(number != unit)[None, None]
        left = model.predict_perturbed(batch, keep, "remove")[0, 0, item.target.value]
        assert score == pytest.approx(float(whole - left), abs=1e-6)
    assert item.rest[0] == pytest.approx(0, abs=1e-6)


def test_generated_text_follows_the_same_rule():
    model = chatting()
    row = {"prompt": "a film\n\n  small town .\n\n\na river", "response": " it is small"}
    for method in ("input_x_gradient", "integrated_gradients?n_steps=4"):
        token = expound.attribute(model, [row], method, "response", unit="token")[0]
        for unit in ("word", "sentence"):
            item = expound.attribute(model, [row], method, "response", unit=unit)[0]
            assert item.scores.sum() + item.rest[0] == pytest.approx(token.scores.sum(), rel=1e-4, abs=1e-5)
        assert abs(item.rest[0]) < 1e-6


def test_rest_and_bias_are_stored(tmp_path):
    model = ExplainedModel(families.tiny("bert"), families.processor("bert"))
    items = expound.attribute(model, ["a small film"], "decompx_linear")
    items.save(tmp_path / "kept")
    (again,) = Explanations.load(tmp_path / "kept")
    assert again == items[0]
    assert again.bias
    assert again.rest[0]
