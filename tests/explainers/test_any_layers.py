"""Decompositions of layers that nobody described equal finite differences of a network that is held."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import expound
from expound.explainers.decomposition.alti import Alti
from expound.explainers.decomposition.decompx import DecompX
from expound.explainers.decomposition.trace import trace_examples
from expound.models import Capture
from expound.models.layers.architecture import get_layers, get_module
from expound.models.layers.layer_parts import LayerParts
from families import replace_rms_norms
from sweep.held import Held
from sweep.run_sweep import make_batch
from sweep.tiny_models import build

# The part whose output is added to the residual stream, and what it is multiplied by.
TYPES = {
    "mixtral": ("self_attn", 1),
    "deepseek_v3": ("self_attn", 1),
    "gpt_oss": ("self_attn", 1),
    "granitemoeshared": ("self_attn", 0.3),
    "cohere": ("self_attn", 1),
    "olmo2": ("post_attention_layernorm", 1),
    "gpt_neox": ("attention", 1),
}
RUN_AGAIN = ("gpt_oss", "granitemoeshared")
"""Those whose layers are run again on components, since not all of their weights are understood."""


def differentiate(model, batch, number: int, part: str | None) -> Tensor:
    """How a part of a layer (None: the last layer's output) changes with each input of the layer: [L, L, d].

    Factors are held. The network is affine then, so that steps may be as long as the inputs.
    """
    layers, held, seen = get_layers(model.model), Held(), {}
    steps = {"scale": 0.0, "place": 0}

    def change(module, args, kwargs):
        hidden = args[0] if args else kwargs["hidden_states"]
        seen["x"] = hidden.detach().clone()
        hidden = hidden.detach().clone()
        hidden[:, steps["place"]] *= 1 + steps["scale"]
        hidden.requires_grad_()
        return ((hidden, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": hidden})

    def keep(module, args, output):
        seen["out"] = (output if isinstance(output, Tensor) else output[0]).detach()

    watched = layers[-1] if part is None else get_module(layers[number], part)
    hooks = [layers[number].register_forward_pre_hook(change, with_kwargs=True), watched.register_forward_hook(keep)]

    def run(place: int, scale: float) -> Tensor:
        steps.update(place=place, scale=scale)
        held.place = None if not held.kept else 0
        with held:
            model(batch, model.embed(batch).detach().requires_grad_(), Capture(differentiable_twice=True))
        return seen["out"][0]

    run(0, 0.0)
    changes = torch.stack([(run(j, 1.0) - run(j, -1.0)) / 2 for j in range(batch.length)])
    for hook in hooks:
        hook.remove()
    return changes


@pytest.mark.parametrize("model_type", TYPES)
def test_layers_that_nobody_described_equal_finite_differences(model_type):
    part, factor = TYPES[model_type]
    raw = build(model_type, "CausalLM", **({} if factor == 1 else {"residual_multiplier": factor}))
    for name, weight in raw.named_parameters():
        weight.requires_grad_(False)
        # Differences do not see biases, which ALTI counts with the values.
        if "bias" in name:
            weight.zero_()
    replace_rms_norms(raw)
    model = expound.load(raw, task="generation")
    batch = make_batch(model, "CausalLM").select([0]).trim_padding()[0]
    with torch.no_grad():
        (trace,) = trace_examples(model, batch)
        maps = Alti().compute_maps(trace)
        lengths = DecompX(bias="none").explain(model, batch, special_tokens=True).scores[0]
    for number, state in enumerate(trace.layers):
        assert isinstance(state.parts, LayerParts) == (model_type not in RUN_AGAIN)
        shares = factor * differentiate(model, batch, number, part)
        for place, x in enumerate(state.x):
            shares[place, place] += x
        # ALTI by its definition, with what the pass itself has after attention.
        whole = state.middle
        near = whole.abs().sum(-1) - (whole - shares - 1e-6).abs().sum(-1)
        near = near.clamp(min=0).masked_fill((shares == 0).all(-1), 0).T
        torch.testing.assert_close(maps[number], near / near.sum(-1, keepdim=True), rtol=1e-6, atol=1e-6)
    last = differentiate(model, batch, 0, None)
    readout = model.readout_weights(batch, model.resolve_target(batch))[0]
    torch.testing.assert_close(lengths, readout @ last.norm(dim=-1).T, rtol=1e-6, atol=1e-6)


class CumulatedActivation(torch.nn.Module):
    def forward(self, x):
        return x.relu().cumsum(-2)


class OddActivation(torch.nn.Module):
    def forward(self, x):
        return x - x.logsumexp(-1, keepdim=True)


class ScaledActivation(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, x):
        return x.relu() * self.scale


def test_layers_of_which_something_is_not_understood_are_refused():
    for activation, method, reason in (
        (CumulatedActivation(), "alti", "layer 0 mixes positions by more than its attention"),
        (OddActivation(), "decompx", "the weights of layer 0 are not all understood, and the rules do not explain"),
        (ScaledActivation(), "alti", "mlp.activation_fn.scale may be a scale, which training changes"),
    ):
        raw = build("phi", "CausalLM")
        for layer in raw.model.layers:
            layer.mlp.activation_fn = activation
        model = expound.load(raw, task="generation")
        batch = make_batch(model, "CausalLM")
        with torch.no_grad(), pytest.raises(expound.ExpoundError, match=reason):
            expound.explainer(method).explain(model, batch)
