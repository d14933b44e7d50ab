"""Citations against ablations (brute force, finite differences, kept answers), and divergence from the start model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import decomposable
import families
from causal import causal
from chats import CHAT, chatting
from expound import ExpoundError, explainer
from expound.explainers.learned.attention_to_source import AttentionToSource
from expound.explainers.perturbation.context_cite import ContextCite
from expound.explainers.units import number_units
from expound.models.generation.model import GeneratingModel
from expound.objectives import AblationFidelity, CrossEntropy, KlToOriginal, StepContext, objective, task_losses
from expound.objectives.teacher_memory import hash_examples
from expound.testing.models import make_examples, random_model, replace_layer_norms
from expound.training.loop.lora import add_lora
from expound.training.loop.training_module import TrainingModule

SOURCES = [[-1] + [0] * 3 + [1] * 2 + [2] * 4, [-1] + [0] * 2 + [1] * 5 + [2]]


def make_model_and_batch(family="llama"):
    """Return a language model and two prompts of three sources, with responses of three tokens and two."""
    model = causal(family)
    decomposable.replace_rms_norms(model.model)
    prompts = [[5 + (7 * i + j) % 40 for i in range(len(row))] for j, row in enumerate(SOURCES)]
    return model, model.batch(prompts, [[9, 4, 11], [8, 30]], unit_of=SOURCES)


FIRST = StepContext()


def term(model, made, batch, context=FIRST):
    return TrainingModule(model, [made]).eval()(batch, context)["terms"][0]


@pytest.mark.parametrize("method", ["input_x_gradient", "decompx_linear?output=logit"])
def test_it_is_the_correlation_of_sums_and_answers(method):
    model, batch = make_model_and_batch()
    made, context = AblationFidelity(explainer(method), n_samples=6, unit="source"), StepContext(seed=3, number=5)
    found, target = [], model.resolve_target(batch)
    scores = made.explainer.attribute(model, batch, target).detach()
    for row, name in enumerate(hash_examples(batch, target)):
        sets = torch.rand(6, 3, generator=context.generator(f"ablations of {name}")) < made.keep_probability
        ids, of = batch.inputs["input_ids"][row], batch.unit_of[row]
        sums, answers = [], []
        for one in sets:
            stays = [k for k in range(batch.length) if batch.attended[row, k] and (of[k] < 0 or one[of[k]])]
            prompt, said = (
                [int(ids[k]) for k in stays if bool(batch.response[row, k]) == own] for own in (False, True)
            )
            alone = model.batch([prompt], [said])
            log = model.task.log_probability(model(alone).logits, model.resolve_target(alone)).detach()[0]
            answers.append(float(log - torch.log1p(-log.exp())))
            sums.append(sum(float(scores[row][of == unit].sum()) for unit in range(3) if one[unit]))
        found.append(np.corrcoef(sums, answers)[0, 1])
    assert term(model, made, batch, context).item() == pytest.approx(-np.mean(found), abs=1e-6)


@pytest.mark.parametrize("method", ["input_x_gradient", "decompx_linear", "attention_to_source"])
def test_the_gradient_of_generated_text_is_the_derivative_through_the_citation(method):
    """Answers are kept over the steps, so that only the citation moves."""
    model, batch = make_model_and_batch()
    learned = AttentionToSource.for_model(model).double() if method == "attention_to_source" else None
    made = AblationFidelity(learned or explainer(method), lifetime=1, unit="source")
    assert_derivative(TrainingModule(model, [made]).eval(), batch)
    assert made.memory.size


@pytest.mark.parametrize("method", ["input_x_gradient", "decompx_linear"])
def test_the_gradient_of_a_classifiers_words_is_the_derivative(method):
    model = random_model()
    replace_layer_norms(model)
    made = AblationFidelity(explainer(method), lifetime=1, perturbation="mask")
    assert_derivative(TrainingModule(model, [made]).eval(), model.encode(make_examples(2)))


def assert_derivative(module, batch):
    weights = {name: weight.detach() for name, weight in module.named_parameters()}
    random = torch.Generator().manual_seed(0)
    ways = {n: 0.1 * torch.randn(2, *w.shape, generator=random, dtype=w.dtype) for n, w in weights.items()}

    def at(point):
        moved = {name: weight + torch.tensordot(point, ways[name], 1) for name, weight in weights.items()}
        return torch.func.functional_call(module, moved, (batch, StepContext()))["terms"]

    point = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(at(point).sum(), point)
    assert slope.abs().min() > 1e-4
    assert torch.autograd.gradcheck(at, (point,), atol=1e-6, rtol=1e-4)


def test_answers_are_kept_for_their_lifetime_and_sets_are_new_after_it(monkeypatch):
    model, batch = make_model_and_batch()
    made, asked = AblationFidelity(lifetime=2, unit="source"), []
    evaluate = ContextCite.evaluate_masks
    monkeypatch.setattr(ContextCite, "evaluate_masks", lambda *args: asked.append(1) or evaluate(*args))
    module = TrainingModule(model, [made]).eval()
    values = [float(module(batch, StepContext(number=n, epoch=n))["terms"]) for n in range(4)]
    assert len(asked) == 2
    assert values[0] == values[1] != values[2] == values[3]
    evaluated = [float(module(batch, StepContext(number=n, part=n, training=False))["terms"]) for n in range(2)]
    assert evaluated[0] == evaluated[1]


def test_every_fourth_step_counts_four_times_and_evaluation_once():
    model, batch = make_model_and_batch()
    each, fourth = AblationFidelity(unit="source"), AblationFidelity(unit="source", interval=4)
    found = [float(term(model, fourth, batch, StepContext(number=number))) for number in range(5)]
    assert found[1:4] == [0.0] * 3
    assert found[4] == pytest.approx(4 * float(term(model, each, batch, StepContext(number=4))))
    judged = StepContext(number=3, training=False)
    assert term(model, fourth, batch, judged) == term(model, each, batch, judged)


def test_one_unit_alone_pulls_nowhere():
    model = causal("llama")
    batch = model.batch([[5, 6, 7]], [[9]], unit_of=[[0, 0, 0]])
    found = term(model, AblationFidelity(unit="source"), batch)
    found.backward()
    assert abs(float(found)) <= 1
    assert all(weight.grad is None or weight.grad.isfinite().all() for weight in model.parameters())


def test_sentences_and_sources_of_a_chat_are_units():
    model = chatting()
    batch = model.encode([CHAT])
    for level in ("source", "sentence", "word"):
        made = AblationFidelity(unit=level)
        assert number_units(batch, level).max() >= 1
        assert -1 <= float(term(model, made, batch)) <= 1


def test_what_cannot_be_trained_is_refused():
    for spec, said in (
        ("ablation_fidelity?explainer=occlusion", "occlusion cannot guide a model"),
        ("ablation_fidelity?n_samples=1", "n_samples of at least 2"),
        ("ablation_fidelity?lifetime=-1", "lifetime ≥ 0"),
        ("ablation_fidelity?interval=0", "interval ≥ 1"),
        ("ablation_fidelity?weight=-1", "weight of ablation_fidelity is at least 0"),
    ):
        with pytest.raises(ExpoundError, match=said):
            objective(spec)


def test_divergence_from_the_start_is_that_of_the_whole_vocabulary():
    model, batch = make_model_and_batch()
    module = TrainingModule(model, [KlToOriginal()]).eval()
    assert float(module(batch, StepContext())["terms"]) == pytest.approx(0, abs=1e-12)
    before = [torch.nn.functional.log_softmax(_logits(model, batch, row), -1) for row in range(2)]
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.05 * torch.randn_like(weight))
    found = module(batch, StepContext())["terms"]
    expected = []
    for row in range(2):
        after = torch.nn.functional.log_softmax(_logits(model, batch, row), -1)
        expected.append((before[row].exp() * (before[row] - after)).sum(-1).mean())
    torch.testing.assert_close(found[0], torch.stack(expected).mean(), rtol=1e-9, atol=1e-12)


def _logits(model, batch, row):
    """Return the logits [r, V] that predict the tokens of a response, from the Hugging Face model alone."""
    ids = batch.inputs["input_ids"][row][batch.attended[row]]
    count = int(batch.response[row].sum())
    with torch.no_grad():
        return model.model(ids[None]).logits[0, -count - 1 : -1]


def test_a_model_with_adapters_is_compared_with_itself_without_them():
    model = GeneratingModel(families.tiny("llama", "CausalLM", dtype=torch.float64, seed=1))
    batch = model.batch([[5, 6, 7]], [[9, 8]])
    plain = _logits(model, batch, 0).log_softmax(-1)
    add_lora(model, 2)
    module = TrainingModule(model, [KlToOriginal()]).eval()
    assert module.objectives[0].original is model
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora" in name:
                weight.add_(0.3)
    after = _logits(model, batch, 0).log_softmax(-1)
    expected = (plain.exp() * (plain - after)).sum(-1).mean()
    assert expected > 1e-6
    torch.testing.assert_close(module(batch, StepContext())["terms"][0], expected, rtol=1e-9, atol=1e-12)


def test_a_response_costs_what_the_language_model_says_it_does():
    model, batch = make_model_and_batch()
    losses, counted = task_losses(model, batch, model(batch).logits)
    assert counted.all()
    for row in range(2):
        ids = batch.inputs["input_ids"][row][batch.attended[row]]
        labels = ids.clone()
        labels[: -int(batch.response[row].sum())] = -100
        expected = model.model(ids[None], labels=labels[None]).loss  # in single precision
        assert float(losses[row]) == pytest.approx(float(expected), rel=1e-5)
    assert float(term(model, CrossEntropy(), batch)) == pytest.approx(float(losses.mean()))
