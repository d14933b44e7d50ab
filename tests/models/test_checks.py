from __future__ import annotations

import pytest
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import expound
from expound.errors import ExpoundError
from expound.models.checks import check_attention, find_readout
from expound.models.hugging_face import Probe, find_failure
from families import examples, processor, tiny
from small import small
from sweep.run_sweep import make_batch
from sweep.tiny_models import build


def load_model(model_type, head="SequenceClassification", **changes):
    model = expound.load(build(model_type, head, **changes), task="generation" if head == "CausalLM" else None)
    return model, make_batch(model, head)


@pytest.mark.parametrize(("family", "expected"), [("bert", "first"), ("gpt2", "last"), ("vit", "first")])
def test_the_readout_is_found_by_the_gradient(family, expected):
    model = small(family)
    assert find_readout(model, model.encode(examples(family, 2))) == expected


def test_readouts_are_found_by_behavior_not_by_configuration():
    model = small("modernbert", classifier_pooling="mean")
    assert find_readout(model, model.encode(["a small town and its river"])) == "all"
    assert find_readout(*load_model("doge")) == "last"
    assert find_readout(*load_model("eurobert")) is None


def test_hybrid_models_refuse_attention_and_say_what_works():
    model, batch = load_model("qwen3_next")
    with torch.no_grad(), pytest.raises(ExpoundError, match=r"its 2 layers have 1 attention maps; .*occlusion"):
        expound.explainer("attention_rollout").attribute(model, batch, torch.tensor([0, 1]))
    unchecked = model.without_checks()
    assert find_failure(unchecked, "attention", Probe(unchecked, batch)) == ""


def test_an_unknown_part_of_a_layer_is_found():
    # The convolution is after the first layer, which may be the last one.
    for layers in (2, 1):
        model = small("deberta-v2", conv_kernel_size=3, conv_act="tanh", num_hidden_layers=layers)
        batch = model.encode(["a moving film about a small town"])
        # Small answers are no smaller errors.
        for weight in model.model.classifier.parameters():
            weight.data *= 1e-4
        for method in ("decompx_classifier", "globenc"):
            with (
                torch.no_grad(),
                pytest.raises(ExpoundError, match="layer 0 is not what its attention, norms and feed"),
            ):
                expound.explainer(method).attribute(model, batch)


def test_bidirectional_language_models_are_refused_and_causal_roberta_is_exact():
    model, batch = load_model("roberta", "CausalLM")
    with pytest.raises(ExpoundError, match="not those that RobertaForCausalLM gives"):
        expound.explainer("occlusion").attribute(model, batch)
    model, batch = load_model("roberta", "CausalLM", is_decoder=True)
    ids = batch.inputs["input_ids"][0]
    own = model.generator(input_ids=ids[None]).logits[0, -3:-1].log_softmax(-1).gather(1, ids[-2:, None])[:, 0]
    torch.testing.assert_close(model(batch).logits[0, :, 0], own)
    assert expound.explainer("occlusion").attribute(model, batch).isfinite().all()


def test_padding_that_a_model_does_not_mask_changes_nothing():
    model, batch = load_model("fnet")
    together = expound.explainer("occlusion", unit="token").attribute(model, batch, torch.tensor([1, 1]))
    alone, columns = batch.select([1]).trim_padding()
    own = expound.explainer("occlusion", unit="token").attribute(model, alone, torch.tensor([1]))
    torch.testing.assert_close(together[1:, columns], own)


def test_a_check_runs_once_and_leaves_the_model_as_it_was():
    model = small("bert")
    batch, passes = model.encode(examples("bert", 2)), []
    hook = model.model.base_model.register_forward_hook(lambda *_: passes.append(None))
    for expected in (9, 1):
        passes.clear()
        with torch.no_grad():
            expound.explainer("attention_rollout").attribute(model, batch, torch.tensor([0, 1]))
        assert len(passes) == expected
    hook.remove()
    assert all(weight.requires_grad and weight.grad is None for weight in model.model.parameters())


@pytest.mark.parametrize("factor", [1, 0])
def test_rounding_of_a_deep_model_is_told_from_another_attention(factor, monkeypatch):
    plain = ALL_ATTENTION_FUNCTIONS["sdpa"]
    monkeypatch.setitem(
        ALL_ATTENTION_FUNCTIONS, "sdpa", lambda module, query, *rest, **how: plain(module, query * factor, *rest, **how)
    )
    model = expound.load(tiny("llama", seed=1, dtype=torch.bfloat16, num_hidden_layers=12), processor("llama"))
    # Of sixty random texts, four whose predictions some processors round by more than the tolerance.
    texts = ["film not very plot the dull small very", "the and small its", "and good film dull bad"]
    texts.append("bad not small and town river town its")
    with torch.no_grad():
        refused = {bool(check_attention(model, Probe(model, model.encode([text])))) for text in texts}
    assert refused == {factor == 0}


def test_the_report_says_what_is_exact_and_what_is_refused():
    report = expound.check_model(small("bert"))
    assert report["attention_rollout"].state == "exact"
    assert "occlusion" in str(report)
    half = expound.check_model(expound.load(tiny("bert", dtype=torch.bfloat16), processor("bert")))
    assert half["saliency"].state == "approximate"
    assert "bfloat16" in half["saliency"].reason
