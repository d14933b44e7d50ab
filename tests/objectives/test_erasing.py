"""Criteria that remove words: what replaces the words, and where gradients go."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import expound
from expound.data import generated_tokenizer
from expound.explainers.units import number_units
from expound.objectives import ComprehensivenessLoss, SufficiencyLoss
from expound.objectives.criterion import select_top
from small import shared
from test_criteria import ERASING, make_explainer, make_labeled_batch, step_of


@torch.no_grad()
def test_what_is_away_can_be_zero_vectors():
    model = shared("bert")
    batch = make_labeled_batch(model)
    term = ComprehensivenessLoss(make_explainer(model), perturbation="zero")
    step = step_of(model, batch, term)
    scores, clean = term.explain_prediction(step), step.outputs.logits.log_softmax(-1)
    target = clean.argmax(-1, keepdim=True)
    losses = []
    for share in (0.01, 0.05, 0.1, 0.2, 0.5):
        away = select_top(scores, batch.erasable, [share] * len(batch)).bool() & batch.erasable
        left = model(batch, model.embed(batch).masked_fill(away[..., None], 0.0)).logits.log_softmax(-1)
        losses.append((1 + left.gather(1, target) - clean.gather(1, target)).clamp(min=0))
    torch.testing.assert_close(term(step), torch.stack(losses).mean(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", ERASING)
@pytest.mark.parametrize("held", [True, False])
def test_the_clean_answer_gets_a_gradient_unless_it_is_held_still(kind, held):
    model = shared("bert")
    term = kind(make_explainer(model), detach_clean=held, margin=9.0)
    step = step_of(model, make_labeled_batch(model), term)
    logits = step.outputs.logits.detach().requires_grad_()
    term(replace(step, outputs=replace(step.outputs, logits=logits))).backward()
    assert (logits.grad is None) == held


def test_the_temperature_is_that_of_the_choice():
    model = shared("bert")
    batch, single = make_labeled_batch(model), make_explainer(model)
    term = SufficiencyLoss(single, fractions=(0.2,), sample_fractions=False, margin=9.0, temperature=1.0)
    step = step_of(model, batch, term)
    (found,) = torch.autograd.grad(term(step), single.head_coefficients, retain_graph=True)
    top = select_top(term.explain_prediction(step), batch.erasable, [0.2] * len(batch), 1.0)
    left = model(batch, model.blend(batch, torch.where(batch.erasable, top, 1.0))).logits
    expected = term.compute_losses(step, left, step.outputs.logits.detach()).mean()
    (slope,) = torch.autograd.grad(expected, single.head_coefficients)
    assert slope.any()
    torch.testing.assert_close(found, slope, rtol=1e-8, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("unit", ["token", "word", "source"])
def test_the_log_probability_of_a_response_loses_and_keeps_whole_units_of_its_prompt(unit):
    """The expected losses are computed text by text, with transformers alone, from the scores and the units."""
    tokenizer = generated_tokenizer()
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    torch.manual_seed(0)
    raw = LlamaForCausalLM(LlamaConfig(**sizes, intermediate_size=32, vocab_size=len(tokenizer), pad_token_id=0))
    model, words = expound.load((raw.double(), tokenizer), task="generation"), raw.get_input_embeddings().weight
    texts = ["the film is good . it shines .", "a bad day", "the plot is dull"]
    batch = model.encode(
        [
            {"sources": texts, "prompt": "{sources} is it good ?", "response": "the film is good"},
            {"sources": texts[1:], "prompt": "{sources} how is it ?", "response": "it is bad ."},
        ]
    )
    ids, number = batch.inputs["input_ids"], number_units(batch, unit)

    def log_probability(row, embeddings):
        real = batch.attended[row]
        found = raw(inputs_embeds=embeddings[real][None]).logits[0, :-1].log_softmax(-1)
        own = found.gather(1, ids[row][real][1:, None])[:, 0]
        return float(own[batch.response[row][real][1:]].sum())

    for kind in (ComprehensivenessLoss, SufficiencyLoss):
        term, losses = kind(make_explainer(model, normalizer="softmax"), fractions=(0.3, 0.5), unit=unit), []
        step = step_of(model, batch, term)
        scores = term.explain_prediction(step)
        for fraction in term.fractions:
            for row in range(len(batch)):
                units = range(int(number[row].max()) + 1)
                ranked = sorted(units, key=lambda each: -float(scores[row][number[row] == each].sum()))
                top = set(ranked[: math.ceil(fraction * len(ranked))])
                changed = words[ids[row]].clone()
                for each in units:
                    if (each in top) == (kind is ComprehensivenessLoss):
                        changed[number[row] == each] = words[model.mask_id]
                fall = log_probability(row, words[ids[row]]) - log_probability(row, changed)
                losses.append(max(0.0, term.margin + (fall if kind is SufficiencyLoss else -fall)))
        assert float(term(step)) == pytest.approx(sum(losses) / len(losses), rel=1e-10)
