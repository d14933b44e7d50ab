"""Contract tests for every objective; inherit the class and give it one fixture, `objective`."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from exegete.data.provenance import to_json_value
from exegete.errors import ExegeteError
from exegete.explainers.base import embed_with_gradient
from exegete.models import Batch, ExplainedModel
from exegete.objectives import Objective, StepContext, TrainingStep, task_losses
from exegete.testing.models import make_examples, random_model, replace_layer_norms, select_example
from exegete.testing.no_side_effects import find_changes, snapshot
from exegete.training.loop.training_module import TrainingModule

TRAINING, EVALUATION = StepContext(), StepContext(training=False)


class ObjectiveContract:
    """Contract tests of a term of a training loss.

    Example:
        class TestMyObjective(ObjectiveContract):
            @pytest.fixture
            def objective(self):
                return MyObjective()
    """

    tolerance = 1e-6

    @pytest.fixture
    def model(self) -> ExplainedModel:
        """A small random classifier in float64; override it for objectives that need another."""
        return random_model()

    def test_its_facts_are_told(self, objective: Objective) -> None:
        """Name, weight and parameters are there for logs and the record of a run; a share is a part of a batch."""
        assert objective.name.isidentifier()
        assert objective.weight >= 0
        assert 0 < objective.share <= 1
        assert json.dumps(to_json_value(objective.params))

    def test_its_gradient_is_its_derivative(self, objective: Objective, model: ExplainedModel) -> None:
        """By finite differences along weights; an estimated gradient only has to be there and finite."""
        batch = model.encode(make_examples(2))
        if objective.exact_gradient:
            point = torch.zeros(3, dtype=torch.float64, requires_grad=True)
            assert torch.autograd.gradcheck(
                _term_along_directions(model, objective, batch), (point,), atol=1e-6, rtol=1e-4
            )
            return
        compute_term(model, objective, batch).backward()
        slopes = [weight.grad for weight in model.parameters() if weight.grad is not None]
        assert all(slope.isfinite().all() for slope in slopes)
        assert any(slope.any() for slope in slopes)

    def test_a_batch_has_the_mean_of_its_examples(self, objective: Objective, model: ExplainedModel) -> None:
        """Each counts as much as `size` says; not where examples are compared, or noise is drawn for the batch."""
        batch = model.encode(make_examples())
        together = compute_term(model, objective, batch, EVALUATION)
        assert together.shape == ()
        if not objective.separable:
            return
        rows = [select_example(batch, row) for row in range(len(batch))]
        sizes = torch.stack([objective.size(row) for row in rows]).double()
        each = torch.stack([compute_term(model, objective, row, EVALUATION) for row in rows])
        torch.testing.assert_close(objective.size(batch).double(), sizes.sum())
        expected = (each * sizes).sum() / sizes.sum()
        torch.testing.assert_close(together, expected, rtol=1e-5, atol=self.tolerance)

    def test_examples_that_it_cannot_learn_from_do_not_count(self, objective: Objective, model: ExplainedModel) -> None:
        """Without rationales a term is a finite number; where no example counts it is 0 and pulls nowhere."""
        rows = [row | {"rationale": None} for row in make_examples(2)]
        for batch in (model.encode(rows), model.encode([*rows, *make_examples(1)])):
            model.zero_grad()
            found = compute_term(model, objective, batch)
            assert found.isfinite()
            if found.requires_grad:
                found.backward()
            assert all(weight.grad is None or weight.grad.isfinite().all() for weight in model.parameters())
            if not objective.size(batch):
                assert found == 0
                assert not any(weight.grad is not None and weight.grad.any() for weight in model.parameters())

    def test_a_broken_model_is_not_learned_from(self, objective: Objective, model: ExplainedModel) -> None:
        """Weights that are no numbers give a term that is none, or an error: never one that looks like success."""
        with torch.no_grad():
            for weight in model.parameters():
                weight.fill_(torch.nan)
        batch = model.eval().encode(make_examples())
        at = embed_with_gradient(model, batch, keep_graph=True)
        outputs = model(batch, at, objective.capture)
        try:
            found = objective(TrainingStep(model, batch, outputs, *task_losses(model, batch, outputs.logits)))
        except ExegeteError:
            return
        assert not found.isfinite()

    def test_all_that_it_draws_comes_from_the_step(self, objective: Objective, model: ExplainedModel) -> None:
        """The same step gives the same term, whatever the global generator; which is left alone, as the model is."""
        batch, found = model.eval().encode(make_examples()), []
        for seed in (1, 2):
            torch.manual_seed(seed)
            before = snapshot(model)
            found.append(compute_term(model, objective, batch).detach())
            assert find_changes(before, model) == []
        torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


def compute_term(model: ExplainedModel, objective: Objective, batch: Batch, context: StepContext = TRAINING) -> Tensor:
    """The unweighted term of a step, without dropout."""
    module = TrainingModule(model, [objective]).eval()
    found: Tensor = module(batch, context)["terms"][0]
    return found


def _term_along_directions(model: ExplainedModel, objective: Objective, batch: Batch) -> Callable[[Tensor], Tensor]:
    """The term as a function of steps [3] along random directions, each in all of the model's weights."""
    replace_layer_norms(model)
    module = TrainingModule(model, [objective]).eval()
    weights = {name: weight.detach() for name, weight in module.named_parameters()}
    generator = torch.Generator().manual_seed(0)
    directions = {
        name: 0.1 * torch.randn(3, *weight.shape, generator=generator, dtype=weight.dtype)
        for name, weight in weights.items()
    }

    def at(point: Tensor) -> Tensor:
        moved = {name: weight + torch.tensordot(point, directions[name], 1) for name, weight in weights.items()}
        terms: Tensor = torch.func.functional_call(module, moved, (batch, TRAINING))["terms"]
        return terms

    return at
