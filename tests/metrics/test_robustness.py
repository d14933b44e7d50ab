"""Similarity of explanations over models, and how much they move with the input."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch

import expound
import families
from expound import ExpoundError
from expound.data.swaps import apply_swaps, find_swaps
from expound.metrics.agreement import jaccard
from expound.metrics.robustness import jaccard_matrix, model_consistency
from expound.metrics.sensitivity import input_consistency, max_sensitivity
from expound.models import ExplainedModel
from small import FEW, NATIVE, make_explainer

TEXTS = families.SENTENCES[:4]


def bert(seed=0, **changes):
    return ExplainedModel(families.tiny("bert", seed=seed, **changes), families.tokenizer("bert"))


shared_bert = functools.cache(bert)


def test_jaccard_of_the_top_by_hand():
    cases = [
        ([4, 3, 2, 1], [4, 3, 2, 1], 0.25, 1.0),
        ([4, 3, 2, 1], [1, 2, 3, 4], 0.25, 0.0),
        ([4, 3, 2, 1], [3, 4, 2, 1], 0.25, 0.0),
        ([4, 3, 2, 1], [3, 4, 2, 1], 0.5, 1.0),
        ([5, 4, 3, 2, 1], [5, 1, 4, 2, 3], 0.25, 1 / 3),
        ([9, 8, 7, 0, 0, 0, 0, 0, 0], [0, 8, 7, 9, 0, 0, 0, 0, 0], 0.25, 0.5),
        ([-9, 1, 0], [9, 1, 0], 0.25, 0.0),
        ([0, 0, 0, 0], [0, 0, 0, 0], 0.25, 1.0),
        ([7], [-7], 0.25, 1.0),
    ]
    for one, other, fraction, expected in cases:
        assert jaccard(one, other, fraction) == pytest.approx(expected)
        assert jaccard(other, one, fraction) == pytest.approx(expected)


def test_jaccard_of_empty_lists_is_nan_and_other_lengths_are_errors():
    assert np.isnan(jaccard([], []))
    with pytest.raises(ExpoundError, match="same positions"):
        jaccard([1, 2], [1, 2, 3])
    with pytest.raises(ExpoundError, match="fractions"):
        jaccard([1], [1], 0.0)


def test_the_matrix_compares_every_pair_of_models_on_every_text():
    models = {f"init {seed}": bert(seed) for seed in range(3)}
    similarity = model_consistency(models, TEXTS, "input_x_gradient", target=1)
    assert similarity.values.shape == (3, 3, len(TEXTS))
    for i, one in enumerate(models.values()):
        for j, other in enumerate(models.values()):
            for k, text in enumerate(TEXTS):
                tops = []
                for model in (one, other):
                    batch = model.encode([text])
                    scores = expound.explainer("input_x_gradient").attribute(model, batch, 1)[0][batch.content[0]]
                    count = -(-len(scores) // 4)
                    tops.append(set(scores.topk(count).indices.tolist()))
                expected = len(tops[0] & tops[1]) / len(tops[0] | tops[1])
                assert similarity.values[i, j, k] == pytest.approx(expected)
    assert (np.diag(similarity.matrix) == 1).all()
    assert similarity.matrix.equals(similarity.matrix.T)
    assert (similarity.values[0, 1] < 1).any()


@pytest.mark.parametrize("method", NATIVE)
def test_any_method_gives_a_matrix_and_models_may_be_loaded_one_at_a_time(method):
    loaded = []

    def load(seed):
        loaded.append(seed)
        return shared_bert(seed)

    sources = {"one": lambda: load(0), "two": lambda: load(1)}
    similarity = model_consistency(sources, TEXTS[:2], make_explainer(method))
    assert loaded == [0, 1]
    assert ((similarity.values >= 0) & (similarity.values <= 1)).all()


def test_models_with_other_tokens_or_texts_are_refused():
    items = list(expound.attribute(bert(), TEXTS[:2], "random"))
    with pytest.raises(ExpoundError, match="the same examples"):
        jaccard_matrix([items, items[:1]])
    other = [replace(item, tokens=[*item.tokens[:-2], ("x", -1, 0, 0), item.tokens[-1]]) for item in items]
    with pytest.raises(ExpoundError, match="different tokens"):
        jaccard_matrix([items, other])


# -- max-sensitivity ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["saliency", "attention_last", "occlusion", "decompx_linear", "random", "lime"])
def test_max_sensitivity_is_zero_only_without_a_radius(method):
    model = bert()
    batch = model.encode(TEXTS)
    chosen = expound.explainer(method, **FEW.get(method, {}))
    assert not max_sensitivity(model, batch, chosen, radius=0.0, n_samples=2).any()
    moved = max_sensitivity(model, batch, chosen, radius=0.05, n_samples=2)
    assert (moved == 0).all() if method == "random" else (moved > 0).all()


def test_perturbations_are_equal_for_equal_words_bounded_and_zero_for_special_tokens():
    model = bert(dtype=torch.float64)
    batch = model.encode(["film town film"])
    few, many = (max_sensitivity(model, batch, "input_x_gradient", n_samples=n, seed=3) for n in (1, 6))
    assert many >= few > 0
    seen = []

    class Recording(type(expound.explainer("saliency"))):
        def compute(self, model, batch, targets, outputs=None):
            seen.append(model.embed(batch).detach().clone())
            return super().compute(model, batch, targets, outputs)

    max_sensitivity(model, batch, Recording(), n_samples=3, radius=0.1)
    clean, *moved = [each[0] for each in seen]
    ids = batch.inputs["input_ids"][0].tolist()
    for one in moved:
        shift = one - clean
        assert shift.abs().max() <= 0.1
        assert shift[batch.content[0]].abs().max() > 0.08
        assert not shift[~batch.content[0]].any()
        for i, first in enumerate(ids):
            for j, second in enumerate(ids):
                assert torch.equal(shift[i], shift[j]) == (first == second or not (shift[i].any() or shift[j].any()))
    assert not torch.equal(moved[0], moved[1])


def test_max_sensitivity_equals_the_relative_distance_of_attributions():
    model = bert(dtype=torch.float64)
    batch = model.encode(TEXTS[:1])
    found = max_sensitivity(model, batch, "saliency", target=1, n_samples=1, radius=0.1)
    clean = expound.explainer("saliency").attribute(model, batch, 1).detach()
    table = model.embedding.weight.data.clone()
    from expound.metrics.sensitivity import _draw_direction

    for token in batch.inputs["input_ids"][0][batch.content[0]].unique().tolist():
        model.embedding.weight.data[token] += 0.1 * _draw_direction("0 0", token, table.shape[1])
    moved = expound.explainer("saliency").attribute(model, batch, 1).detach()
    assert float(found) == pytest.approx(float((moved - clean).norm() / clean.norm()), rel=1e-5)


def test_batching_changes_nothing_and_the_model_stays_as_it_was():
    model = bert()
    batch = model.encode(TEXTS)
    hooks = len(model.embedding._forward_hooks)
    together = max_sensitivity(model, batch, "saliency", n_samples=3)
    alone = torch.cat(
        [max_sensitivity(model, batch.select([row]).trim_padding()[0], "saliency", n_samples=3) for row in range(4)]
    )
    torch.testing.assert_close(together, alone, rtol=1e-3, atol=1e-4)
    with pytest.raises(RuntimeError, match="broken"):
        max_sensitivity(model, batch, Broken())
    assert len(model.embedding._forward_hooks) == hooks


def test_cached_answers_are_not_used_for_perturbed_words():
    model = bert()
    batch = model.encode(TEXTS[:2])
    expected = max_sensitivity(model, batch, "occlusion", n_samples=2, radius=0.1)
    with model.cache_perturbed():
        before = expound.explainer("occlusion").attribute(model, batch)
        assert torch.equal(max_sensitivity(model, batch, "occlusion", n_samples=2, radius=0.1), expected)
        assert torch.equal(expound.explainer("occlusion").attribute(model, batch), before)
    assert (expected > 0).all()


class Broken(type(expound.explainer("saliency"))):
    """Fails when the words have moved."""

    def compute(self, model, batch, targets, outputs=None):
        if model.embedding._forward_hooks:
            raise RuntimeError("broken")
        return super().compute(model, batch, targets, outputs)


def test_max_sensitivity_refuses_images_and_bad_parameters():
    picture = expound.load(families.tiny("vit"), families.processor("vit"))
    with pytest.raises(ExpoundError, match="images"):
        max_sensitivity(picture, picture.encode(families.examples("vit", 1)), "saliency")
    model = bert()
    for bad in ({"radius": -1.0}, {"n_samples": 0}):
        with pytest.raises(ExpoundError, match="expected a radius"):
            max_sensitivity(model, model.encode(TEXTS[:1]), "saliency", **bad)


# -- input consistency -------------------------------------------------------------------------------------------------


def test_consistency_over_swaps_by_hand():
    model = bert()
    texts = ["she does not like the 3 old films , it is long", "a dull film without a name"]
    found = input_consistency(model, texts, "occlusion", versions=50)
    marked = [{"text": text, "rationale": [[0, len(text)]]} for text in texts]
    np.testing.assert_array_equal(input_consistency(model, marked, "occlusion", versions=50), found)
    assert np.isnan(found[1])
    places = find_swaps(texts[0])
    clean = expound.attribute(model, texts[:1], "occlusion")[0]
    values = []
    for number, swap in enumerate(places):
        for word in swap.choices:
            changed = expound.attribute(model, [apply_swaps(texts[0], places, {number: word})], "occlusion")[0]
            if changed.prediction.value != clean.prediction.value:
                continue
            removed = len(texts[0][swap.start : swap.end].split())
            added, first = len(word.split()), len(texts[0][: swap.start].split())
            before = np.delete(clean.scores[0], range(first, first + removed))
            after = np.delete(changed.scores[0], range(first, first + added))
            values.append(jaccard(before, after))
    assert len(places) == 3
    drawn = sorted(input_consistency(model, texts[:1], "occlusion", versions=len(values) + 100))
    assert drawn == [pytest.approx(np.mean(values))]


def test_a_method_that_looks_at_positions_alone_is_consistent_and_versions_are_drawn_by_the_seed():
    model = bert()
    texts = ["Mary likes 3 films from Paris and David likes 7"]
    assert input_consistency(model, texts, "saliency", versions=2, seed=1) == input_consistency(
        model, texts, "saliency", versions=2, seed=1
    )
    with pytest.raises(ExpoundError, match="at least one version"):
        input_consistency(model, texts, "saliency", versions=0)
