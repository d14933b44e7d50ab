"""A second pass in forward mode that takes its primals from the first one."""

from collections import deque
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call

from expound.training.bilevel.replayed_pass import RecordedOutput, RecordedPass, ReplayedPass

WITH_TANGENTS = {
    "all": ("0.weight", "0.bias", "2.weight", "2.bias", "4.weight"),
    "the last": ("4.weight",),
    "a bias": ("2.bias",),
    "none": (),
}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), nn.GELU(), nn.Linear(4, 2, bias=False)).double()


def dual_pass(model, names, inputs):
    """Primal and tangent of the output, along a direction of some weights."""
    generator = torch.Generator().manual_seed(1)
    weights = {}
    for name, value in model.named_parameters():
        direction = torch.randn(value.shape, generator=generator, dtype=value.dtype)
        weights[name] = forward_ad.make_dual(value.detach(), direction) if name in names else value.detach()
    return forward_ad.unpack_dual(functional_call(model, weights, (inputs,)))


@pytest.mark.parametrize("which", WITH_TANGENTS)
def test_tangents_equal_those_of_a_full_forward_mode_pass(which):
    model, inputs = network(), torch.randn(2, 7, 3, dtype=torch.float64)
    with RecordedPass() as before:
        model(inputs)
    assert len(before.outputs) == 3
    with torch.no_grad(), forward_ad.dual_level():
        expected = dual_pass(model, WITH_TANGENTS[which], inputs)
        with ReplayedPass(before) as again:
            found = dual_pass(model, WITH_TANGENTS[which], inputs)
        assert not again.outputs
        torch.testing.assert_close(found.primal, expected.primal, rtol=1e-14, atol=0)
        if which == "none":
            assert found.tangent is None
            assert expected.tangent is None
        else:
            torch.testing.assert_close(found.tangent, expected.tangent, rtol=1e-12, atol=1e-14)


def test_recorded_outputs_are_reused_and_other_maps_are_computed():
    model, inputs = network(), torch.randn(4, 3, dtype=torch.float64)
    with RecordedPass() as before:
        hidden = model[0](inputs)
    ((place, kept),) = before.outputs
    assert torch.equal(kept, hidden)
    for weight, expected in ((place, hidden + 1), (0, hidden)):
        before.outputs = deque([RecordedOutput(weight, hidden.detach() + 1)])
        with torch.no_grad(), forward_ad.dual_level(), ReplayedPass(before):
            found = dual_pass(model, WITH_TANGENTS["all"], inputs).primal
        torch.testing.assert_close(found, model[1:](expected).detach())


@pytest.mark.parametrize("training", [True, False])
def test_dropout_repeats_its_noise_and_later_draws_are_unchanged(training):
    """Noise is drawn between two dropouts, and the second one gets the transpose."""
    drop = nn.Dropout(0.3).train(training)

    def run(inputs):
        return drop(drop(inputs).t() + torch.randn(5, 4, dtype=inputs.dtype))

    inputs, along = torch.randn(2, 4, 5, dtype=torch.float64)
    results = []
    for scope in (nullcontext(), before := RecordedPass()):
        torch.manual_seed(3)
        with scope:
            results.append(run(inputs))
    assert torch.equal(*results)
    assert len(before.dropped) == (2 if training else 0)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(inputs, along)
        torch.manual_seed(3)
        expected = forward_ad.unpack_dual(run(dual))
        torch.manual_seed(3)
        with ReplayedPass(before):
            found = forward_ad.unpack_dual(run(dual))
        drawn = torch.rand(1)
    assert torch.equal(found.primal, expected.primal)
    assert torch.equal(found.tangent, expected.tangent)
    torch.manual_seed(3)
    run(inputs)
    assert torch.equal(drawn, torch.rand(1))
