import pytest
import torch
import transformers as hf
from torch import nn

import decomposable
import families
import two_sided
from expound.errors import ExpoundError
from expound.models.layers import activations
from expound.models.layers.architecture import get_layers, get_module
from expound.models.layers.layer_parts import get_layer_parts, is_norm_layer, to_affine, to_norm
from expound.models.passes.layer_calls import find_record

CONFIGS = {name: known.config for name, known in families.FAMILIES.items()} | two_sided.SMALL


def test_shared_layers_come_as_often_as_they_run():
    first, second = get_layers(decomposable.shared_model("albert").model)
    assert first is second


def test_grouped_queries_share_a_value_projection():
    model = decomposable.shared_model("llama")
    heads = get_layer_parts(
        get_layers(model.model)[0], find_record(model, decomposable.batch(model)).layers[0]
    ).value.weight.unflatten(0, (4, 8))
    own = model.model.model.layers[0].self_attn.v_proj.weight.unflatten(0, (2, 8))
    torch.testing.assert_close(heads, torch.stack([own[0], own[0], own[1], own[1]]))


def test_a_record_that_does_not_fit_says_so():
    with pytest.raises(ExpoundError, match="expected Linear to have the part 'dense'"):
        get_module(nn.Linear(2, 2), "dense")


def test_an_adapter_is_refused_with_advice():
    with pytest.raises(ExpoundError, match="merge_and_unload"):
        to_affine(nn.Bilinear(2, 2, 2))


def test_slopes_times_input_are_the_activations():
    for name in sorted(activations.SLOPES):
        function = hf.activations.ACT2FN[name]
        x = torch.tensor(
            [-30.0, -5.0, -1.7, -0.3, -1e-2, -1e-5, 0.0, 1e-9, 1e-3, 0.99e-2, 1.01e-2, 0.4, 2.0, 6.0]
        ).double()
        close = {"rtol": 1e-10, "atol": 1e-14}  # transformers writes a constant of gelu_fast with ten digits
        torch.testing.assert_close(activations.zero_origin_slope(name)(x) * x, function(x), **close)
        found = activations.find_activation_name(function)
        assert activations.zero_origin_slope(found) is activations.zero_origin_slope(name)
        slope, height = activations.compute_tangent(name, x)
        torch.testing.assert_close(slope * x + height, function(x), **close)


def test_slopes_have_derivatives_near_zero():
    x = torch.tensor([-0.5, -1.01e-2, -0.99e-2, -1e-7, 1e-9, 0.3], dtype=torch.float64, requires_grad=True)
    for name in ("gelu", "gelu_new", "silu", "quick_gelu", "tanh"):
        assert torch.autograd.gradcheck(activations.zero_origin_slope(name), x)


def test_an_activation_without_a_slope_has_no_name():
    assert activations.find_activation_name(nn.Sigmoid()) is None
    with pytest.raises(ExpoundError, match="sigmoid"):
        activations.zero_origin_slope("sigmoid")


@torch.no_grad()
def test_norms_read_from_their_weights_are_those_of_transformers():
    """Other tests replace RMSNorms by torch's with the weights that are read here, so these are compared themselves."""
    for family in sorted(CONFIGS):
        config = hf.AutoConfig.for_model(family, **CONFIGS[family])
        torch.manual_seed(0)
        found = [module for module in hf.AutoModel.from_config(config).modules() if is_norm_layer(module)]
        assert found
        for module in found:
            module.weight.add_(0.1 * torch.randn_like(module.weight))
            x = 3 * torch.randn(5, len(module.weight)) + 1
            torch.testing.assert_close(to_norm(module)(x), module(x), rtol=1e-5, atol=1e-5)
