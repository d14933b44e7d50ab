"""After any explainer, also one that raises, the model and the process are unchanged."""

from contextlib import suppress

import pytest
import torch

import families
from expound import Batch, ExpoundError, attribute
from expound.models import Capture
from expound.models.state import use_full_attention
from expound.testing.no_side_effects import simulate_use, snapshot
from small import FAMILIES, NATIVE, PAIRS, make_explainer, small, uneven

METHODS = NATIVE


def add_failing_hook(model, at):
    """A hook on the whole model that raises at the given forward pass."""
    passes = []

    def fail(*_):
        passes.append(None)
        if len(passes) == at:
            raise RuntimeError("the model broke")

    return model.model.base_model.register_forward_hook(fail)


# The contract of every explainer asks the same of a BERT.
KINDS = [name for name in FAMILIES if name != "bert"]


@pytest.mark.parametrize(("method", "family"), families.rotate(METHODS, KINDS))
def test_model_is_restored_after_its_error_and_after_success(family, method):
    model = simulate_use(small(family))
    batch = model.encode(uneven(family, 2))
    # Errors come first: the first passes on a model check it.
    for at in () if method == "random" else (1, 2, 3):
        hook = add_failing_hook(model, at)
        before = snapshot(model)
        expected = pytest.raises(RuntimeError, match="the model broke") if at == 1 else suppress(RuntimeError)
        with expected:
            make_explainer(method).attribute(model, batch)
        assert snapshot(model) == before
        hook.remove()
    before = snapshot(model)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            make_explainer(method).attribute(model, batch)
        assert snapshot(model) == before


def test_model_is_restored_after_a_wrong_target():
    model = simulate_use(small("bert"))
    before = snapshot(model)
    batch = model.encode(uneven("bert", 2))
    for method in METHODS:
        for target in (7, "nobody knows", torch.tensor([0, 9]), torch.tensor([0]), [0, 1, 2], "label"):
            with pytest.raises(ExpoundError):
                make_explainer(method).attribute(model, batch, target)
            with pytest.raises(ExpoundError):
                attribute(model, uneven("bert", 2), method, target)
        assert snapshot(model) == before, method


@pytest.mark.parametrize("family", families.sweep_others(FAMILIES))
def test_model_is_restored_after_attribute_and_model_calls(family):
    model = simulate_use(small(family))
    before = snapshot(model)
    attribute(model, uneven(family), "input_x_gradient")
    batch = model.encode(uneven(family))
    keep = torch.rand((3, *batch.content.shape), generator=torch.Generator().manual_seed(0)) < 0.5
    model.predict(batch), model.probabilities(batch), model.embed(batch)
    for perturbation in ("remove", "mask", "pad", "zero"):
        model.predict_perturbed(batch, keep, perturbation)
    with model.cache_perturbed():
        model.predict_perturbed(batch, keep)
    assert snapshot(model) == before


@pytest.mark.parametrize("perturbation", ["remove", "mask"])
@pytest.mark.parametrize("family", ["bert", "gpt2", "vit"])
def test_model_is_restored_after_a_failed_perturbed_pass(family, perturbation):
    model = simulate_use(small(family))
    batch = model.encode(uneven(family))
    keep = torch.zeros((1, *batch.content.shape), dtype=torch.bool)
    model.predict_perturbed(batch, ~keep, perturbation)  # a model is checked once, in passes of its own
    hook = add_failing_hook(model, 1)
    before = snapshot(model)
    with pytest.raises((RuntimeError, ExpoundError), match="broke"), model.cache_perturbed():
        model.predict_perturbed(batch, keep, perturbation)
    assert snapshot(model) == before
    hook.remove()


@pytest.mark.parametrize("family", families.sweep_others(FAMILIES))
@torch.no_grad()
def test_model_is_restored_after_a_captured_pass(family):
    model = small(family)
    batch = model.encode(uneven(family))
    before = snapshot(model)
    for capture in (Capture(attentions=True), Capture(heads=True), Capture(hidden_states=True)):
        model(batch, model.embed(batch), capture)
        assert snapshot(model) == before, capture
        hook = add_failing_hook(model, 1)
        hooked = snapshot(model)
        with pytest.raises(RuntimeError, match="broke"):
            model(batch, model.embed(batch), capture)
        assert snapshot(model) == hooked, capture
        hook.remove()


@pytest.mark.parametrize("lengths", [(6, 4), (36, 30), (37, 12)], ids=str)
@pytest.mark.parametrize("method", ["saliency", "integrated_gradients?n_steps=2", "occlusion", "attention_last"])
def test_block_sparse_attention_stays_itself(method, lengths):
    model = small("big_bird")
    model.model.train()
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids = torch.randint(5, 200, mask.shape, generator=torch.Generator().manual_seed(0))
    batch = Batch.from_ids(ids, mask)
    before = snapshot(model)
    assert set(before["attention types"].values()) == {None, "block_sparse"}
    if method == "attention_last" and max(lengths) > 28:
        with pytest.raises(ExpoundError, match="block-sparse"):
            make_explainer(method).attribute(model, batch)
    else:
        make_explainer(method).attribute(model, batch)
    assert snapshot(model) == before


def test_long_texts_are_explained_with_full_attention_and_block_sparse_attention_is_back():
    model, ids = small("big_bird"), torch.randint(5, 200, (1, 36), generator=torch.Generator().manual_seed(0))
    batch, before = Batch.from_ids(ids), snapshot(model)
    with use_full_attention(model.model):
        found = make_explainer("attention_last").attribute(model, batch)
        inside = model(batch).logits
    assert snapshot(model) == before
    model.config.attention_type = "original_full"
    model.model.base_model.set_attention_type("original_full")
    assert torch.equal(model(batch).logits, inside)
    assert torch.equal(make_explainer("attention_last").attribute(model, batch), found)
    assert found.abs().sum() > 0


def test_model_is_restored_after_explaining_spans():
    model = simulate_use(small("bert", "QuestionAnswering"))
    before = snapshot(model)
    for method in METHODS:
        attribute(model, PAIRS, method)
    assert snapshot(model) == before


def test_the_comparison_detects_changes():
    model = small("big_bird")
    before = snapshot(model)
    model.model(torch.tensor([[5, 6, 7]]))
    after = snapshot(model)
    assert {name for name in before if before[name] != after[name]} >= {"modules", "attention types"}
    model = small("bert")
    before = snapshot(model)
    model.model.train()
    model.config.pad_token_id = 9
    torch.rand(1)
    assert {name for name, value in snapshot(model).items() if value != before[name]} == {"training", "config", "torch"}


@pytest.mark.parametrize("method", ["saliency", "integrated_gradients", "decompx_linear", "generic_attention"])
def test_weight_gradients_are_saved_only_if_a_graph_is_needed(method):
    model = small("bert").without_checks()
    batch, require_grads = model.encode(uneven("bert", 2)), []
    hook = model.model.base_model.register_forward_pre_hook(
        lambda module, given: require_grads.append(any(weight.requires_grad for weight in model.parameters()))
    )
    with torch.no_grad():
        make_explainer(method).attribute(model, batch)
        make_explainer(method).attribute_each(model, batch, torch.tensor([[0, 0], [1, 1]]))
    assert not any(require_grads)
    require_grads.clear()
    assert make_explainer(method).attribute(model, batch).requires_grad
    assert all(require_grads)
    hook.remove()
    assert all(weight.requires_grad for weight in model.parameters())
