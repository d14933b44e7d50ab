"""Embedding dimensions taken together in three ways, and differences of two outputs."""

import pytest
import torch

import expound
from expound import explainer
from expound.errors import ExpoundError
from expound.explainers import EXPLAINERS
from expound.explainers.gradients.paths import DimensionwiseExplainer
from small import NATIVE, make_explainer, shared, small, uneven

SIZES = {
    "integrated_gradients": "n_steps=4",
    "sequential_integrated_gradients": "n_steps=3",
    "smooth_grad": "n_samples=3",
    "gradient_shap": "n_samples=3",
}
BY_DIMENSION = [name for name in NATIVE if issubclass(EXPLAINERS[name], DimensionwiseExplainer)]
BENT = ("saliency", "smooth_grad", "generic_attention", "scaled_attention", "context_cite")
LINEAR = [name for name in NATIVE if EXPLAINERS[name].supports_contrasts and name not in BENT]
REFUSING = [name for name in NATIVE if not EXPLAINERS[name].supports_contrasts]
quiet = pytest.mark.filterwarnings("ignore:Setting forward, backward hooks:UserWarning")


def make_with_aggregate(name, aggregate):
    return explainer(f"{name}?{SIZES.get(name, '')}{'&' if name in SIZES else ''}aggregate={aggregate}")


def test_which_methods_have_dimensions():
    expected = {
        *("input_x_gradient", "integrated_gradients", "smooth_grad", "deep_lift", "sequential_integrated_gradients"),
        *("gradient_shap", "attn_lrp", "cp_lrp", "gim", "decompx_linear"),
    }
    assert set(BY_DIMENSION) == expected


@quiet
@pytest.mark.parametrize("name", BY_DIMENSION)
def test_sum_l2_and_abs_aggregate_the_same_contributions(name, monkeypatch):
    # Sums of gradients are zero behind BERT's LayerNorm, unlike behind an RMSNorm.
    family = "llama" if name == "smooth_grad" else "bert"
    model = shared(family)
    batch = model.encode(uneven(family, 3))
    monkeypatch.setattr(
        DimensionwiseExplainer, "aggregate_dimensions", lambda self, parts: seen.append(parts.detach()) or parts.sum(-1)
    )
    seen = []
    make_with_aggregate(name, "l2").attribute(model, batch, [0, 1, 2])
    parts = seen if name == "gradient_shap" else seen[:1]
    monkeypatch.undo()
    for aggregate, formula in (
        ("sum", lambda x: x.sum(-1)),
        ("l2", lambda x: x.square().sum(-1).sqrt()),
        ("abs", lambda x: x.abs().sum(-1)),
    ):
        method = make_with_aggregate(name, aggregate)
        scores = method.attribute(model, batch, [0, 1, 2])
        expected = torch.cat([formula(part).flatten() for part in parts])
        inside = batch.attended if name == "gradient_shap" else torch.ones_like(batch.attended)
        wanted = torch.zeros_like(scores)
        wanted[inside] = expected
        torch.testing.assert_close(scores, wanted.masked_fill(~batch.content, 0.0), rtol=1e-10, atol=1e-12)
        assert method.signed == (aggregate == "sum")
        assert method.params["aggregate"] == aggregate


def test_points_placed_by_need_are_summed_dimension_by_dimension():
    model = shared("bert")
    batch = model.encode(uneven("bert", 2))
    fine, placed = (
        explainer(f"integrated_gradients?aggregate=l2&{how}").explain(model, batch, [0, 1])
        for how in ("n_steps=200", "n_steps=auto&tolerance=1e-6&max_steps=400")
    )
    torch.testing.assert_close(placed.scores, fine.scores, rtol=1e-3, atol=1e-6)
    assert placed.convergence_delta.abs().max() < 1e-5


