from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest
import torch

import expound
from causal import causal
from expound.models.layers.architecture import get_layers, get_module
from expound.models.passes.hooks import skip_unread_positions
from expound.training.loop.lora import add_lora
from families import FAMILIES, TEXT, examples, processor, tiny

ADAPTED_METHODS = ("decompx_linear", "attn_lrp", "alti", "value_zeroing", "integrated_gradients?n_steps=3")


@pytest.mark.parametrize("family", TEXT)
def test_answers_and_gradients_are_the_same_with_less_work(family):
    model = expound.load(tiny(family, dtype=torch.float64), processor(family), check=False)
    batch = model.encode(examples(family, 4))
    embeddings = model.embed(batch).detach().requires_grad_()
    widths = []
    path = FAMILIES[family].cut
    with skip_unread_positions(model, batch):
        pass
    modules = [] if path is None else [get_module(get_layers(model.model)[-1], "output")]
    hooks = [module.register_forward_hook(lambda m, i, o: widths.append(o.shape[1])) for module in modules]
    found = []
    for scope in (skip_unread_positions(model, batch), torch.enable_grad()):
        with model.evaluation_mode(), scope:
            logits = model(batch, embeddings).logits
        found.append((logits, *torch.autograd.grad(logits[:, 1].sum(), embeddings)))
    for hook in hooks:
        hook.remove()
    torch.testing.assert_close(found[0], found[1], atol=1e-12, rtol=1e-10)
    assert widths == ([] if path is None else [1, batch.length])


@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral", "qwen3"])
def test_a_language_models_last_layer_ends_where_its_response_is_said(family):
    model = causal(family).without_checks()
    batch = model.batch([[5, 6, 7, 8, 9, 10, 11], [12, 13, 14]], [[15, 16], [17, 18, 19]])
    embeddings = model.embed(batch).detach().requires_grad_()
    widths, found = [], []
    with skip_unread_positions(model, batch):
        pass
    inside = get_module(get_layers(model.model)[-1], FAMILIES[family].into)
    hook = inside.register_forward_pre_hook(lambda module, given: widths.append(given[0].shape[1]))
    for times in (2, 0):  # a block inside another changes nothing
        with ExitStack() as scope:
            for _ in range(times):
                scope.enter_context(skip_unread_positions(model, batch))
            logits = model(batch, embeddings).logits
        found.append((logits, *torch.autograd.grad(logits[..., 0].sum(), embeddings)))
    hook.remove()
    assert widths == [3, batch.length]
    torch.testing.assert_close(found[0], found[1], atol=1e-12, rtol=1e-10)
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


def test_spans_need_every_position():
    model = expound.load(tiny("bert", "QuestionAnswering", num_labels=2), processor("bert"))
    batch = model.encode([("what is it", "a film about a river")])
    with skip_unread_positions(model, batch):
        assert model(batch).logits.shape == (1, 2, batch.length)


@pytest.mark.parametrize("family", ["bert", "distilbert", "gpt2", "big_bird"])
def test_adapters_of_all_layers_are_explained_as_if_they_were_merged(family):
    pytest.importorskip("peft")
    model = expound.load(tiny(family), processor(family))
    add_lora(model, rank=2)
    for name, weight in model.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    model.eval()
    found = {name: expound.attribute(model, "a film", name)[0].scores for name in ADAPTED_METHODS}
    merged = expound.load(model.model.merge_and_unload().eval(), processor(family))
    for name, scores in found.items():
        np.testing.assert_allclose(scores, expound.attribute(merged, "a film", name)[0].scores, rtol=1e-3, atol=1e-6)
