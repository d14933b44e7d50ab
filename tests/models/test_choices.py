"""The score of a choice is that of the model with all choices, and so are its derivatives and falls by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from captum.attr import InputXGradient

import expound
import families
from expound import ExpoundError

ROW = {"text": "the plot is dull", "choices": ["but nobody laughs", "in the rain", "a small town and its river"]}


def load_model(family):
    return expound.load((families.tiny(family, "MultipleChoice", dtype=torch.float64), families.processor(family)))


def compute_choice_logits(model, embeddings=None):
    """Return the logits of all choices as the model itself computes them, and its padded inputs."""
    texts = [ROW["text"]] * len(ROW["choices"])
    encoded = model.tokenizer(texts, ROW["choices"], return_tensors="pt", padding=True)
    inputs = {name: value[None] for name, value in encoded.items() if name in model.forward_parameters}
    if embeddings is not None:
        inputs = {name: value for name, value in inputs.items() if name != "input_ids"} | {"inputs_embeds": embeddings}
    return model.model(**inputs).logits[0], inputs


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_scores_and_derivatives_are_the_models_own(family):
    model = load_model(family)
    rows = model.expand_examples([ROW])
    batch = model.encode(rows)
    logits, inputs = compute_choice_logits(model)
    torch.testing.assert_close(model.probabilities(batch)[:, 0], logits.detach())
    embedded = model.embedding(inputs["input_ids"]).detach()
    target = torch.zeros(3, dtype=torch.long)
    ours = expound.explainer("input_x_gradient").attribute(model, batch, target)
    theirs = (
        InputXGradient(lambda given: compute_choice_logits(model, given)[0].sum()[None]).attribute(embedded)[0].sum(-1)
    )
    torch.testing.assert_close(ours, theirs * batch.content, rtol=1e-6, atol=1e-10)
    whole = expound.explainer("decompx_linear").explain(model, batch, special_tokens=True)
    torch.testing.assert_close(whole.scores.sum(1) + whole.bias, logits.detach())
    classified = expound.explainer("decompx_classifier").explain(model, batch, special_tokens=True)
    torch.testing.assert_close(classified.scores.sum(1), logits.detach(), rtol=1e-6, atol=1e-8)


def test_occlusion_is_the_fall_of_the_score_without_the_word():
    model = load_model("bert")
    items = expound.attribute(model, ROW, "occlusion", perturbation="remove")
    assert [item.texts[1] for item in items] == ROW["choices"]
    item, score = (
        items[1],
        lambda text, choice: float(expound.attribute(model, (text, choice), "saliency")[0].target.probability),
    )
    full = score(ROW["text"], ROW["choices"][1])
    assert item.target.probability == pytest.approx(full)
    by_hand = [full - score("plot is dull", "in the rain"), full - score(ROW["text"], "in the")]
    np.testing.assert_allclose([item.scores[0][0], item.scores[0][-1]], by_hand, rtol=1e-5, atol=1e-9)


def test_a_text_without_choices_is_told():
    with pytest.raises(ExpoundError, match="example 0 has no choice"):
        expound.attribute(load_model("bert"), "the plot is dull", "saliency")
