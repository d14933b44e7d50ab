"""Against numbers that published programs gave for one small BERT in float64, padding included."""

import numpy as np
import pytest
import torch

import expound
from expound import Batch, ExplainedModel, explainer
from expound.explainers.gradients import integrated_gradients
from expound.explainers.gradients.integrated_gradients import quadrature
from expound.models import Capture

pytestmark = pytest.mark.real
EXACT = {"rtol": 1e-10, "atol": 1e-10}


@pytest.fixture
def single_precision_weights(monkeypatch):
    """captum rounds its quadrature weights to float32, in float64 runs too; with that alone its numbers are exact."""

    def round_weights(rule, points):
        nodes, weights = quadrature(rule, points)
        captum_weights = weights * (points - 1) / points if rule == "riemann_trapezoid" else weights
        return nodes, captum_weights.astype(np.float32).astype(np.float64)

    monkeypatch.setattr(integrated_gradients, "quadrature", round_weights)


@pytest.fixture(scope="module")
def captum_numbers(golden):
    return {name: torch.from_numpy(array) for name, array in np.load(golden / "bert_captum_f64.npz").items()}


@pytest.fixture(scope="module")
def reference_numbers(golden):
    return {name: torch.from_numpy(array) for name, array in np.load(golden / "bert_reference_f64.npz").items()}


@pytest.fixture(scope="module")
def model(golden):
    loaded = expound.load(golden / "bert-tiny", device="cpu", dtype="float64")
    loaded.model.config.mask_token_id = 103
    return ExplainedModel(loaded.model)


@pytest.fixture(scope="module")
def batch(captum_numbers):
    numbers = captum_numbers
    names = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
    found = {name: numbers[name].long() for name in names if name in numbers}
    special = torch.isin(found["input_ids"], torch.tensor([0, 101, 102]))
    return Batch.from_ids(**found, content=~special)


@torch.no_grad()
def test_the_batch_is_the_one_that_was_used(model, batch, captum_numbers):
    assert batch.attended.sum(1).tolist() == [14, 11, 9, 7, 5, 3]
    torch.testing.assert_close(model(batch).logits, captum_numbers["logits"], **EXACT)


@torch.no_grad()
def test_attentions_and_hidden_states(model, batch, captum_numbers):
    captured = model(batch, capture=Capture(attentions=True, hidden_states=True))
    real = batch.attended
    attentions, hidden = captum_numbers["attentions"], captum_numbers["hidden_states"]
    for ours, theirs in zip(captured.hidden_states, hidden, strict=True):
        torch.testing.assert_close(ours[real], theirs[real], **EXACT)
    for ours, theirs in zip(captured.attentions, attentions, strict=True):
        torch.testing.assert_close(ours.transpose(1, 2)[real], theirs.transpose(1, 2)[real], **EXACT)


def golden_scores(numbers, name, target, batch):
    return numbers[name][target].sum(-1).masked_fill(~batch.content, 0)


@pytest.mark.parametrize("target", [0, 1, 2])
@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("input_x_gradient", "ixg"),
        ("integrated_gradients?baselines=zero", "ig50_zero"),
        ("integrated_gradients", "ig50_mask"),
    ],
)
@pytest.mark.usefixtures("single_precision_weights")
def test_scores_of_gradient_methods(model, batch, captum_numbers, method, name, target):
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            scores = explainer(method).attribute(model, batch, [target] * 6)
        expected = golden_scores(captum_numbers, name, target, batch)
        torch.testing.assert_close(scores.detach(), expected, **EXACT)


@pytest.mark.parametrize("target", [0, 1, 2])
@pytest.mark.usefixtures("single_precision_weights")
def test_riemann_trapezoid(model, batch, captum_numbers, target):
    method = explainer("integrated_gradients?baselines=zero&rule=riemann_trapezoid")
    with torch.no_grad():
        scores = method.attribute(model, batch, [target] * 6)
    expected = golden_scores(captum_numbers, "ig50_zero_riemann_trapezoid", target, batch)
    torch.testing.assert_close(scores.detach(), expected, **EXACT)


@pytest.mark.parametrize("target", [0, 1, 2])
def test_double_precision_equals_golden_numbers(model, batch, captum_numbers, target):
    for rule, name, factor in (("gausslegendre", "", 1), ("riemann_trapezoid", "_riemann_trapezoid", 50 / 49)):
        method = explainer("integrated_gradients", baselines="zero", rule=rule)
        expected = factor * golden_scores(captum_numbers, f"ig50_zero{name}", target, batch)
        with torch.no_grad():
            torch.testing.assert_close(method.attribute(model, batch, [target] * 6), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.usefixtures("single_precision_weights")
@pytest.mark.parametrize("target", [0, 1, 2])
def test_convergence_delta_equals_captum(model, batch, captum_numbers, target):
    with torch.no_grad():
        delta = explainer("integrated_gradients?baselines=zero").explain(model, batch, [target] * 6).convergence_delta
    torch.testing.assert_close(delta, captum_numbers["ig50_zero_delta"][target], rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("target", [0, 1, 2])
def test_saliency_norms_equal_captum(model, batch, captum_numbers, target):
    gradient = captum_numbers["saliency_signed"][target].masked_fill(~batch.content[..., None], 0)
    for norm, expected in {"l2": gradient.norm(dim=-1), "mean_absolute": gradient.abs().mean(-1)}.items():
        scores = explainer("saliency", norm=norm).attribute(model, batch, [target] * 6)
        torch.testing.assert_close(scores.detach(), expected, **EXACT)


@torch.no_grad()
def test_rollout_equals_reference_numbers(model, batch, reference_numbers):
    scores = explainer("attention_rollout").attribute(model, batch)
    for row, theirs in enumerate(reference_numbers["rollout"]):
        real, content = batch.attended[row], batch.content[row]
        length = int(real.sum())
        expected = theirs[-1][0, :length].to(torch.float64).masked_fill(~content[real], 0)
        torch.testing.assert_close(scores[row][real], expected, rtol=0, atol=1e-6)
        assert scores[row][~content].abs().sum() == 0
