"""Heads that read a learned mean of all layers."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch.func import functional_call

import expound
from expound import ExpoundError
from expound.models.layers.architecture import get_layers
from expound.models.layers.scalar_mix import add_scalar_mix
from runs import ARGUMENTS, load_generated
from small import small, uneven

SHARES = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)


def _read_states(model, batch):
    """The states [B, L, d] before the first and after each layer of a model without mix."""
    states, layers = [], get_layers(model.model)
    hooks = [layers[0].register_forward_pre_hook(lambda layer, given: states.append(given[0]) if not states else None)]
    for layer in dict.fromkeys(layers):
        hooks.append(layer.register_forward_hook(lambda layer, given, found: states.append(found)))
    model(batch)
    for hook in hooks:
        hook.remove()
    return [state[0] if isinstance(state, tuple) else state for state in states]


def _put(output, value):
    """A layer's output whose states are one vector [B, d] at all positions."""
    states = output[0] if isinstance(output, tuple) else output
    states = value[:, None].expand_as(states)
    return (states, *output[1:]) if isinstance(output, tuple) else states


@pytest.mark.parametrize("family", ["bert", "electra", "albert", "big_bird", "modernbert", "llama", "vit"])
@torch.no_grad()
def test_the_head_reads_the_mean_of_all_layers(family):
    model, plain = small(family), small(family)
    batch = model.encode(uneven(family))
    mask = batch.attended.double()
    means = [torch.einsum("bl,bld->bd", mask, state[:, : batch.length]) / mask.sum(1, keepdim=True)
             for state in _read_states(plain, batch)]  # fmt: skip
    add_scalar_mix(model.model)
    mix = model.model.scalar_mix
    for shares, scale in [(SHARES, 1.3), *((1e4 * row, 1.0) for row in torch.eye(3).double())]:
        mix.coefficients.copy_(shares)
        mix.scale.fill_(scale)
        mean = scale * sum(share * mean for share, mean in zip(shares.softmax(0), means, strict=True))
        if family == "albert":
            # One module is all layers, so its last run cannot be changed alone.
            pooled = torch.tanh(plain.model.albert.pooler(mean))
            expected = plain.model.classifier(pooled)
        else:
            hook = get_layers(plain.model)[-1].register_forward_hook(lambda *given, mean=mean: _put(given[2], mean))
            expected = plain(batch).logits
            hook.remove()
        if family == "bert":
            # Written out: a share of 1 for one layer is the head on that layer alone.
            pooled = torch.tanh(plain.model.bert.pooler.dense(mean))
            torch.testing.assert_close(expected, plain.model.classifier(pooled))
        torch.testing.assert_close(model(batch).logits, expected, atol=1e-12, rtol=1e-10)


def test_its_derivatives_are_right_and_copies_have_their_own():
    model = small("bert")
    add_scalar_mix(model.model)
    batch = model.encode(uneven("bert", 2))

    def answer(coefficients, scale):
        weights = {"scalar_mix.coefficients": coefficients, "scalar_mix.scale": scale}
        return functional_call(model.model, weights, (), dict(batch.inputs) | {"attention_mask": batch.attended}).logits

    torch.autograd.gradcheck(answer, (SHARES.clone().requires_grad_(), torch.tensor(1.3).double().requires_grad_()))
    before, copied = model(batch).logits, deepcopy(model.model)
    with torch.no_grad():
        copied.scalar_mix.coefficients.copy_(SHARES)
    torch.testing.assert_close(model(batch).logits, before, atol=0, rtol=0)
    assert (expound.load(copied, model.processing_class)(batch).logits - before).abs().max() > 1e-3


def test_what_is_explained_of_a_mix():
    model = small("bert")
    add_scalar_mix(model.model)
    batch = model.encode(uneven("bert"))
    # The linear rules are proved for the mix, too; methods that follow one position through the layers are refused.
    exact = expound.explainer("decompx_linear").attribute(model, batch)
    assert exact.abs().sum() > 0
    for method in ("alti", "attention_rollout"):
        with pytest.raises(ExpoundError, match="its head reads a scalar mix of all layers"):
            expound.explainer(method).attribute(model, batch)
    model.model.train()
    model.model.gradient_checkpointing_enable()
    with pytest.raises(ExpoundError, match="without gradient checkpointing"):
        model(batch)


def test_runs_train_it_and_their_folders_load_it(tmp_path):
    data, dev = load_generated(), load_generated(split="dev", size=24)
    settings = {"options": {"scalar_mix": True}, "dev": dev, "args": ARGUMENTS | {"num_train_epochs": 1}}
    result = expound.train("tiny", data, "smat", output_dir=tmp_path / "run", **settings)
    for folder in (tmp_path / "run", tmp_path / "run-teacher"):
        loaded = expound.load(folder)
        assert type(loaded.model).__name__ == "ScalarMixBertForSequenceClassification"
        assert loaded.model.scalar_mix.coefficients.abs().max() > 0
    batch = result.model.encode(dev["text"][:4])
    torch.testing.assert_close(result.model(batch).logits, expound.load(tmp_path / "run", device="cpu")(batch).logits)
    # A run that starts from such a folder trains its mix further.
    again = expound.train(
        str(tmp_path / "run"), data, "baseline", output_dir=tmp_path / "again", dev=dev, args=settings["args"]
    )
    assert not torch.equal(again.model.model.scalar_mix.coefficients, result.model.model.scalar_mix.coefficients)
    with pytest.raises(ExpoundError, match="leave out lora_rank"):
        expound.train(str(tmp_path / "again"), data, "lora", output_dir=tmp_path / "lora", **settings)
