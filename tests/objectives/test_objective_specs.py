"""Objectives from their specs, and losses composed of them."""

from __future__ import annotations

import json

import pytest
import torch

import expound
from expound import ExpoundError
from expound.cli import main
from expound.objectives import StepContext, TrainingStep, objective, parse_objectives
from expound.recipes import RECIPES
from expound.testing.models import make_examples, random_model


def test_parameters_and_those_of_an_explainer_stand_in_the_spec():
    found = objective("attribution_entropy?weight=0.1")
    assert (found.weight, found.explainer.name) == (0.1, "attention_rollout")
    found = objective("rationale_alignment?explainer=integrated_gradients?n_steps=3;baselines=zero&distance=kl")
    assert (found.explainer.n_steps, found.explainer.baselines, found.distance) == (3, "zero", "kl")
    assert objective("comprehensiveness?fractions=0.1,0.2", weight=2.0).fractions == (0.1, 0.2)
    both = parse_objectives("sufficiency?fractions=0.1,0.5,cross_entropy")
    assert [(each.name, each.weight) for each in both] == [("sufficiency", 1.0), ("cross_entropy", 1.0)]


def test_terms_with_one_untrained_explainer_share_it_in_a_run():
    model, own = random_model(), "explainer=interpretable_attention?untrained;normalizer=softmax"
    specs = f"cross_entropy,sufficiency?{own},comprehensiveness?{own}&weight=2"
    _, one, other = RECIPES["custom"](specs).build_objectives(model, None, 0)
    assert one.explainer is other.explainer
    assert (one.explainer.n_layers, one.explainer.normalizer, other.weight) == (2, "softmax", 2.0)
    with pytest.raises(ExpoundError, match="pass model=, the model that it explains"):
        parse_objectives(specs)


def test_what_is_wrong_is_named():
    cases = [
        ("attribution_entropi", "Did you mean 'attribution_entropy'"),
        ("attribution_entropy?wait=1", "unknown parameter of attribution_entropy 'wait'"),
        ("attribution_entropy?explainer=occlusion", "occlusion cannot guide a model"),
        ("attribution_entropy?weight=-1", "weight of attribution_entropy is at least 0"),
        ("explanation_guided?memory=1", "unknown parameter of explanation_guided 'memory'"),
        ("cross_entropy,cross_entropy?weight=2", "cross_entropy occurs twice"),
        (",", "expected ids"),
    ]
    for spec, message in cases:
        with pytest.raises(ExpoundError, match=message.replace("?", r"\?")):
            parse_objectives(spec)


@pytest.mark.parametrize("method", ["attention_rollout", "input_x_gradient", "integrated_gradients?n_steps=2"])
def test_the_entropy_is_that_of_the_shares_of_each_example(method):
    model = random_model()
    batch = model.encode(make_examples())
    found = objective(f"attribution_entropy?explainer={method}")
    outputs = model(batch, None, found.capture)
    if found.capture.embeddings:
        outputs = model(batch, model.embed(batch).requires_grad_(), found.capture)
    step = TrainingStep(model, batch, outputs, StepContext())
    scores = found.explainer.attribute(model, batch).detach().abs()
    rows = zip(scores, batch.content, strict=True)
    expected = [torch.distributions.Categorical(row[inside]).entropy() for row, inside in rows]
    torch.testing.assert_close(found(step).detach(), torch.stack(expected).mean(), rtol=1e-4, atol=1e-6)


def test_the_command_trains_on_the_objectives_and_says_so(tmp_path):
    folder, spec = tmp_path / "run", "cross_entropy,attribution_entropy?weight=5"
    small = ["--data", "generated?size=48", "--device", "cpu", "--epochs", "1", "--batch-size", "16", "--quiet"]
    assert main(["train", "custom", "--objectives", spec, *small, "--config", "tiny", "--output-dir", str(folder)]) == 0
    assert "attribution_entropy" in json.loads((folder / "metrics.json").read_text())
    recorded = json.loads((folder / "expound_run.json").read_text())["config"]["objectives"]
    assert recorded["attribution_entropy"]["weight"] == 5.0


def test_a_weight_on_the_entropy_makes_explanations_narrower(tmp_path):
    found = {}
    for weight in (0, 3):
        recipe = RECIPES["custom"](f"cross_entropy,attribution_entropy?weight={weight}")
        settings = {"num_train_epochs": 6, "learning_rate": 3e-3, "load_best_model_at_end": False, "disable_tqdm": True}
        data = [expound.load_data("generated?size=96", split) for split in ("train", "dev")]
        result = recipe.train("tiny", *data, tmp_path / str(weight), arguments=settings, device="cpu")
        found[weight] = result.metrics["attribution_entropy"]
    assert found[3] < found[0] - 0.05
