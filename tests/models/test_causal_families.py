"""Gradients, attention and perturbation of generated text in every family, against transformers itself."""

import pytest
import torch

from causal import CAUSAL, causal
from expound import explainer

PROMPT, RESPONSE = list(range(5, 17)), [40, 41]
METHODS = ["input_x_gradient", "attn_lrp", "attention_rollout", "occlusion?perturbation=remove&unit=token"]


@pytest.fixture(params=CAUSAL)
def model(request):
    return causal(request.param, torch.float32 if "experts" in str(CAUSAL[request.param]) else torch.float64)


def assert_close(found, expected, model):
    loose = {"rtol": 1e-3, "atol": 1e-4} if model.dtype == torch.float32 else {"rtol": 1e-4, "atol": 1e-6}
    torch.testing.assert_close(found, expected, **loose)


def test_gradients_are_those_of_the_log_probability(model):
    batch = model.batch(PROMPT, RESPONSE)
    embedded = model.model.get_input_embeddings()(batch.inputs["input_ids"])
    leaf = embedded.detach().requires_grad_()
    logits = model.model(inputs_embeds=leaf).logits[0, len(PROMPT) - 1 : -1].log_softmax(-1)
    value = logits[[0, 1], RESPONSE].sum()
    (slope,) = torch.autograd.grad(value, leaf)
    expected = (slope * leaf).sum(-1).detach()[0, : len(PROMPT)]
    found = explainer("input_x_gradient").attribute(model, batch)[0, : len(PROMPT)].detach()
    assert_close(found, expected, model)


@torch.no_grad()
def test_attention_is_transformers_own(model):
    batch = model.batch(PROMPT, RESPONSE)
    found = explainer("attention_last").attribute(model, batch, 1)[0]
    model.model.set_attn_implementation("eager")
    own = model.model(batch.inputs["input_ids"], output_attentions=True).attentions[-1][0].mean(0)
    assert_close(found[: len(PROMPT)], own[len(PROMPT), : len(PROMPT)], model)


@torch.no_grad()
def test_perturbation_is_a_loop_over_positions(model):
    batch = model.batch(PROMPT, RESPONSE)
    found = explainer("occlusion?unit=token&perturbation=remove").attribute(model, batch)[0]

    def log_prob(prompt):
        logits = model.model(torch.tensor([prompt + RESPONSE])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        return logits[[0, 1], RESPONSE].sum()

    for place in range(len(PROMPT)):
        assert_close(found[place], log_prob(PROMPT) - log_prob(PROMPT[:place] + PROMPT[place + 1 :]), model)


def test_adapters_are_explained_with_what_they_add():
    peft = pytest.importorskip("peft")
    plain = causal("llama")
    batch = plain.batch(PROMPT, RESPONSE)
    before = explainer("input_x_gradient").attribute(plain, batch).detach()
    config = peft.LoraConfig(target_modules=["q_proj", "v_proj"], r=2, init_lora_weights=False, task_type="CAUSAL_LM")
    adapted = type(plain)(peft.get_peft_model(plain.model, config).double().eval())
    found = {method: explainer(method).attribute(adapted, batch).detach() for method in METHODS}
    merged = type(plain)(adapted.model.merge_and_unload())
    assert not torch.allclose(before, found["input_x_gradient"], rtol=1e-3)
    for method, scores in found.items():
        torch.testing.assert_close(scores, explainer(method).attribute(merged, batch).detach(), rtol=1e-5, atol=1e-8)
