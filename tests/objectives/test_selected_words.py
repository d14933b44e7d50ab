"""Rationale extraction: gates against simulation and integration, gradients against enumeration, and planted words."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset
from scipy.integrate import quad
from torch.nn.functional import cross_entropy

import expound
import families
from expound import ExpoundError, explainer
from expound.cli import main
from expound.explainers.learned.gates import BernoulliGates, HardKumaGates, expect_changes
from expound.explainers.learned.rationale_extractor import RationaleExtractor
from expound.models import ExplainedModel
from expound.objectives import CrossEntropy, SelectedWordsLoss, StepContext
from expound.recipes import RECIPES
from expound.training.loop.training_module import TrainingModule

TINY = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 12, "dtype": torch.float64}
QUIET = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SHAPES = [(0.3, 0.4), (0.7, 0.7), (1.0, 1.0), (2.0, 5.0), (5.0, 0.6)]
WORDS = ("a", "the", "film", "plot", "with", "and", "was", "very")


def model(**changes):
    return ExplainedModel(families.tiny("bert", **TINY, **QUIET, **changes), families.tokenizer("bert"))


def extractor_for(explained, gate):
    """Return an extractor whose gates differ from position to position."""
    made = RationaleExtractor.for_model(explained, gate=gate).double()
    with torch.no_grad():
        made.weight.normal_(0.0, 0.5, generator=torch.Generator().manual_seed(0))
    return made


@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_hard_kuma_against_integration_and_samples(a, b):
    gates = HardKumaGates(torch.tensor([[a]], dtype=torch.float64), torch.tensor([[b]], dtype=torch.float64))

    def density(k):
        return a * b * k ** (a - 1) * (1 - k**a) ** (b - 1)

    above = 0.1 / 1.2
    selected = quad(density, above, 1.0, limit=500)[0]
    assert gates.selected.item() == pytest.approx(selected, abs=1e-6)
    uniform = torch.rand(1, 400_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    samples = gates.sample(uniform)
    assert float(samples.min()) >= 0
    assert float(samples.max()) <= 1
    assert (samples > 0).double().mean().item() == pytest.approx(selected, abs=0.004)
    shares = [(samples == 0).double().mean(), (samples == 1).double().mean()]
    shares.append(1 - shares[0] - shares[1])
    mean = quad(lambda k: k * density(k), 0.0, 1.0, limit=500)[0]
    expected = (0.0, 1.0, min(1.0, max(0.0, 1.2 * mean - 0.1)))[int(torch.stack(shares).argmax())]
    assert gates.most_likely().item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_the_gradient_of_a_sample(a, b):
    uniform = torch.linspace(0.03, 0.97, 7, dtype=torch.float64)[None]

    def sample(a, b):
        gates = HardKumaGates(a.expand_as(uniform), b.expand_as(uniform))
        return gates.sample(uniform), gates.selected

    point = [torch.tensor([[value]], dtype=torch.float64, requires_grad=True) for value in (a, b)]
    assert torch.autograd.gradcheck(sample, point, eps=1e-7, atol=1e-6)


def test_expected_changes_against_enumeration():
    selected = torch.tensor([[0.2, 0.9, 0.4, 0.5]], dtype=torch.float64)
    content = torch.tensor([[True, True, True, False]])
    total = 0.0
    for gates in itertools.product((0, 1), repeat=3):
        probability = np.prod([p if z else 1 - p for z, p in zip(gates, selected[0, :3].tolist(), strict=True)])
        total += probability * sum(first != second for first, second in itertools.pairwise(gates))
    assert expect_changes(selected, content).item() == pytest.approx(total, abs=1e-12)


def test_the_estimated_gradient_is_that_of_the_enumerated_expectation():
    """REINFORCE, averaged over many steps, against the expected loss over all selections of a text of four tokens."""
    explained = model(num_hidden_layers=1)
    batch = explained.encode([{"text": "fine fine", "label": 1}])
    positions = batch.content[0].nonzero().flatten().tolist()
    assert len(positions) == 4
    learned = extractor_for(explained, "bernoulli")
    objective = SelectedWordsLoss(learned, sparsity_weight=0.0)
    explained.model.eval()
    explained.model.requires_grad_(False)
    # gates that matter: the loss differs between selections
    explained.model.classifier.weight.data.mul_(60)

    outputs = explained(batch, capture=learned.capture)
    gates = learned.find_gates(outputs)
    expected = torch.zeros((), dtype=torch.float64)
    for selection in itertools.product((0.0, 1.0), repeat=len(positions)):
        kept = torch.ones(batch.content.shape, dtype=torch.float64)
        probability = torch.ones((), dtype=torch.float64)
        for position, value in zip(positions, selection, strict=True):
            kept[0, position] = value
            chance = gates.logit[0, position].sigmoid()
            probability = probability * (chance if value else 1 - chance)
        logits = explained(batch, explained.embed(batch) * kept[..., None]).logits
        expected = expected + probability * cross_entropy(logits, torch.tensor([1]))
    expected.backward()
    wanted = learned.weight.grad.clone()
    assert wanted.norm() > 1e-3

    # 1,000 draws: each row of a batch has its own
    copies, steps = explained.encode(20 * [{"text": "fine fine", "label": 1}]), 50
    found, values = torch.zeros_like(wanted), 0.0
    module = TrainingModule(explained, [objective])
    for number in range(steps):
        learned.zero_grad()
        term = module.compute_terms(copies, StepContext(number=number))["terms"][0]
        term.backward()
        found += learned.weight.grad / steps
        values += term.item() / steps
    assert values == pytest.approx(expected.item(), rel=0.03)
    assert (found - wanted).norm() < 0.15 * wanted.norm()


@pytest.mark.parametrize("gate", ["hardkuma", "bernoulli"])
def test_the_term_in_evaluation_is_that_of_the_most_likely_gates(gate):
    explained = model()
    rows = [{"text": text, "label": label} for label, text in enumerate(families.examples("bert", 3))]
    learned = extractor_for(explained, gate)
    objective = SelectedWordsLoss(learned, fraction=0.3, sparsity_weight=2.0, continuity_weight=0.5)
    module = TrainingModule(explained, [objective]).eval()
    total = 0.0
    with torch.no_grad():
        found = module(explained.encode(rows), StepContext(training=False))["terms"][0]
        again = module(explained.encode(rows), StepContext(number=7, training=False))["terms"][0]
        for row in rows:
            batch = explained.encode([row])
            places = batch.content[0]
            outputs = explained(batch, capture=learned.capture)
            gates = learned.find_gates(outputs)
            kept = torch.where(places, gates.most_likely()[0], 1.0)
            logits = explained(batch, explained.embed(batch) * kept[None, :, None]).logits
            selected = gates.selected[0][places]
            changes = (selected[1:] - selected[:-1] * selected[1:] * 2 + selected[:-1]).sum()
            total += cross_entropy(logits, torch.tensor([row["label"]])) + 2 * (selected.mean() - 0.3).abs()
            total += 0.5 * changes / places.sum()
    torch.testing.assert_close(found, total / len(rows))
    torch.testing.assert_close(found, again, rtol=0, atol=0)


def make_planted_rows(size, seed):
    """Return sentences of filler words with one word that decides the class."""
    random = np.random.default_rng(seed)
    rows = {"text": [], "label": [], "rationale": []}
    for number in range(size):
        words = list(random.choice(WORDS, size=6))
        place = int(random.integers(6))
        words[place] = ("dull", "good")[number % 2]
        start = len(" ".join(words[:place])) + (place > 0)
        rows["text"].append(" ".join(words))
        rows["label"].append(number % 2)
        rows["rationale"].append([[start, start + 4]])
    return Dataset.from_dict(rows).cast_column("label", ClassLabel(names=["bad", "fine"]))


def test_a_word_that_decides_the_class_is_selected(tmp_path):
    arguments = {"num_train_epochs": 12, "per_device_train_batch_size": 16, "learning_rate": 1e-3}
    options = {"arguments": arguments | {"disable_tqdm": True, "use_cpu": True}}
    result = RECIPES["extractor"]("hardkuma", fraction=1 / 6, sparsity_warmup=0).train(
        "tiny", make_planted_rows(384, 0), make_planted_rows(48, 1), tmp_path / "run", **options
    )
    judged = list(make_planted_rows(40, 2))
    method = explainer(f"rationale_extractor:{tmp_path / 'run'}")
    found = [row["text"][span[0] : span[1]] for row in judged for span in row["rationale"]]
    explanations = expound.attribute(result.model, [row["text"] for row in judged], method)
    first = [explanation.unit_texts[int(explanation.scores[0].argmax())] for explanation in explanations]
    assert np.mean([word == wanted for word, wanted in zip(first, found, strict=True)]) > 0.9
    loaded = expound.load(tmp_path / "run", device="cpu")
    again = expound.attribute(loaded, [row["text"] for row in judged], f"rationale_extractor:{tmp_path / 'run'}")
    np.testing.assert_allclose(again[3].scores, explanations[3].scores, rtol=1e-5, atol=1e-7)
    history = json.loads((tmp_path / "run" / "history.json").read_text())["history"]
    assert any("eval_selected_words" in entry for entry in history)


def test_other_explainers_tasks_and_numbers_are_refused(capsys):
    with pytest.raises(ExpoundError, match="trains a rationale_extractor, not alti"):
        SelectedWordsLoss(explainer("alti"))
    with pytest.raises(ExpoundError, match="expected a fraction above 0"):
        SelectedWordsLoss(fraction=0.0)
    with pytest.raises(ExpoundError, match="sparsity_weight, sparsity_warmup and continuity_weight of at least 0"):
        SelectedWordsLoss(continuity_weight=-1.0)
    with pytest.raises(ExpoundError, match="unknown gate 'soft'"):
        RationaleExtractor(4, "soft")
    spans = ExplainedModel(
        families.tiny("bert", "QuestionAnswering", num_labels=2, **TINY, **QUIET), families.tokenizer("bert")
    )
    batch = spans.encode([{"text": "what?", "text_pair": "a film", "answer": [[0, 1]]}])
    with pytest.raises(ExpoundError, match="a class or a number"):
        TrainingModule(spans, [CrossEntropy(), SelectedWordsLoss()])(batch, StepContext())
    learned = RationaleExtractor(4)
    with pytest.raises(ExpoundError, match="for states of 4 dimensions, the model has 8"):
        learned.attribute(model(), model().encode([{"text": "fine"}]))
    assert main(["train", "extractor", "--help"]) == 0
    assert "--fraction" in capsys.readouterr().out


def test_bernoulli_gates_have_their_probabilities():
    gates = BernoulliGates(torch.tensor([[-3.0, 0.0, 2.0]], dtype=torch.float64))
    for value in (0.0, 1.0):
        chosen = torch.full((1, 3), value, dtype=torch.float64)
        probability = gates.selected if value else 1 - gates.selected
        torch.testing.assert_close(gates.log_probability(chosen).exp(), probability)
    uniform = torch.rand(200_000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(gates.sample(uniform).mean(0), gates.selected[0], atol=0.005, rtol=0)
    assert gates.most_likely().tolist() == [[0.0, 0.0, 1.0]]
