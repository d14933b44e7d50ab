"""Models with gradient checkpointing are explained as without it, in less memory."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache

import expound
from causal import causal
from expound import ExpoundError
from expound.models.batch import Capture
from expound.models.layers.architecture import find_cache_argument
from expound.models.state import enable_checkpointing
from small import NATIVE, make_explainer, small


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_every_method_has_the_same_scores_and_the_model_stays_as_it_was(family):
    plain, less = (small(family, num_hidden_layers=3) for _ in range(2))
    less.model.load_state_dict(plain.model.state_dict())
    less.model.gradient_checkpointing_enable()
    batch = plain.encode(["a moving film about a small town", "the plot is dull"])
    before = [set(module.__dict__) for module in less.model.modules()]
    for method in NATIVE:
        try:
            expected = make_explainer(method).attribute(plain, batch)
        except ExpoundError:
            with pytest.raises(ExpoundError):
                make_explainer(method).attribute(less, batch)
        else:
            torch.testing.assert_close(
                make_explainer(method).attribute(less, batch), expected, rtol=0, atol=1e-10, msg=method
            )
    assert [set(module.__dict__) for module in less.model.modules()] == before


def test_answers_are_explained_for_several_targets_at_once_as_without_it():
    plain, less = (causal("llama", torch.float64) for _ in range(2))
    less.model.load_state_dict(plain.model.state_dict())
    less.model.gradient_checkpointing_enable()
    batch = plain.batch([[5, 6, 7, 8]], [[9, 10, 11, 12]])
    targets = torch.tensor([[[token, token + 1]] for token in range(4)])
    for method in ("saliency", "input_x_gradient", "attn_lrp"):
        expected, found = (expound.explainer(method).attribute_each(model, batch, targets) for model in (plain, less))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
        assert expected.any()


def test_a_layer_with_a_cache_does_not_run_again():
    model = causal("llama", torch.float64).model
    model.gradient_checkpointing_enable()
    cache = DynamicCache(config=model.config)
    embeddings = model.get_input_embeddings()(torch.tensor([[5, 6, 7, 8]])).detach().requires_grad_()
    with enable_checkpointing(model, Capture()):
        logits = model(inputs_embeds=embeddings, use_cache=True, **{find_cache_argument(model): cache}).logits
        torch.autograd.grad(logits[0, -1, 9], embeddings)
    # Run again, a layer would add the keys and values of the four tokens once more.
    assert [len(layer.keys[0, 0]) for layer in cache.layers] == [4] * len(cache.layers)


def test_layers_but_the_last_run_again_and_keep_nothing():
    model = small("bert", num_hidden_layers=4)
    batch = model.encode(["a moving film about a small town"])
    runs, kept = [], []

    def slope():
        runs.clear()
        kept.clear()
        embeddings = model.embed(batch).detach().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
            logits = model(batch, embeddings).logits
        return torch.autograd.grad(logits[:, 0].sum(), embeddings, retain_graph=True)[0], logits, embeddings

    for number, layer in enumerate(model.model.bert.encoder.layer):
        layer.attention.register_forward_hook(lambda *_, number=number: runs.append(number))
    model.model.eval()
    expected, *_ = slope()
    assert runs == [0, 1, 2, 3]
    usual = sum(kept)
    model.model.gradient_checkpointing_enable()
    found, logits, embeddings = slope()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert runs == [0, 1, 2, 3, 2, 1, 0]
    assert sum(kept) < usual / 2
    again = torch.autograd.grad(logits[:, 0].sum(), embeddings)[0]
    torch.testing.assert_close(again, expected, rtol=0, atol=1e-12)
    runs.clear()
    model(batch, embeddings, Capture(differentiable_twice=True)).logits.sum().backward()
    with torch.no_grad():
        model(batch)
    assert runs == 2 * [0, 1, 2, 3]
