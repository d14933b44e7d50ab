"""Published features, losses, coefficients and scores of attention fitted to ablations."""

import numpy as np
import pytest
import torch

import decomposable
import expound
from expound import explainer
from expound.explainers.learned.attention_to_source import AttentionToSource
from expound.explainers.perturbation.context_cite import ContextCite
from expound.training.source_attention import Effects, fit_coefficients, measure_effects, negative_correlation
from small import shared, uneven


@pytest.fixture(scope="module")
def numbers(golden_generation):
    return {name: torch.from_numpy(x) for name, x in np.load(golden_generation / "llama-tiny_at2.npz").items()}


def example(model, numbers, number):
    """The example's batch and its targets of several tokens."""
    ids, (start, stop) = numbers[f"ids_{number}"], numbers[f"target_range_{number}"].tolist()
    unit = torch.full((start,), -1)
    for source, (first, last) in enumerate(numbers[f"source_ranges_{number}"].tolist()):
        unit[first:last] = source
    return model.batch(ids[:start], ids[start:stop], content=unit >= 0, unit_of=unit)


@pytest.mark.real
@torch.no_grad()
def test_published_features_and_scores(golden_generation, numbers):
    model = expound.load(golden_generation / "llama-tiny", task="generation", device="cpu", dtype="float64")
    decomposable.replace_rms_norms(model.model)
    method = AttentionToSource(model.config.num_hidden_layers, model.config.num_attention_heads).double()
    method.coefficients.data = numbers["weights_300"].view_as(method.coefficients)
    row = 0
    for number in range(2):
        batch = example(model, numbers, number)
        for target in numbers[f"target_sentences_{number}"].tolist():
            spans = torch.tensor([target])
            outputs = model(batch, capture=method.capture)
            found = method.features(model, batch, outputs, spans, batch.unit_of)[0]
            torch.testing.assert_close(found, numbers["attention_by_source"][row, : len(found)], rtol=1e-9, atol=1e-12)
            signs = 2 * numbers["masks"][row, :, : len(found)].double() - 1
            torch.testing.assert_close(signs @ found, numbers["features"][row], rtol=1e-9, atol=1e-12)
            row += 1
        for token in range(numbers[f"scores_example{number}"].shape[1]):
            scores = method.attribute(model, batch, token)[0]
            of_units = torch.stack([scores[batch.unit_of[0] == s].sum() for s in range(len(found))])
            torch.testing.assert_close(of_units, numbers[f"scores_example{number}"][:, token], rtol=1e-6, atol=1e-7)


@pytest.mark.real
def test_published_training(numbers):
    first = torch.full((8,), 1 / 8, dtype=torch.float64)
    loss = negative_correlation(numbers["features_ref_f16"] @ first, numbers["outputs_ref_f16"])
    torch.testing.assert_close(loss, numbers["loss_first"], rtol=1e-6, atol=1e-6)
    for kind, ending in (("features_ref_f16", ""), ("features", "_exact")):
        answers = numbers[kind.replace("features", "outputs")]
        for steps in (1, 10):
            found = fit_coefficients(Effects(numbers[kind], answers), steps, 1e-2)
            torch.testing.assert_close(found, numbers[f"weights_{steps}{ending}"], rtol=1e-6, atol=1e-6)
    found = fit_coefficients(Effects(numbers["features"], numbers["outputs"]), 300, 1e-2)
    assert torch.cosine_similarity(found, numbers["weights_300_exact"], dim=0) > 0.999


def test_the_loss_knows_no_scale():
    generator = torch.Generator().manual_seed(0)
    inputs, answers = (torch.randn(3, 16, 5, generator=generator).double() for _ in range(2))
    answers = answers[..., 0]
    weights = torch.randn(5, generator=generator).double().requires_grad_()
    loss = negative_correlation(inputs @ weights, answers)
    assert -1 <= loss <= 1
    torch.testing.assert_close(negative_correlation(inputs @ (3 * weights), 2 * answers + 1), loss, rtol=1e-6, atol=0)
    (slope,) = torch.autograd.grad(loss, weights)
    assert abs(slope @ weights) < 1e-6 * slope.norm() * weights.norm()


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_fitting_classifiers_and_files(family, tmp_path):
    model = shared(family)
    batch = model.encode(uneven(family, 4))
    ablated = ContextCite(n_samples=16)
    method = AttentionToSource.for_model(model)
    effects = Effects.concatenate(
        measure_effects(method, model, batch.select(rows), ablated) for rows in ([0, 1], [2, 3])
    )
    method.set_coefficients(fit_coefficients(effects, 60, 0.01))
    inputs, answers = measure_effects(method, model, batch, ablated)
    before, after = (
        negative_correlation(inputs @ x.flatten().to(inputs), answers)
        for x in (AttentionToSource.for_model(model).coefficients, method.coefficients)
    )
    assert after < before
    assert abs(float(method.coefficients.detach().abs().sum()) - 1) < 1e-6
    method.save_pretrained(tmp_path)
    again = explainer(f"attention_to_source:{tmp_path}")
    torch.testing.assert_close(again.attribute(model, batch), method.attribute(model, batch))
    mean = explainer("attention_to_source?untrained=true", model).attribute(model, batch)
    torch.testing.assert_close(mean, explainer("attention_all").attribute(model, batch))
