from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

import expound
import families
from expound.testing.no_side_effects import snapshot
from expound_papers.protocols.randomization import randomize_cascade, randomize_stages
from small import alone, small


def test_the_cascade_randomizes_each_weight_once_from_the_head_down():
    for family, count in [("bert", 2), ("gpt2", 2), ("llama", 2), ("albert", 1), ("vit", 2)]:
        model = small(family)
        before = {name: weight.clone() for name, weight in model.model.named_parameters()}
        stages, lost = [], set()
        for stage, copy in randomize_stages(model):
            now = {name for name, weight in copy.model.named_parameters() if not torch.equal(weight, before[name])}
            assert lost < now
            new, lost = now - lost, now
            stages.append(stage)
            if stage.startswith("layer"):
                assert all(any(part.isdigit() for part in name.split(".")) for name in new)
        assert stages == ["head", *(f"layer {number}" for number in range(count, 0, -1)), "embeddings"]
        steady = {name for name in before if before[name].unique().numel() == 1}  # shuffling leaves equal values alone
        assert lost | steady == set(before)


def test_the_model_stays_as_it_came():
    model = small("bert")
    before = snapshot(model)
    randomize_cascade(model, families.SENTENCES[:2], "saliency")
    assert snapshot(model) == before


def test_similarity_is_that_of_explanations_of_the_same_class():
    model = small("bert")
    texts = families.SENTENCES[:3]
    batch = model.encode(texts)
    target = model.predict(batch)
    found = randomize_cascade(model, texts, "input_x_gradient", seed=3)
    assert found.stages[0] == "trained"
    np.testing.assert_allclose(found.values[0], 1)
    method = expound.explainer("input_x_gradient")
    trained = method.attribute(model, batch, target).detach()
    for (stage, copy), name, values in zip(randomize_stages(model, 3), found.stages[1:], found.values[1:], strict=True):
        assert stage == name
        for row in range(3):
            one, columns = alone(copy, batch, row)
            scores = method.attribute(copy, one, target[row : row + 1])[0, one.content[0]].detach()
            expected = spearmanr(trained[row, columns][one.content[0]], scores).statistic
            assert values[row] == pytest.approx(expected, abs=1e-6)


def test_random_scores_pass_the_cascade_unchanged_and_gradients_change():
    model, texts = small("bert"), families.SENTENCES[:4]
    blind, seeing = (randomize_cascade(model, texts, name) for name in ("random", "input_x_gradient"))
    np.testing.assert_allclose(blind.means, 1)
    assert seeing.means[-1] < 0.6
    again = randomize_cascade(model, texts, "input_x_gradient")
    np.testing.assert_array_equal(seeing.values, again.values)
    signed, magnitudes = (randomize_cascade(model, texts, "input_x_gradient", absolute=flag) for flag in (False, True))
    assert not np.allclose(signed.values[1:], magnitudes.values[1:])
