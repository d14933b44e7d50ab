"""Published masks, answers and weights; what a sparse regression must do."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import decomposable
import expound
from expound import explainer
from expound.errors import ExpoundError
from expound.explainers.perturbation.context_cite import ablation_masks, default_unit, fit_lasso, log_odds
from expound.explainers.units import number_units
from small import shared, small, uneven


@pytest.fixture(scope="module")
def numbers(golden_generation):
    return dict(np.load(golden_generation / "llama-tiny_contextcite_f64.npz"))


@pytest.fixture(scope="module")
def model_and_batch(golden_generation, numbers):
    """The model, and the prompt with its sources as units."""
    model = expound.load(golden_generation / "llama-tiny", task="generation", device="cpu", dtype="float64")
    decomposable.replace_rms_norms(model.model)
    unit = np.full(len(numbers["prompt_ids"]), -1)
    start = 3
    for number, source in enumerate(numbers["sources"]):
        length = len(model.tokenizer(str(source), add_special_tokens=False)["input_ids"])
        unit[start : start + length] = number
        start += length
    batch = model.batch(numbers["prompt_ids"], numbers["response_ids"], content=unit >= 0, unit_of=unit)
    return model, batch


def sum_over_units(batch, scores):
    unit = number_units(batch, "source")[0]
    return np.array([float(scores[0, unit == number].sum()) for number in range(int(unit.max()) + 1)])


@pytest.mark.real
def test_published_masks_answers_and_weights(model_and_batch, numbers):
    model, batch = model_and_batch
    masks = ablation_masks(64, 6)
    assert np.array_equal(masks, numbers["masks"])
    assert default_unit(batch) == "sentence"
    method = explainer("context_cite")
    target = model.resolve_target(batch)
    present = torch.from_numpy(masks)[:, None]
    answers = method.evaluate_masks(model, batch, target, present, number_units(batch, "source"))
    expected = numbers["token_log_probs"].sum(1)
    expected = expected - np.log(-np.expm1(expected))
    np.testing.assert_allclose(answers[:, 0].numpy(), expected, rtol=1e-9)
    np.testing.assert_allclose(answers[:, 0].numpy(), numbers["output_logit_prob"], rtol=1e-6)
    found = method.explain(model, batch)
    for name, tolerance in (("weights_exact", 1e-6), ("weights", 1e-4)):
        np.testing.assert_allclose(sum_over_units(batch, found.scores), numbers[name], rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(float(found.bias), numbers["bias_exact"], rtol=1e-6)
    span = method.attribute(model, batch, tuple(numbers["span_tokens"].tolist()))
    np.testing.assert_allclose(sum_over_units(batch, span), numbers["span_weights_exact"], rtol=1e-6, atol=1e-6)
    plain = explainer("context_cite?output=log_prob")
    answers = plain.evaluate_masks(model, batch, target, present, number_units(batch, "source"))
    np.testing.assert_allclose(answers[:, 0].numpy(), numbers["token_log_probs"].sum(1), rtol=1e-9)


def test_weak_penalties_recover_the_weights_of_a_sum():
    generator = np.random.default_rng(0)
    masks = ablation_masks(40, 5, 0.5, 120)
    true = generator.normal(size=5)
    weights, bias = fit_lasso(masks, masks @ true - 2.0, 3, 1e-9)
    np.testing.assert_allclose(weights, true, atol=1e-6)
    np.testing.assert_allclose(bias, -2.0, atol=1e-6)
    order = generator.permutation(5)
    values = masks @ true + 0.1 * generator.normal(size=40)
    one, other = fit_lasso(masks, values, 1, 0.05)[0], fit_lasso(masks[:, order], values, 1, 0.05)[0]
    np.testing.assert_allclose(one[order], other, atol=1e-8)
    assert not fit_lasso(masks, values, 1, 10.0)[0].any()
    masks[:, 2] = True
    assert fit_lasso(masks, values, 1, 0.001)[0][2] == 0


def test_the_lasso_solution_satisfies_its_optimality_conditions():
    """At the minimum the residual's correlation with a column is alpha times the weight's sign, or smaller."""
    masks, generator = ablation_masks(64, 6, 0.4, 64), np.random.default_rng(1)
    values = masks @ generator.normal(size=6) * 4 + generator.normal(size=64)
    weights, bias = fit_lasso(masks, values, 4, 0.1)
    residual = (values - masks @ weights - bias) / 4
    columns = (masks - masks.mean(0)) / masks.std(0)
    slope = columns.T @ residual / 64
    used = weights != 0
    assert used.sum() > 0
    np.testing.assert_allclose(slope[used], 0.1 * np.sign(weights[used]), atol=1e-8)
    assert (np.abs(slope[~used]) <= 0.1 + 1e-8).all()


@pytest.mark.parametrize("family", ["bert", "gpt2", "vit"])
def test_classifiers_and_batches(family):
    model = shared(family)
    batch = model.encode(uneven(family, 3))
    method = explainer("context_cite", n_samples=12, alpha=0.001)
    scores = method.attribute(model, batch, [0, 1, 2])
    assert not scores[~batch.content].any()
    for row in range(3):
        alone, columns = batch.select([row]).trim_padding()
        torch.testing.assert_close(method.attribute(model, alone, [row])[0], scores[row, columns], rtol=1e-5, atol=1e-7)
    unit = number_units(batch, "word")
    masks = ablation_masks(12, int(unit[0].max()) + 1)
    keep = torch.from_numpy(np.concatenate([np.ones((12, 1), bool), masks], 1))[:, unit[0] + 1][:, None]
    chance = model.predict_perturbed(batch.select([0]), keep, "remove")[:, 0, 0]
    weights = fit_lasso(masks, (chance / (1 - chance)).log().numpy(), 1, 0.001)[0]
    inside = unit[0] >= 0
    sizes = torch.bincount(unit[0][inside])
    torch.testing.assert_close(scores[0, inside], (torch.from_numpy(weights) / sizes)[unit[0][inside]])


def test_log_odds_stay_finite_at_probability_one():
    task = shared("bert").task
    logits = torch.tensor([[1.0, 1e-30, 1e-30], [0.25, 0.75, 1e-30]]).log()
    found = log_odds(task, logits, torch.tensor([0, 1]))
    assert found[0].isfinite()
    assert found[0] > 15
    torch.testing.assert_close(found[1], torch.tensor(3.0).log().double())
    contrast = log_odds(task, logits[1:], torch.tensor([[1, 0]]))
    torch.testing.assert_close(contrast[0], 2 * torch.tensor(3.0).log().double())


def test_sentences_of_a_regression_have_one_score_each_and_wrong_values_are_refused():
    model = small("bert", num_labels=1)
    batch = model.encode(["One is here. Two is there. Three is gone."])
    scores = explainer("context_cite?unit=sentence&n_samples=8&alpha=1e-6").attribute(model, batch)
    unit = number_units(batch, "sentence")[0]
    assert int(unit.max()) == 2
    assert all(len(scores[0, unit == number].unique()) == 1 for number in range(3))
    assert len(scores[0, unit >= 0].unique()) == 3
    for spec in ("n_samples=1", "keep_probability=1", "alpha=0", "seed=-1"):
        with pytest.raises(ExpoundError, match="context_cite needs"):
            explainer(f"context_cite?{spec}")
    with pytest.raises(ExpoundError, match="give the batch unit_of"):
        explainer("context_cite?unit=source").attribute(model, replace(batch, alignments=None))
