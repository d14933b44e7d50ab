import pytest
import torch
from torch import nn

import decomposable
from decomposable import FAMILIES
from expound.errors import ExpoundError
from expound.models import Capture
from expound.models.layers.architecture import get_layers
from expound.models.layers.backward_rules import apply_backward_rules
from expound.models.layers.held_factors import DerivativeRules, HeldFactors
from expound.models.layers.operations import mark_input
from expound.models.passes.capture import intercept_inputs
from families import sweep_others

CAPTURE = Capture(differentiable_twice=True)
RULES = [
    DerivativeRules(),
    DerivativeRules(gate="both"),
    DerivativeRules(attention="shared", gate="both"),
    DerivativeRules(attention="shared", gate="both", activations=False, temperature=2.0),
    DerivativeRules(attention="free", gate="free", norms=False, activations=False, temperature=0.5),
]


def count_hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def run_from_start(model, batch, factors, start):
    """Logits of the network held at recorded factors, with `start` in place of what enters the first layer."""
    with (
        apply_backward_rules(model.model, factors.make_replay()),
        intercept_inputs(get_layers(model.model), lambda n, x: mark_input(start) if n == 0 else x),
    ):
        return model(batch, capture=CAPTURE).logits


@pytest.mark.parametrize("family", sweep_others(FAMILIES))
@pytest.mark.parametrize("rules", RULES)
def test_the_answer_stays(family, rules):
    model = decomposable.shared_model(family)
    batch = decomposable.batch(model)
    expected = model(batch).logits
    with apply_backward_rules(model.model, HeldFactors(), rules):
        torch.testing.assert_close(model(batch, capture=CAPTURE).logits, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(model(batch).logits, expected, rtol=0, atol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_held_at_its_factors_the_network_is_affine(family):
    model = decomposable.shared_model(family)
    batch = decomposable.batch(model)
    factors = HeldFactors(record=True)
    with (
        torch.no_grad(),
        apply_backward_rules(model.model, factors),
        intercept_inputs(get_layers(model.model)) as inputs,
    ):
        logits = model(batch, capture=CAPTURE).logits
    with torch.no_grad():
        torch.testing.assert_close(run_from_start(model, batch, factors, inputs[0]), logits, rtol=0, atol=1e-10)
        other = torch.randn_like(inputs[0])
        ends = [run_from_start(model, batch, factors, x) for x in (inputs[0], other, 3 * inputs[0] - 2 * other)]
    torch.testing.assert_close(3 * ends[0] - 2 * ends[1], ends[2], rtol=0, atol=1e-9)


def test_nothing_is_left_on_the_model_after_an_error():
    for family in ["bert", "llama", "big_bird", "vit"]:
        for rules in RULES:
            model = decomposable.shared_model(family)
            batch = decomposable.batch(model)
            before = (count_hooks(model.model), model.config._attn_implementation, model(batch).logits)

            def fail(call, value):
                if call == 1:
                    raise RuntimeError("stop here")
                return value

            with (
                pytest.raises(RuntimeError, match="stop here"),
                apply_backward_rules(model.model, HeldFactors(), rules),
                intercept_inputs(get_layers(model.model), fail),
            ):
                model(batch, capture=CAPTURE)
            assert count_hooks(model.model) == before[0]
            assert model.config._attn_implementation == before[1]
            torch.testing.assert_close(model(batch).logits, before[2], rtol=0, atol=0)
            assert torch.zeros(2).softmax(0).tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("rules", "message"),
    [({"gate": "x"}, "both, free, value"), ({"attention": "x"}, "free, held, shared"), ({"temperature": 0}, "above 0")],
)
def test_unknown_rules_name_the_known_ones(rules, message):
    with pytest.raises(ExpoundError, match=message):
        DerivativeRules(**rules)


def test_inputs_are_kept_in_the_order_of_the_calls_and_can_be_changed():
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    x = torch.randn(1, 2)
    with intercept_inputs([first, second, first], lambda n, value: value * 2 if n == 1 else value) as seen:
        middle = first(x)
        end = second(middle)
    torch.testing.assert_close(seen, [x, 2 * middle])
    torch.testing.assert_close(end, second(2 * middle))
    assert count_hooks(nn.Sequential(first, second)) == 0
