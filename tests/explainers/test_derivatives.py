"""Scores as part of a loss: their derivatives with respect to weights and embeddings, to second order."""

import pytest
import torch

from expound import explainer
from expound.explainers import EXPLAINERS, SinglePass
from expound.models.layers.architecture import get_layers, get_module
from families import FAMILIES as RECORDS
from families import sweep_others
from small import FAMILIES, FEW, NATIVE, PAIRS, shared, small, uneven

DIFFERENTIABLE = [name for name in NATIVE if EXPLAINERS[name].card.differentiable]
QUERIES = tuple(f"{name}.weight" for name in ("query", "query_proj", "q_lin", "q_proj", "Wqkv", "c_attn"))
IN_FLOAT32 = {name: known.in_float32 for name, known in RECORDS.items()}
STEPS = FEW | {"integrated_gradients": {"n_steps": 2}, "smooth_grad": {"n_samples": 2}}


def make_explainer(method):
    return explainer(method, **STEPS.get(method, {}))


def make_tiny_model(family="bert"):
    """A model so small that each entry of its derivatives can be checked."""
    size = {"hidden_size": 4, "num_attention_heads": 2, "intermediate_size": 4, "num_labels": 2}
    return small(family, vocab_size=300, **size)


def loss_of(scores):
    """A number that depends on every score unevenly."""
    weights = torch.linspace(-1, 1, scores.numel(), dtype=scores.dtype).view_as(scores)
    return (scores * weights).sum() + scores.square().sum()


def query_weights(model):
    """The first layer's query weights; its value weights if they have another name."""
    values = get_module(get_layers(model.model)[0], RECORDS[model.config.model_type].value)
    named = (weight for name, weight in model.model.named_parameters() if name.endswith(QUERIES))
    return next(named, values.weight)


@pytest.mark.parametrize("method", DIFFERENTIABLE)
@pytest.mark.parametrize("family", sweep_others(name for name in FAMILIES if IN_FLOAT32[name] != "norms"))
def test_weights_get_the_gradient_that_finite_differences_give(family, method):
    model = shared(family)
    batch = model.encode(uneven(family, 2))
    weight = query_weights(model)
    target = torch.tensor([0, 1])

    def loss():
        return loss_of(make_explainer(method).attribute(model, batch, target))

    (slope,) = torch.autograd.grad(loss(), weight)
    assert slope.abs().max() > 0
    direction = torch.randn(weight.shape, dtype=weight.dtype, generator=torch.Generator().manual_seed(0))
    ends = []
    size = 1e-4 if IN_FLOAT32[family] else 1e-5
    for step in (size, -size):
        with torch.no_grad():
            weight.add_(direction, alpha=step)
        ends.append(loss().detach())
        with torch.no_grad():
            weight.sub_(direction, alpha=step)
    tolerance = 1e-2 if IN_FLOAT32[family] else 1e-5
    torch.testing.assert_close((slope * direction).sum(), (ends[0] - ends[1]) / (2 * size), rtol=tolerance, atol=1e-8)


@pytest.mark.parametrize("method", DIFFERENTIABLE)
@pytest.mark.parametrize("family", sweep_others(name for name in FAMILIES if IN_FLOAT32[name] == "norms"))
def test_directional_derivative_where_norms_are_in_float32(family, method):
    model = shared(family)
    batch = model.encode(uneven(family, 2))
    weight = query_weights(model)
    target = torch.tensor([0, 1])
    loss = loss_of(make_explainer(method).attribute(model, batch, target))
    (slope,) = torch.autograd.grad(loss, weight)
    original = weight.detach().clone()
    ends = []
    for step in (1e-3, -1e-3):
        with torch.no_grad():
            weight.copy_(original + step * slope / slope.norm())
        ends.append(loss_of(make_explainer(method).attribute(model, batch, target)).detach())
    with torch.no_grad():
        weight.copy_(original)
    torch.testing.assert_close(slope.norm(), (ends[0] - ends[1]) / 2e-3, rtol=2e-2, atol=1e-6)


@pytest.mark.parametrize("method", DIFFERENTIABLE)
def test_gradcheck_and_gradgradcheck(method):
    model = make_tiny_model()
    batch = model.encode(["a film", "great acting"])
    name, weight = next((n, w) for n, w in model.model.named_parameters() if n.endswith("attention.self.value.weight"))
    module, _, attribute = name.rpartition(".")
    owner = model.model.get_submodule(module)

    def loss(value):
        del owner._parameters[attribute]
        setattr(owner, attribute, value)
        try:
            return loss_of(make_explainer(method).attribute(model, batch, torch.tensor([0, 1])))
        finally:
            delattr(owner, attribute)
            owner.register_parameter(attribute, weight)

    value = weight.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(loss, value, atol=1e-6)
    assert torch.autograd.gradgradcheck(loss, value, atol=1e-5, fast_mode=True)


@pytest.mark.parametrize("method", DIFFERENTIABLE)
def test_only_attention_and_what_is_made_of_it_do_not_know_the_classifier(method):
    model = make_tiny_model()
    scores = make_explainer(method).attribute(model, model.encode(["a film", "great acting"]), torch.tensor([0, 1]))
    (slope,) = torch.autograd.grad(loss_of(scores), model.model.classifier.weight, allow_unused=True)
    assert slope is not None or EXPLAINERS[method].card.family == "attention" or method == "alti"


@pytest.mark.parametrize("method", DIFFERENTIABLE)
@pytest.mark.parametrize("frozen", [False, True])
def test_the_embedding_table_gets_a_gradient_unless_it_is_frozen(method, frozen):
    model = small("bert")
    table = model.embedding.weight.requires_grad_(not frozen)
    loss_of(make_explainer(method).attribute(model, model.encode(uneven("bert", 2)))).backward()
    assert (table.grad is None) == frozen
    used = model.model.bert.encoder.layer[0].attention.self.query.weight.grad
    assert used.isfinite().all()
    assert used.abs().max() > 0


def test_no_graph_without_gradients_nor_from_methods_without_derivative():
    for method in NATIVE:
        model = shared("bert")
        batch = model.encode(uneven("bert", 2))
        with torch.no_grad():
            silent = make_explainer(method).attribute(model, batch)
        assert not silent.requires_grad
        loud = make_explainer(method).attribute(model, batch)
        assert loud.requires_grad == (method in DIFFERENTIABLE)
        torch.testing.assert_close(loud.detach(), silent, rtol=1e-10, atol=1e-10)
        assert all(weight.grad is None for weight in model.model.parameters())


@pytest.mark.parametrize("method", DIFFERENTIABLE)
def test_span_scores_have_derivatives(method):
    model = small("bert", "QuestionAnswering")
    batch = model.encode(PAIRS)
    loss_of(make_explainer(method).attribute(model, batch)).backward()
    assert model.model.bert.encoder.layer[0].attention.self.query.weight.grad.abs().max() > 0


def test_a_training_step_can_hand_over_its_own_pass():
    for method in [name for name in NATIVE if issubclass(EXPLAINERS[name], SinglePass)]:
        model = shared("bert")
        batch = model.encode(uneven("bert", 2))
        target = torch.tensor([0, 1])
        single = make_explainer(method)
        outputs = model(batch, model.embed(batch), single.capture)
        (explanation,) = single.compute(model, batch, [target], outputs)
        scores = explanation.scores.masked_fill(~batch.content, 0)
        torch.testing.assert_close(scores, single.attribute(model, batch, target), rtol=1e-10, atol=1e-10)
