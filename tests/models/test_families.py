"""Families that nobody described have correct gradients, attention and perturbation all the same."""

from __future__ import annotations

import pytest
import torch
import transformers as hf

import families
from expound import ExpoundError, attribute, explainer
from expound.models import Capture, ExplainedModel
from expound.models.layers.architecture import get_layers
from expound.models.layers.backward_rules import apply_backward_rules
from expound.models.layers.held_factors import HeldFactors

UNKNOWN = {"ernie": {}, "helium": {"head_dim": 8, "num_key_value_heads": 2, "bos_token_id": 2, "eos_token_id": 3}}


@pytest.fixture(params=UNKNOWN)
def model(request):
    """A tiny random model of an architecture that expound does not know."""
    torch.manual_seed(0)
    config = hf.AutoConfig.for_model(request.param, **families.SIZE, **UNKNOWN[request.param], num_labels=3)
    made = hf.AutoModelForSequenceClassification.from_config(config).double().eval()
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return ExplainedModel(made, families.tokenizer("bert" if request.param == "ernie" else "gpt2"))


def test_gradients_add_up(model):
    batch = model.encode(families.SENTENCES[:2])
    with torch.no_grad():
        explanation = explainer("integrated_gradients?n_steps=200").explain(model, batch)
        start = model.task.score(model(batch, model.embed_reference(batch)).logits, model.predict(batch))
        rise = model.task.score(model(batch).logits, model.predict(batch)) - start
    torch.testing.assert_close(explanation.scores.sum(1), rise, rtol=1e-3, atol=1e-3)


@torch.no_grad()
def test_attention_is_transformers_own(model):
    batch = model.encode([families.SENTENCES[0]])
    last = explainer("attention_last").explain(model, batch, special_tokens=True).scores[0]
    model.model.set_attn_implementation("eager")
    own = model.model(**batch.inputs, output_attentions=True).attentions[-1][0].mean(0)
    torch.testing.assert_close(last, own[-1 if model.is_decoder else 0])


@torch.no_grad()
def test_perturbation_is_a_loop_over_positions(model):
    batch = model.encode([families.SENTENCES[0]])
    target = model.predict(batch)
    scores = explainer("occlusion?unit=token").attribute(model, batch, target)[0]
    whole = model.probabilities(batch)[0, target]
    for place in batch.content[0].nonzero().flatten().tolist():
        ids = batch.inputs["input_ids"].clone()
        ids[0, place] = model.mask_id
        inputs = {**batch.inputs, "input_ids": ids}
        expected = whole - model.model(**inputs).logits.softmax(-1)[0, target]
        torch.testing.assert_close(scores[place], expected[0])


def test_its_layers_are_the_one_list_of_their_number(model):
    assert len(get_layers(model.model)) == 2
    assert attribute(model, "a film", "value_zeroing")[0].scores.any()


@torch.no_grad()
def test_backward_rules_need_no_record(model):
    batch = model.encode(families.SENTENCES[:1])
    explanation = explainer("cp_lrp").explain(model, batch, [0])
    factors = HeldFactors(record=True)
    with apply_backward_rules(model.model, factors):
        score = model(batch, capture=Capture(differentiable_twice=True)).logits[:, 0]
    for place in batch.attended[0].nonzero().flatten().tolist():
        without = model.embed(batch)
        without[:, place] = 0
        with apply_backward_rules(model.model, factors.make_replay()):
            rest = model(batch, without, Capture(differentiable_twice=True)).logits[:, 0]
        if batch.content[0, place]:
            torch.testing.assert_close(explanation.scores[:, place], score - rest, rtol=0, atol=1e-6)


@torch.no_grad()
def test_decompositions_derive_the_parts_of_layers(model):
    batch = model.encode(families.SENTENCES[:1])
    explanation = explainer("decompx_classifier").explain(model, batch, [0], special_tokens=True)
    torch.testing.assert_close(explanation.scores.sum(1), model(batch).logits[:, 0], rtol=0, atol=1e-6)
    assert explainer("alti").attribute(model, batch, [0]).any()


@torch.no_grad()
def test_a_changed_layer_is_explained_as_it_is_or_named(model):
    layer = get_layers(model.model)[1]
    layer.register_forward_hook(lambda module, inputs, output: output * 2 if torch.is_tensor(output) else output)
    batch = model.encode(families.SENTENCES[:1])
    if model.is_decoder:
        explanation = explainer("decompx_classifier").explain(model, batch, [0], special_tokens=True)
        torch.testing.assert_close(explanation.scores.sum(1), model(batch).logits[:, 0], rtol=0, atol=1e-6)
        return
    # Twice a norm's output is no residual stream.
    with pytest.raises(ExpoundError, match=r"layer 1 .*not understood"):
        attribute(model, "a film", "alti")
