import pytest
import torch
import transformers as hf
from torch import nn

import decomposable
from decomposable import FAMILIES
from exegete.errors import ExegeteError
from exegete.explainers.decomposition.trace import traces
from exegete.models import activations
from exegete.models.architecture import architecture_of, head_part, layers, part
from exegete.models.layer_parts import affine, head_parts, layer_parts


@pytest.mark.parametrize("family", FAMILIES)
def test_every_path_leads_somewhere(family):
    model = decomposable.shared_model(family).model
    found = architecture_of(model)
    assert len(layers(model)) == model.config.num_hidden_layers
    attention, wide = found.attention, found.feed_forward
    for layer in layers(model):
        for path in (attention.value, attention.output, *found.norms, wide.into, wide.activation, wide.out):
            assert isinstance(part(layer, path), nn.Module)
        if wide.gate:
            assert isinstance(part(layer, wide.gate), nn.Module)
    for path in (found.head.output, found.head.dense, found.head.norm):
        assert path is None or isinstance(head_part(model, path), nn.Module)
    if found.final_norm:
        assert isinstance(part(model.base_model, found.final_norm), nn.Module)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_parts_of_a_layer_compute_what_the_layer_computes(family):
    model = decomposable.shared_model(family)
    with torch.no_grad():
        for trace in traces(model, decomposable.batch(model)):
            inputs = [state.x for state in trace.layers[1:]]
            for state, after in zip(trace.layers, [*inputs, None], strict=True):
                parts = state.parts
                before = parts.norms[0](state.x) if parts.norm_first else state.x
                values = parts.value(before).unflatten(-1, (len(state.values), -1)).transpose(0, 1)
                middle = parts.output((state.attention @ values).transpose(0, 1).flatten(1)) + state.x
                between = parts.norms[1 if parts.norm_first else 0](middle)
                wide = parts.into(between)
                height = wide if parts.gate is None else parts.gate(between)
                active = activations.slope(parts.activation)(height) * height
                out = parts.out(active if parts.gate is None else active * wide)
                answer = out + middle if parts.norm_first else parts.norms[1](out + between)
                torch.testing.assert_close(middle, state.middle, rtol=0, atol=1e-10)
                torch.testing.assert_close(answer, state.answer(torch.arange(len(middle))), rtol=0, atol=1e-10)
                if after is not None:
                    torch.testing.assert_close(answer, after, rtol=0, atol=1e-10)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_parts_of_a_head_compute_the_logits(family):
    model = decomposable.shared_model(family)
    batch = decomposable.batch(model)
    parts = head_parts(model.model)
    with torch.no_grad():
        readout = model.readout(batch, torch.zeros(len(batch), dtype=torch.long))
        for weights, trace in zip(readout, traces(model, batch), strict=True):
            end = trace.layers[-1].answer(torch.arange(len(trace.positions)))
            pooled = weights[trace.positions] @ (end if trace.final is None else trace.final(end))
            if parts.dense is not None:
                height = parts.dense(pooled)
                pooled = activations.slope(parts.activation)(height) * height
            pooled = pooled if parts.norm is None else parts.norm(pooled)
            torch.testing.assert_close(parts.output(pooled), trace.logits, rtol=0, atol=1e-10)


def test_shared_layers_come_as_often_as_they_run():
    first, second = layers(decomposable.shared_model("albert").model)
    assert first is second


def test_grouped_queries_share_a_value_projection():
    model = decomposable.shared_model("llama").model
    heads = layer_parts(model, layers(model)[0]).value.weight.unflatten(0, (4, 8))
    own = model.model.layers[0].self_attn.v_proj.weight.unflatten(0, (2, 8))
    torch.testing.assert_close(heads, torch.stack([own[0], own[0], own[1], own[1]]))


def test_an_unknown_family_is_told_which_are_known_and_where_to_add_it():
    config = hf.FNetConfig(vocab_size=50, hidden_size=8, num_hidden_layers=1, intermediate_size=8)
    with pytest.raises(ExegeteError, match=r"'fnet'.*bert.*llama.*models/families"):
        architecture_of(hf.FNetForSequenceClassification(config))


def test_a_record_that_does_not_fit_says_so():
    with pytest.raises(ExegeteError, match="expected Linear to have the part 'dense'"):
        part(nn.Linear(2, 2), "dense")


def test_an_adapter_is_refused_with_advice():
    with pytest.raises(ExegeteError, match="merge_and_unload"):
        affine(nn.Bilinear(2, 2, 2))


@pytest.mark.parametrize("name", sorted(activations.SLOPES))
def test_slopes_times_input_are_the_activations(name):
    function = hf.activations.ACT2FN[name]
    x = torch.tensor([-30.0, -5.0, -1.7, -0.3, -1e-2, -1e-5, 0.0, 1e-9, 1e-3, 0.99e-2, 1.01e-2, 0.4, 2.0, 6.0]).double()
    close = {"rtol": 1e-10, "atol": 1e-14}  # transformers writes a constant of gelu_fast with ten digits
    torch.testing.assert_close(activations.slope(name)(x) * x, function(x), **close)
    assert activations.slope(activations.name_of(function)) is activations.slope(name)
    steepness, height = activations.tangent(name, x)
    torch.testing.assert_close(steepness * x + height, function(x), **close)


def test_slopes_have_derivatives_near_zero():
    x = torch.tensor([-0.5, -1.01e-2, -0.99e-2, -1e-7, 1e-9, 0.3], dtype=torch.float64, requires_grad=True)
    for name in ("gelu", "gelu_new", "silu", "quick_gelu", "tanh"):
        assert torch.autograd.gradcheck(activations.slope(name), x)


def test_an_activation_without_a_slope_is_named():
    with pytest.raises(ExegeteError, match="Sigmoid"):
        activations.name_of(nn.Sigmoid())
