"""Scores of a response's own tokens beside those of its prompt, from decoders and from encoders with decoders."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import expound
from chats import CHAT, chatting
from expound import Explanations, ExpoundError
from expound.explainers import EXPLAINERS
from expound.explainers.base import resolve_unit
from expound.explainers.plan import TOKEN_FAMILIES, plan_work
from expound.reports.highlighted.highlight import highlight_explanation
from expound.reports.terminal import render_explanation
from two_sided import two_sided

SPANS = [(0, 1), (1, 4), (0, 6)]
SCORING = [name for name, kind in EXPLAINERS.items() if kind.card.family in TOKEN_FAMILIES]
SCORING.remove("decompx_classifier")  # has no use of a language model
MOVING = ("integrated_gradients", "smooth_grad", "gradient_shap", "deep_lift")
"""What they begin with, or add, is at the response, too."""
ASKED = {"prompt": "a moving film about a small town", "response": " it is simply long , and dull"}


@pytest.fixture(scope="module")
def model():
    return chatting()


def explain(model, example, method="input_x_gradient", spans=SPANS, **params):
    return expound.attribute(model, [example], method, list(spans), unit="token", attribute_target=True, **params)[0]


@torch.enable_grad()
def products(model, table, ids, response, spans):
    """Embedding · gradient of log p of each span at each response token [T, R], by autograd through the whole model.

    `table`: the module whose last call of a pass embeds the response.
    """
    found, embedded = [], []
    for start, end in spans:
        handle = table.register_forward_hook(lambda _, __, out: embedded.append(out) or out)
        try:
            logits = model(**ids).logits[0, -len(response) - 1 : -1].log_softmax(-1)
        finally:
            handle.remove()
        score = logits.gather(1, response[:, None])[start:end].sum()
        (slope,) = torch.autograd.grad(score, embedded[-1])
        found.append((embedded[-1] * slope).sum(-1)[0, -len(response) :].detach().numpy())
    return np.stack(found)


def mask_unread(scores, spans):
    """The scores, with NaN for tokens that a span does not read."""
    return np.where([[token < end - 1 for token in range(scores.shape[1])] for _, end in spans], scores, np.nan)


def test_a_decoders_own_tokens_have_their_embedding_times_gradient():
    model = chatting()
    item = explain(model, CHAT)
    ids = model.tokenizer(item.exchange.prompt + item.response, add_special_tokens=False, return_tensors="pt")[
        "input_ids"
    ]
    table = model.model.get_input_embeddings()
    expected = products(model.model, table, {"input_ids": ids}, ids[0, -len(item.exchange.tokens) :], SPANS)
    np.testing.assert_allclose(item.response_scores, mask_unread(expected, SPANS), rtol=1e-5, atol=1e-8)
    without = expound.attribute(model, [CHAT], "input_x_gradient", SPANS, unit="token")[0]
    np.testing.assert_allclose(item.scores, without.scores, rtol=1e-5, atol=1e-8)
    assert without.response_scores is None


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_what_a_decoder_read_beside_its_encoder(family):
    model = two_sided(family)
    item = explain(model, ASKED)
    batch = model.encode([ASKED])
    response = batch.inputs["input_ids"][0, batch.response[0]]
    source = batch.inputs["input_ids"][:, ~batch.decoder_mask[0]]
    start = torch.tensor([model.decoder_start_ids])
    ids = {"input_ids": source, "decoder_input_ids": torch.cat([start, response[None]], 1)}
    whole = model.model.inner
    expected = products(whole, whole.get_decoder().embed_tokens, ids, response, SPANS)
    np.testing.assert_allclose(item.response_scores, mask_unread(expected, SPANS), rtol=1e-5, atol=1e-8)
    assert np.abs(np.nan_to_num(item.response_scores)).max() > 1e-6


@pytest.mark.parametrize("method", SCORING)
def test_every_method_that_scores_tokens_scores_those_that_are_read(model, method):
    item, without = explain(model, CHAT, method), expound.attribute(model, [CHAT], method, SPANS, unit="token")[0]
    assert (np.isfinite(item.response_scores) == np.isfinite(mask_unread(item.response_scores * 0 + 1, SPANS))).all()
    assert np.isnan(item.response_scores[0]).all()
    assert np.nansum(np.abs(item.response_scores[1:]), axis=1).min() > 0
    if method not in MOVING:
        np.testing.assert_allclose(item.scores, without.scores, rtol=1e-5, atol=1e-7)


@torch.no_grad()
def test_attention_to_the_response_equals_the_models_attention():
    model = chatting()
    item = explain(model, CHAT, "attention_last", [(3, 4)])
    prompt, whole = (
        model.tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
        for text in (item.exchange.prompt, item.exchange.prompt + item.response)
    )
    model.model.set_attn_implementation("eager")
    maps = model.model(whole, output_attentions=True).attentions[-1][0].mean(0)
    expected = maps[prompt.shape[1] + 2, prompt.shape[1] :][:3]  # where the fourth token is foretold
    np.testing.assert_allclose(item.response_scores[0, :3], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("method", "params", "rtol"), [("integrated_gradients", {"n_steps": 200}, 2e-3), ("deep_lift", {}, 1e-4)]
)
@torch.no_grad()
def test_changes_from_a_baseline_are_complete_over_both_sides(method, params, rtol):
    model = chatting()
    item = explain(model, CHAT, method, [(0, 6)], **params)
    batch = model.encode([CHAT])
    wide = replace(batch, content=batch.content | batch.response)
    ends = [model(wide, at).logits[0, :6, 0].sum() for at in (model.embed(wide), model.embed_reference(wide))]
    total = item.scores.sum() + np.nansum(item.response_scores)
    np.testing.assert_allclose(total, float(ends[0] - ends[1]), rtol=rtol)


def test_prefix_scores_are_shown_and_saved(tmp_path):
    item = explain(chatting(), CHAT, spans=[(0, 3), (3, 9)])
    kept = Explanations([item])
    kept.save(tmp_path / "kept")
    assert Explanations.load(tmp_path / "kept") == kept
    frame = item.to_pandas("response")
    assert list(frame.columns) == list(item.exchange.tokens)
    np.testing.assert_array_equal(frame.to_numpy(), item.response_scores)
    own = highlight_explanation(item).own
    assert own[0] == [0, 0]
    assert own[2][0] != 0
    assert own[1][1] == 0, "a span reads nothing behind it"
    shades = re.search(r'data-own="([^"]*)"', kept.to_html(tmp_path / "page.html"))[1]
    assert json.loads(shades) == own
    assert (
        f"the response so far {np.nansum(item.response_scores[1]):+.3g}" in render_explanation(item, plain=True).plain
    )
    bare = expound.attribute(chatting(), [CHAT], "input_x_gradient", [(0, 3)], unit="token")[0]
    assert highlight_explanation(bare).own == []
    with pytest.raises(ExpoundError, match="explain with attribute_target"):
        bare.to_pandas("response")


def test_methods_without_token_scores_refuse():
    model = chatting()
    for method in ("occlusion", "lime", "random"):
        with pytest.raises(ExpoundError, match="no scores to a response's own tokens: choose one of attention"):
            explain(model, CHAT, method)
    with pytest.raises(ExpoundError, match="a foil begins otherwise"):
        explain(model, CHAT | {"foil": "Never."})
    with pytest.raises(ExpoundError, match="task='generation'"):
        expound.attribute(make_classifier(), "a film", "saliency", attribute_target=True)


def test_plan_counts_prefix_scores():
    model = chatting()
    chosen, unit = resolve_unit(model, "input_x_gradient", "source", {})
    ways = [plan_work(model, CHAT, chosen, "tokens", unit, 8, attribute_target=own).way for own in (False, True)]
    assert ways[0] == "derivatives forward from the units"
    assert ways[1].startswith("back from")
    with pytest.raises(ExpoundError, match="no scores to a response's own tokens"):
        plan_work(model, CHAT, "occlusion", "tokens", unit, 8, attribute_target=True)


def make_classifier():
    """A model that classifies."""
    import families
    from expound.models import ExplainedModel

    return ExplainedModel(families.tiny("bert", "SequenceClassification"), families.tokenizer("bert"))