@pytest.mark.parametrize("name", [name for name in BY_DIMENSION if EXPLAINERS[name].card.differentiable])
def test_norms_guide_training(name):
    model = shared("bert")
    batch = model.encode(uneven("bert", 2))
    weight = model.model.get_parameter("bert.encoder.layer.0.attention.self.value.weight")
    method = make_with_aggregate(name, "l2")
    (slope,) = torch.autograd.grad(method.attribute(model, batch, [0, 1]).square().sum(), weight)
    step = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0), dtype=weight.dtype) * 1e-6
    ends = []
    with torch.no_grad():
        for sign in (1, -1):
            weight.add_(sign * step)
            ends.append(method.attribute(model, batch, [0, 1]).square().sum())
            weight.sub_(sign * step)
    torch.testing.assert_close((ends[0] - ends[1]) / 2, (slope * step).sum(), rtol=1e-5, atol=0)


def test_unknown_aggregates_are_refused():
    with pytest.raises(ExpoundError, match="Valid choices: abs, l2, sum"):
        explainer("gim?aggregate=max")
    with pytest.raises(ExpoundError, match="give n_steps"):
        explainer("sequential_integrated_gradients?aggregate=l2")


@quiet
@pytest.mark.parametrize("family", ["bert", "gpt2"])
@pytest.mark.parametrize("name", LINEAR)
def test_a_contrast_is_the_difference_of_two_explanations(name, family):
    model = shared(family)
    batch = model.encode(uneven(family, 3))
    method = make_explainer(name)
    found = method.attribute(model, batch, [(0, 1), (2, 0), (1, 2)])
    first, second = (method.attribute(model, batch, each) for each in ([0, 2, 1], [1, 0, 2]))
    torch.testing.assert_close(found, first - second, rtol=1e-8, atol=1e-10)
    assert found.any()


@pytest.mark.parametrize("output", ["logit", "log_prob", "prob"])
def test_a_contrast_of_logarithms_is_one_of_logits(output):
    model = shared("bert")
    batch = model.encode(uneven("bert", 2))
    found = explainer("input_x_gradient", output=output).attribute(model, batch, (0, 1))
    first, second = (explainer("input_x_gradient", output=output).attribute(model, batch, each) for each in (0, 1))
    torch.testing.assert_close(found, first - second)
    logits = explainer("input_x_gradient").attribute(model, batch, (0, 1))
    assert torch.allclose(found, logits) == (output != "prob")
    removed = explainer("occlusion", output="log_prob").attribute(model, batch, (0, 1))
    first, second = (explainer("occlusion", output="log_prob").attribute(model, batch, each) for each in (0, 1))
    torch.testing.assert_close(removed, first - second)


def test_methods_without_contrasts_refuse_them():
    for name in REFUSING:
        model = shared("bert")
        batch = model.encode(uneven("bert", 2))
        with pytest.raises(ExpoundError, match=f"{name} does not explain a difference of outputs"):
            make_explainer(name).attribute(model, batch, (0, 1))


def test_contrasts_by_name_for_one_and_for_all():
    model = shared("bert")
    names = model.labels
    batch = model.encode(uneven("bert", 2))
    assert model.resolve_target(batch, (names[2], names[0])).tolist() == [[2, 0], [2, 0]]
    assert model.resolve_target(batch, [(0, 1), (1, 2)]).tolist() == [[0, 1], [1, 2]]
    with pytest.raises(ExpoundError, match="a contrast is a pair"):
        model.resolve_target(batch, [(0, 1), 2])
    with pytest.raises(ExpoundError, match="does not know the label 7"):
        model.resolve_target(batch, (0, 7))
    described = expound.attribute(model, uneven("bert", 2), "gim", (names[2], names[0]))[0]
    assert described.target.value == (2, 0)
    assert described.target.text == f"{names[2]} rather than {names[0]}"
    assert described.target.probability == pytest.approx(float(model.probabilities(batch)[0, 2]))


def test_regression_has_no_contrast():
    model = small("bert", num_labels=1)
    with pytest.raises(ExpoundError, match=r"expected a target of integers \[1\]"):
        model.resolve_target(model.encode(uneven("bert", 1)), (0, 0))
