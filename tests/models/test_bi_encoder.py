"""The similarity of two texts is that of two passes by hand, also its derivatives, without words, and in parts."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import expound
import families
from expound import ExpoundError
from expound.models.bi_encoder import BiEncoder
from small import make_explainer

PAIRS = [("a moving film about a small town", "the plot is dull, but nobody laughs"), ("a river", "the rain in a town")]
KINDS = [(family, pooling) for family in ("bert", "roberta", "distilbert") for pooling in ("mean", "cls")]


def make_bi_encoder(family="bert", pooling="mean"):
    encoder = families.tiny(family, dtype=torch.float64).base_model
    return BiEncoder(encoder, families.processor(family), pooling)


def vector(model, ids, embeddings=None):
    """Return the vector of one text from the encoder alone."""
    given = {"input_ids": ids} if embeddings is None else {"inputs_embeds": embeddings}
    states = model.model.encoder(**given)[0]
    return states.mean(1) if model.model.pooling == "mean" else states[:, 0]


def ids_of(model, text):
    return model.tokenizer(text, return_tensors="pt")["input_ids"]


@pytest.mark.parametrize(("family", "pooling"), KINDS)
def test_value_derivatives_and_decomposition_are_those_of_two_passes(family, pooling):
    model = make_bi_encoder(family, pooling)
    batch = model.encode(PAIRS)
    values = model.probabilities(batch)[:, 0]
    gradients = expound.explainer("input_x_gradient").explain(model, batch, special_tokens=True).scores
    for row, pair in enumerate(PAIRS):
        embedded = [model.embedding(ids_of(model, text)).detach().requires_grad_() for text in pair]
        value = torch.cosine_similarity(*(vector(model, None, each) for each in embedded))
        torch.testing.assert_close(values[row : row + 1], value.detach())
        slopes = torch.autograd.grad(value.sum(), embedded)
        expected = torch.cat([(slope * each).sum(-1)[0] for slope, each in zip(slopes, embedded, strict=True)])
        torch.testing.assert_close(gradients[row][batch.attended[row]], expected.detach(), rtol=1e-6, atol=1e-10)
    whole = expound.explainer("decompx_linear").explain(model, batch, special_tokens=True)
    torch.testing.assert_close(whole.scores.sum(1) + whole.bias, values, rtol=1e-9, atol=1e-12)
    for side in (0, 1):
        here = batch.inputs["token_type_ids"] == side
        assert (whole.scores * (here & batch.attended)).abs().sum(1).min() > 1e-6


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_every_content_token_belongs_to_a_word_of_its_own_text(family):
    model = make_bi_encoder(family)
    batch = model.encode(PAIRS)
    sides = batch.inputs["token_type_ids"]
    for row, alignment in enumerate(batch.alignments):
        words, content = batch.word_of[row], batch.content[row]
        # All but the two special tokens of each text.
        assert content.sum() == batch.attended[row].sum() - 4
        assert not (words >= 0)[~content].any()
        for place in content.nonzero().flatten().tolist():
            side, start, end = alignment.spans[place]
            assert side == sides[row, place]
            # A token without a word is one of white space.
            assert start == end if words[place] < 0 else alignment.words[words[place]].segment == side
        assert {word for word in words.tolist() if word >= 0} == set(range(len(alignment.words)))


def test_words_are_sums_of_their_tokens_on_both_sides():
    model = make_bi_encoder()
    for pair in (PAIRS[0], PAIRS[0][::-1]):
        item = expound.attribute(model, pair, "input_x_gradient")[0]
        np.testing.assert_allclose(item.scores.sum(), item.content_scores.sum(), rtol=1e-4)
        for side in (0, 1):
            assert all(score for unit, score in zip(item.units, item.scores[0], strict=True) if unit.segment == side)


def test_integrated_gradients_sum_to_the_difference_from_the_reference():
    model = make_bi_encoder()
    batch = model.encode(PAIRS)
    found = expound.explainer("integrated_gradients", n_steps=300).explain(model, batch, special_tokens=True)
    with torch.no_grad(), model.evaluation_mode():
        before = model(batch, embeddings=model.embed_reference(batch, "mask")).logits[:, 0]
    torch.testing.assert_close(found.scores.sum(1), model.probabilities(batch)[:, 0] - before, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("perturbation", ["remove", "mask"])
def test_occlusion_is_two_passes_without_the_word(perturbation):
    model = make_bi_encoder()
    found = expound.attribute(model, PAIRS[:1], "occlusion", perturbation=perturbation)[0]
    batch = model.encode(PAIRS[:1])
    whole, sizes = float(model.probabilities(batch)), [ids_of(model, text).shape[1] for text in PAIRS[0]]
    sides = batch.inputs["input_ids"][0].split(sizes), batch.word_of[0].split(sizes)
    for word, score in enumerate(found.scores[0]):
        each = []
        for ids, word_of in zip(*sides, strict=True):
            left = ids[word_of != word] if perturbation == "remove" else ids.masked_fill(word_of == word, model.mask_id)
            each.append(vector(model, left[None]))
        assert score == pytest.approx(whole - float(torch.cosine_similarity(*each).detach()), rel=1e-5, abs=1e-8)
    assert {unit.segment for unit in found.units} == {0, 1}


@pytest.mark.parametrize("method", ["alti", "attention_rollout", "lime", "saliency", "gim", "attn_lrp"])
def test_other_methods_give_finite_scores(method):
    model = make_bi_encoder()
    batch = model.encode(PAIRS)
    scores = make_explainer(method).attribute(model, batch)
    assert torch.isfinite(scores).all()
    assert scores[batch.content].abs().sum() > 0


def save_sentence_transformer(folder, **pooling):
    """Save a model as sentence-transformers does, and return the folder."""
    families.tiny("bert").base_model.save_pretrained(folder)
    families.tokenizer("bert").save_pretrained(folder)
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    modules = [{"idx": at, "path": path, "type": f"sentence_transformers.models.{kind}"}
               for at, (kind, path) in enumerate(kinds)]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    chosen = {f"pooling_mode_{name}": False for name in ("cls_token", "mean_tokens", "max_tokens")} | pooling
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(chosen | {"word_embedding_dimension": 16}))
    return folder


def test_a_folder_of_sentence_transformers_is_known_by_itself(tmp_path):
    model = expound.load(save_sentence_transformer(tmp_path, pooling_mode_cls_token=True), device="cpu")
    assert isinstance(model, BiEncoder)
    assert model.settings["pooling"] == "cls"
    item = expound.attribute(model, PAIRS[0])[0]
    assert (item.method, item.target.text) == ("decompx_linear", "similarity")
    with torch.no_grad():
        value = torch.cosine_similarity(*(vector(model, ids_of(model, text)) for text in PAIRS[0]))
    np.testing.assert_allclose(item.target.probability, float(value), rtol=1e-5)
    (tmp_path / "modules.json").unlink()
    assert expound.load(tmp_path, device="cpu", task="similarity").settings["pooling"] == "mean"


def test_what_is_not_explained_is_told(tmp_path):
    with pytest.raises(ExpoundError, match="unknown pooling 'pooling_mode_max_tokens'"):
        expound.load(save_sentence_transformer(tmp_path, pooling_mode_max_tokens=True), device="cpu")
    with pytest.raises(ExpoundError, match="similarity is of two texts"):
        make_bi_encoder().encode(["one text"])
    with pytest.raises(ExpoundError, match="for encoders that take a mask"):
        BiEncoder(families.tiny("gpt2").base_model, families.tokenizer("gpt2")).encode([("a film", "a river")])
